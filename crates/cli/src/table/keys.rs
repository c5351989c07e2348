//! Keys of the active version: look up, set, delete.

use super::client::{client, say};
use crate::connection::{Connection, Read};
use crate::outcome::Write as _;
use crate::output;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use quoin_proto::quoin::table::v1 as pb;
use serde_json::json;
use std::io::Write;

/// A lookup.
#[derive(Args)]
pub(crate) struct Lookup {
    /// Name of the table
    table: String,
    /// Keys, unsigned 64-bit integers
    #[arg(required = true)]
    keys: Vec<u64>,
    /// How to show values
    #[arg(long, value_enum, default_value_t = Shown::Text)]
    show: Shown,
    #[command(flatten)]
    read: Read,
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

/// Keys to set.
#[derive(Args)]
pub(crate) struct Set {
    /// Name of the table
    table: String,
    /// Keys and their new values
    #[arg(required = true, value_name = "KEY=VALUE")]
    pairs: Vec<String>,
    /// Read values as hexadecimal digits
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Keys to delete.
#[derive(Args)]
pub(crate) struct Del {
    /// Name of the table
    table: String,
    /// Keys, unsigned 64-bit integers
    #[arg(required = true)]
    keys: Vec<u64>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn lookup(arguments: Lookup) -> Result<()> {
    let Lookup { table, keys, show, read, connection } = arguments;
    let form = if show == Shown::F32 { pb::Form::F32 } else { pb::Form::Stored };
    let request = pb::LookupRequest {
        tables: vec![pb::Keys { table, keys: keys.clone(), form: form.into() }],
        consistency: read.consistency(),
    };
    let response = client(&connection).await?.lookup(request).await?.into_inner();
    let [values] = response.tables.as_slice() else {
        bail!("the answer has {} tables instead of one", response.tables.len())
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
    values.values.get(range).context("the answer is shorter than its header says")
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

pub(super) async fn set(arguments: Set) -> Result<()> {
    let Set { table, pairs, hex, connection } = arguments;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for pair in &pairs {
        let (key, value) = pair.split_once('=').with_context(|| format!("{pair:?} is not KEY=VALUE"))?;
        keys.push(key.parse().with_context(|| format!("{key:?} is not an unsigned 64-bit integer"))?);
        let value = if hex {
            quoin_table::hex::decode(value).with_context(|| format!("{value:?} is not hexadecimal"))?
        } else {
            value.as_bytes().to_vec()
        };
        values.push(value.into());
    }
    write(&connection, pb::WriteRequest { table, keys, values, deletes: Vec::new() }).await
}

pub(super) async fn del(arguments: Del) -> Result<()> {
    let Del { table, keys, connection } = arguments;
    write(&connection, pb::WriteRequest { table, deletes: keys, ..Default::default() }).await
}

async fn write(connection: &Connection, request: pb::WriteRequest) -> Result<()> {
    let table = request.table.clone();
    let pb::WriteResponse { version, revision } =
        client(connection).await?.write(request).await.or_send_again()?.into_inner();
    say(connection, "changed over version", &pb::VersionResponse { version, revision, table })
}
