//! Reading and writing keys: get, put, del, cas, txn.

use super::client;
use crate::connection::{Connection, Read};
use crate::outcome::Write as _;
use crate::{outcome, output};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::mvccpb::KeyValue;
use quoin_proto::quoin::kv::v1 as quoin;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// A read.
#[derive(Args)]
pub(crate) struct Get {
    key: String,
    /// Read all keys that begin with KEY
    #[arg(long)]
    prefix: bool,
    /// Read as of this revision; 0 is the newest
    #[arg(long, default_value_t = 0)]
    revision: i64,
    /// Maximum number of keys; 0 is no limit
    #[arg(long, default_value_t = 0)]
    limit: i64,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// A write.
#[derive(Args)]
pub(crate) struct Put {
    key: String,
    value: String,
    /// Let the key expire after this time, e.g. 500ms, 10s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    ttl: Option<Duration>,
    /// Write only if the key does not exist
    #[arg(long)]
    if_absent: bool,
    #[command(flatten)]
    connection: Connection,
}

/// A deletion.
#[derive(Args)]
pub(crate) struct Del {
    key: String,
    /// Delete all keys that begin with KEY
    #[arg(long, conflicts_with = "if_version")]
    prefix: bool,
    /// Delete only if the key has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<i64>,
    #[command(flatten)]
    connection: Connection,
}

/// A compare-and-set.
#[derive(Args)]
pub(crate) struct Cas {
    key: String,
    /// Value that the key must have
    expected: String,
    /// Value to write
    value: String,
    #[command(flatten)]
    connection: Connection,
}

/// A transaction.
#[derive(Args)]
pub(crate) struct Txn {
    /// Condition: the key must have this value; repeatable
    #[arg(long = "if", value_name = "KEY=VALUE")]
    conditions: Vec<String>,
    /// Write if all conditions hold; repeatable
    #[arg(long = "then", value_name = "KEY=VALUE")]
    then: Vec<String>,
    /// Write if a condition does not hold; repeatable
    #[arg(long = "else", value_name = "KEY=VALUE")]
    otherwise: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} does not begin with a whole number"))?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("{text:?} must end with ms, s, m or h")),
    };
    Ok(Duration::from_millis(number.saturating_mul(ms)))
}

/// etcd's end of a range: for a prefix the key after the last one that begins with it.
pub(super) fn range_end(key: &str, prefix: bool) -> Bytes {
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
        let (key, value) = text.split_once('=').with_context(|| format!("{text:?} is not KEY=VALUE"))?;
        Ok((key.to_string(), value.to_string()))
    };
    texts.iter().map(pair).collect()
}

pub(super) fn as_json(kv: &KeyValue) -> Value {
    json!({
        "key": output::text(&kv.key), "value": output::text(&kv.value), "version": kv.version,
        "create_revision": kv.create_revision, "mod_revision": kv.mod_revision, "lease": kv.lease,
    })
}

pub(super) async fn get(get: Get) -> Result<ExitCode> {
    let Get { key, prefix, revision, limit, read, connection } = get;
    let request = etcd::RangeRequest {
        range_end: range_end(&key, prefix),
        key: key.into(),
        revision,
        limit,
        serializable: read.local,
        ..Default::default()
    };
    let reply = client::etcd(&connection).await?.range(request).await?.into_inner();
    show(&connection, &reply.kvs)?;
    let missing = reply.kvs.is_empty() && !prefix;
    Ok(if missing { ExitCode::from(outcome::REFUSED) } else { ExitCode::SUCCESS })
}

fn show(connection: &Connection, kvs: &[KeyValue]) -> Result<()> {
    if connection.json {
        return output::json(&kvs.iter().map(as_json).collect::<Value>());
    }
    let row = |kv: &KeyValue| {
        vec![
            output::text(&kv.key),
            output::text(&kv.value),
            kv.version.to_string(),
            kv.mod_revision.to_string(),
        ]
    };
    match kvs {
        [] => writeln!(std::io::stderr(), "no such key")?,
        [kv] => writeln!(std::io::stdout(), "{}", output::text(&kv.value))?,
        _ => {
            output::table(&["key", "value", "version", "revision"], &kvs.iter().map(row).collect::<Vec<_>>())?
        }
    }
    Ok(())
}

