//! Reads of key ranges: whole, in pages, and within transactions.

use super::command::{Range, SortOrder, SortTarget};
use super::record::{self, Record};
use super::reply::{Done, KeyValue, RangeReply, Refusal, done};
use super::sorted::Sorted;
use super::work::Work;
use crate::history;
use crate::store::{Order, StoreError, View};
use crate::tx::Tx;
use crate::types::{Progress, Revision};
use bytes::Bytes;

/// What a record adds to an answer besides its key and its value: its numbers, as they are on the wire.
pub(super) const ANSWER_RECORD_BYTES: usize = 32;

/// Bytes that a record counts for in an answer: its key and its value, and 32.
pub fn answer_bytes(kv: &KeyValue) -> usize {
    kv.key.len() + kv.value.len() + ANSWER_RECORD_BYTES
}

/// What is told the bytes of each record of a range's answer before the next one is read. An error ends the read.
pub type Meter<'m> = dyn FnMut(usize) -> Result<(), Refusal> + 'm;

/// A meter that refuses an answer of more than `bytes_max` bytes.
pub fn at_most(bytes_max: usize) -> impl FnMut(usize) -> Result<(), Refusal> {
    let mut left = bytes_max;
    move |bytes| {
        left = left.checked_sub(bytes).ok_or(Refusal::ResponseTooLarge)?;
        Ok(())
    }
}

/// The store keys of the keys that a request means.
pub(super) struct Bounds {
    pub(super) from: Vec<u8>,
    /// `None`: only the key `from`.
    pub(super) to: Option<Vec<u8>>,
}

impl Bounds {
    /// etcd's reading of a key and a range end: an empty end means the key alone, one zero byte all keys from
    /// the key on.
    pub(super) fn of(key: &[u8], range_end: &[u8]) -> Self {
        let to = match range_end {
            [] => None,
            [0] => Some(record::KEYS_END.to_vec()),
            end => Some(record::store_key(end)),
        };
        Self { from: record::store_key(key), to }
    }
}

/// Calls `take` with store key and value of each record within `bounds`, one by one, until it returns false.
/// The records of a range are charged to `work`.
pub(super) fn each_record(
    view: View<'_>,
    bounds: &Bounds,
    order: Order,
    work: &mut Work,
    mut take: impl FnMut(&mut Work, Bytes, Bytes) -> Done<bool>,
) -> Done<()> {
    let Some(to) = &bounds.to else {
        if let Some(value) = view.get(&bounds.from)? {
            done!(take(work, Bytes::copy_from_slice(&bounds.from), value)?);
        }
        return Ok(Ok(()));
    };
    for pair in view.scan(&bounds.from, to, order) {
        let (store_key, value) = pair?;
        done!(work.examine(store_key.len() + value.len()));
        if !done!(take(work, store_key, value)?) {
            break;
        }
    }
    Ok(Ok(()))
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

/// Reads a key or a range; refuses an answer of more than `bytes_max` bytes: keys and values, and 32 for each record.
///
/// # Errors
/// The store failed.
pub fn range_bounded(
    view: View<'_>,
    progress: &Progress,
    request: &Range,
    bytes_max: usize,
) -> Result<Result<RangeReply, Refusal>, StoreError> {
    range_metered(view, progress, request, &mut at_most(bytes_max))
}

/// Reads a key, of which `meter` is not told, or a range.
///
/// # Errors
/// The store failed.
pub fn range_metered(
    view: View<'_>,
    progress: &Progress,
    request: &Range,
    meter: &mut Meter<'_>,
) -> Result<Result<RangeReply, Refusal>, StoreError> {
    range_charged(view, progress, request, meter, &mut Work::unbounded())
}

/// As [`range_metered`], and charged to `work`.
pub(super) fn range_charged(
    view: View<'_>,
    progress: &Progress,
    request: &Range,
    meter: &mut Meter<'_>,
    work: &mut Work,
) -> Done<RangeReply> {
    if request.key.is_empty() {
        return Ok(Err(Refusal::EmptyKey));
    }
    let view = done!(view_at(view, progress, request.revision)?);
    if request.range_end.is_empty() {
        return Ok(Ok(point(view, request)?));
    }
    Collector::new(request).collect(view, request, meter, work)
}

/// Reads the next page of a range in key order: up to `request.limit` records, ending early once it holds
/// `bytes_max` bytes of keys and values. `more` says whether records are left, `count` how many the page has.
/// Unlike [`range`] it reads nothing beyond its page, and it neither sorts nor filters by revision.
///
/// # Errors
/// The store failed.
pub fn page(
    view: View<'_>,
    progress: &Progress,
    request: &Range,
    bytes_max: usize,
) -> Result<Result<RangeReply, Refusal>, StoreError> {
    let view = done!(view_at(view, progress, request.revision)?);
    let limit = limit_of(request);
    let mut reply = RangeReply::default();
    let mut bytes = 0;
    let bounds = Bounds::of(&request.key, &request.range_end);
    let read = each_record(view, &bounds, Order::Ascending, &mut Work::unbounded(), |_, store_key, value| {
        reply.more = reply.kvs.len() >= limit || bytes >= bytes_max;
        if reply.more {
            return Ok(Ok(false));
        }
        let key = record::client_key(&store_key).expect("the bounds lie within the keys' records");
        let kv = shown_key_value(Record::decode(value)?, key, request);
        bytes += kv.key.len() + kv.value.len();
        reply.kvs.push(kv);
        Ok(Ok(true))
    });
    done!(read?);
    reply.count = reply.kvs.len() as i64;
    Ok(Ok(reply))
}

/// The view that shows the state as of a request's revision; 0 or less means the newest.
fn view_at<'a>(view: View<'a>, progress: &Progress, revision: i64) -> Done<View<'a>> {
    if revision <= 0 {
        return Ok(Ok(view));
    }
    let found = history::sequence_at(view, progress, Revision(revision as u64))?;
    Ok(found.map(|sequence| view.at(sequence)).map_err(Refusal::from))
}

