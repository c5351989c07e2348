//! Load over bidirectional streams: each connection has one stream, with its share of the operations always
//! in flight. A message with N results is followed by a message with N new operations.

use super::plan::Plan;
use crate::client::ANSWER_BYTES_MAX;
use crate::client::Channel;
use crate::random::Random;
use crate::runner::{Client, Count, Shared};
use anyhow::{Context, Result, anyhow};
use quoin_proto::quoin::kv::v1 as quoin;
use quoin_proto::quoin::kv::v1::kv_client::KvClient;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// How long after the measurement a stream waits for results.
const RESULTS_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts a client on each channel; together they keep `in_flight` operations in flight.
pub(super) fn clients(
    channels: &[Channel],
    plan: &Arc<Plan>,
    shared: &Arc<Shared>,
    in_flight: usize,
) -> Vec<Client> {
    let share = (in_flight / channels.len()).max(1);
    let start = |(number, channel): (usize, &Channel)| {
        let (plan, shared) = (Arc::clone(plan), Arc::clone(shared));
        tokio::spawn(client(channel.clone(), plan, shared, share, number as u64))
    };
    channels.iter().enumerate().map(start).collect()
}

/// Keeps `in_flight` operations in flight on one stream until the run ends.
async fn client(
    channel: Channel,
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    in_flight: usize,
    seed: u64,
) -> Result<Count> {
    let mut kv = KvClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    let mut random = Random::seeded(seed);
    // One message may wait while the one before it is sent.
    let (requests, outgoing) = mpsc::channel(2);
    let mut results = kv.stream(ReceiverStream::new(outgoing)).await?.into_inner();
    let mut started = vec![Instant::now(); in_flight];
    let mut count = Count::new();
    requests.send(operations(&plan, &mut random, (0..in_flight as u64).collect())).await?;
    while Instant::now() < shared.end {
        let deadline = shared.end + RESULTS_TIMEOUT;
        let message = tokio::time::timeout_at(deadline.into(), results.message()).await;
        let message = message.context("no results for five seconds")??.context("the stream ended")?;
        let mut free = Vec::with_capacity(message.results.len());
        for tagged in message.results {
            let start = started.get(tagged.id as usize).context("a result with an unknown id")?;
            shared.record(&mut count, *start, &outcome(tagged.result));
            free.push(tagged.id);
        }
        let now = Instant::now();
        free.iter().for_each(|id| started[*id as usize] = now);
        requests.send(operations(&plan, &mut random, free)).await?;
    }
    Ok(count)
}

fn operations(plan: &Plan, random: &mut Random, ids: Vec<u64>) -> quoin::StreamRequest {
    let operation = |id| quoin::TaggedOperation { id, operation: Some(plan.stream_operation(random)) };
    quoin::StreamRequest { operations: ids.into_iter().map(operation).collect() }
}

fn outcome(result: Option<quoin::Result>) -> Result<()> {
    use quoin::result::Result as Kind;
    match result.and_then(|result| result.result) {
        Some(Kind::Put(put)) if put.outcome() == quoin::Outcome::Done => Ok(()),
        Some(Kind::Get(get)) if get.record.is_some() => Ok(()),
        Some(Kind::Status(status)) => Err(anyhow!("status {}: {}", status.code, status.message)),
        other => Err(anyhow!("an unexpected result: {other:?}")),
    }
}
