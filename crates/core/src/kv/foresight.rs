//! Whether a command will take long, judged before it is proposed: others would wait behind it, so it is paced.
//!
//! It is a guess: the state may change before the command is applied. What applies it has bounds of its own.

use super::check::each_deleted;
use super::command::{Delete, Operation, Txn, txn_operation::Step};
use super::range::{Bounds, each_record};
use super::reply::{Done, done};
use super::work::Work;
use crate::store::{Order, StoreError, View};

/// Whether the operation reads or deletes ranges of keys: others look at few records.
pub fn covers_ranges(operation: &Operation) -> bool {
    match operation {
        Operation::Delete(delete) => !delete.range_end.is_empty(),
        Operation::Txn(txn) => txn_covers_ranges(txn),
        _ => false,
    }
}

fn txn_covers_ranges(txn: &Txn) -> bool {
    let compares = txn.compare.iter().any(|compare| !compare.range_end.is_empty());
    let mut steps = txn.success.iter().chain(&txn.failure).filter_map(|operation| operation.step.as_ref());
    compares
        || steps.any(|step| match step {
            Step::Range(range) => !range.range_end.is_empty(),
            Step::Delete(delete) => !delete.range_end.is_empty(),
            Step::Txn(inner) => txn_covers_ranges(inner),
            Step::Put(_) | Step::WriteFields(_) | Step::Publish(_) => false,
        })
}

/// Whether applying the operation looks at very many records, or deletes more than about a thousand. It stops looking
/// as soon as it knows.
///
/// # Errors
/// The store failed.
pub fn takes_long(view: View<'_>, operation: &Operation) -> Result<bool, StoreError> {
    let mut work = Work::short();
    let looked = match operation {
        Operation::Delete(delete) => look_at_delete(view, delete, &mut work)?,
        Operation::Txn(txn) => look_at_txn(view, txn, &mut work)?,
        _ => Ok(()),
    };
    Ok(looked.is_err())
}

/// Both branches count: which one is taken is not known yet.
fn look_at_txn(view: View<'_>, txn: &Txn, work: &mut Work) -> Done<()> {
    for compare in &txn.compare {
        done!(look_at(view, &compare.key, &compare.range_end, work)?);
    }
    for step in txn.success.iter().chain(&txn.failure).filter_map(|operation| operation.step.as_ref()) {
        done!(match step {
            Step::Range(range) => look_at(view, &range.key, &range.range_end, work)?,
            Step::Delete(delete) => look_at_delete(view, delete, work)?,
            Step::Txn(inner) => look_at_txn(view, inner, work)?,
            Step::Put(_) | Step::WriteFields(_) | Step::Publish(_) => Ok(()),
        });
    }
    Ok(Ok(()))
}

fn look_at_delete(view: View<'_>, delete: &Delete, work: &mut Work) -> Done<()> {
    if delete.range_end.is_empty() {
        return Ok(Ok(()));
    }
    each_deleted(view, delete, work, |_, _| Ok(()))
}

fn look_at(view: View<'_>, key: &[u8], range_end: &[u8], work: &mut Work) -> Done<()> {
    if range_end.is_empty() {
        return Ok(Ok(()));
    }
    each_record(view, &Bounds::of(key, range_end), Order::Ascending, work, |_, _, _| Ok(Ok(true)))
}

#[cfg(test)]
mod tests {
    use super::super::command::{Compare, CompareTarget, Put, Range, TxnOperation};
    use super::super::work::SHORT_EXAMINED_BYTES;
    use super::*;
    use crate::store::MemoryStore;
    use crate::{Batch, Machines, Stamp, Term};

    fn delete(range_end: &'static str) -> Delete {
        Delete { key: "k".into(), range_end: range_end.into(), prev_kv: false }
    }

    fn txn(compare: Vec<Compare>, failure: Vec<Step>) -> Operation {
        let failure = failure.into_iter().map(|step| TxnOperation { step: Some(step) }).collect();
        Operation::Txn(Txn { compare, failure, ..Txn::default() })
    }

    #[test]
    fn what_covers_very_much_takes_long_and_what_covers_little_does_not() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let puts: Vec<_> = (0..2000)
            .map(|number| Put { key: format!("k{number:04}").into(), ..Put::default() })
            .map(|put| Operation::Put(put).into_command())
            .collect();
        let index = machines.progress().index.next();
        machines.apply(&store, index, Term(1), Batch::encode(Stamp(1), &puts)).unwrap();
        let view = View::new(&store, machines.progress().sequence);
        let compare = |range_end: &'static str| Compare {
            key: "k".into(),
            range_end: range_end.into(),
            target: Some(CompareTarget::Version(1)),
            ..Compare::default()
        };
        let read = Range { key: "k".into(), range_end: "k0100".into(), ..Range::default() };
        let nested = || match txn(Vec::new(), vec![Step::Delete(delete("l"))]) {
            Operation::Txn(txn) => Step::Txn(txn),
            other => panic!("{other:?}"),
        };
        for (operation, ranges, long) in [
            (Operation::Delete(delete("")), false, false),
            (Operation::Delete(delete("k0100")), true, false),
            (Operation::Delete(delete("l")), true, true),
            (txn(vec![compare("")], vec![Step::Delete(delete(""))]), false, false),
            (txn(vec![compare("l")], vec![Step::Range(read)]), true, false),
            (txn(Vec::new(), vec![nested()]), true, true),
            (Operation::LeaseRevoke(1), false, false),
        ] {
            assert_eq!(covers_ranges(&operation), ranges, "{operation:?}");
            assert_eq!(takes_long(view, &operation).unwrap(), long, "{operation:?}");
        }
        let large = Put { key: "k1".into(), value: vec![7; SHORT_EXAMINED_BYTES].into(), ..Put::default() };
        let index = machines.progress().index.next();
        let payload = Batch::encode(Stamp(1), &[Operation::Put(large).into_command()]);
        machines.apply(&store, index, Term(1), payload).unwrap();
        let view = View::new(&store, machines.progress().sequence);
        assert!(takes_long(view, &txn(vec![compare("l")], Vec::new())).unwrap());
    }
}
