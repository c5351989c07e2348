//! `quoin route agent`: keeps a host's copy of its groups' rules up to date, and puts them into effect.
//!
//! **Invariant.** A batch is put into effect before the copy on disk records it. After a crash some changes
//! may therefore be put into effect again, but none is missed.

use super::client::client;
use super::copy::{Change, Copy, Key};
use super::linux::Linux;
use super::sink::Sink;
use super::status::{self, Board, Status};
use crate::connection::Connection;
use crate::ending::Ending;
use crate::outcome::refuse;
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use parking_lot::Mutex;
use quoin_load::seconds;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::Code;

/// How often the server reports progress while nothing changes.
const PROGRESS_MS: u32 = 2_000;
/// How long a server may be silent before another one is asked.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The pause after a failure grows from the first to the second.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a heartbeat may hold.
const TTL_MIN: Duration = Duration::from_millis(100);
const TTL_MAX: Duration = Duration::from_secs(86_400);
/// Maximum bytes of the name of a node or a group.
const NAME_BYTES_MAX: usize = 255;
/// The pause between two comparisons, each of which may take a second.
const RESYNC_MIN: Duration = Duration::from_millis(100);

/// An agent.
#[derive(Args)]
pub(crate) struct Agent {
    /// Group whose rules this host needs; repeatable
    #[arg(long = "group", required = true, value_name = "GROUP")]
    groups: Vec<String>,
    /// Folder of the copy
    #[arg(long, default_value = "quoin-agent", value_name = "DIR")]
    dir: PathBuf,
    /// Shell command to run for each batch of changes; it reads them as JSON lines
    #[arg(long, value_name = "COMMAND", conflicts_with = "apply_linux")]
    hook: Option<String>,
    /// Keep neighbour and forwarding entries in Linux's tables, on the devices of --device
    #[arg(long)]
    apply_linux: bool,
    /// Name of a network's VXLAN device; {vni} stands for the network
    #[arg(long, default_value = "vxlan{vni}")]
    device: String,
    /// Seconds between comparisons of Linux's tables with the rules, which undo what another hand has done
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    resync: Duration,
    /// Report to the cluster, under this name, that this host is alive and which revision it has applied
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Address of this host, reported with --node
    #[arg(long, default_value = "", hide_default_value = true, requires = "node")]
    address: String,
    /// Seconds without a report after which the host counts as dead
    #[arg(long, default_value = "15", value_name = "SECONDS", value_parser = seconds)]
    ttl: Duration,
    /// Address at which to serve /metrics for Prometheus, /status as JSON and /readyz
    #[arg(long, value_name = "ADDRESS")]
    listen_http: Option<SocketAddr>,
    /// Exit once the copy is up to date and in effect
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs until it is asked to end, or with `--once` until the copy is up to date.
pub(super) async fn run(mut agent: Agent) -> Result<ExitCode> {
    check_bounds(&agent)?;
    ensure!(agent.resync >= RESYNC_MIN, "--resync must be at least {} seconds", RESYNC_MIN.as_secs_f64());
    let mut ending = Ending::listen()?;
    agent.groups.sort();
    agent.groups.dedup();
    let copy = Copy::open(&agent.dir, &agent.groups)?;
    let status = Status { revision: copy.revision(), rules: copy.len(), ..Status::default() };
    let board = Board::new(Mutex::new(status));
    let sink = match &agent.hook {
        Some(hook) => Sink::Hook(hook.clone()),
        None if agent.apply_linux => {
            Sink::Linux(Linux::open(&agent.device, agent.resync, &copy, Arc::clone(&board))?)
        }
        None => Sink::Copy,
    };
    tracing::info!(rules = copy.len(), revision = copy.revision(), dir = %agent.dir.display(), "copy opened");
    let mut beside = JoinSet::new();
    if let Some(address) = agent.listen_http {
        let serving = status::serve(address, Arc::clone(&board)).await?;
        beside.spawn(async {
            if let Err(error) = serving.await {
                tracing::error!(%error, "serving /metrics ended");
            }
        });
    }
    if let Some(node) = agent.node.clone() {
        beside.spawn(beat(Heart::of(&agent, node), Arc::clone(&board)));
    }
    let follower = Follower { agent, copy, sink, board, endpoint: 0, silence_max: SILENCE_MAX };
    let ended = tokio::select! {
        ended = follower.follow() => ended,
        () = ending.asked() => Ok(()),
    };
    beside.shutdown().await;
    ended.map(|()| ExitCode::SUCCESS)
}

/// What the cluster would refuse again and again.
fn check_bounds(agent: &Agent) -> Result<()> {
    let seconds = agent.ttl.as_secs_f64();
    let bounds = TTL_MIN.as_secs_f64()..=TTL_MAX.as_secs_f64();
    ensure!(
        bounds.contains(&seconds),
        "--ttl {seconds} is not between {} and {} seconds",
        bounds.start(),
        bounds.end()
    );
    if let Some(node) = &agent.node {
        ensure!((1..=NAME_BYTES_MAX).contains(&node.len()), "--node must have 1 to {NAME_BYTES_MAX} bytes");
    }
    if let Some(group) = agent.groups.iter().find(|group| group.len() > NAME_BYTES_MAX) {
        bail!("--group {group:?} has {} bytes, at most {NAME_BYTES_MAX} are allowed", group.len());
    }
    Ok(())
}

struct Follower {
    agent: Agent,
    copy: Copy,
    sink: Sink,
    /// Heartbeats report its revision.
    board: Board,
    /// Counts attempts: endpoints take turns.
    endpoint: usize,
    silence_max: Duration,
}

impl Follower {
    async fn follow(mut self) -> Result<()> {
        let mut pause = RETRY_MIN;
        loop {
            let before = self.copy.revision();
            match self.watch().await {
                Ok(()) => return self.ended(),
                Err(error) => {
                    tracing::warn!(error = %format!("{error:#}"), "the watch broke; it resumes at the same revision");
                    let mut status = self.board.lock();
                    status.up_to_date = false;
                    status.watches_broken += 1;
                }
            }
            // Progress resets the pause.
            pause = if self.copy.revision() > before { RETRY_MIN } else { (pause * 2).min(RETRY_MAX) };
            tokio::time::sleep(pause).await;
        }
    }

