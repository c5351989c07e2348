//! What can refuse a put, a deletion or a transaction, checked before anything is written.

use super::command::{Delete, Publish, Put, Range, Txn, txn_operation::Step};
use super::fields::Plan;
use super::own::Own;
use super::range::{Bounds, answer_bytes, check_revision, each_record, range_in};
use super::record::{self, KEY_BYTES_MAX, Lease};
use super::reply::{Done, Refusal, done};
use super::work::Work;
use crate::mutants;
use crate::store::{Order, StoreError, View};
use crate::tx::Tx;
use bytes::Bytes;

/// Bound on the bytes of existing keys and values that one command may answer with; a larger answer is
/// refused. A transaction that reads its own writes may exceed it by these.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// Maximum numbers stored beside a value.
pub const METADATA_MAX: usize = 4096;
/// Up to this many point reads skip the size check: the bound on values bounds them enough.
const POINT_READS_UNCHECKED: usize = 8;

/// Checks a key that is to be written.
pub(super) fn check_key(key: &[u8]) -> Result<(), Refusal> {
    match key.len() {
        0 => Err(Refusal::EmptyKey),
        bytes if bytes > KEY_BYTES_MAX && !mutants::is("key-unbounded") => Err(Refusal::KeyTooLong { bytes }),
        _ => Ok(()),
    }
}

pub(super) fn check_put(tx: &Tx<'_>, put: &Put) -> Done<()> {
    done!(check_key(&put.key));
    let count = put.metadata.len();
    if count > METADATA_MAX {
        return Ok(Err(Refusal::TooMuchMetadata { count }));
    }
    if (put.ignore_value || put.ignore_lease) && tx.get(&record::store_key(&put.key))?.is_none() {
        return Ok(Err(Refusal::KeyNotFound));
    }
    if put.lease != 0 && !put.ignore_lease && lease_of(tx, put.lease)?.is_none_or(|lease| lease.ending) {
        return Ok(Err(Refusal::LeaseNotFound));
    }
    Ok(Ok(()))
}

pub(super) fn check_delete(delete: &Delete) -> Result<(), Refusal> {
    if delete.key.is_empty() { Err(Refusal::EmptyKey) } else { Ok(()) }
}

/// The bound on keys serves for channels too, which may be empty.
fn check_publish(publish: &Publish) -> Result<(), Refusal> {
    if publish.channel.is_empty() { Ok(()) } else { check_key(&publish.channel) }
}

/// The record of a lease, which may be ending.
pub(super) fn lease_of(tx: &Tx<'_>, id: i64) -> Result<Option<Lease>, StoreError> {
    Ok(tx.get(&record::lease_key(id))?.map(Lease::decode).transpose()?)
}

/// Calls `take` with store key and value of each key that a deletion by range would delete; all are charged to
/// `work`.
pub(super) fn each_deleted(
    view: View<'_>,
    delete: &Delete,
    work: &mut Work,
    mut take: impl FnMut(Bytes, Bytes) -> Result<(), StoreError>,
) -> Done<()> {
    let bounds = Bounds::of(&delete.key, &delete.range_end);
    each_record(view, &bounds, Order::Ascending, work, |work, store_key, value| {
        if bounds.to.is_some() {
            done!(work.delete(store_key.len()));
        }
        take(store_key, value)?;
        Ok(Ok(true))
    })
}

/// Refuses an answer that would be too large; `answered` are the ranges it shows or counts, `own` the bytes that
/// it has besides.
pub(super) fn check_answer(tx: &Tx<'_>, answered: Vec<Range>, own: usize, work: &mut Work) -> Done<()> {
    let single = |range: &Range| range.range_end.is_empty();
    if answered.len() <= POINT_READS_UNCHECKED && answered.iter().all(single) {
        return Ok(Ok(()));
    }
    let mut left = REPLY_BYTES_MAX.saturating_sub(own);
    for range in &answered {
        let reply = done!(range_in(tx, range, left, work)?);
        let bytes: usize = reply.kvs.iter().map(answer_bytes).sum();
        left = done!(left.checked_sub(bytes).ok_or(Refusal::ResponseTooLarge));
    }
    Ok(Ok(()))
}

pub(super) fn answered_by_delete(delete: &Delete) -> Option<Range> {
    let Delete { key, range_end, prev_kv } = delete.clone();
    prev_kv.then(|| Range { key, range_end, ..Range::default() })
}

