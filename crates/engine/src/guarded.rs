//! Threads that a replica cannot do without.

use super::shared::Shared;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

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
    let guard = PanicGuard(Arc::clone(shared));
    Builder::new().name(name.into()).spawn(move || {
        let _guard = guard;
        run();
    })
}

struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&"a broken invariant (see the panic message above)");
        }
    }
}
