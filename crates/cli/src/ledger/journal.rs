//! Everything that happened on the ledger, from the first revision to the newest.

use super::client::{Client, join};
use anyhow::{Context, Result};
use bytes::Bytes;
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::event::Event as Happened;
use std::collections::HashMap;

/// A journal that is being read.
pub(super) struct Journal {
    events: tonic::Streaming<pb::EventsResponse>,
    /// Its last revision.
    pub(super) until: u64,
    /// All accounts created so far.
    pub(super) accounts: HashMap<Bytes, pb::Account>,
}

/// A recorded transfer.
pub(super) struct Entry {
    pub(super) recorded: pb::Recorded,
    /// The transfer as it was requested.
    pub(super) asked: pb::Transfer,
    pub(super) moved: u128,
    pub(super) released: u128,
}

impl Journal {
    /// Starts reading; the journal ends at the newest revision of this moment.
    pub(super) async fn open(client: &mut Client) -> Result<Self> {
        let newest = client.list_accounts(pb::ListAccountsRequest { limit: 1, ..Default::default() }).await?;
        let until = newest.into_inner().revision;
        let request = pb::EventsRequest { until_revision: until, ..Default::default() };
        let events = client.events(request).await?.into_inner();
        Ok(Self { events, until, accounts: HashMap::new() })
    }

    /// The next transfers in order; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Entry>>> {
        let Some(message) = self.events.message().await.context("reading the journal")? else {
            return Ok(None);
        };
        let mut entries = Vec::with_capacity(message.events.len());
        for event in message.events {
            match event.event {
                Some(Happened::Transfer(mut recorded)) => {
                    let asked = recorded.transfer.take().context("an event without its transfer")?;
                    let moved = join(recorded.moved, recorded.moved_high);
                    let released = join(recorded.released, recorded.released_high);
                    entries.push(Entry { recorded, asked, moved, released });
                }
                Some(Happened::Account(account)) => {
                    self.accounts.insert(account.id.clone(), account);
                }
                Some(Happened::Currency(_)) | None => {}
            }
        }
        Ok(Some(entries))
    }
}
