//! The three threads of a replica.
//!
//! ```text
//!   clients, peers ──► inbox ──► raft ──► appends ──► log ──► (written) ──► inbox
//!                                 │  └──► peers                └──► peers (what may only be said once written)
//!                                 └─────► work ─────► apply ──► answers, watchers, (applied) ──► inbox
//! ```
//!
//! Each takes everything that waits for it at once, so a slow step makes the next batch larger, not the queue
//! longer.
//!
//! **Invariant: Bounded.** The commands in flight (see the crate's head) and the peers' flow control bound
//! the inbox and the appends. The raft thread waits while more than [`work::BYTES_MAX`] wait to be applied.
//!
//! However a thread ends, it drops what waits for it, so that nobody waits for an answer from a thread that
//! is gone. One that panics ends the replica, with the reason.

mod answering;
mod apply;
mod expiry;
mod lag;
mod log;
mod raft;
mod send;
pub mod stepped;
mod work;

use super::apply::Applier;
use super::guarded;
use super::queue::Queue;
use super::shared::Shared;
use apply::ApplyThread;
use log::LogThread;
pub use log::Written;
use quoin_consensus::replica::Replica;
use raft::RaftThread;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use work::WorkQueue;

/// The running threads.
pub(crate) struct Threads {
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Waits until all have ended, which [`Input::Stop`](super::input::Input::Stop) asks them to.
    pub(crate) fn join(self) {
        for handle in self.handles {
            // A panic ended the replica when it happened: it was caught then.
            let _ = handle.join();
        }
    }
}

/// Starts the threads of one replica.
///
/// # Errors
/// A thread cannot be started.
pub(crate) fn spawn(shared: &Arc<Shared>, replica: Replica, applier: Applier) -> io::Result<Threads> {
    let appends = Arc::new(Queue::default());
    let work = Arc::new(WorkQueue::default());
    let raft = RaftThread::new(Arc::clone(shared), replica, Arc::clone(&appends), Arc::clone(&work));
    let log = LogThread::new(Arc::clone(shared), appends);
    let apply = ApplyThread { shared: Arc::clone(shared), applier, work };
    let handles = vec![
        guarded::spawn(shared, "raft", || raft.run())?,
        guarded::spawn(shared, "log", || log.run())?,
        guarded::spawn(shared, "apply", || apply.run())?,
    ];
    Ok(Threads { handles })
}
