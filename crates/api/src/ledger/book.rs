//! The ledger's way through the engine, the same for gRPC and HTTP.
//!
//! Small requests for transfers are gathered: while [`COMMANDS_MAX`] commands are in flight, those that
//! arrive become the next command together, each transfer with its own result. Nothing waits for company on
//! an idle node.
//!
//! A command whose outcome is unknown is proposed again, unchanged: ids make that harmless. So clients see a
//! change of leader only if it takes longer than [`RETRY_FOR`].
//!
//! **Invariant: Bounded.** [`WAITING_MAX`] requests wait to be gathered; further ones are refused as too
//! many.

use crate::commands::{long_read, read};
use crate::error::Error;
use quoin_core::ledger::{
    self, AccountCode, AccountRecord, Fence, Indexes, Key, NewAccount, NewCurrency, Operation, Response,
    SetIndexes, TRANSFERS_MAX, TransferReply, Transfers, UpdateAccount,
};
use quoin_core::{Command, Reply, Revision, Stamp};
use quoin_engine::{Consistency, Engine, ProposeError, ReadView, admission};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

/// Maximum gathered commands in flight.
const COMMANDS_MAX: usize = 2;
/// Maximum requests that wait to be gathered.
const WAITING_MAX: usize = 32_768;
/// Requests with more transfers are commands of their own.
const GATHERED_TRANSFERS_MAX: usize = 64;
/// A gathered command is closed at this size.
const COMMAND_BYTES: usize = 256 << 10;
/// How long a command is proposed again while the cluster changes its leader.
const RETRY_FOR: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The results of transfers.
#[derive(Debug)]
pub(crate) struct Applied {
    /// One per transfer.
    pub(crate) replies: Vec<TransferReply>,
    /// The newest revision after them.
    pub(crate) revision: Revision,
    /// When they were applied.
    pub(crate) stamp: Stamp,
}

/// The result of each account to create.
pub(crate) type Accounts = Vec<Result<AccountRecord, AccountCode>>;

/// A request that waits to be gathered.
struct Waiting {
    transfers: Transfers,
    answer: oneshot::Sender<Result<Applied, Error>>,
    /// Only requests that were admitted alike go together.
    admitted: Option<u64>,
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

    /// Applies transfers in order and in one step, retrying.
    ///
    /// # Errors
    /// See [`Engine::propose`].
    pub(crate) async fn transfers(&self, transfers: Transfers) -> Result<Applied, Error> {
        self.check_space()?;
        if transfers.len() > GATHERED_TRANSFERS_MAX || transfers.is_whole() {
            return applied(propose(&self.engine, transfers.into_command()).await?);
        }
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { transfers, answer, admitted: admission::present() };
        self.waiting.try_send(waiting).map_err(|_| ProposeError::Busy)?;
        answered.await.unwrap_or(Err(ProposeError::Stopped.into()))
    }

    /// Applies the transfers of a request with a key, retrying; `None` if the key was used before for something else,
    /// and then nothing was done.
    ///
    /// # Errors
    /// See [`Engine::propose`].
    pub(crate) async fn transfers_keyed(
        &self,
        mut transfers: Transfers,
        key: Key,
    ) -> Result<Option<Applied>, Error> {
        self.check_space()?;
        transfers.set_key(key);
        let reply = propose(&self.engine, transfers.into_command()).await?;
        if reply.response == Response::KeyConflict { Ok(None) } else { applied(reply).map(Some) }
    }

    /// What [`Self::transfers`] would answer at the newest state, or [`Self::transfers_keyed`] with a `key`; nothing is
    /// recorded.
    ///
    /// # Errors
    /// The state cannot be read.
    pub(crate) async fn dry_run(
        &self,
        mut transfers: Transfers,
        key: Option<Key>,
    ) -> Result<Option<Applied>, Error> {
        key.into_iter().for_each(|key| transfers.set_key(key));
        let view = self.view(Consistency::Linearizable).await?;
        let (revision, stamp) = (view.progress().revision, view.now());
        let answer = move || ledger::dry_run(view.view(), view.progress(), stamp, transfers);
        match long_read(answer).await? {
            Response::KeyConflict => Ok(None),
            response => applied(ledger::Reply { revision, stamp, response }).map(Some),
        }
    }

