//! Watchers of the rules: new ones, which fetch everything, and those that receive each update.

use super::options::Api;
use super::rules::{self, GROUP};
use crate::client::Channel;
use crate::client::{self, ANSWER_BYTES_MAX};
use crate::runner::{Count, Shared};
use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::Streaming;

/// Keys per page of a listing in etcd.
const PAGE: i64 = 10_000;
/// How long after the measurement watchers wait for updates.
const LATE: Duration = Duration::from_millis(200);

/// Starts watchers one after another until the run ends. Each must get at least `rules` rules.
pub(super) async fn new_watchers(
    channel: Channel,
    api: Api,
    rules: u64,
    shared: Arc<Shared>,
) -> Result<Count> {
    let mut count = Count::new();
    while Instant::now() < shared.end {
        let start = Instant::now();
        let seen = match api {
            Api::Route => snapshot(&channel).await?,
            Api::Etcd => list_and_watch(&channel).await?,
        };
        let result = if seen >= rules { Ok(()) } else { Err(anyhow!("only {seen} of {rules} rules came")) };
        shared.record(&mut count, start, &result);
    }
    Ok(count)
}

/// Watches until the snapshot is complete; returns how many rules it had.
async fn snapshot(channel: &Channel) -> Result<u64> {
    let request = pb::WatchRequest { groups: vec![GROUP.to_owned()], ..pb::WatchRequest::default() };
    let mut messages = rules::client(channel).watch(request).await?.into_inner();
    let mut seen = 0;
    loop {
        let message = messages.message().await?.context("the server ended the watch")?;
        seen += message.rules.len() as u64;
        if message.kind() == Kind::SnapshotEnd {
            return Ok(seen);
        }
    }
}

/// What a client of etcd does: it lists in pages at one revision, then watches from there. Returns how many
/// rules it listed.
async fn list_and_watch(channel: &Channel) -> Result<u64> {
    let mut kv = KvClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
    let (mut key, range_end) = rules::range();
    let (mut revision, mut seen) = (0, 0);
    loop {
        let request = etcd::RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            revision,
            limit: PAGE,
            ..etcd::RangeRequest::default()
        };
        let reply = kv.range(request).await?.into_inner();
        if revision == 0 {
            revision = reply.header.map_or(0, |header| header.revision);
        }
        for kv in &reply.kvs {
            pb::Rule::decode(kv.value.clone())?;
        }
        seen += reply.kvs.len() as u64;
        match reply.kvs.last() {
            Some(last) if reply.more => key = [&last.key[..], b"\0"].concat().into(),
            _ => break,
        }
    }
    etcd_watch(channel, revision + 1).await?;
    Ok(seen)
}

/// Opens a watch in etcd and waits until it is confirmed.
async fn etcd_watch(channel: &Channel, start_revision: i64) -> Result<Streaming<etcd::WatchResponse>> {
    let (key, range_end) = rules::range();
    let create =
        etcd::WatchCreateRequest { key, range_end, start_revision, ..etcd::WatchCreateRequest::default() };
    let mut watch = client::watch(channel.clone(), create).await?;
    watch.message().await?.context("the server ended the watch")?;
    Ok(watch)
}

/// An event, decoded only as far as its rule, which stays encoded: a thousand watchers in one process must not cost
/// more than the server that is measured.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DueEvent {
    #[prost(bytes = "bytes", tag = "2")]
    put: Bytes,
}

/// A `WatchResponse`, decoded only as far as its events.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DueEvents {
    #[prost(message, repeated, tag = "3")]
    events: Vec<DueEvent>,
}

/// A rule, decoded only as far as what it carries.
#[derive(Clone, PartialEq, Message)]
struct Carrier {
    #[prost(bytes = "bytes", tag = "8")]
    user_data: Bytes,
}

/// When the write of an encoded rule was due, in nanoseconds; `None` if it carries no time.
fn due(rule: &Bytes) -> Result<Option<u64>> {
    // Its tag and its length: a rule of this benchmark ends with what it carries.
    if let [.., 0x42, 8, a, b, c, d, e, f, g, h] = rule[..] {
        return Ok(Some(u64::from_be_bytes([a, b, c, d, e, f, g, h])));
    }
    let Carrier { user_data } = Carrier::decode(rule.clone())?;
    Ok(<[u8; 8]>::try_from(&user_data[..]).ok().map(u64::from_be_bytes))
}

