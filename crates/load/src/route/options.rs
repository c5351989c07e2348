//! Options of `quoin bench route`.

use crate::options::Load;
use clap::{Args, ValueEnum};

/// A run over rules.
#[derive(Args, Clone, Debug)]
pub struct RouteBench {
    /// Cases to measure, in this order
    #[arg(value_enum, required = true)]
    pub(super) cases: Vec<Case>,
    /// Protocol to speak
    #[arg(long, value_enum, default_value_t = Api::Route)]
    pub(super) api: Api,
    /// Number of rules in the table
    #[arg(long, default_value_t = 100_000)]
    pub(super) rules: u64,
    /// Rules, or lookups, per request
    #[arg(long, default_value_t = 1)]
    pub(super) batch: u64,
    /// Watchers that receive each update (case update)
    #[arg(long, default_value_t = 1)]
    pub(super) watchers: usize,
    /// Do not write the rules first: they exist from an earlier run
    #[arg(long)]
    pub(super) no_fill: bool,
    #[command(flatten)]
    pub(super) load: Load,
}

/// A protocol that rules can be kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Api {
    /// quoin.route.v1
    Route,
    /// Keys and values over etcd's API; also measures etcd
    Etcd,
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Case {
    /// Look up a rule, linearizable
    Get,
    /// Look up a rule in the replica's own state
    GetLocal,
    /// Look up rules on streams of 1000 requests, one stream per client, linearizable
    GetStream,
    /// The same from the replica's own state
    GetStreamLocal,
    /// Write rules
    Put,
    /// Start a watcher and wait until it has all rules; one watcher after another
    NewWatcher,
    /// Write at --rate; each latency is from the scheduled write to its arrival at one of --watchers
    Update,
}