    /// Applies a batch of a stream, without gathering or retrying: a batch that is lost ends its stream.
    ///
    /// # Errors
    /// The batch before it is not recorded, and then this one is not either; or see [`Engine::propose`].
    pub(crate) async fn transfers_in_order(
        self,
        mut transfers: Transfers,
        fence: Fence,
    ) -> Result<Applied, Error> {
        self.check_space()?;
        transfers.set_fence(fence);
        let reply = ledger_reply(self.engine.propose(transfers.into_command()).await?)?;
        if reply.response == Response::Fenced {
            return Err(Error::unavailable(
                "nothing was done: a batch before this one on the stream was not recorded; send all that were not \
                 answered again, in order, on a new stream",
            ));
        }
        applied(reply)
    }

    /// Creates accounts, each with its own result, retrying. Returns the newest revision too.
    ///
    /// # Errors
    /// See [`Engine::propose`].
    pub(crate) async fn create_accounts(
        &self,
        accounts: Vec<NewAccount>,
    ) -> Result<(Accounts, Revision), Error> {
        self.check_space()?;
        let command = Operation::create_accounts(accounts).into_command();
        let reply = propose(&self.engine, command).await?;
        match reply.response {
            Response::Accounts(results, _) => Ok((results, reply.revision)),
            other => Err(unexpected(&other)),
        }
    }

    /// Creates an account, retrying. Returns it, and whether it is new; or the refusal.
    ///
    /// # Errors
    /// See [`Engine::propose`].
    pub(crate) async fn create_account(
        &self,
        account: NewAccount,
    ) -> Result<Result<(AccountRecord, bool), AccountCode>, Error> {
        self.check_space()?;
        let command = Operation::create_accounts(vec![account]).into_command();
        match propose(&self.engine, command).await?.response {
            Response::Accounts(mut results, new) => Ok(results.swap_remove(0).map(|account| (account, new))),
            other => Err(unexpected(&other)),
        }
    }

