//! Many transfers or accounts by id.

use super::translate;
use crate::commands::long_read;
use crate::consistency;
use crate::error::Error;
use crate::ledger::Book;
use bytes::Bytes;
use quoin_core::ledger::{self, Account, LOOKUP_MAX};
use quoin_core::{StoreError, View};
use quoin_proto::quoin::ledger::v1 as pb;

fn check(count: usize, fields: &str) -> Result<(), Error> {
    if (1..=LOOKUP_MAX).contains(&count) {
        return Ok(());
    }
    Err(Error::invalid(format_args!("{fields}: {count} is not between 1 and {LOOKUP_MAX}")))
}

fn ids(ids: &[Bytes]) -> Result<Vec<u128>, Error> {
    let id = |(place, id): (usize, &Bytes)| translate::id(id, format_args!("ids[{place}]"));
    ids.iter().enumerate().map(id).collect()
}

pub(super) async fn transfers(
    book: &Book,
    request: pb::LookupTransfersRequest,
) -> Result<pb::LookupTransfersResponse, Error> {
    check(request.ids.len(), "ids")?;
    let ids = ids(&request.ids)?;
    let view = book.view(consistency::of(request.consistency.as_ref())).await?;
    let revision = view.progress().revision.0;
    let found = long_read(move || ledger::lookup_transfers(view.view(), &ids)).await?;
    let mut answer = pb::LookupTransfersResponse { revision, ..Default::default() };
    for (id, found) in request.ids.into_iter().zip(found) {
        answer.answered += 1;
        match found {
            Some(found) => answer.transfers.push(translate::found_transfer(&found)),
            None => answer.absent.push(id),
        }
    }
    Ok(answer)
}

pub(super) async fn accounts(
    book: &Book,
    request: pb::LookupAccountsRequest,
) -> Result<pb::LookupAccountsResponse, Error> {
    let pb::LookupAccountsRequest { ids: wanted, numbers, consistency: asked } = request;
    check(wanted.len() + numbers.len(), "ids, numbers")?;
    let ids = ids(&wanted)?;
    let view = book.view(consistency::of(asked.as_ref())).await?;
    let revision = view.progress().revision.0;
    let read = long_read(move || Ok((read(view.view(), ids, &numbers)?, numbers)));
    let (found, numbers) = read.await?;
    let mut answer = pb::LookupAccountsResponse { revision, ..Default::default() };
    let (mut wanted, mut numbers) = (wanted.into_iter(), numbers.into_iter());
    for found in found {
        answer.answered += 1;
        let (id, number) = match wanted.next() {
            Some(id) => (Some(id), None),
            None => (None, numbers.next()),
        };
        match found {
            Some(found) => answer.accounts.push(translate::account(&found)),
            None => {
                answer.absent_ids.extend(id);
                answer.absent_numbers.extend(number);
            }
        }
    }
    Ok(answer)
}

/// Accounts by their ids, then by their numbers.
fn read(view: View<'_>, ids: Vec<u128>, numbers: &[String]) -> Result<Vec<Option<Account>>, StoreError> {
    let mut all = ids;
    for number in numbers {
        // No account has the id 0.
        all.push(ledger::account_by_number(view, number)?.unwrap_or(0));
    }
    ledger::lookup_accounts(view, &all)
}

#[cfg(test)]
mod tests {
    use super::super::{accounts as accounts_calls, transfers as transfers_calls};
    use super::*;
    use crate::testing::alone;

    fn id(number: u128) -> Bytes {
        Bytes::copy_from_slice(&number.to_be_bytes())
    }

    #[test]
    fn many_are_looked_up_at_once_and_absent_ones_told() {
        alone(|engine| async move {
            let book = Book::start(engine);
            let account = |number| pb::Account {
                id: id(number),
                number: format!("n{number}"),
                currency: "EUR".into(),
                rule: pb::Rule::Unlimited.into(),
                ..pb::Account::default()
            };
            let request = pb::CreateAccountsRequest { accounts: vec![account(1), account(2)] };
            accounts_calls::create(&book, request).await.unwrap();
            let metadata = [("shop".to_owned(), "Ulm".to_owned())].into();
            let extra = pb::Extra {
                user_data_128_high: 1,
                user_data_64: 2,
                user_data_32: 3,
                metadata,
                ..pb::Extra::default()
            };
            let transfer = pb::Transfer {
                id: id(5),
                debit_account: id(1),
                credit_account: id(2),
                amount: 7,
                extra: Some(Box::new(extra)),
                ..pb::Transfer::default()
            };
            let transfers = vec![transfer.clone()];
            let request = pb::CreateTransfersRequest { transfers, ..pb::CreateTransfersRequest::default() };
            assert_eq!(
                transfers_calls::create(&book, &request).await.unwrap().results[0].code(),
                pb::Code::Ok
            );
            let ids = vec![id(6), id(5)];
            let found =
                super::transfers(&book, pb::LookupTransfersRequest { ids, consistency: None }).await.unwrap();
            assert_eq!((found.answered, found.absent), (2, vec![id(6)]));
            assert_eq!(found.transfers[0].transfer.as_ref().unwrap().transfer, Some(transfer));
            let numbers = ["n3", "n1", "@world/EUR"].map(str::to_owned).to_vec();
            let request = pb::LookupAccountsRequest { ids: vec![id(2), id(4)], numbers, consistency: None };
            let found = super::accounts(&book, request).await.unwrap();
            let names: Vec<_> = found.accounts.iter().map(|account| account.number.as_str()).collect();
            assert_eq!(names, ["n2", "n1", "@world/EUR"]);
            assert_eq!((found.absent_ids, found.absent_numbers), (vec![id(4)], vec!["n3".to_owned()]));
            assert_eq!(found.answered, 5);
            for count in [0, LOOKUP_MAX + 1] {
                let request = pb::LookupTransfersRequest { ids: vec![id(1); count], consistency: None };
                let error = super::transfers(&book, request).await.unwrap_err().to_string();
                assert!(error.contains(&format!("ids: {count} is not between 1 and 1000")), "{error}");
            }
        });
    }
}
