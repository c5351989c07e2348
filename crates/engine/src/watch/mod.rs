//! Who is told of changes. The apply thread publishes; watchers come and take.
//!
//! A watcher is a position in the order of revisions. While that position is in the ring of recent events the
//! watcher reads there, else from the store's history, in bounded pieces, until it has caught up. There is no
//! queue per watcher: a slow one costs nobody anything, and one that never reads costs its own few bytes.
//!
//! Reading order: `hub.rs` (where both sides meet), `watcher.rs` (how a watcher takes), `ring.rs` and
//! `history.rs` (what it reads), `mark.rs`, `interest.rs` and `registry.rs` (whom an event concerns).

mod history;
mod hub;
mod interest;
mod mark;
mod piece;
mod registry;
mod ring;
#[cfg(test)]
mod tests;
mod watcher;

pub use history::Source;
pub use hub::{Hub, Options};
pub use interest::Interest;
pub use piece::{BATCH_BYTES_MAX, BATCH_EVENTS_MAX};
pub use watcher::{WatchEnd, Watcher};
