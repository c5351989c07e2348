//! What a replica has handed out to be written, until the driver says that it is on disk.

use super::effects::Append;
use crate::entries::from_library;
use crate::group::GroupId;
use crate::log::{Base, HardState, Record};
use crate::message::PeerMessage;
use crate::storage::Storage;
use std::collections::VecDeque;

/// Appends on their way to the disk, oldest first, by number. The number is that of the library's ready.
///
/// **Invariant: What was heard before is on disk with it.** Whoever has an entry on disk has there, too, that all
/// is committed that the leader said to be when it sent the entry.
///
/// **Invariant: A vote before its term.** Nothing of a term leaves before the vote in it is on disk. The library lets a
/// leader send entries while its own disk writes them, because who voted for it has seen its vote; the only voter is
/// elected by nobody else: after a crash it would lead in the same term again, with other entries in the same places.
#[derive(Default)]
pub(super) struct Appends {
    unwritten: VecDeque<(u64, Unwritten)>,
    /// The term and the vote that were handed out last.
    vote: (u64, u64),
    /// A commit index that was not worth a write of its own.
    commit: Option<HardState>,
}

/// What becomes true when an append is on disk.
#[derive(Default)]
struct Unwritten {
    /// The tick at which it was handed out.
    since_tick: u64,
    /// The log has everything up to the entry of this index and term.
    last: Option<(u64, u64)>,
    /// The log has restarted after a snapshot.
    restarted: bool,
    /// The append holds entries that this replica proposed.
    proposed: bool,
    /// It holds another term or vote than the ones before.
    votes: bool,
}

/// What a ready asks to be written.
#[derive(Default)]
pub(super) struct Writes {
    records: Vec<Record>,
    unwritten: Unwritten,
}

impl Writes {
    /// Takes the records out of `ready`, and makes them readable in `storage` at once. `leads` tells whose
    /// entries they are.
    pub(super) fn take(
        ready: &mut raft::Ready,
        appends: &mut Appends,
        storage: &mut Storage,
        group: GroupId,
        leads: bool,
    ) -> Self {
        let mut writes = Self::default();
        if !ready.snapshot().is_empty() {
            let metadata = ready.snapshot().get_metadata();
            let (index, term) = (metadata.index, metadata.term);
            storage.expect_base(index, term, metadata.get_conf_state().clone());
            writes.records.push(Record::Base(group, Base { index, term }));
            writes.unwritten.restarted = true;
        }
        if let Some(hard) = ready.hs() {
            appends.commit = Some(HardState { term: hard.term, vote: hard.vote, commit: hard.commit });
            let vote = (hard.term, hard.vote);
            writes.unwritten.votes = std::mem::replace(&mut appends.vote, vote) != vote;
        }
        // A commit index alone is not worth a write: the store knows how far it is, and the leader tells.
        if ready.must_sync() {
            writes.records.extend(appends.commit.take().map(|hard| Record::HardState(group, hard)));
        }
        let entries = ready.take_entries();
        storage.expect(&entries);
        if let Some(last) = entries.last() {
            writes.unwritten.last = Some((last.index, last.term));
            writes.unwritten.proposed = leads;
        }
        writes.records.extend(entries.into_iter().map(|entry| Record::Entry(group, from_library(entry))));
        writes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether they hold a vote.
    pub(super) fn has_vote(&self) -> bool {
        self.unwritten.votes
    }
}

impl Appends {
    /// Whether everything is on disk.
    pub(super) fn is_empty(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// How many batches of this leader are being written.
    pub(super) fn batches_in_flight(&self) -> usize {
        self.unwritten.iter().filter(|(_, unwritten)| unwritten.proposed).count()
    }

    /// Whether a vote is being written.
    pub(super) fn has_vote(&self) -> bool {
        self.unwritten.iter().any(|(_, unwritten)| unwritten.votes)
    }

    /// The tick since which the disk has been writing.
    pub(super) fn oldest_tick(&self) -> Option<u64> {
        self.unwritten.front().map(|(_, unwritten)| unwritten.since_tick)
    }

    /// Hands out an append. `messages` leave once it is on disk, and with it all before it.
    pub(super) fn push(
        &mut self,
        number: u64,
        writes: Writes,
        messages: Vec<(u64, PeerMessage)>,
        tick: u64,
    ) -> Append {
        self.unwritten.push_back((number, Unwritten { since_tick: tick, ..writes.unwritten }));
        Append { number, records: writes.records, messages }
    }

    /// The append of this number and all before it are on disk: `storage` no longer has to hold them in
    /// memory.
    pub(super) fn written(&mut self, number: u64, storage: &mut Storage) {
        while let Some((_, unwritten)) = self.unwritten.pop_front_if(|(first, _)| *first <= number) {
            if unwritten.restarted {
                storage.base_written();
            }
            if let Some((index, term)) = unwritten.last {
                storage.written(index, term);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code")]
mod tests {
    use crate::log::{HardState, Log, Options as LogOptions, Record, SimDisk, join};
    use crate::message::{PeerMessage, RaftMessage};
    use crate::replica::{Options, Replica};
    use crate::{Configuration, GROUP};
    use raft::eraftpb::{Entry, Message, MessageType};
    use std::sync::Arc;

    /// A commit index that came alone was never written, also not with the next entry.
    #[test]
    fn an_entry_is_written_with_what_was_known_to_be_committed() {
        let options =
            LogOptions { cluster: 1, node: 2, disk: 1, segment_bytes: 1 << 12, cache_bytes: 1 << 10 };
        let log = Arc::new(Log::open(Arc::new(SimDisk::new()), options).unwrap());
        join(&log, GROUP, 1, 1).unwrap();
        let voters = Configuration::of_voters([1, 2, 3]);
        let mut replica = Replica::new(2, GROUP, Arc::clone(&log), &voters, 1, Options::default()).unwrap();
        let mut written = |index: u64, commit: u64, entries: Vec<Entry>| {
            let mut message =
                Message { from: 1, to: 2, term: 1, index, commit, log_term: 1, ..Message::default() };
            message.set_msg_type(MessageType::MsgAppend);
            message.entries = entries.into();
            replica.step(1, PeerMessage::Raft(RaftMessage(Box::new(message))));
            let append = replica.effects(1).append;
            append.map(|append| {
                log.append(&append.records).unwrap();
                replica.written(append.number);
                append.records
            })
        };
        let entry = |index| Entry { index, term: 1, ..Entry::default() };
        assert!(written(1, 1, vec![entry(2)]).is_some());
        assert!(written(2, 2, Vec::new()).is_none(), "not worth a write");
        let records = written(2, 2, vec![entry(3)]).unwrap();
        assert!(
            records.contains(&Record::HardState(GROUP, HardState { term: 1, vote: 0, commit: 2 })),
            "{records:?}"
        );
    }
}
