//! TABLE.SET, TABLE.DEL, TABLE.LIST and TABLE.INFO: changes of lookup tables, and what there is. Lookups are
//! in `lookup.rs`.
//!
//! What is deliberately absent: publishing and switching versions, which gRPC does.

use super::lookup::{check_count, key, text};
use super::parse::wrong_count;
use super::reply::Reply;
use super::session::Session;
use crate::auth::check_table;
use crate::commands::check_space;
use crate::error::Error;
use crate::grpc::table::{check_changes, operation};
use bytes::Bytes;
use quoin_core::auth::table_rights::LOOKUP;
use quoin_core::table::{Operation, Upsert, Write};
use quoin_library::LookupError;

/// TABLE.SET table key value [key value ...]
pub(super) async fn set(session: &mut Session, args: &[Bytes]) -> Result<Reply, Error> {
    let (table, pairs) = (&args[0], &args[1..]);
    if !pairs.len().is_multiple_of(2) {
        return Ok(Reply::Error(wrong_count("table.set")));
    }
    let server = &session.server;
    let upserts = pairs
        .chunks_exact(2)
        .map(|pair| Ok(Upsert { key: key(&pair[0])?, value: pair[1].clone() }))
        .collect::<Result<Vec<_>, Error>>()?;
    check_count(server, upserts.len())?;
    check_space(&server.engine)?;
    let write = Write { name: text(table)?.into(), upserts, deletes: Vec::new() };
    check_changes(&server.engine, server.library.settings(), &write)?;
    operation(&server.engine, Operation::Write(write)).await?;
    Ok(Reply::OK)
}

/// TABLE.DEL table key [key ...]
pub(super) async fn del(session: &mut Session, args: &[Bytes]) -> Result<Reply, Error> {
    let (table, keys) = (&args[0], &args[1..]);
    let server = &session.server;
    let deletes = keys.iter().map(|text| key(text)).collect::<Result<Vec<_>, _>>()?;
    check_count(server, deletes.len())?;
    // A deletion is a change like another: it takes room over the files.
    check_space(&server.engine)?;
    let write = Write { name: text(table)?.into(), upserts: Vec::new(), deletes };
    check_changes(&server.engine, server.library.settings(), &write)?;
    operation(&server.engine, Operation::Write(write)).await?;
    Ok(Reply::OK)
}

/// TABLE.LIST
pub(super) async fn list(session: &mut Session, _: &[Bytes]) -> Result<Reply, Error> {
    let view = session.view().await?;
    let engine = &session.server.engine;
    let look = view.memory().tables.look();
    let seen = look.tables().map(|(name, _)| name).filter(|name| check_table(engine, name, LOOKUP).is_ok());
    Ok(Reply::Array(seen.map(Reply::text).collect()))
}

/// TABLE.INFO table
pub(super) async fn info(session: &mut Session, args: &[Bytes]) -> Result<Reply, Error> {
    let name = text(&args[0])?;
    let view = session.view().await?;
    let look = view.memory().tables.look();
    let Some(state) = look.table(name) else {
        return Err(LookupError::NoTable(name.into()).into());
    };
    let number = |number: u64| Reply::Integer(number as i64);
    let versions = state.versions.keys().map(|version| number(*version)).collect();
    Ok(Reply::Map(vec![
        (Reply::text("active"), number(state.table.active)),
        (Reply::text("versions"), Reply::Array(versions)),
        (Reply::text("changed_keys"), number(state.changed() as u64)),
    ]))
}
