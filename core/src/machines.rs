//! The list of machines, and how one log entry is applied to them.
//!
//! Adding a face: its variant in [`Face`], its field in [`Machines`], its arm in [`Reply`] and in `dispatch`.
//!
//! **Invariant (one step).** All effects of an entry, its [`Progress`] included, are written before the next
//! entry begins, and the store persists only whole entries. So a crash loses whole entries off the end, and
//! replaying the log from the stored progress restores them.

use crate::batch::{Batch, Command, Face};
use crate::codec::{self, Reader};
use crate::history::{self, Event, Recorder};
use crate::store::{Store, StoreError, View};
use crate::tx::Tx;
use crate::types::{Index, Progress, Revision, Sequence, Stamp, Term};
use crate::{kv, ledger, route, system, table};
use bytes::Bytes;
use std::sync::Arc;

const PROGRESS_KEY: &[u8] = b"\0p";
const CONFIGURATION_KEY: &[u8] = b"\0c";
/// Where the log of a founded cluster begins: its founding state counts as a snapshot at this index, so a
/// replica that joins later always gets it.
pub const FOUNDING_INDEX: Index = Index(1);
/// The term of the founding state.
pub const FOUNDING_TERM: Term = Term(1);

/// Every face's machine, with what they remember besides the store (all of it derived from the store).
pub struct Machines {
    progress: Progress,
    kv: kv::Machine,
    route: route::Machine,
    ledger: ledger::Machine,
    table: table::Machine,
}

/// What a command is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// By [`system`].
    System(system::Reply),
    /// By [`kv`].
    Kv(kv::Reply),
    /// By [`route`].
    Route(route::Reply),
    /// By [`ledger`].
    Ledger(ledger::Reply),
    /// By [`table`].
    Table(table::Reply),
}

/// What became of one log entry.
#[derive(Debug, Default)]
pub struct Outcome {
    /// One reply per command, in their order.
    pub replies: Vec<Reply>,
    /// What changed, in revision order.
    pub events: Vec<Event>,
}

impl Machines {
    /// The machines of a store that may hold state already.
    pub fn open(store: &dyn Store) -> Result<Self, StoreError> {
        let progress = read_progress(store)?;
        let view = View::new(store, progress.sequence);
        forget_compacted(store, &progress)?;
        Ok(Self {
            progress,
            kv: kv::Machine::open(view)?,
            route: route::Machine::open(view, progress.revision)?,
            ledger: ledger::Machine::open(view)?,
            table: table::Machine::open(view)?,
        })
    }

