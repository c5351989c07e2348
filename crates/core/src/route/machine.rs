//! What a route command does to the state.
//!
//! **Invariant: Nothing half.** A command is decoded as a whole before it writes anything, so a malformed one
//! changes nothing.
//!
//! A node's death is judged by stamps. A live node has one entry in the expiry index. A heartbeat that extends
//! its life changes only the node's own record: when the entry comes due, a new one takes its place at the
//! node's deadline of then.

use super::command::{Command, DeleteMany, DeleteObject, Heartbeat, ObjectKind, Operation, PutObject, Write};
use super::record::{self, LastHeartbeat, Status};
use super::reply::{Refusal, Reply, Response};
use super::rule::{REVISION_BYTES, RuleKey, VNI_MAX, encode_record, revision_of};
use super::table::Table;
use super::vpcs::{Vpcs, network};
use super::write::Writer;
use crate::codec::decode_command;
use crate::expiry::{Expiry, ExpiryIndex};
use crate::store::{StoreError, View, prefix_end};
use crate::tx::Tx;
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use std::sync::Arc;

/// Maximum rules that one command deletes by group or network; the caller asks again for the rest.
const DELETED_MAX: u32 = 10_000;

type Done<T> = Result<Result<T, Refusal>, StoreError>;

/// The route face's machine: the store holds its state; this holds what is derived from it.
#[derive(Debug)]
pub struct Machine {
    rules: Writer,
    vpcs: Arc<Vpcs>,
    expiries: ExpiryIndex,
}

