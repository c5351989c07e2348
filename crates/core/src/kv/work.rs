//! How much the commands of one log entry may do.
//!
//! **Invariant: Bounded.** Applying an entry takes bounded memory and a bounded time, however much its commands
//! cover. Ranges are read record by record, and what a command looks at, and what it is about to delete, is
//! charged here before it is kept. A command that exceeds a bound by itself is refused for good; one that only
//! exceeds what earlier commands of its entry have left over is refused as crowded, and is sure to find room
//! as the first one of another entry. A refused command has written nothing.
//!
//! The bounds are part of what a command means, so they are no settings: replicas must agree.

use super::reply::Refusal;
use crate::allowance::Allowance;

/// Maximum bytes of the records that an entry's commands look at in ranges: to compare, to count, to read and to
/// delete them. [`RECORD_OVERHEAD`] is added for each record.
pub const EXAMINED_BYTES_MAX: usize = 1 << 30;
/// Maximum bytes of the keys that an entry's commands delete by range. [`RECORD_OVERHEAD`] is added for each key.
pub const DELETED_BYTES_MAX: usize = 64 << 20;
/// Of both, what commands after the first one have, with it, is so much less: who waits for one of several waits for
/// all of them.
const FURTHER_DIVISOR: usize = 16;
/// What a record costs besides its bytes.
pub const RECORD_OVERHEAD: usize = 192;
/// Maximum keys that an entry deletes because leases expire, and because commands revoke them. A lease with more keys
/// ends in steps.
pub const LEASE_KEYS_MAX: usize = 5000;
/// Keys of a step, where the entry does not say how much is to expire.
const LEASE_STEP: usize = 1000;
/// What takes long looks at more than this, as in [`EXAMINED_BYTES_MAX`], or
pub(super) const SHORT_EXAMINED_BYTES: usize = 4 << 20;
/// deletes more than this, as in [`DELETED_BYTES_MAX`]: 1,000 keys of 60 bytes.
const SHORT_DELETED_BYTES: usize = 256 << 10;

/// What is left of an entry's bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    examined_left: usize,
    deleted_left: usize,
    pub(super) lease_keys_left: usize,
    /// Keys that a lease with very many of them loses at once; 0: such a lease has to wait.
    pub(super) lease_step: usize,
    /// Earlier commands of the entry were charged for ranges.
    crowded: bool,
}

impl Work {
    /// All of it, for an entry's commands.
    pub(super) fn new() -> Self {
        Self {
            examined_left: EXAMINED_BYTES_MAX,
            deleted_left: DELETED_BYTES_MAX,
            lease_keys_left: LEASE_KEYS_MAX,
            lease_step: LEASE_STEP,
            crowded: false,
        }
    }

    /// No bounds, for reads that do not go through the log and for what was charged already.
    pub(super) fn unbounded() -> Self {
        Self { examined_left: usize::MAX, deleted_left: usize::MAX, ..Self::new() }
    }

    /// The bounds within which a command does not take long.
    pub(super) fn short() -> Self {
        Self { examined_left: SHORT_EXAMINED_BYTES, deleted_left: SHORT_DELETED_BYTES, ..Self::new() }
    }

    /// The bounds of what expires before the commands. Beside clients' commands, leases lose no more keys than other
    /// keys expire.
    pub(super) fn of_expiry(allowed: Allowance) -> Self {
        match allowed.apart {
            true => Self { lease_step: allowed.most, ..Self::new() },
            false => Self { lease_keys_left: allowed.most.min(LEASE_KEYS_MAX), lease_step: 0, ..Self::new() },
        }
    }

    /// The entry's next command begins.
    pub(super) fn begin_command(&mut self) {
        let charged = self.examined_left < EXAMINED_BYTES_MAX || self.deleted_left < DELETED_BYTES_MAX;
        if charged && !std::mem::replace(&mut self.crowded, true) {
            let taken_away = |max| max - max / FURTHER_DIVISOR;
            self.examined_left = self.examined_left.saturating_sub(taken_away(EXAMINED_BYTES_MAX));
            self.deleted_left = self.deleted_left.saturating_sub(taken_away(DELETED_BYTES_MAX));
        }
    }

