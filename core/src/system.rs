//! The cluster's own records: members, alarms, and the compaction of history for all faces.
//!
//! Keys: `0x00 'm'` + member id (big-endian) for members, `0x00 'a'` + member id + alarm for alarms,
//! `0x00 'r'` + member id for those that were removed (empty values), `0x00 'p'` for the progress record. Values are Protocol Buffers messages defined here.

use crate::history;
use crate::store::{Order, StoreError, View};
use crate::tx::Tx;
use crate::types::Revision;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeSet;

/// A replica as the others and the clients know it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Member {
    /// The Raft id, unique forever.
    #[prost(fixed64, tag = "1")]
    pub id: u64,
    /// The name its operator gave it; empty until it has started once.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Where other replicas reach it, `host:port`.
    #[prost(string, repeated, tag = "3")]
    pub peer_addresses: Vec<String>,
    /// Where clients reach it, as URLs.
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
    /// A learner receives the log and does not vote.
    #[prost(bool, tag = "5")]
    pub learner: bool,
}

impl Member {
    /// How messages call it: by its name, or by its id until it has one.
    pub fn label(&self) -> String {
        if self.name.is_empty() { format!("{:x}", self.id) } else { self.name.clone() }
    }
}

/// Which alarm. The numbers are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AlarmKind {
    /// Not an alarm.
    None = 0,
    /// Disk or quota is used up: writes that grow the store are refused.
    Nospace = 1,
    /// A replica's state differs from the others'.
    Corrupt = 2,
}

/// An alarm that a member has raised.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Alarm {
    /// Who raised it.
    #[prost(fixed64, tag = "1")]
    pub member: u64,
    /// Which.
    #[prost(enumeration = "AlarmKind", tag = "2")]
    pub kind: i32,
}

/// What may be asked of the cluster's own state.
#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// Which command.
    #[prost(oneof = "Operation", tags = "1, 2, 3, 4, 5, 6")]
    pub operation: Option<Operation>,
}

/// The operations of [`Command`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Operation {
    /// Forget revisions below this one, in every face.
    #[prost(uint64, tag = "1")]
    Compact(u64),
    /// Add or update a member. Voting rights change by Raft's own configuration entries.
    #[prost(message, tag = "2")]
    SetMember(Member),
    /// Forget a member.
    #[prost(fixed64, tag = "3")]
    RemoveMember(u64),
    /// Raise an alarm.
    #[prost(message, tag = "4")]
    RaiseAlarm(Alarm),
    /// Take an alarm back.
    #[prost(message, tag = "5")]
    ClearAlarm(Alarm),
    /// Nothing but the passing of time: lets what is due expire.
    #[prost(bool, tag = "6")]
    Tick(bool),
}

impl Operation {
    /// The command, encoded for a batch.
    pub fn into_command(self) -> crate::Command {
        let bytes = Command { operation: Some(self) }.encode_to_vec().into();
        crate::Command { face: crate::Face::System, bytes }
    }
}

/// The answer to a system command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Done,
    /// The revision to compact to is not there (any more).
    Unavailable(history::Unavailable),
    /// The bytes are no command of this version.
    Malformed,
}

/// Applies one command.
pub(crate) fn apply(tx: &mut Tx<'_>, bytes: Bytes) -> Result<Reply, StoreError> {
    let Ok(Command { operation: Some(operation) }) = Command::decode(bytes) else {
        return Ok(Reply::Malformed);
    };
    match operation {
        Operation::Compact(revision) => return Ok(compact(tx, Revision(revision))),
        // One that was removed meanwhile is not brought back by what was said before.
        Operation::SetMember(member) if tx.get(&removed_key(member.id))?.is_some() => {}
        Operation::SetMember(member) => put_member(tx, &member),
        Operation::RemoveMember(id) => remove_member(tx, id)?,
        Operation::RaiseAlarm(alarm) => tx.put(&alarm_key(&alarm), alarm.encode_to_vec().into()),
        Operation::ClearAlarm(alarm) => tx.delete(&alarm_key(&alarm)),
        Operation::Tick(_) => {}
    }
    Ok(Reply::Done)
}

pub(crate) fn put_member(tx: &mut Tx<'_>, member: &Member) {
    tx.put(&member_key(member.id), member.encode_to_vec().into());
}