impl Machine {
    /// The machine of a store that may hold state already, up to `revision`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(view: View<'_>, revision: Revision) -> Result<Self, StoreError> {
        let expiries = ExpiryIndex::open(view, record::EXPIRIES)?;
        let (rules, vpcs) = (Writer::open(view, revision)?, Arc::new(Vpcs::open(view)?));
        Ok(Self { rules, vpcs, expiries })
    }

    /// The newest rules.
    pub fn table(&self) -> &Arc<Table> {
        self.rules.table()
    }

    /// Which VPC has which network.
    pub fn vpcs(&self) -> &Arc<Vpcs> {
        &self.vpcs
    }

    /// When the next node may be found dead; never later than it dies.
    pub fn next_deadline(&self) -> Option<Stamp> {
        self.expiries.next_deadline()
    }

    /// Applies one command.
    ///
    /// # Errors
    /// The store failed. What a client may not do is a refusal, not an error.
    pub fn apply(&mut self, tx: &mut Tx<'_>, bytes: Bytes) -> Result<Reply, StoreError> {
        let result = match decode_command(bytes) {
            Some(Command { operation: Some(operation) }) => self.perform(tx, operation)?,
            _ => Err(Refusal::Malformed),
        };
        Ok(Reply { revision: tx.revision(), result })
    }

    fn perform(&mut self, tx: &mut Tx<'_>, operation: Operation) -> Done<Response> {
        match operation {
            Operation::Put(puts) => {
                let wrote = self.rules.write(tx, Write { puts, ..Write::default() });
                Ok(wrote.map(|(written, _)| Response::Written(written)))
            }
            Operation::Delete(deletes) => {
                let wrote = self.rules.write(tx, Write { deletes, ..Write::default() });
                Ok(wrote.map(|(_, count)| Response::Deleted { count, more: false }))
            }
            Operation::Write(write) => {
                let wrote = self.rules.write(tx, write);
                Ok(wrote.map(|(written, deleted)| Response::Wrote { written, deleted }))
            }
            Operation::DeleteMany(request) => {
                let limit = request.limit.min(DELETED_MAX);
                self.delete_many(tx, &DeleteMany { limit, ..request })
            }
            Operation::PutObject(request) => self.put_object(tx, &request),
            Operation::DeleteObject(request) => self.delete_object(tx, &request),
            Operation::Heartbeat(heartbeat) => self.heartbeat(tx, &heartbeat),
        }
    }

    fn delete_many(&mut self, tx: &mut Tx<'_>, request: &DeleteMany) -> Done<Response> {
        let mut found = match &request.group {
            Some(group) => self.old_members(group, request),
            None if request.vni > VNI_MAX => return Ok(Err(Refusal::Malformed)),
            None => old_in_network(tx, request)?,
        };
        let more = found.len() > request.limit as usize;
        found.truncate(request.limit as usize);
        let keys = found.into_iter().map(|key| {
            let mut bytes = Vec::new();
            key.encode_into(&mut bytes);
            (key, bytes.into())
        });
        let count = self.rules.delete(tx, keys);
        Ok(Ok(Response::Deleted { count, more }))
    }

    /// The rules to delete, and one more if there are more than the limit.
    fn old_members(&self, group: &[u8], request: &DeleteMany) -> Vec<RuleKey> {
        let table = self.rules.table().look();
        let old = table.members(group).filter(|(_, record)| revision_of(record) <= request.not_after);
        old.map(|(key, _)| *key).take(request.limit as usize + 1).collect()
    }

    // Liveness of nodes.

    fn heartbeat(&mut self, tx: &mut Tx<'_>, heartbeat: &Heartbeat) -> Done<Response> {
        let name = &heartbeat.node[..];
        if tx.get(&record::object_key(ObjectKind::Node, name))?.is_none() {
            return Ok(Err(Refusal::UnknownNode));
        }
        let deadline = Stamp(tx.stamp().0.saturating_add(heartbeat.ttl_ms));
        let alive = is_alive(tx, name)?;
        let before = if alive { last_heartbeat(tx, name)? } else { None };
        let entry = match before {
            Some(before) if before.entry <= deadline => before.entry,
            before => {
                if let Some(before) = before {
                    self.expiries.remove(tx, before.entry, name);
                }
                self.expiries.add(tx, deadline, name);
                deadline
            }
        };
        let (at, applied_revision) = (tx.stamp(), heartbeat.applied_revision);
        let last = LastHeartbeat { at, deadline, applied_revision, entry };
        tx.put(&record::heartbeat_key(name), last.encode());
        if !alive {
            set_alive(tx, name, true);
        }
        Ok(Ok(Response::Done))
    }

    fn put_object(&self, tx: &mut Tx<'_>, request: &PutObject) -> Done<Response> {
        let Ok(kind) = ObjectKind::try_from(request.kind) else { return Ok(Err(Refusal::Malformed)) };
        let (name, bytes) = (&request.name, request.name.len());
        if bytes > record::NAME_BYTES_MAX {
            return Ok(Err(Refusal::NameTooLong { bytes }));
        }
        let store_key = record::object_key(kind, name);
        if kind == ObjectKind::Vpc {
            let network = network(&request.body);
            if let (true, Some(vni)) = (request.alone, network)
                && let Some(holder) = self.vpcs.holder(vni, name)
            {
                return Ok(Err(Refusal::NetworkTaken { vni, holder }));
            }
            let old = tx.get(&store_key)?;
            self.vpcs.change(name, old.as_deref().and_then(network_in), network);
        }
        let record = encode_record(tx.next_revision().0, &request.body);
        tx.change(store_key, Some(record));
        Ok(Ok(Response::Done))
    }

    fn delete_object(&self, tx: &mut Tx<'_>, request: &DeleteObject) -> Done<Response> {
        let Ok(kind) = ObjectKind::try_from(request.kind) else { return Ok(Err(Refusal::Malformed)) };
        let (name, store_key) = (&request.name[..], record::object_key(kind, &request.name));
        let old = tx.get(&store_key)?;
        let exists = old.is_some();
        if exists {
            tx.change(store_key, None);
        }
        if let (ObjectKind::Vpc, Some(old)) = (kind, old) {
            self.vpcs.change(name, network_in(&old), None);
        }
        if exists
            && kind == ObjectKind::Node
            && let Some(last) = last_heartbeat(tx, name)?
        {
            self.expiries.remove(tx, last.entry, name);
            tx.delete(&record::heartbeat_key(name));
            tx.change(record::status_key(name), None);
        }
        Ok(Ok(Response::Deleted { count: u64::from(exists), more: false }))
    }

    /// The first nodes, at most `max`, whose deadline `stamp` may have reached. The caller must pass each to
    /// [`Self::expire`], in this order, before anything else.
    ///
    /// # Errors
    /// The store failed.
    pub(crate) fn due(
        &mut self,
        view: View<'_>,
        stamp: Stamp,
        max: usize,
    ) -> Result<Vec<Expiry>, StoreError> {
        self.expiries.take_due(view, stamp, max)
    }

    /// Declares a node dead, unless a heartbeat or a new leader has moved its end.
    ///
    /// # Errors
    /// The store failed.
    pub(crate) fn expire(&mut self, tx: &mut Tx<'_>, due: Expiry) -> Result<(), StoreError> {
        let Expiry { deadline: due, subject: name } = due;
        self.expiries.remove(tx, due, &name);
        match last_heartbeat(tx, &name)? {
            Some(last) if last.ends(tx.term_began()) > tx.stamp() => {
                if last.entry != due {
                    // An earlier version did not note where the entry was.
                    self.expiries.remove(tx, last.entry, &name);
                }
                let last = LastHeartbeat { entry: last.ends(tx.term_began()), ..last };
                tx.put(&record::heartbeat_key(&name), last.encode());
                self.expiries.add(tx, last.entry, &name);
            }
            Some(_) if is_alive(tx, &name)? => set_alive(tx, &name, false),
            // The node is dead already, or was deleted.
            _ => {}
        }
        Ok(())
    }
}

