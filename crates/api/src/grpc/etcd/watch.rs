//! etcd's `Watch`: many watches on one stream.
//!
//! Each watch is a task that takes events from the hub and puts answers into the stream's queue; `feed.rs` is
//! that task. The stream itself only creates and cancels watches, and reports the progress of all of them
//! (`progress.rs`).
//!
//! **Invariant: Order on the stream.** A watch's answers are: created, events in the order of revisions,
//! canceled. A report of progress follows everything up to its revision.
//!
//! **Invariant: Bounded.** [`RESPONSES_MAX`] answers wait for a slow client; then the watches of the stream
//! stop taking events, which costs the hub nothing.

use super::feed::{self, Control, Feed};
use super::header::{header, signed};
use super::progress::Stopped;
use crate::audit::{self, Use};
use crate::auth;
use crate::changes::interest;
use crate::commands::check_key_length;
use crate::error::{Error, Known};
use crate::grpc::inbound;
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::life::Life;
use bytes::Bytes;
use quoin_core::Revision;
use quoin_engine::Engine;
use quoin_proto::etcdserverpb as pb;
use quoin_proto::etcdserverpb::watch_create_request::FilterType;
use quoin_proto::etcdserverpb::watch_request::RequestUnion;
use quoin_proto::etcdserverpb::watch_server;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

#[cfg(test)]
mod tests;

/// Maximum answers that wait for a slow client. One has about [`feed::ANSWER_BYTES`], unless a revision has
/// more.
const RESPONSES_MAX: usize = 4;
/// Maximum watches on a stream.
const WATCHES_MAX: usize = 100_000;
/// Maximum bytes of their keys and range ends.
const WATCHED_BYTES_MAX: usize = 64 << 20;
/// Maximum requests taken off the stream at once.
const REQUESTS_AT_ONCE_MAX: usize = 128;
/// The id in answers about no watch, or about all.
const NO_WATCH: i64 = -1;
/// How often a stream whose client requires a leader checks for one, and how many checks in a row must fail
/// to end it.
const LEADER_PERIOD: Duration = Duration::from_secs(1);
const LEADERLESS_MAX: u32 = 3;
/// How often a report of progress is tried while a watch does not allow it, and what each watch adds to that,
/// so that trying costs little however many there are.
const REPORT_PERIOD: Duration = Duration::from_millis(100);
const REPORT_PERIOD_PER_WATCH: Duration = Duration::from_micros(100);

/// The service.
pub(crate) struct Watch {
    engine: Engine,
    life: Life,
}

impl Watch {
    pub(crate) fn new(engine: Engine, life: Life) -> Self {
        Self { engine, life }
    }
}

#[tonic::async_trait]
impl watch_server::Watch for Watch {
    type WatchStream = AnswerStream<pb::WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let needs_leader = request.metadata().get("hasleader").is_some_and(|value| value == "true");
        if needs_leader && self.engine.raft().leader == 0 {
            return Err(Known::NoLeader.into());
        }
        let engine = self.engine.clone();
        Ok(Response::new(outbound::spawn(&self.life, RESPONSES_MAX, move |responses| async move {
            // Dropped with its watches before the stream ends.
            let mut stream = Stream::new(engine.clone(), responses);
            tokio::select! {
                ended = stream.run(request.into_inner()) => ended,
                () = leaderless(&engine), if needs_leader => Err(Known::NoLeader.into()),
            }
        })))
    }
}

/// Returns when there has been no leader for a while.
async fn leaderless(engine: &Engine) {
    let mut period = tokio::time::interval(LEADER_PERIOD);
    let mut without = 0;
    while without < LEADERLESS_MAX {
        period.tick().await;
        without = if engine.raft().leader == 0 { without + 1 } else { 0 };
    }
}

/// A watch that was started, and may have ended.
struct Started {
    control: mpsc::Sender<Control>,
    key: Bytes,
    range_end: Bytes,
}

impl Started {
    fn runs(&self) -> bool {
        !self.control.is_closed()
    }

    fn bytes(&self) -> usize {
        self.key.len() + self.range_end.len()
    }
}

struct Stream {
    engine: Engine,
    responses: Answers<pb::WatchResponse>,
    watches: HashMap<i64, Started>,
    /// Bytes of their keys and range ends.
    watched_bytes: usize,
    /// Each returns its watch's id.
    feeds: JoinSet<i64>,
    next_id: i64,
    /// When to try to give a report of progress that was asked for.
    report_at: Option<Instant>,
}

