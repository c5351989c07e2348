//! Keys as one command, or one MULTI ... EXEC, sees them: a state, and its own writes over it. The writes go
//! into the log as one transaction, on condition that nothing that was read has changed.
//!
//! **Invariant: Optimistic (transactions).** A command reads one view. Its writes are applied together, and
//! only if no key that it read has changed since; otherwise it is run again on a newer view. So every command
//! and every MULTI ... EXEC is atomic, however many keys it reads and writes.
//!
//! **Invariant: Bounded.** Of what is read only mod revisions are kept, at most [`READ_BYTES_MAX`] of them with their
//! keys, and at most [`WRITTEN_BYTES_MAX`] are to be written.

use super::channels::Channels;
use super::reply::Reply;
use crate::error::{Error, Kind};
use bytes::{Bytes, BytesMut};
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{
    self, Compare, CompareResult, CompareTarget, KeyValue, Operation, Publish, Put, Ttl, Txn, TxnOperation,
};
use quoin_core::limits::REQUEST_BYTES_MAX;
use quoin_engine::ReadView;
use std::collections::BTreeMap;

/// Maximum bytes of the values that one command, or one transaction, writes: no setting lets more be written. What a
/// write may have is checked when the command is made; this bounds the memory until then.
const WRITTEN_BYTES_MAX: usize = REQUEST_BYTES_MAX;

/// Maximum bytes of what is remembered of reads: the log's entry has a condition for each.
const READ_BYTES_MAX: usize = REQUEST_BYTES_MAX;
/// What a key that was read costs besides its bytes.
const READ_OVERHEAD_BYTES: usize = 32;

/// The state of a key that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: Bytes,
    /// Milliseconds since the Unix epoch.
    pub(super) expires_at: Option<u64>,
}

/// What a write does to the key's time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// Removes it.
    Never,
    /// Keeps it.
    Keep,
    /// Ends at this many milliseconds since the Unix epoch.
    At(u64),
    /// Ends this many milliseconds after the write.
    In(u64),
}

#[derive(Clone, Debug)]
enum Write {
    Put {
        value: Bytes,
        expiry: Expiry,
    },
    /// Changes only the time to live.
    Expire(Expiry),
    Delete,
}

/// The writes of a transaction at some point.
pub(super) struct Written {
    writes: BTreeMap<Bytes, Write>,
    bytes: usize,
    messages: usize,
}

/// What the commands of a round see: a state, and the time for which it is shown.
#[derive(Clone)]
pub(super) struct Sight {
    pub(super) view: ReadView,
    now: u64,
    answer_bytes_max: usize,
}

impl Sight {
    /// The keys of `view`, shown as of now by the cluster's time. A reply holds at most `answer_bytes_max` bytes
    /// of values, or a single value.
    pub(super) fn of(view: ReadView, answer_bytes_max: usize) -> Self {
        Self { now: view.now().0, view, answer_bytes_max }
    }

    /// As [`Self::of`], as of the state's own stamp: by the clock that decides.
    pub(super) fn of_stamp(view: ReadView, answer_bytes_max: usize) -> Self {
        Self { now: view.progress().stamp.0, view, answer_bytes_max }
    }

    /// Whether a key with this deadline, in milliseconds since the Unix epoch, still exists for clients. The
    /// log deletes a key a little after its deadline; until then the store has it.
    pub(super) fn is_alive(&self, expires_at: Option<u64>) -> bool {
        expires_at.is_none_or(|at| at > self.now)
    }
}

/// The keys of one command.
pub(super) struct Keys<'a> {
    sight: Option<&'a Sight>,
    /// The command writes nothing, so its reads need not be remembered.
    only_reads: bool,
    /// Bytes of values in the reply so far.
    answered: usize,
    /// Bytes that `read` takes, about.
    read_bytes: usize,
    /// Each key that was read, with its mod revision; 0 for an absent key. Values are not kept: there may be many
    /// large ones.
    read: BTreeMap<Bytes, i64>,
    written: BTreeMap<Bytes, Write>,
    /// Bytes of values in `written` and of `messages`.
    written_bytes: usize,
    /// What is to be said, in order.
    messages: Vec<Publish>,
    /// Who is asked how many listen.
    channels: Option<&'a Channels>,
    /// The stamp must have reached this: a key that was read was found to be over by then.
    stamp_from: u64,
    /// The stamp must not have reached this: a key that was read ends then.
    stamp_before: Option<u64>,
    /// Keys that must still have these mod revisions; 0 for an absent key.
    watched: Vec<(Bytes, i64)>,
}

