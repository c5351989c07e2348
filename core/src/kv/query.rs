//! How the kv face is read, and the shapes of its answers.

use super::command::{Range, SortOrder, SortTarget};
use super::record::{self, Lease, Record};
use crate::history::{self, Change, Unavailable};
use crate::store::{Order, StoreError, View};
use crate::tx::Tx;
use crate::types::{Progress, Revision, Stamp};
use bytes::Bytes;

/// One key as clients see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty where only keys were asked for.
    pub value: Bytes,
    /// Revision of the write that created it.
    pub create_revision: i64,
    /// Revision of its last write.
    pub mod_revision: i64,
    /// Number of writes since creation.
    pub version: i64,
    /// The lease, 0 for none.
    pub lease: i64,
    /// Its own deadline, if it has a time to live.
    pub expires: Option<Stamp>,
    /// When it was last written.
    pub updated: Stamp,
    /// Numbers stored beside the value.
    pub metadata: Vec<i64>,
}

/// The answer to a [`Range`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeReply {
    /// In the order asked for.
    pub kvs: Vec<KeyValue>,
    /// There are more than the limit let through.
    pub more: bool,
    /// How many keys are in the range, whatever the limit.
    pub count: i64,
}

/// The answer to one operation that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// To a read within a transaction.
    Range(RangeReply),
    /// To a write: what was there before, if asked.
    Put(Option<KeyValue>),
    /// To a deletion.
    Delete {
        /// How many keys were deleted.
        deleted: i64,
        /// What was deleted, if asked.
        prev_kvs: Vec<KeyValue>,
    },
    /// To a transaction.
    Txn {
        /// All comparisons held.
        succeeded: bool,
        /// One per step done.
        responses: Vec<Response>,
    },
    /// To a grant or a keep-alive.
    Lease {
        /// The lease.
        id: i64,
        /// Seconds granted.
        ttl_s: i64,
    },
    /// To a revocation.
    Revoked,
    /// To an increment: what stands there now.
    Number(i64),
}

/// What a kv command is answered: done, or refused for a reason on which all replicas agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The newest revision after the command.
    pub revision: Revision,
    /// What came of it.
    pub result: Result<Response, Refusal>,
}

/// Why a kv command or read was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A key was empty.
    #[error("key is not provided")]
    EmptyKey,
    /// `ignore_value` or `ignore_lease` on a key that does not exist.
    #[error("key not found")]
    KeyNotFound,
    /// The same key written twice in one transaction.
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    /// No such lease.
    #[error("requested lease not found")]
    LeaseNotFound,
    /// The lease id is taken.
    #[error("lease already exists")]
    LeaseExists,
    /// The time to live is out of bounds.
    #[error("too large lease TTL")]
    LeaseTtlTooLarge,
    /// The answer would be larger than answers may be; `limit` and further keys read it in pages.
    #[error("response is too large, read it in pages with a limit")]
    ResponseTooLarge,
    /// The revision is compacted or in the future.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The value to be incremented is no whole number of 64 bits.
    #[error("value is not an integer or out of range")]
    NoInteger,
    /// The sum does not fit into 64 bits.
    #[error("increment or decrement would overflow")]
    Overflow,
    /// The bytes are no command of this version.
    #[error("malformed command")]
    Malformed,
}

/// A lease and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Its id.
    pub id: i64,
    /// Seconds granted.
    pub granted_ttl_s: i64,
    /// When it ends, if it is not kept alive.
    pub deadline: Stamp,
}

/// Which keys a request means, as store keys.
pub(super) struct Bounds {
    from: Vec<u8>,
    /// `None`: only the key `from`.
    to: Option<Vec<u8>>,
}

impl Bounds {
    /// etcd's reading of a key and a range end: empty means the key alone, one zero byte means all keys from the
    /// key on.
    pub(super) fn of(key: &[u8], range_end: &[u8]) -> Self {
        let to = match range_end {
            [] => None,
            [0] => Some(record::KEYS_END.to_vec()),
            end => Some(record::key(end)),
        };
        Self { from: record::key(key), to }
    }
}

/// The records within `bounds`, by key: store key, client's key, record. Read all at once: for deletions and
/// comparisons, which need them all.
pub(super) fn records(view: View<'_>, bounds: &Bounds) -> Result<Vec<(Bytes, Bytes, Record)>, StoreError> {
    let mut found = Vec::new();
    each_record(view, bounds, Order::Ascending, |store_key, value| {
        let key = record::client_key(&store_key).expect("the bounds lie within the keys' records");
        found.push((store_key, key, Record::decode(value)?));
        Ok(true)
    })?;
    Ok(found)
}

