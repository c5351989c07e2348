//! Keys that another system versioned, etcd, are written into an empty store with the revisions that they had there.
//!
//! First what was true at the oldest revision that the system could still read, then every change since, in the order of
//! revisions, and leases. The result is the state of a cluster that had made these changes itself, as far as the other
//! system knew: without stamps, since it kept no times.
//!
//! **Invariant: Determinism.** The same calls give the same bytes: every founder of a cluster makes them from the same file.

use super::machine::LEASE_TTL_S_MAX;
use super::record::{self, Expiring, KEY_BYTES_MAX, Lease, Record};
use crate::entry::Entry;
use crate::expiry::ExpiryIndex;
use crate::limits::REQUEST_BYTES_MAX;
use crate::machines::{FOUNDING_INDEX, FOUNDING_TERM};
use crate::store::{Order, Store, StoreError};
use crate::tx::Tx;
use crate::types::{Index, Progress, Revision, Stamp};
use bytes::Bytes;

/// An entry ends once it has written as much, so that the store can write out what it has.
const ENTRY_BYTES: usize = 1 << 20;
/// Maximum revisions that were passed over in all for which an event without changes stands. Beyond, history begins anew.
const PASSED_MAX: u64 = 1_000_000;
/// The highest revision: what is raised by a restore, and counted up from there, stays below 2^63.
const REVISION_MAX: u64 = 1 << 62;

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignChange {
    /// The key; not empty.
    pub key: Bytes,
    /// What was written; `None` if it was deleted.
    pub written: Option<ForeignValue>,
}

/// What a key has, besides the revision at which it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignValue {
    /// The value.
    pub value: Bytes,
    /// As in etcd.
    pub create_revision: i64,
    /// As in etcd.
    pub version: i64,
    /// The lease; 0 for none.
    pub lease: i64,
}

/// What cannot be taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignRefusal {
    /// A key is empty or too long.
    #[error("the key {key} has {bytes} bytes; a key has at least one and at most {max}", max = KEY_BYTES_MAX)]
    Key {
        /// How it begins.
        key: String,
        /// Its length.
        bytes: usize,
    },
    /// A value is too long.
    #[error("the value of {key} has {bytes} bytes; at most {max} can be kept", max = REQUEST_BYTES_MAX)]
    Value {
        /// How the key begins.
        key: String,
        /// The value's length.
        bytes: usize,
    },
    /// Revisions and version of a key contradict each other.
    #[error("the key {key} has create revision {create}, version {version} at revision {revision}")]
    Numbers {
        /// How the key begins.
        key: String,
        /// Its create revision.
        create: i64,
        /// Its version.
        version: i64,
        /// Where it was written.
        revision: u64,
    },
    /// A revision is not after the one before it, or out of bounds.
    #[error("revision {revision} follows {before}")]
    Revision {
        /// The revision.
        revision: u64,
        /// The one before it.
        before: u64,
    },
    /// A lease has no id, or a time to live that is too long.
    #[error("the lease {id:x} has a time to live of {ttl_s} s; at most {max} can be kept", max = LEASE_TTL_S_MAX)]
    Lease {
        /// Its id.
        id: i64,
        /// Its time to live.
        ttl_s: i64,
    },
}

/// Either it was done, or it cannot be, or the store failed.
pub type Filled = Result<Result<(), ForeignRefusal>, StoreError>;

/// A store being filled.
pub struct Filling<'a> {
    store: &'a dyn Store,
    entry: Entry<'a>,
    /// Told the index of each entry that has ended.
    ended: &'a dyn Fn(Index) -> Result<(), StoreError>,
    bytes: usize,
    passed: u64,
}

impl<'a> Filling<'a> {
    /// Begins with an empty `store`. `ended` is called between entries.
    pub fn begin(store: &'a dyn Store, ended: &'a dyn Fn(Index) -> Result<(), StoreError>) -> Self {
        let (index, term) = (FOUNDING_INDEX, FOUNDING_TERM);
        let progress = Progress { index, term, revision: Revision(1), ..Progress::default() };
        Self { store, entry: Entry::begin(store, progress), ended, bytes: 0, passed: 0 }
    }

