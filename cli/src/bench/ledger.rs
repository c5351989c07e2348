//! Load on the ledger: batches, single transfers and streams over gRPC, and virtual users over HTTP.
//!
//! Every run makes accounts of its own and fills them from `@world`, so runs do not depend on each other, and every
//! answer is looked into: a transfer that was refused counts as an error.

use super::load::{self, Client, Count, Shared, Work};
use super::report::{Outcome, Report};
use super::targets::{self, Connection, Random};
use super::{Load, name_of};
use crate::http::Http;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::ledger_client::LedgerClient;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use uuid::Uuid;

/// Accounts made by one call.
const ACCOUNTS_PER_CALL: u64 = 1000;
/// What each account is given: more than any run can spend.
const FUNDS: u64 = 1 << 50;
/// Batches under way on a stream.
const STREAM_DEPTH: usize = 4;
const CURRENCY: &str = "EUR";

/// A run on the ledger.
#[derive(Args, Clone, Debug)]
pub(crate) struct LedgerBench {
    /// What is done
    #[arg(value_enum, required = true)]
    cases: Vec<Case>,
    /// Accounts between which money moves
    #[arg(long, default_value_t = 10_000)]
    accounts: u64,
    /// Transfers in a batch
    #[arg(long, default_value_t = 8190, value_parser = clap::value_parser!(u32).range(1..=8190))]
    batch: u32,
    /// All transfers touch one account
    #[arg(long)]
    hot: bool,
    /// Ids in no order, instead of such that grow with time
    #[arg(long)]
    random_ids: bool,
    /// Where HTTP is served, in the order of the endpoints; an endpoints file tells it too
    #[arg(long, value_delimiter = ',')]
    http_endpoints: Vec<String>,
    #[command(flatten)]
    load: Load,
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// Batches over gRPC, each client one at a time
    Batch,
    /// Batches over a bidirectional stream, four at a time
    Stream,
    /// Single transfers over gRPC
    Single,
    /// A transfer over HTTP, answered when it is done
    HttpSync,
    /// A transfer over HTTP, answered when it is accepted
    HttpAsync,
    /// An account is made and money moved to it, over HTTP, answered when done
    HttpJourneySync,
    /// An account is made and money moved to it, over HTTP, the transfer answered when accepted
    HttpJourneyAsync,
}

/// Runs all cases, one after the other.
pub(super) async fn run(mut options: LedgerBench) -> Result<()> {
    ensure!(options.accounts >= 2, "--accounts {} must be at least 2", options.accounts);
    let endpoints = options.load.resolve().await?;
    let http = http_of(&endpoints, &options);
    let connections = targets::connect(&endpoints, options.load.connections).await?;
    let mut report = Report::new(options.load.json);
    for case in &options.cases {
        let plan =
            Arc::new(Plan::prepare(*case, &options, &connections[0]).await.context("making accounts")?);
        let run = options.load.plan();
        let counted = load::run(&run, &options.load.server_pids, |shared| match case {
            Case::Batch => batches(&connections, &plan, shared, options.load.clients),
            Case::Stream => streams(&connections, &plan, shared, options.load.clients),
            Case::Single => load::unary(&run, shared, |number| Single {
                client: client(&connections[number % connections.len()]),
                maker: plan.maker(number),
            }),
            _ => load::unary(&run, shared, |number| {
                let address = http.get(number % http.len().max(1)).map_or("", String::as_str);
                VirtualUser { http: Http::new(address), maker: plan.maker(number), body: Vec::new() }
            }),
        });
        report.add(Outcome::new(name_of(*case), options.load.setting(0), counted.await?))?;
    }
    report.end()
}

/// The HTTP addresses of the chosen servers.
fn http_of(chosen: &[String], options: &LedgerBench) -> Vec<String> {
    let known = if options.http_endpoints.is_empty() { &options.load.http } else { &options.http_endpoints };
    let both = options.load.endpoints.iter().zip(known);
    both.filter(|(endpoint, _)| chosen.contains(endpoint)).map(|(_, http)| http.clone()).collect()
}

fn client(connection: &Connection) -> LedgerClient<tonic::transport::Channel> {
    LedgerClient::new(connection.0.clone()).max_decoding_message_size(64 << 20)
}

