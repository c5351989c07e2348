//! How the store's rules, objects and nodes are read, as of any revision, and what changes mean to watchers.
//! The newest rules are read from memory, see `table.rs`.

use super::command::ObjectKind;
use super::record::{self, LastHeartbeat, Status};
use super::reply::{Changed, Node, Object};
use super::rule::{Rule, RuleKey, group_of};
use crate::codec::Malformed;
use crate::history::Change;
use crate::store::{Order, StoreError, View, prefix_end};
use crate::types::Revision;
use bytes::Bytes;

/// What to list or watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The rules of a group, whose name has at most [`super::GROUP_BYTES_MAX`] bytes.
    Group(Bytes),
    /// The rules of a network.
    Vni(u32),
    /// The objects of a kind.
    Objects(ObjectKind),
    /// The liveness of nodes.
    NodeStatus,
}

impl Scope {
    /// The prefix of the store keys in this scope.
    pub fn prefix(&self) -> Vec<u8> {
        match self {
            Self::Group(group) => record::group_prefix(group),
            Self::Vni(vni) => record::vni_prefix(*vni),
            Self::Objects(kind) => record::object_key(*kind, b"").to_vec(),
            Self::NodeStatus => record::STATUSES.to_vec(),
        }
    }
}

/// The rule at `key`, as of `view`.
///
/// # Errors
/// The store failed.
pub fn rule(view: View<'_>, key: RuleKey) -> Result<Option<Rule>, StoreError> {
    let mut bytes = Vec::with_capacity(24);
    key.encode_into(&mut bytes);
    let Some(record) = view.get(&record::rule_key(&bytes))? else { return Ok(None) };
    Ok(Some(Rule::decode(key, &record)?))
}

/// The rules of a network or a group after `after` (all for `None`), in key order, lazily; none in other
/// scopes. Finding a group's rules reads all rules: [`super::Table`] finds the newest ones faster.
pub fn rules<'a>(
    view: View<'a>,
    scope: &Scope,
    after: Option<RuleKey>,
) -> impl Iterator<Item = Result<Rule, StoreError>> + 'a {
    let (prefix, group) = match scope {
        Scope::Vni(vni) => (record::vni_prefix(*vni), None),
        Scope::Group(group) => (record::RULES.to_vec(), Some(group.clone())),
        // A prefix of no key.
        Scope::Objects(_) | Scope::NodeStatus => (vec![u8::MAX], None),
    };
    let mut from = prefix.clone();
    if let Some(after) = after {
        from.truncate(record::RULES.len());
        after.encode_into(&mut from);
        // The first key after it. One of another network before this one must not show what is between them.
        from.push(0);
        from = from.max(prefix.clone());
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

/// All rules after `after` (all for `None`), in key order, lazily. Reads all of them: about a second per million.
pub fn all_rules<'a>(
    view: View<'a>,
    after: Option<RuleKey>,
) -> impl Iterator<Item = Result<Rule, StoreError>> + 'a {
    let mut from = record::RULES.to_vec();
    if let Some(after) = after {
        after.encode_into(&mut from);
        from.push(0);
    }
    view.scan(&from, &prefix_end(&record::RULES), Order::Ascending).map(|pair| {
        let (store_key, value) = pair?;
        decode_rule(&store_key, value)
    })
}

/// The revision of the newest change of a group's rules, as of `view`: one was put into it, changed in it, or
/// removed from it. For a group without a change since such changes are recorded, which earlier versions did not, an
/// upper bound; `None` if none was recorded yet.
///
/// # Errors
/// The store failed.
pub fn group_revision(view: View<'_>, group: &[u8]) -> Result<Option<Revision>, StoreError> {
    let recorded = match view.get(&record::group_change_key(group))? {
        None => view.get(&record::CHANGES_SINCE)?,
        recorded => recorded,
    };
    Ok(recorded.map(record::decode_revision).transpose()?)
}

/// One object.
///
/// # Errors
/// The store failed.
pub fn object(view: View<'_>, kind: ObjectKind, name: &[u8]) -> Result<Option<Object>, StoreError> {
    let record = view.get(&record::object_key(kind, name))?;
    Ok(record.map(|record| decode_object(kind, Bytes::copy_from_slice(name), record)).transpose()?)
}

/// The objects of a kind after the name `after` (all for `None`), by name, lazily.
pub fn objects<'a>(
    view: View<'a>,
    kind: ObjectKind,
    after: Option<&[u8]>,
) -> impl Iterator<Item = Result<Object, StoreError>> + 'a {
    let prefix = record::object_key(kind, b"");
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

/// The liveness of all nodes that ever sent a heartbeat, by name.
///
/// # Errors
/// The store failed.
pub fn node_statuses(view: View<'_>) -> Result<Vec<Node>, StoreError> {
    let mut nodes = Vec::new();
    for pair in view.scan_prefix(&record::STATUSES, Order::Ascending) {
        let (store_key, value) = pair?;
        nodes.push(node(view, store_key.slice(record::STATUSES.len()..), value)?);
    }
    Ok(nodes)
}

/// The liveness of a node, if it ever sent a heartbeat.
///
/// # Errors
/// The store failed.
pub fn node_status(view: View<'_>, name: &[u8]) -> Result<Option<Node>, StoreError> {
    let status = view.get(&record::status_key(name))?;
    status.map(|status| node(view, Bytes::copy_from_slice(name), status)).transpose()
}

fn node(view: View<'_>, name: Bytes, status: Bytes) -> Result<Node, StoreError> {
    let status = Status::decode(status)?;
    let last = view.get(&record::heartbeat_key(&name))?.map(LastHeartbeat::decode).transpose()?;
    Ok(Node {
        name,
        alive: status.alive,
        since: status.since,
        last_heartbeat: last.map(|last| last.at),
        applied_revision: last.map_or(0, |last| last.applied_revision),
    })
}

/// What a change means; `None` for a change of another face.
///
/// # Errors
/// The change was not written by this version.
pub fn changed(change: &Change) -> Result<Option<Changed>, StoreError> {
    let key = &change.key;
    let changed = if let Some(rest) = key.strip_prefix(&record::RULES) {
        rule_change(RuleKey::decode(rest)?, None, change.value.clone())?
    } else if let Some(rest) = key.strip_prefix(&record::GROUPS) {
        let (group, rule_key) = record::decode_group_key(rest)?;
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
