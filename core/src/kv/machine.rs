//! What a kv command does to the state.

use super::query::Reply;
use crate::store::{StoreError, View};
use crate::tx::Tx;
use crate::types::Stamp;
use bytes::Bytes;

/// How many leases and keys expire in one batch at most; the rest wait for the next batch.
pub const EXPIRIES_PER_BATCH_MAX: usize = 1000;

/// The kv face's machine: the store holds its state; this holds what is derived from it.
pub struct Machine {}

impl Machine {
    /// The machine of a store that may hold state already.
    pub fn open(_view: View<'_>) -> Result<Self, StoreError> {
        Ok(Self {})
    }

    /// When the next lease or key expires.
    pub fn next_deadline(&self) -> Option<Stamp> {
        None
    }

    /// Applies one command.
    pub fn apply(&mut self, _tx: &mut Tx<'_>, _bytes: Bytes) -> Result<Reply, StoreError> {
        unimplemented!()
    }

    /// Lets one lease or key that is due by the batch's stamp expire; false if none is due.
    pub fn expire_next(&mut self, _tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        Ok(false)
    }
}
