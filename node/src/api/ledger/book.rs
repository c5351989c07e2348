//! The ledger's way through the engine, the same for gRPC and HTTP.
//!
//! Transfers that come alone are gathered: while [`COMMANDS_MAX`] commands are under way, what arrives becomes the next
//! command together, each transfer with its own result. Nothing waits for company on an idle node.
//!
//! **Invariant (once).** A command whose outcome is unknown is sent again, as it was: ids make that harmless. So a
//! change of leader is seen by clients only where it takes longer than [`RETRY_FOR`].
//!
//! **Bounds.** [`WAITING_MAX`] requests wait to be gathered; more are refused as too many.

use crate::engine::{Consistency, Engine, ProposeError, ReadError, ReadView};
use quoin_core::ledger::{self, Operation, Response, TRANSFERS_MAX, TransferReply, Transfers};
use quoin_core::{Command, Reply, Revision, Stamp};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

/// Gathered commands under way at most.
const COMMANDS_MAX: usize = 2;
/// Requests that wait to be gathered at most.
const WAITING_MAX: usize = 32_768;
/// Larger requests are commands of their own.
const GATHERED_TRANSFERS_MAX: usize = 64;
/// A gathered command is closed when it has reached this size.
const COMMAND_BYTES: usize = 256 << 10;
/// How long a command is sent again while the cluster changes its leader.
const RETRY_FOR: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What became of transfers.
#[derive(Debug)]
pub(crate) struct Applied {
    /// One per transfer.
    pub(crate) replies: Vec<TransferReply>,
    /// The newest revision after them.
    pub(crate) revision: Revision,
    /// When they were applied.
    pub(crate) stamp: Stamp,
}

/// A request that waits to be gathered.
struct Waiting {
    transfers: Transfers,
    answer: oneshot::Sender<Result<Applied, ProposeError>>,
}

/// A handle to the ledger of a node.
#[derive(Clone)]
pub(crate) struct Book {
    engine: Engine,
    waiting: mpsc::Sender<Waiting>,
}

impl Book {
    /// Starts gathering. Call within a runtime.
    pub(crate) fn start(engine: Engine) -> Self {
        let (waiting, arriving) = mpsc::channel(WAITING_MAX);
        tokio::spawn(gather(engine.clone(), arriving));
        Self { engine, waiting }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Has transfers done, in order and in one step.
    ///
    /// # Errors
    /// See [`ProposeError`].
    pub(crate) async fn transfers(&self, transfers: Transfers) -> Result<Applied, ProposeError> {
        self.check_space()?;
        if transfers.len() > GATHERED_TRANSFERS_MAX {
            return applied(self.propose(transfers.into_command()).await?);
        }
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { transfers, answer };
        self.waiting.try_send(waiting).map_err(|_| ProposeError::Busy)?;
        answered.await.unwrap_or(Err(ProposeError::Stopped))
    }

    /// Has transfers done without gathering or trying again, for those who keep an order themselves.
    ///
    /// # Errors
    /// See [`ProposeError`].
    pub(crate) async fn transfers_at_once(self, transfers: Transfers) -> Result<Applied, ProposeError> {
        self.check_space()?;
        applied(ledger_reply(self.engine.propose(transfers.into_command()).await?))
    }

    /// Has accounts made: again and again if need be, since their ids make that harmless.
    ///
    /// # Errors
    /// See [`ProposeError`].
    pub(crate) async fn create_accounts(&self, operation: Operation) -> Result<ledger::Reply, ProposeError> {
        self.check_space()?;
        self.propose(operation.into_command()).await
    }

    /// Has an operation done, once.
    ///
    /// # Errors
    /// See [`ProposeError`].
    pub(crate) async fn operation(&self, operation: Operation) -> Result<ledger::Reply, ProposeError> {
        self.check_space()?;
        self.engine.propose(operation.into_command()).await.map(ledger_reply)
    }

    /// A view that shows everything that was answered before, or with `local` whatever this replica has.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(crate) async fn view(&self, local: bool) -> Result<ReadView, ReadError> {
        self.engine.read(if local { Consistency::ANY } else { Consistency::Linearizable }).await
    }

    async fn propose(&self, command: Command) -> Result<ledger::Reply, ProposeError> {
        propose(&self.engine, command).await
    }

    fn check_space(&self) -> Result<(), ProposeError> {
        if self.engine.no_space() { Err(ProposeError::NoSpace) } else { Ok(()) }
    }
}

async fn propose(engine: &Engine, command: Command) -> Result<ledger::Reply, ProposeError> {
    let give_up = Instant::now() + RETRY_FOR;
    loop {
        match engine.propose(command.clone()).await {
            Err(ProposeError::LeaderChanged | ProposeError::NoLeader | ProposeError::Unknown)
                if Instant::now() < give_up =>
            {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            outcome => return outcome.map(ledger_reply),
        }
    }
}

fn ledger_reply(reply: Reply) -> ledger::Reply {
    match reply {
        Reply::Ledger(reply) => reply,
        other => unreachable!("the machines answer a ledger command by the ledger, not by {other:?}"),
    }
}

fn applied(reply: ledger::Reply) -> Result<Applied, ProposeError> {
    let ledger::Reply { revision, stamp, response } = reply;
    match response {
        Response::Transfers(replies) => Ok(Applied { replies, revision, stamp }),
        // Adapters encode only what the machine takes; an older machine behind a newer adapter may still not.
        other => unreachable!("transfers were answered by {other:?}"),
    }
}

/// Makes commands of what waits, until all handles are gone.
async fn gather(engine: Engine, mut arriving: mpsc::Receiver<Waiting>) {
    let room = Arc::new(Semaphore::new(COMMANDS_MAX));
    let mut left_over = None;
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.expect("nobody closes the semaphore");
        let first = match left_over.take() {
            Some(waiting) => waiting,
            None => match arriving.recv().await {
                Some(waiting) => waiting,
                None => return,
            },
        };
        let (command, answers) = together(first, &mut arriving, &mut left_over);
        tokio::spawn(run(engine.clone(), command, answers, permit));
    }
}

type Answers = Vec<(usize, oneshot::Sender<Result<Applied, ProposeError>>)>;

/// One command of the first request and all that wait, as far as there is room in it.
fn together(
    first: Waiting,
    arriving: &mut mpsc::Receiver<Waiting>,
    left_over: &mut Option<Waiting>,
) -> (Command, Answers) {
    let mut answers = vec![(first.transfers.len(), first.answer)];
    let mut command = first.transfers;
    while let Ok(next) = arriving.try_recv() {
        if command.len() + next.transfers.len() > TRANSFERS_MAX || command.bytes() > COMMAND_BYTES {
            *left_over = Some(next);
            break;
        }
        answers.push((next.transfers.len(), next.answer));
        command.append(&next.transfers);
    }
    (command.into_command(), answers)
}

async fn run(engine: Engine, command: Command, answers: Answers, _permit: OwnedSemaphorePermit) {
    match propose(&engine, command).await.and_then(applied) {
        Ok(Applied { replies, revision, stamp }) => {
            let mut replies = replies.into_iter();
            for (count, answer) in answers {
                let replies = replies.by_ref().take(count).collect();
                // Whoever went away has no use for an answer.
                let _ = answer.send(Ok(Applied { replies, revision, stamp }));
            }
        }
        Err(error) => {
            for (_, answer) in answers {
                let _ = answer.send(Err(error));
            }
        }
    }
}
