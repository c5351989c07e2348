//! Every setting of a node, with its default. The same names stand in `quoin.toml`, as flags and as environment
//! variables.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The settings of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The node's name, unique in the cluster.
    pub name: String,
    /// Where everything is kept: `log/`, `store/`, `identity.json`.
    pub data_dir: PathBuf,
    /// Where gRPC clients are served.
    pub listen_client: SocketAddr,
    /// Where other replicas are served.
    pub listen_peer: SocketAddr,
    /// Where `/metrics`, `/livez` and `/readyz` are served.
    pub listen_http: SocketAddr,
    /// How clients reach this node, as URLs; empty: `http://` and `listen_client`.
    pub advertise_client: Vec<String>,
    /// How other replicas reach this node, `host:port`; empty: `listen_peer`.
    pub advertise_peer: String,
    /// The founding replicas, name to peer address; the same on each of them. Empty: this node alone.
    pub cluster: BTreeMap<String, String>,
    /// Joins a running cluster instead of founding one: peer addresses of some of its members. The node must
    /// have been added first.
    pub join: Vec<String>,
    /// Tells clusters with the same addresses apart.
    pub cluster_token: String,
    /// Timing of the consensus.
    pub raft: RaftConfig,
    /// The log on disk.
    pub log: LogConfig,
    /// The store on disk.
    pub store: StoreConfig,
    /// How much of the past is kept.
    pub history: HistoryConfig,
    /// What a request may be at most.
    pub limits: Limits,
}

/// Timing of the consensus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RaftConfig {
    /// Milliseconds in a tick.
    pub tick_ms: u64,
    /// Ticks between heartbeats.
    pub heartbeat_ticks: usize,
    /// Ticks without a leader before an election; drawn between one and two of these.
    pub election_ticks: usize,
    /// Commands in one batch at most.
    pub batch_commands_max: usize,
    /// Bytes in one batch at most.
    pub batch_bytes_max: usize,
    /// Batches on their way to the leader's disk at once.
    pub batches_in_flight_max: usize,
    /// Serve linearizable reads by the leader's lease instead of a round of heartbeats: faster, and right only
    /// while all clocks run at the same speed.
    pub lease_reads: bool,
}

/// The log on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Bytes of a segment file.
    pub segment_bytes: u64,
    /// Bytes of newest entries kept in memory for followers.
    pub cache_bytes: usize,
    /// The log is purged down to about this size; a replica that lags further gets a snapshot.
    pub keep_bytes: u64,
}

/// The store on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// Bytes of blocks kept in memory.
    pub cache_bytes: u64,
    /// Bytes of writes gathered in memory before they are written out.
    pub memtable_bytes: u64,
    /// The store may grow to this many bytes; then writes are refused with NOSPACE. 0: only the disk bounds it.
    pub quota_bytes: u64,
    /// Writes are refused with NOSPACE when the disk has less than this left.
    pub reserve_bytes: u64,
}

/// How much of the past is kept: what exceeds either bound is compacted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    /// Compact by itself; else only when asked.
    pub auto_compaction: bool,
    /// Seconds that a revision is kept.
    pub keep_s: u64,
    /// Revisions that are kept.
    pub keep_revisions: u64,
}

/// What a request may be at most. The defaults are etcd's where etcd has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a key.
    pub key_bytes_max: usize,
    /// Bytes of a request.
    pub request_bytes_max: usize,
    /// Operations of a transaction.
    pub txn_operations_max: usize,
    /// Bytes of one answer to a range read; larger ones are refused and must be read in pages.
    pub response_bytes_max: usize,
    /// Commands under way on this node; more are refused as too many.
    pub commands_in_flight_max: usize,
    /// Their bytes.
    pub command_bytes_in_flight_max: usize,
    /// Streams that one connection may have open.
    pub streams_per_connection_max: u32,
}