impl Stream {
    fn new(engine: Engine, responses: Answers<pb::WatchResponse>) -> Self {
        Self {
            engine,
            responses,
            watches: HashMap::new(),
            watched_bytes: 0,
            feeds: JoinSet::new(),
            next_id: 0,
            report_at: None,
        }
    }

    async fn run(&mut self, mut requests: Streaming<pb::WatchRequest>) -> Result<(), Error> {
        let mut listens = true;
        let mut policy = self.engine.watch_policy();
        loop {
            tokio::select! {
                arrived = inbound::next_many(&mut requests, REQUESTS_AT_ONCE_MAX), if listens => {
                    let arrived = arrived?;
                    // A client that ends its requests still listens.
                    listens = !arrived.is_empty();
                    for request in arrived {
                        self.serve(request).await;
                    }
                }
                () = until(self.report_at) => self.report_progress().await,
                // An error: the replica has stopped, and so does the hub.
                Ok(()) = policy.changed() => self.end_forbidden().await,
            }
        }
    }

    async fn serve(&mut self, request: pb::WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => self.cancel(request.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => self.report_progress().await,
            None => {}
        }
    }

    async fn create(&mut self, request: pb::WatchCreateRequest) {
        self.forget_ended();
        let progress = *self.engine.latest().progress();
        let newest = progress.revision.max(self.engine.hub().newest());
        let header = Some(header(&self.engine, newest));
        let answer = |id| pb::WatchResponse { header, watch_id: id, ..Default::default() };
        let id = match self.admit(&request) {
            Ok(id) => id,
            Err(cancel_reason) => {
                let refused = answer(NO_WATCH);
                let refused = pb::WatchResponse { created: true, canceled: true, cancel_reason, ..refused };
                return self.send(refused).await;
            }
        };
        self.send(pb::WatchResponse { created: true, ..answer(id) }).await;
        let from = match u64::try_from(request.start_revision) {
            Ok(revision) if revision > 0 => Revision(revision),
            _ => newest.next(),
        };
        // Compacted events may still be in memory here, but what can be watched must not depend on the
        // replica.
        if from < progress.compacted {
            let compact_revision = signed(progress.compacted.0);
            let cancel_reason = Known::Compacted.text().to_owned();
            let ended = answer(id);
            let ended = pb::WatchResponse { canceled: true, compact_revision, cancel_reason, ..ended };
            return self.send(ended).await;
        }
        self.start(id, from, request);
    }

    fn start(&mut self, id: i64, from: Revision, request: pb::WatchCreateRequest) {
        // As in etcd, an empty key is the smallest one.
        let key = if request.key.is_empty() { Bytes::from_static(b"\0") } else { request.key };
        let watcher = self.engine.hub().watch(interest(&key, &request.range_end), from);
        let filtered = |filter: FilterType| request.filters.contains(&filter.into());
        let options = feed::Options {
            id,
            without_puts: filtered(FilterType::Noput),
            without_deletions: filtered(FilterType::Nodelete),
            previous: request.prev_kv,
            fragment: request.fragment,
            progress: request.progress_notify,
        };
        let (control, commands) = mpsc::channel(1);
        let feed = Feed::new(self.engine.clone(), options, watcher, self.responses.clone());
        self.feeds.spawn(async move {
            feed.run(commands).await;
            id
        });
        let started = Started { control, key, range_end: request.range_end };
        self.watched_bytes += started.bytes();
        if let Some(ended) = self.watches.insert(id, started) {
            self.watched_bytes -= ended.bytes();
        }
    }

    /// Removes the watches that have ended by themselves since the last call: each is looked at once.
    fn forget_ended(&mut self) {
        while let Some(ended) = self.feeds.try_join_next() {
            // Another watch may have the id by now. One that panicked keeps its place.
            if let Ok(id) = ended
                && self.watches.get(&id).is_some_and(|started| !started.runs())
            {
                self.forget(id);
            }
        }
    }

    fn forget(&mut self, id: i64) -> Option<mpsc::Sender<Control>> {
        let started = self.watches.remove(&id)?;
        self.watched_bytes -= started.bytes();
        Some(started.control)
    }

