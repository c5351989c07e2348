//! Connections that peers made: greeted, judged, then read from.
//!
//! **Invariant: Bounded.** At most [`ACCEPTED_MAX`] connections are served; more are closed at once.

use super::handler::{Counters, Handler};
use super::holders::{Addresses, Held, Holders};
use crate::frame::{self, FRAME_HEADER};
use crate::greeting::{Answer, GREETING_TIMEOUT, Greeting, Purpose, Verdict, Who};
use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use quoin_core::codec::Malformed;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Maximum connections that are served at once: far more than a cluster has members.
pub const ACCEPTED_MAX: usize = 1024;
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);
const WAKE_TIMEOUT: Duration = Duration::from_secs(1);
const READ_CHUNK: usize = 256 << 10;

pub(super) struct Acceptor {
    who: Who,
    /// Where peers reach this node.
    address: String,
    addresses: Arc<Addresses>,
    handler: Arc<dyn Handler>,
    counters: Arc<Counters>,
    holders: Holders,
    /// Each with the member that made it, 0 until it has said so.
    accepted: Mutex<HashMap<u64, (TcpStream, u64)>>,
    next_connection: AtomicU64,
    stopping: AtomicBool,
}

/// What to answer a greeting.
struct Judgment<'a> {
    verdict: Verdict,
    /// Address of the process that runs as the dialler's member; empty if there is none.
    rival: String,
    /// Held for as long as the connection lasts.
    held: Option<Held<'a>>,
}

impl Judgment<'_> {
    fn of(verdict: Verdict) -> Self {
        Self { verdict, rival: String::new(), held: None }
    }

    fn duplicate(rival: String) -> Self {
        Self { rival, ..Self::of(Verdict::Duplicate) }
    }
}