/// Why a command could not be run.
pub(super) enum Failed {
    /// It reads, and has no view.
    NeedsView,
    Error(Error),
}

/// Why a command has no reply of its own.
pub(super) enum Problem {
    /// This error is its reply, also within EXEC.
    Refused(String),
    Failed(Failed),
}

/// The result of a command about keys.
pub(super) type Outcome = Result<Reply, Problem>;

/// A command about keys: a function of its arguments, without its name, and of the keys.
pub(super) type Run = fn(&[Bytes], &mut Keys<'_>) -> Outcome;

impl From<Failed> for Problem {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// A refusal as the reply that it is.
pub(super) fn replied(outcome: Outcome) -> Result<Reply, Failed> {
    match outcome {
        Ok(reply) => Ok(reply),
        Err(Problem::Refused(text)) => Ok(Reply::Error(text)),
        Err(Problem::Failed(failed)) => Err(failed),
    }
}

impl<'a> Keys<'a> {
    /// The keys as `sight` shows them; without one, a command can write but not read.
    pub(super) fn at(sight: Option<&'a Sight>) -> Self {
        let (read, written) = (BTreeMap::new(), BTreeMap::new());
        Self {
            sight,
            only_reads: false,
            answered: 0,
            read_bytes: 0,
            read,
            written,
            written_bytes: 0,
            messages: Vec::new(),
            channels: None,
            stamp_from: 0,
            stamp_before: None,
            watched: Vec::new(),
        }
    }

    /// With listeners to be counted.
    pub(super) fn with(self, channels: &'a Channels) -> Self {
        Self { channels: Some(channels), ..self }
    }

    /// As [`Self::at`], for a command that writes nothing.
    pub(super) fn only_read(sight: &'a Sight) -> Self {
        Self { only_reads: true, ..Self::at(Some(sight)) }
    }

    /// Milliseconds since the Unix epoch.
    pub(super) fn now(&self) -> Result<u64, Failed> {
        Ok(self.sight()?.now)
    }

    fn sight(&self) -> Result<&'a Sight, Failed> {
        self.sight.ok_or(Failed::NeedsView)
    }

    /// Makes all writes depend on `key` still having this mod revision; 0 for an absent key.
    pub(super) fn watch(&mut self, key: Bytes, mod_revision: i64) {
        self.watched.push((key, mod_revision));
    }

    /// Counts a value that becomes part of the reply.
    ///
    /// # Errors
    /// The reply would be too large with it.
    pub(super) fn answers(&mut self, bytes: usize) -> Result<(), Failed> {
        let max = self.sight.map_or(usize::MAX, |sight| sight.answer_bytes_max);
        if self.answered > 0 && self.answered + bytes > max {
            return Err(Failed::Error(reply_too_large(max)));
        }
        self.answered += bytes;
        Ok(())
    }

    /// Begins a count of what is answered; returns the one before.
    pub(super) fn forget_answers(&mut self) -> usize {
        std::mem::take(&mut self.answered)
    }

    /// Goes back to a count.
    pub(super) fn remember_answers(&mut self, answered: usize) {
        self.answered = answered;
    }

    /// What is to be written so far, for [`Self::write_instead`].
    pub(super) fn written(&self) -> Written {
        let messages = self.messages.len();
        Written { writes: self.written.clone(), bytes: self.written_bytes, messages }
    }

    /// Undoes what was to be written since `before`. What was read since then still counts.
    pub(super) fn write_instead(&mut self, before: Written) {
        (self.written, self.written_bytes) = (before.writes, before.bytes);
        self.messages.truncate(before.messages);
    }

    /// The key's state, with this command's own writes.
    pub(super) fn get(&mut self, key: &Bytes) -> Result<Option<Entry>, Failed> {
        let entry = match self.written.get(key).cloned() {
            None => return self.alive(key),
            Some(Write::Delete) => return Ok(None),
            Some(Write::Expire(expiry)) => {
                let Some(entry) = self.alive(key)? else { return Ok(None) };
                Entry { expires_at: self.expires_at(expiry, entry.expires_at)?, ..entry }
            }
            Some(Write::Put { value, expiry }) => {
                let before = match expiry {
                    Expiry::Keep => self.alive(key)?.and_then(|entry| entry.expires_at),
                    _ => None,
                };
                Entry { value, expires_at: self.expires_at(expiry, before)? }
            }
        };
        let alive = entry.expires_at.is_none() || self.sight()?.is_alive(entry.expires_at);
        Ok(alive.then_some(entry))
    }

    /// The key's stored state, unless its time is over.
    fn alive(&mut self, key: &Bytes) -> Result<Option<Entry>, Failed> {
        let sight = self.sight()?;
        let entry = |kv: KeyValue| Entry { value: kv.value, expires_at: kv.expires.map(|at| at.0) };
        let Some(entry) = self.stored(sight, key)?.map(entry) else { return Ok(None) };
        let alive = sight.is_alive(entry.expires_at);
        self.note_deadline(entry.expires_at, alive);
        Ok(alive.then_some(entry))
    }

    /// Invariant: Time is data. Whether a key is alive was judged by the time as this replica knows it; what
    /// is written because of that stands only if the stamp says the same.
    fn note_deadline(&mut self, expires_at: Option<u64>, alive: bool) {
        let Some(at) = expires_at.filter(|_| !self.only_reads) else { return };
        if alive {
            self.stamp_before = Some(self.stamp_before.map_or(at, |before| before.min(at)));
        } else {
            self.stamp_from = self.stamp_from.max(at);
        }
    }

    fn expires_at(&self, expiry: Expiry, before: Option<u64>) -> Result<Option<u64>, Failed> {
        Ok(match expiry {
            Expiry::Never => None,
            Expiry::Keep => before,
            Expiry::At(at) => Some(at),
            Expiry::In(ms) => Some(self.now()?.saturating_add(ms)),
        })
    }

    fn stored(&mut self, sight: &Sight, key: &Bytes) -> Result<Option<KeyValue>, Failed> {
        let found = get(&sight.view, key)?;
        if !self.only_reads {
            let revision = found.as_ref().map_or(0, |kv| kv.mod_revision);
            if self.read.insert(key.clone(), revision).is_none() {
                self.read_bytes += key.len() + READ_OVERHEAD_BYTES;
                if self.read_bytes > READ_BYTES_MAX {
                    return Err(Failed::Error(read_too_much()));
                }
            }
        }
        Ok(found)
    }

    /// Says something; returns how many subscriptions of this node it comes to.
    ///
    /// # Errors
    /// What is to be written and said would exceed [`WRITTEN_BYTES_MAX`].
    pub(super) fn publish(&mut self, channel: &Bytes, payload: &Bytes) -> Result<usize, Failed> {
        let bytes = channel.len() + payload.len();
        self.may_add(self.written_bytes, bytes)?;
        self.written_bytes += bytes;
        self.messages.push(Publish { channel: channel.clone(), payload: payload.clone() });
        Ok(self.channels.map_or(0, |channels| channels.count(channel)))
    }

    /// Whether `key` may be written with a value of so many bytes. To be asked before a large one takes memory.
    ///
    /// # Errors
    /// The values to be written would exceed [`WRITTEN_BYTES_MAX`].
    pub(super) fn may_make(&self, key: &Bytes, bytes: usize) -> Result<(), Failed> {
        self.may_add(self.written_bytes - self.bytes_written_at(key), bytes)
    }

    fn may_add(&self, others: usize, bytes: usize) -> Result<(), Failed> {
        if others.saturating_add(bytes) > WRITTEN_BYTES_MAX {
            let text = format!("values of more than {WRITTEN_BYTES_MAX} bytes are to be written at once");
            return Err(Failed::Error(Error::Refused(Kind::ResourceExhausted, text)));
        }
        Ok(())
    }

    fn bytes_written_at(&self, key: &Bytes) -> usize {
        match self.written.get(key) {
            Some(Write::Put { value, .. }) => value.len(),
            _ => 0,
        }
    }

    /// # Errors
    /// See [`Self::may_make`].
    pub(super) fn put(&mut self, key: Bytes, value: Bytes, expiry: Expiry) -> Result<(), Failed> {
        self.may_make(&key, value.len())?;
        self.written_bytes -= self.bytes_written_at(&key);
        self.written_bytes += value.len();
        // The log keeps the time to live that the key has before all writes of the command, so one of these
        // is kept here.
        let expiry = match (expiry, self.written.get(&key)) {
            (Expiry::Keep, Some(Write::Delete)) => Expiry::Never,
            (Expiry::Keep, Some(Write::Put { expiry, .. } | Write::Expire(expiry))) => match *expiry {
                Expiry::At(at) if self.sight.is_some_and(|sight| !sight.is_alive(Some(at))) => Expiry::Never,
                expiry => expiry,
            },
            (expiry, _) => expiry,
        };
        self.written.insert(key, Write::Put { value, expiry });
        Ok(())
    }

    /// The value of a key that exists, to be changed and put again. One that this transaction wrote is not copied.
    pub(super) fn take_value(&mut self, key: &Bytes, entry: Option<Entry>) -> BytesMut {
        let value = match (self.written.get_mut(key), entry) {
            (_, None) => return BytesMut::new(),
            // The entry holds it too.
            (Some(Write::Put { value, .. }), Some(entry)) => {
                drop(entry);
                self.written_bytes -= value.len();
                std::mem::take(value)
            }
            (_, Some(entry)) => entry.value,
        };
        value.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]))
    }

    /// Changes the time to live of an existing key.
    pub(super) fn expire(&mut self, key: Bytes, expiry: Expiry) {
        match self.written.get_mut(&key) {
            Some(Write::Put { expiry: before, .. } | Write::Expire(before)) => *before = expiry,
            _ => {
                self.written.insert(key, Write::Expire(expiry));
            }
        }
    }

    pub(super) fn delete(&mut self, key: Bytes) {
        self.written_bytes -= self.bytes_written_at(&key);
        self.written.insert(key, Write::Delete);
    }

    /// The command for the log; `None` where nothing is written and nothing watched.
    pub(super) fn into_operation(self) -> Option<Operation> {
        if self.written.is_empty() && self.messages.is_empty() && self.watched.is_empty() {
            return None;
        }
        let mut steps: Vec<Step> = self.written.into_iter().map(|(key, write)| step(key, write)).collect();
        // After the writes: whoever hears of them can read them.
        steps.extend(self.messages.into_iter().map(Step::Publish));
        if self.read.is_empty() && self.watched.is_empty() && steps.len() == 1 {
            match steps.pop() {
                Some(Step::Put(put)) => return Some(Operation::Put(put)),
                Some(other) => steps.push(other),
                None => {}
            }
        }
        let compare = self.read.into_iter().chain(self.watched).map(|(key, revision)| Compare {
            result: CompareResult::Equal.into(),
            key,
            target: Some(CompareTarget::ModRevision(revision)),
            ..Compare::default()
        });
        let stamp = |result: CompareResult, at| Compare {
            result: result.into(),
            target: Some(CompareTarget::Stamp(at)),
            ..Compare::default()
        };
        let over = (self.stamp_from > 0).then(|| stamp(CompareResult::Greater, self.stamp_from - 1));
        let alive = self.stamp_before.map(|before| stamp(CompareResult::Less, before));
        let compare = compare.chain(over).chain(alive);
        let success = steps.into_iter().map(|step| TxnOperation { step: Some(step) }).collect();
        Some(Operation::Txn(Txn { compare: compare.collect(), success, failure: Vec::new() }))
    }
}