/// What a case moves, and between whom.
struct Plan {
    case: Case,
    /// The first account's id; the others follow.
    first: u128,
    accounts: u64,
    batch: usize,
    hot: bool,
    random_ids: bool,
}

impl Plan {
    async fn prepare(case: Case, options: &LedgerBench, connection: &Connection) -> Result<Self> {
        let plan = Self {
            case,
            first: Uuid::now_v7().as_u128(),
            accounts: options.accounts,
            batch: options.batch as usize,
            hot: options.hot,
            random_ids: options.random_ids,
        };
        let mut client = client(connection);
        for from in (0..plan.accounts).step_by(ACCOUNTS_PER_CALL as usize) {
            let numbers = from..(from + ACCOUNTS_PER_CALL).min(plan.accounts);
            let account = |number| pb::Account {
                id: bytes_of(plan.account(number)),
                currency: CURRENCY.into(),
                ..pb::Account::default()
            };
            let accounts = numbers.clone().map(account).collect();
            let made = client.create_accounts(pb::CreateAccountsRequest { accounts }).await?.into_inner();
            if let Some(refused) = made.results.iter().find(|result| result.account.is_none()) {
                bail!("an account was refused: {}", refused.refused);
            }
            let world = Bytes::from_static(b"@world/EUR\0\0\0\0\0\0");
            let deposit = |number| {
                transfer(Uuid::now_v7().as_u128(), world.clone(), bytes_of(plan.account(number)), FUNDS)
            };
            let transfers = numbers.map(deposit).collect();
            let request = pb::CreateTransfersRequest { transfers, ..Default::default() };
            all_ok(&client.create_transfers(request).await?.into_inner())?;
        }
        Ok(plan)
    }

    fn account(&self, number: u64) -> u128 {
        self.first + u128::from(number)
    }

    fn maker(self: &Arc<Self>, seed: usize) -> Maker {
        Maker { plan: Arc::clone(self), random: Random::seeded(seed as u64 + 1) }
    }
}

fn bytes_of(id: u128) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

fn transfer(id: u128, debit_account: Bytes, credit_account: Bytes, amount: u64) -> pb::Transfer {
    pb::Transfer { id: bytes_of(id), debit_account, credit_account, amount, ..pb::Transfer::default() }
}

fn all_ok(answer: &pb::CreateTransfersResponse) -> Result<()> {
    match answer.results.iter().find(|result| result.code() != pb::Code::Ok) {
        Some(refused) => bail!("a transfer was refused: {:?}", refused.code()),
        None => Ok(()),
    }
}

/// Makes up transfers.
#[derive(Clone)]
struct Maker {
    plan: Arc<Plan>,
    random: Random,
}

impl Maker {
    /// Two accounts; the hot one among them, if there is one.
    fn pair(&mut self) -> (u128, u128) {
        let plan = &self.plan;
        let one = self.random.next() % plan.accounts;
        let other = if plan.hot { 0 } else { self.random.next() % plan.accounts };
        let one = if one == other { (one + 1) % plan.accounts } else { one };
        let (one, other) = (plan.account(one), plan.account(other));
        if self.random.next() & 1 == 0 { (one, other) } else { (other, one) }
    }

    fn id(&mut self) -> u128 {
        if self.plan.random_ids {
            u128::from(self.random.next()) << 64 | u128::from(self.random.next())
        } else {
            Uuid::now_v7().as_u128()
        }
    }

    fn batch(&mut self, tag: u64, count: usize) -> pb::CreateTransfersRequest {
        let one = |maker: &mut Self| {
            let (id, (debit, credit)) = (maker.id(), maker.pair());
            transfer(id, bytes_of(debit), bytes_of(credit), 1 + maker.random.next() % 100)
        };
        let transfers = (0..count).map(|_| one(self)).collect();
        pb::CreateTransfersRequest { tag, transfers, balances: false }
    }
}

#[derive(Clone)]
struct Single {
    client: LedgerClient<tonic::transport::Channel>,
    maker: Maker,
}

impl Work for Single {
    async fn operation(&mut self) -> Result<()> {
        let request = self.maker.batch(0, 1);
        all_ok(&self.client.create_transfers(request).await?.into_inner())
    }
}

