//! Connections between replicas: one in each direction per pair, on the peer port, shared by all groups.
//!
//! A connection begins with a greeting (`greeting.rs`). Then the dialler sends frames (`frame.rs`) and the
//! acceptor only reads; or, for a snapshot, the dialler streams chunks and the acceptor acknowledges the end; or the
//! dialler asks for a file, and the acceptor sends it.
//!
//! Reading order: this file (dialling and sending), `outbox.rs` (what waits to be sent), `acceptor.rs` (the
//! other side), `holders.rs` (one process per member), `silence.rs` (connections that are dead and do not look
//! it), `handler.rs` (what the node is told).
//!
//! Plain threads and blocking sockets: heartbeats must not queue behind ten thousand client requests in an
//! async runtime.

mod acceptor;
mod handler;
mod holders;
mod outbox;
mod silence;
#[cfg(test)]
mod tests;

pub use acceptor::{ACCEPTED_MAX, verdict};
pub use handler::{Counters, Handler};
pub use outbox::OUTBOX_BYTES_MAX;

use crate::frame::FrameBuffer;
use crate::greeting::{DialError, Dialling, Greeting, Purpose, Who, dial, dial_within};
use crate::group::GroupId;
use crate::guarded;
use crate::message::PeerMessage;
use crate::stream::PeerStream;
use acceptor::Acceptor;
use holders::{Addresses, Holders};
use outbox::Outbox;
use parking_lot::Mutex;
use quoin_tls::Keys;
use silence::{Heard, Patience, Silence};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Short, so that a peer is reached soon after it is back.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Where peers come in.
pub struct Endpoint {
    /// Takes their connections.
    pub listener: TcpListener,
    /// How they reach it, `host:port`.
    pub address: String,
    /// With these, this node speaks mutual TLS with its peers, and nothing else.
    pub keys: Option<Arc<Keys>>,
}

/// The connections of one node.
pub struct Transport {
    who: Who,
    /// The disk that the member runs on.
    disk: u64,
    address: String,
    keys: Option<Arc<Keys>>,
    group: GroupId,
    handler: Arc<dyn Handler>,
    outboxes: Mutex<BTreeMap<u64, Arc<Outbox>>>,
    addresses: Arc<Addresses>,
    acceptor: Arc<Acceptor>,
    patience: Patience,
    heard: Arc<Heard>,
    /// Counters for the metrics page.
    pub counters: Arc<Counters>,
}

