//! Reverts: a transfer that moves back what another has moved. The two are linked: the revert names the other, and a
//! record names the revert of the other.
//!
//! **Invariant: Reverted once.** A transfer is reverted at most once. The record is written in the same step as the
//! revert, and every revert looks for it.
//!
//! What a single transfer or a post has moved can be reverted. A pending transfer is voided instead, and what a revert
//! moved back is moved again by a new transfer.

use super::code::Code;
use super::query;
use super::record::{self, REVERTS};
use super::run::{Known, Run};
use super::transfer::{Kind, Transfer};
use super::transfers::Verdict;
use super::{Entry, Resolution};
use crate::store::StoreError;

impl Run<'_, '_> {
    /// Judges a revert of the transfer `reverted`, by the rules of any other transfer.
    pub(super) fn revert(&mut self, transfer: &Transfer<'_>, reverted: u128) -> Result<Verdict, StoreError> {
        let Some(entry) = self.entry_of(reverted)? else { return Ok(Err(Code::RevertedUnknown)) };
        let Some(Resolution { debit, credit, amount, .. }) = entry.effect() else {
            return Ok(Err(Code::RevertedUnknown));
        };
        if !matches!(entry.transfer().kind, Kind::Single { .. } | Kind::Post { .. }) {
            return Ok(Err(Code::NotRevertible));
        }
        if self.is_reverted(reverted)? {
            return Ok(Err(Code::AlreadyReverted));
        }
        let verdict = self.movement(transfer, credit, debit, amount, false)?;
        if verdict.is_ok() {
            self.reverts.insert(reverted, transfer.id);
            self.undo_reverts.push(reverted);
        }
        Ok(verdict)
    }

    fn is_reverted(&self, id: u128) -> Result<bool, StoreError> {
        Ok(self.reverts.contains_key(&id) || query::reverted_by(self.tx.view(), id)?.is_some())
    }

    /// The recorded transfer with this id.
    pub(super) fn entry_of(&mut self, id: u128) -> Result<Option<Entry>, StoreError> {
        match self.known(id)? {
            Some(Known::Here(position)) => self.entry_here(position).map(Some),
            Some(Known::Stored(revision, position)) => query::entry_at(self.tx.view(), revision, position),
            Some(Known::Key) | None => Ok(None),
        }
    }

    pub(super) fn write_reverts(&mut self) {
        for (reverted, revert) in &self.reverts {
            self.tx.put(&record::id_key(REVERTS, *reverted), revert.to_be_bytes().to_vec().into());
        }
    }
}
