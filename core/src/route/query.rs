//! How the route face is read besides its table: older states, groups, networks, objects, and what an event changed.

use super::record::{self, LastHeartbeat, Status};
use super::rule::{Rule, RuleKey, group_of};
use crate::codec::Malformed;
use crate::history::Change;
use crate::store::{Order, StoreError, View, prefix_end};
use crate::types::Stamp;
use bytes::Bytes;

/// Which rules or objects a listing or a watch means.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The rules of a group, at most [`super::GROUP_BYTES_MAX`] bytes of name.
    Group(Bytes),
    /// The rules of a network.
    Vni(u32),
    /// The objects of a kind.
    Objects(ObjectKind),
    /// Whether nodes are alive.
    NodeStatus,
}

/// The kinds of objects. The numbers are in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ObjectKind {
    /// A virtual private cloud.
    Vpc = 1,
    /// Gateways that share a load.
    GatewayCluster = 2,
    /// A host with an agent.
    Node = 3,
}

impl TryFrom<u32> for ObjectKind {
    type Error = Malformed;

    fn try_from(number: u32) -> Result<Self, Malformed> {
        match number {
            1 => Ok(Self::Vpc),
            2 => Ok(Self::GatewayCluster),
            3 => Ok(Self::Node),
            _ => Err(Malformed { what: "kind of object" }),
        }
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub kind: ObjectKind,
    /// Its name.
    pub name: Bytes,
    /// Revision of the write that made it so.
    pub revision: u64,
    /// Its message.
    pub body: Bytes,
}

/// A node's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Bytes,
    /// Whether its last heartbeat still holds.
    pub alive: bool,
    /// When that became so.
    pub since: Stamp,
    /// Its last heartbeat, if it ever sent one.
    pub last_heartbeat: Option<Stamp>,
    /// The newest revision that it said it had put into effect.
    pub applied_revision: u64,
}

/// What a change of the store means to those who watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// A rule was written.
    Put(Rule),
    /// A rule was deleted, or left the group that is named.
    Deleted {
        /// Its key.
        key: RuleKey,
        /// The group that it was in, where the change is one of a group.
        group: Option<Bytes>,
    },
    /// An object was written.
    PutObject(Object),
    /// An object was deleted.
    DeletedObject(ObjectKind, Bytes),
    /// A node has come to life or has died; `None` where it was deleted.
    Status(Bytes, Option<(bool, Stamp)>),
}

impl Scope {
    /// The store keys that it means all begin with this.
    pub fn prefix(&self) -> Vec<u8> {
        match self {
            Self::Group(group) => record::group(group),
            Self::Vni(vni) => record::vni(*vni),
            Self::Objects(kind) => record::object(*kind as u8, b"").to_vec(),
            Self::NodeStatus => record::STATUSES.to_vec(),
        }
    }
}

/// The rule at `key`, in a view that may be an old one.
///
/// # Errors
/// The store failed.
pub fn rule(view: View<'_>, key: RuleKey) -> Result<Option<Rule>, StoreError> {
    let mut bytes = Vec::with_capacity(24);
    key.encode(&mut bytes);
    let Some(record) = view.get(&record::rule(&bytes))? else { return Ok(None) };
    Ok(Some(Rule::decode(key, &record)?))
}

/// The rules of a network or a group after `after` (all for `None`), in the order of their keys, lazily. In a view of the
/// past, too; but a group's are found among all rules: the newest ones are faster found in [`super::Table`].
pub fn rules<'a>(
    view: View<'a>,
    scope: &Scope,
    after: Option<RuleKey>,
) -> impl Iterator<Item = Result<Rule, StoreError>> + 'a {
    let (prefix, group) = match scope {
        Scope::Vni(vni) => (record::vni(*vni), None),
        Scope::Group(group) => (record::RULES.to_vec(), Some(group.clone())),
        // They are no rules.
        Scope::Objects(_) | Scope::NodeStatus => (vec![u8::MAX], None),
    };
    let mut from = prefix.clone();
    if let Some(after) = after {
        from.truncate(record::RULES.len());
        after.encode(&mut from);
        // The first store key after it.
        from.push(0);
    }
    let wanted = move |value: &[u8]| group.as_ref().is_none_or(|group| group_of(value) == Some(group));
    view.scan(&from, &prefix_end(&prefix), Order::Ascending).filter_map(move |pair| match pair {
        Ok((_, value)) if !wanted(&value) => None,
        Ok((store_key, value)) => Some(decode_rule(&store_key, value)),
        Err(error) => Some(Err(error)),
    })
}

