//! `quoin route agent`: keeps a host's copy of its groups' rules up to date, and puts them into effect.
//!
//! **Invariant.** A batch is put into effect before the copy says that it holds it; so after a crash some changes may be put
//! into effect again, and none is missed.

use super::client;
use super::copy::{Change, Copy, Key};
use super::linux::Linux;
use super::sink::Sink;
use crate::connection::Connection;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tonic::Code;

/// How often the server says that nothing has happened, and how many times it may fail to.
const PROGRESS_MS: u32 = 2_000;
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Between tries after a failure, growing from the first to the second.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// An agent.
#[derive(Args)]
pub(crate) struct Agent {
    /// The groups whose rules this host needs
    #[arg(long = "group", required = true)]
    groups: Vec<String>,
    /// Where the copy is kept
    #[arg(long, default_value = "quoin-agent")]
    dir: PathBuf,
    /// Run this for each batch of changes, with them as JSON lines on its standard input
    #[arg(long, conflicts_with = "apply_linux")]
    hook: Option<String>,
    /// Write neighbours and forwarding entries to Linux's tables, on the devices of --device
    #[arg(long)]
    apply_linux: bool,
    /// How the VXLAN device of a network is named
    #[arg(long, default_value = "vxlan{vni}")]
    device: String,
    /// Tell the cluster under this name that this host is alive, and at which revision it is
    #[arg(long)]
    node: Option<String>,
    /// The host's address, told with --node
    #[arg(long, default_value = "", requires = "node")]
    address: String,
    /// Seconds after which the host counts as dead without a word from it
    #[arg(long, default_value_t = 15.0)]
    ttl: f64,
    /// End when everything that was there at the beginning is in effect
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs until Ctrl-C, or with `--once` until it is up to date.
pub(super) async fn run(mut agent: Agent) -> Result<ExitCode> {
    agent.groups.sort();
    agent.groups.dedup();
    let copy = Copy::open(&agent.dir, &agent.groups)?;
    let sink = match &agent.hook {
        Some(hook) => Sink::Hook(hook.clone()),
        None if agent.apply_linux => Sink::Linux(Box::new(Linux::open(&agent.device)?)),
        None => Sink::Copy,
    };
    tracing::info!(rules = copy.len(), revision = copy.revision(), dir = %agent.dir.display(), "copy opened");
    let applied = Arc::new(AtomicI64::new(copy.revision()));
    let beating =
        agent.node.clone().map(|node| tokio::spawn(beat(Heart::of(&agent, node), Arc::clone(&applied))));
    let follower = Follower { agent, copy, sink, applied, endpoint: 0 };
    let ended = tokio::select! {
        ended = follower.follow() => ended,
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    if let Some(beating) = beating {
        beating.abort();
    }
    ended.map(|()| ExitCode::SUCCESS)
}

struct Follower {
    agent: Agent,
    copy: Copy,
    sink: Sink,
    /// What the heartbeats tell.
    applied: Arc<AtomicI64>,
    /// Which endpoint is asked next.
    endpoint: usize,
}

impl Follower {
    async fn follow(mut self) -> Result<()> {
        let mut pause = RETRY_MIN;
        loop {
            let before = self.copy.revision();
            match self.watch().await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::warn!(error = %format!("{error:#}"), "the watch broke; it goes on at the same revision")
                }
            }
            // Whoever gets on need not wait long for the next try.
            pause = if self.copy.revision() > before { RETRY_MIN } else { (pause * 2).min(RETRY_MAX) };
            tokio::time::sleep(pause).await;
        }
    }

