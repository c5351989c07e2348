//! What a simulated replica finds around it, in place of this machine's clocks, random numbers, connections and
//! threads. Whoever simulates sets the clocks and connections, and takes what the replica asks for.

use parking_lot::Mutex;
use quoin_consensus::message::PeerMessage;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a simulated replica asks of the network.
#[derive(Debug)]
pub enum Request {
    /// To send a message to a peer that there is a connection to.
    Send {
        /// The peer.
        to: u64,
        /// The message.
        message: PeerMessage,
    },
    /// To stream a snapshot to a peer: see [`Stepped::begin_snapshot`](crate::stepped::Stepped::begin_snapshot).
    Snapshot {
        /// The peer.
        to: u64,
    },
    /// To keep connections to exactly these peers: addresses by id.
    Peers(BTreeMap<u64, String>),
    /// To close the connections that these have made.
    Part(BTreeSet<u64>),
}

/// The surroundings of one process. Another start gets other ones.
#[derive(Debug)]
pub struct Surroundings {
    /// What the process draws at its start. It must differ from start to start.
    pub(crate) seed: u64,
    monotonic_ms: AtomicU64,
    wall_ms: AtomicU64,
    connected: Mutex<BTreeSet<u64>>,
    requests: Mutex<VecDeque<Request>>,
}

impl Surroundings {
    /// A process that starts now, when the wall clock shows `wall_ms`.
    pub fn new(seed: u64, wall_ms: u64) -> Arc<Self> {
        Arc::new(Self {
            seed,
            monotonic_ms: AtomicU64::new(0),
            wall_ms: AtomicU64::new(wall_ms),
            connected: Mutex::default(),
            requests: Mutex::default(),
        })
    }

    /// Sets the clocks: milliseconds since the start of the process, and since the Unix epoch.
    pub fn set_clocks(&self, monotonic_ms: u64, wall_ms: u64) {
        self.monotonic_ms.store(monotonic_ms, Ordering::Relaxed);
        self.wall_ms.store(wall_ms, Ordering::Relaxed);
    }

    /// There is a connection to `peer` now, or not any more.
    pub fn set_connected(&self, peer: u64, connected: bool) {
        let mut peers = self.connected.lock();
        if connected {
            peers.insert(peer)
        } else {
            peers.remove(&peer)
        };
    }

    /// Takes what the replica asks for, in order.
    pub fn take_requests(&self) -> VecDeque<Request> {
        std::mem::take(&mut *self.requests.lock())
    }

    pub(crate) fn monotonic_ms(&self) -> u64 {
        self.monotonic_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn wall_ms(&self) -> u64 {
        self.wall_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn ask(&self, request: Request) {
        self.requests.lock().push_back(request);
    }

    /// False if there is no connection: the message is dropped.
    pub(crate) fn send(&self, to: u64, message: PeerMessage) -> bool {
        let connected = self.connected.lock().contains(&to);
        if connected {
            self.ask(Request::Send { to, message });
        }
        connected
    }
}
