//! Asking the ledger: the client, and accounts and ids as people write them.

use crate::connection::{Connection, Read};
use crate::output;
use anyhow::{Context, Result};
use bytes::Bytes;
use quoin_load::client::Channel;
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::get_account_request::{Account as Named, At};
use quoin_proto::quoin::ledger::v1::ledger_client::LedgerClient;
use uuid::Uuid;

pub(super) type Client = LedgerClient<Channel>;

pub(super) async fn client(connection: &Connection) -> Result<Client> {
    Ok(quoin_load::client::ledger::ledger(connection.any().await?))
}

/// Finds an account by its number or id, as it is now.
pub(super) async fn find(client: &mut Client, account: &str) -> Result<pb::Account> {
    find_at(client, account, None, Read::default()).await
}

/// Finds an account by its number or id, with its balances at `at`.
pub(super) async fn find_at(
    client: &mut Client,
    account: &str,
    at: Option<At>,
    read: Read,
) -> Result<pb::Account> {
    let named = match Uuid::parse_str(account) {
        Ok(id) => Named::Id(id_bytes(id)),
        Err(_) => Named::Number(account.to_owned()),
    };
    let request = pb::GetAccountRequest { account: Some(named), at, consistency: read.consistency() };
    let found =
        client.get_account(request).await.with_context(|| format!("reading the account {account:?}"))?;
    found.into_inner().account.context("an answer without an account")
}

/// An id as people write it.
pub(super) fn id_text(id: &[u8]) -> String {
    Uuid::from_slice(id).map_or_else(|_| output::text(id), |id| id.to_string())
}

/// An id as the wire has it.
pub(super) fn id_bytes(id: Uuid) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

/// An amount from its two halves on the wire.
pub(super) fn join(low: u64, high: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// The two halves of an amount on the wire, the lower one first.
pub(super) fn halves(amount: u128) -> (u64, u64) {
    (amount as u64, (amount >> 64) as u64)
}

/// `insufficient_funds` for `CODE_INSUFFICIENT_FUNDS`.
pub(super) fn code_name(code: pb::Code) -> String {
    code.as_str_name().trim_start_matches("CODE_").to_lowercase()
}

/// `pending` for `KIND_PENDING`.
pub(super) fn kind_name(kind: pb::Kind) -> String {
    kind.as_str_name().trim_start_matches("KIND_").to_lowercase()
}
