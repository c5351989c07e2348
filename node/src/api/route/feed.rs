//! One watch: everything that is there, if asked; then what happened since, from history; then the live stream.
//!
//! **Invariant (no gap, no duplicate).** `position` is the revision up to which everything was sent. The live feed is
//! joined before history is read, and history is read up to the newest revision; so all that follows is in the feed, and
//! what the feed has at or before the position is left out.
//!
//! A watcher that is slow holds up nobody: its channel fills, the feed passes it by, and it goes back to history.

use super::encode::{self, Encoder};
use super::live::{Batch, Live, interest};
use super::translate;
use crate::api::commands::off_the_hot_path;
use crate::api::{Life, error};
use crate::engine::Engine;
use crate::watch::{Hub, WatchEnd, Watcher};
use quoin_core::route::{self, Members, Scope, Table};
use quoin_core::{Event, Revision, StoreError, View};
use quoin_proto::Encoded;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, interval_at};
use tonic::Status;

/// Answers that wait for a slow client at most.
pub(super) const RESPONSES_MAX: usize = 4;
/// A message of a snapshot is closed at this size, in bytes.
const SNAPSHOT_MESSAGE_BYTES: usize = 256 << 10;
/// The shortest period of progress.
const PROGRESS_MS_MIN: u32 = 100;

type Responses = mpsc::Sender<Result<Encoded, Status>>;

/// What was asked of a watch.
pub(super) struct Options {
    pub(super) scopes: Vec<Scope>,
    /// 0: everything that is there first.
    pub(super) from: u64,
    pub(super) snapshot_if_compacted: bool,
    /// 0 for none.
    pub(super) progress_ms: u32,
}

/// Where the newest rules are: in the node's engine, or in a test's machines.
pub(super) trait Tables: Send + Sync + 'static {
    /// At least as new as what the hub tells.
    fn table(&self) -> Arc<Table>;
}

impl Tables for Engine {
    fn table(&self) -> Arc<Table> {
        Arc::clone(self.latest().routes())
    }
}

/// A watch.
pub(super) struct Feed {
    hub: Arc<Hub>,
    tables: Arc<dyn Tables>,
    live: Live,
    options: Options,
    responses: Responses,
    /// Everything up to here was sent.
    position: u64,
}

/// Why a watch goes no further.
enum End {
    /// The client has left.
    Left,
    /// It is told.
    Status(Status),
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<StoreError> for End {
    fn from(error: StoreError) -> Self {
        Self::Status(error::store(error))
    }
}

impl Feed {
    pub(super) fn new(
        hub: Arc<Hub>,
        tables: Arc<dyn Tables>,
        live: Live,
        options: Options,
        responses: Responses,
    ) -> Self {
        let position = options.from.saturating_sub(1);
        Self { hub, tables, live, options, responses, position }
    }

    /// Sends until the client leaves, the node stops, or the watch cannot go on.
    pub(super) async fn run(mut self, life: Life) {
        let responses = self.responses.clone();
        let ended = tokio::select! {
            ended = self.follow() => ended,
            () = life.ended() => Err(End::Status(error::STOPPED.into())),
            () = responses.closed() => Err(End::Left),
        };
        if let Err(End::Status(status)) = ended {
            // Nobody is left to be told where this fails.
            let _ = responses.send(Err(status)).await;
        }
    }

    async fn follow(&mut self) -> Result<(), End> {
        if self.options.from == 0 {
            self.snapshot().await?;
        }
        let mut progress = self.progress();
        loop {
            let mut feed = self.live.join(&self.hub, &self.options.scopes);
            self.catch_up().await?;
            loop {
                tokio::select! {
                    received = feed.recv() => match received {
                        Ok(batch) => self.forward(&batch, progress.as_mut()).await?,
                        Err(RecvError::Lagged(_)) => break,
                        Err(RecvError::Closed) => {
                            // The feed could not go on; history says why, or goes on.
                            tokio::task::yield_now().await;
                            break;
                        }
                    },
                    () = tick(progress.as_mut()) => self.tell_progress().await?,
                }
            }
        }
    }

    fn progress(&self) -> Option<Interval> {
        let ms = self.options.progress_ms;
        let period = Duration::from_millis(ms.max(PROGRESS_MS_MIN).into());
        (ms > 0).then(|| interval_at(Instant::now() + period, period))
    }

    /// Sends what happened after the position, until there is nothing more.
    async fn catch_up(&mut self) -> Result<(), End> {
        loop {
            let compacted = self.hub.latest().1.compacted;
            if self.position + 1 < compacted.0 {
                self.start_over(compacted).await?;
            }
            let from = Revision(self.position + 1);
            let mut watcher = self.hub.watch(interest(&self.options.scopes), from);
            match self.drain(&mut watcher).await? {
                Ok(()) => return Ok(()),
                // Next time round it is found to be compacted here too.
                Err(WatchEnd::Compacted { .. }) => tokio::task::yield_now().await,
                Err(end) => return Err(error::watch_end(end).into()),
            }
        }
    }

    async fn drain(&mut self, watcher: &mut Watcher) -> Result<Result<(), WatchEnd>, End> {
        loop {
            match watcher.next_ready().await {
                Ok(Some(events)) => self.send_events(&events).await?,
                Ok(None) => {
                    self.position = self.position.max(watcher.position().0);
                    return Ok(Ok(()));
                }
                Err(end) => return Ok(Err(end)),
            }
        }
    }

    async fn send_events(&mut self, events: &[Arc<Event>]) -> Result<(), End> {
        let Some(newest) = events.last().map(|event| event.revision.0) else { return Ok(()) };
        let batch = Batch::of(events, newest)?;
        self.forward(&batch, None).await
    }

