//! The currency of a recorded transfer: that of its accounts. The transfer itself need not name it.

use quoin_core::ledger::{self, Currency, Entry, Kind};
use quoin_core::{StoreError, View};
use std::collections::HashMap;

/// Maximum accounts to remember; then all are forgotten.
const ACCOUNTS_MAX: usize = 10_000;

/// A currency with its scale.
pub(super) type Unit = (Currency, u32);

/// Remembers the currencies of accounts.
#[derive(Default)]
pub(super) struct Units {
    accounts: HashMap<u128, Option<Unit>>,
}

impl Units {
    /// The currency of a transfer; `None` if neither it nor its accounts name one.
    ///
    /// # Errors
    /// The store failed.
    pub(super) fn of(&mut self, view: View<'_>, entry: &Entry) -> Result<Option<Unit>, StoreError> {
        let Some(account) = account_of(entry) else { return named(view, entry) };
        if let Some(unit) = self.accounts.get(&account).copied().flatten() {
            return Ok(Some(unit));
        }
        let unit = unit_of(view, entry)?;
        if self.accounts.len() >= ACCOUNTS_MAX {
            self.accounts.clear();
        }
        self.accounts.insert(account, unit);
        Ok(unit)
    }
}

/// As [`Units::of`], for one transfer.
///
/// # Errors
/// The store failed.
pub(super) fn unit_of(view: View<'_>, entry: &Entry) -> Result<Option<Unit>, StoreError> {
    let account = match account_of(entry) {
        Some(account) => ledger::account(view, account)?,
        None => None,
    };
    match account {
        Some(account) => Ok(Some((account.record.currency(), account.record.scale))),
        None => named(view, entry),
    }
}

fn named(view: View<'_>, entry: &Entry) -> Result<Option<Unit>, StoreError> {
    let Some(currency) = entry.transfer().currency else { return Ok(None) };
    Ok(ledger::currency_scale(view, currency)?.map(|scale| (currency, scale)))
}

fn account_of(entry: &Entry) -> Option<u128> {
    match (entry.effect(), entry.transfer().kind) {
        (Some(effect), _) => Some(effect.debit),
        (None, Kind::Single { debit, .. } | Kind::Pending { debit, .. }) => Some(debit),
        (None, _) => None,
    }
}
