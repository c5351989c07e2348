//! The cluster's own state: members, alarms, and the compaction of history for all faces.
//!
//! ```text
//! 0x00 'm' u64 member             -> a member
//! 0x00 'r' u64 member             -> nothing: the member was removed
//! 0x00 'a' u64 member, i32 alarm  -> an alarm
//! 0x00 'p'                        -> the progress record, see progress.rs
//! 0x00 'c'                        -> the configuration, see machines.rs
//! 0x00 'e' u64 revision           -> an event record, see history.rs
//! ```
//!
//! Integers in keys are big-endian. Members and alarms are Protocol Buffers messages.

use crate::charge::{Costs, Part};
use crate::codec::{CommandMessage, decode_command};
use crate::history;
use crate::store::{Order, StoreError, View};
use crate::tx::Tx;
use crate::types::Revision;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeSet;

/// The first byte of the system's store keys.
pub(crate) const FACE: u8 = 0;

/// A replica as other replicas and clients know it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Member {
    /// The Raft id, never used again.
    #[prost(fixed64, tag = "1")]
    pub id: u64,
    /// The operator's name for it; empty until it has started once.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Where other replicas reach it, `host:port`.
    #[prost(string, repeated, tag = "3")]
    pub peer_addresses: Vec<String>,
    /// Where clients reach it, as URLs.
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
    /// Whether it is a learner, which receives the log and does not vote.
    #[prost(bool, tag = "5")]
    pub learner: bool,
    /// The disk that it runs on, see [`DiskClaim`]; 0 until it has claimed one. It never changes after that.
    #[prost(fixed64, tag = "6")]
    pub disk: u64,
}

impl Member {
    /// Its name in messages: its own, or its id until it has one.
    pub fn label(&self) -> String {
        if self.name.is_empty() { format!("{:016x}", self.id) } else { self.name.clone() }
    }
}

/// A member says which disk it runs on. The first claim counts, for ever: a member that has lost its disk
/// has lost what it voted and acknowledged, and is another member.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DiskClaim {
    /// The member's id.
    #[prost(fixed64, tag = "1")]
    pub member: u64,
    /// A number drawn when its data folder was made.
    #[prost(fixed64, tag = "2")]
    pub disk: u64,
    /// The data folder is new. Then a member that has started before, and so has a name, does not get it.
    #[prost(bool, tag = "3")]
    pub new: bool,
}

/// A member says how operators and clients know it. Nothing else of its record changes: the member may not have
/// heard of what others have changed meanwhile.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Introduction {
    /// The member's id.
    #[prost(fixed64, tag = "1")]
    pub member: u64,
    /// As [`Member::name`].
    #[prost(string, tag = "2")]
    pub name: String,
    /// As [`Member::client_urls`].
    #[prost(string, repeated, tag = "3")]
    pub client_urls: Vec<String>,
}

/// Which alarm. The numbers are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AlarmKind {
    /// Not an alarm.
    None = 0,
    /// A disk or the quota is full: writes that grow the store are refused.
    Nospace = 1,
    /// What a member has on its disk is damaged, or its state differs from the others'.
    Corrupt = 2,
}

/// An alarm raised by a member.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Alarm {
    /// The member's id.
    #[prost(fixed64, tag = "1")]
    pub member: u64,
    /// Its [`AlarmKind`].
    #[prost(enumeration = "AlarmKind", tag = "2")]
    pub kind: i32,
}

/// What a replica has written and deleted at some entries, as it tells the others, which compare. It changes no state.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Effects {
    /// The replica's id.
    #[prost(fixed64, tag = "1")]
    pub member: u64,
    /// The first of the windows of entries, see the engine.
    #[prost(uint64, tag = "2")]
    pub first: u64,
    /// The last of the windows.
    #[prost(uint64, tag = "3")]
    pub last: u64,
    /// The hash.
    #[prost(fixed64, tag = "4")]
    pub hash: u64,
    /// The version that has computed it: others may write other bytes.
    #[prost(string, tag = "5")]
    pub version: String,
}

/// One command, as it stands in the log.
#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// Which operation.
    #[prost(oneof = "Operation", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub operation: Option<Operation>,
}

