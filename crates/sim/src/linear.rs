//! Whether a key's history is linearizable: each operation seems to happen at one moment between its call and its
//! answer. The search is that of Wing and Gong, with Lowe's memory of what was tried ("Testing for linearizability",
//! 2017). Every write has a value of its own.

use std::collections::{BTreeSet, HashSet};

/// What an operation did to a key; values by number, `None` for an absent key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Wrote or deleted.
    Write(Option<u64>),
    /// Saw this.
    Read(Option<u64>),
    /// Found the first and put the second in its place.
    Swap(Option<u64>, u64),
}

/// One operation of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) action: Action,
    /// When it was called. Moments of a history differ.
    pub(crate) called: u64,
    /// When it was answered; `None` if it may have happened at any time since the call, or not at all.
    pub(crate) answered: Option<u64>,
}

/// Checks the operations on one key that was absent at first.
///
/// # Errors
/// They are not linearizable: the text says between which moments.
pub(crate) fn check(history: &[Operation]) -> Result<(), String> {
    let mut operations = relevant(history);
    operations.sort_by_key(|operation| operation.called);
    let mut search = Search { operations: &operations, seen: HashSet::new() };
    let mut done = vec![false; operations.len()];
    if search.rest(&mut done, None) {
        return Ok(());
    }
    Err(format!("not linearizable: {operations:?}"))
}

/// All but writes that may not have happened and that nobody has seen: taking one out of a linearizable history
/// leaves one.
fn relevant(history: &[Operation]) -> Vec<Operation> {
    let seen: BTreeSet<u64> = history
        .iter()
        .filter_map(|operation| match operation.action {
            Action::Read(seen) | Action::Swap(seen, _) => seen,
            Action::Write(_) => None,
        })
        .collect();
    let counts = |operation: &&Operation| match (operation.answered, operation.action) {
        (None, Action::Write(Some(value)) | Action::Swap(_, value)) => seen.contains(&value),
        (None, Action::Read(_)) => false,
        _ => true,
    };
    history.iter().filter(counts).copied().collect()
}

/// How many states a search looks at before it gives up: then nothing is known to be wrong.
const STATES_MAX: usize = 50_000;

struct Search<'a> {
    operations: &'a [Operation],
    /// What was done, and the state after it, from where there was no way on.
    seen: HashSet<(Vec<bool>, Option<u64>)>,
}

impl Search<'_> {
    /// Whether those that are not `done` can follow in some order, the key holding `state`.
    fn rest(&mut self, done: &mut Vec<bool>, state: Option<u64>) -> bool {
        let left =
            || self.operations.iter().zip(done.iter()).filter(|(_, done)| !**done).map(|(left, _)| left);
        // What begins after another one has ended cannot come before it.
        let Some(first_end) = left().filter_map(|operation| operation.answered).min() else { return true };
        if self.seen.len() > STATES_MAX {
            return true;
        }
        if !self.seen.insert((done.clone(), state)) {
            return false;
        }
        let mut deletion_tried = false;
        for place in 0..self.operations.len() {
            let operation = self.operations[place];
            if operation.called > first_end {
                break;
            }
            let Some(next) = next(operation.action, state).filter(|_| !done[place]) else { continue };
            // Deletions that may have happened are all alike, and matter only where something is deleted: without
            // this, a few dozen of them would be tried in every order.
            let perhaps_deletes = operation.answered.is_none() && operation.action == Action::Write(None);
            if perhaps_deletes && (state.is_none() || std::mem::replace(&mut deletion_tried, true)) {
                continue;
            }
            done[place] = true;
            if self.rest(done, next) {
                return true;
            }
            done[place] = false;
        }
        false
    }
}

/// What the key holds after the action; `None` if it cannot happen now.
fn next(action: Action, state: Option<u64>) -> Option<Option<u64>> {
    match action {
        Action::Write(value) => Some(value),
        Action::Read(seen) => (seen == state).then_some(state),
        Action::Swap(found, value) => (found == state).then_some(Some(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(action: Action, called: u64, answered: u64) -> Operation {
        Operation { action, called, answered: (answered > 0).then_some(answered) }
    }

    #[test]
    fn a_read_may_see_either_side_of_a_concurrent_write() {
        let write = operation(Action::Write(Some(7)), 2, 5);
        for seen in [None, Some(7)] {
            check(&[write, operation(Action::Read(seen), 3, 4)]).unwrap();
        }
        check(&[write, operation(Action::Read(None), 6, 7)]).unwrap_err();
        check(&[write, operation(Action::Read(Some(7)), 3, 4), operation(Action::Read(None), 6, 7)])
            .unwrap_err();
    }

    #[test]
    fn a_write_of_unknown_outcome_happens_once_or_never() {
        let unknown = operation(Action::Write(Some(7)), 1, 0);
        let other = operation(Action::Write(Some(8)), 2, 3);
        let read = |seen, called| operation(Action::Read(Some(seen)), called, called + 1);
        check(&[unknown, other, read(8, 4)]).unwrap();
        check(&[unknown, other, read(8, 4), read(7, 6)]).unwrap();
        check(&[unknown, other, read(7, 4), read(8, 6), read(7, 8)]).unwrap_err();
    }

    /// Thirty deletions of unknown outcome were tried in every order.
    #[test]
    fn many_unknown_deletions_are_no_burden() {
        let mut history: Vec<Operation> =
            (1..=30).map(|called| operation(Action::Write(None), called, 0)).collect();
        for value in 1..=30 {
            let called = 100 + 10 * value;
            history.push(operation(Action::Write(Some(value)), called, called + 1));
            let seen = Some(value).filter(|value| value % 2 == 0);
            history.push(operation(Action::Read(seen), called + 2, called + 3));
        }
        check(&history).unwrap();
        history.push(operation(Action::Read(Some(1)), 900, 901));
        check(&history).unwrap_err();
    }

    #[test]
    fn a_swap_finds_what_it_says() {
        let write = operation(Action::Write(Some(1)), 1, 2);
        check(&[write, operation(Action::Swap(Some(1), 2), 3, 4)]).unwrap();
        check(&[write, operation(Action::Swap(None, 2), 3, 4)]).unwrap_err();
    }
}