fn decode_rule(store_key: &Bytes, value: Bytes) -> Result<Rule, StoreError> {
    Ok(Rule::decode(RuleKey::decode(&store_key[record::RULES.len()..])?, &value)?)
}

/// One object.
///
/// # Errors
/// The store failed.
pub fn object(view: View<'_>, kind: ObjectKind, name: &[u8]) -> Result<Option<Object>, StoreError> {
    let record = view.get(&record::object(kind as u8, name))?;
    Ok(record.map(|record| decode_object(kind, Bytes::copy_from_slice(name), record)).transpose()?)
}

/// All objects of a kind after the name `after`, by name, lazily.
pub fn objects<'a>(
    view: View<'a>,
    kind: ObjectKind,
    after: Option<&[u8]>,
) -> impl Iterator<Item = Result<Object, StoreError>> + 'a {
    let prefix = record::object(kind as u8, b"");
    let mut from = prefix.to_vec();
    if let Some(after) = after {
        from.extend_from_slice(after);
        from.push(0);
    }
    view.scan(&from, &prefix_end(&prefix), Order::Ascending).map(move |pair| {
        let (store_key, value) = pair?;
        Ok(decode_object(kind, store_key.slice(prefix.len()..), value)?)
    })
}

/// The lives of all nodes that ever sent a heartbeat, by name.
///
/// # Errors
/// The store failed.
pub fn node_statuses(view: View<'_>) -> Result<Vec<Node>, StoreError> {
    let mut nodes = Vec::new();
    for pair in view.scan_prefix(&record::STATUSES, Order::Ascending) {
        let (store_key, value) = pair?;
        let name = store_key.slice(record::STATUSES.len()..);
        let status = Status::decode(value)?;
        let last = view.get(&record::heartbeat(&name))?.map(LastHeartbeat::decode).transpose()?;
        nodes.push(Node {
            name,
            alive: status.alive,
            since: status.since,
            last_heartbeat: last.map(|last| last.at),
            applied_revision: last.map_or(0, |last| last.applied_revision),
        });
    }
    Ok(nodes)
}

/// What a change means; `None` for one of another face.
///
/// # Errors
/// The change's bytes are not of this version.
pub fn changed(change: &Change) -> Result<Option<Changed>, StoreError> {
    let key = &change.key;
    let changed = if let Some(rest) = key.strip_prefix(&record::RULES) {
        rule_change(RuleKey::decode(rest)?, None, change.value.clone())?
    } else if let Some(rest) = key.strip_prefix(&record::GROUPS) {
        let (group, rule_key) = record::split_group(rest)?;
        rule_change(rule_key, Some(key.slice_ref(group)), change.value.clone())?
    } else if let Some(rest) = key.strip_prefix(&record::OBJECTS) {
        let kind = ObjectKind::try_from(u32::from(rest.first().copied().unwrap_or(0)))?;
        let name = key.slice(record::OBJECTS.len() + 1..);
        match &change.value {
            Some(record) => Changed::PutObject(decode_object(kind, name, record.clone())?),
            None => Changed::DeletedObject(kind, name),
        }
    } else if key.starts_with(&record::STATUSES) {
        let status = change.value.clone().map(Status::decode).transpose()?;
        let name = key.slice(record::STATUSES.len()..);
        Changed::Status(name, status.map(|status| (status.alive, status.since)))
    } else {
        return Ok(None);
    };
    Ok(Some(changed))
}

fn rule_change(key: RuleKey, group: Option<Bytes>, record: Option<Bytes>) -> Result<Changed, Malformed> {
    Ok(match record {
        Some(record) => Changed::Put(Rule::decode(key, &record)?),
        None => Changed::Deleted { key, group },
    })
}

fn decode_object(kind: ObjectKind, name: Bytes, mut record: Bytes) -> Result<Object, Malformed> {
    use bytes::Buf;
    let revision = record.try_get_u64().map_err(|_| Malformed { what: "object record" })?;
    Ok(Object { kind, name, revision, body: record })
}