/// Forgets all members, whoever was removed, and their alarms.
pub(crate) fn replace_members(tx: &mut Tx<'_>, members: &[Member]) -> Result<(), StoreError> {
    for prefix in [b"\0m", b"\0r", b"\0a"] {
        let old: Result<Vec<_>, _> = tx.view().scan_prefix(prefix, Order::Ascending).collect();
        old?.iter().for_each(|(key, _)| tx.delete(key));
    }
    members.iter().for_each(|member| put_member(tx, member));
    Ok(())
}

/// The id stays known: its node may come back after any time and any restarts of the others.
fn remove_member(tx: &mut Tx<'_>, id: u64) -> Result<(), StoreError> {
    if tx.get(&member_key(id))?.is_some() {
        tx.delete(&member_key(id));
        tx.put(&removed_key(id), Bytes::new());
    }
    Ok(())
}

fn compact(tx: &mut Tx<'_>, revision: Revision) -> Reply {
    let (compacted, newest) = (tx.compacted(), tx.revision());
    if revision <= compacted {
        return Reply::Unavailable(history::Unavailable::Compacted { compacted });
    }
    if revision > newest {
        return Reply::Unavailable(history::Unavailable::Future { newest });
    }
    tx.set_compacted(revision);
    Reply::Done
}

/// All members, by id.
pub fn members(view: View<'_>) -> Result<Vec<Member>, StoreError> {
    records(view, b"\0m")
}

/// The ids of all members that were ever removed. One record of a few bytes each: operators remove members by hand.
pub fn removed(view: View<'_>) -> Result<BTreeSet<u64>, StoreError> {
    let prefix = removed_key(0);
    let prefix = &prefix[..prefix.len() - 8];
    let id = |key: Bytes| match key[prefix.len()..].try_into() {
        Ok(id) => Ok(u64::from_be_bytes(id)),
        Err(error) => Err(StoreError::new("decode a removed member's key", error)),
    };
    view.scan_prefix(prefix, Order::Ascending).map(|pair| id(pair?.0)).collect()
}

/// All raised alarms.
pub fn alarms(view: View<'_>) -> Result<Vec<Alarm>, StoreError> {
    records(view, b"\0a")
}

fn records<M: Message + Default>(view: View<'_>, prefix: &[u8]) -> Result<Vec<M>, StoreError> {
    view.scan_prefix(prefix, Order::Ascending)
        .map(|pair| M::decode(pair?.1).map_err(|error| StoreError::new("decode a system record", error)))
        .collect()
}

fn member_key(id: u64) -> Vec<u8> {
    [b"\0m".as_slice(), &id.to_be_bytes()].concat()
}

fn removed_key(id: u64) -> Vec<u8> {
    [b"\0r".as_slice(), &id.to_be_bytes()].concat()
}

fn alarm_key(alarm: &Alarm) -> Vec<u8> {
    [b"\0a".as_slice(), &alarm.member.to_be_bytes(), &alarm.kind.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::machines::{self, Machines};
    use crate::store::MemoryStore;
    use crate::types::{Stamp, Term};

    /// The ids of members and of removed ones.
    fn known(store: &MemoryStore) -> (Vec<u64>, Vec<u64>) {
        let progress = machines::read_progress(store).unwrap();
        let view = View::new(store, progress.sequence);
        let members = members(view).unwrap().iter().map(|member| member.id).collect();
        (members, removed(view).unwrap().into_iter().collect())
    }

    #[test]
    fn a_removed_members_id_is_known_for_good_and_a_stranger_is_not_removed() {
        let store = MemoryStore::default();
        let member = |id| Member { id, name: format!("m{id}"), ..Member::default() };
        machines::found(&store, Bytes::new(), &[member(1), member(0x0102)]);
        let mut machines = Machines::open(&store).unwrap();
        let mut index = machines::FOUNDING_INDEX;
        let again = Operation::SetMember(member(0x0102));
        for operation in [Operation::RemoveMember(0x0102), Operation::RemoveMember(9), again] {
            index = index.next();
            let payload = Batch::encode(Stamp(1), &[operation.into_command()]);
            machines.apply(&store, index, Term(1), payload).unwrap();
        }
        assert_eq!(known(&store), (vec![1], vec![0x0102]));
    }
}
