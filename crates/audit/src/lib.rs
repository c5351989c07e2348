//! The audit trail of a node: who did what, from where, and what came of it.
//!
//! `record.rs` is what a record says and how it is written, `files.rs` the files in the trail's folder, `trail.rs` the way from
//! a request to them, `verify.rs` reads them again.
//!
//! **Invariant: Chained.** Each record holds the hash of the one before, over all files of a folder: whoever changes,
//! takes out or puts in a record has to write all that follow anew, and their hashes are others then.
//!
//! Deliberately absent: what is worth a record, which is the adapters' to say; and secrets and values, which nobody
//! hands in. There is no key: who can write the folder can write a whole other trail, and is found out only by whoever
//! has noted a hash of the former one.

mod files;
mod record;
mod refused;
mod trail;
mod verify;

pub use record::{About, Entry, Outcome, Record, Who, hash as fingerprint};
pub use refused::network;
pub use trail::{Counters, Full, OpenError, Place, Settings, Trail, WhenFull, Writer};
pub use verify::{Break, Known, Report, files_in, records, verify};
