//! Versions of tables on a cluster: publish, activate, roll back, list, drop.

use super::client::{client, say};
use crate::connection::{Connection, Read};
use crate::outcome::Write as _;
use crate::{outcome, output};
use anyhow::{Context, Result, ensure};
use clap::Args;
use quoin_load::client::activate_when_ready;
use quoin_load::seconds;
use quoin_proto::quoin::table::v1 as pb;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// A table to publish.
#[derive(Args)]
pub(crate) struct Publish {
    /// Folder of the table, or a file://, http(s):// or s3://BUCKET/PREFIX URL; every replica must be able to
    /// read it
    #[arg(value_name = "FOLDER|URL")]
    location: String,
    /// Name to publish under [default: the name in the manifest]
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Activate the version once every replica has it
    #[arg(long)]
    activate: bool,
    /// Activate once a majority has it: the other replicas answer no lookups in the table until they have it
    #[arg(long, requires = "activate")]
    without_waiting: bool,
    /// Seconds to wait for the replicas before activation fails
    #[arg(long, default_value = "600", value_name = "SECONDS", value_parser = seconds)]
    wait: Duration,
    /// Changes up to this revision are in the files [default: as export-changes noted in them]
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "REVISION")]
    folds: u64,
    /// Allow another schema or shard count than the active version's
    #[arg(long)]
    new_shape: bool,
    /// Versions to keep besides the active one [default: as before, at first 2]
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    keep: u32,
    #[command(flatten)]
    connection: Connection,
}

/// A version to activate.
#[derive(Args)]
pub(crate) struct Activate {
    /// Name of the table
    table: String,
    /// Number of the version
    #[arg(id = "number", value_name = "VERSION")]
    version: u64,
    /// Require only a majority to have it: the other replicas answer no lookups in the table until they have
    /// it
    #[arg(long)]
    without_waiting: bool,
    #[command(flatten)]
    connection: Connection,
}

/// A table to roll back.
#[derive(Args)]
pub(crate) struct Rollback {
    /// Name of the table
    table: String,
    #[command(flatten)]
    connection: Connection,
}

