//! Keys as a command sees them: what is there, and what it has written itself. What comes of it goes into the log as one
//! transaction that holds only if everything that was read is still so.
//!
//! **Invariant (optimistic).** A command reads at one view and writes nothing until it is done; its writes are done if
//! and only if no key that it read has changed since. Otherwise it is run again at a newer view. So every command, and every
//! MULTI ... EXEC, is atomic, however many keys it reads and writes.

use crate::api::{clock, error};
use crate::engine::ReadView;
use bytes::Bytes;
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{
    self, Compare, CompareResult, CompareTarget, KeyValue, Operation, Put, Ttl, Txn, TxnOperation,
};
use std::collections::BTreeMap;
use tonic::Status;

/// A key that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: Bytes,
    /// Milliseconds since the Unix epoch.
    pub(super) expires_at: Option<u64>,
}

/// What becomes of a key's time to live when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// It has none.
    Never,
    /// It keeps the one that it has.
    Keep,
    /// Milliseconds since the Unix epoch.
    At(u64),
    /// Milliseconds from when it is written.
    In(u64),
}

#[derive(Clone, Debug)]
enum Write {
    Put {
        value: Bytes,
        expiry: Expiry,
    },
    /// Only the time to live.
    Expire(Expiry),
    Delete,
}

/// What the commands of a round see: a state, and the time by which keys are alive in it.
#[derive(Clone)]
pub(super) struct Sight {
    pub(super) view: ReadView,
    now: u64,
    answer_bytes_max: usize,
}

impl Sight {
    /// Answers may have `answer_bytes_max` bytes of values, or be a single value.
    pub(super) fn of(view: ReadView, answer_bytes_max: usize) -> Self {
        let now = clock::now(view.progress()).0;
        Self { view, now, answer_bytes_max }
    }
}

/// The keys of one command.
pub(super) struct Keys<'a> {
    sight: Option<&'a Sight>,
    now: u64,
    /// It only reads, so what it has read need not be remembered.
    only_reads: bool,
    /// Bytes of values in the answers so far.
    answered: usize,
    read: BTreeMap<Bytes, Option<KeyValue>>,
    written: BTreeMap<Bytes, Write>,
    /// Keys that must be as they were when they were watched: key and revision, 0 for absent.
    watched: Vec<(Bytes, i64)>,
}

/// Why a command could not be run.
pub(super) enum Failed {
    /// It reads, so it needs a view.
    NeedsView,
    /// It is answered with an error.
    Status(Status),
}

impl<'a> Keys<'a> {
    /// The keys as `sight` shows them; without one, for a command that only writes.
    pub(super) fn at(sight: Option<&'a Sight>) -> Self {
        let now = sight.map_or(0, |sight| sight.now);
        let (read, written) = (BTreeMap::new(), BTreeMap::new());
        Self { sight, now, only_reads: false, answered: 0, read, written, watched: Vec::new() }
    }

    /// As [`Self::at`], for a command that only reads.
    pub(super) fn only_read(sight: &'a Sight) -> Self {
        Self { only_reads: true, ..Self::at(Some(sight)) }
    }

    /// Milliseconds since the Unix epoch.
    pub(super) fn now(&self) -> Result<u64, Failed> {
        if self.sight.is_some() { Ok(self.now) } else { Err(Failed::NeedsView) }
    }

    /// Everything that is done depends on `key` having this mod revision still; 0 for absent.
    pub(super) fn watch(&mut self, key: Bytes, mod_revision: i64) {
        self.watched.push((key, mod_revision));
    }

    /// Counts a value that goes into the answer.
    ///
    /// # Errors
    /// With it the answer is larger than answers may be.
    pub(super) fn answers(&mut self, bytes: usize) -> Result<(), Failed> {
        let max = self.sight.map_or(usize::MAX, |sight| sight.answer_bytes_max);
        if self.answered > 0 && self.answered + bytes > max {
            return Err(Failed::Status(error::response_too_large(max)));
        }
        self.answered += bytes;
        Ok(())
    }

    /// The key's state, this command's own writes included.
    pub(super) fn get(&mut self, key: &Bytes) -> Result<Option<Entry>, Failed> {
        match self.written.get(key).cloned() {
            None => self.alive(key),
            Some(Write::Delete) => Ok(None),
            Some(Write::Expire(expiry)) => {
                let entry = self.alive(key)?;
                Ok(entry
                    .map(|entry| Entry { expires_at: self.expires_at(expiry, entry.expires_at), ..entry }))
            }
            Some(Write::Put { value, expiry }) => {
                let before = if expiry == Expiry::Keep {
                    self.alive(key)?.and_then(|entry| entry.expires_at)
                } else {
                    None
                };
                Ok(Some(Entry { value, expires_at: self.expires_at(expiry, before) }))
            }
        }
    }

