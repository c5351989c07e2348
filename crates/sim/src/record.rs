//! What the cluster has done, as its replicas applied it: each entry must be the same wherever it is applied, and
//! what clients are told must be what is here.

use crate::routes;
use crate::txns::Held;
use bytes::Bytes;
use quoin_core::kv::change_to_key_value;
use quoin_core::{Event, Index, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The record of one run, shared by those who watch the replicas.
#[derive(Clone, Default)]
pub(crate) struct Record(Arc<Mutex<Entries>>);

#[derive(Default)]
pub(crate) struct Entries {
    /// By index: a hash over the replies and events.
    hashes: BTreeMap<u64, u64>,
    /// By index, if replicas looked just then: a hash over the state after it.
    states: BTreeMap<u64, u64>,
    /// By revision, if replicas looked just then: a hash over the keys.
    hashes_of_keys: BTreeMap<u64, u64>,
    /// By store key: the revisions of its changes, each with a hash over what watchers see, `None` for a deletion.
    changes: BTreeMap<Bytes, BTreeMap<u64, Option<u64>>>,
    /// By key, of rules the one in the store: the revisions of its changes, each with the number of the value, `None`
    /// for a deletion.
    keys: BTreeMap<Vec<u8>, BTreeMap<u64, Option<u64>>>,
    /// By value: the revision that wrote it.
    written: BTreeMap<u64, u64>,
    /// Values that clients were told are not written.
    never: BTreeSet<u64>,
    newest: u64,
    /// What was found wrong.
    violation: Option<String>,
    fingerprint: u64,
}

/// The number in a value that a client of the simulation writes.
pub(crate) fn number(value: &[u8]) -> Option<u64> {
    let digits = value.strip_prefix(b"v")?.split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A hash that is the same in every run.
pub(crate) fn hash(hash: u64, bytes: &[u8]) -> u64 {
    let mut hash = hash ^ bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    hash
}

impl Record {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// A replica has applied an entry.
    pub(crate) fn applied(&mut self, replica: u64, index: Index, replies: &[Reply], events: &[Event]) {
        let seen = hash(index.0, format!("{replies:?}{events:?}").as_bytes());
        match self.hashes.get(&index.0) {
            Some(known) if *known == seen => {}
            Some(_) => self.violate(format!(
                "replica {replica} answers entry {index} otherwise than another one did: {replies:?} {events:?}"
            )),
            None => {
                self.hashes.insert(index.0, seen);
                self.note(seen);
                events.iter().for_each(|event| self.take(event));
            }
        }
    }

    fn take(&mut self, event: &Event) {
        let revision = event.revision.0;
        if revision <= self.newest {
            self.violate(format!("revision {revision} comes after {}", self.newest));
        }
        self.newest = revision;
        for change in &event.changes {
            let shown = change.value.as_ref().map(|value| hash(0, value));
            self.changes.entry(change.key.clone()).or_default().insert(revision, shown);
            let (key, value) = if let Some(value) = routes::written(change) {
                (change.key.to_vec(), value)
            } else if let Ok(Some(kv)) = change_to_key_value(change, event.revision) {
                (kv.key.to_vec(), change.value.as_ref().and_then(|_| number(&kv.value)))
            } else {
                continue;
            };
            self.keys.entry(key).or_default().insert(revision, value);
            let Some(value) = value else { continue };
            if let Some(before) = self.written.insert(value, revision) {
                self.violate(format!("value {value} was written twice: at revision {before} and {revision}"));
            }
            self.check_never(value);
        }
    }

    fn check_never(&mut self, value: u64) {
        if self.never.contains(&value)
            && let Some(revision) = self.written.get(&value)
        {
            self.violate(format!(
                "value {value} was written at revision {revision}, and its client was told: not done"
            ));
        }
    }

    /// A client was told that its write was not done.
    pub(crate) fn not_done(&mut self, value: u64) {
        self.never.insert(value);
        self.check_never(value);
    }

    /// A client was told that its write was done, at `revision`.
    pub(crate) fn done(&mut self, key: &[u8], value: Option<u64>, revision: u64) {
        let found = self.keys.get(key).and_then(|key| key.get(&revision));
        if found != Some(&value) {
            self.violate(format!(
                "a client was told that {value:?} is in {:?} at revision {revision}, where there is {found:?}",
                String::from_utf8_lossy(key)
            ));
        }
    }

    /// What `key` holds at `revision`, and the revision that wrote it.
    pub(crate) fn value_at(&self, key: &[u8], revision: u64) -> Option<(u64, u64)> {
        let (at, value) = self.keys.get(key)?.range(..=revision).next_back()?;
        value.map(|value| (value, *at))
    }

    /// As [`Self::value_at`], for all keys with a prefix that hold anything.
    pub(crate) fn values_at(&self, revision: u64, prefix: &[u8]) -> BTreeMap<Vec<u8>, (u64, u64)> {
        let keys = self.keys.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix));
        keys.filter_map(|(key, _)| Some((key.clone(), self.value_at(key, revision)?))).collect()
    }

    /// What `key` holds at `revision`, with the numbers that clients see.
    pub(crate) fn held_at(&self, key: &[u8], revision: u64) -> Option<Held> {
        let mut held: Option<Held> = None;
        for (at, value) in self.keys.get(key)?.range(..=revision) {
            held = value.map(|value| Held {
                value,
                created: held.map_or(*at, |held| held.created),
                modified: *at,
                version: held.map_or(0, |held| held.version) + 1,
            });
        }
        held
    }

    /// How many of the keys that are meant were deleted at `revision`.
    pub(crate) fn deleted_at(&self, revision: u64, is_meant: impl Fn(&[u8]) -> bool) -> u64 {
        let deleted = self.keys.iter().filter(|(key, at)| at.get(&revision) == Some(&None) && is_meant(key));
        deleted.count() as u64
    }

    /// The changes after `revision` of store keys that are watched, in order.
    pub(crate) fn changes_after(
        &self,
        revision: u64,
        is_watched: impl Fn(&[u8]) -> bool,
    ) -> Vec<(u64, Bytes, Option<u64>)> {
        let mut changes = Vec::new();
        for (key, revisions) in self.changes.iter().filter(|(key, _)| is_watched(key)) {
            changes.extend(revisions.range(revision + 1..).map(|(at, value)| (*at, key.clone(), *value)));
        }
        changes.sort();
        changes
    }

    /// A replica's state after an entry.
    pub(crate) fn state(&mut self, replica: u64, index: u64, state: u64) {
        let known = *self.states.entry(index).or_insert(state);
        if known != state {
            self.violate(format!(
                "replica {replica} has another state after entry {index} than another one had"
            ));
        }
        self.note(state);
    }

    /// A hash over all keys at a revision, as a replica shows it.
    pub(crate) fn hash_of_keys(&mut self, replica: u64, revision: u64, hash: u64) {
        let known = *self.hashes_of_keys.entry(revision).or_insert(hash);
        if known != hash {
            self.violate(format!(
                "replica {replica} has another hash of revision {revision} than was seen before"
            ));
        }
    }

    /// The newest revision.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// The newest entry that any replica has applied.
    pub(crate) fn last_index(&self) -> u64 {
        self.hashes.keys().next_back().copied().unwrap_or(0)
    }

    fn note(&mut self, number: u64) {
        self.fingerprint = (self.fingerprint ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    /// A hash over all that happened: the same seed gives the same one.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(crate) fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// What was found wrong, if anything was.
    pub(crate) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }
}
