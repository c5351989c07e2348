//! Load over bidirectional streams: each connection has one, with its share of operations always under way. As
//! many new operations are sent in one message as results came in one.

use super::load::{Client, Count, Shared, count};
use super::targets::{Connection, Plan, Random};
use anyhow::{Context, Result, anyhow};
use quoin_proto::quoin::kv::v1 as quoin;
use quoin_proto::quoin::kv::v1::kv_client::KvClient;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Starts a client on each connection; together they keep `in_flight` operations under way.
pub(super) fn clients(
    connections: &[Connection],
    plan: &Arc<Plan>,
    shared: &Arc<Shared>,
    in_flight: usize,
) -> Vec<Client> {
    let share = (in_flight / connections.len()).max(1);
    let start = |(number, connection): (usize, &Connection)| {
        let (plan, shared) = (Arc::clone(plan), Arc::clone(shared));
        tokio::spawn(client(connection.clone(), plan, shared, share, number as u64))
    };
    connections.iter().enumerate().map(start).collect()
}

/// Keeps `in_flight` operations under way on a stream of `connection` until the run ends.
async fn client(
    connection: Connection,
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    in_flight: usize,
    seed: u64,
) -> Result<Count> {
    let mut kv = KvClient::new(connection.0).max_decoding_message_size(64 << 20);
    let mut random = Random::seeded(seed);
    // One message may wait while the one before is being sent.
    let (requests, outgoing) = mpsc::channel(2);
    let mut results = kv.stream(ReceiverStream::new(outgoing)).await?.into_inner();
    let mut started = vec![Instant::now(); in_flight];
    let mut count = count();
    requests.send(operations(&plan, &mut random, (0..in_flight as u64).collect())).await?;
    while Instant::now() < shared.end {
        let patience = shared.end + Duration::from_secs(5);
        let message = tokio::time::timeout_at(patience.into(), results.message()).await;
        let message = message.context("no results for five seconds")??.context("the stream ended")?;
        let mut free = Vec::with_capacity(message.results.len());
        for tagged in message.results {
            shared.record(&mut count, started[tagged.id as usize], &outcome(tagged.result));
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
        other => Err(anyhow!("not what was asked for: {other:?}")),
    }
}
