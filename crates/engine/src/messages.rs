//! Messages on their way from the apply thread to whoever hands them out.
//!
//! At most once: nothing is kept while nobody listens, and what cannot be taken in time is lost, of which the taker is
//! told.
//!
//! **Invariant: Bounded.** At most [`WAITING_BYTES_MAX`] wait.

use parking_lot::Mutex;
use quoin_core::Message;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Maximum bytes of messages that wait.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// What a message costs besides its bytes.
const OVERHEAD_BYTES: usize = 64;

/// See the module. There is one taker.
#[derive(Debug, Default)]
pub struct Messages {
    wanted: AtomicBool,
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

/// Messages that wait to be taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// In the order in which they were published.
    pub messages: Vec<Message>,
    /// Later ones were lost.
    pub lost: bool,
    bytes: usize,
}

impl Messages {
    /// Whether anybody listens: otherwise messages go nowhere.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::SeqCst);
    }

    /// Waits for messages, and takes all.
    pub async fn next(&self) -> Waiting {
        loop {
            let waiting = std::mem::take(&mut *self.waiting.lock());
            if waiting != Waiting::default() {
                return waiting;
            }
            // One that arrives meanwhile leaves a permit.
            self.arrived.notified().await;
        }
    }

    /// Called by the apply thread once what the same commands wrote can be read.
    pub(crate) fn publish(&self, messages: Vec<Message>) {
        if !self.wanted.load(Ordering::SeqCst) {
            return;
        }
        let mut waiting = self.waiting.lock();
        for message in messages {
            let bytes = message.channel.len() + message.payload.len() + OVERHEAD_BYTES;
            if waiting.lost || waiting.bytes + bytes > WAITING_BYTES_MAX {
                waiting.lost = true;
                break;
            }
            waiting.bytes += bytes;
            waiting.messages.push(message);
        }
        drop(waiting);
        self.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn message(payload: Bytes) -> Vec<Message> {
        vec![Message { channel: "c".into(), payload }]
    }

    #[tokio::test]
    async fn what_is_not_taken_in_time_is_lost_and_that_is_said() {
        let messages = Messages::default();
        messages.publish(message("nobody listens".into()));
        messages.want(true);
        let large = Bytes::from(vec![0; WAITING_BYTES_MAX / 2]);
        for payload in [large.clone(), large, "after a loss".into()] {
            messages.publish(message(payload));
        }
        let Waiting { messages: taken, lost, .. } = messages.next().await;
        assert_eq!((taken.len(), lost), (1, true));
        messages.publish(message("later".into()));
        let Waiting { messages: taken, lost, .. } = messages.next().await;
        assert_eq!((taken, lost), (message("later".into()), false));
    }
}