/// Calls `take` for each record within `bounds` until it returns false.
fn each_record(
    view: View<'_>,
    bounds: &Bounds,
    order: Order,
    mut take: impl FnMut(Bytes, Bytes) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let Some(to) = &bounds.to else {
        if let Some(value) = view.get(&bounds.from)? {
            take(Bytes::copy_from_slice(&bounds.from), value)?;
        }
        return Ok(());
    };
    for pair in view.scan(&bounds.from, to, order) {
        let (store_key, value) = pair?;
        if !take(store_key, value)? {
            break;
        }
    }
    Ok(())
}

/// Reads a key or a range.
///
/// # Errors
/// The store failed.
pub fn range(
    view: View<'_>,
    progress: &Progress,
    request: &Range,
) -> Result<Result<RangeReply, Refusal>, StoreError> {
    range_bounded(view, progress, request, usize::MAX)
}

/// Reads a key or a range whose answer may have `bytes_max` bytes of keys and values.
///
/// # Errors
/// The store failed.
pub fn range_bounded(
    view: View<'_>,
    progress: &Progress,
    request: &Range,
    bytes_max: usize,
) -> Result<Result<RangeReply, Refusal>, StoreError> {
    if request.key.is_empty() {
        return Ok(Err(Refusal::EmptyKey));
    }
    let view = match request.revision {
        ..=0 => view,
        revision => match history::sequence_at(view, progress, Revision(revision as u64))? {
            Ok(sequence) => view.at(sequence),
            Err(unavailable) => return Ok(Err(unavailable.into())),
        },
    };
    if request.range_end.is_empty() {
        return Ok(Ok(point(view, request)?));
    }
    Collector::new(request, bytes_max).collect(view, request)
}

/// Reads the next piece of a range in key order: up to `request.limit` records, and no more once `bytes_max` bytes of
/// keys and values are gathered. `more` says whether something is left, `count` how many the piece has. Unlike
/// [`range`] it looks at nothing beyond its piece; sorting and bounds on revisions are not its business.
///
/// # Errors
/// The store failed.
pub fn page(
    view: View<'_>,
    progress: &Progress,
    request: &Range,
    bytes_max: usize,
) -> Result<Result<RangeReply, Refusal>, StoreError> {
    let view = match request.revision {
        ..=0 => view,
        revision => match history::sequence_at(view, progress, Revision(revision as u64))? {
            Ok(sequence) => view.at(sequence),
            Err(unavailable) => return Ok(Err(unavailable.into())),
        },
    };
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let mut reply = RangeReply::default();
    let mut bytes = 0;
    let bounds = Bounds::of(&request.key, &request.range_end);
    each_record(view, &bounds, Order::Ascending, |store_key, value| {
        reply.more = reply.kvs.len() >= limit || bytes >= bytes_max;
        if reply.more {
            return Ok(false);
        }
        let key = record::client_key(&store_key).expect("the bounds lie within the keys' records");
        let kv = shown_key_value(Record::decode(value)?, key, request);
        bytes += kv.key.len() + kv.value.len();
        reply.kvs.push(kv);
        Ok(true)
    })?;
    reply.count = reply.kvs.len() as i64;
    Ok(Ok(reply))
}

/// One key as it is in `view`; an empty key is none.
///
/// # Errors
/// The store failed.
pub fn get(view: View<'_>, key: &Bytes) -> Result<Option<KeyValue>, StoreError> {
    Ok(newest(view, key)?.map(|record| record.into_key_value(key.clone())))
}

fn newest(view: View<'_>, key: &[u8]) -> Result<Option<Record>, StoreError> {
    Ok(view.get(&record::key(key))?.map(Record::decode).transpose()?)
}

/// One key: the common case, without a scan.
fn point(view: View<'_>, request: &Range) -> Result<RangeReply, StoreError> {
    let record = newest(view, &request.key)?;
    let count = i64::from(record.is_some());
    let shown = record.filter(|record| !request.count_only && within_revisions(record, request));
    let kvs = shown.map(|record| shown_key_value(record, request.key.clone(), request)).into_iter().collect();
    Ok(RangeReply { kvs, more: false, count })
}

fn shown_key_value(mut record: Record, key: Bytes, request: &Range) -> KeyValue {
    if request.keys_only {
        record.value = Bytes::new();
    }
    record.into_key_value(key)
}

fn within_revisions(record: &Record, request: &Range) -> bool {
    let (modified, created) = (record.mod_revision as i64, record.create_revision as i64);
    let at_least = |bound: i64, number: i64| bound == 0 || number >= bound;
    let at_most = |bound: i64, number: i64| bound == 0 || number <= bound;
    at_least(request.min_mod_revision, modified)
        && at_most(request.max_mod_revision, modified)
        && at_least(request.min_create_revision, created)
        && at_most(request.max_create_revision, created)
}

