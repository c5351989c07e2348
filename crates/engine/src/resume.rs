//! A replica made from its log and its store. The simulator shares this: it depends neither on threads nor on
//! files.

use super::apply::Applier;
use quoin_consensus::log::{JoinError, Log, LogError, join};
use quoin_consensus::replica::{Options, Replica, ReplicaError};
use quoin_consensus::{Configuration, GROUP};
use quoin_core::{Store, StoreError, machines};
use quoin_store::FolderError;
use std::sync::Arc;

/// Why a replica cannot be opened. Nothing was changed on disk unless the text says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The log cannot be opened.
    #[error("log: {0}")]
    Log(#[from] LogError),
    /// The log and the store do not belong together.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The log is not there any more.
    #[error(
        "the log of member {id:016x} is gone from disk {disk:016x}: what this member voted and acknowledged is \
        lost, so it must not go on. Put the log's folder back, or delete the data folder, remove this \
        member and add it anew"
    )]
    LogGone {
        /// The member.
        id: u64,
        /// Its disk.
        disk: u64,
    },
    /// The store cannot be opened.
    #[error("store: {0}")]
    StoreOpen(#[from] FolderError),
    /// The store is open and cannot be read or written.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// The consensus library refuses the options or the state it found.
    #[error("raft: {0}")]
    Raft(#[from] ReplicaError),
}

/// Makes a replica from a log and a store, which a crash may have left at different entries.
///
/// # Errors
/// They do not belong together, or one of them failed.
pub fn resume(
    id: u64,
    log: &Arc<Log>,
    store: &dyn Store,
    options: Options,
) -> Result<(Replica, Applier), OpenError> {
    let progress = machines::read_progress(store)?;
    join(log, GROUP, progress.index.0, progress.term.0)?;
    let configuration = configuration_of(store)?;
    let mut replica = Replica::new(id, GROUP, Arc::clone(log), &configuration, progress.index.0, options)?;
    replica.know_stamp(progress.stamp);
    Ok((replica, Applier::open(store)?))
}

/// The configuration that a store has recorded; the empty one in an empty store.
///
/// # Errors
/// The store cannot be read, or its record cannot be decoded.
pub fn configuration_of(store: &dyn Store) -> Result<Configuration, StoreError> {
    match machines::read_configuration(store)? {
        Some(record) => {
            Configuration::decode(&record).map_err(|error| StoreError::new("decode the configuration", error))
        }
        None => Ok(Configuration::default()),
    }
}
