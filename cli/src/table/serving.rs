//! Tables on a cluster: publish, activate, roll back, list, drop, look up, change.

use crate::connection::Connection;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// How often it is asked whether all replicas are ready.
const POLL: Duration = Duration::from_millis(100);

/// Make a table's files known to the cluster: replicas fetch and check them
#[derive(Args)]
pub(crate) struct Publish {
    /// A folder, or a file://, http(s):// or s3://BUCKET/PREFIX URL; every replica must be able to read it
    #[arg(value_name = "FOLDER|URL")]
    location: String,
    /// Publish under another name than the manifest's
    #[arg(long)]
    table: Option<String>,
    /// Activate it once every replica is ready
    #[arg(long)]
    activate: bool,
    /// Activate it once a majority is ready: the other replicas answer nothing of the table until they are
    #[arg(long, requires = "activate")]
    without_waiting: bool,
    /// Seconds to wait for the replicas
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS")]
    wait: f64,
    /// Changes up to this revision are in the files [default: as export-changes has noted in them]
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "REVISION")]
    folds: u64,
    /// Another schema or shard count than the active version's is meant
    #[arg(long)]
    new_shape: bool,
    /// Versions kept besides the active one [default: as before, at first 2]
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    keep: u32,
    #[command(flatten)]
    connection: Connection,
}

