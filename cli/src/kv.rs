//! `quoin kv`: keys from the shell. Writes that are refused exit with 2, so that scripts can tell them from errors.

use crate::connection::Connection;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::{Args, Subcommand};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use quoin_proto::etcdserverpb::watch_client::WatchClient;
use quoin_proto::mvccpb::KeyValue;
use quoin_proto::quoin::kv::v1 as quoin;
use quoin_proto::quoin::kv::v1::kv_client::KvClient as QuoinKvClient;
use quoin_proto::v3lockpb::lock_client::LockClient;
use quoin_proto::v3lockpb::{LockRequest, UnlockRequest};
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// A write was refused: its condition did not hold.
const REFUSED: u8 = 2;

/// What can be done with keys.
#[derive(Subcommand)]
pub(crate) enum Kv {
    /// Read a key, or all keys with a prefix
    Get {
        key: String,
        /// All keys that begin with KEY
        #[arg(long)]
        prefix: bool,
        /// As of this revision
        #[arg(long, default_value_t = 0)]
        revision: i64,
        /// At most this many
        #[arg(long, default_value_t = 0)]
        limit: i64,
        /// This replica's own state, without asking the leader
        #[arg(long)]
        local: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// Write a key
    Put {
        key: String,
        value: String,
        /// Let it expire after this long, e.g. 500ms, 10s, 2h
        #[arg(long, value_parser = parse_duration)]
        ttl: Option<Duration>,
        /// Only if it does not exist
        #[arg(long)]
        if_absent: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// Delete a key, or all keys with a prefix
    Del {
        key: String,
        /// All keys that begin with KEY
        #[arg(long, conflicts_with = "if_version")]
        prefix: bool,
        /// Only if it has this version
        #[arg(long)]
        if_version: Option<i64>,
        #[command(flatten)]
        connection: Connection,
    },
    /// Write a key only if it still has the given value
    Cas(Cas),
    /// Compare, then write: conditions KEY=VALUE, writes KEY=VALUE
    Txn {
        /// A key that must have this value
        #[arg(long = "if", value_name = "KEY=VALUE")]
        conditions: Vec<String>,
        /// What is written if all hold
        #[arg(long = "then", value_name = "KEY=VALUE")]
        then: Vec<String>,
        /// What is written if one does not
        #[arg(long = "else", value_name = "KEY=VALUE")]
        otherwise: Vec<String>,
        #[command(flatten)]
        connection: Connection,
    },
    /// Show changes of a key, or of all keys with a prefix, until Ctrl-C
    Watch {
        key: String,
        /// All keys that begin with KEY
        #[arg(long)]
        prefix: bool,
        /// From this revision on
        #[arg(long, default_value_t = 0)]
        from: i64,
        /// End after this many changes
        #[arg(long)]
        count: Option<usize>,
        #[command(flatten)]
        connection: Connection,
    },
    /// Hold a lock while a command runs; it gets the fencing token as QUOIN_FENCING_TOKEN
    Lock {
        name: String,
        /// Seconds after which the lock is free should this process die
        #[arg(long, default_value_t = 10)]
        ttl: i64,
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<String>,
        #[command(flatten)]
        connection: Connection,
    },
}

/// A compare-and-set.
#[derive(Args)]
pub(crate) struct Cas {
    key: String,
    /// The value that it must have
    expected: String,
    /// The value that it gets
    value: String,
    #[command(flatten)]
    connection: Connection,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("{text:?} must end with ms, s, m or h")),
    };
    Ok(Duration::from_millis(number.saturating_mul(ms)))
}

