//! Requests under way: futures of the engine's own calls, each polled when it is woken, in the order of their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

type Work<T> = Pin<Box<dyn Future<Output = T>>>;

/// Futures that resolve to `T`, each with what is known of it.
pub(crate) struct Tasks<K, T> {
    next: u64,
    running: BTreeMap<u64, (K, Work<T>)>,
    woken: Woken,
}

/// The numbers of those that were woken.
#[derive(Clone, Default)]
pub(crate) struct Woken(Arc<Mutex<BTreeSet<u64>>>);

struct Bell {
    number: u64,
    woken: Woken,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.woken.ring(self.number);
    }
}

impl Woken {
    fn ring(&self, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    }

    /// Takes the first one.
    pub(crate) fn take(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_first()
    }

    /// Wakes `number`.
    pub(crate) fn waker(&self, number: u64) -> Waker {
        Arc::new(Bell { number, woken: self.clone() }).into()
    }
}

impl<K, T> Default for Tasks<K, T> {
    fn default() -> Self {
        Self { next: 0, running: BTreeMap::new(), woken: Woken::default() }
    }
}

impl<K, T> Tasks<K, T> {
    /// Adds a future, to be polled next. Returns its number.
    pub(crate) fn add(&mut self, known: K, work: impl Future<Output = T> + 'static) -> u64 {
        self.next += 1;
        self.running.insert(self.next, (known, Box::pin(work)));
        self.woken.ring(self.next);
        self.next
    }

    /// Polls what was woken until one is done.
    pub(crate) fn next_done(&mut self) -> Option<(K, T)> {
        while let Some(number) = self.woken.take() {
            let Some((_, work)) = self.running.get_mut(&number) else { continue };
            let waker = self.woken.waker(number);
            if let Poll::Ready(outcome) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
                let (known, _) = self.running.remove(&number)?;
                return Some((known, outcome));
            }
        }
        None
    }

    /// Drops a future; what was known of it, if it was still under way.
    pub(crate) fn give_up(&mut self, number: u64) -> Option<K> {
        Some(self.running.remove(&number)?.0)
    }

    /// Drops those that `is_meant` names; what was known of them.
    pub(crate) fn give_up_where(&mut self, is_meant: impl Fn(&K) -> bool) -> Vec<K> {
        self.running.extract_if(.., |_, (known, _)| is_meant(known)).map(|(_, (known, _))| known).collect()
    }

    /// What is known of those under way.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = &K> {
        self.running.values().map(|(known, _)| known)
    }
}
