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
    let answers = keys.iter().enumerate().map(|(at, key)| {
        let found = values.found.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        Ok((*key, found, value(values, at)?))
    });
    let answers = answers.collect::<Result<Vec<_>>>()?;
    if connection.json {
        let values: Vec<_> =
            answers.iter().map(|(key, found, value)| as_json(*key, *found, value, show)).collect();
        return output::json(&json!({ "version": response.tables[0].version, "values": values }));
    }
    let row = |(key, found, value): &(u64, bool, &[u8])| {
        let shown = shown(value, show);
        vec![key.to_string(), if *found { shown } else { format!("absent ({shown})") }]
    };
    writeln!(std::io::stdout(), "version {}", values.version)?;
    output::table(&["key", "value"], &answers.iter().map(row).collect::<Vec<_>>())
}

/// The value of an absent key is the table's default.
fn as_json(key: u64, found: bool, value: &[u8], show: Shown) -> serde_json::Value {
    let value = match show {
        Shown::F32 => json!(numbers(value).collect::<Vec<_>>()),
        Shown::Text | Shown::Hex => json!(shown(value, show)),
    };
    // A key in digits: other programs' numbers have 53 bits.
    json!({ "key": key.to_string(), "found": found, "value": value })
}

fn numbers(value: &[u8]) -> impl Iterator<Item = f32> {
    value.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
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
        Shown::F32 => numbers(value).map(|number| number.to_string()).collect::<Vec<_>>().join(","),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// JSON had one string for a vector, and said of an absent key that it had a value.
    #[test]
    fn json_says_what_is_absent_and_has_vectors_as_numbers() {
        let vector: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(
            as_json(u64::MAX, true, &vector, Shown::F32),
            json!({ "key": "18446744073709551615", "found": true, "value": [1.5, -2.0] })
        );
        assert_eq!(
            as_json(7, false, b"\0", Shown::Hex),
            json!({ "key": "7", "found": false, "value": "00" })
        );
    }
}