/// Have a version answer, on every replica at once
#[derive(Args)]
pub(crate) struct Activate {
    /// The table
    table: String,
    /// The version
    #[arg(id = "number", value_name = "VERSION")]
    version: u64,
    /// A majority being ready is enough: the other replicas answer nothing of the table until they are
    #[arg(long)]
    without_waiting: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Have the version answer that was active before
#[derive(Args)]
pub(crate) struct Rollback {
    /// The table
    table: String,
    #[command(flatten)]
    connection: Connection,
}

/// Show tables, their versions, and who has them
#[derive(Args)]
pub(crate) struct Versions {
    /// Only this table
    table: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Forget a version, or a table with everything
#[derive(Args)]
pub(crate) struct Drop {
    /// The table
    table: String,
    /// The version
    #[arg(id = "number", value_name = "VERSION", required_unless_present = "all")]
    version: Option<u64>,
    /// The whole table: all versions and changes
    #[arg(long, conflicts_with = "number")]
    all: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Look keys up
#[derive(Args)]
pub(crate) struct Lookup {
    /// The table
    table: String,
    /// The keys
    #[arg(required = true)]
    keys: Vec<u64>,
    /// How values are shown
    #[arg(long, value_enum, default_value_t = Shown::Text)]
    show: Shown,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Shown {
    /// Bytes as text
    Text,
    /// Bytes as hexadecimal digits
    Hex,
    /// Vectors as numbers
    F32,
}

/// Change keys of the active version
#[derive(Args)]
pub(crate) struct Set {
    /// The table
    table: String,
    /// What is set: KEY=VALUE
    #[arg(required = true)]
    pairs: Vec<String>,
    /// Values are hexadecimal digits
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Delete keys of the active version
#[derive(Args)]
pub(crate) struct Del {
    /// The table
    table: String,
    /// The keys
    #[arg(required = true)]
    keys: Vec<u64>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn client(connection: &Connection) -> Result<TableClient<Channel>> {
    Ok(TableClient::new(connection.any().await?).max_decoding_message_size(256 << 20))
}

fn say(connection: &Connection, what: &str, response: &pb::VersionResponse) -> Result<()> {
    let pb::VersionResponse { version, revision, table } = response;
    if connection.json {
        return output::json(&json!({ "table": table, "version": version, "revision": revision }));
    }
    writeln!(std::io::stdout(), "{what} {version} at revision {revision}")?;
    Ok(())
}

pub(crate) async fn publish(arguments: Publish) -> Result<()> {
    let Publish { location, table, activate, without_waiting, wait, folds, new_shape, keep, connection } =
        arguments;
    let mut client = client(&connection).await?;
    let location = location_of(&location)?;
    let table = table.unwrap_or_default();
    let request = pb::PublishRequest { table, location, folds_revision: folds, new_shape, keep };
    let published = client.publish(request).await?.into_inner();
    say(&connection, "published version", &published)?;
    if activate {
        let pb::VersionResponse { table, version, .. } = published;
        let request = pb::ActivateRequest { table, version, without_waiting };
        let activated = activate_when_ready(&mut client, request, wait).await?;
        say(&connection, "active: version", &activated)?;
    }
    Ok(())
}

/// Has the version of `table` in `folder`, which all replicas can read, answer as soon as all have it; returns its number.
pub(crate) async fn publish_and_activate(
    client: &mut TableClient<Channel>,
    table: &str,
    folder: &Path,
    wait_seconds: f64,
) -> Result<u64> {
    let location = folder.to_str().context("a folder whose name is UTF-8")?.to_string();
    let request = pb::PublishRequest { table: table.into(), location, ..Default::default() };
    let version = client.publish(request).await?.into_inner().version;
    let request = pb::ActivateRequest { table: table.into(), version, without_waiting: false };
    activate_when_ready(client, request, wait_seconds).await?;
    Ok(version)
}

/// URLs are the replicas' to read; a folder may be given as it is seen from here.
fn location_of(location: &str) -> Result<String> {
    if location.contains("://") {
        return Ok(location.into());
    }
    let absolute = Path::new(location).canonicalize().with_context(|| location.to_string())?;
    Ok(absolute.to_str().with_context(|| format!("{} is not UTF-8", absolute.display()))?.into())
}

/// Asks again while replicas are fetching, or say that trying again may help; what else goes wrong at one ends it.
async fn activate_when_ready(
    client: &mut TableClient<Channel>,
    request: pb::ActivateRequest,
    wait_seconds: f64,
) -> Result<pb::VersionResponse> {
    let until = Instant::now() + Duration::from_secs_f64(wait_seconds);
    let pb::ActivateRequest { table, version, .. } = request.clone();
    loop {
        match client.activate(request.clone()).await {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) if status.code() != tonic::Code::FailedPrecondition || Instant::now() > until => {
                return Err(status.into());
            }
            Err(_) => {}
        }
        let infos = client.list(pb::ListRequest { table: table.clone() }).await?.into_inner().tables;
        let versions = infos.iter().flat_map(|info| &info.versions).filter(|info| info.version == version);
        let mut failures = versions.flat_map(|info| &info.failed_members);
        if let Some(failure) = failures.find(|failure| !failure.transient)
            && !request.without_waiting
        {
            bail!("replica {} cannot have version {version}: {}", failure.name, failure.reason);
        }
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) async fn activate(arguments: Activate) -> Result<()> {
    let Activate { table, version, without_waiting, connection } = arguments;
    let request = pb::ActivateRequest { table, version, without_waiting };
    let response = client(&connection).await?.activate(request).await?;
    say(&connection, "active: version", response.get_ref())
}

pub(crate) async fn rollback(arguments: Rollback) -> Result<()> {
    let Rollback { table, connection } = arguments;
    let response = client(&connection).await?.rollback(pb::RollbackRequest { table }).await?;
    say(&connection, "back to version", response.get_ref())
}

pub(crate) async fn drop(arguments: Drop) -> Result<()> {
    let Drop { table, version, connection, .. } = arguments;
    ensure!(version != Some(0), "versions are counted from 1; --all drops the whole table");
    let request = pb::DropRequest { table, version: version.unwrap_or(0) };
    let response = client(&connection).await?.drop(request).await?;
    say(&connection, "dropped version", response.get_ref())
}

pub(crate) async fn versions(arguments: Versions) -> Result<()> {
    let Versions { table, connection } = arguments;
    let request = pb::ListRequest { table: table.clone().unwrap_or_default() };
    let tables = client(&connection).await?.list(request).await?.into_inner().tables;
    if let (Some(name), true) = (&table, tables.is_empty()) {
        bail!("there is no table {name:?}");
    }
    if connection.json {
        return output::json(&tables.iter().map(as_json).collect());
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

/// Who does not have the version yet, and why.
fn not_ready(table: &str, version: &pb::VersionInfo) -> Result<()> {
    let (number, mut out) = (version.version, std::io::stdout());
    for failure in &version.failed_members {
        let again = if failure.transient { "; it tries again" } else { "" };
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
                json!({ "member": format!("{member:x}"), "name": name, "reason": reason, "transient": transient })
            })
            .collect();
        let ready: Vec<String> = info.ready_members.iter().map(|member| format!("{member:x}")).collect();
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

pub(crate) async fn lookup(arguments: Lookup) -> Result<()> {
    let Lookup { table, keys, show, connection } = arguments;
    let form = if show == Shown::F32 { pb::Form::F32 } else { pb::Form::Stored };
    let request = pb::LookupRequest {
        tables: vec![pb::Keys { table, keys: keys.clone(), form: form.into() }],
        linearizable: true,
    };
    let response = client(&connection).await?.lookup(request).await?.into_inner();
    let [values] = response.tables.as_slice() else {
        bail!("the answer has {} tables", response.tables.len())
    };
    let mut rows = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let found = values.found.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        let shown = shown(value(values, at)?, show);
        rows.push(vec![key.to_string(), if found { shown } else { format!("absent ({shown})") }]);
    }
    if connection.json {
        let values: Vec<_> = rows.iter().map(|row| json!({ "key": row[0], "value": row[1] })).collect();
        return output::json(&json!({ "version": response.tables[0].version, "values": values }));
    }
    writeln!(std::io::stdout(), "version {}", values.version)?;
    output::table(&["key", "value"], &rows)
}

fn value(values: &pb::Values, at: usize) -> Result<&[u8]> {
    let width = values.width as usize;
    let range = match values.offsets.get(at..at + 2) {
        Some(ends) => ends[0] as usize..ends[1] as usize,
        None => at * width..(at + 1) * width,
    };
    values.values.get(range).context("the answer is shorter than it says")
}

fn shown(value: &[u8], show: Shown) -> String {
    match show {
        Shown::Text => output::text(value),
        Shown::Hex => quoin_table::hex::encode(value),
        Shown::F32 => {
            let number = |four: &[u8]| f32::from_le_bytes([four[0], four[1], four[2], four[3]]).to_string();
            value.chunks_exact(4).map(number).collect::<Vec<_>>().join(",")
        }
    }
}

pub(crate) async fn set(arguments: Set) -> Result<()> {
    let Set { table, pairs, hex, connection } = arguments;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for pair in &pairs {
        let (key, value) = pair.split_once('=').with_context(|| format!("{pair:?} is not KEY=VALUE"))?;
        keys.push(key.parse().with_context(|| format!("{key:?} is no u64"))?);
        let value = if hex {
            quoin_table::hex::decode(value).with_context(|| format!("{value:?} is not hexadecimal"))?
        } else {
            value.as_bytes().to_vec()
        };
        values.push(value.into());
    }
    write(&connection, pb::WriteRequest { table, keys, values, deletes: Vec::new() }).await
}

pub(crate) async fn del(arguments: Del) -> Result<()> {
    let Del { table, keys, connection } = arguments;
    write(&connection, pb::WriteRequest { table, deletes: keys, ..Default::default() }).await
}

async fn write(connection: &Connection, request: pb::WriteRequest) -> Result<()> {
    let table = request.table.clone();
    let pb::WriteResponse { version, revision } =
        client(connection).await?.write(request).await?.into_inner();
    say(connection, "changed over version", &pb::VersionResponse { version, revision, table })
}
