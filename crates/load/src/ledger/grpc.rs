//! Transfers over gRPC: one at a time, in batches, and in batches over streams.

use super::plan::{Maker, Plan};
use crate::client::Channel;
use crate::client::ledger::{all_ok, ledger};
use crate::runner::{Client, Count, ERROR_PAUSE, Shared, Work};
use anyhow::{Context, Result};
use quoin_proto::quoin::ledger::v1::ledger_client::LedgerClient;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Batches in flight on a stream.
const STREAM_DEPTH: usize = 4;

/// A client that sends single transfers.
#[derive(Clone)]
pub(super) struct Single {
    client: LedgerClient<Channel>,
    maker: Maker,
}

impl Single {
    pub(super) fn new(channel: &Channel, maker: Maker) -> Self {
        Self { client: ledger(channel.clone()), maker }
    }
}

impl Work for Single {
    async fn operation(&mut self) -> Result<()> {
        let request = self.maker.single();
        all_ok(&self.client.create_transfers(request).await?.into_inner())
    }
}

/// Starts clients with one batch in flight each.
pub(super) fn batches(
    channels: &[Channel],
    plan: &Arc<Plan>,
    shared: &Arc<Shared>,
    clients: usize,
) -> Vec<Client> {
    let start = |number: usize| {
        let channel = channels[number % channels.len()].clone();
        tokio::spawn(batch_by_batch(channel, plan.maker(number), Arc::clone(shared)))
    };
    (0..clients).map(start).collect()
}

async fn batch_by_batch(channel: Channel, mut maker: Maker, shared: Arc<Shared>) -> Result<Count> {
    let (mut client, mut count) = (ledger(channel), Count::new());
    loop {
        let request = maker.batch(0);
        let (start, size) = (Instant::now(), request.transfers.len() as u64);
        if start >= shared.end {
            return Ok(count);
        }
        let answer = client.create_transfers(request).await;
        let result = answer.map_err(Into::into).and_then(|answer| all_ok(answer.get_ref()));
        shared.record_many(&mut count, start, size, &result);
        if result.is_err() {
            tokio::time::sleep(ERROR_PAUSE).await;
        }
    }
}

/// Starts streams with several batches in flight each.
pub(super) fn streams(
    channels: &[Channel],
    plan: &Arc<Plan>,
    shared: &Arc<Shared>,
    clients: usize,
) -> Vec<Client> {
    let start = |number: usize| {
        let channel = channels[number % channels.len()].clone();
        tokio::spawn(stream(channel, plan.maker(number), Arc::clone(shared)))
    };
    (0..clients).map(start).collect()
}

async fn stream(channel: Channel, mut maker: Maker, shared: Arc<Shared>) -> Result<Count> {
    let (requests, outgoing) = mpsc::channel(1);
    let mut answers = ledger(channel).stream(ReceiverStream::new(outgoing)).await?.into_inner();
    let (mut count, mut in_flight) = (Count::new(), VecDeque::new());
    while Instant::now() < shared.end {
        while in_flight.len() < STREAM_DEPTH {
            let request = maker.batch(in_flight.len() as u64);
            in_flight.push_back((Instant::now(), request.transfers.len() as u64));
            requests.send(request).await.context("the stream ended")?;
        }
        let answer = answers.message().await?.context("the stream ended")?;
        let (start, size) = in_flight.pop_front().context("an answer without a request")?;
        shared.record_many(&mut count, start, size, &all_ok(&answer));
    }
    Ok(count)
}
