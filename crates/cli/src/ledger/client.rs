//! Asking the ledger: the client, and accounts and ids as people write them.

use crate::connection::{Connection, Read};
use crate::output;
use anyhow::{Context, Result};
use bytes::Bytes;
use quoin_core::ledger::Code;
use quoin_load::client::Channel;
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::get_account_request::{Account as Named, At};
use quoin_proto::quoin::ledger::v1::ledger_client::LedgerClient;
use std::collections::HashMap;
use time::OffsetDateTime;
use uuid::Uuid;

pub(super) type Client = LedgerClient<Channel>;

pub(super) async fn client(connection: &Connection) -> Result<Client> {
    Ok(quoin_load::client::ledger::ledger(connection.any().await?))
}

/// Finds an account by its number or id, as it is now, for a write. An error says that the write was not yet sent.
pub(super) async fn find(client: &mut Client, account: &str) -> Result<pb::Account> {
    let found = find_at(client, account, None, Read::default()).await;
    found.context("nothing was done")
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

/// Accounts by their ids, as far as they were asked for.
#[derive(Default)]
pub(super) struct Known {
    accounts: HashMap<Bytes, pb::Account>,
    read: Read,
}

/// Accounts that [`Known`] keeps before it starts over.
const KNOWN_MAX: usize = 20_000;
/// Accounts of one request.
const LOOKUP_MAX: usize = 1_000;

impl Known {
    pub(super) fn new(read: Read) -> Self {
        Self { read, ..Self::default() }
    }

    /// Reads those of these accounts that are not known; what does not exist stays unknown.
    pub(super) async fn learn(
        &mut self,
        client: &mut Client,
        ids: impl IntoIterator<Item = &Bytes>,
    ) -> Result<()> {
        if self.accounts.len() > KNOWN_MAX {
            self.accounts.clear();
        }
        let mut new: Vec<Bytes> = ids
            .into_iter()
            .filter(|id| id.len() == 16 && !self.accounts.contains_key(*id))
            .cloned()
            .collect();
        new.sort_unstable();
        new.dedup();
        let mut rest = new.as_slice();
        while !rest.is_empty() {
            let ids = rest[..rest.len().min(LOOKUP_MAX)].to_vec();
            let consistency = self.read.consistency();
            let request = pb::LookupAccountsRequest { ids, consistency, ..Default::default() };
            let found = client.lookup_accounts(request).await.context("reading accounts")?.into_inner();
            self.accounts.extend(found.accounts.into_iter().map(|account| (account.id.clone(), account)));
            let answered = usize::try_from(found.answered)?.min(rest.len());
            anyhow::ensure!(answered > 0, "an answer about no account");
            rest = &rest[answered..];
        }
        Ok(())
    }

    pub(super) fn get(&self, id: &Bytes) -> Option<&pb::Account> {
        self.accounts.get(id)
    }

    /// Its number, or its id if it has none; empty for no account.
    pub(super) fn name(&self, id: &Bytes) -> String {
        match self.get(id) {
            Some(account) if !account.number.is_empty() => account.number.clone(),
            _ if id.is_empty() => String::new(),
            _ => id_text(id),
        }
    }
}

/// A time as people write it, RFC 3339 in UTC; empty if it is beyond what people write.
pub(super) fn time_text(ms: u64) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000);
    time.map_or_else(
        |_| String::new(),
        |time| {
            let (year, month, day) = (time.year(), u8::from(time.month()), time.day());
            let (hour, minute, second, milli) =
                (time.hour(), time.minute(), time.second(), time.millisecond());
            format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
        },
    )
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

/// What a result means, as the ledger says it.
pub(super) fn code_text(code: pb::Code) -> &'static str {
    let code = u8::try_from(i32::from(code)).ok().and_then(|code| Code::try_from(code).ok());
    code.map_or("", Code::text)
}

/// `insufficient_funds` for `CODE_INSUFFICIENT_FUNDS`.
pub(super) fn code_name(code: pb::Code) -> String {
    code.as_str_name().trim_start_matches("CODE_").to_lowercase()
}

/// `pending` for `KIND_PENDING`.
pub(super) fn kind_name(kind: pb::Kind) -> String {
    kind.as_str_name().trim_start_matches("KIND_").to_lowercase()
}