/// Values, or keys, are more than a reply may hold.
pub(super) fn reply_too_large(bytes_max: usize) -> Error {
    let text = format!(
        "the reply is larger than {bytes_max} bytes (limits.response_bytes_max): ask for less at once"
    );
    Error::Refused(Kind::ResourceExhausted, text)
}

fn read_too_much() -> Error {
    let text = format!("keys of more than {READ_BYTES_MAX} bytes are read at once");
    Error::Refused(Kind::ResourceExhausted, text)
}

/// The key's stored state. The empty key never exists.
fn get(view: &ReadView, key: &Bytes) -> Result<Option<KeyValue>, Failed> {
    if key.is_empty() {
        return Ok(None);
    }
    kv::get(view.view(), key).map_err(|error| Failed::Error(Error::from(error)))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// COPY of one value to many keys within MULTI made an entry of all of them before it was refused.
    #[test]
    fn what_a_transaction_writes_is_bounded_before_it_is_made() {
        let mut keys = Keys::at(None);
        let value = Bytes::from(vec![0; WRITTEN_BYTES_MAX / 2]);
        let mut put =
            |key: &'static str, value: &Bytes| keys.put(key.into(), value.clone(), Expiry::Never).is_ok();
        assert!(put("a", &value) && put("b", &value), "as much as may be");
        assert!(put("b", &value), "what is replaced counts no more");
        assert!(!put("c", &Bytes::from_static(b"x")));
        let mut keys = Keys::at(None);
        assert!(keys.put("a".into(), value.clone(), Expiry::Never).is_ok());
        keys.delete("a".into());
        assert_eq!(keys.written_bytes, 0);
        let b = Bytes::from("b");
        assert!(
            keys.may_make(&b, WRITTEN_BYTES_MAX).is_ok() && keys.may_make(&b, WRITTEN_BYTES_MAX + 1).is_err()
        );
    }

    /// Each of 10,000 APPENDs in one transaction copied the whole value.
    #[test]
    fn a_value_that_grows_within_a_transaction_is_copied_as_seldom_as_a_vector() {
        let (mut keys, key) = (Keys::at(None), Bytes::from("k"));
        let (mut moved, mut place) = (0, std::ptr::null());
        for number in 0..4096 {
            let entry = (number > 0).then(|| match keys.written.get(&key) {
                Some(Write::Put { value, .. }) => Entry { value: value.clone(), expires_at: None },
                other => panic!("{other:?}"),
            });
            let mut value = keys.take_value(&key, entry);
            assert_eq!((keys.written_bytes, value.len()), (0, 64 * number));
            value.extend_from_slice(&[7; 64]);
            moved += usize::from(value.as_ptr() != place);
            place = value.as_ptr();
            assert!(keys.put(key.clone(), value.freeze(), Expiry::Keep).is_ok());
        }
        assert!(moved < 100, "{moved} copies");
    }

    /// What a node took for ended by its own clock was written over, though it had not ended.
    #[test]
    fn writes_stand_only_if_the_stamp_says_of_each_key_what_was_seen() {
        let mut keys = Keys::at(None);
        for (key, ends, alive) in [("a", 300, false), ("b", 200, false), ("c", 900, true), ("d", 800, true)] {
            keys.read.insert(key.into(), 0);
            keys.note_deadline(Some(ends), alive);
        }
        assert!(keys.put("e".into(), "1".into(), Expiry::Never).is_ok());
        let Some(Operation::Txn(txn)) = keys.into_operation() else { panic!("a transaction") };
        let stamps: Vec<_> = txn
            .compare
            .iter()
            .filter_map(|compare| match compare.target {
                Some(CompareTarget::Stamp(at)) => Some((compare.result(), at)),
                _ => None,
            })
            .collect();
        assert_eq!(stamps, [(CompareResult::Greater, 299), (CompareResult::Less, 800)]);
    }
}
