//! Connections between replicas: one in each direction per pair, on the peer port, shared by all groups.
//!
//! A connection begins with a greeting (`greeting.rs`). Then the dialler sends frames (`message.rs`) and the acceptor
//! only reads; or, for a snapshot, the dialler streams chunks and the acceptor acknowledges the end.
//!
//! **Invariant (one process per member).** A dialler is welcome only if no other process answers at the address of the
//! one that was last known to run as its member. So of two processes with one id, each peer listens to one; the other
//! is told, and ends.
//!
//! Plain threads and blocking sockets: heartbeats must not queue behind ten thousand client requests in an
//! async runtime.
//!
//! **Bounds.** Each peer's outbox holds at most [`OUTBOX_BYTES_MAX`]; what does not fit is dropped, which Raft
//! repairs by sending again. A frame is at most [`FRAME_BODY_MAX`](super::message::FRAME_BODY_MAX). Of connections that
//! others made, [`ACCEPTED_MAX`] are served; more are closed at once.

use super::GroupId;
use super::greeting::{Answer, DialError, GREETING_TIMEOUT, Greeting, Purpose, Verdict, Who, dial, identify};
use super::message::{self, FRAME_HEADER, FrameBuffer, PeerMessage};
use bytes::{Buf, BytesMut};
use parking_lot::{Condvar, Mutex};
use rustix::net::SendFlags;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that wait for one peer at most.
pub const OUTBOX_BYTES_MAX: usize = 64 << 20;
/// Connections that others made and that are served at once at most: far more than a cluster has members.
pub const ACCEPTED_MAX: usize = 1024;
/// Messages up to this size are written by whoever sends them, if nothing waits.
const WRITTEN_AT_ONCE_BYTES_MAX: usize = 8 << 10;
const WAKE_TIMEOUT: Duration = Duration::from_secs(1);
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(2);
const READ_CHUNK: usize = 256 << 10;

/// What the transport hands to its node.
pub trait Handler: Send + Sync + 'static {
    /// A message has come.
    fn received(&self, from: u64, group: GroupId, message: PeerMessage);
    /// The connection to `peer` broke; what was sent on it may be lost.
    fn lost(&self, peer: u64);
    /// A peer wants to send a snapshot on this connection. Runs on the connection's thread.
    fn snapshot_offered(&self, from: u64, stream: TcpStream);
    /// A new node asks to be told who it is. Runs on the connection's thread.
    fn join_asked(&self, stream: TcpStream);
    /// Whether `peer` has been removed from the cluster.
    fn is_removed(&self, peer: u64) -> bool;
    /// A peer has said that this node must not run, for `reason`.
    fn cast_out(&self, reason: &str);
}

/// Counters for the metrics page.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes written to peers.
    pub sent_bytes: AtomicU64,
    /// Bytes read from peers.
    pub received_bytes: AtomicU64,
    /// Messages dropped because an outbox was full or the peer away.
    pub dropped: AtomicU64,
    /// Connections closed for bytes that no peer sends.
    pub garbage: AtomicU64,
}

/// The connections of one node.
pub struct Transport {
    who: Who,
    address: String,
    group: GroupId,
    handler: Arc<dyn Handler>,
    peers: Mutex<BTreeMap<u64, Peer>>,
    /// Which process runs as a member: that whose connections are served.
    holders: Mutex<BTreeMap<u64, Holder>>,
    /// Connections that others made, and by which member once it has said so.
    accepted: Mutex<HashMap<u64, (TcpStream, u64)>>,
    next_connection: AtomicU64,
    stopping: AtomicBool,
    /// What happened so far.
    pub counters: Counters,
}

#[derive(Clone)]
struct Holder {
    incarnation: u64,
    address: String,
    connections: usize,
}

struct Peer {
    outbox: Arc<Outbox>,
    address: Arc<Mutex<String>>,
}

#[derive(Default)]
struct Outbox {
    state: Mutex<OutboxState>,
    filled: Condvar,
}

#[derive(Default)]
struct OutboxState {
    messages: VecDeque<PeerMessage>,
    bytes: usize,
    /// Where small messages are written at once, while the writing thread has nothing to do.
    stream: Option<TcpStream>,
    /// The writing thread has taken messages that it may not have written yet.
    writing: bool,
    /// The rest of a frame that the connection could not take at once: goes before all messages.
    rest: Vec<u8>,
    closed: bool,
}