    /// With `--once`: what the agent leaves behind.
    fn ended(&self) -> Result<()> {
        let tables = self.board.lock().tables.clone().unwrap_or_default();
        match tables.refusals.first() {
            None => Ok(()),
            Some(first) => refuse(format!(
                "the kernel refuses {} of {} rules: {} of {} on {}, for one: {}",
                tables.refused,
                self.copy.len(),
                first.entry,
                first.rules.join(", "),
                first.device,
                first.error
            )),
        }
    }

    /// Follows one endpoint. Returns with an error, or with `--once` when the copy is up to date.
    async fn watch(&mut self) -> Result<()> {
        let endpoints = &self.agent.connection.endpoints;
        let endpoint = endpoints[self.endpoint % endpoints.len()].clone();
        self.endpoint += 1;
        let from_revision = if self.copy.revision() == 0 { 0 } else { self.copy.revision() + 1 };
        let request = pb::WatchRequest {
            groups: self.agent.groups.clone(),
            from_revision,
            snapshot_if_compacted: true,
            progress_ms: PROGRESS_MS,
            cluster_id: self.copy.cluster(),
            ..pb::WatchRequest::default()
        };
        let channel = self.agent.connection.unbounded();
        let begin = async { anyhow::Ok(client(channel.dial(&endpoint).await?).watch(request).await) };
        // A frozen server accepts connections, and answers none.
        let begun = self.unless_silent(&endpoint, begin).await??;
        let mut messages = match begun {
            Err(status) if status.code() == Code::OutOfRange => {
                self.copy.forget_revision();
                self.board.lock().revision = 0;
                return Err(status)
                    .context("the copy is of another cluster or of its future: fetching everything");
            }
            begun => begun?.into_inner(),
        };
        tracing::info!(endpoint, from = from_revision, "following");
        let mut snapshot = BTreeMap::<Key, pb::Rule>::new();
        loop {
            let message = self.unless_silent(&endpoint, messages.message()).await??;
            let message = message.context("the server ended the watch")?;
            let (kind, revision) = (message.kind(), message.revision);
            match kind {
                Kind::Snapshot => {
                    snapshot
                        .extend(message.rules.into_iter().map(|rule| ((rule.vni, rule.ip.clone()), rule)));
                }
                Kind::SnapshotEnd => {
                    self.copy.set_cluster(message.cluster_id)?;
                    let changes = self.copy.difference(&std::mem::take(&mut snapshot));
                    self.take(changes, revision).await?;
                }
                Kind::Events => {
                    let changes = self.copy.changes(message.events);
                    self.take(changes, revision).await?;
                }
                Kind::Progress if revision > self.copy.revision() => {
                    // A copy of an earlier version does not know it.
                    self.copy.set_cluster(message.cluster_id)?;
                    self.take(Vec::new(), revision).await?;
                }
                Kind::Compacted => tracing::warn!(
                    history_begins = revision,
                    "the copy is older than the history that is kept; fetching everything again"
                ),
                Kind::Progress | Kind::Changed | Kind::Unspecified => {}
            }
            // The snapshot is complete, or the server has no newer changes.
            if matches!(kind, Kind::SnapshotEnd | Kind::Progress) {
                self.board.lock().up_to_date = true;
                if self.agent.once {
                    return Ok(());
                }
            }
        }
    }

