//! Every setting of a node, with its default and its range. They have the same names in `quoin.toml`, as
//! flags and as environment variables.
//!
//! [`Config::bounds`] is the one place for the ranges of numbers. `addresses.rs` checks the settings that say
//! where something is.

use crate::addresses;
use crate::audit::{self, AuditConfig, AuthConfig};
use crate::tls::{self, TlsConfig};
use quoin_core::kv::KEY_BYTES_MAX;
use quoin_core::limits::REQUEST_BYTES_MAX;
use quoin_engine::{
    HistoryConfig, LedgerConfig, Limits, LogConfig, RaftConfig, ScrubConfig, Settings, StoreConfig,
};
use quoin_library::TableConfig;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::LazyLock;

quoin_engine::settings! {
    /// The settings of one node. Sections are the fields after `cluster_token`.
    pub struct Config in "" {
        /// The node's name, unique in the cluster. Default quoin, not empty.
        pub name: String = "quoin".into(),
        /// The folder for everything that the node keeps. Default quoin-data.
        pub data_dir: PathBuf = "quoin-data".into(),
        /// Serve clients here: gRPC, and etcd's JSON over HTTP/1, ADDRESS:PORT. Default 127.0.0.1:2379.
        pub listen_client: SocketAddr = local(2379),
        /// Serve other replicas here, ADDRESS:PORT. Default 127.0.0.1:2380.
        pub listen_peer: SocketAddr = local(2380),
        /// Serve HTTP here (/metrics, /livez, /readyz, rules, the ledger, /docs), ADDRESS:PORT. Default 127.0.0.1:2381.
        pub listen_http: SocketAddr = local(2381),
        /// Serve Redis clients here, ADDRESS:PORT. Default 127.0.0.1:6379.
        pub listen_resp: SocketAddr = local(6379),
        /// Serve what listen_client serves at this path too, a socket without TLS: unix:///PATH. Default empty: at none.
        pub listen_client_unix: String = String::new(),
        /// The same of listen_http. Default empty: at none.
        pub listen_http_unix: String = String::new(),
        /// The same of listen_resp. Default empty: at none.
        pub listen_resp_unix: String = String::new(),
        /// Who may connect to these sockets, as chmod says it in octal digits. Default 0600.
        pub listen_unix_mode: String = "0600".into(),
        /// Listen beyond this machine without TLS: whoever reaches a port can read and change everything. Default
        /// false.
        pub insecure: bool = false,
        /// How clients reach this node, URLs separated by commas. Default empty: http:// (with TLS https://) and
        /// listen_client.
        pub advertise_client: Vec<String> = Vec::new(),
        /// How other replicas reach this node, HOST:PORT. Default empty: listen_peer.
        pub advertise_peer: String = String::new(),
        /// The founding replicas, the same on each of them, NAME=HOST:PORT,... Default empty: this node
        /// alone.
        pub cluster: BTreeMap<String, String> = BTreeMap::new(),
        /// Join a running cluster: peer addresses of some of its members, HOST:PORT,... The node must have
        /// been added first. Default empty: found a cluster.
        pub join: Vec<String> = Vec::new(),
        /// After most members were lost for good, make a cluster of this node alone from what is in its folder: all others are
        /// removed. Default false.
        pub force_new_cluster: bool = false,
        /// Tells apart clusters whose founders have the same names and addresses. Default quoin.
        pub cluster_token: String = "quoin".into(),
        /// Certificates: with them, ports speak TLS.
        pub tls: TlsConfig = TlsConfig::default(),
        /// How users log in.
        pub auth: AuthConfig = AuthConfig::default(),
        /// The audit trail.
        pub audit: AuditConfig = AuditConfig::default(),
        /// Timing and batching of the consensus.
        pub raft: RaftConfig = RaftConfig::default(),
        /// The log on disk.
        pub log: LogConfig = LogConfig::default(),
        /// The store on disk.
        pub store: StoreConfig = StoreConfig::default(),
        /// The ledger.
        pub ledger: LedgerConfig = LedgerConfig::default(),
        /// How much of the past is kept.
        pub history: HistoryConfig = HistoryConfig::default(),
        /// Reading files again.
        pub scrub: ScrubConfig = ScrubConfig::default(),
        /// Lookup tables.
        pub table: TableConfig = TableConfig::default(),
        /// Limits of requests.
        pub limits: Limits = Limits::default(),
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Every setting: its path, such as `raft.tick_ms`, and its help text.
pub static SETTINGS: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
    let expand = |setting: &(&'static str, &'static str)| match setting.0 {
        "tls" => TlsConfig::SETTINGS.to_vec(),
        "auth" => AuthConfig::SETTINGS.to_vec(),
        "audit" => AuditConfig::SETTINGS.to_vec(),
        "raft" => RaftConfig::SETTINGS.to_vec(),
        "log" => LogConfig::SETTINGS.to_vec(),
        "store" => StoreConfig::SETTINGS.to_vec(),
        "ledger" => LedgerConfig::SETTINGS.to_vec(),
        "history" => HistoryConfig::SETTINGS.to_vec(),
        "scrub" => ScrubConfig::SETTINGS.to_vec(),
        "table" => TableConfig::SETTINGS.to_vec(),
        "limits" => Limits::SETTINGS.to_vec(),
        _ => vec![*setting],
    };
    let settings = Config::SETTINGS.iter().flat_map(expand);
    settings.map(|(path, help)| (path, help.trim_start().trim_end_matches('.'))).collect()
});

