//! A queue into a thread that takes all that is there at once: producers pay one lock, and wake the thread only
//! when it has nothing.

use parking_lot::{Condvar, Mutex};
use std::time::Instant;

/// Many producers, one consumer. What bounds it is said where it is made.
pub struct Queue<T> {
    items: Mutex<Items<T>>,
    filled: Condvar,
}

struct Items<T> {
    waiting: Vec<T>,
    consumer_sleeps: bool,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let items = Items { waiting: Vec::new(), consumer_sleeps: false, closed: false };
        Self { items: Mutex::new(items), filled: Condvar::new() }
    }
}

impl<T> Queue<T> {
    /// Adds an item. After [`Self::close`] it is dropped.
    pub fn push(&self, item: T) {
        let mut items = self.items.lock();
        if items.closed {
            return;
        }
        items.waiting.push(item);
        if std::mem::take(&mut items.consumer_sleeps) {
            drop(items);
            self.filled.notify_one();
        }
    }

    /// Adds several items.
    pub fn extend(&self, more: impl IntoIterator<Item = T>) {
        let mut items = self.items.lock();
        if items.closed {
            return;
        }
        items.waiting.extend(more);
        if !items.waiting.is_empty() && std::mem::take(&mut items.consumer_sleeps) {
            drop(items);
            self.filled.notify_one();
        }
    }

    /// Moves all that waits into `into` (which should be empty: its room is reused). Sleeps until there is
    /// something, or until `deadline`. False once the queue is closed and empty.
    pub fn take(&self, into: &mut Vec<T>, deadline: Option<Instant>) -> bool {
        let mut items = self.items.lock();
        while items.waiting.is_empty() && !items.closed {
            items.consumer_sleeps = true;
            match deadline {
                Some(deadline) => {
                    if self.filled.wait_until(&mut items, deadline).timed_out() {
                        items.consumer_sleeps = false;
                        break;
                    }
                }
                None => self.filled.wait(&mut items),
            }
        }
        if into.is_empty() {
            std::mem::swap(&mut items.waiting, into);
        } else {
            into.append(&mut items.waiting);
        }
        !(items.closed && into.is_empty())
    }

    /// Adds what has come since.
    pub fn take_more(&self, into: &mut Vec<T>) {
        into.append(&mut self.items.lock().waiting);
    }

    /// Whether no more items will come.
    pub fn is_closed(&self) -> bool {
        self.items.lock().closed
    }

    /// No more items; the consumer ends after those that wait.
    pub fn close(&self) {
        self.items.lock().closed = true;
        self.filled.notify_all();
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
    }
}
