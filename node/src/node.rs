//! One node: its data folder, its replica, its ports. [`Node::start`] puts the parts together in the order in
//! which they need each other; [`Node::stop`] takes them apart in the other order.

use crate::api;
use crate::config::{Config, ConfigError};
use crate::engine::apply::Applier;
use crate::engine::{Engine, Input, Published, Shared, Threads, Upkeep, receive_snapshot, spawn};
use crate::identity::{Identity, LAYOUT_VERSION, number_of};
use crate::raft::greeting::{Greeting, Purpose, dial, identify as who_is_at};
use crate::raft::log::{Base, HardState, Log, LogError, Options as LogOptions, RealDisk, Record};
use crate::raft::message::PeerMessage;
use crate::raft::replica::{self, Replica, decode_configuration, encode_configuration};
use crate::raft::transport::{Handler, Transport};
use crate::raft::{GROUP, GroupId};
use crate::store::{FolderError, LsmStore, StoreFolder};
use crate::table::Keeper;
use crate::watch::Hub;
use bytes::Bytes;
use quoin_core::{Progress, StoreError, machines, system};
use raft::eraftpb::ConfState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Why a node does not start. Nothing was changed on disk unless the text says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting cannot be.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// The data folder belongs to somebody else.
    #[error("{0}")]
    Identity(String),
    /// A file or socket.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path or address.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The log.
    #[error("log: {0}")]
    Log(#[from] LogError),
    /// The store.
    #[error("store: {0}")]
    StoreOpen(#[from] FolderError),
    /// The store, once open.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// The log and the store do not belong together.
    #[error(
        "the log begins after entry {base} and the store has applied only up to {applied}: the store's folder is \
         older than the log's. Restore both from one backup, or delete the data folder and add the member anew"
    )]
    Gap {
        /// Where the log begins.
        base: u64,
        /// Where the store ends.
        applied: u64,
    },
    /// The consensus library refuses what it found.
    #[error("raft: {0}")]
    Raft(#[from] raft::Error),
}

/// How long a stopping node waits for its store to be written out.
const WRITE_OUT_PATIENCE: Duration = Duration::from_secs(10);

/// A running node.
pub struct Node {
    shared: Arc<Shared>,
    threads: Threads,
    upkeep: Upkeep,
    keeper: Keeper,
    servers: api::Servers,
    peer_address: SocketAddr,
}

impl Node {
    /// Starts a node; it serves clients when this returns, though it may not have found a leader yet.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        // Sockets first: a port that is taken is the commonest mistake, and costs nothing to find.
        let peer_listener = listen(config.listen_peer, "peer")?;
        let client_listener = listen(config.listen_client, "client")?;
        let http_listener = listen(config.listen_http, "http")?;
        let resp_listener = listen(config.listen_resp, "resp")?;
        let peer_address = local_address(&peer_listener)?;
        let prepared = tokio::task::spawn_blocking(move || Prepared::open(config))
            .await
            .map_err(|error| io_error("opening the data folder", io::Error::other(error)))??;
        let Prepared { shared, replica, applier, peers } = prepared;
        let hub = Hub::new(Arc::clone(&shared) as _, crate::watch::Options::default());
        let handler = Arc::new(PeerHandler { shared: Arc::clone(&shared) });
        let (address, who) = (shared.config.peer_address(), (shared.cluster, shared.id));
        let transport = Transport::start(peer_listener, address, who, GROUP, handler)
            .map_err(|error| io_error("starting the peer connections", error))?;
        transport.set_peers(&peers);
        let _ = shared.hub.set(hub);
        let _ = shared.transport.set(transport);
        let threads =
            spawn(&shared, replica, applier).map_err(|error| io_error("starting threads", error))?;
        let upkeep = Upkeep::start(Arc::clone(&shared), tokio::runtime::Handle::current())
            .map_err(|error| io_error("starting threads", error))?;
        let keeper = Keeper::start(Arc::clone(&shared), tokio::runtime::Handle::current())
            .map_err(|error| io_error("starting threads", error))?;
        let engine = Engine::new(Arc::clone(&shared));
        let servers = api::serve(engine, client_listener, http_listener, resp_listener)
            .map_err(|error| io_error("serving clients", error))?;
        tracing::info!(
            name = shared.config.name,
            member = format!("{:x}", shared.id),
            cluster = format!("{:x}", shared.cluster),
            clients = %shared.config.listen_client,
            "started"
        );
        Ok(Self { shared, threads, upkeep, keeper, servers, peer_address })
    }

    /// The way into its state.
    pub fn engine(&self) -> Engine {
        Engine::new(Arc::clone(&self.shared))
    }

    /// Returns when the node has stopped by itself, with the reason.
    pub async fn failed(&self) -> String {
        loop {
            let ended = self.shared.ended.notified();
            if let Some(reason) = self.shared.failure.lock().clone() {
                return reason;
            }
            ended.await;
        }
    }

    /// Stops: hands the leadership over, ends the clients' connections, writes the store out.
    pub async fn stop(self) {
        let engine = self.engine();
        if let Some(successor) = successor(&engine) {
            // Without a successor in time the others elect one: slower, and as good.
            let _ = tokio::time::timeout(Duration::from_secs(2), engine.transfer_leader(successor)).await;
        }
        self.servers.stop().await;
        let Self { shared, threads, upkeep, keeper, peer_address, .. } = self;
        let ended = tokio::task::spawn_blocking(move || {
            keeper.stop();
            upkeep.stop();
            shared.inbox.push(Input::Stop);
            threads.join();
            shared.transport().stop(peer_address);
            shared.hub().stop();
            write_out(Arc::clone(&shared.published.load().store));
        });
        if ended.await.is_err() {
            tracing::error!("stopping panicked");
        }
    }
}