/// Does it.
pub(crate) async fn run(kv: Kv) -> Result<ExitCode> {
    match kv {
        Kv::Get { key, prefix, revision, limit, local, connection } => {
            let range_end = range_end(&key, prefix);
            let request = etcd::RangeRequest {
                key: key.into(),
                range_end,
                revision,
                limit,
                serializable: local,
                ..Default::default()
            };
            let reply = KvClient::new(connection.any().await?).range(request).await?.into_inner();
            show(&connection, &reply.kvs)?;
            Ok(if reply.kvs.is_empty() && !prefix { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
        }
        Kv::Put { key, value, ttl, if_absent, connection } => {
            put(&connection, key, value, ttl, if_absent).await
        }
        Kv::Del { key, prefix: true, connection, .. } => {
            let range_end = range_end(&key, true);
            let request = etcd::DeleteRangeRequest { key: key.into(), range_end, ..Default::default() };
            let deleted =
                KvClient::new(connection.any().await?).delete_range(request).await?.into_inner().deleted;
            connection.say(&json!({ "deleted": deleted }), &format!("deleted {deleted} keys"))
        }
        Kv::Del { key, if_version, connection, .. } => delete(&connection, key, if_version).await,
        Kv::Cas(cas) => {
            let conditions = [(cas.key.clone(), cas.expected)];
            txn(&cas.connection, &conditions, &[(cas.key, cas.value)], &[]).await
        }
        Kv::Txn { conditions, then, otherwise, connection } => {
            ensure!(!then.is_empty() || !otherwise.is_empty(), "nothing to write: give --then KEY=VALUE");
            txn(&connection, &pairs(&conditions)?, &pairs(&then)?, &pairs(&otherwise)?).await
        }
        Kv::Watch { key, prefix, from, count, connection } => {
            watch(&connection, key, prefix, from, count).await
        }
        Kv::Lock { name, ttl, command, connection } => lock(&connection, name, ttl, &command).await,
    }
}

/// etcd's end of a prefix's range: the key after the last one that begins with it.
fn range_end(key: &str, prefix: bool) -> Bytes {
    if !prefix {
        return Bytes::new();
    }
    let mut end = key.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(b"\0")
}

fn pairs(texts: &[String]) -> Result<Vec<(String, String)>> {
    let pair = |text: &String| {
        let (key, value) = text.split_once('=').with_context(|| format!("{text:?} is no KEY=VALUE"))?;
        Ok((key.to_string(), value.to_string()))
    };
    texts.iter().map(pair).collect()
}

fn refused(connection: &Connection, why: &str) -> Result<ExitCode> {
    connection.say(&json!({ "outcome": "refused", "why": why }), &format!("refused: {why}"))?;
    Ok(ExitCode::from(REFUSED))
}

fn as_json(kv: &KeyValue) -> Value {
    json!({
        "key": output::text(&kv.key), "value": output::text(&kv.value), "version": kv.version,
        "create_revision": kv.create_revision, "mod_revision": kv.mod_revision, "lease": kv.lease,
    })
}

fn show(connection: &Connection, kvs: &[KeyValue]) -> Result<()> {
    if connection.json {
        return output::json(&kvs.iter().map(as_json).collect());
    }
    if let [kv] = kvs {
        writeln!(std::io::stdout(), "{}", output::text(&kv.value))?;
        return Ok(());
    }
    let row = |kv: &KeyValue| {
        vec![
            output::text(&kv.key),
            output::text(&kv.value),
            kv.version.to_string(),
            kv.mod_revision.to_string(),
        ]
    };
    if kvs.is_empty() {
        writeln!(std::io::stderr(), "no such key")?;
        return Ok(());
    }
    output::table(&["key", "value", "version", "revision"], &kvs.iter().map(row).collect::<Vec<_>>())
}

async fn put(
    connection: &Connection,
    key: String,
    value: String,
    ttl: Option<Duration>,
    if_absent: bool,
) -> Result<ExitCode> {
    let absent = quoin::Condition { what: Some(quoin::condition::What::Absent(true)) };
    let request = quoin::PutRequest {
        key: key.into(),
        value: value.into(),
        ttl: ttl.map(|ttl| quoin::put_request::Ttl::TtlMs(ttl.as_millis() as u64)),
        conditions: if_absent.then_some(absent).into_iter().collect(),
        ..Default::default()
    };
    let reply = QuoinKvClient::new(connection.any().await?).put(request).await?.into_inner();
    match reply.outcome() {
        quoin::Outcome::Done => {
            let revision = reply.mod_revision;
            connection.say(
                &json!({ "outcome": "done", "revision": revision }),
                &format!("written at revision {revision}"),
            )
        }
        _ => refused(connection, "the key exists"),
    }
}

async fn delete(connection: &Connection, key: String, if_version: Option<i64>) -> Result<ExitCode> {
    let condition = |version| quoin::Condition { what: Some(quoin::condition::What::Version(version)) };
    let conditions = if_version.map(condition).into_iter().collect();
    let request = quoin::DeleteRequest { key: key.into(), conditions, return_deleted: true };
    let reply = QuoinKvClient::new(connection.any().await?).delete(request).await?.into_inner();
    match reply.outcome() {
        quoin::Outcome::Done if reply.existed => {
            let value = reply.deleted.map(|record| output::text(&record.value)).unwrap_or_default();
            connection.say(&json!({ "outcome": "done", "deleted": value }), &format!("deleted {value}"))
        }
        quoin::Outcome::Done => refused(connection, "there is no such key"),
        _ => {
            let version = reply.current.map_or(0, |record| record.version);
            refused(connection, &format!("the key has version {version}"))
        }
    }
}

async fn txn(
    connection: &Connection,
    conditions: &[(String, String)],
    then: &[(String, String)],
    otherwise: &[(String, String)],
) -> Result<ExitCode> {
    let compare = |(key, value): &(String, String)| etcd::Compare {
        result: etcd::compare::CompareResult::Equal.into(),
        target: etcd::compare::CompareTarget::Value.into(),
        key: key.clone().into(),
        target_union: Some(etcd::compare::TargetUnion::Value(value.clone().into())),
        ..Default::default()
    };
    let write = |(key, value): &(String, String)| {
        let put =
            etcd::PutRequest { key: key.clone().into(), value: value.clone().into(), ..Default::default() };
        etcd::RequestOp { request: Some(etcd::request_op::Request::RequestPut(put)) }
    };
    let request = etcd::TxnRequest {
        compare: conditions.iter().map(compare).collect(),
        success: then.iter().map(write).collect(),
        failure: otherwise.iter().map(write).collect(),
    };
    let reply = KvClient::new(connection.any().await?).txn(request).await?.into_inner();
    if reply.succeeded {
        return connection.say(&json!({ "outcome": "done" }), "done");
    }
    refused(connection, "a condition does not hold")
}

async fn watch(
    connection: &Connection,
    key: String,
    prefix: bool,
    from: i64,
    count: Option<usize>,
) -> Result<ExitCode> {
    let range_end = range_end(&key, prefix);
    let create =
        etcd::WatchCreateRequest { key: key.into(), range_end, start_revision: from, ..Default::default() };
    let request =
        etcd::WatchRequest { request_union: Some(etcd::watch_request::RequestUnion::CreateRequest(create)) };
    let outgoing = tokio_stream::StreamExt::chain(tokio_stream::iter([request]), tokio_stream::pending());
    let patient = Connection { timeout: 1e9, ..connection.clone() };
    let mut events = WatchClient::new(patient.any().await?).watch(outgoing).await?.into_inner();
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        let message = events.message().await?.context("the server ended the watch")?;
        if message.canceled {
            bail!(
                "the watch ended: {} (history begins at revision {})",
                message.cancel_reason,
                message.compact_revision
            );
        }
        for event in message.events {
            let deleted = event.r#type() == quoin_proto::mvccpb::event::EventType::Delete;
            let kv = event.kv.context("an event without a key")?;
            show_event(connection, deleted, &kv)?;
            shown += 1;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_event(connection: &Connection, deleted: bool, kv: &KeyValue) -> Result<()> {
    let mut out = std::io::stdout();
    if connection.json {
        writeln!(out, "{}", json!({ "type": if deleted { "delete" } else { "put" }, "kv": as_json(kv) }))?;
    } else if deleted {
        writeln!(out, "{:>8}  delete  {}", kv.mod_revision, output::text(&kv.key))?;
    } else {
        writeln!(
            out,
            "{:>8}  put     {} = {}",
            kv.mod_revision,
            output::text(&kv.key),
            output::text(&kv.value)
        )?;
    }
    Ok(())
}

/// Takes the lock, keeps its lease alive while the command runs, and gives it back.
async fn lock(connection: &Connection, name: String, ttl: i64, command: &[String]) -> Result<ExitCode> {
    let patient = Connection { timeout: 1e9, ..connection.clone() };
    let channel = patient.any().await?;
    let mut leases = LeaseClient::new(channel.clone());
    let lease = leases.lease_grant(etcd::LeaseGrantRequest { ttl, id: 0 }).await?.into_inner();
    let mut locks = LockClient::new(channel.clone());
    let held = locks.lock(LockRequest { name: name.clone().into(), lease: lease.id }).await?.into_inner();
    let owned = etcd::RangeRequest { key: held.key.clone(), ..Default::default() };
    let owned = KvClient::new(channel).range(owned).await?.into_inner();
    // The create revision grows with each owner: a resource that remembers the largest can refuse a late one.
    let token = owned.kvs.first().context("the lock was lost before the command began")?.create_revision;
    let mut child = tokio::process::Command::new(&command[0])
        .args(&command[1..])
        .env("QUOIN_FENCING_TOKEN", token.to_string())
        .spawn()
        .with_context(|| format!("starting {:?}", command[0]))?;
    let third = Duration::from_secs_f64(lease.ttl as f64 / 3.0);
    let (requests, outgoing) = tokio::sync::mpsc::channel(1);
    let mut kept =
        leases.lease_keep_alive(tokio_stream::wrappers::ReceiverStream::new(outgoing)).await?.into_inner();
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            () = tokio::time::sleep(third) => requests.send(etcd::LeaseKeepAliveRequest { id: lease.id }).await?,
            reply = kept.message() => {
                let ttl = reply?.map_or(0, |reply| reply.ttl);
                ensure!(ttl > 0, "the lock {name:?} was lost while the command ran: its lease expired");
            }
        }
    };
    locks.unlock(UnlockRequest { key: held.key }).await?;
    leases.lease_revoke(etcd::LeaseRevokeRequest { id: lease.id }).await?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