/// Which tables to show.
#[derive(Args)]
pub(crate) struct Versions {
    /// Show only this table
    table: Option<String>,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// What to drop.
// By itself clap puts the group before the table.
#[derive(Args)]
#[command(override_usage = "quoin table drop [OPTIONS] <TABLE> <VERSION|--all>")]
pub(crate) struct Drop {
    /// Name of the table
    table: String,
    #[command(flatten)]
    what: Dropped,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Dropped {
    /// Number of the version
    #[arg(id = "number", value_name = "VERSION")]
    version: Option<u64>,
    /// Drop the whole table: all versions and changes
    #[arg(long)]
    all: bool,
}

pub(super) async fn publish(arguments: Publish) -> Result<()> {
    let Publish { location, table, activate, without_waiting, wait, folds, new_shape, keep, connection } =
        arguments;
    let mut client = client(&connection).await?;
    let location = location_of(&location)?;
    let table = table.unwrap_or_default();
    let request = pb::PublishRequest { table, location, folds_revision: folds, new_shape, keep };
    let published = client.publish(request).await.or_send_again()?.into_inner();
    say(&connection, "published version", &published)?;
    if activate {
        let pb::VersionResponse { table, version, .. } = published;
        let request = pb::ActivateRequest { table, version, without_waiting };
        let activated = activate_when_ready(&mut client, request, wait).await?;
        say(&connection, "active: version", &activated)?;
    }
    Ok(())
}

/// The location as replicas read it: a URL stays, a folder becomes absolute.
fn location_of(location: &str) -> Result<String> {
    if location.contains("://") {
        return Ok(location.into());
    }
    let absolute = Path::new(location).canonicalize().with_context(|| location.to_string())?;
    Ok(absolute.to_str().with_context(|| format!("{} is not UTF-8", absolute.display()))?.into())
}

pub(super) async fn activate(arguments: Activate) -> Result<()> {
    let Activate { table, version, without_waiting, connection } = arguments;
    let request = pb::ActivateRequest { table, version, without_waiting };
    let response = client(&connection).await?.activate(request).await.or_send_again()?;
    say(&connection, "active: version", response.get_ref())
}

pub(super) async fn rollback(arguments: Rollback) -> Result<()> {
    let Rollback { table, connection } = arguments;
    let response = client(&connection).await?.rollback(pb::RollbackRequest { table }).await.or_look(look)?;
    say(&connection, "back to version", response.get_ref())
}

/// What to do about a change of versions without an answer: sent again it might go one version further.
fn look() -> String {
    "see which versions there are before you send it again (`quoin table versions`)".into()
}

pub(super) async fn drop(arguments: Drop) -> Result<()> {
    let Drop { table, what: Dropped { version, .. }, connection } = arguments;
    ensure!(version != Some(0), "versions begin at 1; --all drops the whole table");
    let request = pb::DropRequest { table, version: version.unwrap_or(0) };
    let response = client(&connection).await?.drop(request).await.or_look(look)?;
    say(&connection, "dropped version", response.get_ref())
}

pub(super) async fn versions(arguments: Versions) -> Result<()> {
    let Versions { table, read, connection } = arguments;
    let request =
        pb::ListRequest { table: table.clone().unwrap_or_default(), consistency: read.consistency() };
    let tables = client(&connection).await?.list(request).await?.into_inner().tables;
    if let (Some(name), true) = (&table, tables.is_empty()) {
        return outcome::refuse(format!("there is no table {name:?}"));
    }
    if connection.json {
        return output::json(&tables.iter().map(as_json).collect::<Value>());
    }
    let mut rows = Vec::new();
    for table in &tables {
        for version in &table.versions {
            rows.push(row(table, version));
        }
    }
    let head = ["table", "version", "state", "keys", "deleted", "bytes", "values", "over", "ready", "id"];
    output::table(&head, &rows)?;
    for (table, version) in tables.iter().flat_map(|table| table.versions.iter().map(move |v| (table, v))) {
        not_ready(&table.name, version)?;
    }
    Ok(())
}

/// Prints which replicas do not have the version, and why.
fn not_ready(table: &str, version: &pb::VersionInfo) -> Result<()> {
    let (number, mut out) = (version.version, std::io::stdout());
    for failure in &version.failed_members {
        let again = if failure.transient { "; it will retry" } else { "" };
        writeln!(out, "{table} {number}: {} does not have it: {}{again}", failure.name, failure.reason)?;
    }
    for name in &version.waiting {
        writeln!(out, "{table} {number}: {name} does not have it yet: still fetching, or away")?;
    }
    Ok(())
}

fn row(table: &pb::TableInfo, version: &pb::VersionInfo) -> Vec<String> {
    let state = if version.version == table.active {
        "active"
    } else if table.previous.contains(&version.version) {
        "kept"
    } else if version.failed_members.is_empty() {
        "published"
    } else {
        "failed"
    };
    let over = if version.below == 0 { "-".into() } else { version.below.to_string() };
    vec![
        table.name.clone(),
        version.version.to_string(),
        state.into(),
        version.keys.to_string(),
        version.deleted.to_string(),
        version.bytes.to_string(),
        version.values.clone(),
        over,
        version.ready_members.len().to_string(),
        version.id.clone(),
    ]
}

fn as_json(table: &pb::TableInfo) -> serde_json::Value {
    let version = |info: &pb::VersionInfo| {
        let failed: Vec<_> = info
            .failed_members
            .iter()
            .map(|failure| {
                let pb::NotReady { member, reason, transient, name } = failure;
                json!({ "member": format!("{member:016x}"), "name": name, "reason": reason, "transient": transient })
            })
            .collect();
        let ready: Vec<String> = info.ready_members.iter().map(|member| format!("{member:016x}")).collect();
        json!({
            "version": info.version, "id": info.id, "below": info.below, "location": info.location,
            "keys": info.keys, "deleted": info.deleted, "bytes": info.bytes, "shards": info.shards,
            "values": info.values, "folds_revision": info.folds_revision, "ready": ready, "failed": failed,
            "waiting": info.waiting,
            "loaded_here": info.loaded_here, "metadata": info.metadata,
        })
    };
    json!({
        "table": table.name, "active": table.active, "previous": table.previous, "keep": table.keep,
        "changed_keys": table.changed_keys, "versions": table.versions.iter().map(version).collect::<Vec<_>>(),
    })
}
