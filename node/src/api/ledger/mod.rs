//! The ledger's adapters: `quoin.ledger.v1` here. `book.rs` is the way through the engine, `translate.rs` the wire's
//! words, `feed.rs` the journal as it grows, `http/` the same over HTTP/JSON.
//!
//! **Invariant.** A batch is one command in the log; a stream's batches go into it in the stream's order.

mod book;
mod feed;
mod http;
mod translate;

pub(crate) use book::Book;
pub(crate) use http::routes as http_routes;

use crate::api::commands::long_read;
use crate::api::{Life, error};
use feed::{Feed, Piece};
use quoin_core::ledger::{self, AccountCode, Operation, Response as Answer};
use quoin_core::{Revision, Stamp};
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::ledger_server;
use std::future::poll_fn;
use std::task::Poll;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Accounts made by one call at most.
const ACCOUNTS_MAX: usize = 1000;
/// Items of a page at most.
const PAGE_MAX: usize = 1000;
/// Batches of a stream under way at most; with more, the stream is not read.
const BATCHES_MAX: usize = 64;
/// Pieces of events that wait for a slow client at most.
const PIECES_MAX: usize = 4;

/// The service.
pub(crate) struct Ledger {
    book: Book,
    life: Life,
}

impl Ledger {
    pub(crate) fn new(book: Book, life: Life) -> Self {
        Self { book, life }
    }
}

fn page_size(limit: u32) -> usize {
    match limit as usize {
        0 => PAGE_MAX,
        limit => limit.min(PAGE_MAX),
    }
}

/// The status of a refused operation on an account or a currency.
fn refused(code: AccountCode) -> Status {
    let text = format!("quoin: {code}");
    match code {
        AccountCode::Unknown => Status::not_found(text),
        AccountCode::IdConflict | AccountCode::NumberTaken | AccountCode::CurrencyExists => {
            Status::already_exists(text)
        }
        AccountCode::Closed | AccountCode::NotEmpty | AccountCode::BelowLimit => {
            Status::failed_precondition(text)
        }
        AccountCode::Changed => Status::aborted(text),
        _ => Status::invalid_argument(text),
    }
}

fn unexpected(answer: &Answer) -> Status {
    error::fault(&format_args!("a ledger command was answered by {answer:?}"))
}

#[tonic::async_trait]
impl ledger_server::Ledger for Ledger {
    async fn create_currency(
        &self,
        request: Request<pb::CreateCurrencyRequest>,
    ) -> Result<Response<pb::CreateCurrencyResponse>, Status> {
        let reply = self.book.create_accounts(translate::currency(request.into_inner())).await?;
        match reply.response {
            Answer::Currency(Ok(())) => {
                Ok(Response::new(pb::CreateCurrencyResponse { revision: reply.revision.0 }))
            }
            Answer::Currency(Err(code)) => Err(refused(code)),
            other => Err(unexpected(&other)),
        }
    }

    async fn create_accounts(
        &self,
        request: Request<pb::CreateAccountsRequest>,
    ) -> Result<Response<pb::CreateAccountsResponse>, Status> {
        let accounts = request.into_inner().accounts;
        if accounts.is_empty() || accounts.len() > ACCOUNTS_MAX {
            let count = accounts.len();
            return Err(error::invalid(format_args!(
                "accounts: there are {count}; between 1 and {ACCOUNTS_MAX} are made at once"
            )));
        }
        let accounts =
            accounts.into_iter().enumerate().map(|(place, account)| translate::new_account(account, place));
        let operation = Operation::create_accounts(accounts.collect::<Result<_, _>>()?);
        let reply = self.book.create_accounts(operation).await?;
        let Answer::Accounts(results) = reply.response else { return Err(unexpected(&reply.response)) };
        let result = |result: Result<ledger::AccountRecord, AccountCode>| match result {
            Ok(account) => pb::AccountResult {
                account: Some(translate::account_record(&account)),
                refused: String::new(),
            },
            Err(code) => pb::AccountResult { account: None, refused: code.to_string() },
        };
        let results = results.into_iter().map(result).collect();
        Ok(Response::new(pb::CreateAccountsResponse { results, revision: reply.revision.0 }))
    }

