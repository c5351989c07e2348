//! One client that looks rules up or writes them.

use super::options::{Api, Case, RouteBench};
use super::rules;
use crate::client::ANSWER_BYTES_MAX;
use crate::client::Channel;
use crate::random::Random;
use crate::runner::{Count, Shared, Work};
use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use prost::Message;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::route_client::RouteClient;
use quoin_proto::quoin::v1::{Consistency, Local};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Requests per stream.
const REQUESTS_PER_STREAM: usize = 1_000;
/// Errors between two updates that are counted; further ones are not.
const ERRORS_MAX: usize = 64;

/// One client that reads or writes.
#[derive(Clone)]
pub(super) struct Worker {
    case: Case,
    api: Api,
    routes: RouteClient<Channel>,
    etcd: KvClient<Channel>,
    random: Random,
    rules: u64,
    batch: u64,
}

impl Worker {
    pub(super) fn new(case: Case, channel: Channel, number: usize, options: &RouteBench) -> Self {
        Self {
            case,
            api: options.api,
            routes: rules::client(&channel),
            etcd: KvClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
            random: Random::seeded(number as u64),
            rules: options.rules,
            batch: options.batch,
        }
    }

    fn random_number(&mut self) -> u64 {
        self.random.next() % self.rules
    }

    fn consistency(&self) -> Option<Consistency> {
        let local = matches!(self.case, Case::GetLocal | Case::GetStreamLocal);
        local.then(|| Local::default().into())
    }

    fn get_request(&mut self) -> pb::GetRequest {
        let lookup = |request_id, number: u64| {
            let (vni, ip) = rules::place(number);
            pb::Lookup { request_id, vni, ip }
        };
        let lookups = (0..self.batch).map(|id| lookup(id, self.random_number())).collect();
        pb::GetRequest { lookups, consistency: self.consistency() }
    }

    async fn get(&mut self) -> Result<()> {
        match self.api {
            Api::Route => {
                let request = self.get_request();
                let reply = self.routes.get(request).await?.into_inner();
                ensure!(reply.answers.iter().all(|answer| answer.found), "a rule is missing");
            }
            Api::Etcd => {
                let key = rules::key(self.random_number());
                let serializable = self.case == Case::GetLocal;
                let request = etcd::RangeRequest { key, serializable, ..etcd::RangeRequest::default() };
                let reply = self.etcd.range(request).await?.into_inner();
                let value = reply.kvs.into_iter().next().context("a rule is missing")?.value;
                pb::Rule::decode(value)?;
            }
        }
        Ok(())
    }

    async fn put(&mut self, user_data: Bytes) -> Result<()> {
        match self.api {
            Api::Route => {
                // Consecutive rules, so that no rule comes twice in a message.
                let first = self.random_number();
                let rule = |offset| rules::rule((first + offset) % self.rules, user_data.clone());
                let rules = (0..self.batch.min(self.rules)).map(rule).collect();
                self.routes.put(pb::PutRequest { rules, each_for_itself: false }).await?;
            }
            Api::Etcd if self.batch == 1 => {
                let number = self.random_number();
                self.etcd.put(rules::etcd_put(number, user_data)).await?;
            }
            Api::Etcd => {
                let first = self.random_number() % self.rules.saturating_sub(self.batch).max(1);
                self.etcd.txn(rules::etcd_txn(first..first + self.batch, &user_data)).await?;
            }
        }
        Ok(())
    }

    /// Streams in turn: 1000 requests each, then their answers.
    pub(super) async fn streams(mut self, shared: Arc<Shared>) -> Result<Count> {
        let mut count = Count::new();
        let wanted = REQUESTS_PER_STREAM * self.batch as usize;
        while Instant::now() < shared.end {
            let start = Instant::now();
            let requests: Vec<_> = (0..REQUESTS_PER_STREAM).map(|_| self.get_request()).collect();
            let mut answers = self.routes.get_stream(tokio_stream::iter(requests)).await?.into_inner();
            let mut found = 0;
            while let Some(message) = answers.message().await? {
                found += message.answers.iter().filter(|answer| answer.found).count();
            }
            let all = found == wanted;
            let result = if all { Ok(()) } else { Err(anyhow!("{found} of {wanted} rules were found")) };
            shared.record_many(&mut count, start, found as u64, &result);
        }
        Ok(count)
    }

    /// Writes at `rate` per second. Each rule carries its scheduled time, in nanoseconds since `epoch`, so
    /// that watchers can tell its latency. Only errors are counted here.
    pub(super) async fn update(self, shared: Arc<Shared>, epoch: Instant, rate: f64) -> Result<Count> {
        let interval = Duration::from_secs_f64(1.0 / rate);
        let mut due = Instant::now();
        let mut count = Count::new();
        let (failed, mut failures) = mpsc::channel(ERRORS_MAX);
        while due < shared.end {
            tokio::time::sleep_until(due.into()).await;
            while let Ok(error) = failures.try_recv() {
                shared.record(&mut count, due, &Err(error));
            }
            let nanos = u64::try_from((due - epoch).as_nanos()).unwrap_or(u64::MAX);
            let (mut worker, failed) = (self.clone(), failed.clone());
            worker.random = Random::seeded(nanos);
            tokio::spawn(async move {
                if let Err(error) = worker.put(nanos.to_be_bytes().to_vec().into()).await {
                    // A full channel: many errors are counted already.
                    let _ = failed.try_send(error);
                }
            });
            due += interval;
        }
        Ok(count)
    }
}

impl Work for Worker {
    async fn operation(&mut self) -> Result<()> {
        match self.case {
            Case::Put => self.put(Bytes::new()).await,
            _ => self.get().await,
        }
    }

    fn weight(&self) -> u64 {
        self.batch
    }
}
