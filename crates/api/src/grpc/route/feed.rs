//! One watch: a snapshot, if asked for; then the changes since, from history; then the live stream.
//!
//! **Invariant: No gap, no duplicate.** `position` is the revision up to which everything was sent.
//! The live feed is joined before history is read, and history is read up to the newest revision. So all that
//! follows is in the feed, and what the feed has at or before the position is skipped.
//!
//! What is watched changes at a revision: what was watched before is sent up to it, then what is added as of it, and
//! from the next one on both.
//!
//! A slow watcher holds up nobody: its channel fills, the feed overtakes it, and it goes back to history.

use super::encode::Encoder;
use super::live::{Batch, Live, interest};
use super::snapshot::{Tables, Taken};
use super::subscribe::Change;
use super::translate;
use crate::commands::off_the_hot_path;
use crate::consistency::{view, view_reaching};
use crate::error::Error;
use crate::grpc::outbound::{self, Answers, blocking};
use bytes::Bytes;
use quoin_core::route::Scope;
use quoin_core::{Event, Revision};
use quoin_engine::Engine;
use quoin_engine::watch::{Hub, Interest, WatchEnd, Watcher};
use quoin_proto::Encoded;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, interval_at};

/// Maximum messages that wait for a slow client.
pub(super) const RESPONSES_MAX: usize = 4;

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
        Self::with(engine, request, translate::scopes(request)?).await
    }

    /// As [`Self::of`], for a watch of `scopes`.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(super) async fn with(
        engine: &Engine,
        request: &pb::WatchRequest,
        scopes: Vec<Scope>,
    ) -> Result<Self, Error> {
        let options = Self {
            scopes,
            from: translate::revision("from_revision", request.from_revision)?,
            snapshot_if_compacted: request.snapshot_if_compacted,
            progress_ms: translate::progress_ms(request.progress_ms)?,
            cluster: engine.cluster(),
        };
        let min_revision = translate::revision("min_revision", request.min_revision)?;
        if options.from != 0 && ![0, options.cluster].contains(&request.cluster_id) {
            let (asked, here) = (request.cluster_id, options.cluster);
            return Err(out_of_range(format!(
                "cluster_id: the revisions are of cluster {asked:016x}, and this is {here:016x}, restored or built \
                 anew; watch from 0"
            )));
        }
        if options.from == 0 {
            view(engine, request.consistency.as_ref()).await?;
        }
        check_reached(engine, "from_revision", options.from, options.from.saturating_sub(1)).await?;
        check_reached(engine, "min_revision", min_revision, min_revision).await?;
        Ok(options)
    }
}

/// Waits until this replica has `revision`, for a client that gave `asked`.
async fn check_reached(engine: &Engine, field: &str, asked: u64, revision: u64) -> Result<(), Error> {
    let newest = view_reaching(engine, Revision(revision)).await?.progress().revision.0;
    if newest >= revision {
        return Ok(());
    }
    Err(out_of_range(format!(
        "{field}: {asked} is in the future, the newest revision is {newest}; if the cluster was restored, watch from 0"
    )))
}

fn out_of_range(text: String) -> Error {
    Error::Refused(crate::error::Kind::OutOfRange, text)
}

/// A watch.
pub(super) struct Feed {
    hub: Arc<Hub>,
    tables: Arc<dyn Tables>,
    live: Live,
    options: Options,
    changes: mpsc::Receiver<Change>,
    responses: Responses,
    /// Everything up to this revision was sent.
    position: u64,
    /// A client may take as long as it likes.
    patient: bool,
}