/// The operations of [`Command`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Operation {
    /// Drop the history of every face before this revision.
    #[prost(uint64, tag = "1")]
    Compact(u64),
    /// Add or update a member. Voting rights change by configuration entries of Raft.
    #[prost(message, tag = "2")]
    SetMember(Member),
    /// Remove a member.
    #[prost(fixed64, tag = "3")]
    RemoveMember(u64),
    /// Raise an alarm.
    #[prost(message, tag = "4")]
    RaiseAlarm(Alarm),
    /// Clear an alarm.
    #[prost(message, tag = "5")]
    ClearAlarm(Alarm),
    /// Only let what is due expire; earlier versions wrote it.
    #[prost(bool, tag = "6")]
    Tick(bool),
    /// Record a member's disk, if it has none.
    #[prost(message, tag = "7")]
    ClaimDisk(DiskClaim),
    /// Set a member's name and client URLs, if it is known.
    #[prost(message, tag = "8")]
    Introduce(Introduction),
    /// The entry lets at most so many leases, keys and nodes that are due expire, and at most
    /// [`EXPIRIES_MAX`](crate::limits::EXPIRIES_MAX).
    #[prost(uint32, tag = "9")]
    Expire(u32),
    /// Tell the others what a replica has written.
    #[prost(message, tag = "10")]
    Effects(Effects),
}

static MEMBER: Costs = Costs(&[(3, Part::Bytes(size_of::<String>())), (4, Part::Bytes(size_of::<String>()))]);
static INTRODUCTION: Costs = Costs(&[(3, Part::Bytes(size_of::<String>()))]);
static COMMAND: Costs = Costs(&[(2, Part::Message(0, &MEMBER)), (8, Part::Message(0, &INTRODUCTION))]);

impl CommandMessage for Command {
    const COSTS: &'static Costs = &COMMAND;
}

impl Operation {
    pub(crate) fn into_bytes(self) -> Bytes {
        Command { operation: Some(self) }.encode_to_vec().into()
    }
}

/// The answer to a system command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Done,
    /// What was due has expired, as far as it was to.
    Expired,
    /// What a replica has written.
    Effects(Effects),
    /// The revision to compact to is compacted already, or in the future.
    Unavailable(history::Unavailable),
    /// The bytes are not a command of this version.
    Malformed,
}

/// Applies one command.
pub(crate) fn apply(tx: &mut Tx<'_>, bytes: Bytes) -> Result<Reply, StoreError> {
    let Some(operation) = decode(bytes) else {
        return Ok(Reply::Malformed);
    };
    match operation {
        Operation::Compact(revision) => return Ok(compact(tx, Revision(revision))),
        // A delayed update must not bring a removed member back.
        Operation::SetMember(member) if tx.get(&removed_key(member.id))?.is_some() => {}
        Operation::SetMember(member) => set_member(tx, member)?,
        Operation::RemoveMember(id) => remove_member(tx, id)?,
        Operation::RaiseAlarm(alarm) => tx.put(&alarm_key(&alarm), alarm.encode_to_vec().into()),
        Operation::ClearAlarm(alarm) => tx.delete(&alarm_key(&alarm)),
        Operation::Tick(_) => {}
        Operation::Expire(_) => return Ok(Reply::Expired),
        Operation::Effects(effects) => return Ok(Reply::Effects(effects)),
        Operation::ClaimDisk(claim) => claim_disk(tx, &claim)?,
        Operation::Introduce(Introduction { member, name, client_urls }) => {
            if let Some(known) = get_member(tx, member)? {
                put_member(tx, &Member { name, client_urls, ..known });
            }
        }
    }
    Ok(Reply::Done)
}

/// The operation of a command, if it is one of this version.
pub(crate) fn decode(bytes: Bytes) -> Option<Operation> {
    decode_command::<Command>(bytes)?.operation
}

pub(crate) fn put_member(tx: &mut Tx<'_>, member: &Member) {
    tx.put(&member_key(member.id), member.encode_to_vec().into());
}

/// Only a claim changes the disk: whoever sets the rest may not have heard of it.
fn set_member(tx: &mut Tx<'_>, member: Member) -> Result<(), StoreError> {
    let disk = get_member(tx, member.id)?.map_or(0, |known| known.disk);
    put_member(tx, &Member { disk, ..member });
    Ok(())
}

/// **Invariant: One disk per member.** The first claim counts.
fn claim_disk(tx: &mut Tx<'_>, claim: &DiskClaim) -> Result<(), StoreError> {
    let Some(member) = get_member(tx, claim.member)? else { return Ok(()) };
    let started = !member.name.is_empty();
    if member.disk == 0 && !(claim.new && started) {
        put_member(tx, &Member { disk: claim.disk, ..member });
    }
    Ok(())
}

fn get_member(tx: &mut Tx<'_>, id: u64) -> Result<Option<Member>, StoreError> {
    let record = tx.get(&member_key(id))?;
    record.map(|bytes| Member::decode(bytes).map_err(undecodable)).transpose()
}

fn undecodable(error: prost::DecodeError) -> StoreError {
    StoreError::new("decode a system record", error)
}

