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
    /// Where clients of Redis are served.
    pub listen_resp: SocketAddr,
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
    /// Lookup tables.
    pub table: TableConfig,
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

/// Lookup tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TableConfig {
    /// Read files into huge pages instead of mapping them: faster lookups in large tables, slower starts.
    pub huge_pages: bool,
    /// Keep files in memory, whatever else needs room (mlock).
    pub lock: bool,
    /// Keys of one lookup.
    pub keys_max: usize,
    /// Who serves buckets (`s3://`), as a URL; empty: `AWS_ENDPOINT_URL`, else Amazon.
    pub s3_endpoint: String,
    /// Where they are; empty: `AWS_REGION`, else `us-east-1`.
    pub s3_region: String,
    /// Who reads them; empty: `AWS_ACCESS_KEY_ID` and what goes with it, else the machine's role.
    pub s3_access_key_id: String,
    /// With what key.
    pub s3_secret_access_key: Secret,
}

/// A value that is not shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The value itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
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
            listen_resp: local(6379),
            advertise_client: Vec::new(),
            advertise_peer: String::new(),
            cluster: BTreeMap::new(),
            join: Vec::new(),
            cluster_token: "quoin".into(),
            raft: RaftConfig::default(),
            log: LogConfig::default(),
            store: StoreConfig::default(),
            history: HistoryConfig::default(),
            table: TableConfig::default(),
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

impl Default for TableConfig {
    fn default() -> Self {
        Self {
            huge_pages: false,
            lock: false,
            keys_max: 100_000,
            s3_endpoint: String::new(),
            s3_region: String::new(),
            s3_access_key_id: String::new(),
            s3_secret_access_key: Secret::default(),
        }
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
        if self.table.s3_access_key_id.is_empty() != self.table.s3_secret_access_key.reveal().is_empty() {
            return fail(
                "table.s3_access_key_id",
                "goes with table.s3_secret_access_key: give both or none".into(),
            );
        }
        if self.log.segment_bytes < 1 << 20 {
            return fail("log.segment_bytes", format!("is {}; at least 1048576", self.log.segment_bytes));
        }
        Ok(())
    }
}

/// Every setting by its path, with what it says in `--help`.
pub const SETTINGS: &[(&str, &str)] = &[
    ("name", "The node's name, unique in the cluster"),
    ("data_dir", "Where everything is kept"),
    ("listen_client", "Where gRPC clients are served, ADDRESS:PORT"),
    ("listen_peer", "Where other replicas are served, ADDRESS:PORT"),
    ("listen_http", "Where /metrics, /livez and /readyz are served, ADDRESS:PORT"),
    ("listen_resp", "Where clients of Redis are served, ADDRESS:PORT"),
    ("advertise_client", "How clients reach this node, URLs; else http:// and listen_client"),
    ("advertise_peer", "How other replicas reach this node, HOST:PORT; else listen_peer"),
    ("cluster", "The founding replicas, the same on each of them: NAME=HOST:PORT,..."),
    ("join", "Join a running cluster: peer addresses of some of its members, HOST:PORT,..."),
    ("cluster_token", "Tells clusters with the same addresses apart"),
    ("raft.tick_ms", "Milliseconds in a tick"),
    ("raft.heartbeat_ticks", "Ticks between heartbeats"),
    ("raft.election_ticks", "Ticks without a leader before an election; drawn between one and two of these"),
    ("raft.batch_commands_max", "Commands in one batch at most"),
    ("raft.batch_bytes_max", "Bytes in one batch at most"),
    ("raft.batches_in_flight_max", "Batches on their way to the leader's disk at once"),
    ("raft.lease_reads", "Linearizable reads by the leader's lease: trusts all clocks to run at one speed"),
    ("log.segment_bytes", "Bytes of a segment file of the log"),
    ("log.cache_bytes", "Bytes of newest entries kept in memory for followers"),
    ("log.keep_bytes", "The log is purged down to about this; who lags further gets a snapshot"),
    ("store.cache_bytes", "Bytes of the store's blocks kept in memory"),
    ("store.memtable_bytes", "Bytes of writes gathered in memory before they are written out"),
    ("store.quota_bytes", "The store may grow to this; then writes get NOSPACE. 0: only the disk bounds it"),
    ("store.reserve_bytes", "Writes get NOSPACE when the disk has less than this left"),
    ("history.auto_compaction", "Compact history by itself; else only when asked"),
    ("history.keep_s", "Seconds that a revision is kept"),
    ("history.keep_revisions", "Revisions that are kept"),
    (
        "table.huge_pages",
        "Read tables into huge pages instead of mapping them: faster lookups, slower starts",
    ),
    ("table.lock", "Keep tables in memory whatever else needs room (mlock)"),
    ("table.keys_max", "Keys of one lookup"),
    ("table.s3_endpoint", "Who serves s3:// locations, a URL; else AWS_ENDPOINT_URL, else Amazon"),
    ("table.s3_region", "The region of buckets; else AWS_REGION, else us-east-1"),
    ("table.s3_access_key_id", "Who reads buckets; else AWS_ACCESS_KEY_ID, else the machine's role"),
    ("table.s3_secret_access_key", "The key that goes with it; better as a variable than as a flag"),
    ("limits.key_bytes_max", "Bytes of a key"),
    ("limits.request_bytes_max", "Bytes of a request"),
    ("limits.txn_operations_max", "Operations of a transaction"),
    ("limits.response_bytes_max", "Bytes of one answer to a range read"),
    ("limits.commands_in_flight_max", "Commands under way on this node; more are refused"),
    ("limits.command_bytes_in_flight_max", "Their bytes"),
    ("limits.streams_per_connection_max", "Streams that one connection may have open"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(prefix: &str, table: &toml::Table, out: &mut Vec<String>) {
        for (name, value) in table {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            match value {
                toml::Value::Table(inner) if path != "cluster" => leaves(&path, inner, out),
                _ => out.push(path),
            }
        }
    }

    #[test]
    fn every_setting_is_described() {
        let table = toml::Table::try_from(Config::default()).unwrap();
        let mut paths = Vec::new();
        leaves("", &table, &mut paths);
        let mut described: Vec<String> = SETTINGS.iter().map(|(path, _)| (*path).to_string()).collect();
        paths.sort();
        described.sort();
        assert_eq!(paths, described);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        let refused = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(refused(|config| config.name.clear()).starts_with("name: is empty"));
        let other = |config: &mut Config| drop(config.cluster.insert("b".into(), "127.0.0.1:1".into()));
        assert!(refused(other).contains("does not name this node, \"quoin\", only b"));
        let elsewhere =
            |config: &mut Config| drop(config.cluster.insert("quoin".into(), "127.0.0.1:1".into()));
        assert!(
            refused(elsewhere)
                .contains("says 127.0.0.1:1 for this node, whose peer address is 127.0.0.1:2380")
        );
        assert!(refused(|config| config.raft.election_ticks = 2).starts_with("raft.election_ticks"));
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = toml::from_str::<Config>("[raft]\ntick = 3").unwrap_err().to_string();
        assert!(error.contains("unknown field `tick`"), "{error}");
    }
}
