//! The table face's part of the demo: the report's table built, published, looked up, patched, changed, and rolled back.

use super::{Row, connect, find_leader};
use crate::bench::sample_table::{self, VALUE_BYTES};
use crate::table::publish_and_activate;
use anyhow::{Context, Result, ensure};
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use quoin_table::Manifest;
use quoin_table::build::{Options, TextForm, build};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tonic::transport::Channel;

const TABLE: &str = "demo";
const KEYS: u64 = 1_000_000;
const BATCH: u64 = 100;
const REQUESTS: u64 = 5_000;
/// Keys that the patch sets, and as many that it deletes.
const PATCHED: u64 = 10_000;
const CHANGED: u64 = 1_000;
/// Seconds that the replicas have to fetch a version.
const READY_SECONDS: f64 = 60.0;

/// Builds, publishes, looks up, patches, switches, changes and rolls back.
pub(super) async fn job(addresses: &[String]) -> Result<Vec<Row>> {
    let (leader, channel) = find_leader(addresses).await?;
    let mut admin = TableClient::new(channel);
    let follower = connect(&addresses[(leader + 1) % addresses.len()]).await?;
    let mut tables = TableClient::new(follower).max_decoding_message_size(64 << 20);
    let folder = tempfile::tempdir()?;
    let mut rows = Vec::new();

    let begun = Instant::now();
    let path = folder.path().to_path_buf();
    let base = tokio::task::spawn_blocking(move || sample_table::build(&path, TABLE, KEYS)).await??;
    rows.push(Row::new("keys built into a table, 40 bytes each", KEYS, begun, "one thread"));
    let begun = Instant::now();
    let first = publish_and_activate(&mut admin, TABLE, &base, READY_SECONDS).await?;
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
    let values = lookup(&mut tables, &[key(0), key(PATCHED)], true).await?;
    ensure!(values.version == first && values.found[..] == [3], "version {} answers", values.version);
    rows.push(Row::new("rollback, seen on a follower", 1, begun, "the patched keys have their first values"));
    Ok(rows)
}

fn key(number: u64) -> u64 {
    sample_table::random(number)
}

async fn lookup(tables: &mut TableClient<Channel>, keys: &[u64], linearizable: bool) -> Result<pb::Values> {
    let keys = pb::Keys { table: TABLE.into(), keys: keys.to_vec(), form: 0 };
    let answer = tables.lookup(pb::LookupRequest { tables: vec![keys], linearizable }).await?.into_inner();
    answer.tables.into_iter().next().context("an answer without a table")
}

async fn lookups(tables: &mut TableClient<Channel>, version: u64) -> Result<Row> {
    // Once linearizable, so that the follower has switched.
    lookup(tables, &[key(0)], true).await?;
    let begun = Instant::now();
    for request in 0..REQUESTS {
        let keys: Vec<u64> =
            (0..BATCH).map(|at| key((request * BATCH + at).wrapping_mul(7919) % KEYS)).collect();
        let values = lookup(tables, &keys, false).await?;
        let found: u32 = values.found.iter().map(|byte| byte.count_ones()).sum();
        ensure!(u64::from(found) == BATCH && values.version == version, "{found} of {BATCH} keys were found");
    }
    let us = begun.elapsed().as_secs_f64() * 1e6 / REQUESTS as f64;
    let note = format!("one request after the other, {us:.0} us each");
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
    let version = publish_and_activate(admin, TABLE, &patch, READY_SECONDS).await?;
    let values = lookup(tables, &[key(0), key(PATCHED), key(2 * PATCHED)], true).await?;
    ensure!(values.version == version && values.found[..] == [0b101], "the patch is not what answers");
    ensure!(values.values[..VALUE_BYTES] == [0xab; VALUE_BYTES], "the first key has another value");
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
    // The largest of the sample's numbers, so that neither base nor patch has them.
    let keys: Vec<u64> = (KEYS..KEYS + CHANGED).map(key).collect();
    let values = vec![vec![0xcd; VALUE_BYTES].into(); keys.len()];
    let request = pb::WriteRequest { table: TABLE.into(), keys: keys.clone(), values, deletes: Vec::new() };
    admin.write(request).await?;
    let values = lookup(tables, &keys, true).await?;
    ensure!(values.values.iter().all(|&byte| byte == 0xcd), "the changes are not seen");
    Ok(Row::new("keys changed over the files, in one write", CHANGED, begun, "seen on a follower"))
}
