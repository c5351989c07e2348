//! Connections between replicas: one in each direction per pair, on the peer port, shared by all groups.
//!
//! A connection begins with a greeting (see [`Greeting`]) that names cluster, sender and receiver, so that a
//! misconfigured replica is refused with words instead of corrupting a cluster. Then the dialler sends frames
//! (`message.rs`) and the acceptor only reads; or, for a snapshot, the dialler streams chunks and the acceptor
//! acknowledges the end.
//!
//! Plain threads and blocking sockets: heartbeats must not queue behind ten thousand client requests in an
//! async runtime.
//!
//! **Bounds.** Each peer's outbox holds at most [`OUTBOX_BYTES_MAX`]; what does not fit is dropped, which Raft
//! repairs by sending again. A frame is at most [`FRAME_BODY_MAX`](super::message::FRAME_BODY_MAX).

use super::GroupId;
use super::message::{self, FRAME_HEADER, FrameBuffer, PeerMessage};
use bytes::{Buf, BytesMut};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that wait for one peer at most.
pub const OUTBOX_BYTES_MAX: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that takes no bytes for this long is given up; the connection is made anew.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(2);
const MAGIC: &[u8; 8] = b"QUOINPR1";
const READ_CHUNK: usize = 256 << 10;

/// Who speaks to whom, and what for. 40 bytes: the magic `QUOINPR1`, then little-endian u64 purpose, cluster,
/// from, to. The answer is 24 bytes: u64 verdict (0 welcome), u64 cluster, u64 id of who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// What the connection is for.
    pub purpose: Purpose,
    /// The cluster; 0 where the dialler wants to learn it.
    pub cluster: u64,
    /// Who dials; 0 where it has no id yet.
    pub from: u64,
    /// Who is meant; 0 for whoever answers.
    pub to: u64,
}

/// What a connection is for. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Frames for the groups of the node.
    Frames = 1,
    /// One snapshot.
    Snapshot = 2,
    /// A node that has been added and not started yet asks who it is.
    Join = 3,
}

/// The answer to a greeting. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Verdict {
    /// Go on.
    Welcome = 0,
    /// The dialler belongs to another cluster.
    OtherCluster = 1,
    /// The dialler means another node: an address is wrong.
    OtherNode = 2,
    /// The dialler has this node's id.
    SameNode = 3,
    /// The dialler has been removed from the cluster.
    Removed = 4,
}

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
    cluster: u64,
    id: u64,
    group: GroupId,
    handler: Arc<dyn Handler>,
    peers: Mutex<BTreeMap<u64, Peer>>,
    accepted: Mutex<HashMap<u64, TcpStream>>,
    next_connection: AtomicU64,
    stopping: AtomicBool,
    /// What happened so far.
    pub counters: Counters,
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
    connected: bool,
    closed: bool,
}

