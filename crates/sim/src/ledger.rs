//! Work on the ledger: transfers, some linked, some pending, asked again with the same ids through other replicas,
//! whether they were answered or not. Each must get one answer, for ever. Some are batches of a stream, all under way at
//! once and never asked again: those that are recorded must be the first ones of the stream.

use crate::clients::Known;
use crate::world::World;
use anyhow::{Result, ensure};
use quoin_core::ledger::{
    Code, Fence, Kind, NewAccount, Operation, Options, Reply, Response, Rule, Transfer, TransferReply,
    Transfers, account, transfer,
};
use quoin_core::{Command, Face, Revision};
use quoin_engine::ReadView;
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};

const ACCOUNTS: u128 = 5;
/// How long a pending transfer may wait, in milliseconds.
const TIMEOUT_MS_MAX: u64 = 4_000;

/// What clients have asked of the ledger.
#[derive(Default)]
pub(crate) struct Ledger {
    next_id: u128,
    /// Transfers of one command: all but the last are linked to the next.
    groups: Vec<Vec<Transfer<'static>>>,
    answers: BTreeMap<u128, Answer>,
    /// Those whose first answer has come. It may come after that to another attempt.
    done: BTreeSet<u128>,
    /// The groups of each stream, in order.
    streams: Vec<Vec<usize>>,
    streamed: BTreeSet<usize>,
}

/// The first answer to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    code: Code,
    revision: Revision,
    position: u32,
}

impl Ledger {
    fn command(&self, group: usize, fence: Option<Fence>) -> Command {
        let (mut command, transfers) = (Transfers::new(false), &self.groups[group]);
        for (place, transfer) in transfers.iter().enumerate() {
            let linked = place + 1 < transfers.len();
            command.push(&Transfer { linked, ..*transfer });
        }
        fence.into_iter().for_each(|fence| command.set_fence(fence));
        command.into_command()
    }

    fn draw(&mut self, rng: &mut impl Rng) -> usize {
        let count = if rng.random_bool(0.3) { rng.random_range(2..4) } else { 1 };
        let group = (0..count).map(|_| self.draw_one(rng)).collect();
        self.groups.push(group);
        self.groups.len() - 1
    }

    fn draw_one(&mut self, rng: &mut impl Rng) -> Transfer<'static> {
        self.next_id += 1;
        let (debit, amount) = (rng.random_range(1..=ACCOUNTS), rng.random_range(1..50));
        let credit = 1 + (debit + rng.random_range(0..ACCOUNTS - 1)) % ACCOUNTS;
        let pending = self.next_id - rng.random_range(0..self.next_id.min(8));
        let kind = match rng.random_range(0..10) {
            0 | 1 => Kind::Pending { debit, credit, amount, timeout_ms: rng.random_range(0..TIMEOUT_MS_MAX) },
            2 => Kind::Post { pending, amount: None },
            3 => Kind::Void { pending },
            4 => Kind::Revert { reverted: pending },
            _ => Kind::Single { debit, credit, amount },
        };
        let moves = matches!(kind, Kind::Single { .. } | Kind::Pending { .. });
        let options = Options {
            balancing_debit: moves && rng.random_bool(0.1),
            balancing_credit: moves && rng.random_bool(0.1),
            closing_debit: matches!(kind, Kind::Pending { timeout_ms: 1.., .. }) && rng.random_bool(0.1),
            closing_credit: false,
        };
        Transfer { options, ..Transfer::new(self.next_id, kind) }
    }

    fn note(&mut self, id: u128, reply: &TransferReply) -> Result<()> {
        ensure!(reply.duplicate || self.done.insert(id), "transfer {id} was done again");
        let answer = Answer { code: reply.code, revision: reply.revision, position: reply.position };
        let first = *self.answers.entry(id).or_insert(answer);
        ensure!(
            first == answer,
            "transfer {id} was answered {first:?} first, and {answer:?} when asked again"
        );
        Ok(())
    }
}

