//! Which process runs as a member.
//!
//! **Invariant: One process per member.** A dialler is welcome only if no other process answers at the
//! address of the one that was last known to run as its member. So of two processes with one id, each peer
//! listens to one; the other is told, and stops.

use crate::greeting::{Greeting, identify};
use parking_lot::Mutex;
use quoin_tls::Keys;
use std::collections::BTreeMap;

/// Peers' addresses by member.
pub(super) type Addresses = Mutex<BTreeMap<u64, String>>;

/// The processes that have connections here, by member.
#[derive(Default)]
pub(super) struct Holders(Mutex<BTreeMap<u64, Holder>>);

#[derive(Clone)]
struct Holder {
    incarnation: u64,
    address: String,
    connections: usize,
}

/// One connection of a member's process. While it lasts, another process as this member is checked against
/// it.
pub(super) struct Held<'a> {
    holders: &'a Holders,
    id: u64,
    incarnation: u64,
}

impl Holders {
    /// Notes a connection of the dialler, unless another process runs as its member.
    ///
    /// The rival is the process that has connections here, or whoever is at the member's address. Only asking
    /// it tells whether it is alive: a connection may look alive for long after its machine has died.
    ///
    /// # Errors
    /// The rival's address.
    pub(super) fn claim(
        &self,
        greeting: &Greeting,
        addresses: &Addresses,
        keys: Option<&Keys>,
    ) -> Result<Held<'_>, String> {
        let (id, incarnation) = (greeting.from, greeting.incarnation);
        loop {
            let known = self.0.lock().get(&id).cloned();
            let suspect = match &known {
                Some(holder) if holder.incarnation == incarnation => None,
                Some(holder) => Some(holder.address.clone()),
                None => addresses.lock().get(&id).cloned(),
            };
            if let Some(address) = suspect
                && let Ok(found) = identify(&address, keys)
                && (found.cluster, found.id) == (greeting.cluster, id)
                && found.incarnation != incarnation
            {
                return Err(address);
            }
            let mut holders = self.0.lock();
            let holder = holders.get_mut(&id);
            if holder.as_ref().map(|holder| holder.incarnation) != known.map(|known| known.incarnation) {
                // Another process claimed the member meanwhile.
                continue;
            }
            match holder {
                Some(holder) if holder.incarnation == incarnation => holder.connections += 1,
                _ => {
                    let address = greeting.address.clone();
                    holders.insert(id, Holder { incarnation, address, connections: 1 });
                }
            }
            return Ok(Held { holders: self, id, incarnation });
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut holders = self.holders.0.lock();
        let Some(holder) = holders.get_mut(&self.id) else { return };
        if holder.incarnation == self.incarnation {
            holder.connections -= 1;
            if holder.connections == 0 {
                holders.remove(&self.id);
            }
        }
    }
}
