//! Which way a transaction goes: its conditions, judged by the state before it.

use super::command::{Compare, CompareResult, CompareTarget, Txn, txn_operation::Step};
use super::range::{Bounds, each_record};
use super::record::{self, Record};
use super::reply::{Done, done};
use super::work::Work;
use crate::store::{Order, View};
use crate::types::Stamp;

/// Pushes for `txn`, and for each transaction on its chosen branch in turn, whether its conditions hold.
pub(super) fn choose_path(
    view: View<'_>,
    stamp: Stamp,
    txn: &Txn,
    path: &mut Vec<bool>,
    work: &mut Work,
) -> Done<()> {
    let mut holds = true;
    for compare in &txn.compare {
        holds = holds && done!(compare_holds(view, stamp, compare, work)?);
    }
    path.push(holds);
    let steps = if holds { &txn.success } else { &txn.failure };
    for step in steps {
        if let Some(Step::Txn(inner)) = &step.step {
            done!(choose_path(view, stamp, inner, path, work)?);
        }
    }
    Ok(Ok(()))
}

fn compare_holds(view: View<'_>, stamp: Stamp, compare: &Compare, work: &mut Work) -> Done<bool> {
    let Some(target) = &compare.target else { return Ok(Ok(false)) };
    let result = compare.result();
    if let CompareTarget::Stamp(given) = target {
        return Ok(Ok(passes(stamp.cmp(&Stamp(*given)), result)));
    }
    if compare.range_end.is_empty() {
        let record = view.get(&record::store_key(&compare.key))?.map(Record::decode).transpose()?;
        return Ok(Ok(record_passes(record.as_ref(), target, result, compare.absent_passes)));
    }
    let bounds = Bounds::of(&compare.key, &compare.range_end);
    let mut holds = None;
    let read = each_record(view, &bounds, Order::Ascending, work, |_, _, value| {
        let passes = record_passes(Some(&Record::decode(value)?), target, result, compare.absent_passes);
        holds = Some(passes);
        Ok(Ok(passes))
    });
    done!(read?);
    // As in etcd, a range without keys is compared as an absent key is.
    Ok(Ok(holds.unwrap_or_else(|| record_passes(None, target, result, compare.absent_passes))))
}

fn record_passes(
    record: Option<&Record>,
    target: &CompareTarget,
    result: CompareResult,
    absent_passes: bool,
) -> bool {
    let Some(record) = record else {
        // As in etcd, an absent key has all numbers zero and no value to compare.
        return absent_passes || absent_key_passes(target, result);
    };
    let number = |stored: i64, given: i64| passes(stored.cmp(&given), result);
    match target {
        CompareTarget::Version(given) => number(record.version as i64, *given),
        CompareTarget::CreateRevision(given) => number(record.create_revision as i64, *given),
        CompareTarget::ModRevision(given) => number(record.mod_revision as i64, *given),
        CompareTarget::Lease(given) => number(record.lease, *given),
        CompareTarget::Value(given) => passes(record.value.cmp(given), result),
        CompareTarget::Metadata(given) => match record.metadata.get(given.position as usize) {
            Some(stored) => number(*stored, given.value),
            None => absent_passes || number(0, given.value),
        },
        CompareTarget::Stamp(_) => false,
    }
}

fn absent_key_passes(target: &CompareTarget, result: CompareResult) -> bool {
    let given = match target {
        CompareTarget::Version(given)
        | CompareTarget::CreateRevision(given)
        | CompareTarget::ModRevision(given)
        | CompareTarget::Lease(given) => *given,
        CompareTarget::Metadata(given) => given.value,
        CompareTarget::Value(_) | CompareTarget::Stamp(_) => return false,
    };
    passes(0.cmp(&given), result)
}

fn passes(ordering: std::cmp::Ordering, result: CompareResult) -> bool {
    match result {
        CompareResult::Equal => ordering.is_eq(),
        CompareResult::Greater => ordering.is_gt(),
        CompareResult::Less => ordering.is_lt(),
        CompareResult::NotEqual => ordering.is_ne(),
    }
}
