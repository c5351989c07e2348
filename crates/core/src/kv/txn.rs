//! What makes a transaction well-formed, whatever the state. Adapters check it before the log, so that a
//! client hears of it early, and the machine checks it again, because it trusts nobody.

use super::command::{Txn, TxnOperation, txn_operation::Step};
use super::reply::Refusal;
use bytes::Bytes;
use std::collections::BTreeSet;

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
    deletes: Vec<(Bytes, Bytes)>,
}

impl Writes {
    fn deletes(&self, key: &Bytes) -> bool {
        self.deletes.iter().any(|(from, end)| match &end[..] {
            [] => key == from,
            [0] => key >= from,
            _ => key >= from && key < end,
        })
    }

    fn conflicts(&self, key: &Bytes) -> bool {
        self.puts.contains(key) || self.deletes(key)
    }
}

/// Collects the writes of `steps`. The two branches of a nested transaction may write the same keys: only one
/// runs.
fn writes(steps: &[TxnOperation]) -> Result<Writes, Refusal> {
    let mut all = Writes::default();
    for step in steps {
        if let Some(Step::Delete(delete)) = &step.step {
            all.deletes.push((delete.key.clone(), delete.range_end.clone()));
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
        if let Some(Step::Put(put)) = &step.step
            && (all.deletes(&put.key) || !all.puts.insert(put.key.clone()))
        {
            return Err(Refusal::DuplicateKey);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::command::{Delete, Put};
    use super::*;

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
