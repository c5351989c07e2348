//! The route face's part of the demo: a table loaded, watched on a follower, looked up, changed.

use super::row::Row;
use anyhow::{Context, Result, ensure};
use quoin_load::client::Channel;
use quoin_load::client::{ANSWER_BYTES_MAX, dial, find_leader};
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::route_client::RouteClient;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use quoin_proto::quoin::v1::{Consistency, Local};
use std::time::Instant;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

const RULES: u32 = 100_000;
/// Rules written at one revision.
const BATCH: u32 = 2_000;
const GROUP: &str = "demo";
const LOOKUPS: u32 = 100_000;
/// Updates, one after another.
const UPDATES: u32 = 100;

/// Does the job; returns a row for each step.
pub(super) async fn job(addresses: &[String]) -> Result<Vec<Row>> {
    let (leader, channel) = find_leader(addresses).await;
    let mut routes = client(channel);
    let mut follower = client(dial(&addresses[(leader + 1) % addresses.len()], None).await?);
    let mut rows = Vec::new();
    rows.push(load(&mut routes).await?);
    let (row, mut messages) = new_watcher(&mut follower).await?;
    rows.push(row);
    rows.push(lookups(&mut follower).await?);
    rows.push(updates(&mut routes, &mut messages).await?);
    rows.push(delete(&mut routes, &mut messages).await?);
    Ok(rows)
}

fn client(channel: Channel) -> RouteClient<Channel> {
    RouteClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

fn rule(number: u32, user_data: String) -> pb::Rule {
    let [_, a, b, c] = number.to_be_bytes();
    pb::Rule {
        vni: number % 16,
        ip: format!("10.{a}.{b}.{c}"),
        mac: format!("02:00:00:{a:02x}:{b:02x}:{c:02x}"),
        host_ip: format!("192.168.{b}.{}", c % 50),
        group: GROUP.to_owned(),
        user_data: user_data.into(),
        ..pb::Rule::default()
    }
}

async fn load(routes: &mut RouteClient<Channel>) -> Result<Row> {
    let begun = Instant::now();
    let (messages, outgoing) = mpsc::channel(4);
    let writing = tokio::spawn(async move {
        for from in (0..RULES).step_by(BATCH as usize) {
            let rules = (from..from + BATCH).map(|number| rule(number, String::new())).collect();
            if messages.send(pb::PutRequest { rules, each_for_itself: false }).await.is_err() {
                return;
            }
        }
    });
    let done = routes.put_stream(ReceiverStream::new(outgoing)).await?.into_inner();
    writing.await?;
    ensure!(done.rules == u64::from(RULES), "{} of {RULES} rules were written", done.rules);
    Ok(Row::new("rules written, 2,000 to a message", done.rules, begun, "each on the disks of two replicas"))
}

async fn new_watcher(follower: &mut RouteClient<Channel>) -> Result<(Row, Streaming<pb::WatchResponse>)> {
    let begun = Instant::now();
    let request = pb::WatchRequest { groups: vec![GROUP.to_owned()], ..pb::WatchRequest::default() };
    let mut messages = follower.watch(request).await?.into_inner();
    let mut seen = 0;
    loop {
        let message = messages.message().await?.context("the watch ended")?;
        seen += message.rules.len() as u64 + message.events.len() as u64;
        // A follower that lagged when the watch began sends the rest as events.
        if seen >= RULES.into() && message.kind() != Kind::Snapshot {
            return Ok((Row::new("rules at a new watcher of a follower", seen, begun, ""), messages));
        }
    }
}

async fn lookups(follower: &mut RouteClient<Channel>) -> Result<Row> {
    let begun = Instant::now();
    let consistency = Some(Consistency::from(Local::default()));
    let request = move |number: u32| {
        let pb::Rule { vni, ip, .. } = rule(number.wrapping_mul(7919) % RULES, String::new());
        pb::GetRequest { lookups: vec![pb::Lookup { request_id: number.into(), vni, ip }], consistency }
    };
    let mut answers = follower.get_stream(tokio_stream::iter((0..LOOKUPS).map(request))).await?.into_inner();
    let mut found = 0;
    while let Some(message) = answers.message().await? {
        found += message.answers.iter().filter(|answer| answer.found).count() as u64;
    }
    ensure!(found == u64::from(LOOKUPS), "{found} of {LOOKUPS} rules were found");
    Ok(Row::new("lookups on one stream, local, one to a message", found, begun, ""))
}

async fn updates(
    routes: &mut RouteClient<Channel>,
    messages: &mut Streaming<pb::WatchResponse>,
) -> Result<Row> {
    let begun = Instant::now();
    for number in 0..UPDATES {
        let rules = vec![rule(number, format!("update {number}"))];
        let revision =
            routes.put(pb::PutRequest { rules, each_for_itself: false }).await?.into_inner().revision;
        wait_for(messages, revision).await?;
    }
    let ms = begun.elapsed().as_secs_f64() * 1e3 / f64::from(UPDATES);
    Ok(Row::new(
        "updates seen by the watcher, one by one",
        UPDATES.into(),
        begun,
        format!("{ms:.2} ms each, end to end"),
    ))
}

async fn wait_for(messages: &mut Streaming<pb::WatchResponse>, revision: i64) -> Result<()> {
    loop {
        let message = messages.message().await?.context("the watch ended")?;
        if message.revision >= revision {
            return Ok(());
        }
    }
}

async fn delete(
    routes: &mut RouteClient<Channel>,
    messages: &mut Streaming<pb::WatchResponse>,
) -> Result<Row> {
    let begun = Instant::now();
    let all_of = Some(pb::delete_request::AllOf::Group(GROUP.to_owned()));
    let deleted = routes.delete(pb::DeleteRequest { keys: Vec::new(), all_of }).await?.into_inner().deleted;
    let mut told = 0;
    while told < deleted {
        let message = messages.message().await?.context("the watch ended")?;
        told += message.events.len() as u64;
    }
    ensure!(deleted == u64::from(RULES), "{deleted} of {RULES} rules were deleted");
    Ok(Row::new("the group deleted, and the watcher told of each", told, begun, ""))
}