/// As [`Machine::old_members`], for a network.
fn old_in_network(tx: &Tx<'_>, request: &DeleteMany) -> Result<Vec<RuleKey>, StoreError> {
    let prefix = record::vni_prefix(request.vni);
    let mut found = Vec::new();
    for pair in tx.scan(&prefix, &prefix_end(&prefix)) {
        let (store_key, value) = pair?;
        if revision_of(&value) <= request.not_after {
            found.push(RuleKey::decode(&store_key[record::RULES.len()..])?);
        }
        if found.len() > request.limit as usize {
            break;
        }
    }
    Ok(found)
}

fn last_heartbeat(tx: &Tx<'_>, name: &[u8]) -> Result<Option<LastHeartbeat>, StoreError> {
    Ok(tx.get(&record::heartbeat_key(name))?.map(LastHeartbeat::decode).transpose()?)
}

fn is_alive(tx: &Tx<'_>, name: &[u8]) -> Result<bool, StoreError> {
    let status = tx.get(&record::status_key(name))?.map(Status::decode).transpose()?;
    Ok(status.is_some_and(|status| status.alive))
}

fn set_alive(tx: &mut Tx<'_>, name: &[u8], alive: bool) {
    let status = Status { revision: tx.next_revision().0, alive, since: tx.stamp() };
    tx.change(record::status_key(name), Some(status.encode()));
}

/// The network in the record of a VPC.
fn network_in(record: &[u8]) -> Option<u32> {
    network(record.get(REVISION_BYTES..)?)
}

#[cfg(test)]
mod tests {
    use super::super::command::{pack_keys, pack_rule};
    use super::super::rule::Rule;
    use super::*;
    use crate::store::MemoryStore;
    use crate::{Batch, Machines, Term};

    /// One command deleted all of a network's rules, however many there were, in one step on every replica.
    #[test]
    fn a_command_deletes_a_bounded_number_of_rules_whatever_it_asks() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let mut apply = |operation: Operation| {
            let index = machines.progress().index.next();
            let payload = Batch::encode(Stamp(1), &[operation.into_command()]);
            match machines.apply(&store, index, Term(1), payload).unwrap().replies.pop() {
                Some(crate::Reply::Route(reply)) => reply.result.unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let (mut packed, mut scratch) = (Vec::new(), Vec::new());
        for number in 0..=DELETED_MAX {
            let key = RuleKey { vni: 5, ip: std::net::Ipv4Addr::from_bits(number).into() };
            let (group, user_data) = ("g".into(), Bytes::new());
            let rule = Rule { key, mac: None, host_ip: None, host_mac: None, group, revision: 0, user_data };
            pack_rule(&mut packed, &rule, &mut scratch);
        }
        apply(Operation::Put(packed.into()));
        for group in [None, Some("g".into())] {
            let all = DeleteMany { group, vni: 5, limit: u32::MAX, not_after: u64::MAX };
            let deleted = apply(Operation::DeleteMany(all));
            let first = deleted == Response::Deleted { count: DELETED_MAX.into(), more: true };
            assert!(first || deleted == Response::Deleted { count: 1, more: false }, "{deleted:?}");
        }
        assert_eq!(apply(Operation::Delete(pack_keys(&[]))), Response::Deleted { count: 0, more: false });
    }
}
