//! How log entries are applied to the machines of all faces, and how a cluster is founded.

use crate::allowance::Allowance;
use crate::batch::Batch;
use crate::entry::{Entry, Finished};
use crate::faces::{Command, Faces, Memory, Reply};
use crate::history::{self, Event};
use crate::message::Message;
use crate::store::{Store, StoreError, View};
use crate::system;
use crate::types::{Index, Progress, Revision, Sequence, Stamp, Term};
use bytes::Bytes;
use std::num::NonZeroU64;

pub use crate::progress::{decode_progress, encode_progress, read_progress};

const CONFIGURATION_KEY: &[u8] = b"\0c";
/// Where the log of a founded cluster begins. **Invariant: Founding.** The founding state counts as a
/// snapshot at this index, so a replica that joins later always gets it.
pub const FOUNDING_INDEX: Index = Index(1);
/// The term of the founding state.
pub const FOUNDING_TERM: Term = Term(1);

/// The machines of a replica: its progress, and what the faces keep besides the store, all of it derived from
/// the store.
pub struct Machines {
    progress: Progress,
    faces: Faces,
}

/// The result of applying one log entry.
#[derive(Debug, Default)]
pub struct Outcome {
    /// One reply per command, in their order.
    pub replies: Vec<Reply>,
    /// The changes, in revision order.
    pub events: Vec<Event>,
    /// What was said, in order.
    pub messages: Vec<Message>,
    /// A hash over all that was written and deleted: the same on every replica of this version.
    pub effects: u64,
}

impl Machines {
    /// The machines of a store that may hold state already.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(store: &dyn Store) -> Result<Self, StoreError> {
        let progress = read_progress(store)?;
        forget_compacted(store, &progress)?;
        let faces = Faces::open(View::new(store, progress.sequence), &progress)?;
        Ok(Self { progress, faces })
    }

    /// Bounds the memory that the ledger takes for accounts, in bytes. To be called before anything is applied.
    pub fn set_ledger_cache_bytes(&mut self, bytes: usize) {
        self.faces.set_ledger_cache_bytes(bytes);
    }

    /// Reads a little of the state into memory, as far as it has its place there: about a millisecond of work, for
    /// times when there is none. False once there is nothing left to do, or something cannot be read.
    pub fn warm(&mut self, store: &dyn Store) -> bool {
        self.faces.warm(View::new(store, self.progress.sequence))
    }

    /// The last applied entry and the numbers it reached.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// When the next lease, key, node or pending transfer may expire, never later than it does: a leader with
    /// nothing else to do proposes [`system::Operation::Expire`] once the time has come.
    pub fn next_deadline(&self) -> Option<Stamp> {
        self.faces.next_deadline()
    }

    /// What the faces keep in memory for readers; the same for as long as these machines live.
    pub fn memory(&self) -> Memory {
        self.faces.memory()
    }

    /// Applies the entry at `index`. An empty payload (a new leader's first entry) only moves the progress.
    ///
    /// # Errors
    /// The store failed, or no leader of this version can have written these bytes: the node must stop.
    pub fn apply(
        &mut self,
        store: &dyn Store,
        index: Index,
        term: Term,
        payload: Bytes,
    ) -> Result<Outcome, StoreError> {
        let mut entry = self.begin(store, index, term);
        let mut replies = Vec::new();
        if !payload.is_empty() {
            let batch = Batch::decode(payload)?;
            entry.set_stamp(batch.stamp, term);
            self.faces.expire(&mut entry, Allowance::of(&batch.commands))?;
            replies.reserve(batch.commands.len());
            for command in batch.commands {
                replies.push(entry.run(|tx| self.faces.apply(tx, command))?);
            }
        }
        self.end(store, entry, replies)
    }

    /// Applies an entry that changes who votes: stores the `configuration` (opaque here) and applies the
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
        let mut entry = self.begin(store, index, term);
        let reply = entry.run(|tx| {
            tx.put(CONFIGURATION_KEY, configuration);
            match command {
                Some(command) => self.faces.run(tx, command),
                None => Ok(Reply::System(system::Reply::Done)),
            }
        })?;
        self.end(store, entry, vec![reply])
    }

    fn begin<'a>(&self, store: &'a dyn Store, index: Index, term: Term) -> Entry<'a> {
        assert_eq!(index, self.progress.index.next(), "entries are applied in order and once");
        Entry::begin(store, Progress { index, term, ..self.progress })
    }

    fn end(
        &mut self,
        store: &dyn Store,
        entry: Entry<'_>,
        replies: Vec<Reply>,
    ) -> Result<Outcome, StoreError> {
        let compacted_before = self.progress.compacted;
        let Finished { progress, events, messages, effects } = entry.finish();
        self.progress = progress;
        if progress.compacted != compacted_before {
            forget_compacted(store, &progress)?;
        }
        Ok(Outcome { replies, events, messages, effects })
    }
}

