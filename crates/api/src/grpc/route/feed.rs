//! One watch: a snapshot, if asked for; then the changes since, from history; then the live stream.
//!
//! **Invariant: No gap, no duplicate.** `position` is the revision up to which everything was sent.
//! The live feed is joined before history is read, and history is read up to the newest revision. So all that
//! follows is in the feed, and what the feed has at or before the position is skipped.
//!
//! A slow watcher holds up nobody: its channel fills, the feed overtakes it, and it goes back to history.

use super::encode::{self, Encoder};
use super::live::{Batch, Live, interest};
use super::translate;
use crate::consistency::{view, view_reaching};
use crate::error::Error;
use crate::grpc::outbound::{Answers, blocking, send_blocking};
use quoin_core::route::{self, Members, Scope, Table};
use quoin_core::{Event, Revision, View};
use quoin_engine::Engine;
use quoin_engine::watch::{Hub, WatchEnd, Watcher};
use quoin_proto::Encoded;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, Interval, interval_at};

/// Maximum messages that wait for a slow client.
pub(super) const RESPONSES_MAX: usize = 4;
/// A message of a snapshot is closed at this size, in bytes.
pub(super) const SNAPSHOT_MESSAGE_BYTES: usize = 256 << 10;

type Responses = Answers<Encoded>;

/// What a watch shall send.
pub(super) struct Options {
    pub(super) scopes: Vec<Scope>,
    /// The first revision; 0 for a snapshot first.
    pub(super) from: u64,
    pub(super) snapshot_if_compacted: bool,
    /// 0 for none.
    pub(super) progress_ms: u32,
    /// The cluster whose revisions these are.
    pub(super) cluster: u64,
}

impl Options {
    /// What a request asks for. This replica has what the watch begins with.
    ///
    /// # Errors
    /// The request is invalid, or begins in the future or in another cluster; otherwise as every read.
    pub(super) async fn of(engine: &Engine, request: &pb::WatchRequest) -> Result<Self, Error> {
        let options = Self {
            scopes: translate::scopes(request)?,
            from: translate::revision("from_revision", request.from_revision)?,
            snapshot_if_compacted: request.snapshot_if_compacted,
            progress_ms: translate::progress_ms(request.progress_ms)?,
            cluster: engine.cluster(),
        };
        let min_revision = translate::revision("min_revision", request.min_revision)?;
        if ![0, options.cluster].contains(&request.cluster_id) {
            let (asked, here) = (request.cluster_id, options.cluster);
            return Err(out_of_range(format!(
                "cluster_id: the revisions are of cluster {asked:016x}, and this is {here:016x}, restored or built \
                 anew; watch from 0"
            )));
        }
        if options.from == 0 {
            view(engine, request.consistency.as_ref()).await?;
        }
        check_reached(engine, "from_revision", options.from.saturating_sub(1)).await?;
        check_reached(engine, "min_revision", min_revision).await?;
        Ok(options)
    }
}

/// Waits until this replica has `revision`.
async fn check_reached(engine: &Engine, field: &str, revision: u64) -> Result<(), Error> {
    let newest = view_reaching(engine, Revision(revision)).await?.progress().revision.0;
    if newest >= revision {
        return Ok(());
    }
    Err(out_of_range(format!(
        "{field}: revision {revision} is in the future, the newest is {newest}; if the cluster was restored, watch from 0"
    )))
}

fn out_of_range(text: String) -> Error {
    Error::Refused(crate::error::Kind::OutOfRange, text)
}

/// Where the newest rules are: in the engine of a node, or in the machines of a test.
pub(super) trait Tables: Send + Sync + 'static {
    /// At least as new as the hub's events.
    fn table(&self) -> Arc<Table>;
}

impl Tables for Engine {
    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.latest().memory().routes)
    }
}

/// A watch.
pub(super) struct Feed {
    hub: Arc<Hub>,
    tables: Arc<dyn Tables>,
    live: Live,
    options: Options,
    responses: Responses,
    /// Everything up to this revision was sent.
    position: u64,
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

    /// Sends until the client leaves or the watch cannot go on.
    ///
    /// # Errors
    /// The watch cannot go on, or the client has left.
    pub(super) async fn run(mut self) -> Result<(), Error> {
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
                            // The feed has failed; history says why, or works.
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
        let period = Duration::from_millis(ms.into());
        (ms > 0).then(|| interval_at(Instant::now() + period, period))
    }

