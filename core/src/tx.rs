//! One command's hold on the state: it reads its own writes, takes at most one revision, and notes what changed.

use crate::history::{self, Change, Event, Recorder, Unavailable};
use crate::store::{Order, Scan, Store, StoreError, View};
use crate::types::{Progress, Revision, Sequence, Stamp};
use bytes::Bytes;

/// The state as one command sees and changes it.
///
/// Two kinds of writes: [`Tx::put`] and [`Tx::delete`] for bookkeeping that nobody watches, and
/// [`Tx::change`] for what has a revision, a history and watchers.
pub struct Tx<'a> {
    store: &'a dyn Store,
    recorder: &'a mut Recorder,
    /// Before this command; `compacted` may have been moved by it.
    progress: Progress,
    sequence: Sequence,
    changes: Vec<Change>,
    /// Places in `changes` of what was written, not deleted.
    written: Vec<usize>,
    /// Where the values of changes stand that have another name: place among the changes, store key.
    aliases: Vec<(usize, Bytes)>,
}

impl<'a> Tx<'a> {
    /// A transaction for the command that follows `progress`, whose event `recorder` will keep.
    pub(crate) fn begin(store: &'a dyn Store, progress: &Progress, recorder: &'a mut Recorder) -> Self {
        Self {
            store,
            recorder,
            progress: *progress,
            sequence: progress.sequence.next(),
            changes: Vec::new(),
            written: Vec::new(),
            aliases: Vec::new(),
        }
    }

    /// The batch's stamp: the only clock there is.
    pub fn stamp(&self) -> Stamp {
        self.progress.stamp
    }

    /// This command's place among all commands.
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// The newest revision: this command's own once it has changed something.
    pub fn revision(&self) -> Revision {
        if self.changes.is_empty() { self.progress.revision } else { self.next_revision() }
    }

    /// The revision that this command's changes carry.
    pub fn next_revision(&self) -> Revision {
        self.progress.revision.next()
    }

    /// Revisions below this one are forgotten.
    pub fn compacted(&self) -> Revision {
        self.progress.compacted
    }

    /// When the present leader made its first batch.
    pub fn term_began(&self) -> Stamp {
        self.progress.term_began
    }

    /// How far the state is, this command included.
    pub fn progress(&self) -> Progress {
        Progress { sequence: self.sequence, revision: self.revision(), ..self.progress }
    }

    /// The state, this command's own writes included.
    pub fn view(&self) -> View<'a> {
        View::new(self.store, self.sequence)
    }

    /// The sequence that shows the state as of `revision`, which may be one of this same log entry.
    pub fn sequence_at(&self, revision: Revision) -> Result<Result<Sequence, Unavailable>, StoreError> {
        match self.recorder.sequence_of(revision) {
            Some(sequence) if revision >= self.compacted() => Ok(Ok(sequence)),
            _ => history::sequence_at(self.view(), &self.progress(), revision),
        }
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
    pub fn put(&mut self, key: &[u8], value: Bytes) {
        self.store.put(key, value, self.sequence);
    }

    /// Deletes bookkeeping.
    pub fn delete(&mut self, key: &[u8]) {
        self.store.delete(key, self.sequence);
    }

    /// Writes (`Some`) or deletes (`None`) a record that has a history and watchers, at [`Self::next_revision`].
    ///
    /// Written and then deleted (as two transactions within one may) it counts as deleted: an event tells of a key once.
    /// Deleted or written, and then written, is the caller's to refuse.
    pub fn change(&mut self, key: Bytes, value: Option<Bytes>) {
        match &value {
            Some(value) => self.store.put(&key, value.clone(), self.sequence),
            None => self.store.delete(&key, self.sequence),
        }
        if value.is_some() {
            self.written.push(self.changes.len());
        } else if let Some(place) = self.written.iter().position(|place| self.changes[*place].key == key) {
            let place = self.written.swap_remove(place);
            self.changes[place].value = None;
            return;
        }
        self.changes.push(Change { key, value });
    }

    /// Tells of a change under another `name` too, so that it can be watched by it. The record itself stands at `key`,
    /// where this command has written it; nothing is stored under the name.
    pub fn change_also_known_as(&mut self, name: Bytes, key: &Bytes, value: Option<Bytes>) {
        if value.is_some() {
            self.aliases.push((self.changes.len(), key.clone()));
        }
        self.changes.push(Change { key: name, value });
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
