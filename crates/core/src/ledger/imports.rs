//! Imported transfers: those of another book, with the times that they have there.
//!
//! **Invariant: Order of imports.** Client times of imported transfers that were done grow strictly, in the order of the
//! log, and are in the past when they are recorded. The newest is in the store, and is read for imported ones only.
//!
//! A command's transfers are all imported or none is. An imported one cannot lapse: it has no timeout.

use super::code::Code;
use super::record::IMPORTED_KEY;
use super::run::Run;
use super::transfer::Transfer;
use crate::codec::{self, Reader};
use crate::mutants;
use crate::store::StoreError;

impl Run<'_, '_> {
    /// Judges the time of an imported transfer, and notes it.
    pub(super) fn import(&mut self, transfer: &Transfer<'_>) -> Result<Result<(), Code>, StoreError> {
        let time = transfer.times.client_ms;
        let newest = match self.imported_ms {
            Some(newest) => newest,
            None => self.stored_import()?,
        };
        if time <= newest && !mutants::is("imported-in-any-order") || time >= self.tx.stamp().0 {
            return Ok(Err(Code::ImportedTime));
        }
        self.undo_imported_ms.get_or_insert(newest);
        self.imported_ms = Some(time);
        Ok(Ok(()))
    }

    fn stored_import(&self) -> Result<u64, StoreError> {
        match self.tx.get(IMPORTED_KEY)? {
            Some(record) => Ok(Reader::new(&record[..], "time of imports").varint()?),
            None => Ok(0),
        }
    }

    pub(super) fn write_import(&mut self) {
        if let Some(newest) = self.imported_ms {
            let mut out = Vec::new();
            codec::put_varint(&mut out, newest);
            self.tx.put(IMPORTED_KEY, out.into());
        }
    }
}