/// A watcher of updates.
pub(super) enum Watcher {
    Route(Streaming<DueEvents>),
    Etcd(Streaming<etcd::WatchResponse>),
}

/// Starts `count` watchers of updates; returns those of each channel.
pub(super) async fn watch_all(channels: &[Channel], api: Api, count: usize) -> Result<Vec<Vec<Watcher>>> {
    let newest = match api {
        Api::Route => {
            let nodes = rules::client(&channels[0]).nodes(pb::NodesRequest::default()).await?.into_inner();
            nodes.header.map_or(0, |header| header.revision)
        }
        Api::Etcd => 0,
    };
    let mut watchers: Vec<Vec<Watcher>> = channels.iter().map(|_| Vec::new()).collect();
    for number in 0..count {
        let channel = &channels[number % channels.len()];
        watchers[number % channels.len()].push(match api {
            Api::Route => {
                let request = pb::WatchRequest {
                    groups: vec![GROUP.to_owned()],
                    from_revision: newest + 1,
                    ..pb::WatchRequest::default()
                };
                Watcher::Route(route_watch(channel, request).await?)
            }
            Api::Etcd => Watcher::Etcd(etcd_watch(channel, 0).await?),
        });
    }
    Ok(watchers)
}

async fn route_watch(channel: &Channel, request: pb::WatchRequest) -> Result<Streaming<DueEvents>> {
    let mut client = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
    client.ready().await?;
    let path = http::uri::PathAndQuery::from_static("/quoin.route.v1.Route/Watch");
    let codec = tonic_prost::ProstCodec::<pb::WatchRequest, DueEvents>::default();
    Ok(client.server_streaming(tonic::Request::new(request), path, codec).await?.into_inner())
}

/// Records each update when it arrives at one of `watchers`, which share a connection. An update carries its
/// scheduled time, in nanoseconds since `epoch`.
pub(super) async fn count_all(watchers: Vec<Watcher>, shared: Arc<Shared>, epoch: Instant) -> Result<Count> {
    // A histogram for each would be more than the processor's caches hold.
    let count = Arc::new(Mutex::new(Count::new()));
    let mut tasks = JoinSet::new();
    for watcher in watchers {
        tasks.spawn(watcher.count(Arc::clone(&shared), epoch, Arc::clone(&count)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(std::mem::replace(&mut count.lock(), Count::new()))
}

impl Watcher {
    async fn count(mut self, shared: Arc<Shared>, epoch: Instant, count: Arc<Mutex<Count>>) -> Result<()> {
        let deadline = shared.end + LATE;
        while let Ok(rules) = tokio::time::timeout_at(deadline.into(), self.next()).await {
            let rules = rules?;
            let dues = rules.iter().filter_map(|rule| due(rule).transpose());
            let dues = dues.map(|nanos| nanos.map(|nanos| epoch + Duration::from_nanos(nanos)));
            shared.record_arrivals(&mut count.lock(), dues)?;
        }
        Ok(())
    }

    /// The rules of the next message, encoded.
    async fn next(&mut self) -> Result<Vec<Bytes>> {
        match self {
            Self::Route(messages) => {
                let message = messages.message().await?.context("the server ended a watch")?;
                Ok(message.events.into_iter().map(|event| event.put).collect())
            }
            Self::Etcd(messages) => {
                let message = messages.message().await?.context("the server ended a watch")?;
                Ok(message.events.into_iter().filter_map(|event| event.kv).map(|kv| kv.value).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_decoding_finds_the_due_time_in_a_real_message() {
        let rule = rules::rule(7, Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 9]));
        let event = pb::Event { revision: 5, change: Some(pb::event::Change::Put(rule.clone())) };
        let message = pb::WatchResponse { events: vec![event], ..pb::WatchResponse::default() };
        let decoded = DueEvents::decode(&message.encode_to_vec()[..]).unwrap();
        assert_eq!(due(&decoded.events[0].put).unwrap(), Some(9));
        let unfinished = [rule.encode_to_vec(), vec![0x48, 1]].concat();
        assert_eq!(due(&unfinished.into()).unwrap(), Some(9));
        assert_eq!(due(&rules::rule(7, Bytes::new()).encode_to_vec().into()).unwrap(), None);
    }
}