impl Transport {
    /// Accepts connections on `listener`, which others reach at `address`, and calls `handler` from its own threads.
    ///
    /// # Errors
    /// A thread cannot be made.
    pub fn start(
        listener: TcpListener,
        address: String,
        (cluster, id): (u64, u64),
        group: GroupId,
        handler: Arc<dyn Handler>,
    ) -> io::Result<Arc<Self>> {
        let transport = Arc::new(Self {
            who: Who { cluster, id, incarnation: rand::random() },
            address,
            group,
            handler,
            peers: Mutex::default(),
            holders: Mutex::default(),
            accepted: Mutex::default(),
            next_connection: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            counters: Counters::default(),
        });
        let accepting = Arc::clone(&transport);
        std::thread::Builder::new().name("peer-accept".into()).spawn(move || accepting.accept(&listener))?;
        Ok(transport)
    }

    /// Says who the peers are and where. Unknown ones are connected, missing ones dropped.
    pub fn set_peers(self: &Arc<Self>, addresses: &BTreeMap<u64, String>) {
        let mut peers = self.peers.lock();
        peers.retain(|id, peer| {
            let stays = addresses.contains_key(id);
            if !stays {
                peer.outbox.close();
            }
            stays
        });
        for (id, address) in addresses.iter().filter(|(id, _)| **id != self.who.id) {
            if let Some(peer) = peers.get(id) {
                peer.address.lock().clone_from(address);
                continue;
            }
            let peer = Peer { outbox: Arc::default(), address: Arc::new(Mutex::new(address.clone())) };
            let (transport, outbox, address) =
                (Arc::clone(self), Arc::clone(&peer.outbox), Arc::clone(&peer.address));
            let id = *id;
            let spawned = std::thread::Builder::new()
                .name(format!("peer-{:x}", id & 0xffff))
                .spawn(move || transport.write_to(id, &outbox, &address));
            match spawned {
                Ok(_) => drop(peers.insert(id, peer)),
                Err(error) => tracing::error!(%error, "no thread for a peer connection"),
            }
        }
    }

