//! Accounts of the ledger: those that transfers use, and chains of new ones, some with an initial balance, that are
//! created together or not at all, asked for again through other replicas. And what is set for the ledger: indexes, and
//! whether references are unique.

use crate::clients::Known;
use crate::world::World;
use anyhow::{Result, ensure};
use quoin_core::Face;
use quoin_core::ledger::{
    AccountCode, Code, Index, NewAccount, Operation, Reply, Response, Rule, SetIndexes, Status,
    UpdateAccount, account, transfer,
};
use quoin_engine::ReadView;
use rand::Rng;

/// Accounts that are there from the beginning.
pub(crate) const ACCOUNTS: u128 = 5;
/// Ids of further ones are above those of transfers: an initial balance is a transfer with the account's id.
const FURTHER_FROM: u128 = 1 << 70;

/// Accounts that are created together.
#[derive(Debug)]
pub(crate) struct Chain {
    accounts: Vec<NewAccount>,
    /// A client was told that they are there.
    told: bool,
    /// A client was told that they are new.
    new: bool,
}

impl Chain {
    /// The id of its first account.
    pub(crate) fn first(&self) -> u128 {
        self.accounts[0].id()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u128> {
        self.accounts.iter().map(NewAccount::id)
    }
}

impl World {
    pub(crate) fn create_accounts(&mut self, place: usize) {
        let rules = [Rule::Unlimited, Rule::NoOverdraft, Rule::Limit];
        let account = |id: u128| {
            let rule = rules[id as usize % rules.len()] as i32;
            // Some may hold a little only.
            let maximum = id.is_multiple_of(2).then(|| 200.into());
            NewAccount { currency: "EUR".into(), rule, maximum, ..NewAccount::default() }
                .with_id(id)
                .with_limit(100)
        };
        self.set_ledger(place, Operation::create_accounts((1..=ACCOUNTS).map(account).collect()));
    }

    fn set_ledger(&mut self, place: usize, operation: Operation) {
        let at = self.process_at(place);
        self.propose(place, Known::Other { at, face: Face::Ledger }, operation.into_command());
    }

    /// Freezes and thaws accounts, and changes how much they may hold.
    pub(crate) fn change_account(&mut self, place: usize) {
        let mut update = UpdateAccount::of(self.rng.random_range(1..=ACCOUNTS));
        match self.rng.random_range(0..4) {
            0 => update.status = Some(Status::Frozen as i32),
            1 => update.maximum = Some(self.rng.random_range(0..400).into()),
            _ => update.status = Some(Status::Active as i32),
        }
        self.set_ledger(place, Operation::UpdateAccount(update));
    }

    pub(crate) fn set_indexes(&mut self, place: usize) {
        let on = Index::ALL.into_iter().filter(|_| self.rng.random_bool(0.6)).map(|index| index as u32);
        let on = on.collect();
        let unique_references = self.rng.random_bool(0.3);
        self.set_ledger(place, Operation::SetIndexes(SetIndexes { on, unique_references }));
    }

    /// A client asks for a chain of accounts: a new one, or the same once more.
    pub(crate) fn create_chain(&mut self, place: usize) {
        let known = self.ledger.chains.len();
        let again = known > 0 && self.rng.random_bool(0.4);
        let chain =
            if again { known - 1 - self.rng.random_range(0..known.min(5)) } else { self.draw_chain() };
        let (at, accounts) = (self.process_at(place), self.ledger.chains[chain].accounts.clone());
        let command = Operation::create_accounts(accounts).into_command();
        self.propose(place, Known::Accounts { at, chain }, command);
    }

    fn draw_chain(&mut self) -> usize {
        let (number, count) = (self.ledger.chains.len(), self.rng.random_range(1..4));
        let mut accounts = Vec::new();
        for place in 0..count {
            let opening = self.rng.random_bool(0.5).then(|| self.rng.random_range(0..150).into());
            let maximum = self.rng.random_bool(0.4).then(|| 100.into());
            // Some numbers and currencies make all of the chain be refused.
            let name = if self.rng.random_bool(0.1) { 0 } else { number * 10 + place };
            let currency = if self.rng.random_bool(0.05) { "QQQ" } else { "EUR" }.into();
            let rule = Rule::NoOverdraft as i32;
            let new = NewAccount { currency, rule, opening, maximum, ..NewAccount::default() };
            let new = NewAccount { number: format!("a{name}"), linked: place + 1 < count, ..new };
            accounts.push(new.with_id(FURTHER_FROM + (number * 10 + place) as u128));
        }
        self.ledger.chains.push(Chain { accounts, told: false, new: false });
        number
    }

    /// A chain of accounts was answered.
    pub(crate) fn accounts_created(&mut self, chain: usize, reply: &Reply) -> Result<()> {
        let Response::Accounts(results, new) = &reply.response else {
            anyhow::bail!("accounts were answered {:?}", reply.response);
        };
        self.counts.chains += 1;
        let chain = &mut self.ledger.chains[chain];
        ensure!(results.len() == chain.accounts.len(), "{chain:?} has {} answers", results.len());
        let refused = results.iter().filter(|result| result.is_err()).count();
        let linked = Err(AccountCode::LinkedFailed);
        let own = results.iter().filter(|result| result.is_err() && **result != linked).count();
        ensure!(
            refused == 0 || own == 1 && refused == results.len() && !new,
            "{chain:?} is created in part: {results:?}"
        );
        ensure!(refused == 0 || !chain.told, "{chain:?} was created, and is refused: {results:?}");
        ensure!(!new || !chain.new, "{chain:?} was created twice");
        (chain.told, chain.new) = (chain.told || refused == 0, chain.new || *new);
        for (asked, account) in chain.accounts.iter().zip(results.iter().flatten()) {
            ensure!(account.origin == *asked, "{asked:?} was created as {account:?}");
        }
        Ok(())
    }

    /// All of a chain is there, or nothing, with its initial balances.
    pub(crate) fn check_chains(&self, view: &ReadView) -> Result<()> {
        for chain in &self.ledger.chains {
            let mut there = 0;
            for asked in &chain.accounts {
                let is_there = account(view.view(), asked.id())?.is_some();
                there += usize::from(is_there);
                let opened = transfer(view.view(), asked.id())?.map(|opened| opened.entry.code);
                let expected = (is_there && asked.opening.is_some()).then_some(Code::Ok);
                ensure!(
                    opened == expected,
                    "{asked:?} is there: {is_there}, its initial balance: {opened:?}"
                );
            }
            let expected = if chain.told { chain.accounts.len() } else { 0 };
            ensure!(
                there == expected || !chain.told && there == chain.accounts.len(),
                "{there} accounts of {chain:?} are there"
            );
        }
        Ok(())
    }
}
