//! The state with which a cluster begins.

use bytes::Bytes;
use quoin_consensus::Configuration;
use quoin_core::{StoreError, machines, system};
use quoin_store::LsmStore;

/// The state with which a cluster begins. The same on every founder.
pub struct Founding {
    /// The founding members, all of them voters.
    pub configuration: Configuration,
    /// The member records.
    pub members: Vec<system::Member>,
}

impl Founding {
    /// The founding of a cluster of `members`, all of whom vote.
    pub fn of(members: Vec<system::Member>) -> Self {
        Self { configuration: Configuration::of_voters(members.iter().map(|member| member.id)), members }
    }

    /// The configuration as a store records it.
    pub fn record(&self) -> Bytes {
        self.configuration.encode()
    }

    /// Writes the founding state into `store` and makes it durable, unless the store has state already.
    pub(crate) fn write(&self, store: &LsmStore) -> Result<(), StoreError> {
        if machines::read_progress(store)?.index.0 > 0 {
            return Ok(());
        }
        machines::found(store, self.record(), &self.members);
        store.batch_applied(machines::FOUNDING_INDEX)?;
        store.flush()
    }
}
