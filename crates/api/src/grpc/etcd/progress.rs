//! Reports of progress about all watches of a stream, as `RequestProgress` asks for them.
//!
//! **Invariant: Order on the stream.** A report follows everything up to its revision and precedes everything
//! above it: the watches stop, deliver up to one revision, and go on once the report is in the stream's queue.
//!
//! As in etcd there is no report while a watch begins in the future (a client resumes a watch behind the
//! report's revision, so it would get events from before its beginning) or reads history (the other watches
//! would wait for it). The stream tries again.

use super::feed::Control;
use quoin_core::Revision;
use tokio::sync::{mpsc, oneshot};

/// A watch's part in a report. It delivers nothing but what `orders` asks for until their sender is dropped.
pub(super) struct Part {
    /// Told once the watch has stopped: whether it is live, see [`quoin_engine::watch::Watcher::is_live`].
    pub(super) stopped: oneshot::Sender<bool>,
    pub(super) orders: mpsc::Receiver<Deliver>,
}

/// Deliver everything up to a revision and nothing above it.
pub(super) struct Deliver {
    pub(super) to: Revision,
    pub(super) delivered: oneshot::Sender<()>,
}

/// Watches that have stopped. They go on when this is dropped.
pub(super) struct Stopped {
    orders: Vec<mpsc::Sender<Deliver>>,
    /// Whether all of them are live.
    pub(super) live: bool,
}

impl Stopped {
    /// Stops `watches`. One that has ended meanwhile holds nothing back.
    pub(super) async fn all(watches: impl Iterator<Item = &mpsc::Sender<Control>>) -> Self {
        let (mut orders, mut answers) = (Vec::new(), Vec::new());
        for watch in watches {
            let (stopped, answer) = oneshot::channel();
            let (sender, receiver) = mpsc::channel(1);
            if watch.send(Control::Report(Part { stopped, orders: receiver })).await.is_ok() {
                orders.push(sender);
                answers.push(answer);
            }
        }
        let mut live = true;
        for answer in answers {
            live &= answer.await.unwrap_or(true);
        }
        Self { orders, live }
    }

    /// Lets each watch deliver what it has up to `to`.
    pub(super) async fn deliver(&self, to: Revision) {
        let mut answers = Vec::with_capacity(self.orders.len());
        for watch in &self.orders {
            let (delivered, answer) = oneshot::channel();
            if watch.send(Deliver { to, delivered }).await.is_ok() {
                answers.push(answer);
            }
        }
        for answer in answers {
            // This fails if the watch has ended, and said so.
            let _ = answer.await;
        }
    }
}
