//! `quoin ledger verify`: the proof that no cent is lost. It replays every recorded transfer on the client's
//! side and checks each account's balances, its overdraft rule and maximum, and that the balances of each currency sum to
//! zero; and what the indexes hold (`proof.rs`).

use super::client::{Client, client, id_text, join};
use super::journal::{Entry, Journal};
use super::proof::Indexes;
use crate::connection::Connection;
use crate::outcome::REFUSED;
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

/// The result of a replay.
pub(crate) struct Proof {
    /// Everything up to this revision was replayed.
    pub(crate) revision: u64,
    /// Recorded transfers.
    pub(crate) transfers: u64,
    /// Those of them that were refused.
    pub(crate) refused: u64,
    /// Accounts that exist.
    pub(crate) accounts: usize,
    /// Their currencies.
    pub(crate) currencies: usize,
    /// What is wrong; empty if the proof holds.
    pub(crate) problems: Vec<String>,
}

/// Replays and prints the result. If the proof fails, the command ends as a refusal does.
pub(super) async fn run(connection: &Connection) -> Result<ExitCode> {
    let Proof { revision, transfers, refused, accounts, currencies, problems } =
        prove(&mut client(&connection.unbounded()).await?).await?;
    let summary = format!(
        "{transfers} transfers replayed up to revision {revision} ({refused} refused), {accounts} accounts in \
         {currencies} currencies"
    );
    let verdict = if problems.is_empty() {
        "proven: all sums are zero, all balances and indexes equal"
    } else {
        "NOT PROVEN"
    };
    let machine = json!({ "revision": revision, "transfers": transfers, "refused": refused, "accounts": accounts,
        "currencies": currencies, "problems": problems });
    let people =
        [vec![summary, verdict.into()], problems.iter().take(20).cloned().collect()].concat().join("\n");
    connection.say(&machine, &people)?;
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
}

/// Replays the whole journal and compares.
pub(crate) async fn prove(client: &mut Client) -> Result<Proof> {
    let mut indexes = Indexes::open(client).await?;
    let mut journal = Journal::open(client).await?;
    let mut replay = Replay::default();
    while let Some(entries) = journal.next().await? {
        entries.iter().for_each(|entry| replay.take(entry));
        entries.iter().for_each(|entry| indexes.take(entry));
    }
    indexes.compare(client, journal.until, &mut replay.problems).await?;
    let mut currencies: BTreeMap<String, Sums> = BTreeMap::new();
    let (mut after, mut accounts) = (Bytes::new(), 0);
    loop {
        let request = pb::ListAccountsRequest { after, revision: journal.until, ..Default::default() };
        let page = client.list_accounts(request).await?.into_inner();
        for account in &page.accounts {
            replay.compare(account, currencies.entry(account.currency.clone()).or_default())?;
        }
        accounts += page.accounts.len();
        after = page.next;
        if after.is_empty() {
            break;
        }
    }
    for (currency, sums) in &currencies {
        if sums.debits != sums.credits || sums.debits_pending != sums.credits_pending {
            replay.problems.push(format!("the balances in {currency} do not sum to zero: {sums:?}"));
        }
    }
    for (account, _) in replay.accounts.drain() {
        replay.problems.push(format!("the account {} has transfers but is not listed", id_text(&account)));
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
            self.problems.push(format!("the id {} was recorded twice", id_text(&asked.id)));
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
                None => self.problems.push(format!("{} frees more than was set aside", id_text(&asked.id))),
            }
        }
    }

    /// Compares an account with the result of its transfers, and adds it to its currency's sums.
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
            let name = id_text(&account.id);
            self.problems
                .push(format!("the account {name} has {stored:?}, but its transfers add up to {made:?}"));
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
                id_text(&account.id)
            ));
        }
        let taken = stored.credits.saturating_add(stored.credits_pending);
        let maximum = account.maximum.map(|most| join(most.amount, most.amount_high));
        if maximum.is_some_and(|maximum| taken > stored.debits.saturating_add(maximum)) {
            self.problems.push(format!("the account {} holds more than its maximum", id_text(&account.id)));
        }
        currency.debits += stored.debits;
        currency.credits += stored.credits;
        currency.debits_pending += stored.debits_pending;
        currency.credits_pending += stored.credits_pending;
        Ok(())
    }
}
