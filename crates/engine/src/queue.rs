//! A queue into a thread that takes everything at once. Producers pay one lock, and wake the thread only when
//! it sleeps.

use parking_lot::{Condvar, Mutex};
use std::time::Instant;

/// Many producers, one consumer. Its bound is documented where it is made.
pub(crate) struct Queue<T> {
    items: Mutex<Items<T>>,
    changed: Condvar,
}

struct Items<T> {
    waiting: Vec<T>,
    consumer_sleeps: bool,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let items = Items { waiting: Vec::new(), consumer_sleeps: false, closed: false };
        Self { items: Mutex::new(items), changed: Condvar::new() }
    }
}

impl<T> Queue<T> {
    /// Adds an item. After [`Self::close`] it is dropped.
    pub(crate) fn push(&self, item: T) {
        self.extend([item]);
    }

    /// Adds several items. After [`Self::close`] they are dropped.
    pub(crate) fn extend(&self, more: impl IntoIterator<Item = T>) {
        let mut items = self.items.lock();
        if items.closed {
            // Dropping an item may wake whoever waits for it, who must find the queue unlocked.
            return drop(items);
        }
        items.waiting.extend(more);
        if !items.waiting.is_empty() && std::mem::take(&mut items.consumer_sleeps) {
            drop(items);
            self.changed.notify_one();
        }
    }

    /// Moves all items into `into` (whose allocation is reused if it is empty). Waits until there is one, or
    /// until `deadline`. False once the queue is closed and empty.
    pub(crate) fn take(&self, into: &mut Vec<T>, deadline: Option<Instant>) -> bool {
        let mut items = self.items.lock();
        while items.waiting.is_empty() && !items.closed {
            items.consumer_sleeps = true;
            match deadline {
                Some(deadline) => {
                    if self.changed.wait_until(&mut items, deadline).timed_out() {
                        items.consumer_sleeps = false;
                        break;
                    }
                }
                None => self.changed.wait(&mut items),
            }
        }
        if into.is_empty() {
            std::mem::swap(&mut items.waiting, into);
        } else {
            into.append(&mut items.waiting);
        }
        !(items.closed && into.is_empty())
    }

    /// Adds to `into` what has come since the last [`Self::take`], without waiting.
    pub(crate) fn take_more(&self, into: &mut Vec<T>) {
        into.append(&mut self.items.lock().waiting);
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.lock().waiting.is_empty()
    }

    /// Whether nothing waits and more may come.
    pub(crate) fn is_idle(&self) -> bool {
        let items = self.items.lock();
        items.waiting.is_empty() && !items.closed
    }

    /// Waits until the queue is closed, or until `deadline`. True if it is closed. For the consumer.
    pub(crate) fn wait_closed(&self, deadline: Instant) -> bool {
        let mut items = self.items.lock();
        self.changed.wait_while_until(&mut items, |items| !items.closed, deadline);
        items.closed
    }

    /// Takes no more items. The consumer ends after those that wait.
    pub(crate) fn close(&self) {
        self.items.lock().closed = true;
        self.changed.notify_all();
    }

    /// The consumer has ended: drops what waits and what comes, so that nobody waits for an answer that never
    /// comes.
    pub(crate) fn end(&self) {
        let mut items = self.items.lock();
        items.closed = true;
        let dropped = std::mem::take(&mut items.waiting);
        drop(items);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn takes_everything_in_order_and_ends_when_closed() {
        let queue = Arc::new(Queue::default());
        let producer = Arc::clone(&queue);
        let thread = std::thread::spawn(move || {
            (0..1000).for_each(|number| producer.push(number));
            producer.close();
        });
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        while queue.take(&mut taken, None) {
            all.append(&mut taken);
        }
        thread.join().unwrap();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_deadline_ends_the_sleep() {
        let queue = Queue::<u8>::default();
        let mut taken = Vec::new();
        assert!(queue.take(&mut taken, Some(Instant::now() + Duration::from_millis(1))));
        assert!(taken.is_empty());
        assert!(!queue.wait_closed(Instant::now() + Duration::from_millis(1)));
    }

    #[test]
    fn closing_wakes_a_consumer_that_waits_for_it() {
        let queue = Arc::new(Queue::<u8>::default());
        let consumer = Arc::clone(&queue);
        let far = Instant::now() + Duration::from_secs(600);
        let thread = std::thread::spawn(move || consumer.wait_closed(far));
        queue.push(1);
        queue.close();
        assert!(thread.join().unwrap());
    }

    /// Items left behind by a consumer that ended held their waiters for as long as the queue lived.
    #[test]
    fn what_a_consumer_leaves_behind_is_dropped() {
        let queue = Queue::default();
        let item = Arc::new(());
        queue.push(Arc::clone(&item));
        queue.end();
        assert_eq!(Arc::strong_count(&item), 1);
        queue.push(Arc::clone(&item));
        assert_eq!(Arc::strong_count(&item), 1);
        assert!(!queue.take(&mut Vec::new(), None));
    }
}