/// Writes the store out, so that the next start has little to replay; given up when the disk does not take it.
fn write_out(store: Arc<LsmStore>) {
    let (done, written) = std::sync::mpsc::channel();
    // A thread of its own: it may be left behind waiting for a full disk.
    std::thread::spawn(move || done.send(store.flush()));
    match written.recv_timeout(WRITE_OUT_PATIENCE) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the store was not written out; the log has everything"),
        Err(_) => tracing::warn!("the store was not written out in time; the log has everything"),
    }
}

/// The follower that has most of the log.
fn successor(engine: &Engine) -> Option<u64> {
    let raft = engine.raft();
    let followers = raft
        .followers
        .iter()
        .filter(|(id, _, active)| *active && *id != engine.id() && raft.voters.contains(id));
    followers.max_by_key(|(_, matched, _)| *matched).map(|(id, ..)| *id)
}

fn listen(address: SocketAddr, what: &str) -> Result<TcpListener, StartError> {
    let what = format!("listening on {address} ({what}); is another process using the port?");
    TcpListener::bind(address).map_err(|error| io_error(what, error))
}

fn local_address(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|error| io_error("reading a socket's address", error))
}

pub(crate) fn io_error(what: impl Into<String>, source: io::Error) -> StartError {
    StartError::Io { what: what.into(), source }
}

/// What is read from the data folder, or founded in it.
struct Prepared {
    shared: Arc<Shared>,
    replica: Replica,
    applier: Applier,
    peers: BTreeMap<u64, String>,
}

impl Prepared {
    fn open(config: Config) -> Result<Self, StartError> {
        let folder = config.data_dir.clone();
        std::fs::create_dir_all(&folder)
            .map_err(|error| io_error(format!("creating {}", folder.display()), error))?;
        // Holds the folder's lock: nothing is read or written before.
        let disk = RealDisk::open(&folder.join("log"))
            .map_err(|error| io_error(format!("opening {}", folder.join("log").display()), error))?;
        let (identity, mut peers) = identify(&config)?;
        let stores = StoreFolder::open(&folder.join("store"))?;
        let store = Arc::new(stores.open_store(GROUP.0, crate::store_options(&config))?);
        let options = LogOptions {
            cluster: identity.cluster,
            node: identity.id,
            segment_bytes: config.log.segment_bytes,
            cache_bytes: config.log.cache_bytes,
        };
        let log = Arc::new(Log::open(Arc::new(disk), options)?);
        let mut progress = machines::read_progress(&*store)?;
        if progress.index.0 == 0 && identity.founder {
            found(&config, &store)?;
            progress = machines::read_progress(&*store)?;
        }
        join_log_and_store(&log, &progress)?;
        let configuration = configuration_of(&store)?;
        for member in system::members(quoin_core::View::new(&*store, progress.sequence))? {
            peers.extend(member.peer_addresses.first().map(|address| (member.id, address.clone())));
        }
        let replica = Replica::new(
            identity.id,
            GROUP,
            Arc::clone(&log),
            configuration,
            progress.index.0,
            replica_options(&config),
        )?;
        let applier = Applier::open(&*store)?;
        let (routes, tables) = (Arc::clone(applier.routes()), Arc::clone(applier.tables()));
        let published = Published { store, routes, tables, progress };
        let shared = Shared::new(identity.id, identity.cluster, config, log, stores, published);
        Ok(Self { shared, replica, applier, peers })
    }
}

