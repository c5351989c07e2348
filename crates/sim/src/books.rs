//! What must be true of the ledger in the end: the journal, replayed from its beginning by a plain model, gives the
//! balances of all accounts; nothing is in it twice; indexes hold what they are to hold, and nothing else.

use crate::accounts::{ACCOUNTS, Chain};
use crate::world::World;
use anyhow::{Context, Result, ensure};
use quoin_core::ledger::{
    Balances, Entry, Index, Indexes, Journal, Kind, Resolution, Transfer, account, entries, index_rows,
    world_account,
};
use quoin_core::{Revision, View};
use quoin_engine::ReadView;
use std::collections::{BTreeMap, BTreeSet};

/// Rows of an index that are read at once: a few, so that there are several pages.
const PAGE: usize = 7;

impl World {
    pub(crate) fn check_books(&self, view: &ReadView) -> Result<()> {
        let view = view.view();
        let indexes = Indexes::read(view)?;
        let mut books = Books::default();
        let mut expected: BTreeMap<Index, Vec<Row>> = BTreeMap::new();
        for part in entries(view, (Revision(0), 0)) {
            let Journal::Transfers(entries) = part?.2 else { continue };
            for entry in entries {
                books.take(&entry, &indexes).with_context(|| format!("{:?}", entry.transfer()))?;
                for index in Index::ALL {
                    let since = indexes.since(index).filter(|since| entry.revision >= *since);
                    if let Some(value) = since.and_then(|_| value(index, &entry.transfer())) {
                        expected.entry(index).or_default().push((value, entry.revision, entry.position));
                    }
                }
            }
        }
        let world = world_account("EUR".parse().map_err(anyhow::Error::msg)?).0;
        let further = self.ledger.chains.iter().flat_map(Chain::ids);
        for id in (1..=ACCOUNTS).chain(further).chain([world]) {
            let Some(account) = account(view, id)? else { continue };
            let (shown, replayed) = (account.balances, books.balances.remove(&id).unwrap_or_default());
            ensure!(shown == replayed, "account {id} shows {shown:?}, and the journal says {replayed:?}");
            let spent = shown.debits_posted + shown.debits_pending;
            let allowed = account.record.allowance().map(|allowance| allowance + shown.credits_posted);
            ensure!(allowed.is_none_or(|most| spent <= most), "account {id} is overdrawn: {shown:?}");
            let taken = shown.credits_posted + shown.credits_pending;
            let allowed = account.record.maximum().map(|maximum| maximum + shown.debits_posted);
            ensure!(allowed.is_none_or(|most| taken <= most), "account {id} holds too much: {shown:?}");
        }
        ensure!(books.balances.is_empty(), "accounts that are not there have moved: {:?}", books.balances);
        for index in Index::ALL {
            let Some(since) = indexes.since(index) else { continue };
            let mut expected = expected.remove(&index).unwrap_or_default();
            expected.sort_unstable();
            let held = held(view, index, since)?;
            ensure!(held == expected, "{index:?} holds {held:?}, and should hold {expected:?}");
        }
        Ok(())
    }
}

/// A value, and the place of a transfer that has it.
type Row = (Vec<u8>, Revision, u32);

/// What the journal says.
#[derive(Default)]
struct Books {
    balances: BTreeMap<u128, Balances>,
    ids: BTreeSet<u128>,
    ended: BTreeSet<u128>,
    /// By which group of linked transfers each was taken.
    references: BTreeMap<String, u64>,
    /// How many groups ended so far.
    groups: u64,
    imported_ms: u64,
}

impl Books {
    fn take(&mut self, entry: &Entry, indexes: &Indexes) -> Result<()> {
        let transfer = entry.transfer();
        match transfer.kind {
            Kind::Expired { pending } => ensure!(self.ended.insert(pending), "it had ended"),
            _ => ensure!(self.ids.insert(transfer.id), "it is in the journal twice"),
        }
        let group = self.groups;
        self.groups += u64::from(!transfer.linked);
        let Some(Resolution { debit, credit, amount, pending_amount }) = entry.effect() else {
            return Ok(());
        };
        let (mut posted, mut reserved) = (0, 0);
        match transfer.kind {
            Kind::Single { .. } => posted = amount,
            Kind::Pending { .. } => reserved = amount,
            Kind::Post { pending, .. } | Kind::Void { pending } => {
                posted = amount;
                ensure!(self.ended.insert(pending), "{pending} had ended");
            }
            Kind::Revert { reverted } => {
                posted = amount;
                ensure!(self.ended.insert(reverted), "{reverted} was reverted before");
            }
            Kind::Expired { .. } => {}
        }
        let giver = self.balances.entry(debit).or_default();
        giver.debits_posted += posted;
        giver.debits_pending = (giver.debits_pending + reserved)
            .checked_sub(pending_amount)
            .context("it releases more debits than are pending")?;
        let taker = self.balances.entry(credit).or_default();
        taker.credits_posted += posted;
        taker.credits_pending = (taker.credits_pending + reserved)
            .checked_sub(pending_amount)
            .context("it releases more credits than are pending")?;
        self.check_clients_own(entry, &transfer, group, indexes)
    }

    /// Times of imports grow, and references are unique where they are to be.
    fn check_clients_own(
        &mut self,
        entry: &Entry,
        transfer: &Transfer<'_>,
        group: u64,
        indexes: &Indexes,
    ) -> Result<()> {
        let times = transfer.times;
        if times.imported {
            ensure!(times.client_ms > self.imported_ms, "one imported before is of {} ms", self.imported_ms);
            ensure!(times.client_ms < entry.stamp.0, "it is imported from the future");
            self.imported_ms = times.client_ms;
        }
        let takes = matches!(transfer.kind, Kind::Single { .. } | Kind::Pending { .. });
        let unique = indexes.unique_references().is_some_and(|since| entry.revision >= since);
        if takes && unique && !transfer.reference.is_empty() {
            let by = *self.references.entry(transfer.reference.into()).or_insert(group);
            ensure!(by == group, "its reference was taken");
        }
        Ok(())
    }
}

/// The value that an index has of a transfer.
fn value(index: Index, transfer: &Transfer<'_>) -> Option<Vec<u8>> {
    let extra = &transfer.extra;
    let value = match index {
        Index::Reference if transfer.reference.is_empty() => Vec::new(),
        Index::Reference => [&[0, transfer.reference.len() as u8], transfer.reference.as_bytes()].concat(),
        Index::UserData128 => extra.user_data_128.to_be_bytes().to_vec(),
        Index::UserData64 => extra.user_data_64.to_be_bytes().to_vec(),
        Index::UserData32 => extra.user_data_32.to_be_bytes().to_vec(),
        Index::Code => transfer.code.to_be_bytes().to_vec(),
    };
    let asked = !matches!(transfer.kind, Kind::Expired { .. });
    (asked && value.iter().any(|byte| *byte > 0)).then_some(value)
}

/// What an index holds from a revision on.
fn held(view: View<'_>, index: Index, since: Revision) -> Result<Vec<Row>> {
    let (mut held, mut after) = (Vec::new(), None);
    loop {
        let page = index_rows(view, Some(index), after.as_deref(), PAGE)?;
        for row in page.rows.iter().filter(|row| row.revision >= since) {
            held.extend(row.positions.iter().map(|position| (row.value.to_vec(), row.revision, *position)));
        }
        after = page.next;
        if after.is_none() {
            return Ok(held);
        }
    }
}
