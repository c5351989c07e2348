//! Currencies, accounts, and an account's statement.

use super::translate;
use crate::audit::about;
use crate::commands::long_read;
use crate::consistency;
use crate::error::Error;
use crate::ledger::{Book, account_at, check_past, revision_at};
use crate::page::PageSizes;
use quoin_core::ledger::{
    self, ACCOUNTS_EXAMINED_MAX, ACCOUNTS_MAX, AccountCode, AccountFilter, AccountRecord, FoundAccounts,
    find_accounts,
};
use quoin_core::{Revision, Stamp};
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::get_account_request::{Account, At};

/// Page sizes of accounts and statements.
const PAGE: PageSizes = PageSizes { default: 1000, max: 1000 };

pub(super) async fn create_currency(
    book: &Book,
    request: pb::CreateCurrencyRequest,
) -> Result<pb::CreateCurrencyResponse, Error> {
    about("currency", &request.code);
    let revision = book.create_currency(translate::currency(request)).await??;
    Ok(pb::CreateCurrencyResponse { revision: revision.0 })
}

pub(super) async fn create(
    book: &Book,
    request: pb::CreateAccountsRequest,
) -> Result<pb::CreateAccountsResponse, Error> {
    let count = request.accounts.len();
    if count == 0 || count > ACCOUNTS_MAX {
        return Err(Error::invalid(format_args!("accounts: {count} is not between 1 and {ACCOUNTS_MAX}")));
    }
    if request.accounts.last().is_some_and(|last| last.linked) {
        return Err(Error::invalid("accounts: the last one is linked to the next, which is missing"));
    }
    let accounts = request.accounts.into_iter().enumerate();
    let accounts = accounts.map(|(position, account)| translate::new_account(account, position));
    let (results, revision) = book.create_accounts(accounts.collect::<Result<_, _>>()?).await?;
    let result = |result: Result<AccountRecord, AccountCode>| match result {
        Ok(account) => {
            pb::AccountResult { account: Some(translate::account_record(&account)), refused: String::new() }
        }
        Err(code) => pb::AccountResult { account: None, refused: code.to_string() },
    };
    let results = results.into_iter().map(result).collect();
    Ok(pb::CreateAccountsResponse { results, revision: revision.0 })
}

pub(super) async fn update(
    book: &Book,
    request: pb::UpdateAccountRequest,
) -> Result<pb::UpdateAccountResponse, Error> {
    let update = translate::update(request)?;
    about("account", update.id());
    let (account, revision) = book.update_account(update).await??;
    let account = Some(translate::account_record(&account));
    Ok(pb::UpdateAccountResponse { account, revision: revision.0 })
}

pub(super) async fn get(
    book: &Book,
    request: pb::GetAccountRequest,
) -> Result<pb::GetAccountResponse, Error> {
    let pb::GetAccountRequest { account, at, consistency: asked } = request;
    let view = book.view(consistency::of(asked.as_ref())).await?;
    let id = match account {
        Some(Account::Id(id)) => translate::id(&id, "id")?,
        Some(Account::Number(number)) => {
            ledger::account_by_number(view.view(), &number)?.ok_or(AccountCode::Unknown)?
        }
        None => return Err(Error::invalid("account: name it by its id or its number")),
    };
    let at = match at {
        None => Revision(u64::MAX),
        Some(At::Revision(revision)) => {
            check_past(view.progress(), Revision(revision), "revision")?;
            Revision(revision)
        }
        Some(At::TimeMs(time_ms)) => revision_at(&view, Stamp(time_ms), "time_ms")?,
    };
    let revision = view.progress().revision.0;
    let account = account_at(view, id, at).await?;
    Ok(pb::GetAccountResponse { account: Some(translate::account(&account)), revision })
}

pub(super) async fn list(
    book: &Book,
    request: pb::ListAccountsRequest,
) -> Result<pb::ListAccountsResponse, Error> {
    let pb::ListAccountsRequest { after, limit, revision, consistency: asked } = request;
    if !after.is_empty() {
        translate::id(&after, "after")?;
    }
    let at = Revision(if revision == 0 { u64::MAX } else { revision });
    let limit = PAGE.of_field(limit)?;
    let view = book.view(consistency::of(asked.as_ref())).await?;
    let newest = view.progress().revision.0;
    if revision != 0 {
        check_past(view.progress(), at, "revision")?;
    }
    let page = long_read(move || {
        let after = Some(&after[..]).filter(|after| !after.is_empty());
        find_accounts(view.view(), &AccountFilter::default(), at, after, limit, ACCOUNTS_EXAMINED_MAX)
    });
    let FoundAccounts { accounts, next } = page.await?;
    let (accounts, more) = (accounts.iter().map(translate::account).collect(), next.is_some());
    Ok(pb::ListAccountsResponse { accounts, more, revision: newest, next: next.unwrap_or_default() })
}

pub(super) async fn statement(
    book: &Book,
    request: pb::StatementRequest,
) -> Result<pb::StatementResponse, Error> {
    let id = translate::id(&request.id, "id")?;
    let before =
        (request.before_revision > 0).then_some((Revision(request.before_revision), request.before_position));
    let (since, limit) = (Revision(request.since_revision), PAGE.of_field(request.limit)?);
    let view = book.view(consistency::of(request.consistency.as_ref())).await?;
    let newest = view.progress().revision.0;
    let page = long_read(move || match ledger::account(view.view(), id)? {
        Some(_) => ledger::statement(view.view(), id, before, since, limit).map(Some),
        None => Ok(None),
    });
    let page = page.await?.ok_or(AccountCode::Unknown)?;
    let line = |line: &ledger::Line| pb::Line {
        transfer: Some(translate::recorded(&line.entry)),
        balances: Some(translate::balances(&line.balances)),
    };
    let lines = page.items.iter().map(line).collect();
    Ok(pb::StatementResponse { lines, more: page.more, revision: newest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;
    use tonic::{Code, Status};

    /// A future revision was answered with the present, and so could change.
    #[test]
    fn a_future_revision_is_out_of_range_and_an_account_is_not_found_before_it_existed() {
        alone(|engine| async move {
            let book = Book::start(engine);
            let id = bytes::Bytes::copy_from_slice(&7_u128.to_be_bytes());
            let account = pb::Account { id: id.clone(), currency: "EUR".into(), ..pb::Account::default() };
            let request = pb::CreateAccountsRequest { accounts: vec![account] };
            let newest = create(&book, request).await.unwrap().revision;
            let ask = async |revision| {
                let (account, at) = (Some(Account::Id(id.clone())), Some(At::Revision(revision)));
                let request = pb::GetAccountRequest { account, at, consistency: None };
                get(&book, request).await.map(|_| ()).map_err(|error| Status::from(error).code())
            };
            assert_eq!(ask(newest).await, Ok(()));
            assert_eq!(ask(newest + 1).await, Err(Code::OutOfRange));
            assert_eq!(ask(newest - 1).await, Err(Code::NotFound));
            let pages = async |revision| {
                let request = pb::ListAccountsRequest { revision, ..pb::ListAccountsRequest::default() };
                list(&book, request)
                    .await
                    .map(|page| page.accounts.len())
                    .map_err(|error| Status::from(error).code())
            };
            assert_eq!(pages(newest).await, Ok(2));
            assert_eq!(pages(newest - 1).await, Ok(0));
            assert_eq!(pages(newest + 1).await, Err(Code::OutOfRange));
        });
    }
}
