//! A key's own deadline, and its entry in the expiry index.
//!
//! A key has one entry. A write that moves the deadline back leaves it where it is, so that renewing a time to
//! live writes nothing to the index: when the entry comes due, too early, a new one takes its place at the
//! deadline of then. A write that moves the deadline forward, or ends it, removes the entry.

use super::record::Expiring;
use crate::expiry::ExpiryIndex;
use crate::mutants;
use crate::tx::Tx;
use crate::types::Stamp;

/// When a key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline {
    pub(super) at: Stamp,
    /// The time to live that led to it.
    pub(super) ttl_ms: u64,
    /// Where the last write put or left the entry: at the deadline or before it. Once this has come, the entry
    /// is at the deadline, or still here if the batches have too much to expire.
    pub(super) entry: Stamp,
}

impl Deadline {
    /// Whether the time has come.
    pub(super) fn is_over(self, stamp: Stamp) -> bool {
        self.at <= stamp
    }

    /// The deadline that a write gives to a key which had `before`; it has its entry.
    pub(super) fn schedule(
        index: &mut ExpiryIndex,
        tx: &mut Tx<'_>,
        key: &[u8],
        before: Option<Self>,
        wanted: Option<(Stamp, u64)>,
    ) -> Option<Self> {
        if let (Some(Self { entry, .. }), Some((at, ttl_ms))) = (before, wanted)
            && tx.stamp() < entry
            && entry <= at
            && !mutants::is("expiry-left")
        {
            return Some(Self { at, ttl_ms, entry });
        }
        if let Some(before) = before.filter(|_| !mutants::is("expiry-left")) {
            before.cancel(index, tx, key);
        }
        let (at, ttl_ms) = wanted?;
        index.add(tx, at, &Expiring::encode_key(key));
        Some(Self { at, ttl_ms, entry: at })
    }

    /// Removes the entry of a key that does not expire any more.
    pub(super) fn cancel(self, index: &ExpiryIndex, tx: &mut Tx<'_>, key: &[u8]) {
        let subject = Expiring::encode_key(key);
        index.remove(tx, self.entry, &subject);
        if self.entry <= tx.stamp() && self.entry < self.at {
            index.remove(tx, self.at, &subject);
        }
    }
}
