//! What makes a transaction well-formed, whatever the state. Adapters check it before the log, so that a
//! client hears of it early, and the machine checks it again, because it trusts nobody.

use super::command::{Delete, Txn, TxnOperation, txn_operation::Step};
use super::reply::Refusal;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The deepest nesting of transactions.
const DEPTH_MAX: usize = 16;

/// Checks that no step is empty and that no path writes a key twice (etcd's rule).
///
/// # Errors
/// [`Refusal::Malformed`] or [`Refusal::DuplicateKey`].
pub fn check(txn: &Txn) -> Result<(), Refusal> {
    check_steps(txn, 0)?;
    writes(&txn.success)?;
    writes(&txn.failure)?;
    Ok(())
}

fn check_steps(txn: &Txn, depth: usize) -> Result<(), Refusal> {
    if depth > DEPTH_MAX || txn.compare.iter().any(|compare| compare.target.is_none()) {
        return Err(Refusal::Malformed);
    }
    for step in txn.success.iter().chain(&txn.failure) {
        match &step.step {
            None => return Err(Refusal::Malformed),
            Some(Step::Txn(inner)) => check_steps(inner, depth + 1)?,
            Some(_) => {}
        }
    }
    Ok(())
}

/// What a list of steps may write.
#[derive(Default)]
struct Writes {
    puts: BTreeSet<Bytes>,
    deletes: Spans,
}

impl Writes {
    fn conflicts(&self, key: &Bytes) -> bool {
        self.puts.contains(key) || self.deletes.contain(key)
    }
}

/// Ranges of keys, joined where they meet: the end (exclusive, `None` for no end) of each by its first key. So
/// a transaction of any number of puts and deletions is checked without comparing each with each.
#[derive(Default)]
struct Spans(BTreeMap<Bytes, Option<Bytes>>);

impl Spans {
    fn add_delete(&mut self, delete: &Delete) {
        let end = match &delete.range_end[..] {
            [] => Some([&delete.key[..], b"\0"].concat().into()),
            [0] => None,
            _ => Some(delete.range_end.clone()),
        };
        self.add(delete.key.clone(), end);
    }

    fn add(&mut self, mut from: Bytes, mut end: Option<Bytes>) {
        if end.as_ref().is_some_and(|end| *end <= from) {
            return;
        }
        // Those that begin at or before its end, last first, as far as they reach its beginning.
        loop {
            let to = end.as_ref().map_or(Bound::Unbounded, Bound::Included);
            let last = self.0.range::<Bytes, _>((Bound::Unbounded, to)).next_back();
            let Some((other, other_end)) = last else { break };
            if other_end.as_ref().is_some_and(|other_end| *other_end < from) {
                break;
            }
            let (other, other_end) = (other.clone(), other_end.clone());
            self.0.remove(&other);
            end = end.zip(other_end).map(|(end, other_end)| end.max(other_end));
            from = from.min(other);
        }
        self.0.insert(from, end);
    }

    fn extend(&mut self, others: Self) {
        others.0.into_iter().for_each(|(from, end)| self.add(from, end));
    }

    fn contain(&self, key: &Bytes) -> bool {
        let last = self.0.range::<Bytes, _>(..=key).next_back();
        last.is_some_and(|(_, end)| end.as_ref().is_none_or(|end| key < end))
    }
}

