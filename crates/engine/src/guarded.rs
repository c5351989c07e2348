//! Threads that a replica cannot do without.

use super::shared::Shared;
use quoin_consensus::guarded;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Runs `run` on a thread of its own.
///
/// **Invariant: Three kinds of no.** If it panics, the replica ends: what is left of it must not go on
/// answering.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn spawn(
    shared: &Arc<Shared>,
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    guarded::spawn(name, move |reason| shared.fail(&reason), run)
}
