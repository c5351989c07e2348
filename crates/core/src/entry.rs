//! One log entry while it is applied: each of its commands runs in a transaction of its own.
//!
//! **Invariant: One step.** All effects of an entry, its [`Progress`] included, are written before the next
//! entry begins, and the store persists only whole entries. So a crash loses whole entries off the end, and
//! replaying the log from the stored progress restores them.

use crate::history::{Event, Recorder};
use crate::message::Message;
use crate::progress::write_progress;
use crate::store::{Store, StoreError, View};
use crate::tx::Tx;
use crate::types::{Progress, Revision, Stamp, Term};

/// The progress so far, and what the entry's commands have changed.
pub(crate) struct Entry<'a> {
    store: &'a dyn Store,
    progress: Progress,
    recorder: Recorder,
    events: Vec<Event>,
    messages: Vec<Message>,
}

/// What an entry has done.
pub(crate) struct Finished {
    pub(crate) progress: Progress,
    pub(crate) events: Vec<Event>,
    pub(crate) messages: Vec<Message>,
    /// See `effects.rs`.
    pub(crate) effects: u64,
}

impl<'a> Entry<'a> {
    /// An entry; `progress` already has its index and term.
    pub(crate) fn begin(store: &'a dyn Store, progress: Progress) -> Self {
        Self { store, progress, recorder: Recorder::default(), events: Vec::new(), messages: Vec::new() }
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The state after the commands run so far.
    pub(crate) fn view(&self) -> View<'a> {
        View::new(self.store, self.progress.sequence)
    }

    /// Takes the stamp of the leader of `term`.
    pub(crate) fn set_stamp(&mut self, stamp: Stamp, term: Term) {
        // Invariant: Time is data. Stamps never run backwards along the log, whatever a leader of an older version wrote.
        self.progress.stamp = self.progress.stamp.max(stamp);
        if self.progress.stamped_term != term {
            self.progress.stamped_term = term;
            self.progress.term_began = self.progress.stamp;
        }
    }

    /// Runs one command.
    pub(crate) fn run<T>(
        &mut self,
        command: impl FnOnce(&mut Tx<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut tx = Tx::begin(self.store, &self.progress, &mut self.recorder);
        let done = command(&mut tx)?;
        self.messages.append(&mut tx.take_messages());
        self.events.extend(tx.finish(&mut self.progress));
        Ok(done)
    }

    /// Makes the newest revision larger by `by`, and compacts everything below it. An event without changes stands
    /// for it, so that its sequence can be found.
    pub(crate) fn raise_revision(&mut self, by: u64) {
        self.progress.compacted = Revision(self.progress.revision.0 + by);
        self.take_revision(self.progress.compacted);
    }

    /// Takes the next revision for a change that is none of ours.
    pub(crate) fn pass_revision(&mut self) {
        self.take_revision(self.progress.revision.next());
    }

    fn take_revision(&mut self, revision: Revision) {
        let progress = &mut self.progress;
        (progress.sequence, progress.revision) = (progress.sequence.next(), revision);
        let Progress { sequence, stamp, .. } = *progress;
        self.recorder.add(self.store, &Event { revision, sequence, stamp, changes: Vec::new() }, &[]);
    }

    /// Writes the event record and the progress record.
    pub(crate) fn finish(mut self) -> Finished {
        self.recorder.write(self.store);
        // The progress record takes a sequence of its own, so no key is ever written twice at one sequence.
        self.progress.sequence = self.progress.sequence.next();
        write_progress(self.store, &self.progress);
        let Self { progress, events, messages, recorder, .. } = self;
        Finished { progress, events, messages, effects: recorder.effects.hash() }
    }
}