    /// Closes the connections that removed members have made. They may not have heard that they were removed: when they
    /// dial again they are told.
    pub fn part_with(&self, removed: &BTreeSet<u64>) {
        for (stream, from) in self.accepted.lock().values() {
            if removed.contains(from) {
                // An error: it has just been closed.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Queues a message. False where it was dropped: the peer is unknown, away, or its outbox is full.
    pub fn send(&self, to: u64, message: PeerMessage) -> bool {
        // Not under the lock of all peers: a small message is written here and now.
        let outbox = self.peers.lock().get(&to).map(|peer| Arc::clone(&peer.outbox));
        let sent = outbox.is_some_and(|outbox| outbox.push(self.group, message, &self.counters));
        if !sent {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// Dials `peer` for a snapshot.
    ///
    /// # Errors
    /// The peer is unknown, away, or refuses.
    pub fn dial_snapshot(&self, peer: u64) -> io::Result<TcpStream> {
        let address = self.peers.lock().get(&peer).map(|peer| peer.address.lock().clone());
        let address = address.ok_or_else(|| io::Error::other(format!("member {peer:x} has no address")))?;
        Ok(dial(&address, &self.greeting(Purpose::Snapshot, peer))?.0)
    }

    fn greeting(&self, purpose: Purpose, to: u64) -> Greeting {
        let Who { cluster, id: from, incarnation } = self.who;
        Greeting { purpose, cluster, from, to, incarnation, address: self.address.clone() }
    }

    /// Closes all connections and ends the threads.
    pub fn stop(&self, listening_on: SocketAddr) {
        self.stopping.store(true, Ordering::SeqCst);
        for peer in self.peers.lock().values() {
            peer.outbox.close();
        }
        for (stream, _) in self.accepted.lock().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the accepting thread.
        let _ = TcpStream::connect_timeout(&listening_on, WAKE_TIMEOUT);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn write_to(&self, peer: u64, outbox: &Outbox, address: &Mutex<String>) {
        let mut pause = RECONNECT_PAUSE;
        let mut last_error = String::new();
        while !outbox.is_closed() {
            let target = address.lock().clone();
            let result = dial(&target, &self.greeting(Purpose::Frames, peer)).and_then(|(stream, _)| {
                pause = RECONNECT_PAUSE;
                last_error.clear();
                tracing::debug!(peer = format!("{peer:x}"), target, "connected");
                outbox.open(stream.try_clone()?);
                Ok(self.write_frames(&stream, outbox)?)
            });
            outbox.shut();
            self.handler.lost(peer);
            if let Err(error) = result {
                let text = error.to_string();
                if let DialError::Refused { forever: true, .. } = error {
                    self.handler.cast_out(&text);
                }
                if text != last_error {
                    tracing::warn!(
                        peer = format!("{peer:x}"),
                        address = target,
                        error = text,
                        "peer connection"
                    );
                    last_error = text;
                }
            }
            outbox.wait_closed(pause);
            pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
        }
    }

    fn write_frames(&self, mut stream: &TcpStream, outbox: &Outbox) -> io::Result<()> {
        let mut frames = FrameBuffer::default();
        while let Some((rest, messages)) = outbox.take() {
            stream.write_all(&rest)?;
            for message in &messages {
                frames.push(self.group, message);
            }
            self.counters.sent_bytes.fetch_add(frames.len() as u64, Ordering::Relaxed);
            write_all_vectored(&mut stream, &frames.take())?;
        }
        Ok(())
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.is_stopping() {
                return;
            }
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accepting a peer connection");
                    std::thread::sleep(RECONNECT_PAUSE);
                    continue;
                }
            };
            let serving = Arc::clone(&self);
            let spawned =
                std::thread::Builder::new().name("peer-read".into()).spawn(move || serving.serve(stream));
            if let Err(error) = spawned {
                tracing::error!(%error, "no thread for a peer connection");
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
        // Before it is judged: who is removed from now on is either found here or refused.
        if let Some((_, from)) = self.accepted.lock().get_mut(&connection) {
            *from = greeting.from;
        }
        let (verdict, rival) = self.judge(&greeting);
        let answer = Answer { verdict: verdict as u64, who: self.who, rival };
        if verdict != Verdict::Welcome {
            tracing::warn!(?greeting, ?verdict, "refused a peer connection");
            return stream.write_all(&answer.encode());
        }
        // Held until the connection ends: while it lasts, another process as this member is asked for.
        let _held = matches!(greeting.purpose, Purpose::Frames | Purpose::Snapshot).then(|| Held {
            transport: self,
            id: greeting.from,
            incarnation: greeting.incarnation,
        });
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
            Purpose::Identify => Ok(()),
        }
    }

    /// The verdict, and where the dialler's rival is if it has one. A welcome for frames or a snapshot counts as one
    /// more connection of the dialler.
    fn judge(&self, greeting: &Greeting) -> (Verdict, String) {
        let alone = |verdict| (verdict, String::new());
        if matches!(greeting.purpose, Purpose::Join | Purpose::Identify) {
            return alone(Verdict::Welcome);
        }
        if greeting.cluster != self.who.cluster {
            return alone(Verdict::OtherCluster);
        }
        if greeting.from == self.who.id {
            return if greeting.incarnation == self.who.incarnation {
                alone(Verdict::Oneself)
            } else {
                (Verdict::Duplicate, self.address.clone())
            };
        }
        if greeting.to != self.who.id {
            return alone(Verdict::OtherNode);
        }
        if self.handler.is_removed(greeting.from) {
            return alone(Verdict::Removed);
        }
        match self.claim(greeting) {
            Ok(()) => alone(Verdict::Welcome),
            Err(rival) => (Verdict::Duplicate, rival),
        }
    }

    /// Notes that the dialler runs as its member, unless another process does: then its address.
    ///
    /// The other one is the process that has connections here, or whoever is at the member's address. That it is alive
    /// is asked of itself: a connection may look alive for long after its machine has died.
    fn claim(&self, greeting: &Greeting) -> Result<(), String> {
        let id = greeting.from;
        loop {
            let known = self.holders.lock().get(&id).cloned();
            let suspect = match &known {
                Some(holder) if holder.incarnation == greeting.incarnation => None,
                Some(holder) => Some(holder.address.clone()),
                None => self.peers.lock().get(&id).map(|peer| peer.address.lock().clone()),
            };
            if let Some(address) = suspect
                && let Ok(found) = identify(&address)
                && (found.cluster, found.id) == (self.who.cluster, id)
                && found.incarnation != greeting.incarnation
            {
                return Err(address);
            }
            let mut holders = self.holders.lock();
            let holder = holders.get_mut(&id);
            if holder.as_ref().map(|holder| holder.incarnation) != known.map(|known| known.incarnation) {
                // Somebody else came in between.
                continue;
            }
            match holder {
                Some(holder) if holder.incarnation == greeting.incarnation => holder.connections += 1,
                _ => {
                    let (incarnation, address) = (greeting.incarnation, greeting.address.clone());
                    holders.insert(id, Holder { incarnation, address, connections: 1 });
                }
            }
            return Ok(());
        }
    }

    fn release(&self, id: u64, incarnation: u64) {
        let mut holders = self.holders.lock();
        if let Some(holder) = holders.get_mut(&id).filter(|holder| holder.incarnation == incarnation) {
            holder.connections -= 1;
            if holder.connections == 0 {
                holders.remove(&id);
            }
        }
    }

    fn read_frames(&self, from: u64, mut stream: TcpStream) -> io::Result<()> {
        let mut buffer = BytesMut::new();
        loop {
            let wanted = read_frame_length(&buffer)?;
            if let Some((length, crc)) = wanted.filter(|(length, _)| buffer.len() >= FRAME_HEADER + length) {
                buffer.advance(FRAME_HEADER);
                let body = buffer.split_to(length).freeze();
                let (group, message) = message::decode_body(body, crc).map_err(garbage)?;
                self.handler.received(from, group, message);
                continue;
            }
            // Grows to the frame's length, once that is known and believable.
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

/// One connection of a member's process.
struct Held<'a> {
    transport: &'a Transport,
    id: u64,
    incarnation: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.transport.release(self.id, self.incarnation);
    }
}

impl Outbox {
    fn push(&self, group: GroupId, message: PeerMessage, counters: &Counters) -> bool {
        let size = approximate_size(&message);
        let mut state = self.state.lock();
        if state.stream.is_none() || state.bytes + size > OUTBOX_BYTES_MAX {
            return false;
        }
        let idle = !state.writing && state.messages.is_empty() && state.rest.is_empty();
        if idle && size <= WRITTEN_AT_ONCE_BYTES_MAX {
            if !state.write_now(group, &message, counters) {
                self.filled.notify_one();
            }
            return true;
        }
        state.bytes += size;
        state.messages.push_back(message);
        if state.messages.len() == 1 {
            self.filled.notify_one();
        }
        true
    }

    /// All that waits, with the rest of a frame that goes before it; blocks while there is nothing; `None` once closed.
    fn take(&self) -> Option<(Vec<u8>, VecDeque<PeerMessage>)> {
        let mut state = self.state.lock();
        state.writing = false;
        while state.messages.is_empty() && state.rest.is_empty() && !state.closed {
            self.filled.wait(&mut state);
        }
        state.writing = true;
        state.bytes = 0;
        let waiting = (std::mem::take(&mut state.rest), std::mem::take(&mut state.messages));
        (!state.closed).then_some(waiting)
    }

    fn open(&self, stream: TcpStream) {
        self.state.lock().stream = Some(stream);
    }

    fn shut(&self) {
        let mut state = self.state.lock();
        let closed = state.closed;
        *state = OutboxState { closed, ..OutboxState::default() };
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    fn wait_closed(&self, pause: Duration) {
        let mut state = self.state.lock();
        if !state.closed {
            let _ = self.filled.wait_for(&mut state, pause);
        }
    }
}

impl OutboxState {
    /// Writes a frame as far as the connection takes it without waiting, which saves waking a thread. False where
    /// something is left for that thread: a rest, or an error to find.
    fn write_now(&mut self, group: GroupId, message: &PeerMessage, counters: &Counters) -> bool {
        let Some(stream) = &self.stream else { return false };
        let mut frame = FrameBuffer::default();
        frame.push(group, message);
        let bytes = frame.take().concat();
        counters.sent_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let written = rustix::net::send(stream, &bytes, flags).unwrap_or(0);
        self.rest = bytes[written..].to_vec();
        self.rest.is_empty()
    }
}

fn approximate_size(message: &PeerMessage) -> usize {
    match message {
        PeerMessage::Raft(message) => {
            64 + message
                .entries
                .iter()
                .map(|entry| entry.data.len() + entry.context.len() + 32)
                .sum::<usize>()
        }
        PeerMessage::Forward { commands, .. } => {
            commands.iter().map(quoin_core::Command::size_in_batch).sum::<usize>() + 32
        }
        PeerMessage::ForwardReply { .. } => 64,
    }
}

fn garbage(malformed: quoin_core::codec::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed)
}

fn read_frame_length(buffer: &BytesMut) -> io::Result<Option<(usize, u32)>> {
    let Some(header) = buffer.first_chunk::<FRAME_HEADER>() else { return Ok(None) };
    message::decode_header(*header).map(Some).map_err(garbage)
}

/// Writes all of `parts`, many per system call.
fn write_all_vectored(stream: &mut impl Write, parts: &[bytes::Bytes]) -> io::Result<()> {
    const SLICES_MAX: usize = 512;
    for group in parts.chunks(SLICES_MAX) {
        let mut slices: Vec<IoSlice<'_>> = group.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match stream.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what the transport says.
    #[derive(Default)]
    struct Notes {
        removed: Mutex<Vec<u64>>,
        /// Requests of forward replies, in the order in which they came; held up while a test has the lock.
        received: Mutex<Vec<u64>>,
        cast_out: Mutex<Vec<String>>,
        changed: Condvar,
    }

    impl Handler for Notes {
        fn received(&self, _: u64, _: GroupId, message: PeerMessage) {
            if let PeerMessage::ForwardReply { request, .. } = message {
                self.received.lock().push(request);
                self.changed.notify_all();
            }
        }
        fn lost(&self, _: u64) {}
        fn snapshot_offered(&self, _: u64, _: TcpStream) {}
        fn join_asked(&self, _: TcpStream) {}
        fn is_removed(&self, peer: u64) -> bool {
            self.removed.lock().contains(&peer)
        }
        fn cast_out(&self, reason: &str) {
            self.cast_out.lock().push(reason.into());
            self.changed.notify_all();
        }
    }

    /// Below the ports of outgoing connections: one of those could otherwise take the port of a process that ended.
    fn free_port() -> TcpListener {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let from = 20_000 + u64::from(std::process::id() % 100) * 100;
        let mut ports = std::iter::repeat_with(|| from + NEXT.fetch_add(1, Ordering::Relaxed) % 100);
        ports
            .find_map(|port| TcpListener::bind(("127.0.0.1", port as u16)).ok())
            .expect("it goes on for ever")
    }

    struct Process {
        notes: Arc<Notes>,
        transport: Arc<Transport>,
        listening_on: SocketAddr,
    }

    impl Process {
        fn start(id: u64) -> Self {
            Self::listening(id, free_port())
        }

        fn listening(id: u64, listener: TcpListener) -> Self {
            let listening_on = listener.local_addr().unwrap();
            let (notes, address) = (Arc::new(Notes::default()), listening_on.to_string());
            let handler = Arc::clone(&notes) as _;
            let transport = Transport::start(listener, address, (7, id), GroupId(1), handler).unwrap();
            Self { notes, transport, listening_on }
        }

        fn address(&self) -> String {
            self.listening_on.to_string()
        }

        fn dial(&self, other: &Self) -> Result<TcpStream, String> {
            let greeting = self.transport.greeting(Purpose::Frames, other.transport.who.id);
            dial(&other.address(), &greeting).map(|(stream, _)| stream).map_err(|error| error.to_string())
        }

        fn wait_cast_out(&self) -> String {
            let mut reasons = self.notes.cast_out.lock();
            while reasons.is_empty() {
                let timeout = self.notes.changed.wait_for(&mut reasons, Duration::from_secs(30));
                assert!(!timeout.timed_out(), "nobody cast it out");
            }
            reasons[0].clone()
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            self.transport.stop(self.listening_on);
        }
    }

    #[test]
    fn of_two_processes_with_one_id_the_second_is_told_who_holds_it_and_ends() {
        let (peer, first, second) = (Process::start(1), Process::start(2), Process::start(2));
        let held = first.dial(&peer).unwrap();
        let refused = second.dial(&peer).unwrap_err();
        assert!(refused.contains(&format!("as member 2, reached at {}", first.address())), "{refused}");
        // The first one may dial as often as it likes.
        first.dial(&peer).unwrap();
        // Whoever is at the member's address counts, connected or not.
        drop(held);
        peer.transport.set_peers(&BTreeMap::from([(2, first.address())]));
        second.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
        assert!(second.wait_cast_out().contains("stop the wrong one"));
        // And who dials its own id is told by that one itself.
        assert!(second.dial(&first).unwrap_err().contains(&first.address()));
    }

    #[test]
    fn a_process_that_took_the_place_of_a_dead_one_is_welcome() {
        let (peer, first) = (Process::start(1), Process::start(2));
        // The connection outlives the process, as one to a machine without power does.
        let _lingering = first.dial(&peer).unwrap();
        let address = first.listening_on;
        drop(first);
        let second = loop {
            // The port is free once the accepting thread of the first has ended.
            if let Ok(listener) = TcpListener::bind(address) {
                break Process::listening(2, listener);
            }
        };
        let _held = second.dial(&peer).unwrap();
        let elsewhere = Process::start(2);
        assert!(elsewhere.dial(&peer).unwrap_err().contains(&second.address()));
    }

    /// A member whose removal was applied by all others before it had heard of it stayed connected, and waited for ever.
    #[test]
    fn a_member_that_is_connected_when_it_is_removed_is_told_so() {
        let (peer, other) = (Process::start(1), Process::start(2));
        other.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
        while !other.transport.send(1, frame(0)) {
            std::thread::yield_now();
        }
        peer.notes.removed.lock().push(2);
        peer.transport.part_with(&BTreeSet::from([2]));
        while other.notes.cast_out.lock().is_empty() {
            // What it sends fails, or finds nobody: it dials again.
            other.transport.send(1, frame(0));
            std::thread::yield_now();
        }
        assert!(other.wait_cast_out().contains("member 2 was removed"));
    }

    fn frame(request: u64) -> PeerMessage {
        PeerMessage::ForwardReply { request, outcome: super::super::message::ForwardOutcome::NotLeader }
    }

    /// Written at once while the connection takes it, in part when it takes no more, queued after that.
    #[test]
    fn messages_to_a_peer_that_stops_reading_for_a_while_come_whole_and_in_order() {
        const COUNT: u64 = 400_000;
        let (peer, other) = (Process::start(1), Process::start(2));
        other.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
        while !other.transport.send(1, frame(0)) {
            std::thread::yield_now();
        }
        {
            let _held_up = peer.notes.received.lock();
            for number in 1..COUNT {
                assert!(other.transport.send(1, frame(number)), "message {number} was dropped");
            }
        }
        let mut received = peer.notes.received.lock();
        while received.len() < COUNT as usize {
            let timeout = peer.notes.changed.wait_for(&mut received, Duration::from_secs(30));
            assert!(!timeout.timed_out(), "{} of {COUNT} came", received.len());
        }
        assert!(received.iter().copied().eq(0..COUNT));
    }

    #[test]
    fn a_removed_member_and_other_strangers_are_told_so() {
        let (peer, other) = (Process::start(1), Process::start(2));
        peer.notes.removed.lock().push(2);
        assert!(other.dial(&peer).unwrap_err().contains("member 2 was removed from cluster 7"));
        other.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
        assert!(other.wait_cast_out().contains("delete its data folder"));
        let third = Process::start(3);
        let greeting = third.transport.greeting(Purpose::Frames, 9);
        let refused = dial(&peer.address(), &greeting).unwrap_err().to_string();
        assert!(refused.contains("is member 1, not 9"), "{refused}");
        let greeting = Greeting { cluster: 8, ..third.transport.greeting(Purpose::Frames, 1) };
        let refused = dial(&peer.address(), &greeting).unwrap_err().to_string();
        assert!(refused.contains("belongs to cluster 7, this node to 8"), "{refused}");
    }
}