    /// The newest revision so far.
    pub fn revision(&self) -> Revision {
        self.entry.progress().revision
    }

    /// A key as it was at the oldest revision; a later call for the same key replaces it. `revision` is when it was
    /// written.
    ///
    /// # Errors
    /// The store failed.
    pub fn base(&mut self, revision: u64, change: &ForeignChange) -> Filled {
        let (key, record) = match record_of(revision, change) {
            Ok(record) => record,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.bytes += key.len() + record.as_ref().map_or(0, Bytes::len);
        self.entry.run(|tx| {
            match record {
                Some(record) => tx.put(&key, record),
                None => tx.delete(&key),
            }
            Ok(())
        })?;
        self.turn().map(Ok)
    }

    /// Everything at or below `revision` was a [`Self::base`]: it is the oldest that can be read.
    ///
    /// # Errors
    /// The store failed.
    pub fn begin_history(&mut self, revision: u64) -> Filled {
        let before = self.revision().0;
        if revision > REVISION_MAX {
            return Ok(Err(ForeignRefusal::Revision { revision, before }));
        }
        if revision > before {
            self.entry.raise_revision(revision - before);
        }
        Ok(Ok(()))
    }

    /// All changes of `revision`, which is above all before it; no key twice. Revisions in between had changes of
    /// others. If they are very many, what can be read begins behind them.
    ///
    /// # Errors
    /// The store failed.
    pub fn change(&mut self, revision: u64, changes: &[ForeignChange]) -> Filled {
        let before = self.revision().0;
        if revision <= before || revision > REVISION_MAX {
            return Ok(Err(ForeignRefusal::Revision { revision, before }));
        }
        let records: Result<Vec<_>, _> = changes.iter().map(|change| record_of(revision, change)).collect();
        let records = match records {
            Ok(records) => records,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let between = revision - before - 1;
        if between > PASSED_MAX - self.passed {
            self.entry.raise_revision(between);
        } else {
            self.passed += between;
            (0..between).for_each(|_| self.entry.pass_revision());
        }
        if records.is_empty() {
            self.entry.pass_revision();
            return self.turn().map(Ok);
        }
        let bytes =
            |(key, record): &(Bytes, Option<Bytes>)| key.len() + record.as_ref().map_or(0, Bytes::len);
        self.bytes += records.iter().map(bytes).sum::<usize>();
        self.entry.run(|tx| {
            records.into_iter().for_each(|(key, record)| tx.change(key, record));
            Ok(())
        })?;
        self.turn().map(Ok)
    }

    /// A lease. Its whole time begins anew when the cluster first has a leader.
    ///
    /// # Errors
    /// The store failed.
    pub fn lease(&mut self, id: i64, ttl_s: i64) -> Filled {
        if id == 0 || ttl_s > LEASE_TTL_S_MAX {
            return Ok(Err(ForeignRefusal::Lease { id, ttl_s }));
        }
        let ttl_s = ttl_s.max(1).unsigned_abs();
        let deadline = Stamp(ttl_s * 1000);
        let lease = Lease { ttl_s, deadline, entry: deadline, ending: false };
        let mut index = ExpiryIndex::open(self.entry.view(), record::EXPIRIES)?;
        self.entry.run(|tx| {
            tx.put(&record::lease_key(id), lease.encode());
            index.add(tx, deadline, &Expiring::Lease(id).encode());
            Ok(())
        })?;
        self.bytes += 64;
        self.turn().map(Ok)
    }

    /// Attaches the keys to their leases, and ends. A lease that does not exist is left on its key, as in etcd.
    ///
    /// # Errors
    /// The store failed.
    pub fn finish(mut self) -> Result<Progress, StoreError> {
        let view = self.entry.view();
        for pair in view.scan(&record::KEYS, &record::KEYS_END, Order::Ascending) {
            let (store_key, stored) = pair?;
            let lease = Record::decode(stored)?.lease;
            if lease == 0 || view.get(&record::lease_key(lease))?.is_none() {
                continue;
            }
            let attachment = record::attachment_key(lease, record::key_of(&store_key));
            self.bytes += attachment.len();
            self.entry.run(|tx: &mut Tx<'_>| {
                tx.put(&attachment, Bytes::new());
                Ok(())
            })?;
            self.turn()?;
        }
        let progress = self.entry.finish().progress;
        (self.ended)(progress.index)?;
        Ok(progress)
    }

    /// Ends the entry and begins the next if it has written enough.
    fn turn(&mut self) -> Result<(), StoreError> {
        if self.bytes < ENTRY_BYTES {
            return Ok(());
        }
        self.bytes = 0;
        let next = Entry::begin(self.store, Progress::default());
        let progress = std::mem::replace(&mut self.entry, next).finish().progress;
        (self.ended)(progress.index)?;
        self.entry = Entry::begin(self.store, Progress { index: progress.index.next(), ..progress });
        Ok(())
    }
}

/// The store key of a change, and the record there.
fn record_of(revision: u64, change: &ForeignChange) -> Result<(Bytes, Option<Bytes>), ForeignRefusal> {
    let ForeignChange { key, written } = change;
    let shown = || key[..key.len().min(40)].escape_ascii().to_string();
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(ForeignRefusal::Key { key: shown(), bytes: key.len() });
    }
    let store_key = Bytes::from(record::store_key(key));
    let Some(ForeignValue { value, create_revision: create, version, lease }) = written else {
        return Ok((store_key, None));
    };
    if value.len() > REQUEST_BYTES_MAX {
        return Err(ForeignRefusal::Value { key: shown(), bytes: value.len() });
    }
    let created = u64::try_from(*create).ok().filter(|create| (1..=revision).contains(create));
    let counted = u64::try_from(*version).ok().filter(|version| *version > 0);
    let (Some(create_revision), Some(version)) = (created, counted) else {
        let (create, version) = (*create, *version);
        return Err(ForeignRefusal::Numbers { key: shown(), create, version, revision });
    };
    let record = Record {
        create_revision,
        mod_revision: revision,
        version,
        lease: *lease,
        value: value.clone(),
        ..Record::default()
    };
    Ok((store_key, Some(record.encode())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history;
    use crate::kv::{self, Range, Refusal};
    use crate::machines;
    use crate::store::{MemoryStore, View};

    fn written(key: &'static str, value: String, create_revision: i64, version: i64) -> ForeignChange {
        let written = ForeignValue { value: value.into(), create_revision, version, lease: 7 };
        ForeignChange { key: key.into(), written: Some(written) }
    }

    fn deleted(key: &'static str) -> ForeignChange {
        ForeignChange { key: key.into(), written: None }
    }

    fn read(
        store: &MemoryStore,
        progress: &Progress,
        key: &str,
        revision: i64,
    ) -> Result<Vec<(i64, i64, i64)>, Refusal> {
        let request = Range { key: Bytes::copy_from_slice(key.as_bytes()), revision, ..Range::default() };
        let reply = kv::range(View::new(store, progress.sequence), progress, &request).unwrap()?;
        Ok(reply.kvs.iter().map(|kv| (kv.create_revision, kv.mod_revision, kv.version)).collect())
    }

    #[test]
    fn revisions_history_and_leases_are_those_of_the_other_system() {
        let store = MemoryStore::new();
        let ended = |_| Ok(());
        let mut filling = Filling::begin(&store, &ended);
        filling.lease(7, 60).unwrap().unwrap();
        filling.lease(8, 60).unwrap().unwrap();
        filling.base(5, &written("a", "a5".into(), 3, 2)).unwrap().unwrap();
        filling.base(6, &written("gone", "g".into(), 6, 1)).unwrap().unwrap();
        filling.base(9, &deleted("gone")).unwrap().unwrap();
        filling.begin_history(10).unwrap().unwrap();
        // Entries end in between, and 12 and 13 were no changes of keys.
        filling.change(11, &[written("a", "x".repeat(ENTRY_BYTES), 3, 3)]).unwrap().unwrap();
        filling.change(14, &[deleted("a"), written("b", "b".into(), 14, 1)]).unwrap().unwrap();
        filling.change(15, &[]).unwrap().unwrap();
        let progress = filling.finish().unwrap();
        assert_eq!(
            (progress.revision, progress.compacted, progress.index),
            (Revision(15), Revision(10), Index(2))
        );
        assert_eq!(machines::read_progress(&store).unwrap(), progress);
        for (key, revision, found) in [
            ("a", 10, vec![(3, 5, 2)]),
            ("a", 13, vec![(3, 11, 3)]),
            ("a", 0, vec![]),
            ("b", 13, vec![]),
            ("b", 0, vec![(14, 14, 1)]),
            ("gone", 10, vec![]),
        ] {
            assert_eq!(read(&store, &progress, key, revision), Ok(found), "{key} at {revision}");
        }
        assert!(read(&store, &progress, "a", 9).is_err());
        let view = View::new(&store, progress.sequence);
        let (lease, keys) = kv::lease(view, &progress, 7, true).unwrap().unwrap();
        assert_eq!((lease.granted_ttl_s, keys), (60, vec![Bytes::from("b")]));
        assert_eq!(kv::lease(view, &progress, 8, true).unwrap().unwrap().1, Vec::<Bytes>::new());
        let events: Vec<_> = history::events(view, Revision(11), Revision(15), |_| true)
            .map(|event| event.unwrap().changes.len())
            .collect();
        assert_eq!(events, [1, 0, 0, 2, 0]);
    }

    /// Everything that had come from etcd was older than any bound, and was compacted in the first second.
    #[test]
    fn history_without_stamps_is_as_old_as_the_first_that_has_one() {
        let store = MemoryStore::new();
        let ended = |_| Ok(());
        let mut filling = Filling::begin(&store, &ended);
        for revision in 2..10 {
            filling.change(revision, &[written("k", "v".into(), 2, revision as i64 - 1)]).unwrap().unwrap();
        }
        filling.finish().unwrap();
        let mut machines = crate::Machines::open(&store).unwrap();
        let before = |machines: &crate::Machines, stamp| {
            let progress = machines.progress();
            history::revision_before(View::new(&store, progress.sequence), &progress, Stamp(stamp)).unwrap()
        };
        assert_eq!(before(&machines, 5000), Revision(0));
        let put = kv::Operation::Put(kv::Put { key: "k".into(), ..kv::Put::default() }).into_command();
        let batch = crate::Batch::encode(Stamp(1000), &[put]);
        machines.apply(&store, machines.progress().index.next(), FOUNDING_TERM, batch).unwrap();
        assert_eq!(before(&machines, 999), Revision(0));
        assert_eq!(before(&machines, 1000), Revision(10));
    }

    #[test]
    fn a_leap_over_more_revisions_than_can_be_recorded_begins_history_anew() {
        let store = MemoryStore::new();
        let ended = |_| Ok(());
        let mut filling = Filling::begin(&store, &ended);
        filling.change(2, &[written("k", "old".into(), 2, 1)]).unwrap().unwrap();
        filling.change(1 << 40, &[written("k", "new".into(), 2, 2)]).unwrap().unwrap();
        let progress = filling.finish().unwrap();
        assert_eq!((progress.revision, progress.compacted), (Revision(1 << 40), Revision((1 << 40) - 1)));
        assert_eq!(read(&store, &progress, "k", (1 << 40) - 1), Ok(vec![(2, 2, 1)]));
        assert_eq!(read(&store, &progress, "k", 0), Ok(vec![(2, 1 << 40, 2)]));
    }

    #[test]
    fn what_cannot_be_kept_is_refused_by_name() {
        let store = MemoryStore::new();
        let ended = |_| Ok(());
        let mut filling = Filling::begin(&store, &ended);
        let long = Bytes::from(vec![b'k'; KEY_BYTES_MAX + 1]);
        let refused = [
            filling.change(2, &[ForeignChange { key: Bytes::new(), written: None }]),
            filling.change(2, &[ForeignChange { key: long, written: None }]),
            filling.change(2, &[written("k", "v".into(), 3, 1)]),
            filling.change(2, &[written("k", "v".into(), 2, 0)]),
            filling.change(2, &[written("k", "v".repeat(REQUEST_BYTES_MAX + 1), 2, 1)]),
            filling.change(1, &[]),
            filling.change(u64::MAX, &[]),
            filling.begin_history(u64::MAX),
            filling.lease(0, 60),
            filling.lease(7, i64::MAX),
        ];
        assert!(refused.into_iter().all(|refused| refused.unwrap().is_err()));
    }
}
