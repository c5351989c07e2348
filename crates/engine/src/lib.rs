//! One replica of a cluster: [`Engine::propose`] changes its state, [`Engine::read`] reads it.
//!
//! Reading order, along a write: `propose.rs` (bounds), `admission.rs` (rights), `threads/` (one thread steps Raft, one writes the
//! log, one applies entries), `apply.rs` (what the last one does), `watch/` (who is told). Reads: `read.rs`,
//! `alone.rs`. A replica's life: `founding.rs`, `resume.rs`, `start.rs`, `peers.rs` (what other replicas ask
//! of it), `join.rs` (how a new node learns who it is). Then `membership.rs`, `leadership.rs`, `snapshots.rs`
//! (how a follower that is far behind catches up), `files.rs` (files that replicas give each other), `purge.rs` (how much log is kept for followers), `upkeep.rs`, `scrub.rs`, `clock.rs`, `status.rs` and `metrics.rs`.
//!
//! What this crate deliberately does not know: what a command means, which faces exist, or how a request came
//! over the wire.
//!
//! **Invariant: Bounded.** The commands under way on a node are bounded in count and bytes
//! (`limits.*_in_flight_max`). Beyond these bounds commands are refused as [`ProposeError::Busy`], before any
//! of their effects.

pub mod admission;
mod alone;
pub mod apply;
mod clock;
mod compare;
mod engine;
mod files;
mod founders;
mod founding;
mod guarded;
mod input;
pub mod join;
mod leadership;
mod membership;
pub mod messages;
mod metrics;
mod newcomers;
mod owner;
mod peers;
mod propose;
mod purge;
mod queue;
mod read;
mod reserve;
mod resume;
mod scrub;
mod settings;
mod shared;
mod snapshots;
mod start;
mod status;
mod surroundings;
mod threads;
mod upkeep;
pub mod watch;

pub use engine::Engine;
pub use files::Lent;
pub use founding::Founding;
pub use membership::{MemberChange, MemberError};
pub use metrics::Metrics;
pub use owner::{Owner, Settle};
pub use propose::ProposeError;
pub use read::{Consistency, ReadError, ReadView};
pub use resume::{OpenError, configuration_of, resume};
pub use scrub::Damage;
pub use settings::{
    HistoryConfig, LedgerConfig, Limits, LogConfig, RaftConfig, ScrubConfig, Settings, StoreConfig,
};
pub use start::{Opened, Running};
pub use status::{RaftStatus, Status};
pub use surroundings::{Request, Surroundings};
pub use threads::{Written, stepped};