    /// Follows one endpoint; returns only with an error, or when it is up to date and that is all that is asked.
    async fn watch(&mut self) -> Result<()> {
        let endpoints = &self.agent.connection.endpoints;
        let endpoint = endpoints[self.endpoint % endpoints.len()].clone();
        self.endpoint += 1;
        let patient = Connection { timeout: 1e9, ..self.agent.connection.clone() };
        let mut routes = client(patient.dial(&endpoint).await?);
        let from_revision = if self.copy.revision() == 0 { 0 } else { self.copy.revision() + 1 };
        let request = pb::WatchRequest {
            groups: self.agent.groups.clone(),
            from_revision,
            snapshot_if_compacted: true,
            progress_ms: PROGRESS_MS,
            ..pb::WatchRequest::default()
        };
        let mut messages = routes.watch(request).await?.into_inner();
        tracing::info!(endpoint, from = from_revision, "following");
        let mut snapshot = BTreeMap::<Key, pb::Rule>::new();
        loop {
            let message = tokio::time::timeout(SILENCE_MAX, messages.message()).await;
            let message = message
                .map_err(|_| anyhow!("{endpoint} said nothing for {} s", SILENCE_MAX.as_secs()))??
                .context("the server ended the watch")?;
            let (kind, revision) = (message.kind(), message.revision);
            match kind {
                Kind::Snapshot => {
                    snapshot
                        .extend(message.rules.into_iter().map(|rule| ((rule.vni, rule.ip.clone()), rule)));
                }
                Kind::SnapshotEnd => {
                    let changes = self.copy.difference(&std::mem::take(&mut snapshot));
                    self.take(changes, revision).await?;
                }
                Kind::Events => {
                    let changes = self.copy.changes(message.events);
                    self.take(changes, revision).await?;
                }
                Kind::Progress if revision > self.copy.revision() => self.take(Vec::new(), revision).await?,
                Kind::Compacted => tracing::warn!(
                    history_begins = revision,
                    "was away for longer than history is kept; everything comes anew"
                ),
                Kind::Progress | Kind::Unspecified => {}
            }
            // After a snapshot, or word that nothing more has happened.
            if self.agent.once && matches!(kind, Kind::SnapshotEnd | Kind::Progress) {
                return Ok(());
            }
        }
    }

    async fn take(&mut self, changes: Vec<Change>, revision: i64) -> Result<()> {
        self.sink.take(&changes, revision).await?;
        let count = changes.len();
        self.copy.take(changes, revision)?;
        self.applied.store(revision, Ordering::Relaxed);
        if count > 0 {
            tracing::info!(changes = count, revision, rules = self.copy.len(), "in effect");
        }
        Ok(())
    }
}

/// What a node tells of itself.
struct Heart {
    node: pb::Node,
    ttl: Duration,
    connection: Connection,
}

impl Heart {
    fn of(agent: &Agent, name: String) -> Self {
        Self {
            node: pb::Node { name, address: agent.address.clone(), groups: agent.groups.clone() },
            ttl: Duration::from_secs_f64(agent.ttl),
            connection: agent.connection.clone(),
        }
    }

    /// Tells once; makes the node known first, if it is not.
    async fn beat(&self, applied_revision: i64) -> Result<()> {
        let mut routes = client(self.connection.any().await?);
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let request = pb::HeartbeatRequest { node: self.node.name.clone(), ttl_ms, applied_revision };
        match routes.heartbeat(request.clone()).await {
            Err(status) if status.code() == Code::NotFound => {
                let object = Some(pb::object::Object::Node(self.node.clone()));
                let object = Some(pb::Object { object, revision: 0 });
                routes.put_object(pb::PutObjectRequest { object }).await?;
                routes.heartbeat(request).await?;
            }
            told => {
                told?;
            }
        }
        Ok(())
    }
}

/// Tells three times in the time after which the node would count as dead.
async fn beat(heart: Heart, applied: Arc<AtomicI64>) {
    let mut period = tokio::time::interval(heart.ttl / 3);
    loop {
        period.tick().await;
        if let Err(error) = heart.beat(applied.load(Ordering::Relaxed)).await {
            tracing::warn!(error = %format!("{error:#}"), "the cluster was not told that this host is alive");
        }
    }
}