    /// As [`Self::create_accounts`], for a request with a key; `None` if the key was used before for something else,
    /// and then nothing was done.
    ///
    /// # Errors
    /// See [`Engine::propose`].
    pub(crate) async fn create_accounts_keyed(
        &self,
        accounts: Vec<NewAccount>,
        key: Key,
    ) -> Result<Option<Accounts>, Error> {
        self.check_space()?;
        let command = Operation::create_accounts_keyed(accounts, key).into_command();
        match propose(&self.engine, command).await?.response {
            Response::Accounts(results, _) => Ok(Some(results)),
            Response::KeyConflict => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// Switches indexes on or off, retrying. Returns those that are on, and the newest revision.
    ///
    /// # Errors
    /// See [`Engine::propose`].
    pub(crate) async fn set_indexes(&self, wanted: SetIndexes) -> Result<(Indexes, Revision), Error> {
        self.check_space()?;
        let reply = propose(&self.engine, Operation::SetIndexes(wanted).into_command()).await?;
        match reply.response {
            Response::Indexes(indexes) => Ok((indexes, reply.revision)),
            other => Err(unexpected(&other)),
        }
    }

    /// Creates a currency, retrying. Returns the newest revision, or the refusal.
    ///
    /// # Errors
    /// See [`Engine::propose`].
    pub(crate) async fn create_currency(
        &self,
        new: NewCurrency,
    ) -> Result<Result<Revision, AccountCode>, Error> {
        self.check_space()?;
        let reply = propose(&self.engine, Operation::CreateCurrency(new).into_command()).await?;
        match reply.response {
            Response::Currency(result) => Ok(result.map(|()| reply.revision)),
            other => Err(unexpected(&other)),
        }
    }

    /// Changes an account, without retrying. Returns it with the newest revision, or the refusal.
    ///
    /// # Errors
    /// See [`Engine::propose`].
    pub(crate) async fn update_account(
        &self,
        update: UpdateAccount,
    ) -> Result<Result<(AccountRecord, Revision), AccountCode>, Error> {
        self.check_space()?;
        let command = Operation::UpdateAccount(update).into_command();
        let reply = ledger_reply(self.engine.propose(command).await?)?;
        match reply.response {
            Response::Account(result) => Ok(result.map(|account| (*account, reply.revision))),
            other => Err(unexpected(&other)),
        }
    }

    /// A view of the state, as fresh as asked.
    ///
    /// # Errors
    /// See [`quoin_engine::ReadError`].
    pub(crate) async fn view(&self, consistency: Consistency) -> Result<ReadView, Error> {
        read(&self.engine, consistency).await
    }

    fn check_space(&self) -> Result<(), ProposeError> {
        if self.engine.no_space() { Err(ProposeError::NoSpace) } else { Ok(()) }
    }
}

/// Proposes a command until its outcome is known, as long as [`RETRY_FOR`] allows.
async fn propose(engine: &Engine, command: Command) -> Result<ledger::Reply, Error> {
    let give_up = Instant::now() + RETRY_FOR;
    let mut outcomes = Outcomes::default();
    loop {
        match engine.propose(command.clone()).await.map_err(|error| outcomes.add(error)) {
            Err(ProposeError::LeaderChanged | ProposeError::NoLeader | ProposeError::Unknown)
                if Instant::now() < give_up =>
            {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            outcome => return ledger_reply(outcome?),
        }
    }
}

/// The outcome of a command over several attempts.
#[derive(Default)]
struct Outcomes {
    unknown: bool,
}

impl Outcomes {
    /// What an attempt's error says of the command: once an attempt may have been done, none that was not
    /// makes it undone.
    fn add(&mut self, error: ProposeError) -> ProposeError {
        self.unknown |= error == ProposeError::Unknown;
        // A stopping node leaves the outcome unknown too, and is not worth another attempt.
        if self.unknown && error != ProposeError::Stopped { ProposeError::Unknown } else { error }
    }
}

fn ledger_reply(reply: Reply) -> Result<ledger::Reply, Error> {
    match reply {
        Reply::Ledger(reply) => Ok(reply),
        other => Err(Error::unexpected_reply("ledger", &other)),
    }
}

fn applied(reply: ledger::Reply) -> Result<Applied, Error> {
    let ledger::Reply { revision, stamp, response } = reply;
    match response {
        Response::Transfers(replies) => Ok(Applied { replies, revision, stamp }),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(response: &Response) -> Error {
    Error::unexpected_reply("ledger", response)
}

/// Turns waiting requests into commands, until all handles are gone.
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
        let admitted = first.admitted;
        let (command, answers) = together(first, &mut arriving, &mut left_over);
        tokio::spawn(admission::carried(admitted, run(engine.clone(), command, answers, permit)));
    }
}

type Answers = Vec<(usize, oneshot::Sender<Result<Applied, Error>>)>;

/// One command of the first request and those that wait, as far as there is room.
fn together(
    first: Waiting,
    arriving: &mut mpsc::Receiver<Waiting>,
    left_over: &mut Option<Waiting>,
) -> (Command, Answers) {
    let admitted = first.admitted;
    let mut answers = vec![(first.transfers.len(), first.answer)];
    let mut command = first.transfers;
    while let Ok(next) = arriving.try_recv() {
        let room = command.len() + next.transfers.len() <= TRANSFERS_MAX && command.bytes() <= COMMAND_BYTES;
        if !room || next.admitted != admitted {
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
                // This fails if the client has left.
                let _ = answer.send(Ok(Applied { replies, revision, stamp }));
            }
        }
        Err(error) => {
            for (_, answer) in answers {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last attempt's "no leader" was told, though the first one's entry was in the log and was applied later.
    #[test]
    fn a_command_that_may_have_been_done_stays_unknown() {
        let mut outcomes = Outcomes::default();
        assert_eq!(outcomes.add(ProposeError::NoLeader), ProposeError::NoLeader);
        assert_eq!(outcomes.add(ProposeError::Unknown), ProposeError::Unknown);
        for later in [ProposeError::NoLeader, ProposeError::Busy, ProposeError::NoSpace] {
            assert_eq!(outcomes.add(later), ProposeError::Unknown, "{later:?}");
        }
        assert_eq!(outcomes.add(ProposeError::Stopped), ProposeError::Stopped);
    }
}