    /// Charges a record of `bytes` that is looked at.
    pub(super) fn examine(&mut self, bytes: usize) -> Result<(), Refusal> {
        let fits = charge(&mut self.examined_left, bytes);
        self.allowed(fits, Refusal::RangeTooLarge)
    }

    /// Charges a key of `bytes` that is to be deleted.
    pub(super) fn delete(&mut self, bytes: usize) -> Result<(), Refusal> {
        let fits = charge(&mut self.deleted_left, bytes);
        self.allowed(fits, Refusal::DeletesTooMuch)
    }

    fn allowed(self, fits: bool, too_much: Refusal) -> Result<(), Refusal> {
        match fits {
            true => Ok(()),
            false if self.crowded => Err(Refusal::Crowded),
            false => Err(too_much),
        }
    }
}

fn charge(left: &mut usize, bytes: usize) -> bool {
    let fits = bytes + RECORD_OVERHEAD <= *left;
    *left = left.saturating_sub(bytes + RECORD_OVERHEAD);
    fits
}

#[cfg(test)]
mod tests {
    use super::super::command::{
        Compare, CompareResult, CompareTarget, Delete, LeaseGrant, Operation, Put, Range, Txn, TxnOperation,
        txn_operation::Step,
    };
    use super::super::record::{KEYS, Record};
    use super::super::reply::Response;
    use super::super::{lease, leases};
    use super::*;
    use crate::store::spied::{Spied, Spy};
    use crate::store::{MemoryStore, Scan};
    use crate::{Batch, Event, Machines, Reply, Stamp, Store, Term, View, system};
    use bytes::Bytes;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// Very many, or very large, records, which are made while they are read.
    struct Vast {
        /// The bytes of a key and of a value, and how many there are.
        shape: (usize, usize, usize),
        counts: Arc<Counts>,
    }

    /// Values in memory: now, and most at once.
    #[derive(Default)]
    struct Counts {
        live: AtomicUsize,
        most: AtomicUsize,
    }

