//! A transaction that only reads, answered from a view: as the machine would answer it as the next command,
//! but without a place in the log. So it costs the other replicas nothing, and holds up no write.

use super::command::{CompareTarget, Range, Txn, txn_operation::Step};
use super::compare::choose_path;
use super::range::{Meter, answer_bytes, range_charged};
use super::reply::{Done, RangeReply, Refusal, Response, done};
use super::txn;
use super::work::Work;
use crate::store::{StoreError, View};
use crate::types::Progress;

/// Whether [`read_txn`] can answer a transaction: no step on any path writes, or reads an older revision, and
/// no comparison is with the time.
pub fn only_reads(txn: &Txn) -> bool {
    let timeless = |target: &Option<CompareTarget>| !matches!(target, Some(CompareTarget::Stamp(_)));
    txn.compare.iter().all(|compare| timeless(&compare.target))
        && txn.success.iter().chain(&txn.failure).all(|operation| match &operation.step {
            Some(Step::Range(range)) => range.revision <= 0,
            Some(Step::Txn(inner)) => only_reads(inner),
            _ => false,
        })
}

/// The answer to a transaction that [`only_reads`]. `meter` is told of each record of it, of single keys too. As in the
/// log, what it looks at in ranges is bounded.
///
/// # Errors
/// The store failed.
pub fn read_txn(
    view: View<'_>,
    progress: &Progress,
    txn: Txn,
    meter: &mut Meter<'_>,
) -> Result<Result<Response, Refusal>, StoreError> {
    done!(txn::check(&txn));
    let mut work = Work::new();
    let mut path = Vec::new();
    done!(choose_path(view, progress.stamp, &txn, &mut path, &mut work)?);
    Reading { view, progress, meter, work }.run(txn, &mut path.into_iter())
}

struct Reading<'a, 'm> {
    view: View<'a>,
    progress: &'a Progress,
    meter: &'a mut Meter<'m>,
    work: Work,
}

impl Reading<'_, '_> {
    fn run(&mut self, txn: Txn, path: &mut dyn Iterator<Item = bool>) -> Done<Response> {
        let succeeded = path.next().expect("the path has an item for each transaction on it");
        let steps = if succeeded { txn.success } else { txn.failure };
        let mut responses = Vec::with_capacity(steps.len());
        for step in steps {
            responses.push(match step.step {
                Some(Step::Range(range)) => Response::Range(done!(self.range(&range)?)),
                Some(Step::Txn(inner)) => done!(self.run(inner, path)?),
                // Callers ask only_reads first.
                _ => return Ok(Err(Refusal::Malformed)),
            });
        }
        Ok(Ok(Response::Txn { succeeded, responses }))
    }

