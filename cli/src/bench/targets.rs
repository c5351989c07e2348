//! What is asked of the servers: one operation of each case, over etcd's API or `quoin.kv.v1`.

use super::load::Work;
use super::{Case, Target};
use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quoin_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, StatusRequest};
use quoin_proto::quoin::kv::v1 as quoin;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Requests under way while keys are written before a run.
const FILL_IN_FLIGHT: usize = 128;
/// Reads among a mix's operations: seven to one write.
const MIX: u64 = 8;

/// One connection.
#[derive(Clone)]
pub(super) struct Connection(pub(super) Channel);

/// Picks the servers that `target` means.
pub(super) async fn choose(endpoints: &[String], target: Target) -> Result<Vec<String>> {
    ensure!(!endpoints.is_empty(), "no endpoints");
    if target == Target::All {
        return Ok(endpoints.to_vec());
    }
    let (mut leaders, mut followers) = (Vec::new(), Vec::new());
    for endpoint in endpoints {
        let Connection(channel) = dial(endpoint).await?;
        let status = MaintenanceClient::new(channel).status(StatusRequest {}).await;
        let status = status.with_context(|| format!("asking {endpoint} whether it leads"))?.into_inner();
        let member = status.header.map(|header| header.member_id);
        let list = if member == Some(status.leader) { &mut leaders } else { &mut followers };
        list.push(endpoint.clone());
    }
    let (chosen, what) = if target == Target::Leader { (leaders, "leader") } else { (followers, "follower") };
    ensure!(!chosen.is_empty(), "none of {} is a {what}", endpoints.join(", "));
    Ok(chosen)
}

async fn dial(endpoint: &str) -> Result<Connection> {
    let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?
        .tcp_nodelay(true)
        .connect_timeout(Duration::from_secs(3))
        .initial_stream_window_size(Some(2 << 20))
        .initial_connection_window_size(Some(16 << 20));
    let channel = endpoint.connect().await.with_context(|| format!("connecting to {}", endpoint.uri()))?;
    Ok(Connection(channel))
}

/// Makes `count` connections, spread over the endpoints.
pub(super) async fn connect(endpoints: &[String], count: usize) -> Result<Vec<Connection>> {
    let mut connections = Vec::with_capacity(count);
    for number in 0..count {
        connections.push(dial(&endpoints[number % endpoints.len()]).await?);
    }
    Ok(connections)
}

/// What a case does, and with which keys and values.
pub(super) struct Plan {
    pub(super) case: Case,
    keys: u64,
    value: Bytes,
}

impl Plan {
    pub(super) fn new(case: Case, keys: u64, value_bytes: usize) -> Arc<Self> {
        // Not all alike: a server that compresses must not gain by it.
        let mut random = Random(0x5eed);
        let value: Vec<u8> = (0..value_bytes).map(|_| random.next() as u8).collect();
        Arc::new(Self { case, keys, value: value.into() })
    }

    /// Whether the case reads keys that must have been written before.
    pub(super) fn reads_written_keys(&self) -> bool {
        !matches!(self.case, Case::Put | Case::StreamPut | Case::MixAbsent)
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self.case, Case::StreamPut | Case::StreamGet)
    }

    fn key(&self, number: u64) -> Bytes {
        Bytes::from(format!("bench/{number:012}"))
    }

    pub(super) fn random_key(&self, random: &mut Random) -> Bytes {
        self.key(random.next() % self.keys)
    }

    /// A worker that asks over `connection`.
    pub(super) fn worker(self: &Arc<Self>, connection: &Connection, seed: u64) -> Worker {
        let kv = KvClient::new(connection.0.clone()).max_decoding_message_size(64 << 20);
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

    fn put_request(&self, key: Bytes) -> PutRequest {
        PutRequest { key, value: self.value.clone(), ..PutRequest::default() }
    }
}

/// A xorshift generator: which keys are asked for must not cost anything.
#[derive(Clone)]
pub(super) struct Random(u64);

impl Random {
    /// A generator of its own for each seed.
    pub(super) fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
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
        let request = self.plan.put_request(key);
        self.kv.put(request).await?;
        Ok(())
    }

    async fn get(&mut self, key: Bytes, serializable: bool, must_be_there: bool) -> Result<()> {
        let reply = self.kv.range(RangeRequest { key, serializable, ..RangeRequest::default() }).await?;
        ensure!(
            reply.get_ref().kvs.is_empty() != must_be_there,
            "a key is there or not, against expectation"
        );
        Ok(())
    }

    async fn delete(&mut self, key: Bytes) -> Result<()> {
        self.kv.delete_range(DeleteRangeRequest { key, ..DeleteRangeRequest::default() }).await?;
        Ok(())
    }
}

/// Writes every key once.
pub(super) async fn fill(connections: &[Connection], plan: &Arc<Plan>) -> Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..FILL_IN_FLIGHT as u64 {
        let mut worker = plan.worker(&connections[number as usize % connections.len()], number);
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