/// What to do about a write of keys without an answer. Sent again it might undo what others wrote since, or be refused
/// because it was done.
fn look(keys: &str) -> String {
    format!("read {keys} before you send it again (`quoin kv get`)")
}

pub(super) async fn put(put: Put) -> Result<ExitCode> {
    let Put { key, value, ttl, if_absent, connection } = put;
    let absent = quoin::Condition { what: Some(quoin::condition::What::Absent(true)) };
    let request = quoin::PutRequest {
        key: key.clone().into(),
        value: value.into(),
        ttl: ttl.map(|ttl| quoin::put_request::Ttl::TtlMs(ttl.as_millis() as u64)),
        conditions: if_absent.then_some(absent).into_iter().collect(),
        ..Default::default()
    };
    let look = look(&key);
    let reply = client::quoin(&connection).await?.put(request).await.or_look(|| look)?.into_inner();
    if reply.outcome() != quoin::Outcome::Done {
        return outcome::refuse("the key exists");
    }
    let revision = reply.mod_revision;
    connection
        .say(&json!({ "outcome": "done", "revision": revision }), &format!("written at revision {revision}"))
}

pub(super) async fn del(del: Del) -> Result<ExitCode> {
    if del.prefix {
        return delete_prefix(&del.key, &del.connection).await;
    }
    let Del { key, if_version, connection, .. } = del;
    let condition = |version| quoin::Condition { what: Some(quoin::condition::What::Version(version)) };
    let conditions = if_version.map(condition).into_iter().collect();
    let look = look(&key);
    let request = quoin::DeleteRequest { key: key.into(), conditions, return_deleted: true };
    let reply = client::quoin(&connection).await?.delete(request).await.or_look(|| look)?.into_inner();
    match reply.outcome() {
        quoin::Outcome::Done if reply.existed => {
            let value = reply.deleted.map(|record| output::text(&record.value)).unwrap_or_default();
            connection.say(&json!({ "outcome": "done", "deleted": value }), &format!("deleted {value}"))
        }
        quoin::Outcome::Done => outcome::refuse("there is no such key"),
        _ => {
            let version = reply.current.map_or(0, |record| record.version);
            outcome::refuse(format!("the key has version {version}"))
        }
    }
}

async fn delete_prefix(prefix: &str, connection: &Connection) -> Result<ExitCode> {
    let key = prefix.to_owned().into();
    let request = etcd::DeleteRangeRequest { key, range_end: range_end(prefix, true), ..Default::default() };
    let deleted =
        client::etcd(connection).await?.delete_range(request).await.or_send_again()?.into_inner().deleted;
    let keys = if deleted == 1 { "key" } else { "keys" };
    connection.say(&json!({ "deleted": deleted }), &format!("deleted {deleted} {keys}"))
}

pub(super) async fn cas(cas: Cas) -> Result<ExitCode> {
    let conditions = [(cas.key.clone(), cas.expected)];
    compare_and_write(&cas.connection, &conditions, &[(cas.key, cas.value)], &[]).await
}

pub(super) async fn txn(txn: Txn) -> Result<ExitCode> {
    let Txn { conditions, then, otherwise, connection } = txn;
    ensure!(!then.is_empty() || !otherwise.is_empty(), "nothing to write: give --then KEY=VALUE");
    compare_and_write(&connection, &pairs(&conditions)?, &pairs(&then)?, &pairs(&otherwise)?).await
}

async fn compare_and_write(
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
    let keys = conditions.iter().chain(then).chain(otherwise).map(|(key, _)| key.as_str());
    let keys = keys.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ");
    let reply = client::etcd(connection).await?.txn(request).await.or_look(|| look(&keys))?.into_inner();
    if reply.succeeded {
        return connection.say(&json!({ "outcome": "done" }), "done");
    }
    outcome::refuse("a condition does not hold")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_key_that_does_not_have_it() {
        assert_eq!(range_end("a/", true), "a0");
        assert_eq!(range_end("", true), "\0", "all keys");
        assert_eq!(range_end("a/", false), "", "one key");
    }

    #[test]
    fn durations_have_a_unit() {
        for (text, ms) in [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("2h", 7_200_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)));
        }
        for wrong in ["10", "s", "-1s", "1.5s", "1d", ""] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
