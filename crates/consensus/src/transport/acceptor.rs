//! Connections that peers made: greeted, judged, then read from.
//!
//! **Invariant: Authenticated.** With TLS, whoever has no certificate of a trusted authority is not read beyond the
//! handshake, and whoever's certificate is not that of the member that it says it is, not beyond the greeting.
//!
//! **Invariant: Bounded.** At most [`ACCEPTED_MAX`] connections are served; more are closed at once. Only members may
//! send frames, each on one connection, which holds at most two frames' bytes at a time.

use super::handler::{Counters, Handler};
use super::holders::{Addresses, Held, Holders};
use super::silence::{Heard, Patience};
use super::spawn;
use crate::frame::{self, FRAME_HEADER};
use crate::greeting::{Answer, GREETING_TIMEOUT, Greeting, Purpose, Verdict, Who};
use crate::stream::{self, InTime, PeerStream};
use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use quoin_core::codec::Malformed;
use quoin_tls::{Certificate, Keys};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum connections that are served at once: far more than a cluster has members.
pub const ACCEPTED_MAX: usize = 1024;
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);
const WAKE_TIMEOUT: Duration = Duration::from_secs(1);
const READ_CHUNK: usize = 256 << 10;

pub(super) struct Acceptor {
    pub(super) who: Who,
    /// Where peers reach this node.
    pub(super) address: String,
    /// With these, peers are served over mutual TLS alone.
    pub(super) keys: Option<Arc<Keys>>,
    pub(super) addresses: Arc<Addresses>,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) counters: Arc<Counters>,
    pub(super) patience: Patience,
    pub(super) heard: Arc<Heard>,
    pub(super) holders: Holders,
    /// By number, in the order in which they were made.
    pub(super) accepted: Mutex<BTreeMap<u64, Accepted>>,
    pub(super) next_connection: AtomicU64,
    pub(super) stopping: AtomicBool,
}

