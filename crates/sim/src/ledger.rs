//! Work on the ledger: transfers, some linked, some pending, some imported, asked again with the same ids through other
//! replicas, whether they were answered or not. Each must get one answer, for ever. Some are batches of a stream, all
//! under way at once and never asked again: those that are recorded must be the first ones of the stream. Some are only
//! asked for as a dry run, which must leave nothing. Accounts are in `accounts.rs`, what must be true in the end in `books.rs`.

use crate::accounts::{ACCOUNTS, Chain};
use crate::clients::Known;
use crate::node::FIRST_MS;
use crate::world::World;
use anyhow::{Result, bail, ensure};
use quoin_core::ledger::{
    Code, Extra, Fence, Key, Kind, Metadata, Options, Reply, Response, Times, Transfer, TransferReply,
    Transfers, dry_run, transfer,
};
use quoin_core::{Command, Revision};
use quoin_engine::ReadView;
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Keys of requests are above the ids of transfers.
const KEYED_FROM: u128 = 1 << 80;
const REFERENCES: [&str; 5] = ["", "", "r", "rent", "s"];
/// One name, one text.
const METADATA: &[u8] = b"\x01a\x01x";
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
    /// The groups that are a request with a key.
    keyed: BTreeSet<usize>,
    /// Ids that were in dry runs only.
    pub(crate) dry: BTreeSet<u128>,
    /// Imported so far, some out of order.
    imported: u64,
    pub(crate) chains: Vec<Chain>,
}

/// The first answer to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    code: Code,
    revision: Revision,
    position: u32,
}

impl Ledger {
    fn request(&self, group: usize, fence: Option<Fence>) -> Transfers {
        let (mut command, transfers) = (Transfers::new(false), &self.groups[group]);
        for (place, transfer) in transfers.iter().enumerate() {
            let linked = place + 1 < transfers.len();
            command.push(&Transfer { linked, ..*transfer });
        }
        fence.into_iter().for_each(|fence| command.set_fence(fence));
        if self.keyed.contains(&group) {
            command.set_key(Key { id: KEYED_FROM + group as u128, fingerprint: group as u128 });
        }
        command
    }

    fn command(&self, group: usize, fence: Option<Fence>) -> Command {
        self.request(group, fence).into_command()
    }

    fn draw(&mut self, rng: &mut impl Rng) -> usize {
        let count = if rng.random_bool(0.3) { rng.random_range(2..4) } else { 1 };
        let imports = rng.random_bool(0.1);
        let group = (0..count).map(|_| self.draw_one(rng, imports)).collect();
        self.groups.push(group);
        let group = self.groups.len() - 1;
        if rng.random_bool(0.1) {
            self.keyed.insert(group);
        }
        group
    }

    /// One of the accounts that are there from the beginning, or one that may have been created since.
    fn draw_account(&self, rng: &mut impl Rng) -> u128 {
        let chain =
            if rng.random_bool(0.1) { rng.random_range(0..self.chains.len().max(1)) } else { usize::MAX };
        self.chains.get(chain).map_or_else(|| rng.random_range(1..=ACCOUNTS), Chain::first)
    }

    fn draw_one(&mut self, rng: &mut impl Rng, imports: bool) -> Transfer<'static> {
        self.next_id += 1;
        let (debit, mut credit, amount) =
            (self.draw_account(rng), self.draw_account(rng), rng.random_range(1..50));
        if debit == credit {
            credit = 1 + debit % ACCOUNTS;
        }
        let pending = self.next_id - rng.random_range(0..self.next_id.min(8));
        let kind = match rng.random_range(0..10) {
            0 | 1 => Kind::Pending {
                debit,
                credit,
                amount,
                timeout_ms: if imports { 0 } else { rng.random_range(0..TIMEOUT_MS_MAX) },
            },
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
        let mut times = Times { settle_ms: rng.random_range(0..3), ..Times::default() };
        if imports {
            self.imported += rng.random_range(0..3);
            times = Times { client_ms: FIRST_MS / 2 + self.imported, imported: true, ..times };
        }
        let metadata = if rng.random_bool(0.2) { METADATA } else { b"" };
        let extra = Extra {
            user_data_128: rng.random_range(0..3) << 100,
            user_data_64: rng.random_range(0..4) << 40,
            user_data_32: rng.random_range(0..5),
            metadata: Metadata::encoded(metadata),
        };
        let reference = REFERENCES[rng.random_range(0..REFERENCES.len())];
        let (code, user_data) = (rng.random_range(0..4), if rng.random_bool(0.2) { "text" } else { "" });
        Transfer { options, times, extra, reference, code, user_data, ..Transfer::new(self.next_id, kind) }
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
    pub(crate) fn transfer(&mut self, place: usize) -> Result<()> {
        if self.ledger.groups.is_empty() || self.rng.random_bool(0.05) {
            self.create_accounts(place);
        }
        match self.rng.random_range(0..20) {
            0..4 => {
                self.stream(place);
                return Ok(());
            }
            4 | 5 => {
                self.create_chain(place);
                return Ok(());
            }
            6 => {
                self.change_account(place);
                return Ok(());
            }
            7 => {
                self.set_indexes(place);
                return Ok(());
            }
            8 => return self.dry_run(place),
            _ => {}
        }
        let known = self.ledger.groups.len();
        let again = known > 0 && self.rng.random_bool(0.4);
        // Mostly late ones: those before were asked for often enough.
        let again = again.then(|| known - 1 - self.rng.random_range(0..known.min(10)));
        let again = again.filter(|group| !self.ledger.streamed.contains(group));
        let group = again.unwrap_or_else(|| self.ledger.draw(&mut self.rng));
        let (at, command) = (self.process_at(place), self.ledger.command(group, None));
        self.propose(place, Known::Transfers { at, group }, command);
        Ok(())
    }

    /// Asks what transfers would be answered: new ones, or those of a group that was asked for.
    fn dry_run(&mut self, place: usize) -> Result<()> {
        let known = self.ledger.groups.len();
        let again = known > 0 && self.rng.random_bool(0.4);
        let group = if again { self.rng.random_range(0..known) } else { self.ledger.draw(&mut self.rng) };
        let view = self.process(place).stepped.engine().latest();
        let request = self.ledger.request(group, None);
        let ids: Vec<u128> = self.ledger.groups[group].iter().map(|transfer| transfer.id).collect();
        let newest = view.progress();
        let response = dry_run(view.view(), newest, newest.stamp, request)?;
        let Response::Transfers(replies) = response else { bail!("a dry run is answered {response:?}") };
        ensure!(
            replies.len() == ids.len(),
            "a dry run of {} transfers has {} answers",
            ids.len(),
            replies.len()
        );
        for (id, reply) in ids.iter().zip(&replies) {
            let answer = Answer { code: reply.code, revision: reply.revision, position: reply.position };
            let first = self.ledger.answers.get(id).filter(|first| first.revision <= newest.revision);
            ensure!(
                first.is_none_or(|first| *first == answer),
                "transfer {id} was answered {first:?}, and {answer:?} in a dry run"
            );
        }
        if !again {
            self.ledger.groups.pop();
            self.ledger.keyed.remove(&group);
            self.ledger.dry.extend(ids);
        }
        Ok(())
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
        self.check_books(view)?;
        self.check_chains(view)?;
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
        for id in &self.ledger.dry {
            ensure!(transfer(view.view(), *id)?.is_none(), "transfer {id} is recorded, and was a dry run");
        }
        Ok(())
    }
}