    async fn update_account(
        &self,
        request: Request<pb::UpdateAccountRequest>,
    ) -> Result<Response<pb::UpdateAccountResponse>, Status> {
        let update = translate::update(request.into_inner())?;
        let reply = self.book.operation(Operation::UpdateAccount(update)).await?;
        match reply.response {
            Answer::Account(Ok(account)) => {
                let account = Some(translate::account_record(&account));
                Ok(Response::new(pb::UpdateAccountResponse { account, revision: reply.revision.0 }))
            }
            Answer::Account(Err(code)) => Err(refused(code)),
            other => Err(unexpected(&other)),
        }
    }

    async fn get_account(
        &self,
        request: Request<pb::GetAccountRequest>,
    ) -> Result<Response<pb::GetAccountResponse>, Status> {
        let pb::GetAccountRequest { account, at, local } = request.into_inner();
        let view = self.book.view(local).await?;
        let missing = || error::invalid("account: name it by its id or its number");
        let id = match account.ok_or_else(missing)? {
            pb::get_account_request::Account::Id(id) => translate::id(&id, "id")?,
            pb::get_account_request::Account::Number(number) => {
                let found = ledger::account_by_number(view.view(), &number).map_err(error::store)?;
                found.ok_or_else(|| refused(AccountCode::Unknown))?
            }
        };
        let revision = match at {
            None => Revision(u64::MAX),
            Some(pb::get_account_request::At::Revision(revision)) => Revision(revision),
            Some(pb::get_account_request::At::TimeMs(time_ms)) => {
                ledger::revision_at(view.view(), view.progress(), Stamp(time_ms)).map_err(error::store)?
            }
        };
        let account = ledger::account_at(view.view(), id, revision).map_err(error::store)?;
        let account = account.ok_or_else(|| refused(AccountCode::Unknown))?;
        let revision = view.progress().revision.0;
        Ok(Response::new(pb::GetAccountResponse { account: Some(translate::account(&account)), revision }))
    }

    async fn list_accounts(
        &self,
        request: Request<pb::ListAccountsRequest>,
    ) -> Result<Response<pb::ListAccountsResponse>, Status> {
        let pb::ListAccountsRequest { after, limit, revision, local } = request.into_inner();
        let after = if after.is_empty() { None } else { Some(translate::id(&after, "after")?) };
        let at = Revision(if revision == 0 { u64::MAX } else { revision });
        let view = self.book.view(local).await?;
        let newest = view.progress().revision.0;
        let page = long_read(move || ledger::accounts(view.view(), after, at, page_size(limit))).await?;
        let accounts = page.items.iter().map(translate::account).collect();
        Ok(Response::new(pb::ListAccountsResponse { accounts, more: page.more, revision: newest }))
    }

    async fn create_transfers(
        &self,
        request: Request<pb::CreateTransfersRequest>,
    ) -> Result<Response<pb::CreateTransfersResponse>, Status> {
        let request = request.into_inner();
        let applied = self.book.transfers(translate::transfers(&request)?).await?;
        Ok(Response::new(translate::transfers_response(request.tag, applied)))
    }

    type StreamStream = ReceiverStream<Result<pb::CreateTransfersResponse, Status>>;