impl Feed {
    pub(super) fn new(
        hub: Arc<Hub>,
        tables: Arc<dyn Tables>,
        live: Live,
        options: Options,
        changes: mpsc::Receiver<Change>,
        responses: Responses,
    ) -> Self {
        let position = options.from.saturating_sub(1);
        Self { hub, tables, live, options, changes, responses, position, patient: true }
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
        // A snapshot's end says that its client lacks nothing.
        let mut told = self.options.from == 0 || progress.is_none();
        loop {
            let mut feed = self.live.join(&self.hub, &self.options.scopes);
            if let Some(change) = self.catch_up(Revision(u64::MAX), true).await? {
                self.change(change).await?;
                continue;
            }
            if !std::mem::replace(&mut told, true) {
                self.tell_progress().await?;
            }
            loop {
                tokio::select! {
                    change = next(&mut self.changes) => {
                        self.change(change).await?;
                        break;
                    }
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

    /// Sends the changes after the position, up to `to` or the newest revision; if it is to `heed` changes of what is
    /// watched, stops at one.
    async fn catch_up(&mut self, to: Revision, heed: bool) -> Result<Option<Change>, Error> {
        loop {
            let compacted = self.hub.latest().1.compacted;
            if self.position + 1 < compacted.0 {
                self.start_over(compacted).await?;
            }
            let from = Revision(self.position + 1);
            let mut watcher = self.hub.watch(interest(&self.options.scopes), from);
            match self.drain(&mut watcher, to, heed).await? {
                Ok(change) => return Ok(change),
                // The next round finds it compacted too.
                Err(WatchEnd::Compacted { .. }) => tokio::task::yield_now().await,
                Err(end) => return Err(end.into()),
            }
        }
    }

    async fn drain(
        &mut self,
        watcher: &mut Watcher,
        to: Revision,
        heed: bool,
    ) -> Result<Result<Option<Change>, WatchEnd>, Error> {
        loop {
            match watcher.next_ready_to(to).await {
                Ok(Some(events)) => self.send_events(&events).await?,
                Ok(None) => {
                    self.position = self.position.max(watcher.position().min(to).0);
                    return Ok(Ok(None));
                }
                Err(end) => return Ok(Err(end)),
            }
            if heed && let Ok(change) = self.changes.try_recv() {
                return Ok(Ok(Some(change)));
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
        let message = Encoded(encoder.take());
        if !self.patient {
            return outbound::send(&self.responses, message).await;
        }
        self.responses.send(Ok(message)).await.map_err(|_| Error::disconnected())
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
        let scopes = self.options.scopes.clone();
        let (hub, tables, responses) =
            (Arc::clone(&self.hub), Arc::clone(&self.tables), self.responses.clone());
        let sent = blocking(move || {
            let taken = Taken::of(&hub, &*tables, scopes);
            let revision = taken.revision;
            taken.send(&responses, 0)?;
            Ok(revision)
        });
        let revision = sent.await?;
        let mut encoder = Encoder::default();
        encoder.watch_response(Kind::SnapshotEnd, revision);
        encoder.cluster(self.options.cluster);
        self.send(&mut encoder).await?;
        self.position = revision;
        Ok(())
    }

    /// Changes what is watched, and says as of which revision.
    async fn change(&mut self, change: Change) -> Result<(), Error> {
        let Change { request_id, add, remove } = change;
        self.options.scopes.retain(|scope| !remove.contains(scope));
        if !add.is_empty() {
            self.add(request_id, add.into_iter().collect()).await?;
        }
        let mut encoder = Encoder::default();
        encoder.watch_response(Kind::Changed, self.position);
        encoder.cluster(self.options.cluster);
        encoder.request_id(request_id);
        self.send(&mut encoder).await
    }

    /// Sends what is watched up to the revision of a snapshot of `scopes`, and the snapshot.
    async fn add(&mut self, request_id: u64, scopes: Vec<Scope>) -> Result<(), Error> {
        // A snapshot of the store keeps what it shows from being compacted away.
        self.patient = false;
        // What was sent of rules in memory may be ahead of what the hub knows.
        self.published(self.position).await?;
        loop {
            let (hub, tables, wanted) = (Arc::clone(&self.hub), Arc::clone(&self.tables), scopes.clone());
            let taken = off_the_hot_path(move || Taken::of(&hub, &*tables, wanted)).await?;
            self.published(taken.revision).await?;
            self.catch_up(Revision(taken.revision), false).await?;
            // Or else the history of what was watched before was compacted, and it was sent as of a later revision.
            if self.position == taken.revision {
                let responses = self.responses.clone();
                blocking(move || taken.send(&responses, request_id)).await?;
                break;
            }
        }
        self.patient = true;
        self.options.scopes.extend(scopes);
        self.options.scopes.sort_unstable();
        self.options.scopes.dedup();
        Ok(())
    }

    /// Waits until the hub has published `revision`, which this replica has applied.
    async fn published(&self, revision: u64) -> Result<(), Error> {
        if self.hub.newest().0 >= revision {
            return Ok(());
        }
        // Every revision has an event.
        let everything = Interest::prefix(Bytes::new());
        match self.hub.watch(everything, Revision(revision)).next().await {
            // It was, and more.
            Ok(_) | Err(WatchEnd::Compacted { .. }) => Ok(()),
            Err(end) => Err(end.into()),
        }
    }
}

/// The next change of what is watched; it never comes once there will be none.
async fn next(changes: &mut mpsc::Receiver<Change>) -> Change {
    match changes.recv().await {
        Some(change) => change,
        None => std::future::pending().await,
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
