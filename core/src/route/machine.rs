//! What a route command does to the state.
//!
//! **Invariant (nothing half).** A command is taken apart whole before anything is written, so a malformed one changes
//! nothing.
//!
//! A node's death is judged by stamps: each heartbeat moves its deadline; the expiry index says only "look then", and
//! its entry is moved to the deadline found there.

use super::command::{
    Command, DeleteMany, DeleteObject, Heartbeat, Operation, PutObject, Refusal, Reply, Response,
    unpack_keys, unpack_rules,
};
use super::query::ObjectKind;
use super::record::{self, LastHeartbeat, Status};
use super::rule::{RuleKey, group_in_body, group_of, record as rule_record, revision_of};
use super::table::Table;
use crate::store::{Order, StoreError, View, prefix_end};
use crate::tx::Tx;
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use prost::Message;
use std::sync::Arc;

type Done<T> = Result<Result<T, Refusal>, StoreError>;

/// The route face's machine: the store holds its state; this holds what is derived from it.
#[derive(Debug)]
pub struct Machine {
    table: Arc<Table>,
    /// No entry of the expiry index is before this one: looks begin here, past the remains of those that were taken.
    expiries_from: Vec<u8>,
    /// The first entry's deadline, or earlier; `None` where there are no entries.
    next_deadline: Option<u64>,
}

impl Machine {
    /// The machine of a store that may hold state already, up to `revision`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(view: View<'_>, revision: Revision) -> Result<Self, StoreError> {
        let first = view.scan(&record::expiry_from(0), &record::EXPIRIES_END, Order::Ascending).next();
        let next_deadline = match first.transpose()? {
            Some((key, _)) => Some(record::read_expiry(&key)?.0),
            None => None,
        };
        let expiries_from = record::expiry_from(next_deadline.unwrap_or(0));
        Ok(Self { table: Arc::new(Table::open(view, revision)?), expiries_from, next_deadline })
    }

    /// The newest rules.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// When the next node may be found dead; never later than it is.
    pub fn next_deadline(&self) -> Option<Stamp> {
        self.next_deadline.map(Stamp)
    }

    /// Applies one command.
    ///
    /// # Errors
    /// The store failed. What a client may not do is a refusal, not an error.
    pub fn apply(&mut self, tx: &mut Tx<'_>, bytes: Bytes) -> Result<Reply, StoreError> {
        let result = match Command::decode(bytes).map(|command| command.operation) {
            Ok(Some(operation)) => self.perform(tx, operation)?,
            Ok(None) | Err(_) => Err(Refusal::Malformed),
        };
        Ok(Reply { revision: tx.revision(), result })
    }

    fn perform(&mut self, tx: &mut Tx<'_>, operation: Operation) -> Done<Response> {
        match operation {
            Operation::Put(packed) => Ok(self.put(tx, packed)),
            Operation::Delete(packed) => Ok(self.delete(tx, packed)),
            Operation::DeleteMany(request) => self.delete_many(tx, &request),
            Operation::PutObject(request) => Ok(put_object(tx, &request)),
            Operation::DeleteObject(request) => delete_object(tx, &request),
            Operation::Heartbeat(heartbeat) => self.heartbeat(tx, &heartbeat),
        }
    }

    fn put(&self, tx: &mut Tx<'_>, packed: Bytes) -> Result<Response, Refusal> {
        let rules = unpack_rules(packed).map_err(|_| Refusal::Malformed)?;
        let revision = tx.next_revision().0;
        let mut table = self.table.change();
        let mut written = 0;
        for (key, (key_bytes, body)) in rules {
            if table.get(&key).is_some_and(|old| revision_of(old) == revision) {
                // Twice in one command, which adapters refuse: the first stands.
                continue;
            }
            let record = rule_record(revision, &body);
            let group = group_in_body(&body).expect("checked when it was unpacked");
            let store_key = record::rule(&key_bytes);
            if let Some(old) = table.insert(key, group, record[..].into()) {
                let old_group = group_of(&old).expect("it was checked when it was written");
                if old_group != group {
                    tx.change_also_known_as(record::in_group(old_group, &key_bytes), &store_key, None);
                }
            }
            tx.change(store_key.clone(), Some(record.clone()));
            tx.change_also_known_as(record::in_group(group, &key_bytes), &store_key, Some(record));
            written += 1;
        }
        table.set_revision(tx.revision());
        Ok(Response::Written(written))
    }

    fn delete(&self, tx: &mut Tx<'_>, packed: Bytes) -> Result<Response, Refusal> {
        let keys = unpack_keys(packed).map_err(|_| Refusal::Malformed)?;
        let count = self.remove(tx, keys.into_iter());
        Ok(Response::Deleted { count, more: false })
    }

    fn remove(&self, tx: &mut Tx<'_>, keys: impl Iterator<Item = (RuleKey, Bytes)>) -> u64 {
        let mut table = self.table.change();
        let mut count = 0;
        for (key, key_bytes) in keys {
            let Some(old) = table.remove(&key) else { continue };
            let group = group_of(&old).expect("it was checked when it was written");
            let store_key = record::rule(&key_bytes);
            tx.change(store_key.clone(), None);
            tx.change_also_known_as(record::in_group(group, &key_bytes), &store_key, None);
            count += 1;
        }
        table.set_revision(tx.revision());
        count
    }

    fn delete_many(&self, tx: &mut Tx<'_>, request: &DeleteMany) -> Done<Response> {
        let mut found = match &request.group {
            Some(group) => self.old_members(group, request),
            None => old_in_network(tx, request)?,
        };
        let more = found.len() > request.limit as usize;
        found.truncate(request.limit as usize);
        let keys = found.into_iter().map(|key| {
            let mut bytes = Vec::new();
            key.encode(&mut bytes);
            (key, bytes.into())
        });
        let count = self.remove(tx, keys);
        Ok(Ok(Response::Deleted { count, more }))
    }

    /// One more than may be deleted, so that it is seen whether there are more.
    fn old_members(&self, group: &[u8], request: &DeleteMany) -> Vec<RuleKey> {
        let table = self.table.look();
        let old = table.members(group).filter(|(_, record)| revision_of(record) <= request.not_after);
        old.map(|(key, _)| *key).take(request.limit as usize + 1).collect()
    }

    // Nodes' lives.

    fn heartbeat(&mut self, tx: &mut Tx<'_>, heartbeat: &Heartbeat) -> Done<Response> {
        let name = &heartbeat.node[..];
        if tx.get(&record::object(ObjectKind::Node as u8, name))?.is_none() {
            return Ok(Err(Refusal::UnknownNode));
        }
        let deadline = Stamp(tx.stamp().0.saturating_add(heartbeat.ttl_ms));
        let last = LastHeartbeat { at: tx.stamp(), deadline, applied_revision: heartbeat.applied_revision };
        let before = tx.get(&record::heartbeat(name))?.map(LastHeartbeat::decode).transpose()?;
        tx.put(&record::heartbeat(name), last.encode());
        let alive = is_alive(tx, name)?;
        if !alive {
            set_alive(tx, name, true);
        }
        if !alive || before.is_none_or(|before| deadline < before.deadline) {
            self.look_again(tx, deadline, name);
        }
        Ok(Ok(Response::Done))
    }

    /// Has the node looked at when `deadline` has come. A node that is alive has an entry in the expiry index that is
    /// not later than its deadline.
    fn look_again(&mut self, tx: &mut Tx<'_>, deadline: Stamp, name: &[u8]) {
        let entry = record::expiry(deadline.0, name);
        tx.put(&entry, Bytes::new());
        if entry < self.expiries_from {
            self.expiries_from = entry;
        }
        self.next_deadline = Some(self.next_deadline.map_or(deadline.0, |next| next.min(deadline.0)));
    }

    /// Looks at the first node whose time may have come. False when there is none.
    ///
    /// # Errors
    /// The store failed.
    pub fn expire_next(&mut self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        if self.next_deadline.is_none_or(|next| next > tx.stamp().0) {
            return Ok(false);
        }
        let first = tx.scan(&self.expiries_from, &record::EXPIRIES_END).next();
        let Some((store_key, _)) = first.transpose()? else {
            self.next_deadline = None;
            return Ok(false);
        };
        let (deadline, name) = record::read_expiry(&store_key)?;
        self.next_deadline = Some(deadline);
        if deadline > tx.stamp().0 {
            return Ok(false);
        }
        tx.delete(&store_key);
        // The smallest key behind it.
        self.expiries_from = [&store_key[..], b"\0"].concat();
        let last = tx.get(&record::heartbeat(&name))?.map(LastHeartbeat::decode).transpose()?;
        match last {
            Some(last) if last.deadline > tx.stamp() => self.look_again(tx, last.deadline, &name),
            Some(_) if is_alive(tx, &name)? => set_alive(tx, &name, false),
            // The node was found dead before, or was deleted.
            _ => {}
        }
        Ok(true)
    }
}