impl Transport {
    /// Dials `peers`, accepts connections, and calls `handler` from its own threads. A connection whose other side acknowledges nothing for `two_election_timeouts` is
    /// given up.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        Endpoint { listener, address, keys }: Endpoint,
        (cluster, id, disk): (u64, u64, u64),
        group: GroupId,
        handler: Arc<dyn Handler>,
        peers: &BTreeMap<u64, String>,
        two_election_timeouts: Duration,
    ) -> io::Result<Arc<Self>> {
        let who = Who { cluster, id, incarnation: rand::random() };
        let (addresses, counters) = (Arc::new(Addresses::default()), Arc::new(Counters::default()));
        let (patience, heard) = (Patience::of(two_election_timeouts), Arc::new(Heard::default()));
        let acceptor = Arc::new(Acceptor {
            who,
            address: address.clone(),
            keys: keys.clone(),
            addresses: Arc::clone(&addresses),
            handler: Arc::clone(&handler),
            counters: Arc::clone(&counters),
            patience,
            heard: Arc::clone(&heard),
            holders: Holders::default(),
            accepted: Mutex::default(),
            next_connection: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&acceptor);
        let outboxes = Mutex::default();
        let transport = Arc::new(Self {
            who,
            disk,
            address,
            keys,
            group,
            handler,
            outboxes,
            addresses,
            acceptor,
            patience,
            heard,
            counters,
        });
        // Before the first greeting comes: only members are welcome.
        transport.set_peers(peers);
        spawn(&transport.handler, "peer-accept", move || accepting.accept(&listener))?;
        Ok(transport)
    }

    /// Sets the peers and their addresses. New ones are dialled, and the connections to missing ones closed.
    pub fn set_peers(self: &Arc<Self>, addresses: &BTreeMap<u64, String>) {
        let mut addresses = addresses.clone();
        addresses.remove(&self.who.id);
        let mut outboxes = self.outboxes.lock();
        outboxes.retain(|id, outbox| {
            let stays = addresses.contains_key(id);
            if !stays {
                outbox.close();
            }
            stays
        });
        let new: Vec<u64> = addresses.keys().copied().filter(|id| !outboxes.contains_key(id)).collect();
        self.heard.retain(|id| addresses.contains_key(&id));
        *self.addresses.lock() = addresses;
        for id in new {
            let outbox = Arc::new(Outbox::default());
            let (transport, writing) = (Arc::clone(self), Arc::clone(&outbox));
            let name = format!("peer-{:x}", id & 0xffff);
            let spawned = spawn(&self.handler, &name, move || transport.write_to(id, &writing));
            match spawned {
                Ok(_) => drop(outboxes.insert(id, outbox)),
                Err(error) => tracing::error!(%error, "no thread for a peer connection"),
            }
        }
    }

    /// Adds a peer to those that were [set](Self::set_peers), until they are set again.
    pub fn meet(self: &Arc<Self>, peer: u64, address: String) {
        let mut addresses = self.peers();
        addresses.insert(peer, address);
        self.set_peers(&addresses);
    }

    /// The peers and their addresses.
    pub fn peers(&self) -> BTreeMap<u64, String> {
        self.addresses.lock().clone()
    }

    /// Closes the connections that removed members have made. They may not have heard of their removal: when
    /// they dial again they are told.
    pub fn part_with(&self, removed: &BTreeSet<u64>) {
        self.acceptor.close(removed);
    }

    /// Sends or queues a message. False if it was dropped: the peer is unknown or not connected, or its
    /// outbox is full.
    pub fn send(&self, to: u64, message: PeerMessage) -> bool {
        // The lock of all outboxes is released first: a small message is written here and now.
        let outbox = self.outboxes.lock().get(&to).cloned();
        let sent = outbox.is_some_and(|outbox| outbox.push(self.group, message, &self.counters));
        if !sent {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// Dials `peer` for a connection other than the one for messages.
    ///
    /// # Errors
    /// The peer is unknown, does not answer, or refuses.
    pub fn dial(&self, peer: u64, purpose: Purpose) -> Result<PeerStream, DialError> {
        let address = self.addresses.lock().get(&peer).cloned();
        let address =
            address.ok_or_else(|| io::Error::other(format!("member {peer:016x} has no address")))?;
        self.dial_at(&address, peer, purpose)
    }

    /// As [`Self::dial`], at an address.
    ///
    /// # Errors
    /// The peer does not answer there, or refuses.
    pub fn dial_at(&self, address: &str, peer: u64, purpose: Purpose) -> Result<PeerStream, DialError> {
        let name = self.handler.name_of(peer);
        let dialling = Dialling { keys: self.keys(), name: &name };
        Ok(dial(address, &self.greeting(purpose, peer), dialling)?.0)
    }

    /// What it speaks TLS with, if it does.
    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_deref()
    }

    fn greeting(&self, purpose: Purpose, to: u64) -> Greeting {
        let Who { cluster, id: from, incarnation } = self.who;
        let (disk, address) = (self.disk, self.address.clone());
        Greeting { purpose, cluster, from, to, incarnation, disk, address }
    }

    /// Closes all connections and ends the threads. `listening_on` is the listener's address.
    pub fn stop(&self, listening_on: SocketAddr) {
        for outbox in self.outboxes.lock().values() {
            outbox.close();
        }
        self.acceptor.stop(listening_on);
    }

    /// Keeps a connection to `peer` and writes to it, until the outbox is closed.
    fn write_to(&self, peer: u64, outbox: &Outbox) {
        let mut pause = RECONNECT_PAUSE;
        let mut last_error = String::new();
        while !outbox.is_closed() {
            let Some(target) = self.addresses.lock().get(&peer).cloned() else { return };
            let greeting = self.greeting(Purpose::Frames, peer);
            let began = Instant::now();
            let name = self.handler.name_of(peer);
            let dialling = Dialling { keys: self.keys(), name: &name };
            let dialled = dial_within(&target, &greeting, dialling, self.patience.to_connect());
            let spent = began.elapsed();
            let result = dialled.and_then(|(stream, _)| {
                pause = RECONNECT_PAUSE;
                last_error.clear();
                tracing::debug!(peer = format!("{peer:016x}"), target, "connected");
                self.patience.give_up_after(stream.socket())?;
                let before = outbox.connected(stream.clone());
                let silence = Silence::new(self.patience, self.heard.of(peer), before);
                Ok(self.write_frames(&stream, outbox, silence)?)
            });
            outbox.disconnected();
            self.handler.lost(peer);
            if let Err(error) = result {
                let text = error.to_string();
                if let DialError::Refused { forever: true, .. } = error {
                    self.handler.cast_out(&text);
                }
                if text != last_error {
                    let peer = format!("{peer:016x}");
                    tracing::warn!(peer, address = target, error = text, "peer connection");
                    last_error = text;
                }
            }
            outbox.wait_closed(pause_left(pause, spent));
            pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
        }
    }

    fn write_frames(&self, stream: &PeerStream, outbox: &Outbox, mut silence: Silence) -> io::Result<()> {
        let mut frames = FrameBuffer::default();
        let mut next_look = Instant::now() + self.patience.interval();
        while let Some((rest, messages)) = outbox.take(next_look) {
            if Instant::now() >= next_look {
                next_look = Instant::now() + self.patience.interval();
                if silence::is_broken(stream.socket()) {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                if silence.is_too_long(self.heard.now_ms(), outbox.pushed()) {
                    return Err(io::Error::other("the peer does not answer: dialling again"));
                }
            }
            stream.socket().write_all(&rest)?;
            for message in &messages {
                frames.push(self.group, message);
            }
            self.counters.sent_bytes.fetch_add(frames.len() as u64, Ordering::Relaxed);
            stream.write_parts(&frames.take())?;
        }
        Ok(())
    }
}

/// What is left of the pause between two attempts to dial after one that took `spent`: a peer whose packets are dropped is
/// dialled as often as one that refuses, and reached as soon after the network is whole again.
fn pause_left(pause: Duration, spent: Duration) -> Duration {
    pause.saturating_sub(spent)
}

/// Runs a thread of the transport. If it panics, the node ends.
fn spawn(handler: &Arc<dyn Handler>, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let handler = Arc::clone(handler);
    guarded::spawn(name, move |reason| handler.failed(reason), run).map(drop)
}