    async fn forward(&mut self, batch: &Batch, quiet: Option<&mut Interval>) -> Result<(), End> {
        let events = batch.after(self.position);
        if !events.is_empty() {
            let mut encoder = Encoder::default();
            encoder.watch_response(Kind::Events, batch.to);
            encoder.out.extend_from_slice(events);
            self.send(&mut encoder).await?;
            if let Some(quiet) = quiet {
                quiet.reset();
            }
        }
        self.position = self.position.max(batch.to);
        Ok(())
    }

    async fn tell_progress(&mut self) -> Result<(), End> {
        let mut encoder = Encoder::default();
        encoder.watch_response(Kind::Progress, self.position);
        self.send(&mut encoder).await
    }

    async fn send(&self, encoder: &mut Encoder) -> Result<(), End> {
        self.responses.send(Ok(Encoded(encoder.take()))).await.map_err(|_| End::Left)
    }

    /// History does not go back to where this watch is: begins anew, or ends.
    async fn start_over(&mut self, compacted: Revision) -> Result<(), End> {
        if !self.options.snapshot_if_compacted {
            let from = self.position + 1;
            return Err(End::Status(Status::out_of_range(format!(
                "quoin: revision {from} is compacted, history begins at {compacted}; watch from 0, or set \
                 snapshot_if_compacted, to begin with everything that is there"
            ))));
        }
        let mut encoder = Encoder::default();
        encoder.watch_response(Kind::Compacted, compacted.0);
        self.send(&mut encoder).await?;
        self.snapshot().await
    }

    /// Sends everything that is there, as of one revision.
    async fn snapshot(&mut self) -> Result<(), End> {
        let (hub, table) = (Arc::clone(&self.hub), self.tables.table());
        let (scopes, responses) = (self.options.scopes.clone(), self.responses.clone());
        let sent = off_the_hot_path(move || {
            let (store, progress, _pin) = hub.latest();
            let mut snapshot = Snapshot::new(&responses);
            let revision = match groups(&scopes) {
                Some(groups) => snapshot.newest(&table, progress.revision, &groups)?,
                None => {
                    snapshot.stored(View::new(&*store, progress.sequence), &scopes)?;
                    progress.revision
                }
            };
            snapshot.send()?;
            Ok::<u64, End>(revision.0)
        });
        let revision = sent.await??;
        let mut encoder = Encoder::default();
        encoder.watch_response(Kind::SnapshotEnd, revision);
        self.send(&mut encoder).await?;
        self.position = revision;
        Ok(())
    }
}

async fn tick(progress: Option<&mut Interval>) {
    match progress {
        Some(progress) => {
            progress.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// The groups, where nothing else is watched: their newest rules are in memory.
fn groups(scopes: &[Scope]) -> Option<Vec<&[u8]>> {
    scopes.iter().map(|scope| if let Scope::Group(group) = scope { Some(&group[..]) } else { None }).collect()
}

/// Everything that is there, message by message, on a thread that may block: it waits for the client.
struct Snapshot<'a> {
    encoder: Encoder,
    responses: &'a Responses,
}

impl<'a> Snapshot<'a> {
    fn new(responses: &'a Responses) -> Self {
        let mut encoder = Encoder::default();
        encoder.watch_response(Kind::Snapshot, 0);
        Self { encoder, responses }
    }

    /// The newest rules of `groups`, where everything up to `applied` is in the table; returns the revision as of which they
    /// are.
    fn newest(&mut self, table: &Table, applied: Revision, groups: &[&[u8]]) -> Result<Revision, End> {
        let table = table.look();
        let members: Vec<Members> = groups.iter().map(|group| table.group(group, None, usize::MAX)).collect();
        let revision = table.revision().max(applied);
        drop(table);
        for rule in members.iter().flat_map(Members::rules) {
            self.encoder.rule(encode::RULES, &rule?);
            self.send_if_full()?;
        }
        Ok(revision)
    }

    /// What the view shows.
    fn stored(&mut self, view: View<'_>, scopes: &[Scope]) -> Result<(), End> {
        for (place, scope) in scopes.iter().enumerate() {
            match scope {
                Scope::Group(_) | Scope::Vni(_) => self.stored_rules(view, scope, &scopes[..place])?,
                Scope::Objects(kind) => {
                    for object in route::objects(view, *kind, None) {
                        self.encoder.message(encode::OBJECTS, &translate::shown_object(object?)?);
                        self.send_if_full()?;
                    }
                }
                Scope::NodeStatus => {
                    for node in route::node_statuses(view)? {
                        self.encoder.message(encode::NODES, &translate::shown_status(&node));
                        self.send_if_full()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn stored_rules(&mut self, view: View<'_>, scope: &Scope, earlier: &[Scope]) -> Result<(), End> {
        for rule in route::rules(view, scope, None) {
            let rule = rule?;
            let told = |earlier: &Scope| matches!(earlier, Scope::Group(group) if *group == rule.group);
            // Of a group and of a network that are both watched: once is enough.
            if matches!(scope, Scope::Vni(_)) && earlier.iter().any(told) {
                continue;
            }
            self.encoder.rule(encode::RULES, &rule.as_ref());
            self.send_if_full()?;
        }
        Ok(())
    }

    fn send_if_full(&mut self) -> Result<(), End> {
        if self.encoder.out.len() < SNAPSHOT_MESSAGE_BYTES {
            return Ok(());
        }
        self.send()?;
        self.encoder.watch_response(Kind::Snapshot, 0);
        Ok(())
    }

    fn send(&mut self) -> Result<(), End> {
        self.responses.blocking_send(Ok(Encoded(self.encoder.take()))).map_err(|_| End::Left)
    }
}
