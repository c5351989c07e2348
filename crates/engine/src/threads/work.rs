//! What waits to be applied.

use crate::input::ReceivedSnapshot;
use crate::queue::Queue;
use parking_lot::{Condvar, Mutex};
use quoin_consensus::replica::{Barrier, Committed, Content, Expectation};
use std::sync::mpsc::SyncSender;

/// Maximum bytes of entries that wait to be applied. The last one may exceed it.
pub(super) const BYTES_MAX: usize = 256 << 20;

/// Work for the apply thread.
pub(super) enum Work {
    /// Clients wait for commands of an entry.
    Expect(Expectation),
    /// A committed entry.
    Commit(Committed),
    /// Reads wait for an entry.
    Wait(Barrier),
    /// A snapshot replaces the store. Told when it has.
    Install(Box<ReceivedSnapshot>, SyncSender<()>),
    /// The replica's clock has ticked this often.
    Tick(u64),
}

/// The queue into the apply thread.
///
/// **Invariant: Bounded.** The raft thread waits while more than [`BYTES_MAX`] bytes of entries are queued.
#[derive(Default)]
pub(super) struct WorkQueue {
    queue: Queue<Work>,
    backlog: Mutex<Backlog>,
    shrunk: Condvar,
}

#[derive(Default)]
struct Backlog {
    bytes: usize,
    /// The apply thread has ended: the backlog does not shrink any more.
    ended: bool,
}

impl WorkQueue {
    /// Queues anything but an entry.
    pub(super) fn extend(&self, work: impl IntoIterator<Item = Work>) {
        self.queue.extend(work);
    }

    /// Queues an entry. Waits while too many bytes are queued.
    pub(super) fn commit(&self, committed: Committed) {
        let mut backlog = self.backlog.lock();
        self.shrunk.wait_while(&mut backlog, |backlog| backlog.bytes > BYTES_MAX && !backlog.ended);
        backlog.bytes += content_bytes(&committed);
        drop(backlog);
        self.queue.push(Work::Commit(committed));
    }

    /// Moves everything that is queued into `into`, waiting until there is something. False once the queue is
    /// closed and empty.
    pub(super) fn take(&self, into: &mut Vec<Work>) -> bool {
        self.queue.take(into, None)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether nothing waits and more may come.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    /// As [`Self::take`], without waiting.
    pub(super) fn take_now(&self, into: &mut Vec<Work>) {
        self.queue.take_more(into);
    }

    /// An entry that was taken is about to be applied.
    pub(super) fn taken(&self, committed: &Committed) {
        let mut backlog = self.backlog.lock();
        let was_full = backlog.bytes > BYTES_MAX;
        backlog.bytes -= content_bytes(committed);
        if was_full && backlog.bytes <= BYTES_MAX {
            self.shrunk.notify_one();
        }
    }

    /// No more work comes. The apply thread ends after what is queued.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// The apply thread has ended: drops what is queued, and lets the raft thread go on.
    pub(super) fn end(&self) {
        self.queue.end();
        self.backlog.lock().ended = true;
        self.shrunk.notify_all();
    }
}

fn content_bytes(committed: &Committed) -> usize {
    match &committed.content {
        Content::Batch(payload) => payload.len(),
        Content::Configuration { configuration, .. } => configuration.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use tokio::sync::oneshot::error::TryRecvError;

    fn entry(index: u64, bytes: usize) -> Committed {
        Committed { index, term: 1, content: Content::Batch(Bytes::from(vec![0; bytes])) }
    }

    /// A thread that commits more than the bound. It can end only when the bound is kept or lifted.
    fn committing(work: &Arc<WorkQueue>) -> std::thread::JoinHandle<()> {
        let work = Arc::clone(work);
        std::thread::spawn(move || (1..=3).for_each(|index| work.commit(entry(index, BYTES_MAX / 2 + 1))))
    }

    /// A replica that read accounts into memory while it had no work did so after it was told to end, too.
    #[test]
    fn a_closed_queue_is_not_idle() {
        let work = WorkQueue::default();
        assert!(work.is_idle());
        work.extend([Work::Tick(1)]);
        assert!(!work.is_idle());
        work.take_now(&mut Vec::new());
        assert!(work.is_idle());
        work.close();
        assert!(!work.is_idle());
    }

    #[test]
    fn a_full_queue_holds_the_producer_until_an_entry_is_taken() {
        let work = Arc::new(WorkQueue::default());
        let producer = committing(&work);
        let mut items = Vec::new();
        let mut taken = 0;
        while taken < 3 {
            assert!(work.take(&mut items));
            for item in items.drain(..) {
                let Work::Commit(committed) = item else { panic!("only entries were queued") };
                // Two entries exceed the bound by two bytes; the third waits until one is taken.
                assert!(work.backlog.lock().bytes <= 2 * (BYTES_MAX / 2 + 1));
                work.taken(&committed);
                taken += 1;
            }
        }
        producer.join().unwrap();
        assert_eq!(work.backlog.lock().bytes, 0);
    }

    #[test]
    fn a_producer_is_not_left_waiting_when_the_apply_thread_ends() {
        let work = Arc::new(WorkQueue::default());
        let producer = committing(&work);
        work.end();
        let end = Instant::now() + Duration::from_secs(60);
        while !producer.is_finished() {
            assert!(Instant::now() < end, "it waits for a thread that has ended");
            std::thread::yield_now();
        }
        producer.join().unwrap();
    }

    /// The raft thread waited for ever for the installation of a snapshot when the apply thread had failed
    /// before it.
    #[test]
    fn whoever_waits_for_work_that_will_not_be_done_is_told() {
        let work = WorkQueue::default();
        let wait = || {
            let (waiter, answer) = tokio::sync::oneshot::channel();
            work.extend([Work::Wait(Barrier { index: 1, waiters: vec![waiter] })]);
            answer
        };
        let mut early = wait();
        work.end();
        assert_eq!(early.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(wait().try_recv(), Err(TryRecvError::Closed));
    }
}
