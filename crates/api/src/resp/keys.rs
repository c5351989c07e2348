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
use super::parse::{WRONG_TYPE, refuse};
use super::reply::Reply;
use crate::commands::in_place;
use crate::error::{Error, Kind};
use bytes::{Bytes, BytesMut};
use quoin_core::function::Libraries;
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{
    self, Collection, Compare, CompareResult, CompareTarget, FieldAction, FieldChange, KeyValue, Operation,
    Publish, Put, Ttl, Txn, TxnOperation, WriteFields,
};
use quoin_core::limits::REQUEST_BYTES_MAX;
use quoin_engine::ReadView;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum bytes of the values that one command, or one transaction, writes: no setting lets more be written. What a
/// write may have is checked when the command is made; this bounds the memory until then.
const WRITTEN_BYTES_MAX: usize = REQUEST_BYTES_MAX;

/// Maximum bytes of what is remembered of reads: the log's entry has a condition for each.
const READ_BYTES_MAX: usize = REQUEST_BYTES_MAX;
/// What a field that is written costs besides its bytes.
const FIELD_OVERHEAD_BYTES: usize = 64;
/// What an item of a reply costs besides its bytes.
const ITEM_BYTES: usize = 64;
/// Hashes with more fields are read whole aside.
const FIELDS_IN_PLACE_MAX: u64 = 1000;
/// What a key that was read costs besides its bytes.
const READ_OVERHEAD_BYTES: usize = 32;

/// The state of a key that exists and holds a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: Bytes,
    /// Milliseconds since the Unix epoch.
    pub(super) expires_at: Option<u64>,
}

/// A key that exists.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) value: Value,
    /// Milliseconds since the Unix epoch.
    pub(super) expires_at: Option<u64>,
}

/// What a key holds.
#[derive(Clone, Debug)]
pub(super) enum Value {
    String(Bytes),
    Hash(Hash),
}

/// A hash. Its fields are read one by one: there may be very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash {
    /// `None` where this transaction has made it.
    pub(super) stored: Option<Collection>,
    /// Fields, with those that are over and not deleted yet.
    pub(super) count: u64,
}

/// A field of a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
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
    Fields(Fields),
    /// Takes over the hash of another key, which is deleted.
    Move {
        from: Bytes,
        expiry: Expiry,
    },
    Delete,
}

/// Changes of a hash's fields.
#[derive(Clone, Debug)]
struct Fields {
    /// With them.
    hash: Hash,
    /// Nothing of what the key has held stays.
    anew: bool,
    /// Of the key.
    expiry: Expiry,
    changes: BTreeMap<Bytes, FieldWrite>,
    bytes: usize,
}

#[derive(Clone, Debug)]
enum FieldWrite {
    Put(Bytes, Expiry),
    Expire(Expiry),
    Delete,
}

impl FieldWrite {
    fn bytes(&self, field: &Bytes) -> usize {
        let value = if let Self::Put(value, _) = self { value.len() } else { 0 };
        field.len() + value + FIELD_OVERHEAD_BYTES
    }
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
    /// See [`Self::is_alone`].
    alone: bool,
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
            alone: false,
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