    /// How far this replica is.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// When the next lease, key, node or pending transfer expires, if any does: a leader with nothing else to do
    /// proposes [`system::Operation::Tick`] once its clock has reached it.
    pub fn next_deadline(&self) -> Option<Stamp> {
        let deadlines = [self.kv.next_deadline(), self.route.next_deadline(), self.ledger.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// The newest rules of the route face.
    pub fn routes(&self) -> &Arc<route::Table> {
        self.route.table()
    }

    /// The tables' versions and changes as lookups see them.
    pub fn tables(&self) -> &Arc<table::Live> {
        self.table.live()
    }

    /// Applies the entry at `index`. An empty payload (a new leader's first entry) only moves the progress.
    ///
    /// # Errors
    /// A fault of the store, or bytes that no leader of this version can have written: the node must stop.
    pub fn apply(
        &mut self,
        store: &dyn Store,
        index: Index,
        term: Term,
        payload: Bytes,
    ) -> Result<Outcome, StoreError> {
        let before = self.begin(index, term);
        let (mut outcome, mut recorder) = (Outcome::default(), Recorder::default());
        if !payload.is_empty() {
            let batch = Batch::decode(payload)?;
            // A new leader's clock may lag: time never runs backwards along the log.
            self.progress.stamp = self.progress.stamp.max(batch.stamp);
            if self.progress.stamped_term != term {
                self.progress.stamped_term = term;
                self.progress.term_began = self.progress.stamp;
            }
            self.expire(store, &mut recorder, &mut outcome)?;
            outcome.replies.reserve(batch.commands.len());
            for command in batch.commands {
                let mut tx = Tx::begin(store, &self.progress, &mut recorder);
                let reply = self.dispatch(&mut tx, command)?;
                outcome.replies.push(reply);
                outcome.events.extend(tx.finish(&mut self.progress));
            }
        }
        self.end(store, before, recorder)?;
        Ok(outcome)
    }

    /// Applies an entry that changes who votes: stores the `configuration` (opaque here) and does the
    /// `command` that goes with it.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn apply_configuration(
        &mut self,
        store: &dyn Store,
        index: Index,
        term: Term,
        configuration: Bytes,
        command: Option<Command>,
    ) -> Result<Outcome, StoreError> {
        let before = self.begin(index, term);
        let (mut outcome, mut recorder) = (Outcome::default(), Recorder::default());
        let mut tx = Tx::begin(store, &self.progress, &mut recorder);
        tx.put(CONFIGURATION_KEY, configuration);
        let reply = match command {
            Some(command) => self.dispatch(&mut tx, command)?,
            None => Reply::System(system::Reply::Done),
        };
        outcome.replies.push(reply);
        outcome.events.extend(tx.finish(&mut self.progress));
        self.end(store, before, recorder)?;
        Ok(outcome)
    }

    fn begin(&mut self, index: Index, term: Term) -> Revision {
        assert_eq!(index, self.progress.index.next(), "entries are applied in order and once");
        self.progress.index = index;
        self.progress.term = term;
        self.progress.compacted
    }

    fn end(
        &mut self,
        store: &dyn Store,
        compacted_before: Revision,
        mut recorder: Recorder,
    ) -> Result<(), StoreError> {
        recorder.write(store);
        // The progress record takes a sequence of its own, so that no key is ever written twice at one.
        self.progress.sequence = self.progress.sequence.next();
        store.put(PROGRESS_KEY, encode_progress(&self.progress), self.progress.sequence);
        if self.progress.compacted != compacted_before {
            forget_compacted(store, &self.progress)?;
        }
        Ok(())
    }

    fn dispatch(&mut self, tx: &mut Tx<'_>, command: Command) -> Result<Reply, StoreError> {
        Ok(match command.face {
            Face::System => Reply::System(system::apply(tx, command.bytes)?),
            Face::Kv => Reply::Kv(self.kv.apply(tx, command.bytes)?),
            Face::Route => Reply::Route(self.route.apply(tx, command.bytes)?),
            Face::Ledger => Reply::Ledger(self.ledger.apply(tx, command.bytes)?),
            Face::Table => Reply::Table(self.table.apply(tx, command.bytes)?),
        })
    }

    /// Lets what is due expire, one revision per lease or key, before the batch's commands see the state.
    fn expire(
        &mut self,
        store: &dyn Store,
        recorder: &mut Recorder,
        outcome: &mut Outcome,
    ) -> Result<(), StoreError> {
        let view = View::new(store, self.progress.sequence);
        let due = self.kv.due(view, self.progress.stamp, kv::EXPIRIES_PER_BATCH_MAX)?;
        let left = kv::EXPIRIES_PER_BATCH_MAX - due.len();
        for due in due {
            let mut tx = Tx::begin(store, &self.progress, recorder);
            self.kv.expire(&mut tx, due)?;
            outcome.events.extend(tx.finish(&mut self.progress));
        }
        for _ in 0..left {
            let mut tx = Tx::begin(store, &self.progress, recorder);
            if !self.route.expire_next(&mut tx)? {
                break;
            }
            outcome.events.extend(tx.finish(&mut self.progress));
        }
        let mut tx = Tx::begin(store, &self.progress, recorder);
        if self.ledger.expire(&mut tx)? {
            outcome.events.extend(tx.finish(&mut self.progress));
        }
        Ok(())
    }
}

/// The progress recorded in a store; the default for an empty one, at revision 1.
pub fn read_progress(store: &dyn Store) -> Result<Progress, StoreError> {
    match store.get(PROGRESS_KEY, Sequence(u64::MAX - 1))? {
        Some(record) => decode_progress(record),
        None => Ok(Progress { revision: Revision(1), ..Progress::default() }),
    }
}

/// Writes the state with which every founding replica begins, into an empty store.
pub fn found(store: &dyn Store, configuration: Bytes, members: &[system::Member]) {
    let mut progress = Progress { revision: Revision(1), ..Progress::default() };
    let mut recorder = Recorder::default();
    let mut tx = Tx::begin(store, &progress, &mut recorder);
    tx.put(CONFIGURATION_KEY, configuration);
    for member in members {
        system::put_member(&mut tx, member);
    }
    let event = tx.finish(&mut progress);
    assert_eq!(event, None, "founding changes nothing that has a revision");
    progress.index = FOUNDING_INDEX;
    progress.term = FOUNDING_TERM;
    progress.sequence = progress.sequence.next();
    store.put(PROGRESS_KEY, encode_progress(&progress), progress.sequence);
}

/// Makes the state of a store, which came from a snapshot, the founding state of another cluster: its members take the
/// place of those that were there, all else stays. The same on every founder. Returns where it ends.
///
/// # Errors
/// The store cannot be read.
pub fn found_again(
    store: &dyn Store,
    configuration: Bytes,
    members: &[system::Member],
) -> Result<Progress, StoreError> {
    let mut progress = read_progress(store)?;
    let mut recorder = Recorder::default();
    let mut tx = Tx::begin(store, &progress, &mut recorder);
    tx.put(CONFIGURATION_KEY, configuration);
    system::replace_members(&mut tx, members)?;
    let event = tx.finish(&mut progress);
    assert_eq!(event, None, "founding changes nothing that has a revision");
    progress.sequence = progress.sequence.next();
    store.put(PROGRESS_KEY, encode_progress(&progress), progress.sequence);
    Ok(progress)
}

/// The configuration recorded in a store, opaque here; `None` in an empty store.
pub fn read_configuration(store: &dyn Store) -> Result<Option<Bytes>, StoreError> {
    store.get(CONFIGURATION_KEY, Sequence(u64::MAX - 1))
}

fn forget_compacted(store: &dyn Store, progress: &Progress) -> Result<(), StoreError> {
    let view = View::new(store, progress.sequence);
    if let Some((before, _)) = history::header(view, progress.compacted)? {
        // The event of the compacted revision itself stays: it tells the sequence to read that revision at.
        store.forget(before, &history::event_key(Revision(0)), &history::event_key(progress.compacted));
    }
    Ok(())
}

/// The progress record's bytes: six varints in the order of the fields.
pub fn encode_progress(progress: &Progress) -> Bytes {
    let Progress { index, term, sequence, revision, stamp, compacted, term_began, stamped_term } = *progress;
    let mut out = Vec::with_capacity(48);
    let numbers =
        [index.0, term.0, sequence.0, revision.0, stamp.0, compacted.0, term_began.0, stamped_term.0];
    for number in numbers {
        codec::put_varint(&mut out, number);
    }
    out.into()
}

/// Reads a progress record.
pub fn decode_progress(record: Bytes) -> Result<Progress, StoreError> {
    let mut reader = Reader::new(record, "progress record");
    Ok(Progress {
        index: Index(reader.varint()?),
        term: Term(reader.varint()?),
        sequence: Sequence(reader.varint()?),
        revision: Revision(reader.varint()?),
        stamp: Stamp(reader.varint()?),
        compacted: Revision(reader.varint()?),
        term_began: Stamp(reader.varint()?),
        stamped_term: Term(reader.varint()?),
    })
}
