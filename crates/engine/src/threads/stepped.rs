//! A replica without threads: its owner takes the threads' steps, in any order and at any simulated time.
//!
//! The steps are those of the threads, and so are the queues between them. What only waits or connects (a thread's
//! loop, a socket, a timer) is left to the owner, which is the simulator in `crates/sim`.

use super::apply::ApplyThread;
use super::log::{LogThread, Written};
use super::raft::RaftThread;
use super::work::WorkQueue;
use crate::apply::{Applier, Observer};
use crate::engine::Engine;
use crate::founders::{self, Founders};
use crate::input::Input;
use crate::join::{self, JoinAnswer};
use crate::peers::PeerHandler;
use crate::queue::Queue;
use crate::shared::Shared;
use crate::{snapshots, upkeep};
use parking_lot::Mutex;
use quoin_consensus::GROUP;
use quoin_consensus::greeting::{DialError, Greeting, Verdict, Who};
use quoin_consensus::log::Log;
use quoin_consensus::message::PeerMessage;
use quoin_consensus::replica::{Append, Replica};
use quoin_consensus::transport::{Handler, verdict};
use quoin_core::{Revision, StoreError};
use quoin_store::{Export, FolderError, ImportError, Importer};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The pause between two rounds of [`Stepped::poll_upkeep`].
pub const UPKEEP_PERIOD: Duration = upkeep::PERIOD;

type Round = Pin<Box<dyn Future<Output = Option<Revision>>>>;

/// A replica whose steps are taken by its owner. Dropping it is a crash of the process.
pub struct Stepped {
    shared: Arc<Shared>,
    raft: RaftThread,
    log: LogThread,
    apply: Arc<Mutex<ApplyThread>>,
    appends: Arc<Queue<Append>>,
    work: Arc<WorkQueue>,
    inputs: Vec<Input>,
    /// What the log thread has taken and not written yet.
    writing: Vec<Append>,
    founders: Option<Founders>,
    round: Option<Round>,
    reclaimed: Option<Revision>,
    /// What peers' connections ask.
    handler: PeerHandler,
}

impl Stepped {
    pub(crate) fn new(
        shared: Arc<Shared>,
        replica: Replica,
        applier: Applier,
        founders: Option<Founders>,
    ) -> Self {
        let (appends, work) = (Arc::new(Queue::default()), Arc::new(WorkQueue::default()));
        let mut raft = RaftThread::new(Arc::clone(&shared), replica, Arc::clone(&appends), Arc::clone(&work));
        let log = LogThread::new(Arc::clone(&shared), Arc::clone(&appends));
        let apply = ApplyThread { shared: Arc::clone(&shared), applier, work: Arc::clone(&work) };
        let apply = Arc::new(Mutex::new(apply));
        let (applying, waiting, owner) = (Arc::clone(&apply), Arc::clone(&work), Arc::clone(&shared));
        raft.while_waiting(Box::new(move || {
            work_off(&applying, &waiting, &owner);
        }));
        let handler = PeerHandler::new(&shared, None);
        let mut stepped = Self {
            shared,
            raft,
            log,
            apply,
            appends,
            work,
            inputs: Vec::new(),
            writing: Vec::new(),
            founders,
            round: None,
            reclaimed: None,
            handler,
        };
        if let Err(error) = stepped.apply.lock().begin() {
            stepped.shared.fail(&error);
        }
        stepped.raft.begin();
        stepped
    }

    /// A handle to it, as clients have.
    pub fn engine(&self) -> Engine {
        Engine::new(Arc::clone(&self.shared))
    }