/// Collects the writes of `steps`. The two branches of a nested transaction may write the same keys: only one
/// runs.
fn writes(steps: &[TxnOperation]) -> Result<Writes, Refusal> {
    let mut all = Writes::default();
    for step in steps {
        if let Some(Step::Delete(delete)) = &step.step {
            all.deletes.add_delete(delete);
        }
    }
    for step in steps {
        if let Some(Step::Txn(inner)) = &step.step {
            let (then, otherwise) = (writes(&inner.success)?, writes(&inner.failure)?);
            let mut both = then.puts;
            both.extend(otherwise.puts);
            if both.iter().any(|key| all.conflicts(key)) {
                return Err(Refusal::DuplicateKey);
            }
            all.puts.extend(both);
            all.deletes.extend(then.deletes);
            all.deletes.extend(otherwise.deletes);
        }
    }
    for step in steps {
        let key = match &step.step {
            Some(Step::Put(put)) => &put.key,
            Some(Step::WriteFields(write)) => &write.key,
            _ => continue,
        };
        // A hash that moves is a write of both keys.
        let from = match &step.step {
            Some(Step::WriteFields(write)) if !write.from.is_empty() => Some(&write.from),
            _ => None,
        };
        if let Some(from) = from
            && (all.deletes.contain(from) || !all.puts.insert(from.clone()))
        {
            return Err(Refusal::DuplicateKey);
        }
        if all.deletes.contain(key) || !all.puts.insert(key.clone()) {
            return Err(Refusal::DuplicateKey);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::command::Put;
    use super::*;
    use crate::store::contract::Random;

    fn put(key: &'static str) -> TxnOperation {
        TxnOperation { step: Some(Step::Put(Put { key: key.into(), ..Put::default() })) }
    }

    fn delete(key: &'static str, range_end: &'static str) -> TxnOperation {
        let delete = Delete { key: key.into(), range_end: range_end.into(), ..Delete::default() };
        TxnOperation { step: Some(Step::Delete(delete)) }
    }

    fn within(success: Vec<TxnOperation>, failure: Vec<TxnOperation>) -> TxnOperation {
        TxnOperation { step: Some(Step::Txn(Txn { success, failure, ..Txn::default() })) }
    }

    fn checked(success: Vec<TxnOperation>) -> Result<(), Refusal> {
        check(&Txn { success, ..Txn::default() })
    }

    #[test]
    fn spans_contain_what_their_deletions_mean() {
        for seed in 0..200 {
            let (mut random, mut spans, mut all) = (Random::new(seed), Spans::default(), Vec::new());
            let mut key = |empty: u64| -> Bytes {
                let length = random.below(3).max(1 - empty.min(1));
                (0..length).map(|_| [0, b'a', b'b', 0xff][random.below(4) as usize]).collect()
            };
            for _ in 0..12 {
                let delete = Delete { key: key(0), range_end: key(1), prev_kv: false };
                spans.add_delete(&delete);
                all.push(delete);
            }
            let means = |Delete { key: from, range_end, .. }: &Delete, key: &Bytes| match &range_end[..] {
                [] => key == from,
                [0] => key >= from,
                end => key >= from && key[..] < *end,
            };
            for _ in 0..200 {
                let key = key(0);
                let expected = all.iter().any(|delete| means(delete, &key));
                assert_eq!(spans.contain(&key), expected, "seed {seed}: {key:?} in {all:?}");
            }
        }
    }

    #[test]
    fn a_key_is_written_once_on_a_path() {
        assert_eq!(checked(vec![put("a"), put("b")]), Ok(()));
        assert_eq!(checked(vec![put("a"), put("a")]), Err(Refusal::DuplicateKey));
        assert_eq!(checked(vec![put("b"), delete("a", "c")]), Err(Refusal::DuplicateKey));
        assert_eq!(checked(vec![put("c"), delete("a", "c")]), Ok(()));
        assert_eq!(checked(vec![delete("b", "\0"), put("z")]), Err(Refusal::DuplicateKey));
        assert_eq!(checked(vec![delete("a", ""), delete("a", "")]), Ok(()));
        assert_eq!(checked(vec![within(vec![put("a")], vec![put("a")])]), Ok(()));
        assert_eq!(checked(vec![within(vec![put("a")], vec![]), put("a")]), Err(Refusal::DuplicateKey));
        let twice = vec![within(vec![put("a")], vec![]), within(vec![], vec![put("a")])];
        assert_eq!(checked(twice), Err(Refusal::DuplicateKey));
    }

    #[test]
    fn an_empty_step_or_too_deep_nesting_is_malformed() {
        assert_eq!(checked(vec![TxnOperation { step: None }]), Err(Refusal::Malformed));
        let deep = (0..40).fold(put("a"), |inner, _| within(vec![inner], vec![]));
        assert_eq!(checked(vec![deep]), Err(Refusal::Malformed));
    }
}
