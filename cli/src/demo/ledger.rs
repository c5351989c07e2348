//! The demo's ledger: accounts, transfers in batches and one by one, answered when done and when accepted, and the
//! proof that not a cent was lost.

use super::{Row, connect, find_leader};
use crate::http::Http;
use crate::ledger::prove;
use crate::playground::Running;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::ledger_client::LedgerClient;
use std::time::Instant;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use uuid::Uuid;

const ACCOUNTS: u64 = 1_000;
const TRANSFERS: u64 = 100_000;
const BATCH: u64 = 8_190;
/// Half of them answered when done, half when accepted.
const HTTP_TRANSFERS: u64 = 2_000;
const HTTP_CLIENTS: u64 = 50;
const ANSWER_BYTES_MAX: usize = 64 << 20;

type Client = LedgerClient<Channel>;

/// Does the job; a line for each step.
pub(super) async fn job(running: &Running) -> Result<Vec<Row>> {
    let (leader, channel) = find_leader(&running.endpoints.grpc).await?;
    let follower = (leader + 1) % running.endpoints.grpc.len();
    let mut client = LedgerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    let first = Uuid::now_v7().as_u128();
    let mut rows = vec![accounts(&mut client, first).await?, batches(&mut client, first).await?];
    for accepted_only in [false, true] {
        rows.push(over_http(&running.endpoints.http[follower], first, accepted_only).await?);
    }
    let mut client = LedgerClient::new(connect(&running.endpoints.grpc[follower]).await?);
    let begun = Instant::now();
    let proof = prove(&mut client).await?;
    ensure!(proof.problems.is_empty(), "the ledger is wrong: {}", proof.problems.join("; "));
    // One deposit per account besides.
    let expected = ACCOUNTS + TRANSFERS + HTTP_TRANSFERS;
    ensure!(proof.transfers == expected, "{} transfers are recorded, not {expected}", proof.transfers);
    rows.push(Row::new(
        "all transfers replayed, at a follower",
        expected,
        begun,
        "sums are zero, every balance equal",
    ));
    Ok(rows)
}

fn account(first: u128, number: u64) -> u128 {
    first + u128::from(number % ACCOUNTS)
}

fn bytes_of(id: u128) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

fn transfer(debit_account: Bytes, credit_account: Bytes, amount: u64) -> pb::Transfer {
    let id = bytes_of(Uuid::now_v7().as_u128());
    pb::Transfer { id, debit_account, credit_account, amount, ..pb::Transfer::default() }
}

async fn accounts(client: &mut Client, first: u128) -> Result<Row> {
    let begun = Instant::now();
    let new = |number| pb::Account {
        id: bytes_of(account(first, number)),
        currency: "EUR".into(),
        ..pb::Account::default()
    };
    let accounts = (0..ACCOUNTS).map(new).collect();
    let made = client.create_accounts(pb::CreateAccountsRequest { accounts }).await?.into_inner();
    ensure!(made.results.iter().all(|result| result.account.is_some()), "an account was refused");
    let world = Bytes::from_static(b"@world/EUR\0\0\0\0\0\0");
    let deposit = |number| transfer(world.clone(), bytes_of(account(first, number)), 1_000_000);
    send(client, (0..ACCOUNTS).map(deposit).collect()).await?;
    Ok(Row::new("accounts made and filled", ACCOUNTS, begun, ""))
}

async fn send(client: &mut Client, transfers: Vec<pb::Transfer>) -> Result<()> {
    let request = pb::CreateTransfersRequest { transfers, ..Default::default() };
    let answer = client.create_transfers(request).await?.into_inner();
    ensure!(answer.results.iter().all(|result| result.code() == pb::Code::Ok), "a transfer was refused");
    Ok(())
}

async fn batches(client: &mut Client, first: u128) -> Result<Row> {
    let begun = Instant::now();
    let mut batches = JoinSet::new();
    for from in (0..TRANSFERS).step_by(BATCH as usize) {
        let numbers = from..(from + BATCH).min(TRANSFERS);
        let pair = |number: u64| (account(first, number), account(first, number * 7 + 1 + number % 3));
        let one = |number: u64| {
            let (debit, credit) = pair(number);
            let credit = if credit == debit { account(first, number + 1) } else { credit };
            transfer(bytes_of(debit), bytes_of(credit), 1 + number % 50)
        };
        let (mut client, transfers) = (client.clone(), numbers.map(one).collect());
        batches.spawn(async move { send(&mut client, transfers).await });
    }
    while let Some(done) = batches.join_next().await {
        done??;
    }
    Ok(Row::new("transfers in batches of 8,190, gRPC", TRANSFERS, begun, "each on the disks of two replicas"))
}

/// Transfers one by one over HTTP, through a follower.
async fn over_http(address: &str, first: u128, accepted_only: bool) -> Result<Row> {
    let begun = Instant::now();
    let count = HTTP_TRANSFERS / 2;
    let mut clients = JoinSet::new();
    for client in 0..HTTP_CLIENTS {
        let mut http = Http::new(address);
        clients.spawn(async move {
            for number in (client..count).step_by(HTTP_CLIENTS as usize) {
                let (debit, credit) = (account(first, number), account(first, number + 1 + client));
                let body = serde_json::json!({
                    "id": Uuid::now_v7().to_string(),
                    "debit_account": Uuid::from_u128(debit).to_string(),
                    "credit_account": Uuid::from_u128(credit).to_string(),
                    "amount": "0.25",
                    "currency": "EUR",
                });
                let (headers, expected) =
                    if accepted_only { ("prefer: respond-async\r\n", 202) } else { ("", 201) };
                let body = serde_json::to_vec(&body)?;
                let answer = http.post("/v1/transfers", headers, &body).await.context("asking over HTTP")?;
                let text = String::from_utf8_lossy(answer.body);
                ensure!(answer.status == expected, "{} {text}", answer.status);
            }
            Ok::<(), anyhow::Error>(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    let what = if accepted_only {
        "transfers over HTTP, 202 when durable"
    } else {
        "transfers over HTTP, 201 when done"
    };
    Ok(Row::new(what, count, begun, "50 clients, through a follower"))
}
