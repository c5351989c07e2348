//! `TABLE.*`: lookup tables over Redis's protocol, from this replica's own state (whoever has an answer to `TABLE.SET` from a
//! replica sees the change there).
//!
//! What is deliberately absent: versions' administration, which is gRPC's.

use super::frame::Reply;
use crate::api::error;
use crate::api::table::{lookup_refused, operation};
use crate::engine::Engine;
use crate::table::Found;
use bytes::Bytes;
use quoin_core::table::{Operation, Upsert, Write};
use quoin_table::Form;
use tonic::Status;

/// Runs the command `name`; `None` if there is none of this name that takes so many arguments.
pub(super) async fn run(engine: &Engine, name: &str, args: &[Bytes]) -> Result<Option<Reply>, Status> {
    Ok(Some(match (name, args) {
        ("mget", [table, keys @ ..]) if !keys.is_empty() => mget(engine, table, keys)?,
        ("lookup", [table, blob]) => lookup(engine, table, blob)?,
        ("set", [table, pairs @ ..]) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
            set(engine, table, pairs).await?
        }
        ("del", [table, keys @ ..]) if !keys.is_empty() => del(engine, table, keys).await?,
        ("list", []) => {
            let view = engine.latest();
            let look = view.tables().look();
            Reply::Array(look.tables().map(|(name, _)| Reply::text(name)).collect())
        }
        ("info", [table]) => info(engine, table)?,
        _ => return Ok(None),
    }))
}

/// Decimal keys; a bulk or null for each.
fn mget(engine: &Engine, table: &Bytes, keys: &[Bytes]) -> Result<Reply, Status> {
    let keys = keys.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    let Found { width, answer, .. } = find(engine, table, &keys)?;
    let values = Bytes::from(answer.values);
    let value = |at: usize| {
        if answer.found[at / 8] >> (at % 8) & 1 == 0 {
            return Reply::Null;
        }
        let width = width as usize;
        Reply::Bulk(match answer.offsets.get(at..at + 2) {
            Some(ends) => values.slice(ends[0] as usize..ends[1] as usize),
            None => values.slice(at * width..(at + 1) * width),
        })
    };
    Ok(Reply::Array((0..keys.len()).map(value).collect()))
}

/// Keys of eight bytes, little-endian, behind each other: version, bitmap, values, and where widths vary their offsets (four bytes,
/// little-endian; one more than there are keys).
fn lookup(engine: &Engine, table: &Bytes, blob: &Bytes) -> Result<Reply, Status> {
    if !blob.len().is_multiple_of(8) {
        return Err(error::invalid(format!("the keys have {} bytes, which is no multiple of 8", blob.len())));
    }
    let keys: Vec<u64> = blob
        .chunks_exact(8)
        .map(|eight| u64::from_le_bytes(eight.try_into().expect("chunks of eight bytes")))
        .collect();
    let Found { version, answer, .. } = find(engine, table, &keys)?;
    let mut parts = vec![
        Reply::Integer(version as i64),
        Reply::Bulk(answer.found.into()),
        Reply::Bulk(answer.values.into()),
    ];
    if !answer.offsets.is_empty() {
        let offsets: Vec<u8> = answer.offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
        parts.push(Reply::Bulk(offsets.into()));
    }
    Ok(Reply::Array(parts))
}

fn find(engine: &Engine, table: &Bytes, keys: &[u64]) -> Result<Found, Status> {
    check_count(engine, keys.len())?;
    let (view, bytes_max) = (engine.latest(), engine.limits().response_bytes_max);
    let mut found = Found::default();
    engine
        .library()
        .lookup(view.tables(), text(table)?, keys, Form::Stored, bytes_max, &mut found)
        .map_err(|error| lookup_refused(&error))?;
    Ok(found)
}

async fn set(engine: &Engine, table: &Bytes, pairs: &[Bytes]) -> Result<Reply, Status> {
    let upserts = pairs
        .chunks_exact(2)
        .map(|pair| Ok(Upsert { key: key(&pair[0])?, value: pair[1].clone() }))
        .collect::<Result<Vec<_>, Status>>()?;
    check_count(engine, upserts.len())?;
    crate::api::commands::check_space(engine)?;
    let write = Write { name: text(table)?.into(), upserts, deletes: Vec::new() };
    operation(engine, Operation::Write(write)).await?;
    Ok(Reply::OK)
}

async fn del(engine: &Engine, table: &Bytes, keys: &[Bytes]) -> Result<Reply, Status> {
    let deletes = keys.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    check_count(engine, deletes.len())?;
    let write = Write { name: text(table)?.into(), upserts: Vec::new(), deletes };
    operation(engine, Operation::Write(write)).await?;
    Ok(Reply::OK)
}

fn info(engine: &Engine, table: &Bytes) -> Result<Reply, Status> {
    let (view, name) = (engine.latest(), text(table)?);
    let look = view.tables().look();
    let Some(state) = look.table(name) else {
        return Err(lookup_refused(&crate::table::LookupError::NoTable(name.into())));
    };
    let number = |number: u64| Reply::Integer(number as i64);
    let versions = state.versions.keys().map(|version| number(*version)).collect();
    Ok(Reply::Map(vec![
        (Reply::text("active"), number(state.table.active)),
        (Reply::text("versions"), Reply::Array(versions)),
        (Reply::text("changed_keys"), number(state.changed() as u64)),
    ]))
}

fn check_count(engine: &Engine, keys: usize) -> Result<(), Status> {
    let max = engine.lookup_keys_max();
    if keys > max {
        return Err(error::invalid(format!("{keys} keys in one command, at most {max} (table.keys_max)")));
    }
    Ok(())
}

fn text(name: &Bytes) -> Result<&str, Status> {
    std::str::from_utf8(name).map_err(|_| error::invalid("the table's name is not UTF-8"))
}

fn key(text: &Bytes) -> Result<u64, Status> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| error::invalid(format!("the key {:?} is no u64", text.escape_ascii().to_string())))
}
