//! The settings of a replica: sections of a node's configuration, and how a section is declared.

use quoin_consensus::replica::Options;
use quoin_store::StoreOptions;
use std::time::Duration;

/// Declares a struct of settings. Each field's doc comment is also its help text, so a setting is described
/// once; it states the unit, the default and, of a number, its range, and a test of the node's configuration
/// compares it with what is in force.
///
/// The struct gets serde's traits, with defaults for missing fields and an error for unknown ones, and an
/// associated constant `SETTINGS`: path and help text of each field. `$prefix` begins the paths.
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident in $prefix:literal {
            $( $(#[doc = $help:literal])+ pub $field:ident: $type:ty = $default:expr, )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $( $(#[doc = $help])+ pub $field: $type, )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )+ }
            }
        }

        impl $name {
            /// Path and help text of each setting. Lines of the help text begin with a space.
            pub const SETTINGS: &[(&str, &str)] =
                &[ $( (concat!($prefix, stringify!($field)), concat!($($help),+)), )+ ];
        }
    };
}

/// The settings of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The member's name.
    pub name: String,
    /// How other replicas reach it, `host:port`.
    pub peer_address: String,
    /// How clients reach it, as URLs.
    pub client_urls: Vec<String>,
    /// Timing and batching of the consensus.
    pub raft: RaftConfig,
    /// The log on disk.
    pub log: LogConfig,
    /// The store on disk.
    pub store: StoreConfig,
    /// The ledger.
    pub ledger: LedgerConfig,
    /// How much of the past is kept.
    pub history: HistoryConfig,
    /// Reading files again.
    pub scrub: ScrubConfig,
    /// Limits of requests.
    pub limits: Limits,
}

settings! {
    /// Timing and batching of the consensus.
    pub struct RaftConfig in "raft." {
        /// Milliseconds in a tick. Default 50, at least 1, at most 1000.
        pub tick_ms: u64 = 50,
        /// Ticks between a leader's heartbeats. Default 2, at least 1, at most 100.
        pub heartbeat_ticks: usize = 2,
        /// Ticks without a leader before an election; each replica draws between one and two of these.
        /// Default 8, at least 2, at most 1000, and more than raft.heartbeat_ticks.
        pub election_ticks: usize = 8,
        /// Milliseconds for which most voters must have answered the leader without a break before a voter is added or
        /// removed, unless it is one that does not answer. Default 5000, at least 0, at most 60000.
        pub member_health_ms: u64 = 5_000,
        /// Maximum commands in one log entry. Default 4096, at least 1, at most 1000000.
        pub batch_commands_max: usize = 4096,
        /// Bytes after which a log entry takes no more commands. Default 1 MiB, at least 1 KiB, at most 16
        /// MiB.
        pub batch_bytes_max: usize = 1 << 20,
        /// Maximum log entries of a leader that its own disk is writing at once. Default 2, at least 1, at
        /// most 64.
        pub batches_in_flight_max: usize = 2,
    }
}

settings! {
    /// The log on disk.
    pub struct LogConfig in "log." {
        /// Bytes of a segment file. Default 64 MiB, at least 1 MiB, at most 1 GiB.
        pub segment_bytes: u64 = 64 << 20,
        /// Bytes of the newest entries that are kept in memory for followers. Default 64 MiB, at least 0, at
        /// most 1 TiB.
        pub cache_bytes: usize = 64 << 20,
        /// Bytes of the log that are kept, in whole segments, for replicas that were away; one that needs an
        /// older entry gets a snapshot. What the store has not on disk is kept in any case. Default 256 MiB,
        /// at least 0, at most 1024 TiB.
        pub keep_bytes: u64 = 256 << 20,
        /// Maximum entries of the log that are kept for replicas; each takes 32 bytes of memory. Default 1000000,
        /// at least 0, at most 1000000000.
        pub keep_entries: u64 = 1_000_000,
        /// Bytes of the log that are kept while a replica is sent a snapshot and catches up from there, if that
        /// is more than log.keep_bytes. What is written meanwhile beyond this makes another snapshot necessary.
        /// Default 4 GiB, at least 0, at most 1024 TiB.
        pub snapshot_keep_bytes: u64 = 4096 << 20,
    }
}

settings! {
    /// The store on disk.
    pub struct StoreConfig in "store." {
        /// Bytes of file blocks that are kept in memory; recently read values take up to a quarter of this on
        /// top. Default 256 MiB, at least 0, at most 16 TiB.
        pub cache_bytes: u64 = 256 << 20,
        /// Bytes of writes that are gathered in memory before they go to disk; up to four times this are in
        /// memory at once. Default 64 MiB, at least 64 KiB, at most 4 GiB.
        pub memtable_bytes: u64 = 64 << 20,
        /// Bytes to which the store may grow before writes are refused with NOSPACE; 0 leaves that to the
        /// disk. Default 0, else at least 16 MiB, at most 1024 TiB.
        pub quota_bytes: u64 = 0,
        /// Bytes of free disk below which writes are refused with NOSPACE. Default 256 MiB, at least 0, at
        /// most 1024 TiB.
        pub reserve_bytes: u64 = 256 << 20,
    }
}