    /// What the state has of it, unless its time is over.
    fn alive(&mut self, key: &Bytes) -> Result<Option<Entry>, Failed> {
        let stored = self.stored(key)?;
        let alive = stored.filter(|kv| kv.expires.is_none_or(|at| at.0 > self.now));
        Ok(alive.map(|kv| Entry { value: kv.value, expires_at: kv.expires.map(|at| at.0) }))
    }

    fn expires_at(&self, expiry: Expiry, before: Option<u64>) -> Option<u64> {
        match expiry {
            Expiry::Never => None,
            Expiry::Keep => before,
            Expiry::At(at) => Some(at),
            Expiry::In(ms) => Some(self.now.saturating_add(ms)),
        }
    }

    fn stored(&mut self, key: &Bytes) -> Result<Option<KeyValue>, Failed> {
        let Sight { view, .. } = self.sight.ok_or(Failed::NeedsView)?;
        if self.only_reads {
            return get(view, key);
        }
        if let Some(read) = self.read.get(key) {
            return Ok(read.clone());
        }
        let found = get(view, key)?;
        self.read.insert(key.clone(), found.clone());
        Ok(found)
    }

    pub(super) fn put(&mut self, key: Bytes, value: Bytes, expiry: Expiry) {
        self.written.insert(key, Write::Put { value, expiry });
    }

    /// Gives a key that is there another time to live.
    pub(super) fn expire(&mut self, key: Bytes, expiry: Expiry) {
        match self.written.get_mut(&key) {
            Some(Write::Put { expiry: before, .. } | Write::Expire(before)) => *before = expiry,
            _ => {
                self.written.insert(key, Write::Expire(expiry));
            }
        }
    }

    pub(super) fn delete(&mut self, key: Bytes) {
        self.written.insert(key, Write::Delete);
    }

    /// What has to be done; `None` where nothing is written and nothing watched.
    pub(super) fn into_operation(self) -> Option<Operation> {
        if self.written.is_empty() && self.watched.is_empty() {
            return None;
        }
        let mut steps: Vec<Step> = self.written.into_iter().map(|(key, write)| step(key, write)).collect();
        if self.read.is_empty() && self.watched.is_empty() && steps.len() == 1 {
            match steps.pop() {
                Some(Step::Put(put)) => return Some(Operation::Put(put)),
                Some(other) => steps.push(other),
                None => {}
            }
        }
        let unchanged =
            self.read.into_iter().map(|(key, found)| (key, found.map_or(0, |kv| kv.mod_revision)));
        let compare = unchanged.chain(self.watched).map(|(key, revision)| Compare {
            result: CompareResult::Equal.into(),
            key,
            target: Some(CompareTarget::ModRevision(revision)),
            ..Compare::default()
        });
        let success = steps.into_iter().map(|step| TxnOperation { step: Some(step) }).collect();
        Some(Operation::Txn(Txn { compare: compare.collect(), success, failure: Vec::new() }))
    }
}

/// There is no empty key.
fn get(view: &ReadView, key: &Bytes) -> Result<Option<KeyValue>, Failed> {
    if key.is_empty() {
        return Ok(None);
    }
    kv::get(view.view(), key).map_err(|error| Failed::Status(error::store(error)))
}

fn step(key: Bytes, write: Write) -> Step {
    let ttl = |expiry| match expiry {
        Expiry::Never => None,
        Expiry::Keep => Some(Ttl::Keep(true)),
        Expiry::At(at) => Some(Ttl::At(at)),
        Expiry::In(ms) => Some(Ttl::Milliseconds(ms)),
    };
    match write {
        Write::Put { value, expiry } => Step::Put(Put { key, value, ttl: ttl(expiry), ..Put::default() }),
        Write::Expire(expiry) => Step::Put(Put {
            key,
            ignore_value: true,
            ignore_lease: true,
            keep_metadata: true,
            ttl: ttl(expiry),
            ..Put::default()
        }),
        Write::Delete => Step::Delete(kv::Delete { key, ..kv::Delete::default() }),
    }
}