    /// The libraries of functions.
    pub(super) fn libraries(&self) -> Result<Arc<Libraries>, Failed> {
        Ok(Arc::clone(&self.sight()?.view.memory().functions))
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

    /// The string at a key, with this command's own writes.
    ///
    /// # Errors
    /// The key holds another kind of value.
    pub(super) fn get(&mut self, key: &Bytes) -> Result<Option<Entry>, Problem> {
        match self.find(key)? {
            None => Ok(None),
            Some(Found { value: Value::String(value), expires_at }) => Ok(Some(Entry { value, expires_at })),
            Some(_) => refuse(WRONG_TYPE),
        }
    }

    /// The hash at a key, with this command's own writes.
    ///
    /// # Errors
    /// The key holds another kind of value.
    pub(super) fn hash(&mut self, key: &Bytes) -> Result<Option<Hash>, Problem> {
        match self.find(key)? {
            None => Ok(None),
            Some(Found { value: Value::Hash(hash), .. }) => Ok(Some(hash)),
            Some(_) => refuse(WRONG_TYPE),
        }
    }

    /// The key's state, with this command's own writes.
    pub(super) fn find(&mut self, key: &Bytes) -> Result<Option<Found>, Failed> {
        let (value, expiry) = match self.written.get(key) {
            None => return self.alive(key),
            Some(Write::Delete) => return Ok(None),
            Some(Write::Move { from, .. }) => {
                let from = from.clone();
                return self.alive(&from);
            }
            Some(Write::Expire(expiry)) => {
                let expiry = *expiry;
                let Some(found) = self.alive(key)? else { return Ok(None) };
                (found.value, expiry)
            }
            Some(Write::Put { value, expiry }) => (Value::String(value.clone()), *expiry),
            Some(Write::Fields(fields)) => (Value::Hash(fields.hash), fields.expiry),
        };
        let before = match expiry {
            Expiry::Keep => self.alive(key)?.and_then(|found| found.expires_at),
            _ => None,
        };
        let expires_at = self.expires_at(expiry, before)?;
        let alive = expires_at.is_none() || self.sight()?.is_alive(expires_at);
        Ok(alive.then_some(Found { value, expires_at }))
    }

    /// A field of a hash, unless its time is over; and whether there is a record of it.
    pub(super) fn field(
        &mut self,
        key: &Bytes,
        hash: Hash,
        field: &Bytes,
    ) -> Result<(Option<Field>, bool), Failed> {
        let written = match self.written.get(key) {
            Some(Write::Fields(fields)) => fields.changes.get(field).cloned(),
            _ => None,
        };
        let (value, expiry) = match written {
            None => return self.stored_field(hash, field),
            Some(FieldWrite::Delete) => return Ok((None, false)),
            Some(FieldWrite::Put(value, expiry)) => (value, expiry),
            Some(FieldWrite::Expire(expiry)) => match self.stored_field(hash, field)?.0 {
                Some(stored) => (stored.value, expiry),
                None => return Ok((None, false)),
            },
        };
        let before = match expiry {
            Expiry::Keep => self.stored_field(hash, field)?.0.and_then(|stored| stored.expires_at),
            _ => None,
        };
        let expires_at = self.expires_at(expiry, before)?;
        let alive = expires_at.is_none() || self.sight()?.is_alive(expires_at);
        Ok((alive.then_some(Field { value, expires_at }), true))
    }

    fn stored_field(&mut self, hash: Hash, field: &Bytes) -> Result<(Option<Field>, bool), Failed> {
        // Of a longer one there is none, nor could the store look for it.
        let Some(stored) = hash.stored.filter(|_| field.len() <= kv::FIELD_BYTES_MAX) else {
            return Ok((None, false));
        };
        let sight = self.sight()?;
        let found =
            kv::field(sight.view.view(), stored, field).map_err(|error| Failed::Error(error.into()))?;
        let Some(found) = found else { return Ok((None, false)) };
        Ok((self.field_alive(sight, found), true))
    }

    fn field_alive(&mut self, sight: &Sight, found: kv::Field) -> Option<Field> {
        let expires_at = found.expires.map(|at| at.0);
        let alive = sight.is_alive(expires_at);
        self.note_deadline(expires_at, alive);
        alive.then_some(Field { value: found.value, expires_at })
    }

    /// Calls `take` with each field of a hash, in the order of their names, until it returns false.
    pub(super) fn each_field(
        &mut self,
        key: &Bytes,
        hash: Hash,
        mut take: impl FnMut(&mut Self, Bytes, Field) -> Result<bool, Failed>,
    ) -> Result<(), Failed> {
        let sight = self.sight()?;
        let written: BTreeMap<Bytes, FieldWrite> = match self.written.get(key) {
            Some(Write::Fields(fields)) => fields.changes.clone(),
            _ => BTreeMap::new(),
        };
        in_place(hash.count > FIELDS_IN_PLACE_MAX, || {
            let mut own = written.keys().peekable();
            let stored = hash.stored.map(|stored| kv::fields(sight.view.view(), stored, b""));
            for pair in stored.into_iter().flatten() {
                let (name, found) = pair.map_err(|error| Failed::Error(error.into()))?;
                while let Some(before) = own.next_if(|own| **own < name) {
                    if let (Some(field), _) = self.field(key, hash, before)?
                        && !take(self, before.clone(), field)?
                    {
                        return Ok(());
                    }
                }
                let field = match own.next_if(|own| **own == name) {
                    Some(_) => self.field(key, hash, &name)?.0,
                    None => self.field_alive(sight, found),
                };
                if let Some(field) = field
                    && !take(self, name, field)?
                {
                    return Ok(());
                }
            }
            for name in own {
                if let (Some(field), _) = self.field(key, hash, name)?
                    && !take(self, name.clone(), field)?
                {
                    return Ok(());
                }
            }
            Ok(())
        })
    }

    /// Counts an item of a list that becomes part of the reply.
    ///
    /// # Errors
    /// See [`Self::answers`].
    pub(super) fn answers_item(&mut self, bytes: usize) -> Result<(), Failed> {
        self.answers(bytes + ITEM_BYTES)
    }

    /// The key's stored state, unless its time is over.
    fn alive(&mut self, key: &Bytes) -> Result<Option<Found>, Failed> {
        let sight = self.sight()?;
        let found = |(kv, collection): (KeyValue, Option<Collection>)| {
            let value = match collection {
                None => Value::String(kv.value),
                Some(stored) => Value::Hash(Hash { stored: Some(stored), count: stored.count }),
            };
            Found { value, expires_at: kv.expires.map(|at| at.0) }
        };
        let Some(entry) = self.stored(sight, key)?.map(found) else { return Ok(None) };
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

    fn stored(
        &mut self,
        sight: &Sight,
        key: &Bytes,
    ) -> Result<Option<(KeyValue, Option<Collection>)>, Failed> {
        let found = find(&sight.view, key)?;
        if !self.only_reads {
            let revision = found.as_ref().map_or(0, |(kv, _)| kv.mod_revision);
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
            Some(Write::Fields(fields)) => fields.bytes,
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
            (
                Expiry::Keep,
                Some(
                    Write::Put { expiry, .. } | Write::Expire(expiry) | Write::Fields(Fields { expiry, .. }),
                ),
            ) => match *expiry {
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
            Some(Write::Fields(fields)) => fields.expiry = expiry,
            _ => {
                self.written.insert(key, Write::Expire(expiry));
            }
        }
    }

    /// Writes a field of the hash that [`Self::hash`] found; `there` is what [`Self::field`] said of its record.
    ///
    /// # Errors
    /// See [`Self::may_make`].
    pub(super) fn put_field(
        &mut self,
        key: &Bytes,
        hash: Option<Hash>,
        (field, there): (&Bytes, bool),
        value: Bytes,
        expiry: Expiry,
    ) -> Result<Hash, Failed> {
        self.write_field(key, hash, field, FieldWrite::Put(value, expiry), u64::from(!there) as i64)
    }

    /// Changes the time to live of an existing field.
    ///
    /// # Errors
    /// See [`Self::may_make`].
    pub(super) fn expire_field(
        &mut self,
        key: &Bytes,
        hash: Hash,
        field: &Bytes,
        expiry: Expiry,
    ) -> Result<(), Failed> {
        let write = match self.written.get(key) {
            Some(Write::Fields(fields)) => match fields.changes.get(field) {
                Some(FieldWrite::Put(value, _)) => FieldWrite::Put(value.clone(), expiry),
                _ => FieldWrite::Expire(expiry),
            },
            _ => FieldWrite::Expire(expiry),
        };
        self.write_field(key, Some(hash), field, write, 0).map(|_| ())
    }

    /// Deletes an existing field, and the key with its last one. Returns what is left.
    ///
    /// # Errors
    /// See [`Self::may_make`].
    pub(super) fn delete_field(
        &mut self,
        key: &Bytes,
        hash: Hash,
        field: &Bytes,
    ) -> Result<Option<Hash>, Failed> {
        if hash.count <= 1 {
            self.delete(key.clone());
            return Ok(None);
        }
        self.write_field(key, Some(hash), field, FieldWrite::Delete, -1).map(Some)
    }

    fn write_field(
        &mut self,
        key: &Bytes,
        hash: Option<Hash>,
        field: &Bytes,
        write: FieldWrite,
        more: i64,
    ) -> Result<Hash, Failed> {
        let bytes = write.bytes(field);
        self.may_add(self.written_bytes, bytes)?;
        let before = match self.written.remove(key) {
            Some(Write::Fields(fields)) => Some(fields),
            Some(Write::Expire(expiry)) => Some(Fields::of(hash, false, expiry)),
            Some(Write::Put { value, .. }) => {
                self.written_bytes -= value.len();
                Some(Fields::of(hash, true, Expiry::Never))
            }
            Some(Write::Delete | Write::Move { .. }) => Some(Fields::of(hash, true, Expiry::Never)),
            None => None,
        };
        let expiry = if hash.is_some() { Expiry::Keep } else { Expiry::Never };
        let mut fields = before.unwrap_or_else(|| Fields::of(hash, false, expiry));
        fields.hash.count = fields.hash.count.saturating_add_signed(more);
        let replaced = fields.changes.insert(field.clone(), write).map_or(0, |write| write.bytes(field));
        fields.bytes = fields.bytes + bytes - replaced;
        self.written_bytes = self.written_bytes + bytes - replaced;
        let hash = fields.hash;
        self.written.insert(key.clone(), Write::Fields(fields));
        Ok(hash)
    }

    /// The command is all of its transaction.
    pub(super) fn is_alone(&mut self) {
        self.alone = true;
    }

    /// Has the hash that is stored at one key moved to another, if nothing else is written. Says whether it is: within a
    /// larger transaction either key may be written again.
    pub(super) fn move_hash(&mut self, from: &Bytes, to: &Bytes, expiry: Expiry) -> bool {
        let moves = self.alone && self.written.is_empty();
        if moves {
            self.written.insert(to.clone(), Write::Move { from: from.clone(), expiry });
        }
        moves
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
fn find(view: &ReadView, key: &Bytes) -> Result<Option<(KeyValue, Option<Collection>)>, Failed> {
    if key.is_empty() {
        return Ok(None);
    }
    kv::find(view.view(), key).map_err(|error| Failed::Error(Error::from(error)))
}

fn ttl(expiry: Expiry) -> Option<Ttl> {
    match expiry {
        Expiry::Never => None,
        Expiry::Keep => Some(Ttl::Keep(true)),
        Expiry::At(at) => Some(Ttl::At(at)),
        Expiry::In(ms) => Some(Ttl::Milliseconds(ms)),
    }
}

fn field_change(field: Bytes, write: FieldWrite) -> FieldChange {
    let (action, expiry) = match write {
        FieldWrite::Put(value, expiry) => (FieldAction::Put(value), expiry),
        FieldWrite::Expire(expiry) => (FieldAction::Expire(true), expiry),
        FieldWrite::Delete => (FieldAction::Delete(true), Expiry::Never),
    };
    FieldChange { field, action: Some(action), ttl: ttl(expiry) }
}

impl Fields {
    fn of(hash: Option<Hash>, anew: bool, expiry: Expiry) -> Self {
        let hash = hash.unwrap_or(Hash { stored: None, count: 0 });
        Self { hash, anew, expiry, changes: BTreeMap::new(), bytes: 0 }
    }
}

fn step(key: Bytes, write: Write) -> Step {
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
        Write::Fields(Fields { anew, expiry, changes, .. }) => Step::WriteFields(WriteFields {
            key,
            changes: changes.into_iter().map(|(field, write)| field_change(field, write)).collect(),
            anew,
            persist: expiry == Expiry::Never,
            ttl: ttl(expiry).filter(|_| expiry != Expiry::Keep),
            from: Bytes::new(),
        }),
        Write::Move { from, expiry } => {
            let (persist, ttl) = (expiry == Expiry::Never, ttl(expiry));
            Step::WriteFields(WriteFields { key, from, persist, ttl, ..WriteFields::default() })
        }
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