    fn range(&mut self, range: &Range) -> Done<RangeReply> {
        let reply = done!(range_charged(self.view, self.progress, range, self.meter, &mut self.work)?);
        if range.range_end.is_empty() {
            done!(reply.kvs.iter().map(answer_bytes).try_for_each(&mut *self.meter));
        }
        Ok(Ok(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::{Compare, CompareResult, Delete, Operation, Put, TxnOperation};
    use super::super::range::at_most;
    use super::*;
    use crate::store::MemoryStore;
    use crate::{Batch, Machines, Reply, Stamp, Term};
    use bytes::Bytes;

    fn apply(
        store: &MemoryStore,
        machines: &mut Machines,
        operation: Operation,
    ) -> Result<Response, Refusal> {
        let index = machines.progress().index.next();
        let payload = Batch::encode(Stamp(1), &[operation.into_command()]);
        match machines.apply(store, index, Term(1), payload).unwrap().replies.into_iter().next() {
            Some(Reply::Kv(reply)) => reply.result,
            other => panic!("{other:?}"),
        }
    }

    fn step(step: Step) -> TxnOperation {
        TxnOperation { step: Some(step) }
    }

    fn range(key: &'static str, end: &'static str) -> Range {
        Range { key: key.into(), range_end: end.into(), ..Range::default() }
    }

    fn filled() -> (MemoryStore, Machines) {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        for number in 0..9 {
            let (key, value) = (format!("k{}", number % 7).into(), Bytes::from(vec![b'v'; number]));
            apply(&store, &mut machines, Operation::Put(Put { key, value, ..Put::default() })).unwrap();
        }
        (store, machines)
    }

    #[test]
    fn a_view_answers_as_the_log_does() {
        let (store, mut machines) = filled();
        let versioned = |key: &'static str, end: &'static str, version| Compare {
            key: key.into(),
            range_end: end.into(),
            result: CompareResult::Equal as i32,
            target: Some(CompareTarget::Version(version)),
            ..Compare::default()
        };
        let ranges = || {
            [
                step(Step::Range(range("k1", ""))),
                step(Step::Range(range("absent", ""))),
                step(Step::Range(Range { limit: 2, ..range("k", "l") })),
                step(Step::Range(Range { count_only: true, ..range("k", "\0") })),
                step(Step::Range(Range { keys_only: true, sort_order: 2, ..range("k2", "k5") })),
            ]
        };
        let mut compared = 0;
        for outer in [versioned("k0", "", 2), versioned("k0", "", 1), versioned("k2", "k5", 1)] {
            for inner in [versioned("k1", "", 2), versioned("k", "l", 1), versioned("absent", "", 0)] {
                let within = Txn {
                    compare: vec![inner.clone()],
                    success: ranges().into(),
                    failure: vec![step(Step::Range(range("k6", "")))],
                };
                let txn = Txn {
                    compare: vec![outer.clone()],
                    success: ranges().into_iter().chain([step(Step::Txn(within.clone()))]).collect(),
                    failure: [step(Step::Txn(within)), step(Step::Range(range("k3", "")))].into(),
                };
                assert!(only_reads(&txn));
                let progress = machines.progress();
                let view = View::new(&store, progress.sequence);
                let read = read_txn(view, &progress, txn.clone(), &mut |_| Ok(())).unwrap();
                assert_eq!(read, apply(&store, &mut machines, Operation::Txn(txn)));
                assert_eq!(machines.progress().revision, progress.revision);
                compared += 1;
            }
        }
        assert_eq!(compared, 9);
        let none = read_txn(
            View::new(&store, machines.progress().sequence),
            &machines.progress(),
            Txn { success: vec![step(Step::Range(range("", "")))], ..Txn::default() },
            &mut |_| Ok(()),
        );
        assert_eq!(none.unwrap(), Err(Refusal::EmptyKey));
    }

    #[test]
    fn what_writes_or_depends_on_the_time_or_reads_the_past_needs_the_log() {
        let read = || step(Step::Range(range("k", "l")));
        let txn = |success, failure| Txn { success, failure, ..Txn::default() };
        let put = || step(Step::Put(Put::default()));
        let delete = step(Step::Delete(Delete::default()));
        let old = step(Step::Range(Range { revision: 3, ..range("k", "l") }));
        let stamped = Txn {
            compare: vec![Compare { target: Some(CompareTarget::Stamp(1)), ..Compare::default() }],
            ..Txn::default()
        };
        assert!(only_reads(&txn(vec![read()], vec![])));
        assert!(only_reads(&txn(vec![], vec![])));
        for writes in [
            txn(vec![read(), put()], vec![]),
            txn(vec![read()], vec![delete]),
            txn(vec![step(Step::Txn(txn(vec![], vec![put()])))], vec![]),
            txn(vec![TxnOperation { step: None }], vec![]),
            txn(vec![old], vec![]),
            stamped,
        ] {
            assert!(!only_reads(&writes), "{writes:?}");
        }
    }

    #[test]
    fn an_answer_is_bounded_over_all_steps() {
        let (store, machines) = filled();
        let (view, progress) = (View::new(&store, machines.progress().sequence), machines.progress());
        let success = [range("k", "l"), range("k0", ""), range("k", "l")].map(|read| step(Step::Range(read)));
        let txn = Txn { success: success.into(), ..Txn::default() };
        let read =
            |bytes_max| read_txn(view, &progress, txn.clone(), &mut at_most(bytes_max)).unwrap().map(|_| ());
        // Keys of two bytes; values of 7, 8, 2, 3, 4, 5 and 6; 32 more for each.
        let bytes = 2 * (7 * (2 + 32) + 35) + 2 + 7 + 32;
        assert_eq!(read(bytes), Ok(()));
        assert_eq!(read(bytes - 1), Err(Refusal::ResponseTooLarge));
    }
}
