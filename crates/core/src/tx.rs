//! One command's transaction: it reads its own writes, takes at most one revision, and notes what changed.

use crate::history::{self, Change, Event, Recorder, Unavailable};
use crate::limits::{STORE_KEY_BYTES_MAX, STORE_VALUE_BYTES_MAX};
use crate::message::Message;
use crate::store::{Order, Scan, Store, StoreError, View};
use crate::types::{Progress, Revision, Sequence, Stamp};
use bytes::Bytes;
use std::collections::HashMap;

/// The state as one command sees and changes it.
///
/// Two kinds of writes: [`Tx::put`] and [`Tx::delete`] for bookkeeping that nobody watches, and
/// [`Tx::change`] for what has a revision, a history and watchers.
pub struct Tx<'a> {
    store: &'a dyn Store,
    recorder: &'a mut Recorder,
    /// The progress before this command, which may have moved `compacted`.
    progress: Progress,
    sequence: Sequence,
    changes: Vec<Change>,
    /// The indexes in `changes` of what was written, not deleted.
    written: Vec<usize>,
    /// `written` by key, made once a key is deleted.
    written_by_key: Option<HashMap<Bytes, usize>>,
    /// The changes under another name: index in `changes`, and the store key that holds the value.
    aliases: Vec<(usize, Bytes)>,
    messages: Vec<Message>,
}

impl<'a> Tx<'a> {
    /// The transaction of the command after `progress`; `recorder` takes its event.
    pub(crate) fn begin(store: &'a dyn Store, progress: &Progress, recorder: &'a mut Recorder) -> Self {
        Self {
            store,
            recorder,
            progress: *progress,
            sequence: progress.sequence.next(),
            changes: Vec::new(),
            written: Vec::new(),
            written_by_key: None,
            aliases: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// The batch's stamp. **Invariant: Time is data.** There is no other clock.
    pub fn stamp(&self) -> Stamp {
        self.progress.stamp
    }

    /// This command's position in the order of all commands.
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// The newest revision: this command's own, once it has changed something.
    pub fn revision(&self) -> Revision {
        if self.changes.is_empty() { self.progress.revision } else { self.next_revision() }
    }

    /// The revision of this command's changes.
    pub fn next_revision(&self) -> Revision {
        self.progress.revision.next()
    }

    /// Revisions below this one are forgotten.
    pub fn compacted(&self) -> Revision {
        self.progress.compacted
    }

    /// The stamp of the present leader's first batch.
    pub fn term_began(&self) -> Stamp {
        self.progress.term_began
    }

    /// The progress, including this command.
    pub fn progress(&self) -> Progress {
        Progress { sequence: self.sequence, revision: self.revision(), ..self.progress }
    }

    /// The state, including this command's own writes.
    pub fn view(&self) -> View<'a> {
        View::new(self.store, self.sequence)
    }

    /// The sequence that shows the state as of `revision`, which may belong to the same log entry.
    ///
    /// # Errors
    /// The store failed.
    pub fn sequence_at(&self, revision: Revision) -> Result<Result<Sequence, Unavailable>, StoreError> {
        match self.recorder.sequence_of(revision) {
            Some(sequence) if revision >= self.compacted() => Ok(Ok(sequence)),
            _ => history::sequence_at(self.view(), &self.progress(), revision),
        }
    }

    /// How many records this command has written or deleted with a history so far.
    pub fn changed(&self) -> usize {
        self.changes.len()
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.view().get(key)
    }

    /// All keys in `from..to`, ascending; an empty `to` means "to the end".
    pub fn scan(&self, from: &[u8], to: &[u8]) -> Scan<'a> {
        self.view().scan(from, to, Order::Ascending)
    }

    /// Writes bookkeeping.
    ///
    /// # Panics
    /// The store cannot hold it, which the machine must have refused.
    pub fn put(&mut self, key: &[u8], value: Bytes) {
        assert_storable(key, Some(&value));
        self.recorder.effects.note(key, Some(&value), self.sequence);
        self.store.put(key, value, self.sequence);
    }

    /// Deletes bookkeeping.
    ///
    /// # Panics
    /// The store cannot hold the key, so nothing can be there.
    pub fn delete(&mut self, key: &[u8]) {
        assert_storable(key, None);
        self.recorder.effects.note(key, None, self.sequence);
        self.store.delete(key, self.sequence);
    }

    /// Writes (`Some`) or deletes (`None`) a record that has a history and watchers, at
    /// [`Self::next_revision`].
    ///
    /// A key written and then deleted (as nested transactions may do) counts as deleted, since an event names
    /// a key once. Callers must not write a key that this command has written or deleted.
    ///
    /// # Panics
    /// The store cannot hold it, which the machine must have refused.
    pub fn change(&mut self, key: Bytes, value: Option<Bytes>) {
        assert_storable(&key, value.as_ref());
        self.recorder.effects.note(&key, value.as_deref(), self.sequence);
        match &value {
            Some(value) => self.store.put(&key, value.clone(), self.sequence),
            None => self.store.delete(&key, self.sequence),
        }
        if value.is_some() {
            self.written.push(self.changes.len());
            if let Some(places) = &mut self.written_by_key {
                places.insert(key.clone(), self.changes.len());
            }
        } else if let Some(place) = self.take_written(&key) {
            self.changes[place].value = None;
            return;
        }
        self.changes.push(Change { key, value });
    }

    /// The index of the change that wrote `key`, which does not count as written any more.
    fn take_written(&mut self, key: &Bytes) -> Option<usize> {
        if self.written.is_empty() {
            return None;
        }
        let (written, changes) = (&self.written, &self.changes);
        let by_key = || written.iter().map(|place| (changes[*place].key.clone(), *place)).collect();
        self.written_by_key.get_or_insert_with(by_key).remove(key)
    }

    /// **Invariant: Names of a change.** Adds a second `name` to a change, by which it can be watched too.
    /// The record itself is at `key`, where this command writes it; nothing is stored under the name.
    pub fn change_also_known_as(&mut self, name: Bytes, key: &Bytes, value: Option<Bytes>) {
        if value.is_some() {
            self.aliases.push((self.changes.len(), key.clone()));
        }
        self.changes.push(Change { key: name, value });
    }

    /// Says something to whoever listens: it takes no revision, and is kept nowhere.
    pub fn publish(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Takes what was said.
    pub(crate) fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.messages)
    }

    /// Ends the command: records its event, if anything changed, and moves `progress` past it.
    pub(crate) fn finish(self, progress: &mut Progress) -> Option<Event> {
        progress.sequence = self.sequence;
        progress.compacted = self.progress.compacted;
        if self.changes.is_empty() {
            return None;
        }
        progress.revision = self.next_revision();
        let event = Event {
            revision: progress.revision,
            sequence: self.sequence,
            stamp: self.progress.stamp,
            changes: self.changes,
        };
        self.recorder.add(self.store, &event, &self.aliases);
        Some(event)
    }

    /// Moves the compaction bound; only [`crate::system`] may.
    pub(crate) fn set_compacted(&mut self, compacted: Revision) {
        self.progress.compacted = compacted;
    }
}

/// Invariant: Decoded is applied. What arrives here was checked by its machine, on every store alike.
fn assert_storable(key: &[u8], value: Option<&Bytes>) {
    let bytes = key.len();
    assert!(bytes <= STORE_KEY_BYTES_MAX, "a store key of {bytes} bytes; machines check the length");
    let bytes = value.map_or(0, Bytes::len);
    assert!(bytes <= STORE_VALUE_BYTES_MAX, "a stored value of {bytes} bytes; machines bound values");
}