impl Transport {
    /// Accepts connections on `listener` and calls `handler` from its own threads.
    ///
    /// # Errors
    /// A thread cannot be made.
    pub fn start(
        listener: TcpListener,
        cluster: u64,
        id: u64,
        group: GroupId,
        handler: Arc<dyn Handler>,
    ) -> io::Result<Arc<Self>> {
        let transport = Arc::new(Self {
            cluster,
            id,
            group,
            handler,
            peers: Mutex::default(),
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
        for (id, address) in addresses.iter().filter(|(id, _)| **id != self.id) {
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

    /// Queues a message. False where it was dropped: the peer is unknown, away, or its outbox is full.
    pub fn send(&self, to: u64, message: PeerMessage) -> bool {
        let sent = self.peers.lock().get(&to).is_some_and(|peer| peer.outbox.push(message));
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
        let greeting =
            Greeting { purpose: Purpose::Snapshot, cluster: self.cluster, from: self.id, to: peer };
        let (stream, _, _) = dial(&address, greeting)?;
        Ok(stream)
    }

    /// Closes all connections and ends the threads.
    pub fn stop(&self, listening_on: SocketAddr) {
        self.stopping.store(true, Ordering::SeqCst);
        for peer in self.peers.lock().values() {
            peer.outbox.close();
        }
        for stream in self.accepted.lock().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the accepting thread.
        let _ = TcpStream::connect_timeout(&listening_on, CONNECT_TIMEOUT);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn write_to(&self, peer: u64, outbox: &Outbox, address: &Mutex<String>) {
        let mut pause = RECONNECT_PAUSE;
        let mut last_error = String::new();
        while !outbox.is_closed() {
            let target = address.lock().clone();
            let greeting =
                Greeting { purpose: Purpose::Frames, cluster: self.cluster, from: self.id, to: peer };
            let result = dial(&target, greeting).and_then(|(stream, _, _)| {
                pause = RECONNECT_PAUSE;
                last_error.clear();
                tracing::debug!(peer = format!("{peer:x}"), target, "connected");
                outbox.open();
                self.write_frames(&stream, outbox)
            });
            outbox.shut();
            self.handler.lost(peer);
            if let Err(error) = result {
                let text = error.to_string();
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
        while let Some(messages) = outbox.take() {
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
            self.accepted.lock().insert(connection, clone);
        }
        let source = stream.peer_addr().map_or_else(|_| String::from("?"), |address| address.to_string());
        if let Err(error) = self.serve_greeted(stream) {
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

    fn serve_greeted(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
        stream.set_nodelay(true)?;
        let greeting = read_greeting(&mut stream)?;
        let verdict = self.judge(greeting);
        let answer = [verdict as u64, self.cluster, self.id].map(u64::to_le_bytes).concat();
        stream.write_all(&answer)?;
        if verdict != Verdict::Welcome {
            tracing::warn!(?greeting, ?verdict, "refused a peer connection");
            return Ok(());
        }
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
        }
    }

    fn judge(&self, greeting: Greeting) -> Verdict {
        if greeting.purpose == Purpose::Join {
            return Verdict::Welcome;
        }
        if greeting.cluster != self.cluster {
            return Verdict::OtherCluster;
        }
        if greeting.from == self.id {
            return Verdict::SameNode;
        }
        if greeting.to != self.id {
            return Verdict::OtherNode;
        }
        if self.handler.is_removed(greeting.from) { Verdict::Removed } else { Verdict::Welcome }
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

impl Outbox {
    fn push(&self, message: PeerMessage) -> bool {
        let size = approximate_size(&message);
        let mut state = self.state.lock();
        if !state.connected || state.bytes + size > OUTBOX_BYTES_MAX {
            return false;
        }
        state.bytes += size;
        state.messages.push_back(message);
        if state.messages.len() == 1 {
            self.filled.notify_one();
        }
        true
    }

    /// All that waits; blocks while there is nothing; `None` once closed.
    fn take(&self) -> Option<VecDeque<PeerMessage>> {
        let mut state = self.state.lock();
        while state.messages.is_empty() && !state.closed {
            self.filled.wait(&mut state);
        }
        state.bytes = 0;
        (!state.closed).then(|| std::mem::take(&mut state.messages))
    }

    fn open(&self) {
        self.state.lock().connected = true;
    }

    fn shut(&self) {
        let mut state = self.state.lock();
        state.connected = false;
        state.messages.clear();
        state.bytes = 0;
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

/// Connects, greets, and reads the answer: the stream, and cluster and id of who answered.
///
/// # Errors
/// Nobody answers in time, or refuses; the text says why.
pub fn dial(address: &str, greeting: Greeting) -> io::Result<(TcpStream, u64, u64)> {
    let resolved = address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other(format!("{address} resolves to no address")))?;
    let mut stream = TcpStream::connect_timeout(&resolved, CONNECT_TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let numbers = [greeting.purpose as u64, greeting.cluster, greeting.from, greeting.to];
    stream.write_all(&[MAGIC.as_slice(), &numbers.map(u64::to_le_bytes).concat()].concat())?;
    let mut answer = [0; 24];
    stream.read_exact(&mut answer)?;
    let mut answer = &answer[..];
    let (verdict, cluster, id) = (answer.get_u64_le(), answer.get_u64_le(), answer.get_u64_le());
    match verdict {
        0 => Ok((stream, cluster, id)),
        1 => Err(refused(format!(
            "{address} belongs to cluster {cluster:x}, this node to {:x}: check the peer addresses and data folders",
            greeting.cluster
        ))),
        2 => Err(refused(format!(
            "{address} is member {id:x}, not {:x}: check the peer addresses",
            greeting.to
        ))),
        3 => Err(refused(format!(
            "{address} has this node's own id {id:x}: two nodes run on copies of one data folder, or it dials itself"
        ))),
        4 => Err(refused(format!(
            "this member was removed from cluster {cluster:x}: stop it and delete its data"
        ))),
        other => Err(refused(format!("{address} answered {other}: it is not a peer of this version"))),
    }
}

fn refused(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, text)
}

fn garbage(malformed: quoin_core::codec::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed)
}

fn read_greeting(stream: &mut TcpStream) -> io::Result<Greeting> {
    let mut bytes = [0; 40];
    stream.read_exact(&mut bytes)?;
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("no greeting: {what}"));
    let mut rest = bytes.strip_prefix(MAGIC).ok_or_else(|| invalid("wrong magic"))?;
    let purpose = match rest.get_u64_le() {
        1 => Purpose::Frames,
        2 => Purpose::Snapshot,
        3 => Purpose::Join,
        _ => return Err(invalid("unknown purpose")),
    };
    Ok(Greeting { purpose, cluster: rest.get_u64_le(), from: rest.get_u64_le(), to: rest.get_u64_le() })
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