/// Writes the state with which every founding replica begins, into an empty store.
pub fn found(store: &dyn Store, configuration: Bytes, members: &[system::Member]) {
    let (index, term) = (FOUNDING_INDEX, FOUNDING_TERM);
    let mut entry =
        Entry::begin(store, Progress { index, term, revision: Revision(1), ..Progress::default() });
    let written = entry.run(|tx| {
        tx.put(CONFIGURATION_KEY, configuration);
        members.iter().for_each(|member| system::put_member(tx, member));
        Ok(())
    });
    written.expect("nothing was read, so nothing failed");
    end_founding(entry);
}

/// Makes a store that came from a snapshot the founding state of another cluster: `members` take the place of
/// those that were there, all else stays. The same on every founder. Returns the progress it reached.
///
/// With `raise` the newest revision becomes larger by so much, and everything below it is compacted: what the old
/// cluster did after the snapshot had smaller revisions, so nobody takes one of them for one of the new cluster's.
/// The sum must be below 2^63.
///
/// # Errors
/// The store cannot be read.
pub fn found_again(
    store: &dyn Store,
    configuration: Bytes,
    members: &[system::Member],
    raise: Option<NonZeroU64>,
) -> Result<Progress, StoreError> {
    let mut entry = Entry::begin(store, read_progress(store)?);
    entry.run(|tx| {
        tx.put(CONFIGURATION_KEY, configuration);
        system::replace_members(tx, members)
    })?;
    if let Some(by) = raise {
        entry.raise_revision(by.get());
    }
    Ok(end_founding(entry))
}

fn end_founding(entry: Entry<'_>) -> Progress {
    let Finished { progress, events, .. } = entry.finish();
    assert_eq!(events, [], "founding changes nothing that has a revision");
    progress
}

/// The configuration recorded in a store, opaque here; `None` in an empty store.
///
/// # Errors
/// The store cannot be read.
pub fn read_configuration(store: &dyn Store) -> Result<Option<Bytes>, StoreError> {
    store.get(CONFIGURATION_KEY, Sequence(u64::MAX - 1))
}

