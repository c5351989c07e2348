//! The keys of a run: how they come, and how they go.

use super::Way;
use crate::client::Channel;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient as EtcdKvClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use quoin_proto::quoin::kv::v1 as pb;
use quoin_proto::quoin::kv::v1::kv_client::KvClient;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;

/// Puts in a request.
const BATCH: u64 = 2000;
/// Requests under way while keys are written.
const WRITERS: u64 = 8;
/// Time to write the keys before their deadline: seconds, and keys in a second.
const DEADLINE_S: u64 = 20;
const DEADLINE_KEYS_PER_S: u64 = 20_000;
const LEASE: i64 = 77;
const LEASE_TTL_S: i64 = 36_000;
/// Pause between two looks at whether the last key is gone.
const LOOK: Duration = Duration::from_millis(20);
/// How long the keys may take to go.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Keys that were written.
pub(super) struct Keys {
    count: u64,
    way: Way,
    deadline_ms: u64,
}

fn key(way: Way, number: u64) -> Bytes {
    format!("deletion/{way:?}/{number:010}").into()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Writes `count` keys that are to go in a `way`.
pub(super) async fn write(channels: &[Channel], count: u64, value_size: usize, way: Way) -> Result<Keys> {
    let deadline_ms = now_ms() + 1000 * (DEADLINE_S + count / DEADLINE_KEYS_PER_S);
    if way == Way::Lease {
        let grant = etcd::LeaseGrantRequest { id: LEASE, ttl: LEASE_TTL_S };
        LeaseClient::new(channels[0].clone()).lease_grant(grant).await?;
    }
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let mut kv = KvClient::new(channels[writer as usize % channels.len()].clone());
        writers.spawn(async move {
            for from in (writer * BATCH..count).step_by((WRITERS * BATCH) as usize) {
                let numbers = from..count.min(from + BATCH);
                let puts = numbers.map(|number| put(way, number, value_size, deadline_ms)).collect();
                let answer = kv.batch(pb::BatchRequest { operations: puts }).await?.into_inner();
                let failed = answer.results.iter().find(|result| !is_put(result));
                ensure!(failed.is_none(), "a put failed: {failed:?}");
            }
            Ok(())
        });
    }
    while let Some(done) = writers.join_next().await {
        done??;
    }
    ensure!(
        way != Way::Deadline || now_ms() < deadline_ms,
        "the deadline came before the {count} keys were written; use fewer --keys"
    );
    Ok(Keys { count, way, deadline_ms })
}

fn put(way: Way, number: u64, value_size: usize, deadline_ms: u64) -> pb::Operation {
    let lease = if way == Way::Lease { LEASE } else { 0 };
    let ttl = (way == Way::Deadline).then_some(pb::put_request::Ttl::ExpireAtMs(deadline_ms));
    let value = vec![7; value_size].into();
    let put = pb::PutRequest { key: key(way, number), value, lease, ttl, ..Default::default() };
    pb::Operation { operation: Some(pb::operation::Operation::Put(put)) }
}

fn is_put(result: &pb::Result) -> bool {
    matches!(&result.result, Some(pb::result::Result::Put(put)) if put.mod_revision > 0)
}

impl Keys {
    /// Waits for the deadline, if the keys have one.
    pub(super) async fn wait_until_due(&self) {
        if self.way == Way::Deadline {
            tokio::time::sleep(Duration::from_millis(self.deadline_ms.saturating_sub(now_ms()))).await;
        }
    }

    /// Lets the keys go; returns once the last one is gone.
    pub(super) async fn go(self, channel: Channel, range_keys: u64) -> Result<()> {
        let mut kv = EtcdKvClient::new(channel.clone());
        match self.way {
            Way::Lease => {
                LeaseClient::new(channel).lease_revoke(etcd::LeaseRevokeRequest { id: LEASE }).await?;
            }
            Way::Deadline => {}
            Way::Ranges => {
                for from in (0..self.count).step_by(range_keys as usize) {
                    let (key, range_end) = (key(self.way, from), key(self.way, from + range_keys));
                    let request = etcd::DeleteRangeRequest { key, range_end, ..Default::default() };
                    kv.delete_range(request).await.context("deleting a range")?;
                }
            }
        }
        // Keys go in their order.
        let last = key(self.way, self.count - 1);
        let gone = async {
            loop {
                let request = etcd::RangeRequest { key: last.clone(), ..Default::default() };
                if kv.range(request).await?.into_inner().count == 0 {
                    return Ok(());
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        match tokio::time::timeout(PATIENCE, gone).await {
            Ok(gone) => gone,
            Err(_) => bail!("the keys were not gone after {} s", PATIENCE.as_secs()),
        }
    }
}