fn replica_options(config: &Config) -> replica::Options {
    let raft = &config.raft;
    replica::Options {
        election_ticks: raft.election_ticks,
        heartbeat_ticks: raft.heartbeat_ticks,
        batch_commands_max: raft.batch_commands_max,
        batch_bytes_max: raft.batch_bytes_max,
        batches_in_flight_max: raft.batches_in_flight_max,
        lease_reads: raft.lease_reads,
        seed: rand::random(),
        ..replica::Options::default()
    }
}

fn configuration_of(store: &LsmStore) -> Result<ConfState, StartError> {
    match machines::read_configuration(store)? {
        Some(record) => decode_configuration(&record)
            .map_err(|error| StoreError::new("decode the configuration", error).into()),
        None => Ok(ConfState::default()),
    }
}

/// Who this node is: by its folder, by the founders' list, or by asking the cluster that it joins.
fn identify(config: &Config) -> Result<(Identity, BTreeMap<u64, String>), StartError> {
    let folder = &config.data_dir;
    let describe = |error| io_error(format!("reading the identity in {}", folder.display()), error);
    if let Some(identity) = Identity::read(folder).map_err(describe)? {
        check_identity(config, &identity)?;
        return Ok((identity, BTreeMap::new()));
    }
    let (identity, peers) = if config.join.is_empty() { founder(config) } else { join(config)? };
    let describe = |error| io_error(format!("writing the identity in {}", folder.display()), error);
    identity.write(folder).map_err(describe)?;
    Ok((identity, peers))
}

fn check_identity(config: &Config, identity: &Identity) -> Result<(), StartError> {
    let folder = config.data_dir.display();
    if identity.name != config.name {
        let (theirs, ours) = (&identity.name, &config.name);
        return Err(StartError::Identity(format!(
            "{folder} belongs to the node named {theirs:?}, this one is named {ours:?}: use its own folder or name"
        )));
    }
    let described = cluster_id(config);
    if identity.founder && !config.cluster.is_empty() && described != identity.cluster {
        return Err(StartError::Identity(format!(
            "{folder} belongs to cluster {:x}, and the settings cluster and cluster_token describe cluster \
             {described:x}: use its own folder, or the founders' list with which it was made",
            identity.cluster
        )));
    }
    // Whoever answers of those that it is to join must be of its cluster; that nobody answers is no reason to stay away.
    for address in &config.join {
        if let Ok(found) = who_is_at(address)
            && found.cluster != identity.cluster
        {
            return Err(StartError::Identity(format!(
                "{folder} belongs to cluster {:x}, and {address}, which the setting join names, to cluster {:x}: use its \
                 own folder, or delete it to join the other cluster",
                identity.cluster, found.cluster
            )));
        }
    }
    Ok(())
}

fn cluster_id(config: &Config) -> u64 {
    let founders = config.founders();
    let texts = founders.iter().flat_map(|(name, address)| [name.as_str(), address.as_str()]);
    number_of(std::iter::once(config.cluster_token.as_str()).chain(texts))
}

fn member_id(config: &Config, name: &str) -> u64 {
    number_of([&format!("{:x}", cluster_id(config)), name])
}

pub(crate) fn founder(config: &Config) -> (Identity, BTreeMap<u64, String>) {
    let founders = config.founders();
    let peers = founders.iter().map(|(name, address)| (member_id(config, name), address.clone())).collect();
    let identity = Identity {
        layout: LAYOUT_VERSION,
        cluster: cluster_id(config),
        id: member_id(config, &config.name),
        name: config.name.clone(),
        founder: true,
    };
    (identity, peers)
}

/// The members with which a cluster begins; the same on each of them.
pub(crate) fn founding_members(config: &Config) -> Vec<system::Member> {
    let member = |(name, address): (String, String)| system::Member {
        id: member_id(config, &name),
        name,
        peer_addresses: vec![address],
        client_urls: Vec::new(),
        learner: false,
    };
    config.founders().into_iter().map(member).collect()
}

