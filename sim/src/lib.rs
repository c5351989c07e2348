//! A cluster of three replicas in one thread: the real Raft loop, the real log format, the real machines, on a
//! simulated clock, network and disk. Everything that happens is drawn from one seed, so the same seed is the
//! same run, and a seed is a bug report.
//!
//! What is simulated: messages that are late, lost, doubled or cut off by partitions; processes that die between
//! any two steps, in the middle of a write too, and come back with what the disk had synced and a store as old
//! as its last flush; followers so far behind that they need a snapshot; clocks that differ.
//!
//! What is checked: no acknowledged write is lost; a linearizable read is never older than a write acknowledged
//! before it began; replicas that have applied the same entry have the same state; time and revisions never run
//! backwards.
//!
//! ```
//! let report = quoin_sim::run(quoin_sim::Settings { seed: 7, duration_ms: 1_000 })?;
//! assert!(report.counts.writes > 0);
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! `cluster.rs` is the world, `node.rs` one replica in it, `workload.rs` the clients and what they check.

mod cluster;
mod node;
mod workload;

pub use cluster::{Report, Settings, run};
