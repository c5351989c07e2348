//! `quoin ledger verify`: the proof that not a cent is lost. Replays every transfer that was ever recorded, on this side
//! of the wire, and compares: each account's balances, the overdraft rules, and the sums, which must be zero.

use super::journal::{Entry, Journal};
use super::{Client, REFUSED, client, join, shown};
use crate::connection::Connection;
use anyhow::{Context, Result};
use bytes::Bytes;
use quoin_proto::quoin::ledger::v1 as pb;
use serde_json::json;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::ExitCode;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    debits: u128,
    credits: u128,
    debits_pending: u128,
    credits_pending: u128,
}

#[derive(Default)]
struct Replay {
    accounts: HashMap<Bytes, Sums>,
    ids: HashSet<Bytes>,
    transfers: u64,
    refused: u64,
    problems: Vec<String>,
}

/// What a replay found.
pub(crate) struct Proof {
    /// Up to here everything was replayed.
    pub(crate) revision: u64,
    /// How many were recorded.
    pub(crate) transfers: u64,
    /// How many of them were refused.
    pub(crate) refused: u64,
    /// How many accounts there are.
    pub(crate) accounts: usize,
    /// In how many currencies.
    pub(crate) currencies: usize,
    /// What is not as it must be; empty if all is proven.
    pub(crate) problems: Vec<String>,
}

/// Replays and says what came of it.
pub(super) async fn run(connection: &Connection) -> Result<ExitCode> {
    let patient = Connection { timeout: 1e9, ..connection.clone() };
    let Proof { revision, transfers, refused, accounts, currencies, problems } =
        prove(&mut client(&patient).await?).await?;
    let summary = format!(
        "{transfers} transfers replayed up to revision {revision} ({refused} refused), {accounts} accounts in \
         {currencies} currencies"
    );
    let verdict =
        if problems.is_empty() { "proven: all sums are zero, all balances equal" } else { "NOT PROVEN" };
    let machine = json!({ "revision": revision, "transfers": transfers, "refused": refused, "accounts": accounts,
        "currencies": currencies, "problems": problems });
    let people =
        [vec![summary, verdict.into()], problems.iter().take(20).cloned().collect()].concat().join("\n");
    connection.say(&machine, &people)?;
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
}

/// Replays everything and compares.
pub(crate) async fn prove(client: &mut Client) -> Result<Proof> {
    let mut journal = Journal::open(client).await?;
    let mut replay = Replay::default();
    while let Some(entries) = journal.next().await? {
        entries.iter().for_each(|entry| replay.take(entry));
    }
    let mut currencies: BTreeMap<String, Sums> = BTreeMap::new();
    let (mut after, mut accounts) = (Bytes::new(), 0);
    loop {
        let request = pb::ListAccountsRequest { after, revision: journal.until, ..Default::default() };
        let page = client.list_accounts(request).await?.into_inner();
        for account in &page.accounts {
            replay.compare(account, currencies.entry(account.currency.clone()).or_default())?;
        }
        accounts += page.accounts.len();
        after = page.accounts.last().map(|last| last.id.clone()).unwrap_or_default();
        if !page.more {
            break;
        }
    }
    for (currency, sums) in &currencies {
        if sums.debits != sums.credits || sums.debits_pending != sums.credits_pending {
            replay.problems.push(format!("the balances in {currency} do not sum to zero: {sums:?}"));
        }
    }
    for (account, _) in replay.accounts.drain() {
        replay.problems.push(format!("the account {} has transfers, and is not listed", shown(&account)));
    }
    let Replay { transfers, refused, problems, .. } = replay;
    Ok(Proof {
        revision: journal.until,
        transfers,
        refused,
        accounts,
        currencies: currencies.len(),
        problems,
    })
}

impl Replay {
    fn take(&mut self, entry: &Entry) {
        let Entry { recorded, asked, moved, released } = entry;
        self.transfers += 1;
        if asked.kind() != pb::Kind::Expired && !self.ids.insert(asked.id.clone()) {
            self.problems.push(format!("the id {} was recorded twice", shown(&asked.id)));
        }
        if recorded.code() != pb::Code::Ok {
            self.refused += 1;
            return;
        }
        let pending = asked.kind() == pb::Kind::Pending;
        for (account, credit) in [(&recorded.debit_account, false), (&recorded.credit_account, true)] {
            let sums = self.accounts.entry(account.clone()).or_default();
            let (posted, held) = if credit {
                (&mut sums.credits, &mut sums.credits_pending)
            } else {
                (&mut sums.debits, &mut sums.debits_pending)
            };
            *(if pending { &mut *held } else { posted }) += moved;
            match held.checked_sub(*released) {
                Some(rest) => *held = rest,
                None => self.problems.push(format!("{} frees more than was set aside", shown(&asked.id))),
            }
        }
    }

    /// Compares an account with what its transfers make it, and adds it to its currency's sums.
    fn compare(&mut self, account: &pb::Account, currency: &mut Sums) -> Result<()> {
        let stored = account.balances.as_ref().context("an account without balances")?;
        let stored = Sums {
            debits: join(stored.debits_posted, stored.debits_posted_high),
            credits: join(stored.credits_posted, stored.credits_posted_high),
            debits_pending: join(stored.debits_pending, stored.debits_pending_high),
            credits_pending: join(stored.credits_pending, stored.credits_pending_high),
        };
        let made = self.accounts.remove(&account.id).unwrap_or_default();
        if made != stored {
            let name = shown(&account.id);
            self.problems.push(format!("the account {name} has {stored:?}, its transfers make {made:?}"));
        }
        let allowance = match account.rule() {
            pb::Rule::NoOverdraft => Some(0),
            pb::Rule::Limit => Some(join(account.limit, account.limit_high)),
            pb::Rule::Unlimited => None,
        };
        let spent = stored.debits.saturating_add(stored.debits_pending);
        if allowance.is_some_and(|allowance| spent > stored.credits.saturating_add(allowance)) {
            self.problems.push(format!(
                "the account {} is further below zero than its rule allows",
                shown(&account.id)
            ));
        }
        currency.debits += stored.debits;
        currency.credits += stored.credits;
        currency.debits_pending += stored.debits_pending;
        currency.credits_pending += stored.credits_pending;
        Ok(())
    }
}
