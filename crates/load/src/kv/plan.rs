//! One operation of each case, over etcd's API or `quoin.kv.v1`.

use crate::client::ANSWER_BYTES_MAX;
use crate::client::Channel;
use crate::random::Random;
use crate::runner::Work;
use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest};
use quoin_proto::quoin::kv::v1 as quoin;
use std::sync::Arc;

/// Requests in flight while keys are written before a run.
const FILL_IN_FLIGHT: usize = 128;
/// A mix has one write in this many operations.
const MIX: u64 = 8;

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Case {
    /// Write a random key
    Put,
    /// Read a random existing key, linearizable
    GetLinearizable,
    /// Read a random existing key from the replica's own state
    GetLocal,
    /// Delete a random key
    Delete,
    /// Seven linearizable reads of existing keys to one write
    MixExisting,
    /// Seven linearizable reads of absent keys to one write
    MixAbsent,
    /// Write over a bidirectional stream of quoin.kv.v1
    StreamPut,
    /// Read over a bidirectional stream of quoin.kv.v1
    StreamGet,
}

/// What a case does, with which keys and values.
pub(super) struct Plan {
    case: Case,
    keys: u64,
    value: Bytes,
}

impl Plan {
    pub(super) fn new(case: Case, keys: u64, value_bytes: usize) -> Arc<Self> {
        Arc::new(Self { case, keys, value: Random::value(value_bytes).into() })
    }

    /// Whether the case needs keys that exist.
    pub(super) fn reads_written_keys(&self) -> bool {
        !matches!(self.case, Case::Put | Case::StreamPut | Case::MixAbsent)
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self.case, Case::StreamPut | Case::StreamGet)
    }

    fn key(&self, number: u64) -> Bytes {
        Bytes::from(format!("bench/{number:012}"))
    }

    fn random_key(&self, random: &mut Random) -> Bytes {
        self.key(random.next() % self.keys)
    }

    /// A worker that asks over `channel`.
    pub(super) fn worker(self: &Arc<Self>, channel: &Channel, seed: u64) -> Worker {
        let kv = KvClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        Worker { plan: Arc::clone(self), kv, random: Random::seeded(seed) }
    }

    /// The next operation of a stream.
    pub(super) fn stream_operation(&self, random: &mut Random) -> quoin::Operation {
        let key = self.random_key(random);
        let operation = if self.case == Case::StreamPut {
            let value = self.value.clone();
            quoin::operation::Operation::Put(quoin::PutRequest { key, value, ..Default::default() })
        } else {
            quoin::operation::Operation::Get(quoin::GetRequest { key, ..Default::default() })
        };
        quoin::Operation { operation: Some(operation) }
    }
}

/// One client of the unary API.
#[derive(Clone)]
pub(super) struct Worker {
    plan: Arc<Plan>,
    kv: KvClient<Channel>,
    random: Random,
}

impl Work for Worker {
    async fn operation(&mut self) -> Result<()> {
        let key = self.plan.random_key(&mut self.random);
        match self.plan.case {
            Case::Put => self.put(key).await,
            Case::GetLinearizable => self.get(key, false, true).await,
            Case::GetLocal => self.get(key, true, true).await,
            Case::Delete => self.delete(key).await,
            Case::MixExisting if !self.random.next().is_multiple_of(MIX) => self.get(key, false, true).await,
            Case::MixAbsent if !self.random.next().is_multiple_of(MIX) => {
                let absent = Bytes::from([&b"absent/"[..], &key].concat());
                self.get(absent, false, false).await
            }
            Case::MixExisting | Case::MixAbsent => self.put(key).await,
            Case::StreamPut | Case::StreamGet => Err(anyhow!("a stream has no unary operation")),
        }
    }
}

impl Worker {
    async fn put(&mut self, key: Bytes) -> Result<()> {
        let value = self.plan.value.clone();
        self.kv.put(PutRequest { key, value, ..PutRequest::default() }).await?;
        Ok(())
    }

    async fn get(&mut self, key: Bytes, serializable: bool, exists: bool) -> Result<()> {
        let reply = self.kv.range(RangeRequest { key, serializable, ..RangeRequest::default() }).await?;
        let found = !reply.get_ref().kvs.is_empty();
        ensure!(found == exists, "a key {}", if exists { "is missing" } else { "exists that should not" });
        Ok(())
    }

    async fn delete(&mut self, key: Bytes) -> Result<()> {
        self.kv.delete_range(DeleteRangeRequest { key, ..DeleteRangeRequest::default() }).await?;
        Ok(())
    }
}

/// Writes every key once.
pub(super) async fn fill(channels: &[Channel], plan: &Arc<Plan>) -> Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..FILL_IN_FLIGHT as u64 {
        let mut worker = plan.worker(&channels[number as usize % channels.len()], number);
        tasks.spawn(async move {
            for key in (number..worker.plan.keys).step_by(FILL_IN_FLIGHT) {
                let key = worker.plan.key(key);
                worker.put(key).await?;
            }
            Ok::<(), anyhow::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
