//! `quoin kv`: keys from the shell. `keys.rs` reads and writes, `watch.rs` follows changes, `lock.rs` runs a
//! command under a lock; `client.rs` is how they ask.

mod client;
mod keys;
mod lock;
mod watch;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// Commands on keys.
#[derive(Subcommand)]
pub(crate) enum Kv {
    /// Read a key, or all keys with a prefix
    Get(keys::Get),
    /// Write a key
    Put(keys::Put),
    /// Delete a key, or all keys with a prefix
    Del(keys::Del),
    /// Write a key only if it still has the given value
    Cas(keys::Cas),
    /// Compare, then write: all writes at one revision
    Txn(keys::Txn),
    /// Show changes of a key, or of all keys with a prefix, until Ctrl-C
    Watch(watch::Watch),
    /// Hold a lock while a command runs, which gets the fencing token as QUOIN_FENCING_TOKEN
    Lock(lock::Lock),
}

/// Runs a command on keys.
pub(crate) async fn run(kv: Kv) -> Result<ExitCode> {
    match kv {
        Kv::Get(get) => keys::get(get).await,
        Kv::Put(put) => keys::put(put).await,
        Kv::Del(del) => keys::del(del).await,
        Kv::Cas(cas) => keys::cas(cas).await,
        Kv::Txn(txn) => keys::txn(txn).await,
        Kv::Watch(watch) => watch::watch(watch).await,
        Kv::Lock(lock) => lock::lock(lock).await,
    }
}
