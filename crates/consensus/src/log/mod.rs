//! The log on disk, which makes acknowledged writes durable. Segments of append-only blocks, one block and
//! one sync per append, shared by all groups of a node.
//!
//! Reading order: `record.rs` (what is stored), `segmented.rs` (the log), `format.rs` and `block.rs` (its
//! bytes), `newest.rs` (the number of the newest segment), `index.rs` and `cache.rs` (what is in memory),
//! `recovery.rs` (what a start makes of the segments), `scrub.rs` (reading them again), `join.rs` (log and store), `disk.rs` and
//! `sim_disk.rs` (files, real and simulated), `inspect.rs` (a stopped node's log, not changed).
//!
//! **Invariant: Blocks.** An append begins only after the one before it was synced. So after a crash only
//! the last block can be torn. A damaged block with the header of another behind it was damaged later,
//! and the log refuses to open. A seal is such a header without a block, for a log in which nothing
//! follows for a while.
//!
//! **Invariant: Synced since the start.** After a crash of the process, or a sync that failed, the last
//! block may be readable and not be on the disk. Recovery writes it again and syncs it before anybody is
//! told of it.
//!
//! What it does not do: know what is in an entry, or decide when to purge.

mod block;
mod cache;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod crashes;
mod disk;
mod error;
mod format;
mod index;
mod inspect;
mod join;
mod newest;
mod options;
mod record;
mod recovery;
mod scrub;
mod segmented;
mod sim_disk;
#[cfg(test)]
mod tests;

pub use disk::{Disk, DiskFile, RealDisk};
pub use error::LogError;
pub use inspect::{Inspection, LookOnly, SegmentReport, inspect};
pub use join::{Fit, JoinError, fit, join};
pub use options::Options;
pub use record::{Base, Entry, EntryKind, HardState, Record};
pub use recovery::Torn;
pub use scrub::{Pace, Scrubbed};
pub use segmented::Log;
pub use sim_disk::SimDisk;