    /// What `answer` resolves to, unless that takes too long.
    async fn unless_silent<T>(&self, endpoint: &str, answer: impl Future<Output = T>) -> Result<T> {
        let answered = tokio::time::timeout(self.silence_max, answer).await;
        answered.map_err(|_| anyhow!("{endpoint} was silent for {} s", self.silence_max.as_secs_f64()))
    }

    async fn take(&mut self, changes: Vec<Change>, revision: i64) -> Result<()> {
        self.sink.take(&changes, revision, &self.copy).await?;
        let count = changes.len();
        self.copy.take(changes, revision)?;
        {
            let mut status = self.board.lock();
            (status.revision, status.rules) = (revision, self.copy.len());
        }
        if count > 0 {
            tracing::info!(changes = count, revision, rules = self.copy.len(), "in effect");
        }
        Ok(())
    }
}

/// What a node reports about itself.
struct Heart {
    node: pb::Node,
    ttl: Duration,
    connection: Connection,
}

impl Heart {
    fn of(agent: &Agent, name: String) -> Self {
        Self {
            node: pb::Node {
                name,
                address: agent.address.clone(),
                groups: agent.groups.clone(),
                ..pb::Node::default()
            },
            ttl: agent.ttl,
            connection: agent.connection.clone(),
        }
    }

    /// Sends a heartbeat. A node that the cluster does not know is registered first.
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
            sent => {
                sent?;
            }
        }
        Ok(())
    }
}

/// Sends heartbeats, three within the time to live.
async fn beat(heart: Heart, board: Board) {
    let mut period = tokio::time::interval(heart.ttl / 3);
    loop {
        period.tick().await;
        let revision = board.lock().revision;
        if let Err(error) = heart.beat(revision).await {
            tracing::warn!(error = %format!("{error:#}"), "sending a heartbeat failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use tokio::net::TcpListener;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        agent: Agent,
    }

    /// An agent said again and again that its heartbeats were refused, and its host counted as dead.
    #[test]
    fn what_the_cluster_would_refuse_is_refused_at_the_start() {
        let long = "n".repeat(256);
        let check = |arguments: &[&str]| {
            let all = [&["agent", "--group", "g"], arguments].concat();
            check_bounds(&Arguments::parse_from(all).agent)
        };
        for (arguments, named) in [
            (["--ttl", "0.09"], "--ttl 0.09 "),
            (["--ttl", "86401"], "--ttl 86401 "),
            (["--node", ""], "--node"),
            (["--node", &long], "--node"),
            (["--group", &long], "256 bytes"),
        ] {
            let error = check(&arguments).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        check(&["--ttl", "0.1", "--node", &long[1..]]).unwrap();
    }

    /// A frozen replica held an agent for ever.
    #[tokio::test]
    async fn an_endpoint_that_accepts_and_never_answers_is_given_up() {
        let (folder, frozen) =
            (tempfile::tempdir().unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let endpoint = frozen.local_addr().unwrap().to_string();
        let arguments = Arguments::parse_from(["agent", "--group", "g", "--endpoints", &endpoint]);
        let agent = arguments.agent;
        let copy = Copy::open(folder.path(), &agent.groups).unwrap();
        let (board, silence_max) = (Board::default(), Duration::from_millis(50));
        let mut follower = Follower { agent, copy, sink: Sink::Copy, board, endpoint: 0, silence_max };
        let watched = tokio::time::timeout(Duration::from_secs(30), follower.watch()).await;
        let error = watched.expect("the agent gives up").unwrap_err().to_string();
        assert!(error.contains(&endpoint) && error.contains("was silent"), "{error}");
    }
}