/// A setting with an impossible value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct ConfigError {
    /// The setting's path.
    pub setting: &'static str,
    /// What is wrong with its value, and what to do.
    pub problem: String,
}

impl Config {
    /// How other replicas reach this node, `host:port`.
    pub fn peer_address(&self) -> String {
        if self.advertise_peer.is_empty() {
            self.listen_peer.to_string()
        } else {
            self.advertise_peer.clone()
        }
    }

    /// The permissions of sockets; `None` if they cannot be read.
    pub(crate) fn unix_mode(&self) -> Option<u32> {
        u32::from_str_radix(&self.listen_unix_mode, 8).ok().filter(|mode| *mode <= 0o777)
    }

    /// How clients reach this node, as URLs.
    pub fn client_urls(&self) -> Vec<String> {
        if self.advertise_client.is_empty() {
            let scheme = if self.tls.is_on() { "https" } else { "http" };
            vec![format!("{scheme}://{}", self.listen_client)]
        } else {
            self.advertise_client.clone()
        }
    }

    /// Names and peer addresses of the founding replicas. This node alone if the settings name none.
    pub fn founders(&self) -> BTreeMap<String, String> {
        if self.cluster.is_empty() {
            BTreeMap::from([(self.name.clone(), self.peer_address())])
        } else {
            self.cluster.clone()
        }
    }

    /// The settings of lookup tables. Where the operator says nothing, whoever reaches a node on loopback alone is
    /// on its machine already.
    pub(crate) fn tables(&self) -> TableConfig {
        let mut table = self.table.clone();
        if table.sources.is_empty() && addresses::is_local(self) {
            table.sources = vec![quoin_library::ANYWHERE.into()];
        }
        table
    }

    /// The settings of this node's replica.
    pub fn engine_settings(&self) -> Settings {
        Settings {
            name: self.name.clone(),
            peer_address: self.peer_address(),
            client_urls: self.client_urls(),
            raft: self.raft.clone(),
            log: self.log.clone(),
            store: self.store.clone(),
            ledger: self.ledger.clone(),
            history: self.history.clone(),
            scrub: self.scrub.clone(),
            limits: self.limits.clone(),
        }
    }