    /// Why it has ended by itself, if it has. Then it is to be dropped.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure()
    }

    /// Its log.
    pub fn log(&self) -> &Log {
        &self.shared.log
    }

    /// Whether clients may be served.
    pub fn has_replayed(&self) -> bool {
        self.shared.has_replayed()
    }

    /// Whether it takes part in its cluster.
    pub fn is_settled(&self) -> bool {
        self.shared.is_settled()
    }

    /// `observe` is called for each entry that is applied.
    pub fn observe(&mut self, observe: Observer) {
        self.apply.lock().applier.observe(observe);
    }

    /// A step of the raft thread: takes what waits for it, and ticks if that is `due`. False once the replica is to
    /// end.
    pub fn raft(&mut self, due: bool) -> bool {
        self.shared.inbox.take_more(&mut self.inputs);
        self.raft.step(&mut self.inputs, || due)
    }

    /// Whether something waits for [`Self::raft`].
    pub fn has_input(&self) -> bool {
        !self.shared.inbox.is_empty()
    }

    /// The log thread takes what waits for it, unless it is writing. Whether it has something to write now.
    pub fn begin_write(&mut self) -> bool {
        let idle = self.writing.is_empty();
        if idle {
            self.appends.take_more(&mut self.writing);
        }
        idle && !self.writing.is_empty()
    }

    /// Whether the log thread has taken something and not written it yet.
    pub fn is_writing(&self) -> bool {
        !self.writing.is_empty()
    }

    /// The log thread writes what it has taken, and says so.
    pub fn write(&mut self) -> Written {
        self.log.step(&mut self.writing)
    }

    /// The log thread has had nothing to do for a while.
    pub fn seal(&mut self) {
        if self.writing.is_empty() {
            self.log.seal();
        }
    }

    /// Whether something waits for [`Self::apply`].
    pub fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// A step of the apply thread. Whether there was anything to do.
    pub fn apply(&mut self) -> bool {
        work_off(&self.apply, &self.work, &self.shared)
    }

    /// A message has arrived.
    pub fn receive(&self, from: u64, message: PeerMessage) {
        self.handler.received(from, GROUP, message);
    }

    /// The connection to `peer` broke.
    pub fn lost(&self, peer: u64) {
        self.handler.lost(peer);
    }

    /// Leadership is to go to `to`.
    pub fn transfer(&self, to: u64) {
        self.shared.inbox.push(Input::Transfer(to));
    }

    /// What this replica answers to a greeting, as `who`. `is_peer` says whether it dials the one who greets.
    pub fn judge(&self, greeting: &Greeting, who: Who, is_peer: bool) -> Verdict {
        verdict(greeting, who, is_peer, &self.handler)
    }

    /// A peer has said that this node must not run.
    pub fn cast_out(&self, reason: &str) {
        self.handler.cast_out(reason);
    }

    /// A round of the questions of a founder that starts for the first time. `find` finds another founder, if it can
    /// be reached and lets this one ask. Whether there is more to ask, later.
    pub fn ask_founders<'a>(&mut self, find: impl Fn(u64) -> Result<&'a Self, DialError>) -> bool {
        let Some(founders) = &mut self.founders else { return false };
        let (id, disk) = (self.shared.id, self.shared.disk);
        let ask = |founder| Ok(founders::answer_to(&find(founder)?.shared, id, disk));
        let missing = founders.round(&self.shared, ask);
        if missing.is_none() {
            self.founders = None;
        }
        missing.is_some()
    }

    /// The answer to a node at `address`, on `disk`, that asks who it is; `None` while this one takes no part.
    pub fn answer_join(
        &self,
        address: String,
        disk: u64,
    ) -> Option<impl Future<Output = JoinAnswer> + use<>> {
        let shared = Arc::clone(&self.shared);
        let answer = async move { join::answer_to(&shared, &address, disk).await };
        self.is_settled().then_some(answer)
    }

    /// The newest state, for `to`, which asked for it, and the stream's number. [`Self::snapshot_ended`] must follow.
    ///
    /// # Errors
    /// The store failed.
    pub fn begin_snapshot(&self, to: u64) -> Result<(u64, Export<'static>), StoreError> {
        snapshots::export(&self.shared, to)
    }

    /// The stream of a snapshot to `to` has ended.
    pub fn snapshot_ended(&self, stream: u64, to: u64, success: bool) {
        snapshots::ended(&self.shared, stream, success);
        self.shared.inbox.push(Input::SnapshotSent { to, success });
    }

    /// Begins to receive a snapshot; `None` while this replica takes no part.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn begin_receiving(&self) -> Result<Option<Importer>, FolderError> {
        let import = || self.shared.stores.lock().import(GROUP.0, self.shared.store_options());
        self.is_settled().then(import).transpose()
    }

    /// A snapshot of `from` has arrived whole.
    ///
    /// # Errors
    /// It is not whole.
    pub fn received(&self, from: u64, importer: Importer) -> Result<(), ImportError> {
        let received = snapshots::whole(from, importer)?;
        self.shared.inbox.push(Input::SnapshotReceived(Box::new(received)));
        Ok(())
    }

    /// Goes on with a round of the upkeep, or begins one. Ready when the round is over.
    pub fn poll_upkeep(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (shared, mut reclaimed) = (Arc::clone(&self.shared), self.reclaimed);
        let round = self.round.get_or_insert_with(|| {
            Box::pin(async move {
                if let Err(error) = upkeep::round(&shared, &mut reclaimed).await {
                    tracing::warn!(%error, "upkeep");
                }
                reclaimed
            })
        });
        round.as_mut().poll(context).map(|reclaimed| {
            self.reclaimed = reclaimed;
            self.round = None;
        })
    }
}

/// A step of the apply thread. Whether there was anything to do.
fn work_off(apply: &Mutex<ApplyThread>, work: &WorkQueue, shared: &Shared) -> bool {
    let mut items = Vec::new();
    work.take_now(&mut items);
    let any = !items.is_empty();
    if !any {
        apply.lock().warm();
    } else if let Err(error) = apply.lock().step(&mut items) {
        shared.fail(&error);
    }
    any
}

/// A refusal to be dialled, as [`Stepped::ask_founders`] takes it.
pub fn refusal(verdict: Verdict) -> DialError {
    let text = format!("{verdict:?}");
    if Verdict::FINAL.contains(&verdict) {
        DialError::Refused { text, forever: true }
    } else {
        io::Error::new(io::ErrorKind::ConnectionRefused, text).into()
    }
}
