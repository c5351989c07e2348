//! The table face's part of the demo: a table built, published, looked up, patched, changed, and rolled back.

use super::row::Row;
use anyhow::{Context, Result, ensure};
use quoin_load::client::Channel;
use quoin_load::client::{ANSWER_BYTES_MAX, dial, find_leader, publish_and_activate};
use quoin_load::sample_table::{self, VALUE_BYTES, key};
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use quoin_proto::quoin::v1::Local;
use quoin_table::Manifest;
use quoin_table::build::{Options, TextForm, build};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TABLE: &str = "demo";
const KEYS: u64 = 1_000_000;
const BATCH: u64 = 100;
const REQUESTS: u64 = 5_000;
/// Keys that the patch sets; it deletes as many.
const PATCHED: u64 = 10_000;
const CHANGED: u64 = 1_000;
/// How long replicas may take to fetch a version.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Does the job; returns a row for each step.
pub(super) async fn job(addresses: &[String]) -> Result<Vec<Row>> {
    let (leader, channel) = find_leader(addresses).await;
    let mut admin = TableClient::new(channel);
    let follower = dial(&addresses[(leader + 1) % addresses.len()], None).await?;
    let mut tables = TableClient::new(follower).max_decoding_message_size(ANSWER_BYTES_MAX);
    let folder = tempfile::tempdir()?;
    let mut rows = Vec::new();

    let begun = Instant::now();
    let path = folder.path().to_path_buf();
    let base = tokio::task::spawn_blocking(move || sample_table::build(&path, TABLE, KEYS)).await??;
    rows.push(Row::new("keys built into a table, 40 bytes each", KEYS, begun, "one thread"));
    let begun = Instant::now();
    let first = publish_and_activate(&mut admin, TABLE, &base, READY_TIMEOUT).await?;
    rows.push(Row::new(
        "keys fetched, checked and active",
        KEYS,
        begun,
        "on three replicas at one entry of the log",
    ));
    rows.push(lookups(&mut tables, first).await?);
    rows.push(patch(&mut admin, &mut tables, folder.path(), &base).await?);
    rows.push(changes(&mut admin, &mut tables).await?);

    let begun = Instant::now();
    admin.rollback(pb::RollbackRequest { table: TABLE.into() }).await?;
    let values = lookup(&mut tables, &[key(0), key(PATCHED)], false).await?;
    ensure!(values.version == first && values.found[..] == [3], "version {} answers", values.version);
    rows.push(Row::new(
        "rollback, seen on a follower",
        1,
        begun,
        "the patched keys have their first values again",
    ));
    Ok(rows)
}

async fn lookup(tables: &mut TableClient<Channel>, keys: &[u64], local: bool) -> Result<pb::Values> {
    let consistency = local.then(|| Local::default().into());
    let keys = pb::Keys { table: TABLE.into(), keys: keys.to_vec(), form: 0 };
    let answer = tables.lookup(pb::LookupRequest { tables: vec![keys], consistency }).await?.into_inner();
    answer.tables.into_iter().next().context("an answer without a table")
}

async fn lookups(tables: &mut TableClient<Channel>, version: u64) -> Result<Row> {
    // A linearizable lookup first: after it the follower has switched.
    lookup(tables, &[key(0)], false).await?;
    let begun = Instant::now();
    for request in 0..REQUESTS {
        let keys: Vec<u64> =
            (0..BATCH).map(|at| key((request * BATCH + at).wrapping_mul(7919) % KEYS)).collect();
        let values = lookup(tables, &keys, true).await?;
        let found: u32 = values.found.iter().map(|byte| byte.count_ones()).sum();
        ensure!(u64::from(found) == BATCH && values.version == version, "{found} of {BATCH} keys were found");
    }
    let us = begun.elapsed().as_secs_f64() * 1e6 / REQUESTS as f64;
    let note = format!("one request after another, {us:.0} us each");
    Ok(Row::new("keys looked up on a follower, 100 to a request", REQUESTS * BATCH, begun, note))
}

async fn patch(
    admin: &mut TableClient<Channel>,
    tables: &mut TableClient<Channel>,
    folder: &Path,
    base: &Path,
) -> Result<Row> {
    let begun = Instant::now();
    let (folder, base) = (folder.to_path_buf(), base.to_path_buf());
    let patch = tokio::task::spawn_blocking(move || build_patch(&folder, &base)).await??;
    let version = publish_and_activate(admin, TABLE, &patch, READY_TIMEOUT).await?;
    let values = lookup(tables, &[key(0), key(PATCHED), key(2 * PATCHED)], false).await?;
    ensure!(values.version == version && values.found[..] == [0b101], "the patch does not answer");
    ensure!(values.values[..VALUE_BYTES] == [0xab; VALUE_BYTES], "the first key has a wrong value");
    Ok(Row::new(
        "keys patched: half set, half deleted",
        2 * PATCHED,
        begun,
        "built, fetched, checked, switched",
    ))
}

fn build_patch(folder: &Path, base: &Path) -> Result<PathBuf> {
    let value = "ab".repeat(VALUE_BYTES);
    let set = (0..PATCHED).map(|number| format!("{},{value},upsert\n", key(number)));
    let deleted = (PATCHED..2 * PATCHED).map(|number| format!("{},,delete\n", key(number)));
    let (input, output) = (folder.join("patch.csv"), folder.join("patch"));
    std::fs::write(&input, format!("key,value,operation\n{}", set.chain(deleted).collect::<String>()))?;
    let mut options = Options::new(TABLE, vec![input], output.clone());
    options.text = TextForm::Hex;
    options.over = Some(Manifest::read(base)?);
    options.operation = Some("operation".into());
    build(&options, &|_| {})?;
    Ok(output)
}

async fn changes(admin: &mut TableClient<Channel>, tables: &mut TableClient<Channel>) -> Result<Row> {
    let begun = Instant::now();
    // Numbers above the table's: neither base nor patch has these keys.
    let keys: Vec<u64> = (KEYS..KEYS + CHANGED).map(key).collect();
    let values = vec![vec![0xcd; VALUE_BYTES].into(); keys.len()];
    let request = pb::WriteRequest { table: TABLE.into(), keys: keys.clone(), values, deletes: Vec::new() };
    admin.write(request).await?;
    let values = lookup(tables, &keys, false).await?;
    ensure!(values.values.iter().all(|&byte| byte == 0xcd), "the changes are missing");
    Ok(Row::new("keys changed over the files, in one write", CHANGED, begun, "seen on a follower"))
}
