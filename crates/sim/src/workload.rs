//! The clients: random writes and reads through random replicas, and checks of every answer.

use anyhow::{Result, ensure};
use bytes::Bytes;
use quoin_consensus::replica::{Lost, Proposal, ReadWaiter};
use quoin_core::kv::{
    Delete, Operation, Put, Range, Response, Txn, TxnOperation, range, txn_operation::Step,
};
use quoin_core::{Command, Progress, Reply, View};
use rand::Rng;
use std::collections::BTreeMap;
use tokio::sync::oneshot::{self, Receiver};

const KEYS: u32 = 12;

/// All clients together.
#[derive(Default)]
pub(crate) struct Workload {
    writes: Vec<Write>,
    reads: Vec<Read>,
    next_value: u64,
    /// The newest acknowledged revision of each key.
    acknowledged: BTreeMap<Bytes, i64>,
    /// Every acknowledged write: key, revision, and value (`None` for a deletion).
    history: Vec<(Bytes, i64, Option<Bytes>)>,
    pub(crate) counts: Counts,
}

/// How the clients' requests ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Acknowledged writes.
    pub writes: u64,
    /// Writes that certainly did not happen.
    pub not_done: u64,
    /// Writes with an unknown outcome.
    pub unknown: u64,
    /// Answered linearizable reads.
    pub reads: u64,
}

struct Write {
    key: Bytes,
    value: Option<Bytes>,
    reply: Receiver<Result<Reply, Lost>>,
}

struct Read {
    node: usize,
    key: Bytes,
    at_least: i64,
    ready: Receiver<Result<(), Lost>>,
}

impl Workload {
    /// A new random write, for the caller to propose.
    pub(crate) fn write(&mut self, rng: &mut impl Rng) -> Proposal {
        let key = random_key(rng);
        self.next_value += 1;
        let value = Bytes::from(format!("value {}{}", self.next_value, "x".repeat(rng.random_range(0..300))));
        let delete = rng.random_bool(0.15);
        let put = Put { key: key.clone(), value: value.clone(), ..Put::default() };
        let operation = if delete {
            Operation::Delete(Delete { key: key.clone(), ..Delete::default() })
        } else if rng.random_bool(0.2) {
            let step = TxnOperation { step: Some(Step::Put(put)) };
            Operation::Txn(Txn { success: vec![step], ..Txn::default() })
        } else {
            Operation::Put(put)
        };
        let (waiter, reply) = oneshot::channel();
        self.writes.push(Write { key, value: (!delete).then_some(value), reply });
        Proposal { command: operation.into_command(), waiter }
    }

    /// A compaction that keeps the newest twenty revisions. Nobody checks its reply.
    pub(crate) fn compaction(progress: &Progress) -> Proposal {
        let keep = 20;
        let operation = quoin_core::system::Operation::Compact(progress.revision.0.saturating_sub(keep));
        let command: Command = operation.into_command();
        Proposal { command, waiter: oneshot::channel().0 }
    }

    /// A new linearizable read through the replica at `node`.
    pub(crate) fn read(&mut self, node: usize, rng: &mut impl Rng) -> ReadWaiter {
        let key = random_key(rng);
        let at_least = self.acknowledged.get(&key).copied().unwrap_or(0);
        let (waiter, ready) = oneshot::channel();
        self.reads.push(Read { node, key, at_least, ready });
        waiter
    }

    /// Takes and checks the answers that have arrived. `view` gives a replica's newest state, `None` while it
    /// is down.
    pub(crate) fn collect<'a>(
        &mut self,
        view: impl Fn(usize) -> Option<(Progress, Answerer<'a>)>,
    ) -> Result<()> {
        for mut write in std::mem::take(&mut self.writes) {
            match write.reply.try_recv() {
                Ok(Ok(reply)) => self.acknowledge(write.key, write.value, &reply)?,
                Ok(Err(Lost::Unknown)) | Err(oneshot::error::TryRecvError::Closed) => {
                    self.counts.unknown += 1
                }
                Ok(Err(_)) => self.counts.not_done += 1,
                Err(oneshot::error::TryRecvError::Empty) => self.writes.push(write),
            }
        }
        for mut read in std::mem::take(&mut self.reads) {
            match read.ready.try_recv() {
                Ok(Ok(())) => {
                    let Some((progress, answer)) = view(read.node) else { continue };
                    let seen = answer(&read.key)?;
                    self.counts.reads += 1;
                    // A deleted key has no revision: then the replica's own must be at least as new.
                    let fresh = seen.unwrap_or(progress.revision.0 as i64);
                    ensure!(
                        fresh >= read.at_least,
                        "stale read of {:?} on replica {}: revision {fresh}, and {} was acknowledged before",
                        read.key,
                        read.node,
                        read.at_least
                    );
                }
                Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => {}
                Err(oneshot::error::TryRecvError::Empty) => self.reads.push(read),
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, key: Bytes, value: Option<Bytes>, reply: &Reply) -> Result<()> {
        let Reply::Kv(reply) = reply else { anyhow::bail!("a kv command got {reply:?}") };
        let response = match &reply.result {
            Ok(response) => response,
            Err(refusal) => anyhow::bail!("an unconditional write was refused: {refusal}"),
        };
        self.counts.writes += 1;
        if matches!(response, Response::Delete { deleted: 0, .. }) {
            return Ok(());
        }
        let revision = reply.revision.0 as i64;
        let newest = self.acknowledged.entry(key.clone()).or_default();
        *newest = revision.max(*newest);
        self.history.push((key, revision, value));
        Ok(())
    }

    /// Checks that every acknowledged write that is not compacted can be read at its revision.
    pub(crate) fn check_history(&self, view: View<'_>, progress: &Progress) -> Result<()> {
        for (key, revision, value) in &self.history {
            if *revision < progress.compacted.0.max(2) as i64 {
                continue;
            }
            let request = Range { key: key.clone(), revision: *revision, ..Range::default() };
            let reply = range(view, progress, &request)?;
            let reply = reply.map_err(|refusal| anyhow::anyhow!("reading revision {revision}: {refusal}"))?;
            let stored = reply.kvs.first().map(|kv| kv.value.clone());
            ensure!(
                stored == *value,
                "acknowledged write of {key:?} at revision {revision} is lost: found {stored:?}, wrote {value:?}"
            );
        }
        Ok(())
    }

    /// Whether no request is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }
}

/// Reads a key's newest revision from one replica.
pub(crate) type Answerer<'a> = Box<dyn Fn(&Bytes) -> Result<Option<i64>> + 'a>;

fn random_key(rng: &mut impl Rng) -> Bytes {
    Bytes::from(format!("key {}", rng.random_range(0..KEYS)))
}
