//! `quoin.ledger.v1`: accounts and currencies (`accounts.rs`), transfers (`transfers.rs`), the feed of all of
//! them (`events.rs`). `translate.rs` has the wire's messages, `refusal.rs` its statuses; [`crate::ledger`]
//! is the way through the engine.
//!
//! A batch is one command in the log; a stream's batches go into the log in the order of the stream.

mod accounts;
mod events;
mod indexes;
mod lookup;
mod query;
mod refusal;
mod transfers;
mod translate;

use super::outbound::AnswerStream;
use crate::ledger::Book;
use crate::life::Life;
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::ledger_server;
use tonic::{Request, Response, Status, Streaming};

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

#[tonic::async_trait]
impl ledger_server::Ledger for Ledger {
    async fn create_currency(
        &self,
        request: Request<pb::CreateCurrencyRequest>,
    ) -> Result<Response<pb::CreateCurrencyResponse>, Status> {
        Ok(Response::new(accounts::create_currency(&self.book, request.into_inner()).await?))
    }

    async fn create_accounts(
        &self,
        request: Request<pb::CreateAccountsRequest>,
    ) -> Result<Response<pb::CreateAccountsResponse>, Status> {
        Ok(Response::new(accounts::create(&self.book, request.into_inner()).await?))
    }

    async fn update_account(
        &self,
        request: Request<pb::UpdateAccountRequest>,
    ) -> Result<Response<pb::UpdateAccountResponse>, Status> {
        Ok(Response::new(accounts::update(&self.book, request.into_inner()).await?))
    }

    async fn get_account(
        &self,
        request: Request<pb::GetAccountRequest>,
    ) -> Result<Response<pb::GetAccountResponse>, Status> {
        Ok(Response::new(accounts::get(&self.book, request.into_inner()).await?))
    }

    async fn list_accounts(
        &self,
        request: Request<pb::ListAccountsRequest>,
    ) -> Result<Response<pb::ListAccountsResponse>, Status> {
        Ok(Response::new(accounts::list(&self.book, request.into_inner()).await?))
    }

    async fn create_transfers(
        &self,
        request: Request<pb::CreateTransfersRequest>,
    ) -> Result<Response<pb::CreateTransfersResponse>, Status> {
        Ok(Response::new(transfers::create(&self.book, &request.into_inner()).await?))
    }

    type StreamStream = AnswerStream<pb::CreateTransfersResponse>;

    async fn stream(
        &self,
        request: Request<Streaming<pb::CreateTransfersRequest>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        Ok(Response::new(transfers::stream(self.book.clone(), &self.life, request.into_inner())))
    }

    async fn get_transfer(
        &self,
        request: Request<pb::GetTransferRequest>,
    ) -> Result<Response<pb::GetTransferResponse>, Status> {
        Ok(Response::new(transfers::get(&self.book, request.into_inner()).await?))
    }

    async fn query_transfers(
        &self,
        request: Request<pb::QueryTransfersRequest>,
    ) -> Result<Response<pb::QueryTransfersResponse>, Status> {
        Ok(Response::new(query::transfers(&self.book, request.into_inner()).await?))
    }

    async fn query_accounts(
        &self,
        request: Request<pb::QueryAccountsRequest>,
    ) -> Result<Response<pb::QueryAccountsResponse>, Status> {
        Ok(Response::new(query::accounts(&self.book, request.into_inner()).await?))
    }

    async fn sum_balances(
        &self,
        request: Request<pb::SumBalancesRequest>,
    ) -> Result<Response<pb::SumBalancesResponse>, Status> {
        Ok(Response::new(query::sums(&self.book, request.into_inner()).await?))
    }

    async fn get_indexes(
        &self,
        request: Request<pb::GetIndexesRequest>,
    ) -> Result<Response<pb::IndexesResponse>, Status> {
        Ok(Response::new(indexes::get(&self.book, request.into_inner()).await?))
    }

    async fn set_indexes(
        &self,
        request: Request<pb::SetIndexesRequest>,
    ) -> Result<Response<pb::IndexesResponse>, Status> {
        Ok(Response::new(indexes::set(&self.book, request.into_inner()).await?))
    }

    async fn index_rows(
        &self,
        request: Request<pb::IndexRowsRequest>,
    ) -> Result<Response<pb::IndexRowsResponse>, Status> {
        Ok(Response::new(indexes::rows(&self.book, request.into_inner()).await?))
    }

    async fn lookup_transfers(
        &self,
        request: Request<pb::LookupTransfersRequest>,
    ) -> Result<Response<pb::LookupTransfersResponse>, Status> {
        Ok(Response::new(lookup::transfers(&self.book, request.into_inner()).await?))
    }

    async fn lookup_accounts(
        &self,
        request: Request<pb::LookupAccountsRequest>,
    ) -> Result<Response<pb::LookupAccountsResponse>, Status> {
        Ok(Response::new(lookup::accounts(&self.book, request.into_inner()).await?))
    }

    async fn statement(
        &self,
        request: Request<pb::StatementRequest>,
    ) -> Result<Response<pb::StatementResponse>, Status> {
        Ok(Response::new(accounts::statement(&self.book, request.into_inner()).await?))
    }

    type EventsStream = AnswerStream<pb::EventsResponse>;

    async fn events(
        &self,
        request: Request<pb::EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        Ok(Response::new(events::stream(&self.book, &self.life, request.into_inner()).await?))
    }
}
