//! A lean client of Redis's protocol: one thread serves many connections, with one write and one read for each round of a
//! pipeline, so that what is measured is the server.
//!
//! **Invariant.** Answers come in the order of the requests, so each connection keeps its requests in a queue, and an answer
//! belongs to the first of it.
//!
//! Closed loop: a connection sends its next round when the last one is answered. Open loop: rounds start at their time, on one
//! connection after the other, answered or not; those that find too many under way are dropped and counted.

use super::reply;
use crate::bench::load::{Client, Count, OPEN_LOOP_REQUESTS_MAX, Run, Shared, count};
use anyhow::{Context, Result, ensure};
use mio::event::Event;
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes read at once, unless an answer is larger.
const READ_BYTES: usize = 64 << 10;
/// How long a thread sleeps at most before it looks at the time.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// How long a server may take to answer outside of a run.
const PATIENCE: Duration = Duration::from_secs(60);
/// Requests of a round while something is written before a run.
const FILL_PIPELINE: usize = 200;

/// What is asked, again and again.
pub(in crate::bench) trait Script: Send + 'static {
    /// Appends the next request; what it returns is handed to [`Self::check`] with the answer.
    fn request(&mut self, out: &mut Vec<u8>) -> u64;

    /// Whether `reply`, a whole one, is what was asked for.
    ///
    /// # Errors
    /// Why not.
    fn check(&mut self, asked: u64, reply: &[u8]) -> Result<()>;
}

/// How requests are spread.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Shape {
    /// Requests of a connection that are sent together.
    pub(in crate::bench) pipeline: usize,
    /// Threads that serve the connections.
    pub(in crate::bench) threads: usize,
}