/// Replaces all members, and deletes removed members and alarms.
pub(crate) fn replace_members(tx: &mut Tx<'_>, members: &[Member]) -> Result<(), StoreError> {
    for prefix in [b"\0m", b"\0r", b"\0a"] {
        let old: Result<Vec<_>, _> = tx.view().scan_prefix(prefix, Order::Ascending).collect();
        old?.iter().for_each(|(key, _)| tx.delete(key));
    }
    members.iter().for_each(|member| put_member(tx, member));
    Ok(())
}

/// Keeps the id as removed: its node may come back at any time.
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
///
/// # Errors
/// The store failed.
pub fn members(view: View<'_>) -> Result<Vec<Member>, StoreError> {
    records(view, b"\0m")
}

/// The ids of all members ever removed. They are few: operators remove members by hand.
///
/// # Errors
/// The store failed.
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
///
/// # Errors
/// The store failed.
pub fn alarms(view: View<'_>) -> Result<Vec<Alarm>, StoreError> {
    records(view, b"\0a")
}

fn records<M: Message + Default>(view: View<'_>, prefix: &[u8]) -> Result<Vec<M>, StoreError> {
    view.scan_prefix(prefix, Order::Ascending).map(|pair| M::decode(pair?.1).map_err(undecodable)).collect()
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

    /// The ids of present and removed members.
    fn known(store: &MemoryStore) -> (Vec<u64>, Vec<u64>) {
        let progress = machines::read_progress(store).unwrap();
        let view = View::new(store, progress.sequence);
        let members = members(view).unwrap().iter().map(|member| member.id).collect();
        (members, removed(view).unwrap().into_iter().collect())
    }

    /// A member that had lost its disk came back under its old id with an empty one, and voted again.
    #[test]
    fn the_first_disk_that_a_member_claims_counts() {
        let store = MemoryStore::default();
        let member = |id, name: &str| Member { id, name: name.into(), ..Member::default() };
        machines::found(&store, Bytes::new(), &[member(1, ""), member(2, "started"), member(3, "")]);
        let mut machines = Machines::open(&store).unwrap();
        let claim = |member, disk, new| Operation::ClaimDisk(DiskClaim { member, disk, new });
        let operations = [
            claim(1, 7, true),
            claim(1, 8, false),
            // Whoever sets the rest may not have heard of the claim.
            Operation::SetMember(Member { learner: true, ..member(1, "m1") }),
            // It has started before it could claim a disk: an empty folder is not that of then.
            claim(2, 9, true),
            claim(2, 10, false),
            claim(4, 11, true),
        ];
        for (index, operation) in (machines::FOUNDING_INDEX.0 + 1..).map(crate::types::Index).zip(operations)
        {
            let payload = Batch::encode(Stamp(1), &[operation.into_command()]);
            machines.apply(&store, index, Term(1), payload).unwrap();
        }
        let progress = machines::read_progress(&store).unwrap();
        let members = members(View::new(&store, progress.sequence)).unwrap();
        let disks: Vec<_> = members.iter().map(|member| (member.id, &*member.name, member.disk)).collect();
        assert_eq!(disks, [(1, "m1", 7), (2, "started", 10), (3, "", 0)]);
    }

    /// A member that started introduced itself with the record that it had, and took back the peer addresses, or the
    /// vote, that an operator had given it meanwhile.
    #[test]
    fn whoever_introduces_itself_changes_its_name_and_urls_only() {
        let store = MemoryStore::default();
        let member =
            Member { id: 1, peer_addresses: vec!["old:1".into()], learner: true, ..Member::default() };
        machines::found(&store, Bytes::new(), std::slice::from_ref(&member));
        let mut machines = Machines::open(&store).unwrap();
        let changed = Member { peer_addresses: vec!["new:1".into()], learner: false, ..member };
        let introduce = |member| {
            let (name, client_urls) = ("n".into(), vec!["http://c".into()]);
            Operation::Introduce(Introduction { member, name, client_urls })
        };
        let operations = [Operation::SetMember(changed.clone()), introduce(1), introduce(2)];
        for (index, operation) in (machines::FOUNDING_INDEX.0 + 1..).map(crate::types::Index).zip(operations)
        {
            let payload = Batch::encode(Stamp(1), &[operation.into_command()]);
            machines.apply(&store, index, Term(1), payload).unwrap();
        }
        let progress = machines::read_progress(&store).unwrap();
        let members = members(View::new(&store, progress.sequence)).unwrap();
        let expected = Member { name: "n".into(), client_urls: vec!["http://c".into()], ..changed };
        assert_eq!(members, [expected]);
    }

    #[test]
    fn a_removed_members_id_is_kept_and_a_strangers_is_not() {
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
