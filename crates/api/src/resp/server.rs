//! What the connections of a node share.

use super::channels::Channels;
use super::clients::Clients;
use super::cursors::Cursors;
use super::scripts::Scripts;
use crate::auth::Gate;
use crate::budget::Budget;
use quoin_engine::Engine;
use quoin_library::Library;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maximum connections; further ones are told so and closed.
const CONNECTIONS_MAX: usize = 10_000;

/// What the connections of a node share.
pub(super) struct Server {
    pub(super) engine: Engine,
    pub(super) gate: Arc<Gate>,
    pub(super) library: Arc<Library>,
    pub(super) clients: Arc<Clients>,
    pub(super) channels: Arc<Channels>,
    pub(super) cursors: Cursors,
    pub(super) scripts: Scripts,
    pub(super) budget: Budget,
    /// What connections keep while they wait for their clients: as much again, so that it keeps nobody's requests
    /// out.
    pub(super) kept: Budget,
    connections: AtomicUsize,
    last_id: AtomicU64,
}

/// An open connection's share of [`CONNECTIONS_MAX`].
pub(super) struct Place(Arc<Server>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    pub(super) fn new(engine: Engine, gate: Arc<Gate>, library: Arc<Library>, budget: Budget) -> Arc<Self> {
        let kept = Budget::new(&engine);
        Arc::new(Self {
            kept,
            channels: Channels::new(engine.messages()),
            engine,
            gate,
            library,
            clients: Arc::default(),
            cursors: Cursors::default(),
            scripts: Scripts::default(),
            budget,
            connections: AtomicUsize::new(0),
            last_id: AtomicU64::new(0),
        })
    }

    /// A place for one more connection; `None` where there is none.
    pub(super) fn admit(self: &Arc<Self>) -> Option<Place> {
        let place = Place(Arc::clone(self));
        (self.connections.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX).then_some(place)
    }

    /// Open connections.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The number of a new connection: from 1 on, unique while the node runs.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }
}