/// Connects `connections` times, over all endpoints, and says `hello` (whole commands) on each.
///
/// # Errors
/// An endpoint cannot be reached, or answers with an error.
pub(in crate::bench) fn connect(
    endpoints: &[String],
    connections: usize,
    hello: &[&str],
) -> Result<Vec<TcpStream>> {
    let one = |number: usize| {
        let endpoint = &endpoints[number % endpoints.len()];
        let mut stream = TcpStream::connect(endpoint).with_context(|| format!("connecting to {endpoint}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        for command in hello {
            let mut request = Vec::new();
            words(&mut request, &[command.as_bytes()]);
            ask(&mut stream, &request, 1, &mut |reply| reply::no_error(reply))
                .with_context(|| format!("{command} at {endpoint}"))?;
        }
        Ok(stream)
    };
    (0..connections).map(one).collect()
}

/// Appends a request.
pub(in crate::bench) fn words(out: &mut Vec<u8>, words: &[&[u8]]) {
    write!(out, "*{}\r\n", words.len()).expect("a Vec takes everything");
    for word in words {
        write!(out, "${}\r\n", word.len()).expect("a Vec takes everything");
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Has `requests` answered by one of the servers, many at a time: for what is written before a run.
///
/// # Errors
/// The server cannot be reached, or answers one with an error.
pub(in crate::bench) fn fill(
    endpoints: &[String],
    requests: impl Iterator<Item = impl FnOnce(&mut Vec<u8>)>,
) -> Result<()> {
    let mut stream = connect(endpoints, 1, &[])?.pop().context("one connection")?;
    let (mut out, mut gathered) = (Vec::new(), 0);
    let mut requests = requests.peekable();
    while let Some(request) = requests.next() {
        request(&mut out);
        gathered += 1;
        if gathered == FILL_PIPELINE || requests.peek().is_none() {
            ask(&mut stream, &out, gathered, &mut |reply| reply::no_error(reply))?;
            out.clear();
            gathered = 0;
        }
    }
    Ok(())
}

fn ask(
    stream: &mut TcpStream,
    requests: &[u8],
    answers: usize,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    stream.write_all(requests)?;
    let mut inbox = Inbox::default();
    let mut answered = 0;
    while answered < answers {
        ensure!(inbox.read(stream)? > 0, "the server closed the connection");
        while let Some(reply) = inbox.next()? {
            take(reply)?;
            answered += 1;
        }
    }
    Ok(())
}

/// Starts the threads of a run; `script` makes one for each.
pub(in crate::bench) fn clients<S: Script>(
    run: &Run,
    shape: Shape,
    connections: Vec<TcpStream>,
    shared: &Arc<Shared>,
    script: impl Fn(usize) -> S,
) -> Vec<Client> {
    let threads = shape.threads.min(connections.len()).max(1);
    let mut shares: Vec<Vec<TcpStream>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, connection) in connections.into_iter().enumerate() {
        shares[number % threads].push(connection);
    }
    let start = |(number, share): (usize, Vec<TcpStream>)| {
        let (shared, script) = (Arc::clone(shared), script(number));
        let interval =
            run.rate.map(|rate| Duration::from_secs_f64(shape.pipeline as f64 * threads as f64 / rate));
        let schedule = interval.map(|interval| Schedule {
            next: Instant::now() + interval.mul_f64(number as f64 / threads as f64),
            interval,
            turn: 0,
            under_way_max: (OPEN_LOOP_REQUESTS_MAX / threads).max(shape.pipeline),
        });
        tokio::task::spawn_blocking(move || {
            let mut thread = Thread::new(share, script, shape.pipeline, shared)?;
            match schedule {
                None => thread.closed()?,
                Some(schedule) => thread.open(schedule)?,
            }
            Ok(thread.count)
        })
    };
    shares.into_iter().enumerate().map(start).collect()
}

/// When the rounds of an open loop start.
struct Schedule {
    next: Instant,
    interval: Duration,
    /// Whose turn it is.
    turn: usize,
    under_way_max: usize,
}

/// One connection.
struct Line {
    stream: mio::net::TcpStream,
    out: Vec<u8>,
    written: usize,
    inbox: Inbox,
    /// When each was to start, and what the script wants to know of it.
    under_way: VecDeque<(Instant, u64)>,
}

struct Thread<S> {
    poll: Poll,
    lines: Vec<Line>,
    script: S,
    pipeline: usize,
    shared: Arc<Shared>,
    count: Count,
    under_way: usize,
}

impl<S: Script> Thread<S> {
    fn new(share: Vec<TcpStream>, script: S, pipeline: usize, shared: Arc<Shared>) -> Result<Self> {
        let poll = Poll::new()?;
        let mut lines = Vec::with_capacity(share.len());
        for stream in share {
            stream.set_nonblocking(true)?;
            let mut stream = mio::net::TcpStream::from_std(stream);
            let both = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(lines.len()), both)?;
            let inbox = Inbox::default();
            lines.push(Line { stream, out: Vec::new(), written: 0, inbox, under_way: VecDeque::new() });
        }
        Ok(Self { poll, lines, script, pipeline, shared, count: count(), under_way: 0 })
    }

    fn closed(&mut self) -> Result<()> {
        for line in 0..self.lines.len() {
            self.begin(line, Instant::now())?;
        }
        let mut events = Events::with_capacity(1024);
        while Instant::now() < self.shared.end {
            self.wait(&mut events, SLEEP_MAX)?;
            for event in &events {
                let line = event.token().0;
                self.serve(event)?;
                if self.lines[line].under_way.is_empty() {
                    self.begin(line, Instant::now())?;
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, mut schedule: Schedule) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        let alarm = Alarm::new(&self.poll, Token(self.lines.len()))?;
        loop {
            let mut now = Instant::now();
            if now >= self.shared.end {
                return Ok(());
            }
            while schedule.next <= now {
                if self.under_way + self.pipeline > schedule.under_way_max {
                    self.shared.drop_many(self.pipeline as u64);
                } else {
                    self.begin(schedule.turn % self.lines.len(), schedule.next)?;
                }
                schedule.turn += 1;
                schedule.next += schedule.interval;
                now = Instant::now();
            }
            let pause = alarm.set(schedule.next.saturating_duration_since(now).min(SLEEP_MAX))?;
            self.wait(&mut events, pause)?;
            for event in &events {
                if event.token().0 < self.lines.len() {
                    self.serve(event)?;
                }
            }
        }
    }

    fn wait(&mut self, events: &mut Events, pause: Duration) -> Result<()> {
        match self.poll.poll(events, Some(pause)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Sends a round.
    fn begin(&mut self, line: usize, intended: Instant) -> Result<()> {
        let line = &mut self.lines[line];
        for _ in 0..self.pipeline {
            let asked = self.script.request(&mut line.out);
            line.under_way.push_back((intended, asked));
        }
        self.under_way += self.pipeline;
        line.write()
    }

    fn serve(&mut self, event: &Event) -> Result<()> {
        let line = &mut self.lines[event.token().0];
        if event.is_writable() {
            line.write()?;
        }
        if event.is_readable() {
            self.read(event.token().0)?;
        }
        Ok(())
    }

    fn read(&mut self, line: usize) -> Result<()> {
        let line = &mut self.lines[line];
        loop {
            let asked_for = line.inbox.room();
            let read = match line.inbox.read(&mut line.stream) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            ensure!(read > 0, "the server closed the connection");
            // Answers that came together to requests that started together are counted together.
            let mut together: Option<(Instant, u64)> = None;
            while let Some(reply) = line.inbox.next()? {
                let (intended, asked) =
                    line.under_way.pop_front().context("an answer to what was not asked")?;
                self.under_way -= 1;
                match reply::no_error(reply).and_then(|()| self.script.check(asked, reply)) {
                    Err(error) => self.shared.record(&mut self.count, intended, &Err(error)),
                    Ok(()) => match &mut together {
                        Some((start, answers)) if *start == intended => *answers += 1,
                        _ => {
                            if let Some((start, answers)) = together.replace((intended, 1)) {
                                self.shared.record_many(&mut self.count, start, answers, &Ok(()));
                            }
                        }
                    },
                }
            }
            if let Some((start, answers)) = together {
                self.shared.record_many(&mut self.count, start, answers, &Ok(()));
            }
            // What was read did not fill its room, or nothing is awaited: there is no more.
            if read < asked_for || line.under_way.is_empty() {
                return Ok(());
            }
        }
    }
}

impl Line {
    fn write(&mut self) -> Result<()> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }
}

/// Bytes that came and were not taken yet: those between `from` and `to`.
#[derive(Default)]
struct Inbox {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Inbox {
    /// Bytes that the next read takes at most.
    fn room(&mut self) -> usize {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        if self.bytes.len() - self.to < READ_BYTES / 2 {
            self.bytes.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            let length = self.bytes.len().max(self.to + READ_BYTES);
            self.bytes.resize(length, 0);
        }
        self.bytes.len() - self.to
    }

    fn read(&mut self, stream: &mut impl Read) -> std::io::Result<usize> {
        self.room();
        let read = stream.read(&mut self.bytes[self.to..])?;
        self.to += read;
        Ok(read)
    }

    /// The next whole reply.
    fn next(&mut self) -> Result<Option<&[u8]>> {
        let waiting = &self.bytes[self.from..self.to];
        let Some(end) = reply::end(waiting)? else { return Ok(None) };
        self.from += end;
        Ok(Some(&waiting[..end]))
    }
}

/// Wakes a poll on time: its own timeouts are whole milliseconds.
struct Alarm {
    #[cfg(target_os = "linux")]
    timer: rustix::fd::OwnedFd,
}

#[cfg(target_os = "linux")]
impl Alarm {
    fn new(poll: &Poll, token: Token) -> Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        use std::os::fd::AsRawFd;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        let descriptor = timer.as_raw_fd();
        poll.registry().register(&mut mio::unix::SourceFd(&descriptor), token, Interest::READABLE)?;
        Ok(Self { timer })
    }

    /// Wakes after `pause`; returns how long to sleep at most.
    fn set(&self, pause: Duration) -> Result<Duration> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would be never.
        let it_value = Timespec::try_from(pause.max(Duration::from_nanos(1)))?;
        let once = Itimerspec { it_interval: never, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(SLEEP_MAX)
    }
}

#[cfg(not(target_os = "linux"))]
impl Alarm {
    fn new(_poll: &Poll, _token: Token) -> Result<Self> {
        Ok(Self {})
    }

    fn set(&self, pause: Duration) -> Result<Duration> {
        Ok(pause)
    }
}