impl Acceptor {
    pub(super) fn new(
        who: Who,
        address: String,
        addresses: Arc<Addresses>,
        handler: Arc<dyn Handler>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            who,
            address,
            addresses,
            handler,
            counters,
            holders: Holders::default(),
            accepted: Mutex::default(),
            next_connection: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Serves each connection on a thread of its own, until stopped.
    pub(super) fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.is_stopping() {
                return;
            }
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accepting a peer connection");
                    std::thread::sleep(ACCEPT_RETRY_PAUSE);
                    continue;
                }
            };
            let serving = Arc::clone(self);
            let spawned =
                std::thread::Builder::new().name("peer-read".into()).spawn(move || serving.serve(stream));
            if let Err(error) = spawned {
                tracing::error!(%error, "no thread for a peer connection");
            }
        }
    }

    /// Closes all connections and ends the thread that accepts on `listening_on`.
    pub(super) fn stop(&self, listening_on: SocketAddr) {
        self.stopping.store(true, Ordering::SeqCst);
        for (stream, _) in self.accepted.lock().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the accepting thread.
        let _ = TcpStream::connect_timeout(&listening_on, WAKE_TIMEOUT);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Closes the connections that these members made.
    pub(super) fn close(&self, members: &BTreeSet<u64>) {
        for (stream, from) in self.accepted.lock().values() {
            if members.contains(from) {
                // An error means that it has just been closed.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    fn serve(&self, stream: TcpStream) {
        let connection = self.next_connection.fetch_add(1, Ordering::Relaxed);
        if let Ok(clone) = stream.try_clone() {
            let mut accepted = self.accepted.lock();
            if accepted.len() >= ACCEPTED_MAX {
                tracing::warn!(max = ACCEPTED_MAX, "closed a connection on the peer port: too many are open");
                return;
            }
            accepted.insert(connection, (clone, 0));
        }
        let source = stream.peer_addr().map_or_else(|_| String::from("?"), |address| address.to_string());
        if let Err(error) = self.serve_greeted(connection, stream) {
            let ended = matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset);
            if error.kind() == io::ErrorKind::InvalidData {
                self.counters.garbage.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(source, %error, "closed a connection on the peer port: not a peer's bytes");
            } else if !ended && !self.is_stopping() {
                tracing::debug!(source, %error, "peer connection ended");
            }
        }
        self.accepted.lock().remove(&connection);
    }

    fn serve_greeted(&self, connection: u64, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
        stream.set_nodelay(true)?;
        let greeting = Greeting::read(&mut stream)?;
        // Before the dialler is judged: if it is removed from now on, it is either found here or refused.
        if let Some((_, from)) = self.accepted.lock().get_mut(&connection) {
            *from = greeting.from;
        }
        let Judgment { verdict, rival, held: _held } = self.judge(&greeting);
        let answer = Answer { verdict: verdict as u64, who: self.who, rival };
        if verdict != Verdict::Welcome {
            tracing::warn!(?greeting, ?verdict, "refused a peer connection");
            return stream.write_all(&answer.encode());
        }
        stream.write_all(&answer.encode())?;
        match greeting.purpose {
            Purpose::Frames => {
                stream.set_read_timeout(None)?;
                self.read_frames(greeting.from, stream)
            }
            Purpose::Snapshot => {
                self.handler.snapshot_offered(greeting.from, stream);
                Ok(())
            }
            Purpose::Join => {
                self.handler.join_asked(stream);
                Ok(())
            }
            Purpose::Found => {
                self.handler.founding_asked(greeting.from, greeting.disk, stream);
                Ok(())
            }
            Purpose::Identify => Ok(()),
        }
    }

    fn judge(&self, greeting: &Greeting) -> Judgment<'_> {
        if matches!(greeting.purpose, Purpose::Join | Purpose::Identify) {
            return Judgment::of(Verdict::Welcome);
        }
        if greeting.cluster != self.who.cluster {
            return Judgment::of(Verdict::OtherCluster);
        }
        if greeting.from == self.who.id {
            return if greeting.incarnation == self.who.incarnation {
                Judgment::of(Verdict::Oneself)
            } else {
                Judgment::duplicate(self.address.clone())
            };
        }
        if greeting.to != self.who.id {
            return Judgment::of(Verdict::OtherNode);
        }
        if self.handler.is_removed(greeting.from) {
            return Judgment::of(Verdict::Removed);
        }
        // Invariant: One disk per member.
        if self.handler.is_other_disk(greeting.from, greeting.disk) {
            return Judgment::of(Verdict::OtherDisk);
        }
        match self.holders.claim(greeting, &self.addresses) {
            Ok(held) => Judgment { held: Some(held), ..Judgment::of(Verdict::Welcome) },
            Err(rival) => Judgment::duplicate(rival),
        }
    }

    fn read_frames(&self, from: u64, mut stream: TcpStream) -> io::Result<()> {
        let mut buffer = BytesMut::new();
        loop {
            let wanted = read_frame_length(&buffer)?;
            if let Some((length, crc)) = wanted.filter(|(length, _)| buffer.len() >= FRAME_HEADER + length) {
                buffer.advance(FRAME_HEADER);
                let body = buffer.split_to(length).freeze();
                let (group, message) = frame::decode_body(body, crc).map_err(garbage)?;
                self.handler.received(from, group, message);
                continue;
            }
            // The buffer grows as bytes arrive, so a length that nobody fills takes no memory.
            let missing = wanted.map_or(0, |(length, _)| FRAME_HEADER + length - buffer.len());
            let start = buffer.len();
            buffer.resize(start + missing.clamp(READ_CHUNK / 16, READ_CHUNK), 0);
            let read = stream.read(&mut buffer[start..])?;
            buffer.truncate(start + read);
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.counters.received_bytes.fetch_add(read as u64, Ordering::Relaxed);
        }
    }
}

fn garbage(malformed: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed)
}

fn read_frame_length(buffer: &BytesMut) -> io::Result<Option<(usize, u32)>> {
    let Some(header) = buffer.first_chunk::<FRAME_HEADER>() else { return Ok(None) };
    frame::decode_header(*header).map(Some).map_err(garbage)
}
