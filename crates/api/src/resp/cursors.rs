//! SCAN's cursors: numbers that this node remembers, each with the key after which its scan goes on.
//!
//! **Invariant: Bounded.** At most [`CURSORS_MAX`] are remembered; the oldest is forgotten for a new one, and
//! its scan must begin again.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Maximum cursors that are remembered.
const CURSORS_MAX: usize = 10_000;

/// Where scans go on.
#[derive(Default)]
pub(super) struct Cursors(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    last: u64,
    after: BTreeMap<u64, Bytes>,
}

impl Cursors {
    /// A new cursor for a scan that goes on after `key`.
    pub(super) fn remember(&self, key: Bytes) -> u64 {
        let mut remembered = self.0.lock();
        remembered.last += 1;
        let cursor = remembered.last;
        remembered.after.insert(cursor, key);
        if remembered.after.len() > CURSORS_MAX {
            remembered.after.pop_first();
        }
        cursor
    }

    /// The key after which the scan of `cursor` goes on.
    pub(super) fn find(&self, cursor: u64) -> Option<Bytes> {
        self.0.lock().after.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_cursor_is_forgotten_for_a_new_one() {
        let cursors = Cursors::default();
        let first = cursors.remember(Bytes::from_static(b"a"));
        let second = cursors.remember(Bytes::from_static(b"b"));
        let more = (2..CURSORS_MAX).map(|_| cursors.remember(Bytes::new()));
        assert_eq!(more.last(), Some(CURSORS_MAX as u64));
        assert_eq!(cursors.find(first), Some(Bytes::from_static(b"a")));
        cursors.remember(Bytes::new());
        assert_eq!(cursors.find(first), None);
        assert_eq!(cursors.find(second), Some(Bytes::from_static(b"b")));
    }
}