    /// Checks what can be checked without starting.
    ///
    /// # Errors
    /// The first setting with an impossible value.
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
        if self.table.s3_access_key_id.is_empty() != self.table.s3_secret_access_key.reveal().is_empty() {
            return fail(
                "table.s3_access_key_id",
                "goes with table.s3_secret_access_key: set both or none".into(),
            );
        }
        addresses::check(self)?;
        tls::check(&self.tls)?;
        audit::check(&self.audit)?;
        for (setting, value, range) in self.bounds() {
            in_range(setting, i128::from(value), &range)?;
        }
        let (election, heartbeat) = (self.raft.election_ticks, self.raft.heartbeat_ticks);
        if election <= heartbeat {
            let problem = format!("is {election}; it must be more than raft.heartbeat_ticks, {heartbeat}");
            return fail("raft.election_ticks", problem);
        }
        Ok(())
    }

    /// Every number with its range: whatever is outside of it cannot work.
    fn bounds(&self) -> Vec<(&'static str, u64, RangeInclusive<u64>)> {
        let Self { auth, audit, raft, log, store, ledger, history, scrub, table, limits, .. } = self;
        let bound = |setting, value: usize, from: u64, to: u64| {
            (setting, u64::try_from(value).unwrap_or(u64::MAX), from..=to)
        };
        // 0 is no quota.
        let quota_least = if store.quota_bytes == 0 { 0 } else { 16 << 20 };
        vec![
            ("auth.token_ttl_s", auth.token_ttl_s, 1..=31_536_000),
            ("auth.failed_passwords_max", auth.failed_passwords_max.into(), 0..=1_000_000),
            ("audit.file_bytes_max", audit.file_bytes_max, 64 << 10..=1 << 40),
            bound("audit.files_max", audit.files_max, 1, 1_000_000),
            bound("audit.queue_max", audit.queue_max, 16, 1_000_000),
            // Twice the election timeout, in milliseconds, fits into what sockets take.
            ("raft.tick_ms", raft.tick_ms, 1..=1000),
            bound("raft.heartbeat_ticks", raft.heartbeat_ticks, 1, 100),
            bound("raft.election_ticks", raft.election_ticks, 2, 1000),
            ("raft.member_health_ms", raft.member_health_ms, 0..=60_000),
            bound("raft.batch_commands_max", raft.batch_commands_max, 1, 1_000_000),
            // Two batches and a request fit into what may wait for one peer.
            bound("raft.batch_bytes_max", raft.batch_bytes_max, 1 << 10, REQUEST_BYTES_MAX as u64),
            bound("raft.batches_in_flight_max", raft.batches_in_flight_max, 1, 64),
            ("log.segment_bytes", log.segment_bytes, 1 << 20..=1 << 30),
            bound("log.cache_bytes", log.cache_bytes, 0, 1 << 40),
            ("log.keep_bytes", log.keep_bytes, 0..=1 << 50),
            ("log.keep_entries", log.keep_entries, 0..=1_000_000_000),
            ("log.snapshot_keep_bytes", log.snapshot_keep_bytes, 0..=1 << 50),
            ("store.cache_bytes", store.cache_bytes, 0..=1 << 44),
            ("store.memtable_bytes", store.memtable_bytes, 64 << 10..=4 << 30),
            ("store.quota_bytes", store.quota_bytes, quota_least..=1 << 50),
            ("store.reserve_bytes", store.reserve_bytes, 0..=1 << 50),
            ("ledger.cache_bytes", ledger.cache_bytes, 0..=256 << 30),
            // In milliseconds it fits into a stamp.
            ("history.keep_s", history.keep_s, 0..=1_000_000_000),
            ("history.keep_revisions", history.keep_revisions, 0..=1_000_000_000_000),
            ("scrub.bytes_per_second", scrub.bytes_per_second, 0..=16 << 30),
            ("scrub.every_s", scrub.every_s, 1..=1_000_000_000),
            bound("table.keys_max", table.keys_max, 1, 10_000_000),
            bound("table.changes_bytes_max", table.changes_bytes_max, 1 << 20, 1 << 44),
            ("table.peer_bytes_per_second", table.peer_bytes_per_second, 0..=16 << 30),
            bound("limits.key_bytes_max", limits.key_bytes_max, 1, KEY_BYTES_MAX as u64),
            bound("limits.request_bytes_max", limits.request_bytes_max, 1 << 10, REQUEST_BYTES_MAX as u64),
            bound("limits.txn_operations_max", limits.txn_operations_max, 1, 1_000_000),
            bound("limits.response_bytes_max", limits.response_bytes_max, 1 << 10, 1 << 30),
            bound(
                "limits.response_bytes_in_flight_max",
                limits.response_bytes_in_flight_max,
                1 << 10,
                1 << 40,
            ),
            bound("limits.commands_in_flight_max", limits.commands_in_flight_max, 1, 10_000_000),
            bound("limits.reads_in_flight_max", limits.reads_in_flight_max, 1, 10_000_000),
            bound("limits.command_bytes_in_flight_max", limits.command_bytes_in_flight_max, 1 << 10, 1 << 40),
            bound(
                "limits.streams_per_connection_max",
                limits.streams_per_connection_max as usize,
                1,
                1_000_000,
            ),
            ("limits.watch_progress_s", limits.watch_progress_s, 1..=86_400),
        ]
    }
}

/// Checks a number by its setting's path, before it becomes part of a [`Config`]: there it may not even fit.
///
/// # Errors
/// It is outside of the setting's range. Other settings have none.
pub fn check_number(setting: &str, value: i128) -> Result<(), ConfigError> {
    let defaults = Config {
        store: StoreConfig { quota_bytes: u64::from(value != 0), ..StoreConfig::default() },
        ..Config::default()
    };
    let bounds = defaults.bounds();
    let Some((setting, _, range)) = bounds.into_iter().find(|(name, ..)| *name == setting) else {
        return Ok(());
    };
    in_range(setting, value, &range)
}

