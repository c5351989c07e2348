//! The store's two threads: how they start, end and fail.

use crate::damage::EngineFault;
use crate::shared::Shared;
use crate::signals::Fault;
use crate::{compactor, flusher};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

type Body = fn(&Shared) -> Result<(), EngineFault>;

/// The running threads; dropping it ends them.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let mut threads = Self { shared: shared.clone(), handles: Vec::new() };
        if shared.options.stepped {
            return Ok(threads);
        }
        threads.spawn("store-flush", flusher::run)?;
        threads.spawn("store-compact", compactor::run)?;
        Ok(threads)
    }

    fn spawn(&mut self, name: &'static str, body: Body) -> io::Result<()> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(name.into());
        self.handles.push(thread.spawn(move || guard(&shared, name, body))?);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.signals.stop();
        self.shared.reclaim.close();
        for handle in self.handles.drain(..) {
            // A thread that panicked has recorded its fault already.
            let _ = handle.join();
        }
    }
}

/// One turn of each thread, where there are none. A fault becomes the store's.
pub(crate) fn take_turns(shared: &Shared) {
    let turns: [(&str, Body); 2] = [("store-flush", flusher::turn), ("store-compact", compactor::turn)];
    for (thread, turn) in turns {
        if let Err(source) = turn(shared) {
            shared.signals.fail(Fault::Engine { thread, source });
        }
    }
}

/// Runs a thread's body. An error or panic in it becomes the store's fault.
fn guard(shared: &Shared, thread: &'static str, body: Body) {
    yield_to_others();
    let fault = match catch_unwind(AssertUnwindSafe(|| body(shared))) {
        Ok(Ok(())) => return,
        Ok(Err(source)) => Fault::Engine { thread, source },
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Fault::Panic { thread, message: text.unwrap_or("unknown cause").to_owned() }
        }
    };
    shared.signals.fail(fault);
    shared.reclaim.close();
}

/// Lowers the calling thread's priority: background work gives way to threads that somebody waits for, and
/// back-pressure keeps it from falling behind.
#[cfg(target_os = "linux")]
fn yield_to_others() {
    // On Linux this means the calling thread only. If it is refused, nothing changes.
    let _ = rustix::process::setpriority_process(None, 10);
}

#[cfg(not(target_os = "linux"))]
fn yield_to_others() {}