/// As [`Machine::old_members`], of a network.
fn old_in_network(tx: &Tx<'_>, request: &DeleteMany) -> Result<Vec<RuleKey>, StoreError> {
    let prefix = record::vni(request.vni);
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

fn is_alive(tx: &Tx<'_>, name: &[u8]) -> Result<bool, StoreError> {
    let status = tx.get(&record::status(name))?.map(Status::decode).transpose()?;
    Ok(status.is_some_and(|status| status.alive))
}

fn set_alive(tx: &mut Tx<'_>, name: &[u8], alive: bool) {
    let status = Status { revision: tx.next_revision().0, alive, since: tx.stamp() };
    tx.change(record::status(name), Some(status.encode()));
}

fn put_object(tx: &mut Tx<'_>, request: &PutObject) -> Result<Response, Refusal> {
    let kind = ObjectKind::try_from(request.kind).map_err(|_| Refusal::Malformed)?;
    let record = rule_record(tx.next_revision().0, &request.body);
    tx.change(record::object(kind as u8, &request.name), Some(record));
    Ok(Response::Done)
}

fn delete_object(tx: &mut Tx<'_>, request: &DeleteObject) -> Done<Response> {
    let Ok(kind) = ObjectKind::try_from(request.kind) else { return Ok(Err(Refusal::Malformed)) };
    let store_key = record::object(kind as u8, &request.name);
    let exists = tx.get(&store_key)?.is_some();
    if exists {
        tx.change(store_key, None);
    }
    if exists && kind == ObjectKind::Node {
        tx.delete(&record::heartbeat(&request.name));
        if tx.get(&record::status(&request.name))?.is_some() {
            tx.change(record::status(&request.name), None);
        }
    }
    Ok(Ok(Response::Deleted { count: u64::from(exists), more: false }))
}