fn forget_compacted(store: &dyn Store, progress: &Progress) -> Result<(), StoreError> {
    let view = View::new(store, progress.sequence);
    if let Some((before, _)) = history::header(view, progress.compacted)? {
        // The event of the compacted revision itself stays: it gives the sequence at which to read that
        // revision.
        store.forget(before, &history::event_key(Revision(0)), &history::event_key(progress.compacted));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{
        self, Compare, CompareResult, CompareTarget, Operation, Publish, Put, Range, Refusal, Txn,
        TxnOperation, range, txn_operation::Step,
    };
    use crate::store::MemoryStore;

    fn put(store: &MemoryStore, value: &'static str) -> Progress {
        let mut machines = Machines::open(store).unwrap();
        let index = machines.progress().index.next();
        let put = Operation::Put(Put { key: "k".into(), value: value.into(), ..Put::default() });
        machines.apply(store, index, Term(1), Batch::encode(Stamp(1), &[put.into_command()])).unwrap();
        machines.progress()
    }

    fn read(store: &MemoryStore, progress: &Progress, revision: i64) -> Result<(Bytes, i64), Refusal> {
        let request = Range { key: "k".into(), revision, ..Range::default() };
        let reply = range(View::new(store, progress.sequence), progress, &request).unwrap()?;
        Ok((reply.kvs[0].value.clone(), reply.kvs[0].mod_revision))
    }

    #[test]
    fn messages_are_those_of_the_chosen_steps_in_order_and_have_no_revision() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let say = |channel: &'static str| {
            let publish = Publish { channel: channel.into(), payload: "p".into() };
            TxnOperation { step: Some(Step::Publish(publish)) }
        };
        let absent = Compare {
            key: "k".into(),
            target: Some(CompareTarget::Version(0)),
            result: CompareResult::Equal.into(),
            ..Compare::default()
        };
        let put = Put { key: "k".into(), ..Put::default() };
        let first = TxnOperation { step: Some(Step::Put(put)) };
        let if_absent = |success| Txn { compare: vec![absent.clone()], success, failure: vec![say("there")] };
        let within = if_absent(vec![say("within")]);
        let within = TxnOperation { step: Some(Step::Txn(within)) };
        let long = "c".repeat(kv::KEY_BYTES_MAX + 1);
        let refused = Publish { channel: long.into(), payload: Bytes::new() };
        let refused = vec![say("never"), TxnOperation { step: Some(Step::Publish(refused)) }];
        let txns = [
            if_absent(vec![first, say("absent"), within, say("again")]),
            if_absent(vec![say("never")]),
            Txn { success: refused, ..Txn::default() },
        ];
        let commands: Vec<_> = txns.into_iter().map(|txn| Operation::Txn(txn).into_command()).collect();
        let payload = Batch::encode(Stamp(1), &commands);
        let outcome = machines.apply(&store, Index(1), Term(1), payload).unwrap();
        let said: Vec<_> = outcome.messages.iter().map(|message| &message.channel[..]).collect();
        assert_eq!(said, [&b"absent"[..], b"within", b"again", b"there"]);
        assert_eq!(outcome.events.len(), 1);
        assert_eq!(machines.progress().revision, outcome.events[0].revision);
        let refusal = Refusal::KeyTooLong { bytes: kv::KEY_BYTES_MAX + 1 };
        let Reply::Kv(reply) = &outcome.replies[2] else { panic!("{:?}", outcome.replies) };
        assert_eq!(reply.result, Err(refusal));
    }

    /// A client's cache that had seen revision 4 of the old cluster took the new one's for the same, and kept what was
    /// not true any more.
    #[test]
    fn a_raised_revision_is_above_all_that_the_old_cluster_gave() {
        let store = MemoryStore::new();
        found(&store, Bytes::new(), &[]);
        put(&store, "first");
        assert_eq!(put(&store, "second").revision, Revision(3));
        let founded = found_again(&store, Bytes::new(), &[], NonZeroU64::new(1000)).unwrap();
        assert_eq!((founded.revision, founded.compacted), (Revision(1003), Revision(1003)));
        assert_eq!(read(&store, &founded, 0), Ok(("second".into(), 3)));
        let later = put(&store, "third");
        assert_eq!(later.revision, Revision(1004));
        assert_eq!(read(&store, &later, 0), Ok(("third".into(), 1004)));
        assert_eq!(read(&store, &later, 1003), Ok(("second".into(), 3)));
        for revision in [3, 1002] {
            let compacted = history::Unavailable::Compacted { compacted: Revision(1003) };
            assert_eq!(read(&store, &later, revision), Err(compacted.into()));
        }
        let view = View::new(&store, later.sequence);
        let events = history::events(view, Revision(1003), Revision(1004), |_| true);
        let changes: Vec<_> = events.map(|event| event.unwrap().changes.len()).collect();
        assert_eq!(changes, [0, 1], "a watch from the first revision that it may begin at");
    }
}
