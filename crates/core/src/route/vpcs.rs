//! Which VPCs have which network, so that a network gets no second one.
//!
//! **Invariant: Derived (memory).** Made from the stored VPCs when a replica opens, then changed by the machine only.
//!
//! Earlier versions let several VPCs have one network. Those that do keep it, and may be written again.
//!
//! Bound: about 100 bytes per VPC, besides its name.

use super::command::ObjectKind;
use super::query::objects;
use crate::store::{StoreError, View};
use bytes::Bytes;
use parking_lot::RwLock;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// The names of the VPCs of each network.
#[derive(Debug, Default)]
pub struct Vpcs {
    names: RwLock<BTreeMap<u32, BTreeSet<Bytes>>>,
}

/// What the machine reads of an object's message, `quoin.route.v1.Object`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Body {
    #[prost(message, optional, tag = "1")]
    pub(super) vpc: Option<Vpc>,
}

/// What the machine reads of `quoin.route.v1.Vpc`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Vpc {
    #[prost(uint32, tag = "2")]
    pub(super) vni: u32,
}

/// The network of the VPC with this message; `None` if it has none, or if the message is no VPC's.
pub(super) fn network(body: &[u8]) -> Option<u32> {
    let vpc = Body::decode(body).ok()?.vpc?;
    (vpc.vni != 0).then_some(vpc.vni)
}

impl Vpcs {
    pub(super) fn open(view: View<'_>) -> Result<Self, StoreError> {
        let vpcs = Self::default();
        for object in objects(view, ObjectKind::Vpc, None) {
            let object = object?;
            vpcs.change(&object.name, None, network(&object.body));
        }
        Ok(vpcs)
    }

    /// The names of a network's VPCs, in order: one, or none, unless an earlier version let there be more.
    pub fn of(&self, vni: u32) -> Vec<Bytes> {
        self.names.read().get(&vni).into_iter().flatten().cloned().collect()
    }

    /// The VPC because of which the one with this name cannot have the network.
    pub(super) fn holder(&self, vni: u32, name: &[u8]) -> Option<Bytes> {
        let names = self.names.read();
        let holders = names.get(&vni)?;
        if holders.contains(name) { None } else { holders.first().cloned() }
    }

    /// Notes that a VPC's network was `before`, and is `now`.
    pub(super) fn change(&self, name: &[u8], before: Option<u32>, now: Option<u32>) {
        let mut names = self.names.write();
        if let Some(vni) = before
            && let Some(holders) = names.get_mut(&vni)
        {
            holders.remove(name);
            if holders.is_empty() {
                names.remove(&vni);
            }
        }
        if let Some(vni) = now {
            names.entry(vni).or_default().insert(Bytes::copy_from_slice(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field numbers are those of `route.proto`, and what other versions add is passed over.
    #[test]
    fn the_network_is_read_from_the_bytes_of_a_vpc() {
        let vpc = |vpc: &[u8]| [&[0x0a, u8::try_from(vpc.len()).unwrap()], vpc].concat();
        assert_eq!(network(&vpc(b"\x0a\x01v\x10\xac\x02\x1a\x0110.0.0.0/8")), None, "cut");
        assert_eq!(network(&vpc(b"\x0a\x01v\x10\xac\x02\x1a\x0a10.0.0.0/8")), Some(300));
        assert_eq!(network(&vpc(b"\x0a\x01v\x32\x04\x0a\0\x12\0\x10\x07")), Some(7));
        assert_eq!(network(&vpc(b"\x0a\x01v")), None);
        assert_eq!(network(b"\x1a\x04\x0a\x02no"), None);
        assert_eq!(Body { vpc: Some(Vpc { vni: 300 }) }.encode_to_vec(), b"\x0a\x03\x10\xac\x02");
    }
}
