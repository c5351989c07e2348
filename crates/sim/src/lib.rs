//! A cluster in one thread, simulated from a seed: the same seed is the same run, and a seed is a bug report.
//!
//! The code of a replica is the engine's own, from its start to its threads' steps, and so are the log, the store,
//! the frames on the wire and the snapshots: see [`quoin_engine::stepped`]. Simulated are the order in which steps are
//! taken, time, the network, and the disk of the log. What the simulation does not have: the transport's sockets, the
//! adapters that clients talk to, a store that a crash cuts off in the middle of a write.
//!
//! Reading order: `world.rs` (what can happen), `run.rs` (a run from storm to calm), `node.rs` and `life.rs` (a machine,
//! its process), `threads.rs` (when steps are taken), `network.rs`, `frames.rs` and `streams.rs`, `faults.rs` and `inject.rs`,
//! `operator.rs` (members are replaced), `clients.rs`, `kv.rs`, `txns.rs`, `hashes.rs`, `ledger.rs`, `accounts.rs`, `routes.rs`, `tables.rs` and `watches.rs` (the work), `record.rs`, `linear.rs`, `books.rs`,
//! `checks.rs` and `calm.rs` (what must be true), `schedule.rs` and `tasks.rs`.
//!
//! ```
//! let report = quoin_sim::run(quoin_sim::Settings { seed: 7, duration_ms: 2_000 })?;
//! assert!(report.last_index > 0);
//! # Ok::<(), quoin_sim::Failure>(())
//! ```

mod accounts;
mod books;
mod calm;
mod checks;
mod clients;
mod faults;
mod frames;
mod hashes;
mod inject;
mod kv;
mod ledger;
mod life;
mod linear;
mod network;
mod node;
mod operator;
mod record;
mod routes;
mod run;
mod schedule;
mod streams;
mod tables;
mod tasks;
mod threads;
mod txns;
mod watches;
mod world;

pub use run::{Counts, Failure, Report, Settings, run, shortest};