impl Default for Config {
    fn default() -> Self {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Self {
            name: "quoin".into(),
            data_dir: "quoin-data".into(),
            listen_client: local(2379),
            listen_peer: local(2380),
            listen_http: local(2381),
            advertise_client: Vec::new(),
            advertise_peer: String::new(),
            cluster: BTreeMap::new(),
            join: Vec::new(),
            cluster_token: "quoin".into(),
            raft: RaftConfig::default(),
            log: LogConfig::default(),
            store: StoreConfig::default(),
            history: HistoryConfig::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for RaftConfig {
    fn default() -> Self {
        Self {
            tick_ms: 50,
            heartbeat_ticks: 2,
            election_ticks: 8,
            batch_commands_max: 4096,
            batch_bytes_max: 1 << 20,
            batches_in_flight_max: 2,
            lease_reads: false,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, cache_bytes: 64 << 20, keep_bytes: 256 << 20 }
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { cache_bytes: 256 << 20, memtable_bytes: 64 << 20, quota_bytes: 0, reserve_bytes: 256 << 20 }
    }
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self { auto_compaction: true, keep_s: 600, keep_revisions: 500_000 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key_bytes_max: 32 << 10,
            request_bytes_max: 1_572_864,
            txn_operations_max: 128,
            response_bytes_max: 64 << 20,
            commands_in_flight_max: 100_000,
            command_bytes_in_flight_max: 256 << 20,
            streams_per_connection_max: 10_000,
        }
    }
}

/// A setting that cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct ConfigError {
    /// Its name.
    pub setting: &'static str,
    /// What is wrong with its value, and what to do.
    pub problem: String,
}

impl Config {
    /// How other replicas reach this node.
    pub fn peer_address(&self) -> String {
        if self.advertise_peer.is_empty() {
            self.listen_peer.to_string()
        } else {
            self.advertise_peer.clone()
        }
    }

    /// How clients reach this node.
    pub fn client_urls(&self) -> Vec<String> {
        if self.advertise_client.is_empty() {
            vec![format!("http://{}", self.listen_client)]
        } else {
            self.advertise_client.clone()
        }
    }

    /// The founding replicas, this node alone where none are named.
    pub fn founders(&self) -> BTreeMap<String, String> {
        if self.cluster.is_empty() {
            BTreeMap::from([(self.name.clone(), self.peer_address())])
        } else {
            self.cluster.clone()
        }
    }

    /// Checks what can be checked without starting.
    ///
    /// # Errors
    /// The first setting that cannot be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fail = |setting, problem: String| Err(ConfigError { setting, problem });
        if self.name.is_empty() {
            return fail("name", "is empty; give each node of the cluster a name of its own".into());
        }
        if !self.cluster.is_empty() && !self.join.is_empty() {
            return fail(
                "join",
                "a node either founds a cluster (cluster) or joins one (join), not both".into(),
            );
        }
        if let Some(address) = self.cluster.get(&self.name) {
            if *address != self.peer_address() {
                let own = self.peer_address();
                return fail("cluster", format!("says {address} for this node, whose peer address is {own}"));
            }
        } else if !self.cluster.is_empty() {
            let names: Vec<_> = self.cluster.keys().map(String::as_str).collect();
            return fail(
                "cluster",
                format!("does not name this node, {:?}, only {}", self.name, names.join(", ")),
            );
        }
        if self.raft.tick_ms == 0 {
            return fail("raft.tick_ms", "is 0; 50 is usual".into());
        }
        if self.raft.election_ticks <= self.raft.heartbeat_ticks || self.raft.heartbeat_ticks == 0 {
            return fail(
                "raft.election_ticks",
                "must be above raft.heartbeat_ticks, which must be above 0".into(),
            );
        }
        if self.log.segment_bytes < 1 << 20 {
            return fail("log.segment_bytes", format!("is {}; at least 1048576", self.log.segment_bytes));
        }
        Ok(())
    }
}
