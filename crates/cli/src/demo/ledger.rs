//! The ledger's part of the demo: accounts, transfers in batches and one by one, answered when done and when
//! accepted, and the proof that no cent was lost.

use super::row::Row;
use crate::ledger::prove;
use anyhow::{Context, Result, ensure};
use quoin_load::client::Channel;
use quoin_load::client::ledger::{CURRENCY, create_accounts, ledger, transfer, transfer_all};
use quoin_load::client::{Http, dial, find_leader};
use quoin_load::cluster::Endpoints;
use quoin_proto::quoin::ledger::v1::ledger_client::LedgerClient;
use std::time::Instant;
use tokio::task::JoinSet;
use uuid::Uuid;

const ACCOUNTS: u64 = 1_000;
const TRANSFERS: u64 = 100_000;
const BATCH: u64 = 8_190;
/// Half of them answered when done, half when accepted.
const HTTP_TRANSFERS: u64 = 2_000;
const HTTP_CLIENTS: u64 = 50;

type Client = LedgerClient<Channel>;

/// Does the job; returns a row for each step.
pub(super) async fn job(endpoints: &Endpoints) -> Result<Vec<Row>> {
    let (leader, channel) = find_leader(&endpoints.grpc).await;
    let follower = (leader + 1) % endpoints.grpc.len();
    let mut client = ledger(channel);
    let first = Uuid::now_v7().as_u128();
    let mut rows = vec![accounts(&mut client, first).await?, batches(&mut client, first).await?];
    for accepted_only in [false, true] {
        rows.push(over_http(&endpoints.http[follower], first, accepted_only).await?);
    }
    let mut client = ledger(dial(&endpoints.grpc[follower], None).await?);
    let begun = Instant::now();
    let proof = prove(&mut client).await?;
    ensure!(proof.problems.is_empty(), "the ledger is wrong: {}", proof.problems.join("; "));
    // Each account has had one deposit.
    let expected = ACCOUNTS + TRANSFERS + HTTP_TRANSFERS;
    ensure!(proof.transfers == expected, "{} transfers are recorded, not {expected}", proof.transfers);
    rows.push(Row::new(
        "all transfers replayed, at a follower",
        expected,
        begun,
        "sums are zero, all balances equal",
    ));
    Ok(rows)
}

fn account(first: u128, number: u64) -> u128 {
    first + u128::from(number % ACCOUNTS)
}

async fn accounts(client: &mut Client, first: u128) -> Result<Row> {
    let begun = Instant::now();
    create_accounts(client, first, ACCOUNTS, 1_000_000).await?;
    Ok(Row::new("accounts created and funded", ACCOUNTS, begun, ""))
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
            transfer(Uuid::now_v7().as_u128(), debit, credit, 1 + number % 50)
        };
        let (mut client, transfers) = (client.clone(), numbers.map(one).collect());
        batches.spawn(async move { transfer_all(&mut client, transfers).await });
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
                    "currency": CURRENCY,
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
