//! The log as the consensus library sees it.
//!
//! **Invariant: Overlay.** What the library has handed out to be written can be read here at once, before it
//! is on disk: `pending` holds it until the log has it. Where both have an entry at an index, the pending one
//! counts.

use crate::entries::to_library;
use crate::group::GroupId;
use crate::log::Log;
use bytes::Bytes;
use raft::eraftpb::{self, ConfState};
use raft::{GetEntriesContext, RaftState, StorageError};
use std::collections::VecDeque;
use std::sync::Arc;

/// One group's log with what is on its way to the disk, and the group's configuration.
pub(crate) struct Storage {
    log: Arc<Log>,
    group: GroupId,
    pending: VecDeque<eraftpb::Entry>,
    configuration: ConfState,
    /// What the store had applied at the start, and so is committed. The log's hard state may say less.
    applied_at_start: u64,
    /// Index and term of an installed snapshot, until the log has restarted behind it.
    pending_base: Option<(u64, u64)>,
}

impl Storage {
    /// The storage of `group`, whose store has applied entries up to `applied` and is at `configuration`.
    pub(crate) fn new(log: Arc<Log>, group: GroupId, configuration: ConfState, applied: u64) -> Self {
        Self {
            log,
            group,
            pending: VecDeque::new(),
            configuration,
            applied_at_start: applied,
            pending_base: None,
        }
    }

    /// Makes `entries` readable before they are written. They replace everything from their first index on.
    pub(crate) fn expect(&mut self, entries: &[eraftpb::Entry]) {
        let Some(first) = entries.first() else { return };
        while self.pending.back().is_some_and(|last| last.index >= first.index) {
            self.pending.pop_back();
        }
        self.pending.extend(entries.iter().cloned());
    }

    /// The log will restart behind the snapshot at `index`.
    pub(crate) fn expect_base(&mut self, index: u64, term: u64, configuration: ConfState) {
        self.pending.clear();
        self.pending_base = Some((index, term));
        self.configuration = configuration;
    }

    /// The log now has everything up to the entry at `index` of `term`.
    pub(crate) fn written(&mut self, index: u64, term: u64) {
        let Some(position) = self.pending.iter().position(|entry| entry.index == index && entry.term == term)
        else {
            return;
        };
        self.pending.drain(..=position);
    }

    /// The log has restarted behind the snapshot.
    pub(crate) fn base_written(&mut self) {
        self.pending_base = None;
    }

    /// A configuration entry was applied.
    pub(crate) fn set_configuration(&mut self, configuration: ConfState) {
        self.configuration = configuration;
    }

    /// The configuration in force.
    pub(crate) fn configuration(&self) -> &ConfState {
        &self.configuration
    }

    fn base(&self) -> (u64, u64) {
        self.pending_base.unwrap_or_else(|| {
            let base = self.log.base(self.group);
            (base.index, base.term)
        })
    }
}

impl raft::Storage for Storage {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let mut hard = eraftpb::HardState::default();
        if let Some(state) = self.log.hard_state(self.group) {
            hard.term = state.term;
            hard.vote = state.vote;
            hard.commit = state.commit;
        }
        // A commit index alone is not written, so the store may know better.
        hard.commit = hard.commit.max(self.applied_at_start);
        Ok(RaftState::new(hard, self.configuration.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low < raft::Storage::first_index(self)? {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        let pending_first = self.pending.front().map_or(u64::MAX, |entry| entry.index);
        let mut entries = Vec::new();
        if low < pending_first {
            let written = self.log.entries(self.group, low..high.min(pending_first), bytes_max);
            entries.extend(written.map_err(log_error)?.into_iter().map(to_library));
        }
        let whole = entries.len() as u64 == high.min(pending_first).saturating_sub(low);
        if whole && high > pending_first {
            let skip = low.max(pending_first) - pending_first;
            let wanted = self.pending.iter().skip(skip as usize);
            entries.extend(wanted.take_while(|entry| entry.index < high).cloned());
        }
        limit_size(&mut entries, bytes_max);
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let (base_index, base_term) = self.base();
        if index == base_index {
            return Ok(base_term);
        }
        if index < base_index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if let Some(first) = self.pending.front().filter(|first| index >= first.index) {
            let entry = self.pending.get((index - first.index) as usize);
            return entry.map(|entry| entry.term).ok_or(raft::Error::Store(StorageError::Unavailable));
        }
        self.log.term(self.group, index).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base().0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        match (self.pending.back(), self.pending_base) {
            (Some(last), _) => Ok(last.index),
            (None, Some((index, _))) => Ok(index),
            (None, None) => Ok(self.log.last_index(self.group)),
        }
    }

    /// Only the mark of a snapshot. The replica asks its driver to stream the state itself, as of the newest
    /// applied entry, in place of the message that would carry this.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<eraftpb::Snapshot> {
        let mut snapshot = eraftpb::Snapshot::default();
        let (base_index, base_term) = self.base();
        let index = request_index.max(base_index);
        let metadata = snapshot.mut_metadata();
        metadata.index = index;
        metadata.term = raft::Storage::term(self, index).unwrap_or(base_term);
        metadata.set_conf_state(self.configuration.clone());
        Ok(snapshot)
    }
}

fn limit_size(entries: &mut Vec<eraftpb::Entry>, bytes_max: u64) {
    let mut total = 0;
    let fitting = entries
        .iter()
        .take_while(|entry| {
            total += entry_bytes(&entry.data, &entry.context);
            total <= bytes_max
        })
        .count();
    // At least one, however large, or a large entry could never be sent.
    entries.truncate(fitting.max(1));
}

fn entry_bytes(data: &Bytes, context: &Bytes) -> u64 {
    (data.len() + context.len() + 24) as u64
}

fn log_error(error: crate::log::LogError) -> raft::Error {
    raft::Error::Store(StorageError::Other(Box::new(error)))
}
