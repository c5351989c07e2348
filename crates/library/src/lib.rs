//! Lookup tables on a replica: fetching, checking and mapping the files of their versions, and looking keys
//! up in them.
//!
//! Reading order: `shelf.rs` (mapped versions, and lookups), `keeper.rs` (the thread that follows the log,
//! and tells it what is ready), `attempts.rs` (fetching in the background, and again after failures),
//! `fetch.rs` (files into the data folder), `source.rs` (where files come from), `readers.rs` (folders, which may hang),
//! `allowed.rs` (from where they may),
//! `lending.rs` (from another replica, if not from there), `scrub.rs` (files read again), `inspect.rs` (a stopped
//! node's files).
//!
//! What is deliberately absent: waiting. A lookup in a version that is not mapped here yet, as after a
//! restart, is an error.

mod allowed;
mod attempts;
mod fetch;
mod inspect;
mod keeper;
mod lending;
mod metrics;
mod readers;
mod scrub;
mod settings;
mod shelf;
mod source;

pub use allowed::ANYWHERE;
pub use inspect::{LayerReport, inspect};
pub use keeper::Keeper;
pub use settings::{Secret, TableConfig};
pub use shelf::{Found, Library, LookupError, active};
pub use source::{Source, SourceError};
