//! The client that makes the load: one thread serves many connections, with one write and one read for each
//! round of a pipeline, so that the server is what is measured.
//!
//! **Invariant.** Answers come in the order of the requests: each connection queues its requests, and an
//! answer belongs to the first of the queue.
//!
//! Closed loop: a connection sends its next round when the last one is answered. Open loop: rounds start on
//! schedule, on the connections in turn, whether or not earlier ones are answered. A round is dropped and
//! counted if too many requests are in flight.

use super::alarm::Alarm;
use super::inbox::Inbox;
use super::reply;
use crate::runner::{Client, Count, OPEN_LOOP_REQUESTS_MAX, Run, Shared};
use anyhow::{Context, Result, ensure};
use mio::event::Event;
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread sleeps at most before it looks at the time.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// The requests of a run.
pub(crate) trait Script: Send + 'static {
    /// Appends the next request. [`Self::check`] gets the returned number with the answer.
    fn request(&mut self, out: &mut Vec<u8>) -> u64;

    /// Checks a complete reply.
    ///
    /// # Errors
    /// It is not what was asked for; the error says why.
    fn check(&mut self, asked: u64, reply: &[u8]) -> Result<()>;
}

/// How requests are distributed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Requests that a connection sends together.
    pub(crate) pipeline: usize,
    /// Threads that serve the connections.
    pub(crate) threads: usize,
}

/// Starts the threads of a run; `script` makes the requests of each.
pub(crate) fn clients<S: Script>(
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
            in_flight_max: (OPEN_LOOP_REQUESTS_MAX / threads).max(shape.pipeline),
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
    /// Rounds started so far: the connections take turns.
    turn: usize,
    in_flight_max: usize,
}

/// A connection and its requests in flight.
struct Line {
    stream: mio::net::TcpStream,
    out: Vec<u8>,
    written: usize,
    inbox: Inbox,
    /// Each request's scheduled start, and the number that the script gave it.
    in_flight: VecDeque<(Instant, u64)>,
}

struct Thread<S> {
    poll: Poll,
    lines: Vec<Line>,
    script: S,
    pipeline: usize,
    shared: Arc<Shared>,
    count: Count,
    in_flight: usize,
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
            lines.push(Line { stream, out: Vec::new(), written: 0, inbox, in_flight: VecDeque::new() });
        }
        Ok(Self { poll, lines, script, pipeline, shared, count: Count::new(), in_flight: 0 })
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
                if self.lines[line].in_flight.is_empty() {
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
                if self.in_flight + self.pipeline > schedule.in_flight_max {
                    self.shared.drop_many(self.pipeline as u64);
                } else {
                    self.begin(schedule.turn % self.lines.len(), schedule.next)?;
                }
                schedule.turn += 1;
                schedule.next += schedule.interval;
                now = Instant::now();
            }
            let pause = alarm.set(schedule.next.saturating_duration_since(now), SLEEP_MAX)?;
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

    /// Sends a round of requests.
    fn begin(&mut self, line: usize, intended: Instant) -> Result<()> {
        let line = &mut self.lines[line];
        for _ in 0..self.pipeline {
            let asked = self.script.request(&mut line.out);
            line.in_flight.push_back((intended, asked));
        }
        self.in_flight += self.pipeline;
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
            // Requests that started together and were answered together are counted together.
            let mut together: Option<(Instant, u64)> = None;
            while let Some(reply) = line.inbox.next()? {
                let (intended, asked) = line.in_flight.pop_front().context("an answer without a request")?;
                self.in_flight -= 1;
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
            // There is no more to read: the read was short, or no answer is outstanding.
            if read < asked_for || line.in_flight.is_empty() {
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