    struct Counted(Bytes, Arc<Counts>);

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.live.fetch_sub(1, SeqCst);
        }
    }

    impl Vast {
        fn of(key: usize, value: usize, records: usize) -> Spied<Self> {
            let spy = Self { shape: (key, value, records), counts: Arc::default() };
            Spied { store: MemoryStore::new(), spy }
        }

        fn counted(&self, value: &Bytes) -> Bytes {
            let live = self.counts.live.fetch_add(1, SeqCst) + 1;
            self.counts.most.fetch_max(live, SeqCst);
            Bytes::from_owner(Counted(value.clone(), Arc::clone(&self.counts)))
        }
    }

    impl Spy for Vast {
        fn instead_of_scan<'a>(&'a self, from: &[u8], to: &[u8]) -> Option<Scan<'a>> {
            if !from.starts_with(&KEYS) {
                return None;
            }
            let (key, value, records) = self.shape;
            let (from, to) = (from.to_vec(), to.to_vec());
            let stored = Record { version: 1, value: vec![7; value].into(), ..Record::default() }.encode();
            let keys = (0..records).map(move |number| format!("\x01k{number:0key$}").into_bytes());
            let wanted = keys.filter(move |key| from <= *key && *key < to);
            Some(Box::new(wanted.map(move |key| Ok((key.into(), self.counted(&stored))))))
        }
    }

    /// Applies one entry.
    fn apply(
        machines: &mut Machines,
        store: &dyn Store,
        stamp: u64,
        operations: Vec<Operation>,
    ) -> (Vec<Result<Response, Refusal>>, Vec<Event>) {
        let commands: Vec<_> = operations.into_iter().map(Operation::into_command).collect();
        let index = machines.progress().index.next();
        let payload = Batch::encode(Stamp(stamp), &commands);
        let outcome = machines.apply(store, index, Term(1), payload).unwrap();
        let results = outcome.replies.into_iter().map(|reply| match reply {
            Reply::Kv(reply) => reply.result,
            other => panic!("{other:?}"),
        });
        (results.collect(), outcome.events)
    }

    /// Applies an entry that lets so much expire.
    fn expire(machines: &mut Machines, store: &dyn Store, stamp: u64, most: u32) -> Vec<Event> {
        let index = machines.progress().index.next();
        let payload = Batch::encode(Stamp(stamp), &[system::Operation::Expire(most).into_command()]);
        machines.apply(store, index, Term(1), payload).unwrap().events
    }

    fn delete_from(key: &'static str, range_end: &'static str) -> Delete {
        Delete { key: key.into(), range_end: range_end.into(), prev_kv: false }
    }

    fn delete(key: &'static str, range_end: &'static str) -> Operation {
        Operation::Delete(delete_from(key, range_end))
    }

    /// All keys have the version that they all have: the condition that looks at every record.
    fn compare() -> Operation {
        let compare = Compare {
            key: "0".into(),
            range_end: "\0".into(),
            target: Some(CompareTarget::Version(1)),
            result: CompareResult::Equal.into(),
            ..Compare::default()
        };
        Operation::Txn(Txn { compare: vec![compare], ..Txn::default() })
    }

    fn in_txn(delete: Delete) -> Operation {
        txn([Step::Delete(delete)])
    }

    /// They took all records into memory, values too: 600 MiB of them took 614 MiB, on every replica, and again at
    /// each start.
    #[test]
    fn ranges_are_compared_and_deleted_record_by_record() {
        for operation in [compare(), delete("0", "\0"), in_txn(delete_from("0", "\0"))] {
            let store = Vast::of(8, 1 << 20, 600);
            let mut machines = Machines::open(&store).unwrap();
            let (results, _) = apply(&mut machines, &store, 1, vec![operation.clone()]);
            assert!(results[0].is_ok(), "{results:?}");
            let most = store.spy.counts.most.load(SeqCst);
            assert!(most <= 2, "{most} values at once by {operation:?}");
        }
    }

    #[test]
    fn a_range_that_holds_more_than_a_command_may_look_at_is_refused() {
        let store = Vast::of(8, 1 << 20, 1100);
        let mut machines = Machines::open(&store).unwrap();
        let before = machines.progress().revision;
        let (results, events) = apply(&mut machines, &store, 1, vec![compare(), delete("0", "\0")]);
        assert_eq!(results, [Err(Refusal::RangeTooLarge), Err(Refusal::Crowded)]);
        // Retried, it is the first of an entry, and told the whole truth.
        let (results, more) = apply(&mut machines, &store, 1, vec![in_txn(delete_from("0", "\0"))]);
        assert_eq!(results, [Err(Refusal::RangeTooLarge)]);
        assert_eq!((events, more, machines.progress().revision), (vec![], vec![], before));
        let (results, _) = apply(&mut machines, &store, 1, vec![delete("00000000", "00000500")]);
        assert_eq!(results, [Ok(Response::Delete { deleted: 500, prev_kvs: Vec::new() })]);
    }

    fn txn(steps: impl IntoIterator<Item = Step>) -> Operation {
        let success = steps.into_iter().map(|step| TxnOperation { step: Some(step) }).collect();
        Operation::Txn(Txn { success, ..Txn::default() })
    }

    fn read_all(count_only: bool) -> Step {
        Step::Range(Range { key: "0".into(), range_end: "\0".into(), count_only, ..Range::default() })
    }

    /// They were charged for nothing: a transaction of as many as fit in a request held up every replica for hours.
    #[test]
    fn ranges_that_are_only_counted_are_charged_too() {
        let store = Vast::of(8, 1 << 20, 600);
        let mut machines = Machines::open(&store).unwrap();
        let (results, _) = apply(&mut machines, &store, 1, vec![txn([read_all(true)])]);
        assert!(results[0].is_ok(), "{results:?}");
        let (results, _) = apply(&mut machines, &store, 1, vec![txn([read_all(true), read_all(true)])]);
        assert_eq!(results, [Err(Refusal::RangeTooLarge)]);
    }

    /// They were judged by the state before the transaction: a few thousand writes read by as many ranges made an
    /// answer of any size, on every replica, and again at each start.
    #[test]
    fn what_a_transaction_reads_of_its_own_writes_is_charged_and_bounded() {
        let written = |count: usize, bytes: usize| {
            (0..count).map(move |number| {
                let (key, value) = (format!("{number:05}").into(), vec![7; bytes].into());
                Step::Put(Put { key, value, ..Put::default() })
            })
        };
        let all = || Delete { key: "0".into(), range_end: "\0".into(), prev_kv: false };
        let delete = || Step::Delete(all());
        let inner = |steps: Vec<Step>| match txn(steps) {
            Operation::Txn(inner) => Step::Txn(inner),
            other => panic!("{other:?}"),
        };
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let before = machines.progress().revision;
        let cases: [(Vec<Step>, Refusal); 3] = [
            (
                written(300, 1024).chain((0..300).map(|_| read_all(false))).collect(),
                Refusal::ResponseTooLarge,
            ),
            (written(200, 1 << 16).chain((0..100).map(|_| read_all(true))).collect(), Refusal::RangeTooLarge),
            (
                vec![inner(written(200, 1 << 16).collect()), inner((0..100).map(|_| delete()).collect())],
                Refusal::RangeTooLarge,
            ),
        ];
        for (steps, refused) in cases {
            let (results, _) = apply(&mut machines, &store, 1, vec![txn(steps)]);
            assert_eq!((results, machines.progress().revision), (vec![Err(refused)], before));
        }
        let first = Range { key: "0".into(), range_end: "\0".into(), limit: 1, ..Range::default() };
        let steps = written(300, 1024).chain((0..300).map(|_| Step::Range(first.clone())));
        let (results, _) = apply(&mut machines, &store, 1, vec![txn(steps.chain([read_all(false)]))]);
        assert!(results[0].is_ok(), "{results:?}");
    }

    #[test]
    fn more_keys_than_an_entry_may_delete_are_refused_before_one_is_deleted() {
        let (key, all) = (30_000, DELETED_BYTES_MAX / 30_194 + 1);
        let store = Vast::of(key, 1, all);
        let mut machines = Machines::open(&store).unwrap();
        let padded = |number: usize| Bytes::from(format!("{number:0key$}"));
        let half = |from, to| Delete { key: padded(from), range_end: padded(to), prev_kv: false };
        for operation in [delete("0", "\0"), in_txn(delete_from("0", "\0"))] {
            let (results, events) = apply(&mut machines, &store, 1, vec![operation]);
            assert_eq!((results, events), (vec![Err(Refusal::DeletesTooMuch)], vec![]));
        }
        let crowded = |machines: &mut Machines, operations| -> (Vec<bool>, usize) {
            let (results, events) = apply(machines, &store, 1, operations);
            (results.iter().map(|result| *result == Err(Refusal::Crowded)).collect(), events.len())
        };
        let (first, second) = (half(0, all * 2 / 3), half(all * 2 / 3, all));
        let operations = vec![Operation::Delete(first), in_txn(second.clone()), Operation::Delete(second)];
        assert_eq!(crowded(&mut machines, operations), (vec![false, true, true], 1));
        // Several share much less than one may have: whoever waits for one of them waits for all.
        let share = all / FURTHER_DIVISOR;
        let thirds = [0, 1, 2]
            .map(|third| half(all - share + third * share / 3, all - share + (third + 1) * share / 3));
        let [small, other, last] = thirds.map(Operation::Delete);
        let large = || Operation::Delete(half(0, all / 4));
        assert_eq!(
            crowded(&mut machines, vec![small.clone(), other.clone(), large(), last]),
            (vec![false, false, true, true], 2)
        );
        assert_eq!(crowded(&mut machines, vec![large(), small]), (vec![false, true], 1));
    }

    fn put(number: usize, lease: i64) -> Operation {
        Operation::Put(Put { key: format!("{lease}/{number:05}").into(), lease, ..Put::default() })
    }

    fn grant(id: i64) -> Operation {
        Operation::LeaseGrant(LeaseGrant { id, ttl_s: 1 })
    }

    fn changes(events: &[Event]) -> Vec<usize> {
        events.iter().map(|event| event.changes.len()).collect()
    }

    /// A lease with a million keys held up every other client until all of them were deleted.
    #[test]
    fn a_lease_of_very_many_keys_ends_in_steps_and_is_gone_at_once() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let mut given = vec![grant(7), grant(8)];
        given.extend((0..LEASE_KEYS_MAX + 2000).map(|number| put(number, 7)));
        given.push(put(0, 8));
        apply(&mut machines, &store, 1, given);
        let asked = vec![
            Operation::LeaseRevoke(7),
            Operation::LeaseRevoke(8),
            Operation::LeaseKeepAlive(7),
            put(0, 7),
            grant(7),
        ];
        let (results, events) = apply(&mut machines, &store, 2, asked);
        let in_part = Ok(Response::Revoked { more: true });
        assert_eq!(results[..2], [in_part.clone(), in_part]);
        let not_found = Err(Refusal::LeaseNotFound);
        assert_eq!(results[2..], [not_found.clone(), not_found, Err(Refusal::LeaseExists)]);
        assert_eq!(changes(&events), [LEASE_STEP]);
        let progress = machines.progress();
        let view = View::new(&store, progress.sequence);
        assert_eq!(leases(view, &progress).unwrap(), []);
        assert_eq!(lease(view, &progress, 7, true).unwrap(), None);
        // What is left is due at once, and waits for nobody.
        assert_eq!(machines.next_deadline(), Some(Stamp(2)));
        // Beside commands it loses none; by itself, as many as the leader says.
        assert_eq!(changes(&apply(&mut machines, &store, 2, vec![Operation::LeaseKeepAlive(8)]).1), []);
        assert_eq!(changes(&expire(&mut machines, &store, 2, 700)), [700]);
        assert_eq!(changes(&expire(&mut machines, &store, 2, 500)), [500]);
        // What is left of it is no longer too much, and the other lease finds room beside it.
        assert_eq!(changes(&expire(&mut machines, &store, 2, 500)), [4800, 1]);
        let (results, _) = apply(&mut machines, &store, 2, vec![Operation::LeaseRevoke(7), grant(7)]);
        assert_eq!(results, [not_found_now(), Ok(Response::Lease { id: 7, ttl_s: 1 })]);
    }

    fn not_found_now() -> Result<Response, Refusal> {
        Err(Refusal::LeaseNotFound)
    }

    #[test]
    fn a_lease_that_fits_a_step_ends_at_one_revision_however_many_end_at_once() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        for id in 1..=3 {
            let keys = (0..LEASE_KEYS_MAX - 1000).map(|number| put(number, id));
            apply(&mut machines, &store, 1, [grant(id)].into_iter().chain(keys).collect());
        }
        let mut steps = Vec::new();
        while machines.next_deadline().is_some() {
            assert!(steps.len() < 10, "{steps:?}");
            let events = expire(&mut machines, &store, 1001, 1000);
            steps.push(changes(&events));
        }
        assert_eq!(steps, vec![vec![LEASE_KEYS_MAX - 1000]; 3]);
    }
}
