//! The ledger: synchronous and asynchronous transfers while leaders are killed, streams, events, overload.

use crate::harness::{Clients, Cluster, PATIENCE, start, wait};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::ledger_client::LedgerClient;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tonic::transport::Channel;
use uuid::Uuid;

const ACCOUNTS: u64 = 12;
const CLIENTS: u64 = 6;
const FUNDS: u64 = 2_000;

/// Sends one request on a connection of its own, and returns the whole answer.
pub(crate) async fn ask(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Result<String> {
    let work = async {
        let mut stream = TcpStream::connect(address).await?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    tokio::time::timeout(Duration::from_secs(8), work).await?
}

pub(crate) fn status_of(answer: &str) -> Result<u16> {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")
}

/// Status and body.
async fn post(address: &str, path: &str, headers: &str, body: &str) -> Result<(u16, String)> {
    let answer = ask(address, "POST", path, headers, body).await?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    Ok((status_of(&answer)?, body))
}

fn transfer_json(id: u128, from: u128, to: u128, amount: &str) -> String {
    let [id, from, to] = [id, from, to].map(Uuid::from_u128);
    format!(
        r#"{{"id":"{id}","debit_account":"{from}","credit_account":"{to}","amount":"{amount}","currency":"EUR"}}"#
    )
}

fn account(number: u64) -> u128 {
    0xacc0_0000_0000_0000_0000 + u128::from(number)
}

fn bytes_of(id: u128) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

async fn ledger(cluster: &Cluster, replica: usize) -> Result<LedgerClient<Channel>> {
    Ok(LedgerClient::new(cluster.channel(replica).await?))
}

async fn prepare(cluster: &Cluster) -> Result<()> {
    let mut client = ledger(cluster, 0).await?;
    let new =
        |number| pb::Account { id: bytes_of(account(number)), currency: "EUR".into(), ..Default::default() };
    let accounts = (0..ACCOUNTS).map(new).collect();
    client.create_accounts(pb::CreateAccountsRequest { accounts }).await?;
    let deposit = |number| pb::Transfer {
        id: bytes_of(1 + u128::from(number)),
        debit_account: Bytes::from_static(b"@world/EUR\0\0\0\0\0\0"),
        credit_account: bytes_of(account(number)),
        amount: FUNDS,
        ..Default::default()
    };
    let transfers = (0..ACCOUNTS).map(deposit).collect();
    let answer =
        client.create_transfers(pb::CreateTransfersRequest { transfers, ..Default::default() }).await?;
    ensure!(
        answer.get_ref().results.iter().all(|result| result.code() == pb::Code::Ok),
        "a deposit was refused"
    );
    Ok(())
}

/// A client that sends each transfer again until an answer tells its outcome. Returns the answers' statuses
/// by id.
async fn client(
    number: u64,
    addresses: Vec<String>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
) -> Result<BTreeMap<u128, u16>> {
    let (mut statuses, mut turn) = (BTreeMap::new(), number);
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = (1_000 + u128::from(number)) << 64 | u128::from(round + 1);
        let (from, to) = (account((number + round) % ACCOUNTS), account((number + 5 * round + 1) % ACCOUNTS));
        let to = if to == from { account((number + round + 3) % ACCOUNTS) } else { to };
        let body = transfer_json(id, from, to, &format!("{}.{:02}", round % 9, 1 + round % 90));
        let headers = if round % 2 == 0 { "" } else { "prefer: respond-async\r\n" };
        let status = loop {
            let address = &addresses[turn as usize % addresses.len()];
            match post(address, "/v1/transfers", headers, &body).await {
                Ok((status @ (200 | 201 | 202 | 422), _)) => break status,
                // No answer, or one that says to retry: the same id again, at the next replica.
                Ok((429 | 503, _)) | Err(_) => turn += 1,
                Ok((status, body)) => bail!("{status} {body}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        statuses.insert(id, status);
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(statuses)
}

/// What `quoin ledger verify` says about one replica.
fn verify(cluster: &Cluster, replica: usize) -> Result<String> {
    let endpoint = cluster.client_address(replica);
    let output = cluster.quoin(&["ledger", "verify", "--endpoints", &endpoint]).output()?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "replica {replica}: {text} {}", String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_transfer_is_done_once_and_every_202_has_a_result_while_leaders_die() -> Result<()> {
    let mut cluster = start(&[])?;
    prepare(&cluster).await?;
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let addresses: Vec<String> = (0..3).map(|replica| cluster.http_address(replica)).collect();
    let spawn =
        |number| tokio::spawn(client(number, addresses.clone(), Arc::clone(&stop), Arc::clone(&answered)));
    let clients: Vec<_> = (0..CLIENTS).map(spawn).collect();
    let more = |count: u64| {
        let target = answered.load(Ordering::Relaxed) + count;
        let answered = Arc::clone(&answered);
        async move {
            wait("transfers to be answered", || async { answered.load(Ordering::Relaxed) >= target }).await
        }
    };
    more(100).await?;
    for _ in 0..2 {
        let leader = cluster.leader()?;
        cluster.kill(leader)?;
        more(100).await?;
        cluster.restart(leader)?;
    }
    more(50).await?;
    stop.store(true, Ordering::Relaxed);
    let mut statuses = BTreeMap::new();
    for client in clients {
        statuses.extend(client.await??);
    }
    for wanted in [201, 202] {
        ensure!(statuses.values().any(|status| *status == wanted), "no answer {wanted}");
    }

    let mut client = ledger(&cluster, 1).await?;
    for (id, status) in &statuses {
        let found =
            client.get_transfer(pb::GetTransferRequest { id: bytes_of(*id), consistency: None }).await;
        let found =
            found.with_context(|| format!("{id:x} was answered {status} and is not there"))?.into_inner();
        let done = found.transfer.context("no transfer")?.code() == pb::Code::Ok;
        ensure!(*status == 202 || done == (*status != 422), "{id:x} was answered {status}, and done: {done}");
    }
    let expected = format!("{} transfers replayed", statuses.len() as u64 + ACCOUNTS);
    for replica in 0..3 {
        let proof = verify(&cluster, replica)?;
        ensure!(proof.contains("proven") && proof.contains(&expected), "{expected}, but: {proof}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipelined_stream_and_the_events_at_a_follower_agree() -> Result<()> {
    let cluster = start(&[])?;
    prepare(&cluster).await?;
    let leader = cluster.leader()?;
    let follower = (leader + 1) % 3;
    let mut watching = ledger(&cluster, follower).await?;
    let mut events = watching.events(pb::EventsRequest::default()).await?.into_inner();
    let batch = |tag: u64| {
        let one = |place: u64| pb::Transfer {
            id: bytes_of(u128::from(tag) << 32 | u128::from(place + 1)),
            debit_account: bytes_of(account(place % ACCOUNTS)),
            credit_account: bytes_of(account((place + 1) % ACCOUNTS)),
            amount: 1,
            ..Default::default()
        };
        pb::CreateTransfersRequest {
            tag,
            transfers: (0..500).map(one).collect(),
            balances: tag == 20,
            dry_run: false,
        }
    };
    let requests = tokio_stream::iter((1..=20).map(batch));
    let mut answers = ledger(&cluster, follower).await?.stream(requests).await?.into_inner();
    let (mut tag, mut last) = (0, 0);
    while let Some(answer) = answers.message().await? {
        tag += 1;
        ensure!(answer.tag == tag && answer.revision > last, "answers come in the order of the stream");
        last = answer.revision;
        ensure!(
            answer.results.len() == 500 && answer.results.iter().all(|result| result.code() == pb::Code::Ok)
        );
        ensure!(answer.results.iter().all(|result| result.credit_balances.is_some() == (tag == 20)));
    }
    ensure!(tag == 20, "{tag} answers");
    let (mut transfers, mut place) = (0, (0, 0));
    while transfers < 20 * 500 + ACCOUNTS {
        let message = events.message().await?.context("the events ended")?;
        for event in message.events {
            if let Some(pb::event::Event::Transfer(recorded)) = event.event {
                let here = (recorded.revision, recorded.position);
                ensure!(place == (0, 0) || here > place, "{here:?} after {place:?}");
                place = here;
                transfers += 1;
            }
        }
    }
    ensure!(place == (last, 499), "the last event is the last transfer, not {place:?}");
    Ok(())
}

/// The ids of the first `count` server-sent events from `replica`.
async fn event_ids(
    cluster: &Cluster,
    replica: usize,
    query: &str,
    seen: &str,
    count: usize,
) -> Result<Vec<String>> {
    let mut stream = BufReader::new(TcpStream::connect(cluster.http_address(replica)).await?);
    let request = format!("GET /v1/events{query} HTTP/1.1\r\nhost: x\r\n{seen}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let (mut ids, mut line) = (Vec::new(), String::new());
    while ids.len() < count {
        line.clear();
        let read = tokio::time::timeout(PATIENCE, stream.read_line(&mut line)).await;
        ensure!(read.context("no more events arrive")?? > 0, "the events ended");
        ids.extend(line.strip_prefix("id: ").map(|id| id.trim_end().to_owned()));
    }
    Ok(ids)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_continue_at_another_replica_after_the_last_one_seen() -> Result<()> {
    let mut cluster = start(&[])?;
    prepare(&cluster).await?;
    let count = 2 * ACCOUNTS as usize;
    let all = event_ids(&cluster, 0, "?from_revision=0", "", count).await?;
    // The fifth event is in the middle of a batch, whose events share a revision.
    let seen = event_ids(&cluster, 1, "?from_revision=0", "", 5).await?;
    cluster.kill(1)?;
    let header = format!("last-event-id: {}\r\n", seen[4]);
    let rest = event_ids(&cluster, 2, "", &header, count - 5).await?;
    ensure!([seen, rest].concat() == all, "not what the first replica showed: {all:?}");
    let distinct: BTreeSet<&String> = all.iter().collect();
    ensure!(distinct.len() == count, "an id came twice: {all:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overload_is_refused_with_a_time_to_retry_and_nothing_was_done() -> Result<()> {
    let cluster = start(&["--limits-commands-in-flight-max=1"])?;
    wait("the accounts", || prepare(&cluster)).await?;
    let address = cluster.http_address(cluster.leader()?);
    let mut refused = BTreeSet::new();
    for round in 1.. {
        let ids = (0..32).map(|place| (round << 32) + place + 0x1000);
        let posted: Vec<_> = ids
            .map(|id| {
                let (address, body) = (address.clone(), transfer_json(id, account(1), account(2), "0.01"));
                let post = async move { ask(&address, "POST", "/v1/transfers", "", &body).await };
                (id, tokio::spawn(post))
            })
            .collect();
        for (id, posted) in posted {
            let answer = posted.await??;
            match status_of(&answer)? {
                201 => {}
                429 => {
                    ensure!(answer.to_lowercase().contains("\r\nretry-after: 1\r\n"), "{answer}");
                    ensure!(answer.contains("too_many_requests"), "{answer}");
                    refused.insert(id);
                }
                _ => bail!("{answer}"),
            }
        }
        if !refused.is_empty() {
            break;
        }
    }
    for id in refused {
        let path = format!("/v1/transfers/{}", Uuid::from_u128(id));
        let answer = ask(&address, "GET", &path, "", "").await?;
        ensure!(status_of(&answer)? == 404, "refused, and yet there: {answer}");
    }
    Ok(())
}