    async fn stream(
        &self,
        request: Request<Streaming<pb::CreateTransfersRequest>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let (book, life) = (self.book.clone(), self.life.clone());
        let (answers, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = pipeline(book, request.into_inner(), &answers) => ended,
                () = life.ended() => Err(error::STOPPED.into()),
            };
            if let Err(status) = ended {
                // Nobody is left to be told where this fails.
                let _ = answers.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_transfer(
        &self,
        request: Request<pb::GetTransferRequest>,
    ) -> Result<Response<pb::GetTransferResponse>, Status> {
        let pb::GetTransferRequest { id, local } = request.into_inner();
        let id = translate::id(&id, "id")?;
        let view = self.book.view(local).await?;
        let found = ledger::transfer(view.view(), id).map_err(error::store)?;
        let found = found.ok_or_else(|| Status::not_found("quoin: the transfer does not exist"))?;
        Ok(Response::new(translate::found(found, view.progress().revision)))
    }

    async fn statement(
        &self,
        request: Request<pb::StatementRequest>,
    ) -> Result<Response<pb::StatementResponse>, Status> {
        let request = request.into_inner();
        let id = translate::id(&request.id, "id")?;
        let before = (request.before_revision > 0)
            .then_some((Revision(request.before_revision), request.before_position));
        let (since, limit) = (Revision(request.since_revision), page_size(request.limit));
        let view = self.book.view(request.local).await?;
        let newest = view.progress().revision.0;
        let page = long_read(move || match ledger::account(view.view(), id)? {
            Some(_) => ledger::statement(view.view(), id, before, since, limit).map(Some),
            None => Ok(None),
        });
        let page = page.await?.ok_or_else(|| refused(AccountCode::Unknown))?;
        let line = |line: &ledger::Line| pb::Line {
            transfer: Some(translate::recorded(&line.entry)),
            balances: Some(translate::balances(&line.balances)),
        };
        let lines = page.items.iter().map(line).collect();
        Ok(Response::new(pb::StatementResponse { lines, more: page.more, revision: newest }))
    }

    type EventsStream = ReceiverStream<Result<pb::EventsResponse, Status>>;

    async fn events(
        &self,
        request: Request<pb::EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        let pb::EventsRequest { from_revision, until_revision } = request.into_inner();
        let until = if until_revision == 0 { u64::MAX } else { until_revision };
        if until != u64::MAX {
            // Whoever names an end wants all up to it: it must have come here.
            let view = self.book.view(false).await?;
            let newest = view.progress().revision;
            if until > newest.0 {
                return Err(error::invalid(format_args!(
                    "until_revision: {until} is in the future, newest is {newest}"
                )));
            }
        }
        let feed = Feed::new(self.book.engine(), Revision(from_revision));
        let (pieces, receiver) = mpsc::channel(PIECES_MAX);
        let life = self.life.clone();
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = send_events(feed, Revision(until), &pieces) => ended,
                () = life.ended() => Err(error::STOPPED.into()),
                () = pieces.closed() => Ok(()),
            };
            if let Err(status) = ended {
                let _ = pieces.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

type Events = mpsc::Sender<Result<pb::EventsResponse, Status>>;

async fn send_events(mut feed: Feed, until: Revision, pieces: &Events) -> Result<(), Status> {
    let mut piece = feed.read().await?;
    loop {
        let Piece { parts, complete_to } = &piece;
        let mut events: Vec<pb::Event> = parts.iter().flat_map(translate::events).collect();
        events.retain(|event| event.revision <= until.0);
        let ended = *complete_to >= until;
        let revision = (*complete_to).min(until).0;
        if (!events.is_empty() || ended)
            && pieces.send(Ok(pb::EventsResponse { events, revision })).await.is_err()
        {
            return Ok(());
        }
        if ended {
            return Ok(());
        }
        piece = feed.next().await?;
    }
}

type Answers = mpsc::Sender<Result<pb::CreateTransfersResponse, Status>>;

/// Puts the batches of a stream into the log in their order, [`BATCHES_MAX`] under way, and answers in that order. Ends
/// with the first batch that has no outcome: what comes after it was perhaps done, and is sent again with it.
async fn pipeline(
    book: Book,
    mut requests: Streaming<pb::CreateTransfersRequest>,
    answers: &Answers,
) -> Result<(), Status> {
    let (started, mut under_way) = mpsc::channel(BATCHES_MAX);
    let start = async {
        while let Some(request) = requests.message().await? {
            let batch = translate::transfers(&request)?;
            let work = begin(book.clone().transfers_at_once(batch)).await;
            if started.send((request.tag, work)).await.is_err() {
                break;
            }
        }
        drop(started);
        Ok(())
    };
    let answer = async {
        while let Some((tag, work)) = under_way.recv().await {
            let applied = work.await.map_err(|error| error::fault(&error))??;
            if answers.send(Ok(translate::transfers_response(tag, applied))).await.is_err() {
                break;
            }
        }
        Ok::<(), Status>(())
    };
    tokio::try_join!(start, answer).map(|_: ((), ())| ())
}

/// Runs `work` up to its first wait, so that what is begun first is first in the log, and then beside others.
async fn begin<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let mut work = Box::pin(work);
    match poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
        Poll::Ready(done) => tokio::spawn(std::future::ready(done)),
        Poll::Pending => tokio::spawn(work),
    }
}