/// An open connection.
pub(super) struct Accepted {
    stream: TcpStream,
    /// The member that made it, 0 until it has said so.
    from: u64,
    /// It is for frames.
    frames: bool,
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
            if let Err(error) = spawn(&self.handler, "peer-read", move || serving.serve(stream)) {
                tracing::error!(%error, "no thread for a peer connection");
            }
        }
    }

    /// Closes all connections and ends the thread that accepts on `listening_on`.
    pub(super) fn stop(&self, listening_on: SocketAddr) {
        self.stopping.store(true, Ordering::SeqCst);
        for accepted in self.accepted.lock().values() {
            let _ = accepted.stream.shutdown(Shutdown::Both);
        }
        // Wakes the accepting thread.
        let _ = TcpStream::connect_timeout(&listening_on, WAKE_TIMEOUT);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Closes the connections that these members made.
    pub(super) fn close(&self, members: &BTreeSet<u64>) {
        self.close_where(|_, accepted| members.contains(&accepted.from));
    }

    fn close_where(&self, is_meant: impl Fn(u64, &Accepted) -> bool) {
        for (number, accepted) in &*self.accepted.lock() {
            if is_meant(*number, accepted) {
                // An error means that it has just been closed.
                let _ = accepted.stream.shutdown(Shutdown::Both);
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
            accepted.insert(connection, Accepted { stream: clone, from: 0, frames: false });
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

    fn serve_greeted(&self, connection: u64, socket: TcpStream) -> io::Result<()> {
        socket.set_write_timeout(Some(GREETING_TIMEOUT))?;
        socket.set_nodelay(true)?;
        let end = Instant::now() + GREETING_TIMEOUT;
        let mut stream = match PeerStream::accept(socket, self.keys.as_deref(), end)? {
            stream::Accepted::Stream(stream) => stream,
            stream::Accepted::Plain(mut stream) => {
                let who = Who { cluster: 0, id: 0, incarnation: 0 };
                let answer = Answer { verdict: Verdict::NeedsTls as u64, who, rival: String::new() };
                stream.write_all(&answer.encode())?;
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "no TLS, and this node speaks nothing else",
                ));
            }
        };
        let certificate = stream.certificate()?;
        let greeting = Greeting::read(&mut InTime { stream: &mut stream, end })?;
        stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
        // Before the dialler is judged: if it is removed from now on, it is either found here or refused.
        if let Some(accepted) = self.accepted.lock().get_mut(&connection) {
            accepted.from = greeting.from;
        }
        let Judgment { verdict, rival, held: _held } = self.judge(&greeting, certificate.as_ref());
        let answer = Answer { verdict: verdict as u64, who: self.who, rival };
        if verdict != Verdict::Welcome {
            let [member, cluster, disk] =
                [greeting.from, greeting.cluster, greeting.disk].map(|id| format!("{id:016x}"));
            tracing::warn!(
                member, cluster, disk, address = %greeting.address, ?verdict, "refused a peer connection"
            );
            return stream.write_all(&answer.encode());
        }
        if greeting.purpose == Purpose::Frames {
            // Before the answer: once the dialler has it, it may dial again.
            self.replace_former(connection, greeting.from);
        }
        stream.write_all(&answer.encode())?;
        match greeting.purpose {
            Purpose::Frames => {
                stream.set_read_timeout(None)?;
                self.patience.give_up_after(stream.socket())?;
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
            Purpose::Files => {
                self.handler.file_asked(stream);
                Ok(())
            }
            Purpose::Identify => Ok(()),
        }
    }

    /// A member has one connection for frames at a time. A former one is dead, though it may not look it, and what
    /// is still on it is old.
    fn replace_former(&self, connection: u64, member: u64) {
        if let Some(accepted) = self.accepted.lock().get_mut(&connection) {
            accepted.frames = true;
        }
        let is_former =
            |number, accepted: &Accepted| number < connection && accepted.frames && accepted.from == member;
        self.close_where(is_former);
    }

    fn judge(&self, greeting: &Greeting, certificate: Option<&Certificate>) -> Judgment<'_> {
        let is_peer = self.addresses.lock().contains_key(&greeting.from);
        // Before anything is believed.
        if certificate.is_some_and(|certificate| !self.is_of(certificate, greeting)) {
            return Judgment::of(Verdict::OtherCertificate);
        }
        match verdict(greeting, self.who, is_peer, &*self.handler) {
            // Others have told where the member is.
            Verdict::Welcome
                if !is_peer && certificate.is_some_and(|certificate| !self.is_of(certificate, greeting)) =>
            {
                return Judgment::of(Verdict::OtherCertificate);
            }
            Verdict::Welcome if !greeting.purpose.is_of_a_member() => return Judgment::of(Verdict::Welcome),
            Verdict::Welcome => {}
            Verdict::Duplicate => return Judgment::duplicate(self.address.clone()),
            refused => return Judgment::of(refused),
        }
        match self.holders.claim(greeting, &self.addresses, self.keys.as_deref()) {
            Ok(held) => Judgment { held: Some(held), ..Judgment::of(Verdict::Welcome) },
            Err(rival) => Judgment::duplicate(rival),
        }
    }

    /// Whether a certificate is that of the dialler: of the member that it says it is, or of any node where it has no
    /// id yet.
    fn is_of(&self, certificate: &Certificate, greeting: &Greeting) -> bool {
        if !greeting.purpose.is_of_a_member() {
            return certificate.is_a_nodes();
        }
        let known = self.addresses.lock().get(&greeting.from).cloned();
        let address = known.unwrap_or_else(|| greeting.address.clone());
        certificate.is_of(&self.handler.name_of(greeting.from), &address)
    }

    fn read_frames(&self, from: u64, mut stream: PeerStream) -> io::Result<()> {
        let mut buffer = BytesMut::new();
        let heard = self.heard.of(from);
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
            heard.store(self.heard.now_ms(), Ordering::Relaxed);
            self.counters.received_bytes.fetch_add(read as u64, Ordering::Relaxed);
        }
    }
}

/// What `who` answers to `greeting`, as far as that does not depend on other processes of the dialler's member.
/// `is_peer` says whether `who` dials that member.
pub fn verdict(greeting: &Greeting, who: Who, is_peer: bool, handler: &dyn Handler) -> Verdict {
    if !greeting.purpose.is_of_a_member() {
        return Verdict::Welcome;
    }
    if greeting.cluster != who.cluster {
        return Verdict::OtherCluster;
    }
    if greeting.from == who.id {
        let oneself = greeting.incarnation == who.incarnation;
        return if oneself { Verdict::Oneself } else { Verdict::Duplicate };
    }
    // What is wrong with the dialler is wrong wherever it dials: a founder that has lost its disk may find nobody at the
    // founders' addresses but members that replaced them.
    if handler.is_removed(greeting.from) {
        return Verdict::Removed;
    }
    // Invariant: One disk per member.
    if handler.is_other_disk(greeting.from, greeting.disk) {
        return Verdict::OtherDisk;
    }
    if greeting.to != who.id {
        return Verdict::OtherNode;
    }
    if !is_peer && !handler.is_vouched_for(greeting.from, &greeting.address) {
        return Verdict::Unknown;
    }
    Verdict::Welcome
}

fn garbage(malformed: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed)
}

fn read_frame_length(buffer: &BytesMut) -> io::Result<Option<(usize, u32)>> {
    let Some(header) = buffer.first_chunk::<FRAME_HEADER>() else { return Ok(None) };
    frame::decode_header(*header).map(Some).map_err(garbage)
}
