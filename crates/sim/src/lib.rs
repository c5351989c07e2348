//! A cluster of three replicas in one thread: the real replica loop, the real log format, the real machines,
//! on a simulated clock, network and disk. Every random choice is drawn from one seed, so the same seed is
//! the same run, and a seed is a bug report.
//!
//! Simulated faults: messages that are delayed, lost, duplicated or cut off by partitions; crashes between
//! any two steps and in the middle of a write, after which the replica restarts with what its disk had synced
//! and a store as old as its last flush; followers so far behind that they need a snapshot; clocks that
//! differ.
//!
//! Checks: no acknowledged write is lost; a linearizable read is never older than a write acknowledged before
//! it began; replicas that have applied the same entry have the same state; time and revisions never run
//! backwards.
//!
//! ```
//! let report = quoin_sim::run(quoin_sim::Settings { seed: 7, duration_ms: 1_000 })?;
//! assert!(report.counts.writes > 0);
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! `cluster.rs` is the world, `node.rs` one replica in it, `workload.rs` the clients and their checks.

mod cluster;
mod node;
mod workload;

pub use cluster::{Report, Settings, run};
