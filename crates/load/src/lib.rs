//! The load generator behind `quoin bench`.
//!
//! It is a client and nothing else: it knows the wire (`quoin-proto`) and the lookup table's files
//! (`quoin-table`), and no crate of a node. So it measures Quoin, etcd and Redis with the same code.
//!
//! `options.rs` has the options of all benches, `runner.rs` makes the load and keeps the time, `machine.rs`
//! reads CPU times, `report.rs` prints the figures. Each bench has a folder. [`client`], [`cluster`] and
//! [`output`] also serve the demo and the other commands of `quoin`.
//!
//! Errors are printed and never matched, so they are [`anyhow::Error`].
//!
//! ```no_run
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! struct Arguments {
//!     #[command(subcommand)]
//!     bench: quoin_load::Bench,
//! }
//!
//! # async fn measure() -> anyhow::Result<()> {
//! let arguments = Arguments::parse_from(["bench", "kv", "put", "--clients", "256", "--seconds", "5"]);
//! quoin_load::run(arguments.bench, "/usr/bin/quoin".as_ref()).await
//! # }
//! ```

pub mod client;
pub mod cluster;
mod deletion;
mod kv;
mod leases;
mod ledger;
mod machine;
mod options;
pub mod output;
mod random;
mod report;
mod resp;
mod route;
mod runner;
pub mod sample_table;
mod table;

pub use options::seconds;

use anyhow::Result;
use clap::Subcommand;
use std::path::Path;

/// What to measure.
#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// Keys, over etcd's API or quoin.kv.v1; also measures etcd
    Kv(kv::KvBench),
    /// Keys, over Redis's protocol; also measures Redis
    Resp(resp::RespBench),
    /// Rules by network and address, over quoin.route.v1, or as keys over etcd's API
    Route(route::RouteBench),
    /// Lookup tables, one key or a batch per request; also measures Redis
    Table(table::TableBench),
    /// What lookups notice of a table that is switched back and forth
    TableSwitch(table::SwitchBench),
    /// Leader changes while very many leases are held and expire, on a cluster of its own
    Leases(leases::LeasesBench),
    /// What others notice while very many keys are deleted, on a cluster of its own
    Deletion(deletion::DeletionBench),
    /// Accounts and transfers, over quoin.ledger.v1 or HTTP/JSON
    Ledger(ledger::LedgerBench),
}

/// Measures and prints the figures on standard output.
///
/// `program` is the `quoin` binary: [`Bench::Leases`] and [`Bench::Deletion`] start their clusters with it.
///
/// # Errors
/// The options contradict each other, the servers cannot be reached or do not do what is asked, or standard
/// output is closed. Errors of single requests are counted, not returned.
pub async fn run(bench: Bench, program: &Path) -> Result<()> {
    match bench {
        Bench::Kv(options) => kv::run(options).await,
        Bench::Resp(options) => resp::run(options).await,
        Bench::Route(options) => route::run(options).await,
        Bench::Table(options) => table::run(options).await,
        Bench::TableSwitch(options) => table::switch(options).await,
        Bench::Leases(options) => leases::run(options, program).await,
        Bench::Deletion(options) => deletion::run(options, program).await,
        Bench::Ledger(options) => ledger::run(options).await,
    }
}