/// Checks the steps on the chosen path and collects the ranges they answer with or count.
pub(super) fn check_path<'t>(
    tx: &Tx<'_>,
    txn: &'t Txn,
    path: &mut dyn Iterator<Item = bool>,
    (answered, own): (&mut Vec<Range>, &mut Own<'t>),
    work: &mut Work,
) -> Done<()> {
    let succeeded = path.next().expect("the path has an item for each transaction on it");
    let steps = if succeeded { &txn.success } else { &txn.failure };
    for step in steps {
        match step.step.as_ref().expect("checked by txn::check") {
            Step::Range(range) => {
                done!(check_revision(tx, range)?);
                done!(own.range(range, work));
                // To count a range is to read it.
                let counts_key = range.count_only && range.range_end.is_empty();
                answered.extend((!counts_key).then(|| range.clone()));
            }
            Step::Put(put) => {
                done!(check_put(tx, put)?);
                own.put(put);
                let shown = Range { key: put.key.clone(), ..Range::default() };
                answered.extend(put.prev_kv.then_some(shown));
            }
            Step::Delete(delete) => {
                done!(check_delete(delete));
                if !delete.range_end.is_empty() {
                    done!(each_deleted(tx.view(), delete, work, |_, _| Ok(()))?);
                    done!(own.delete(delete, work));
                }
                answered.extend(answered_by_delete(delete));
            }
            Step::WriteFields(write) => {
                done!(Plan::of(tx, write)?);
                own.write_fields(write);
            }
            Step::Publish(publish) => done!(check_publish(publish)),
            Step::Txn(inner) => done!(check_path(tx, inner, path, (&mut *answered, &mut *own), work)?),
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::super::command::{Operation, TxnOperation};
    use super::super::reply::{Reply, Response};
    use super::*;
    use crate::store::MemoryStore;
    use crate::{Batch, Machines, Reply as Any, Stamp, Term};

    fn ask(store: &MemoryStore, machines: &mut Machines, operation: Operation) -> Reply {
        let index = machines.progress().index.next();
        let payload = Batch::encode(Stamp(1), &[operation.into_command()]);
        let outcome = machines.apply(store, index, Term(1), payload).unwrap();
        match outcome.replies.into_iter().next() {
            Some(Any::Kv(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// A transaction could be answered with the whole store, once per step.
    #[test]
    fn an_answer_that_is_too_large_is_refused_before_anything_is_written() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let value = Bytes::from(vec![7; REPLY_BYTES_MAX / 32]);
        let put =
            |key: String, prev_kv| Put { key: key.into(), value: value.clone(), prev_kv, ..Put::default() };
        let key = |number: usize| format!("k{number:02}");
        for number in 0..20 {
            ask(&store, &mut machines, Operation::Put(put(key(number), false))).result.unwrap();
        }
        let before = machines.progress().revision;
        let all = Range { key: "k".into(), range_end: "l".into(), ..Range::default() };
        let step = |step| TxnOperation { step: Some(step) };
        let written = || step(Step::Put(put("other".into(), false)));
        let txn = |steps: Vec<TxnOperation>| Operation::Txn(Txn { success: steps, ..Txn::default() });
        let one = |number| Range { key: key(number).into(), ..Range::default() };
        let delete = |key: &'static str| Delete { key: key.into(), range_end: "l".into(), prev_kv: true };
        let within = Txn { success: vec![step(Step::Range(all.clone()))], ..Txn::default() };
        let too_large = [
            txn(vec![written(), step(Step::Range(all.clone())), step(Step::Txn(within))]),
            txn((0..33).map(|number| step(Step::Range(one(number % 20)))).chain([written()]).collect()),
            txn(vec![written(), step(Step::Range(all.clone())), step(Step::Delete(delete("k")))]),
        ];
        for operation in too_large {
            let reply = ask(&store, &mut machines, operation);
            assert_eq!((reply.result, reply.revision), (Err(Refusal::ResponseTooLarge), before));
        }
        let counted = Range { count_only: true, ..all.clone() };
        let fits = txn(vec![step(Step::Range(all)), step(Step::Range(counted)), written()]);
        assert!(ask(&store, &mut machines, fits).result.is_ok());
        let deleted = ask(&store, &mut machines, Operation::Delete(delete("k")));
        assert!(matches!(deleted.result, Ok(Response::Delete { deleted: 20, .. })));
    }
}