/// All of them vote.
pub(crate) fn founders_configuration(members: &[system::Member]) -> Bytes {
    let mut configuration = ConfState::default();
    configuration.set_voters(members.iter().map(|member| member.id).collect());
    encode_configuration(&configuration)
}

/// Writes the state with which all founders begin.
fn found(config: &Config, store: &LsmStore) -> Result<(), StartError> {
    let members = founding_members(config);
    machines::found(store, founders_configuration(&members), &members);
    store.batch_applied(machines::FOUNDING_INDEX)?;
    store.flush()?;
    Ok(())
}

/// The log must reach back to where the store ends. A store that is ahead of its log comes from a snapshot (or
/// the founding) whose mark in the log was lost in a crash: the log restarts behind it.
fn join_log_and_store(log: &Log, progress: &Progress) -> Result<(), StartError> {
    let (applied, term) = (progress.index.0, progress.term.0);
    let base = log.base(GROUP);
    if base.index > applied {
        return Err(StartError::Gap { base: base.index, applied });
    }
    if applied > log.last_index(GROUP) {
        let known = log.hard_state(GROUP).unwrap_or(HardState { term: 0, vote: 0, commit: 0 });
        let vote = if known.term >= term { known.vote } else { 0 };
        let hard = HardState { term: known.term.max(term), vote, commit: applied };
        log.append(&[Record::Base(GROUP, Base { index: applied, term }), Record::HardState(GROUP, hard)])?;
    }
    Ok(())
}

/// What a member answers to a node that asks who it is.
#[derive(Serialize, Deserialize)]
struct JoinAnswer {
    member: Option<u64>,
    peers: BTreeMap<u64, String>,
}

const JOIN_BYTES_MAX: usize = 1 << 20;

/// Asks the cluster that this node joins who it is; its peer address must have been added.
fn join(config: &Config) -> Result<(Identity, BTreeMap<u64, String>), StartError> {
    let own = config.peer_address();
    let mut failures = Vec::new();
    for address in &config.join {
        match ask_to_join(address, &own) {
            Ok((cluster, JoinAnswer { member: Some(id), peers })) => {
                let name = config.name.clone();
                return Ok((Identity { layout: LAYOUT_VERSION, cluster, id, name, founder: false }, peers));
            }
            Ok((cluster, _)) => failures.push(format!(
                "{address}: cluster {cluster:x} has no member with the peer address {own}; add it first (quoin cluster add)"
            )),
            Err(error) => failures.push(format!("{address}: {error}")),
        }
    }
    Err(StartError::Identity(format!("cannot join: {}", failures.join("; "))))
}

fn ask_to_join(address: &str, own: &str) -> io::Result<(u64, JoinAnswer)> {
    let (mut stream, who) = dial(address, &Greeting::of_nobody(Purpose::Join))?;
    write_sized(&mut stream, own.as_bytes())?;
    Ok((who.cluster, serde_json::from_slice(&read_sized(&mut stream)?)?))
}

fn write_sized(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_le_bytes(), bytes].concat())
}

fn read_sized(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > JOIN_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{length} bytes")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The transport's way into the node.
struct PeerHandler {
    shared: Arc<Shared>,
}

impl Handler for PeerHandler {
    fn received(&self, from: u64, group: GroupId, message: PeerMessage) {
        self.shared.inbox.push(Input::Message { from, group, message });
    }

    fn lost(&self, peer: u64) {
        self.shared.inbox.push(Input::PeerLost(peer));
    }

    fn snapshot_offered(&self, from: u64, stream: TcpStream) {
        receive_snapshot(&self.shared, from, stream);
    }

    fn join_asked(&self, mut stream: TcpStream) {
        let answer = read_sized(&mut stream).and_then(|address| {
            let address = String::from_utf8(address).map_err(io::Error::other)?;
            let peers = self.shared.members.lock().clone();
            let member = peers.iter().find(|(_, known)| **known == address).map(|(id, _)| *id);
            write_sized(&mut stream, &serde_json::to_vec(&JoinAnswer { member, peers })?)
        });
        if let Err(error) = answer {
            tracing::warn!(%error, "answering a node that wants to join");
        }
    }

    fn is_removed(&self, peer: u64) -> bool {
        self.shared.removed.lock().contains(&peer)
    }

    fn cast_out(&self, reason: &str) {
        self.shared.cast_out(reason);
    }
}