pub(super) fn limit_of(request: &Range) -> usize {
    usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX)
}

/// Reads one key, the common case, without a scan.
fn point(view: View<'_>, request: &Range) -> Result<RangeReply, StoreError> {
    let record = view.get(&record::store_key(&request.key))?.map(Record::decode).transpose()?;
    let count = i64::from(record.is_some());
    let shown = record.filter(|record| !request.count_only && within_revisions(record, request));
    let kvs = shown.map(|record| shown_key_value(record, request.key.clone(), request)).into_iter().collect();
    Ok(RangeReply { kvs, more: false, count })
}

pub(super) fn shown_key_value(mut record: Record, key: Bytes, request: &Range) -> KeyValue {
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

/// Collects a range's answer. As in etcd, `count` covers all keys in the range, whatever is filtered out or
/// cut off, and a sort or filter considers all of them before the limit cuts.
struct Collector {
    order: Order,
    limit: usize,
    reply: RangeReply,
    /// What the answer is sorted by, if not by key.
    sorted: Option<Sorted>,
}

impl Collector {
    fn new(request: &Range) -> Self {
        let by_key = request.sort_target() == SortTarget::Key;
        let descends = by_key && request.sort_order() == SortOrder::Descend;
        Self {
            order: if descends { Order::Descending } else { Order::Ascending },
            limit: limit_of(request),
            reply: RangeReply::default(),
            sorted: (!by_key).then(|| Sorted::new(request)),
        }
    }

    fn collect(
        mut self,
        view: View<'_>,
        request: &Range,
        meter: &mut Meter<'_>,
        work: &mut Work,
    ) -> Done<RangeReply> {
        let bounds = Bounds::of(&request.key, &request.range_end);
        let read = each_record(view, &bounds, self.order, work, |_, store_key, value| {
            self.reply.count += 1;
            let taken = self.take(&store_key, value, request)?;
            Ok(taken.map_or(Ok(()), &mut *meter).map(|()| true))
        });
        done!(read?);
        if let Some(sorted) = self.sorted {
            (self.reply.kvs, self.reply.more) = sorted.finish();
        }
        Ok(Ok(self.reply))
    }

    /// Returns by how many bytes the record lets the answer grow.
    fn take(
        &mut self,
        store_key: &Bytes,
        value: Bytes,
        request: &Range,
    ) -> Result<Option<usize>, StoreError> {
        if request.count_only || (self.reply.more && self.sorted.is_none()) {
            return Ok(None);
        }
        let record = Record::decode(value)?;
        if !within_revisions(&record, request) {
            return Ok(None);
        }
        let key = || record::client_key(store_key).expect("the bounds lie within the keys' records");
        if let Some(sorted) = &mut self.sorted {
            return Ok(Some(sorted.take(key(), record, request)));
        }
        if self.reply.kvs.len() >= self.limit {
            self.reply.more = true;
            return Ok(None);
        }
        let kv = shown_key_value(record, key(), request);
        let bytes = answer_bytes(&kv);
        self.reply.kvs.push(kv);
        Ok(Some(bytes))
    }
}

/// A read within a transaction: it sees the transaction's own writes, or an older revision; bounded as
/// [`range_bounded`], and charged to `work`.
pub(super) fn range_in(tx: &Tx<'_>, request: &Range, bytes_max: usize, work: &mut Work) -> Done<RangeReply> {
    let newest = Range { revision: 0, ..request.clone() };
    let view = match Revision(request.revision.max(0) as u64) {
        Revision(0) => tx.view(),
        own if own == tx.revision() => tx.view(),
        older => match tx.sequence_at(older)? {
            Ok(sequence) => tx.view().at(sequence),
            Err(unavailable) => return Ok(Err(unavailable.into())),
        },
    };
    range_charged(view, &tx.progress(), &newest, &mut at_most(bytes_max), work)
}

/// Checks that a transaction's read can be served, before the transaction writes.
pub(super) fn check_revision(tx: &Tx<'_>, request: &Range) -> Done<()> {
    if request.key.is_empty() {
        return Ok(Err(Refusal::EmptyKey));
    }
    if request.revision <= 0 {
        return Ok(Ok(()));
    }
    let found = tx.sequence_at(Revision(request.revision as u64))?;
    Ok(found.map(|_| ()).map_err(Refusal::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Operation, Put};
    use crate::store::MemoryStore;
    use crate::{Batch, Index, Machines, Stamp, Term};

    fn machines_with(store: &MemoryStore, commands: Vec<crate::Command>) -> Machines {
        let mut machines = Machines::open(store).expect("an empty store");
        let next = machines.progress().index.next();
        let payload = Batch::encode(Stamp(1), &commands);
        machines.apply(store, Index(next.0), Term(1), payload).expect("a memory store does not fail");
        machines
    }

    /// Keys and values alone were counted: an answer of millions of keys of a byte each took a hundred times its bound.
    #[test]
    fn a_record_of_an_answer_is_charged_more_than_its_key_and_its_value() {
        const RECORDS: usize = 100;
        let store = MemoryStore::new();
        let key = |number: usize| Bytes::from(vec![number as u8]);
        let put = |number| Operation::Put(Put { key: key(number), ..Put::default() }).into_command();
        let machines = machines_with(&store, (0..RECORDS).map(put).collect());
        let progress = machines.progress();
        let view = View::new(&store, progress.sequence);
        let request = Range { key: key(0), range_end: key(RECORDS), ..Range::default() };
        let bounded = |bytes_max| range_bounded(view, &progress, &request, bytes_max).expect("the store");
        let bytes = RECORDS * (1 + 32);
        assert_eq!(bounded(bytes).expect("it fits").kvs.len(), RECORDS);
        assert_eq!(bounded(bytes - 1), Err(Refusal::ResponseTooLarge));
    }

    #[test]
    fn pages_are_bounded_in_records_and_bytes_and_miss_nothing() {
        let store = MemoryStore::new();
        let put = |key: &str| Put {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: vec![b'v'; 10].into(),
            ..Put::default()
        };
        let keys: Vec<String> = (0..7).map(|number| format!("k{number}")).collect();
        let commands = keys.iter().map(|key| Operation::Put(put(key)).into_command()).collect();
        let machines = machines_with(&store, commands);
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