    /// Sends the changes after the position, up to the newest revision.
    async fn catch_up(&mut self) -> Result<(), Error> {
        loop {
            let compacted = self.hub.latest().1.compacted;
            if self.position + 1 < compacted.0 {
                self.start_over(compacted).await?;
            }
            let from = Revision(self.position + 1);
            let mut watcher = self.hub.watch(interest(&self.options.scopes), from);
            match self.drain(&mut watcher).await? {
                Ok(()) => return Ok(()),
                // The next round finds it compacted too.
                Err(WatchEnd::Compacted { .. }) => tokio::task::yield_now().await,
                Err(end) => return Err(end.into()),
            }
        }
    }

    async fn drain(&mut self, watcher: &mut Watcher) -> Result<Result<(), WatchEnd>, Error> {
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

    async fn send_events(&mut self, events: &[Arc<Event>]) -> Result<(), Error> {
        let Some(newest) = events.last().map(|event| event.revision.0) else { return Ok(()) };
        let batch = Batch::of(events, newest)?;
        self.forward(&batch, None).await
    }

    async fn forward(&mut self, batch: &Batch, quiet: Option<&mut Interval>) -> Result<(), Error> {
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

    async fn tell_progress(&mut self) -> Result<(), Error> {
        let mut encoder = Encoder::default();
        encoder.watch_response(Kind::Progress, self.position);
        encoder.cluster(self.options.cluster);
        self.send(&mut encoder).await
    }

    async fn send(&self, encoder: &mut Encoder) -> Result<(), Error> {
        self.responses.send(Ok(Encoded(encoder.take()))).await.map_err(|_| Error::disconnected())
    }

    /// History does not go back to this watch's position: sends a snapshot, or ends.
    async fn start_over(&mut self, compacted: Revision) -> Result<(), Error> {
        if !self.options.snapshot_if_compacted {
            let from = self.position + 1;
            let text = format!(
                "revision {from} is compacted, history begins at {compacted}; watch from 0, or set \
                 snapshot_if_compacted, to begin with everything that is there"
            );
            return Err(out_of_range(text));
        }
        let mut encoder = Encoder::default();
        encoder.watch_response(Kind::Compacted, compacted.0);
        encoder.cluster(self.options.cluster);
        self.send(&mut encoder).await?;
        self.snapshot().await
    }

    /// Sends the whole state, as of one revision.
    async fn snapshot(&mut self) -> Result<(), Error> {
        let (hub, table) = (Arc::clone(&self.hub), self.tables.table());
        let (scopes, responses) = (self.options.scopes.clone(), self.responses.clone());
        let sent = blocking(move || {
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
            Ok(revision.0)
        });
        let revision = sent.await?;
        let mut encoder = Encoder::default();
        encoder.watch_response(Kind::SnapshotEnd, revision);
        encoder.cluster(self.options.cluster);
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

/// The groups, if nothing else is watched: their newest rules are in memory.
fn groups(scopes: &[Scope]) -> Option<Vec<&[u8]>> {
    scopes.iter().map(|scope| if let Scope::Group(group) = scope { Some(&group[..]) } else { None }).collect()
}

/// A snapshot, message by message, on a thread that may block while it waits for the client.
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

    /// The newest rules of `groups` in a table that has everything up to `applied`; returns their revision.
    fn newest(&mut self, table: &Table, applied: Revision, groups: &[&[u8]]) -> Result<Revision, Error> {
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

    /// The rules and objects of a view.
    fn stored(&mut self, view: View<'_>, scopes: &[Scope]) -> Result<(), Error> {
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

    fn stored_rules(&mut self, view: View<'_>, scope: &Scope, earlier: &[Scope]) -> Result<(), Error> {
        for rule in route::rules(view, scope, None) {
            let rule = rule?;
            let sent = |earlier: &Scope| matches!(earlier, Scope::Group(group) if *group == rule.group);
            // A rule of a watched group and a watched network is sent once.
            if matches!(scope, Scope::Vni(_)) && earlier.iter().any(sent) {
                continue;
            }
            self.encoder.rule(encode::RULES, &rule.as_ref());
            self.send_if_full()?;
        }
        Ok(())
    }

    fn send_if_full(&mut self) -> Result<(), Error> {
        if self.encoder.out.len() < SNAPSHOT_MESSAGE_BYTES {
            return Ok(());
        }
        self.send()?;
        self.encoder.watch_response(Kind::Snapshot, 0);
        Ok(())
    }

    fn send(&mut self) -> Result<(), Error> {
        send_blocking(self.responses, Encoded(self.encoder.take()))
    }
}