/// Gathers a range's answer. As in etcd, `count` is of all keys in the range whatever is filtered out or cut
/// off, and a sort or filter looks at all of them before the limit cuts.
struct Collector {
    order: Order,
    sorts: bool,
    limit: usize,
    bytes_left: usize,
    reply: RangeReply,
}

impl Collector {
    fn new(request: &Range, bytes_max: usize) -> Self {
        let by_key = request.sort_target() == SortTarget::Key;
        let descends = by_key && request.sort_order() == SortOrder::Descend;
        Self {
            order: if descends { Order::Descending } else { Order::Ascending },
            sorts: !by_key,
            limit: usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX),
            bytes_left: bytes_max,
            reply: RangeReply::default(),
        }
    }

    fn collect(mut self, view: View<'_>, request: &Range) -> Result<Result<RangeReply, Refusal>, StoreError> {
        let bounds = Bounds::of(&request.key, &request.range_end);
        let mut too_large = false;
        each_record(view, &bounds, self.order, |store_key, value| {
            self.reply.count += 1;
            too_large = !self.take(&store_key, value, request)?;
            Ok(!too_large)
        })?;
        if too_large {
            return Ok(Err(Refusal::ResponseTooLarge));
        }
        if self.sorts {
            sort(&mut self.reply.kvs, request);
            self.reply.more = self.reply.kvs.len() > self.limit;
            self.reply.kvs.truncate(self.limit);
            if request.keys_only {
                self.reply.kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
            }
        }
        Ok(Ok(self.reply))
    }

    /// False where the answer has become too large.
    fn take(&mut self, store_key: &Bytes, value: Bytes, request: &Range) -> Result<bool, StoreError> {
        if request.count_only || (self.reply.more && !self.sorts) {
            return Ok(true);
        }
        let record = Record::decode(value)?;
        if !within_revisions(&record, request) {
            return Ok(true);
        }
        if self.reply.kvs.len() >= self.limit && !self.sorts {
            self.reply.more = true;
            return Ok(true);
        }
        let key = record::client_key(store_key).expect("the bounds lie within the keys' records");
        // As in etcd, values that are not shown can be sorted by.
        let by_value = request.sort_target() == SortTarget::Value;
        let kv = if by_value { record.into_key_value(key) } else { shown_key_value(record, key, request) };
        let bytes = kv.key.len() + kv.value.len();
        self.reply.kvs.push(kv);
        let fits = bytes <= self.bytes_left;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        Ok(fits)
    }
}

/// Sorts by what was asked; equals stay in the order of their keys.
fn sort(kvs: &mut [KeyValue], request: &Range) {
    let compare = |a: &KeyValue, b: &KeyValue| match request.sort_target() {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    if request.sort_order() == SortOrder::Descend {
        kvs.sort_by(|a, b| compare(b, a));
    } else {
        kvs.sort_by(compare);
    }
}

/// A read within a transaction: it sees what the transaction has written, or an older revision; bounded as
/// [`range_bounded`].
pub(super) fn range_in(
    tx: &Tx<'_>,
    request: &Range,
    bytes_max: usize,
) -> Result<Result<RangeReply, Refusal>, StoreError> {
    let newest = Range { revision: 0, ..request.clone() };
    let view = match Revision(request.revision.max(0) as u64) {
        Revision(0) => tx.view(),
        own if own == tx.revision() => tx.view(),
        older => match tx.sequence_at(older)? {
            Ok(sequence) => tx.view().at(sequence),
            Err(unavailable) => return Ok(Err(unavailable.into())),
        },
    };
    range_bounded(view, &tx.progress(), &newest, bytes_max)
}

/// Whether a transaction's read can be served, before the transaction writes.
pub(super) fn check_revision(tx: &Tx<'_>, request: &Range) -> Result<Result<(), Refusal>, StoreError> {
    if request.key.is_empty() {
        return Ok(Err(Refusal::EmptyKey));
    }
    if request.revision <= 0 {
        return Ok(Ok(()));
    }
    let found = tx.sequence_at(Revision(request.revision as u64))?;
    Ok(found.map(|_| ()).map_err(Refusal::from))
}

/// Which of a key's versions is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// The newest whose version is not above this, within the key's present life.
    Version(i64),
    /// The newest whose mod revision is not above this.
    ModRevision(i64),
}