fn in_range(setting: &'static str, value: i128, range: &RangeInclusive<u64>) -> Result<(), ConfigError> {
    let (from, to) = (range.start(), range.end());
    if (i128::from(*from)..=i128::from(*to)).contains(&value) {
        return Ok(());
    }
    let problem = format!("is {value}; it must be at least {from} and at most {to}");
    Err(ConfigError { setting, problem })
}

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

    /// The number at the beginning of `text`, which may be in KiB or MiB.
    fn number(text: &str) -> u64 {
        let mut words = text.split([' ', ',', '.', ';']);
        let number: u64 = words.next().unwrap().parse().unwrap_or_else(|_| panic!("no number: {text}"));
        match words.next() {
            Some("KiB") => number << 10,
            Some("MiB") => number << 20,
            Some("GiB") => number << 30,
            Some("TiB") => number << 40,
            _ => number,
        }
    }

    fn after<'a>(help: &'a str, word: &str) -> Option<&'a str> {
        help.split_once(word).map(|(_, rest)| rest)
    }

    fn with(path: &str, value: toml::Value) -> Config {
        let mut table = toml::Table::try_from(Config::default()).unwrap();
        match path.split_once('.') {
            Some((section, name)) => table[section][name] = value,
            None => table[path] = value,
        }
        table.try_into().unwrap()
    }

    #[test]
    fn every_description_states_the_default_that_is_in_force() {
        let table = toml::Table::try_from(Config::default()).unwrap();
        for (path, help) in SETTINGS.iter() {
            let value =
                path.split('.').fold(&toml::Value::Table(table.clone()), |value, name| &value[name]).clone();
            let stated = after(help, "Default ").unwrap_or_else(|| panic!("{path}: {help}"));
            match value {
                toml::Value::Integer(value) => assert_eq!(number(stated), value as u64, "{path}: {help}"),
                toml::Value::String(text) if !text.is_empty() => {
                    assert!(stated.starts_with(&text), "{path}: {help}")
                }
                toml::Value::Boolean(value) => {
                    assert!(stated.starts_with(&value.to_string()), "{path}: {help}")
                }
                _ => assert!(stated.starts_with("empty"), "{path}: {help}"),
            }
        }
    }

    /// The setting at `path` when it is `value`, as a file would say it.
    fn refused(path: &str, value: u64) -> Option<String> {
        let mut config = with(path, toml::Value::Integer(value as i64));
        // These two are compared with each other, too.
        match path {
            "raft.heartbeat_ticks" => config.raft.election_ticks = config.raft.heartbeat_ticks.max(1) + 1,
            "raft.election_ticks" => config.raft.heartbeat_ticks = 1,
            _ => {}
        }
        config.check().err().map(|error| error.to_string())
    }

    /// Zero batches, no streams and ticks near the maximum were accepted, and the node could not work.
    #[test]
    fn every_number_has_the_range_that_its_description_states() {
        let defaults = toml::Value::Table(toml::Table::try_from(Config::default()).unwrap());
        for (path, help) in SETTINGS.iter() {
            let value = path.split('.').fold(&defaults, |value, name| &value[name]);
            if !value.is_integer() {
                continue;
            }
            let stated = |word| number(after(help, word).unwrap_or_else(|| panic!("{path} lacks {word:?}")));
            let (least, most) = (stated("at least "), stated("at most "));
            for value in [least, most] {
                assert_eq!(refused(path, value), None, "{path}: {help}");
                assert_eq!(check_number(path, value.into()), Ok(()), "{path}: {help}");
            }
            let outside = [least.checked_sub(1), Some(most + 1)];
            for value in outside.into_iter().flatten() {
                let expected = format!("{path}: is {value}; it must be at least {least} and at most {most}");
                assert_eq!(refused(path, value), Some(expected.clone()), "{path}: {help}");
                assert_eq!(check_number(path, value.into()).unwrap_err().to_string(), expected);
            }
            for value in [-1, i128::from(u64::MAX)] {
                assert!(check_number(path, value).is_err(), "{path}");
            }
        }
        assert_eq!(refused("store.quota_bytes", 0), None, "no quota");
    }

    #[test]
    fn an_impossible_value_is_refused_with_its_setting() {
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
        assert!(refused(|config| config.raft.election_ticks = 2).starts_with("raft.election_ticks: is 2"));
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = toml::from_str::<Config>("[raft]\ntick = 3").unwrap_err().to_string();
        assert!(error.contains("unknown field `tick`"), "{error}");
    }
}
