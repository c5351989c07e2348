//! Accounts and transfers in euros. Every answer is checked: a refusal is an error.

use super::connection::ANSWER_BYTES_MAX;
use crate::client::Channel;
use anyhow::{Result, bail};
use bytes::Bytes;
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::ledger_client::LedgerClient;
use uuid::Uuid;

/// The currency of all accounts.
pub const CURRENCY: &str = "EUR";
/// The id of the account that money comes from: `@world/EUR`, padded.
const WORLD: Bytes = Bytes::from_static(b"@world/EUR\0\0\0\0\0\0");
/// Accounts per request.
const ACCOUNTS_PER_REQUEST: u64 = 1000;

/// A client that accepts large answers.
pub fn ledger(channel: Channel) -> LedgerClient<Channel> {
    LedgerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// An id as the wire has it.
pub fn id_bytes(id: u128) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

/// A transfer of `amount` cents.
pub fn transfer(id: u128, debit: u128, credit: u128, amount: u64) -> pb::Transfer {
    let (debit_account, credit_account) = (id_bytes(debit), id_bytes(credit));
    pb::Transfer { id: id_bytes(id), debit_account, credit_account, amount, ..pb::Transfer::default() }
}

/// Creates `count` accounts, whose ids follow `first`, and deposits `funds` cents to each: one transfer per
/// account.
///
/// # Errors
/// The ledger cannot be reached, or refuses an account or a deposit.
pub async fn create_accounts(
    client: &mut LedgerClient<Channel>,
    first: u128,
    count: u64,
    funds: u64,
) -> Result<()> {
    for from in (0..count).step_by(ACCOUNTS_PER_REQUEST as usize) {
        let numbers = from..(from + ACCOUNTS_PER_REQUEST).min(count);
        let ids = numbers.map(|number| id_bytes(first + u128::from(number)));
        let account = |id| pb::Account { id, currency: CURRENCY.into(), ..pb::Account::default() };
        let accounts = ids.clone().map(account).collect();
        let created = client.create_accounts(pb::CreateAccountsRequest { accounts }).await?.into_inner();
        if let Some(refused) = created.results.iter().find(|result| result.account.is_none()) {
            bail!("an account was refused: {}", refused.refused);
        }
        let deposit = |credit_account| pb::Transfer {
            id: id_bytes(Uuid::now_v7().as_u128()),
            debit_account: WORLD,
            credit_account,
            amount: funds,
            ..pb::Transfer::default()
        };
        transfer_all(client, ids.map(deposit).collect()).await?;
    }
    Ok(())
}

/// Sends transfers in one request.
///
/// # Errors
/// The ledger cannot be reached, or refuses a transfer.
pub async fn transfer_all(client: &mut LedgerClient<Channel>, transfers: Vec<pb::Transfer>) -> Result<()> {
    let request = pb::CreateTransfersRequest { transfers, ..Default::default() };
    all_ok(&client.create_transfers(request).await?.into_inner())
}

/// Checks that no transfer was refused.
///
/// # Errors
/// One was.
pub fn all_ok(answer: &pb::CreateTransfersResponse) -> Result<()> {
    match answer.results.iter().find(|result| result.code() != pb::Code::Ok) {
        Some(refused) => bail!("a transfer was refused: {:?}", refused.code()),
        None => Ok(()),
    }
}