/// The newest version of `key` that is not above a given one, within the history that is kept.
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
    match floor {
        Floor::ModRevision(revision) if revision <= 0 => Ok(Ok(None)),
        Floor::ModRevision(revision) => at(revision.min(progress.revision.0 as i64)),
        Floor::Version(version) => {
            let Some(newest) = at(0)?.unwrap_or(None) else { return Ok(Ok(None)) };
            if newest.version <= version || version < 1 {
                return Ok(Ok(Some(newest).filter(|_| version >= 1)));
            }
            // Versions grow with revisions while a key lives: look for the last revision that is not above.
            let oldest = newest.create_revision.max(progress.compacted.0 as i64).max(1);
            let (mut low, mut high) = (oldest, newest.mod_revision - 1);
            while low < high {
                let middle = high - (high - low) / 2;
                match at(middle)? {
                    Ok(Some(kv)) if kv.version > version => high = middle - 1,
                    Ok(_) => low = middle,
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
            match at(low)? {
                Ok(Some(kv)) if kv.version > version => {
                    Ok(Err(Unavailable::Compacted { compacted: progress.compacted }.into()))
                }
                found => Ok(found),
            }
        }
    }
}

/// One lease, with its keys if asked.
///
/// # Errors
/// The store failed.
pub fn lease(
    view: View<'_>,
    progress: &Progress,
    id: i64,
    with_keys: bool,
) -> Result<Option<(LeaseInfo, Vec<Bytes>)>, StoreError> {
    let Some(stored) = view.get(&record::lease_key(id))? else { return Ok(None) };
    let info = lease_info(id, Lease::decode(stored)?, progress);
    let mut keys = Vec::new();
    if with_keys {
        for pair in view.scan_prefix(&record::attachments(id), Order::Ascending) {
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
    pairs
        .map(|pair| {
            let (key, stored) = pair?;
            let id = key[2..].try_into().map(i64::from_be_bytes);
            let id = id.map_err(|_| crate::codec::Malformed { what: "lease key" })?;
            Ok(lease_info(id, Lease::decode(stored)?, progress))
        })
        .collect()
}

fn lease_info(id: i64, lease: Lease, progress: &Progress) -> LeaseInfo {
    LeaseInfo { id, granted_ttl_s: lease.ttl_s as i64, deadline: lease.ends(progress.term_began) }
}

/// A change of the kv face as clients see it; `None` for another keyspace's change. A deletion is a key value
/// with nothing but its key and `mod_revision`.
///
/// # Errors
/// The record is not one of this version's.
pub fn change_to_key_value(change: &Change, revision: Revision) -> Result<Option<KeyValue>, StoreError> {
    let Some(key) = record::client_key(&change.key) else { return Ok(None) };
    Ok(Some(match &change.value {
        Some(value) => Record::decode(value.clone())?.into_key_value(key),
        None => KeyValue { key, mod_revision: revision.0 as i64, ..KeyValue::default() },
    }))
}

/// The store keys of a client's key or range, for watching: from, and the end (exclusive) of a range.
pub fn watch_bounds(key: &[u8], range_end: &[u8]) -> (Bytes, Option<Bytes>) {
    let Bounds { from, to } = Bounds::of(key, range_end);
    (from.into(), to.map(Bytes::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Operation, Put};
    use crate::store::MemoryStore;
    use crate::{Batch, Index, Machines, Term};

    #[test]
    fn pages_are_bounded_in_records_and_bytes_and_miss_nothing() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).expect("an empty store");
        let put = |key: &str| Put {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: vec![b'v'; 10].into(),
            ..Put::default()
        };
        let keys: Vec<String> = (0..7).map(|number| format!("k{number}")).collect();
        let commands: Vec<_> = keys.iter().map(|key| Operation::Put(put(key)).into_command()).collect();
        let next = machines.progress().index.next();
        let payload = Batch::encode(Stamp(1), &commands);
        machines.apply(&store, Index(next.0), Term(1), payload).expect("a memory store does not fail");
        let progress = machines.progress();
        let view = View::new(&store, progress.sequence);
        // Twelve bytes a record: the third one exceeds 25.
        for (limit, bytes_max, lengths) in [(2, usize::MAX, vec![2, 2, 2, 1]), (0, 25, vec![3, 3, 1])] {
            let mut request = Range { key: "k".into(), range_end: "l".into(), limit, ..Range::default() };
            let mut found = Vec::new();
            for (place, length) in lengths.iter().enumerate() {
                let page = page(view, &progress, &request, bytes_max).expect("store").expect("no refusal");
                assert_eq!((page.kvs.len(), page.count), (*length, *length as i64));
                assert_eq!(page.more, place + 1 < lengths.len());
                found.extend(page.kvs.into_iter().map(|kv| kv.key));
                request.key = [&found[found.len() - 1][..], b"\0"].concat().into();
            }
            assert_eq!(found, keys);
        }
    }
}
