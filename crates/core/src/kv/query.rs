//! Reads of single keys and leases, and what changes mean to watchers. Ranges are in `range.rs`.

use super::command::Range;
use super::range::{Bounds, range};
use super::record::{self, Collection, Field, Lease, Record, field_name};
use super::reply::{KeyValue, LeaseInfo, Refusal, done};
use crate::codec::Malformed;
use crate::history::{Change, Unavailable};
use crate::store::{Order, StoreError, View, prefix_end};
use crate::types::{Progress, Revision};
use bytes::Bytes;

/// One key as of `view`; `None` if it is absent or empty.
///
/// # Errors
/// The store failed.
pub fn get(view: View<'_>, key: &Bytes) -> Result<Option<KeyValue>, StoreError> {
    let record = view.get(&record::store_key(key))?.map(Record::decode).transpose()?;
    Ok(record.map(|record| record.into_key_value(key.clone())))
}

/// One key as of `view`, with what it holds if it is no string; `None` if it is absent or empty.
///
/// # Errors
/// The store failed.
pub fn find(view: View<'_>, key: &Bytes) -> Result<Option<(KeyValue, Option<Collection>)>, StoreError> {
    let record = view.get(&record::store_key(key))?.map(Record::decode).transpose()?;
    Ok(record
        .map(|record| (record.collection, record))
        .map(|(of, record)| (record.into_key_value(key.clone()), of)))
}

/// A field of a hash, also one whose time is over.
///
/// # Errors
/// The store failed.
pub fn field(view: View<'_>, hash: Collection, field: &[u8]) -> Result<Option<Field>, StoreError> {
    Ok(view.get(&hash.id.field_key(field))?.map(Field::decode).transpose()?)
}

/// The fields of a hash from `from` on, in the order of their names, also those whose time is over.
pub fn fields(
    view: View<'_>,
    hash: Collection,
    from: &[u8],
) -> impl Iterator<Item = Result<(Bytes, Field), StoreError>> {
    let pairs = view.scan(&hash.id.field_key(from), &prefix_end(&hash.id.fields()), Order::Ascending);
    pairs.map(|pair| {
        let (store_key, stored) = pair?;
        Ok((field_name(&store_key), Field::decode(stored)?))
    })
}

/// The largest key; one whose time is over counts until it is deleted.
///
/// # Errors
/// The store failed.
pub fn largest(view: View<'_>) -> Result<Option<Bytes>, StoreError> {
    let mut pairs = view.scan(&record::KEYS, &record::KEYS_END, Order::Descending);
    Ok(pairs.next().transpose()?.and_then(|(key, _)| record::client_key(&key)))
}

/// All keys, ascending, read lazily; also those whose time is over.
pub fn all(view: View<'_>) -> impl Iterator<Item = Result<KeyValue, StoreError>> {
    view.scan(&record::KEYS, &record::KEYS_END, Order::Ascending).map(|pair| {
        let (store_key, stored) = pair?;
        let key = store_key.slice(record::KEYS.len()..);
        Ok(Record::decode(stored)?.into_key_value(key))
    })
}

/// Whether a change's store key is that of a client's key.
pub fn is_key(store_key: &[u8]) -> bool {
    store_key.starts_with(&record::KEYS)
}

/// Which of a key's versions to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// The newest version at or below this one, within the key's present life.
    Version(i64),
    /// The newest with a mod revision at or below this one.
    ModRevision(i64),
}

/// The newest version of `key` at or below a given one, within the history that is kept.
///
/// # Errors
/// The store failed.
pub fn floor(
    view: View<'_>,
    progress: &Progress,
    key: &Bytes,
    floor: Floor,
) -> Result<Result<Option<KeyValue>, Refusal>, StoreError> {
    let at = |revision: i64| {
        let request = Range { key: key.clone(), revision, ..Range::default() };
        range(view, progress, &request).map(|reply| reply.map(|reply| reply.kvs.into_iter().next()))
    };
    let version = match floor {
        Floor::ModRevision(revision) if revision <= 0 => return Ok(Ok(None)),
        Floor::ModRevision(revision) => return at(revision.min(progress.revision.0 as i64)),
        Floor::Version(version) => version,
    };
    let Some(newest) = at(0)?.unwrap_or(None) else { return Ok(Ok(None)) };
    if newest.version <= version || version < 1 {
        return Ok(Ok(Some(newest).filter(|_| version >= 1)));
    }
    // Versions grow with revisions while a key lives: search for the last revision that shows one small
    // enough.
    let oldest = newest.create_revision.max(progress.compacted.0 as i64).max(1);
    let (mut low, mut high) = (oldest, newest.mod_revision - 1);
    while low < high {
        let middle = high - (high - low) / 2;
        match done!(at(middle)?) {
            Some(kv) if kv.version > version => high = middle - 1,
            _ => low = middle,
        }
    }
    match done!(at(low)?) {
        Some(kv) if kv.version > version => {
            Ok(Err(Unavailable::Compacted { compacted: progress.compacted }.into()))
        }
        found => Ok(Ok(found)),
    }
}

/// One lease, with its keys if asked for.
///
/// # Errors
/// The store failed.
pub fn lease(
    view: View<'_>,
    progress: &Progress,
    id: i64,
    with_keys: bool,
) -> Result<Option<(LeaseInfo, Vec<Bytes>)>, StoreError> {
    let lease = view.get(&record::lease_key(id))?.map(Lease::decode).transpose()?;
    let Some(lease) = lease.filter(|lease| !lease.ending) else { return Ok(None) };
    let info = lease_info(id, lease, progress);
    let mut keys = Vec::new();
    if with_keys {
        for pair in view.scan_prefix(&record::attachments_prefix(id), Order::Ascending) {
            keys.push(record::attached_key(&pair?.0));
        }
    }
    Ok(Some((info, keys)))
}

/// All leases, by id.
///
/// # Errors
/// The store failed.
pub fn leases(view: View<'_>, progress: &Progress) -> Result<Vec<LeaseInfo>, StoreError> {
    let pairs = view.scan(&record::LEASES, &record::LEASES_END, Order::Ascending);
    let mut leases = Vec::new();
    for pair in pairs {
        let (key, stored) = pair?;
        let id = key[2..].try_into().map(i64::from_be_bytes);
        let id = id.map_err(|_| Malformed { what: "lease key" })?;
        let lease = Lease::decode(stored)?;
        if !lease.ending {
            leases.push(lease_info(id, lease, progress));
        }
    }
    Ok(leases)
}

fn lease_info(id: i64, lease: Lease, progress: &Progress) -> LeaseInfo {
    LeaseInfo { id, granted_ttl_s: lease.ttl_s as i64, deadline: lease.ends(progress.term_began) }
}

/// A change of the kv face as clients see it; `None` for a change of another keyspace. A deletion has only
/// its key and `mod_revision`.
///
/// # Errors
/// The record was not written by this version.
pub fn change_to_key_value(change: &Change, revision: Revision) -> Result<Option<KeyValue>, StoreError> {
    let Some(key) = record::client_key(&change.key) else { return Ok(None) };
    Ok(Some(match &change.value {
        Some(value) => Record::decode(value.clone())?.into_key_value(key),
        None => KeyValue { key, mod_revision: revision.0 as i64, ..KeyValue::default() },
    }))
}

/// The store keys to watch for a client's key or range: the first, and the end (exclusive) of a range.
pub fn watch_bounds(key: &[u8], range_end: &[u8]) -> (Bytes, Option<Bytes>) {
    let Bounds { from, to } = Bounds::of(key, range_end);
    (from.into(), to.map(Bytes::from))
}