settings! {
    /// The ledger.
    pub struct LedgerConfig in "ledger." {
        /// Bytes of accounts that are kept in memory, 96 for each, and twice that for one with limits of its own or a
        /// balance beyond 64 bits: a transfer between others reads them from the store,
        /// which takes many times as long. After a start they are read in the background. Default 1 GiB, at least 0,
        /// which keeps 65536 accounts, at most 256 GiB.
        pub cache_bytes: u64 = 1 << 30,
        /// Serve the paths of the balance service rt-balance on listen_http too, /account:transfer and the like, for
        /// clients that were written for it. Default false.
        pub rt_balance: bool = false,
        /// The currency of accounts that are created over those paths without one. Default USD.
        pub rt_balance_currency: String = "USD".into(),
    }
}

settings! {
    /// How much of the past is kept. What exceeds either bound is compacted.
    pub struct HistoryConfig in "history." {
        /// Compact history without being asked. Default true.
        pub auto_compaction: bool = true,
        /// Seconds that a revision is kept. Default 600, at least 0, at most 1000000000.
        pub keep_s: u64 = 600,
        /// Revisions that are kept. Default 500000, at least 0, at most 1000000000000.
        pub keep_revisions: u64 = 500_000,
    }
}

settings! {
    /// Reading log, store and table files again in the background, to find damage before it matters.
    pub struct ScrubConfig in "scrub." {
        /// Bytes that are read again in a second; 0 reads nothing again. Default 4 MiB, at least 0, at most 16
        /// GiB.
        pub bytes_per_second: u64 = 4 << 20,
        /// Seconds from the beginning of a pass over all files to that of the next, at least; the first begins
        /// with the node. Default 86400, at least 1, at most 1000000000.
        pub every_s: u64 = 86_400,
    }
}

settings! {
    /// Limits of requests. The defaults are etcd's where etcd has one.
    pub struct Limits in "limits." {
        /// Maximum bytes of a key. Default 32 KiB, at least 1, at most 65520.
        pub key_bytes_max: usize = 32 << 10,
        /// Maximum bytes of a request. Default 1536 KiB, at least 1 KiB, at most 16 MiB.
        pub request_bytes_max: usize = 1_572_864,
        /// Maximum operations of a transaction. Default 128, at least 1, at most 1000000.
        pub txn_operations_max: usize = 128,
        /// Maximum bytes of one answer to a range read; a larger one is refused, and must be read in pages.
        /// Default 64 MiB, at least 1 KiB, at most 1 GiB.
        pub response_bytes_max: usize = 64 << 20,
        /// Maximum bytes of answers above 16 KiB to reads of etcd's API that are being read, or wait for their
        /// clients to take them; more are refused. Default 256 MiB, at least 1 KiB, at most 1 TiB.
        pub response_bytes_in_flight_max: usize = 256 << 20,
        /// Maximum commands under way on this node, and again as many that followers have forwarded to it; more
        /// are refused as too many requests. Default 100000, at least 1, at most 10000000.
        pub commands_in_flight_max: usize = 100_000,
        /// Maximum bytes of the requests and commands under way on this node, and again as many of forwarded
        /// ones; more are refused as too many requests. Default 256 MiB, at least 1 KiB, at most 1 TiB.
        pub command_bytes_in_flight_max: usize = 256 << 20,
        /// Maximum linearizable reads that wait on this node for a leader to confirm what is newest; more are
        /// refused as too many requests. Default 100000, at least 1, at most 10000000.
        pub reads_in_flight_max: usize = 100_000,
        /// Maximum streams that one connection may have open. Default 10000, at least 1, at most 1000000.
        pub streams_per_connection_max: u32 = 10_000,
        /// Seconds of quiet after which a watch of etcd's API that asked for progress is told the revision. Default 60,
        /// at least 1, at most 86400.
        pub watch_progress_s: u64 = 60,
    }
}

impl Settings {
    /// Bytes of the file that holds disk for emptying a full one: room for a segment of the log and a flush.
    pub(crate) fn reserve_file_bytes(&self) -> u64 {
        self.store.reserve_bytes.min(self.log.segment_bytes.saturating_add(self.store.memtable_bytes))
    }

    /// The options of the store. Merging leaves room for a segment of the log.
    pub(crate) fn store_options(&self) -> StoreOptions {
        let free_bytes_min = self.log.segment_bytes.min(self.store.reserve_bytes / 2);
        StoreOptions { free_bytes_min, ..self.store.options() }
    }
}

impl RaftConfig {
    /// How long a replica waits for its leader at least.
    pub(crate) fn election_timeout(&self) -> Duration {
        let ticks = u64::try_from(self.election_ticks).unwrap_or(u64::MAX);
        Duration::from_millis(self.tick_ms.saturating_mul(ticks))
    }

    /// The options of a replica. Its seed differs at every call.
    pub(crate) fn options(&self, limits: &Limits) -> Options {
        Options {
            election_ticks: self.election_ticks,
            heartbeat_ticks: self.heartbeat_ticks,
            batch_commands_max: self.batch_commands_max,
            batch_bytes_max: self.batch_bytes_max,
            batches_in_flight_max: self.batches_in_flight_max,
            forwarded_commands_max: limits.commands_in_flight_max,
            forwarded_bytes_max: limits.command_bytes_in_flight_max,
            seed: rand::random(),
            ..Options::default()
        }
    }
}

impl StoreConfig {
    /// The options of a store.
    pub fn options(&self) -> StoreOptions {
        StoreOptions {
            cache_bytes: self.cache_bytes,
            memtable_bytes: self.memtable_bytes,
            ..StoreOptions::default()
        }
    }
}
