//! What handlers work with: the ledger, and what several of them ask of it or read from a request.

use crate::http::extract;
use crate::http::problem::Problem;
use crate::ledger::Book;
use crate::life::Life;
use crate::page::PageSizes;
use quoin_core::ledger::{self, Currency, Kind};
use quoin_core::{Revision, StoreError, View};
use quoin_engine::{Consistency, ReadView};

/// Page sizes of all lists.
const PAGE: PageSizes = PageSizes { default: 100, max: 1000 };

/// What handlers work with.
#[derive(Clone)]
pub(super) struct Desk {
    pub(super) book: Book,
    pub(super) life: Life,
}

impl Desk {
    /// A view as fresh as the parameters `local`, `lag_entries_max` and `lag_ms_max` say.
    pub(super) async fn read(
        &self,
        local: bool,
        lag_entries_max: Option<u64>,
        lag_ms_max: Option<u64>,
    ) -> Result<ReadView, Problem> {
        Ok(self.book.view(extract::consistency(local, lag_entries_max, lag_ms_max)?).await?)
    }

    /// The id of the account with the id or the number `name`.
    pub(super) async fn account(&self, name: &str, field: &str) -> Result<u128, Problem> {
        let found = match named(self.book.engine().latest().view(), name)? {
            Some(id) => Some(id),
            // The account may be newer than this replica's state.
            None => named(self.book.view(Consistency::Linearizable).await?.view(), name)?,
        };
        let missing = || {
            let shown: String = name.chars().take(64).collect();
            let detail =
                format!("{shown:?} is neither the id of an account, which is a UUID, nor its number");
            Problem::not_found("account_unknown", detail).named(field)
        };
        found.ok_or_else(missing)
    }

    /// A currency's number of decimal places, for a request whose `field` names it.
    pub(super) async fn known_scale(&self, currency: Currency, field: &str) -> Result<u32, Problem> {
        let missing = ledger::AccountCode::CurrencyUnknown;
        let problem = || Problem::from(missing).saying(format!("{currency}: {missing}")).named(field);
        self.scale(currency).await?.ok_or_else(problem)
    }

    /// The currency of a pending transfer, and its number of decimal places; `None` if there is no such transfer.
    pub(super) async fn unit_of(&self, pending: u128) -> Result<Option<(Currency, u32)>, Problem> {
        match unit_of(self.book.engine().latest().view(), pending)? {
            Some(unit) => Ok(Some(unit)),
            // It may be newer than this replica's state.
            None => Ok(unit_of(self.book.view(Consistency::Linearizable).await?.view(), pending)?),
        }
    }

    /// A currency's number of decimal places.
    pub(super) async fn scale(&self, currency: Currency) -> Result<Option<u32>, Problem> {
        match ledger::currency_scale(self.book.engine().latest().view(), currency)? {
            Some(scale) => Ok(Some(scale)),
            None => {
                Ok(ledger::currency_scale(self.book.view(Consistency::Linearizable).await?.view(), currency)?)
            }
        }
    }
}

fn unit_of(view: View<'_>, pending: u128) -> Result<Option<(Currency, u32)>, StoreError> {
    let Some(found) = ledger::transfer(view, pending)? else { return Ok(None) };
    let Kind::Pending { debit, .. } = found.entry.transfer().kind else { return Ok(None) };
    let account = ledger::account(view, debit)?;
    Ok(account.map(|account| (account.record.currency(), account.record.scale)))
}

/// The id that `name` is, or that of the account with this number; `None` if there is no such account.
pub(super) fn named(view: View<'_>, name: &str) -> Result<Option<u128>, StoreError> {
    if let Ok(id) = uuid::Uuid::parse_str(name)
        && !id.is_nil()
    {
        return Ok(Some(id.as_u128()));
    }
    if let Some(code) = name.strip_prefix("@world/")
        && let Ok(currency) = code.parse()
    {
        return Ok(Some(ledger::world_account(currency).0));
    }
    ledger::account_by_number(view, name)
}

pub(super) fn page_size(limit: Option<u32>) -> Result<usize, Problem> {
    extract::page_size(&PAGE, limit)
}

/// A position in the order of all transfers, `REVISION.POSITION`.
pub(super) fn place(text: &str, field: &str) -> Result<(Revision, u32), Problem> {
    let parts = text
        .split_once('.')
        .and_then(|(revision, position)| Some((Revision(revision.parse().ok()?), position.parse().ok()?)));
    // Adding to a larger revision could overflow.
    parts.filter(|(revision, _)| revision.0 < u64::MAX / 2).ok_or_else(|| {
        let shown: String = text.chars().take(64).collect();
        Problem::field(field, format!("{shown:?} is not the next of a page, as 17.0"))
    })
}
