//! Unique references: if they are switched on, a single or pending transfer whose reference another one has taken is
//! refused. Linked transfers are one thing, of which each may have the same reference.
//!
//! **Invariant: Unique references.** The record of a reference is written in the same step as the effect of its transfer,
//! and every transfer that moves or reserves something looks for it. A refused transfer takes no reference.
//!
//! A post, a void and a revert may repeat the reference of the transfer that they end. What was recorded while references
//! need not be unique has taken none.

use super::record::{self, REFERENCES};
use super::run::Run;
use super::transfer::{Kind, Transfer};
use crate::mutants;
use crate::store::StoreError;

/// A reference that a transfer of this command takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// The first transfer of its group that has it.
    by: u128,
    group: u32,
}

impl Run<'_, '_> {
    /// Whether another transfer has the reference that this one would take.
    pub(super) fn reference_is_taken(&self, transfer: &Transfer<'_>) -> Result<bool, StoreError> {
        if !self.unique_references || !takes(transfer) {
            return Ok(false);
        }
        if let Some(taken) = self.references.get(transfer.reference) {
            return Ok(taken.group != self.group);
        }
        Ok(self.tx.get(&record::text_key(REFERENCES, transfer.reference))?.is_some())
    }

    /// Takes the reference of a transfer that is allowed, unless its group has it already.
    pub(super) fn take_reference(&mut self, transfer: &Transfer<'_>) {
        if self.unique_references && takes(transfer) && !self.references.contains_key(transfer.reference) {
            let taken = Taken { by: transfer.id, group: self.group };
            self.references.insert(transfer.reference.to_owned(), taken);
            self.undo_references.push(transfer.reference.to_owned());
        }
    }

    pub(super) fn write_references(&mut self) {
        for (reference, taken) in self.references.iter().filter(|_| !mutants::is("reference-unwritten")) {
            self.tx.put(&record::text_key(REFERENCES, reference), taken.by.to_be_bytes().to_vec().into());
        }
    }
}

fn takes(transfer: &Transfer<'_>) -> bool {
    !transfer.reference.is_empty() && matches!(transfer.kind, Kind::Single { .. } | Kind::Pending { .. })
}