/// Clients that have one batch under way each.
fn batches(
    connections: &[Connection],
    plan: &Arc<Plan>,
    shared: &Arc<Shared>,
    clients: usize,
) -> Vec<Client> {
    let start = |number: usize| {
        let (mut client, mut maker) = (client(&connections[number % connections.len()]), plan.maker(number));
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            let mut count = load::count();
            loop {
                let request = maker.batch(0, maker.plan.batch);
                let (begun, size) = (Instant::now(), request.transfers.len() as u64);
                if begun >= shared.end {
                    return Ok(count);
                }
                let answer = client.create_transfers(request).await;
                let result = answer.map_err(Into::into).and_then(|answer| all_ok(answer.get_ref()));
                shared.record_many(&mut count, begun, size, &result);
                if result.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        })
    };
    (0..clients).map(start).collect()
}

/// Streams with several batches under way each.
fn streams(
    connections: &[Connection],
    plan: &Arc<Plan>,
    shared: &Arc<Shared>,
    clients: usize,
) -> Vec<Client> {
    let start = |number: usize| {
        let (connection, maker) = (connections[number % connections.len()].clone(), plan.maker(number));
        tokio::spawn(stream(connection, maker, Arc::clone(shared)))
    };
    (0..clients).map(start).collect()
}

async fn stream(connection: Connection, mut maker: Maker, shared: Arc<Shared>) -> Result<Count> {
    let (requests, outgoing) = mpsc::channel(1);
    let mut answers = client(&connection).stream(ReceiverStream::new(outgoing)).await?.into_inner();
    let (mut count, mut begun) = (load::count(), VecDeque::new());
    while Instant::now() < shared.end {
        while begun.len() < STREAM_DEPTH {
            let request = maker.batch(begun.len() as u64, maker.plan.batch);
            begun.push_back((Instant::now(), request.transfers.len() as u64));
            requests.send(request).await.context("the stream ended")?;
        }
        let answer = answers.message().await?.context("the stream ended")?;
        let (begun, size) = begun.pop_front().context("an answer to nothing")?;
        shared.record_many(&mut count, begun, size, &all_ok(&answer));
    }
    Ok(count)
}

/// One of the virtual users: a connection that is kept alive.
#[derive(Clone)]
struct VirtualUser {
    http: Http,
    maker: Maker,
    body: Vec<u8>,
}

impl VirtualUser {
    async fn post(&mut self, path: &str, headers: &str, expected: u16) -> Result<()> {
        let answer = self.http.post(path, headers, &self.body).await?;
        if answer.status != expected {
            bail!("{path}: {} {}", answer.status, String::from_utf8_lossy(answer.body));
        }
        Ok(())
    }

    async fn move_money(&mut self, debit: u128, credit: u128, accepted_only: bool) -> Result<()> {
        let id = Uuid::from_u128(self.maker.id());
        let (debit, credit) = (Uuid::from_u128(debit), Uuid::from_u128(credit));
        let cents = 1 + self.maker.random.next() % 99;
        self.body.clear();
        write!(
            self.body,
            r#"{{"id":"{id}","debit_account":"{debit}","credit_account":"{credit}","amount":"0.{cents:02}","currency":"EUR"}}"#
        )?;
        let (headers, expected) = if accepted_only { ("prefer: respond-async\r\n", 202) } else { ("", 201) };
        self.post("/v1/transfers", headers, expected).await
    }
}

impl Work for VirtualUser {
    async fn operation(&mut self) -> Result<()> {
        let (debit, mut credit) = self.maker.pair();
        let case = self.maker.plan.case;
        let accepted_only = matches!(case, Case::HttpAsync | Case::HttpJourneyAsync);
        if matches!(case, Case::HttpJourneySync | Case::HttpJourneyAsync) {
            credit = Uuid::now_v7().as_u128();
            self.body.clear();
            write!(self.body, r#"{{"id":"{}","currency":"EUR"}}"#, Uuid::from_u128(credit))?;
            self.post("/v1/accounts", "", 201).await?;
        }
        self.move_money(debit, credit, accepted_only).await
    }
}