    /// The id of a new watch, or why it is refused, in etcd's words.
    fn admit(&mut self, request: &pb::WatchCreateRequest) -> Result<i64, String> {
        if request.start_revision < 0 {
            return Err(Known::Compacted.text().to_owned());
        }
        let judged = check_watch(&self.engine, &request.key, &request.range_end);
        audit::uses(judged.is_ok(), Use::Reads, &request.key, &request.range_end)
            .map_err(|error| reason(&error))?;
        judged.map_err(|error| reason(&error))?;
        if is_empty_range(&request.key, &request.range_end) {
            return Err("mvcc: watcher range is empty".to_owned());
        }
        // The end of a range from just behind the longest key on has a byte more.
        let longest = request.key.len().max(request.range_end.len().saturating_sub(1));
        check_key_length(longest, self.engine.limits()).map_err(|error| format!("quoin: {error}"))?;
        let bytes = request.key.len() + request.range_end.len();
        let runs = |id| self.watches.get(&id).is_some_and(Started::runs);
        if self.watches.len() >= WATCHES_MAX {
            return Err(format!("quoin: this stream has {WATCHES_MAX} watches already; open another"));
        }
        if self.watched_bytes + bytes > WATCHED_BYTES_MAX {
            let text = "quoin: the keys of this stream's watches have";
            return Err(format!("{text} {WATCHED_BYTES_MAX} bytes already; open another stream"));
        }
        match request.watch_id {
            0 => {
                while runs(self.next_id) {
                    self.next_id += 1;
                }
                self.next_id += 1;
                Ok(self.next_id - 1)
            }
            id if id < 0 || runs(id) => {
                Err("mvcc: duplicate watch ID provided on the WatchStream".to_owned())
            }
            id => Ok(id),
        }
    }

    /// Cancels a watch, which sends the last answer itself, so that nothing follows it. That answer is queued
    /// before anything about the next watch that takes its id.
    async fn cancel(&mut self, id: i64) {
        self.end(id, Control::Cancel).await;
    }

    async fn end(&mut self, id: i64, how: Control) {
        if let Some(control) = self.forget(id) {
            // This fails if the watch has ended, and said so.
            let _ = control.send(how).await;
            control.closed().await;
        }
    }

    /// Ends the watches to which the client has no right any more.
    async fn end_forbidden(&mut self) {
        let forbidden = |started: &Started| check_watch(&self.engine, &started.key, &started.range_end).err();
        let ends = self.watches.iter().filter_map(|(id, started)| Some((*id, forbidden(started)?)));
        let ends: Vec<_> = ends.collect();
        for (id, error) in ends {
            self.end(id, Control::Forbid(reason(&error))).await;
        }
    }

    /// Reports up to which revision all watches have delivered everything, or owes the report.
    async fn report_progress(&mut self) {
        let stopped = Stopped::all(self.watches.values().map(|started| &started.control)).await;
        if !stopped.live {
            let watches = u32::try_from(self.watches.len()).unwrap_or(u32::MAX);
            self.report_at = Some(Instant::now() + REPORT_PERIOD + REPORT_PERIOD_PER_WATCH * watches);
            return;
        }
        self.report_at = None;
        // Nothing above it was sent: events are sent once it is as new as they are.
        let revision = self.engine.hub().newest();
        stopped.deliver(revision).await;
        let header = Some(header(&self.engine, revision));
        self.send(pb::WatchResponse { header, watch_id: NO_WATCH, ..Default::default() }).await;
        // Only now the watches may go on.
        drop(stopped);
    }

    async fn send(&self, response: pb::WatchResponse) {
        // This fails if the client has left, which ends the stream.
        let _ = self.responses.send(Ok(response)).await;
    }
}

/// Returns at `moment`; without one never.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Whether the stream's client may watch a range, by the users and roles of now.
fn check_watch(engine: &Engine, key: &[u8], range_end: &[u8]) -> Result<(), Error> {
    if !engine.auth_on() {
        return Ok(());
    }
    // As in etcd, an empty key is the smallest one.
    let key = if key.is_empty() { b"\0" } else { key };
    let caller = auth::present().ok_or(Known::UserEmpty)?.renewed(engine)?;
    caller.check(|access| access.reads(key, range_end))
}

/// Why a watch is refused or ended, as etcd says it.
fn reason(error: &Error) -> String {
    match error {
        Error::Etcd(known) => format!("rpc error: code = {:?} desc = {known}", known.kind()),
        error => format!("quoin: {error}"),
    }
}

fn is_empty_range(key: &[u8], range_end: &[u8]) -> bool {
    !matches!(range_end, [] | [0]) && key >= range_end
}