impl World {
    /// A client asks for transfers: new ones, or the same once more.
    pub(crate) fn transfer(&mut self, place: usize) {
        if self.ledger.groups.is_empty() || self.rng.random_bool(0.05) {
            self.create_accounts(place);
        }
        if self.rng.random_bool(0.2) {
            return self.stream(place);
        }
        let known = self.ledger.groups.len();
        let again = known > 0 && self.rng.random_bool(0.4);
        // Mostly late ones: those before were asked for often enough.
        let again = again.then(|| known - 1 - self.rng.random_range(0..known.min(10)));
        let again = again.filter(|group| !self.ledger.streamed.contains(group));
        let group = again.unwrap_or_else(|| self.ledger.draw(&mut self.rng));
        let (at, command) = (self.process_at(place), self.ledger.command(group, None));
        self.propose(place, Known::Transfers { at, group }, command);
    }

    /// A client sends batches of a stream, and waits for none of them.
    fn stream(&mut self, place: usize) {
        let count = self.rng.random_range(2..6);
        let groups: Vec<usize> = (0..count).map(|_| self.ledger.draw(&mut self.rng)).collect();
        let (at, stream) = (self.process_at(place), self.ledger.streams.len() as u128);
        for (after, group) in (0..).zip(&groups) {
            let fence = Fence { stream, number: after + 1, after };
            let command = self.ledger.command(*group, Some(fence));
            self.propose(place, Known::Transfers { at, group: *group }, command);
        }
        self.ledger.streamed.extend(&groups);
        self.ledger.streams.push(groups);
    }

    fn create_accounts(&mut self, place: usize) {
        let rules = [Rule::Unlimited, Rule::NoOverdraft, Rule::Limit];
        let account = |id: u128| {
            let rule = rules[id as usize % rules.len()] as i32;
            // Some may hold a little only.
            let maximum = id.is_multiple_of(2).then(|| 200.into());
            NewAccount { currency: "EUR".into(), rule, maximum, ..NewAccount::default() }
                .with_id(id)
                .with_limit(100)
        };
        let command = Operation::create_accounts((1..=ACCOUNTS).map(account).collect()).into_command();
        let at = self.process_at(place);
        self.propose(place, Known::Other { at, face: Face::Ledger }, command);
    }

    /// Transfers were answered.
    pub(crate) fn transferred(&mut self, group: usize, reply: &Reply) -> Result<()> {
        if self.ledger.streamed.contains(&group) && reply.response == Response::Fenced {
            self.counts.fenced += 1;
            return Ok(());
        }
        let Response::Transfers(replies) = &reply.response else {
            anyhow::bail!("transfers were answered {:?}", reply.response);
        };
        let ids: Vec<u128> = self.ledger.groups[group].iter().map(|transfer| transfer.id).collect();
        ensure!(ids.len() == replies.len(), "{} transfers got {} answers", ids.len(), replies.len());
        self.counts.transfers += ids.len() as u64;
        ids.into_iter().zip(replies).try_for_each(|(id, reply)| self.ledger.note(id, reply))
    }

    /// The books balance, and what was answered is recorded as it was answered.
    pub(crate) fn check_ledger(&self, view: &ReadView) -> Result<()> {
        let (mut debits, mut credits) = (0, 0);
        for id in 1..=ACCOUNTS {
            let Some(account) = account(view.view(), id)? else { continue };
            debits += account.balances.debits_posted;
            credits += account.balances.credits_posted;
        }
        ensure!(debits == credits, "the books do not balance: {debits} debits, {credits} credits");
        for (stream, groups) in self.ledger.streams.iter().enumerate() {
            let mut lost = None;
            for group in groups {
                let recorded = transfer(view.view(), self.ledger.groups[*group][0].id)?.is_some();
                let after = lost.filter(|_| recorded);
                ensure!(
                    after.is_none(),
                    "stream {stream}: {group} of {groups:?} is recorded after {after:?} was not"
                );
                lost = lost.or((!recorded).then_some(group));
            }
        }
        for (id, answer) in &self.ledger.answers {
            let found = transfer(view.view(), *id)?;
            let entry = found.as_ref().map(|found| (found.entry.revision, found.entry.position));
            let expected = (answer.revision, answer.position);
            ensure!(
                entry == Some(expected),
                "transfer {id} was answered {answer:?}, and {entry:?} is recorded"
            );
        }
        Ok(())
    }
}
