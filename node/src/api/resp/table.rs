//! `TABLE.*`: lookup tables over Redis's protocol, from the state that the connection's reads see: what is newest, or with READONLY
//! this replica's own.
//!
//! What is deliberately absent: versions' administration, which is gRPC's.

use super::frame::{self, Arguments, Reply, Version};
use crate::api::error;
use crate::api::table::{lookup_refused, operation};
use crate::engine::{Engine, ReadView};
use crate::table::Found;
use bytes::Bytes;
use quoin_core::table::{Operation, Upsert, Write};
use quoin_table::Form;
use tonic::Status;

/// Bytes that a connection's buffers keep between lookups.
const KEPT_BYTES: usize = 1 << 20;

/// TABLE.LOOKUP or TABLE.MGET: those that are asked millions of times.
#[derive(Clone, Copy)]
pub(super) enum Lookup<'a> {
    /// A table and keys of eight bytes, little-endian, behind each other.
    Blob(&'a [u8], &'a [u8]),
    /// The whole command; keys in decimal digits.
    Decimal(Arguments<'a>),
}

impl<'a> Lookup<'a> {
    /// The lookup that the command is, if it is one.
    pub(super) fn of(args: Arguments<'a>) -> Option<Self> {
        let is = |name: &[u8]| args.get(0).eq_ignore_ascii_case(name);
        match args.len() {
            3 if is(b"table.lookup") => Some(Self::Blob(args.get(1), args.get(2))),
            3.. if is(b"table.mget") => Some(Self::Decimal(args)),
            _ => None,
        }
    }
}

/// What lookups of a connection use again and again.
#[derive(Default)]
pub(super) struct Lookups {
    keys: Vec<u64>,
    found: Found,
}

impl Lookups {
    /// Appends the answer to `lookup` to `out`; nothing if there is none.
    pub(super) fn answer(
        &mut self,
        engine: &Engine,
        view: &ReadView,
        lookup: Lookup<'_>,
        version: Version,
        out: &mut Vec<u8>,
    ) -> Result<(), Status> {
        self.keys.clear();
        match lookup {
            Lookup::Blob(table, blob) => {
                let (keys, rest) = blob.as_chunks();
                if !rest.is_empty() {
                    let text = format!("the keys have {} bytes, which is no multiple of 8", blob.len());
                    return Err(error::invalid(text));
                }
                check_count(engine, keys.len())?;
                self.keys.extend(keys.iter().map(|key| u64::from_le_bytes(*key)));
                self.find(engine, view, table)?;
                self.write_whole(out);
            }
            Lookup::Decimal(args) => {
                check_count(engine, args.len() - 2)?;
                for text in args.iter().skip(2) {
                    self.keys.push(key(text)?);
                }
                self.find(engine, view, args.get(1))?;
                self.write_each(version, out);
            }
        }
        Ok(())
    }

    /// Gives back what one large lookup took.
    pub(super) fn trim(&mut self) {
        let Self { keys, found: Found { answer, .. } } = self;
        if 8 * keys.capacity() + answer.values.capacity() + 4 * answer.offsets.capacity() > KEPT_BYTES {
            *self = Self::default();
        }
    }

    fn find(&mut self, engine: &Engine, view: &ReadView, table: &[u8]) -> Result<(), Status> {
        let bytes_max = engine.limits().response_bytes_max;
        engine
            .library()
            .lookup(view.tables(), text(table)?, &self.keys, Form::Stored, bytes_max, &mut self.found)
            .map_err(|error| lookup_refused(&error))
    }

    /// Version, bitmap, values, and where widths vary their offsets (four bytes, little-endian; one more than there are keys).
    fn write_whole(&self, out: &mut Vec<u8>) {
        let Found { version, answer, .. } = &self.found;
        frame::head(out, b'*', if answer.offsets.is_empty() { 3 } else { 4 });
        frame::head(out, b':', *version as i64);
        frame::bulk(out, &answer.found);
        frame::bulk(out, &answer.values);
        if !answer.offsets.is_empty() {
            frame::head(out, b'$', 4 * answer.offsets.len() as i64);
            answer.offsets.iter().for_each(|offset| out.extend_from_slice(&offset.to_le_bytes()));
            out.extend_from_slice(b"\r\n");
        }
    }

    /// A bulk string or null for each key.
    fn write_each(&self, version: Version, out: &mut Vec<u8>) {
        let Found { width, answer, .. } = &self.found;
        let (count, width) = (self.keys.len(), *width as usize);
        out.reserve(answer.values.len() + 16 * count);
        frame::head(out, b'*', count as i64);
        for at in 0..count {
            if answer.found[at / 8] >> (at % 8) & 1 == 0 {
                Reply::Null.write(out, version);
                continue;
            }
            let place = match answer.offsets.get(at..at + 2) {
                Some(ends) => ends[0] as usize..ends[1] as usize,
                None => at * width..(at + 1) * width,
            };
            frame::bulk(out, &answer.values[place]);
        }
    }
}

/// Runs the other commands; `None` if there is none of this name that takes so many arguments.
pub(super) async fn run(
    engine: &Engine,
    view: &ReadView,
    name: &str,
    args: &[Bytes],
) -> Result<Option<Reply>, Status> {
    Ok(Some(match (name, args) {
        ("set", [table, pairs @ ..]) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
            set(engine, table, pairs).await?
        }
        ("del", [table, keys @ ..]) if !keys.is_empty() => del(engine, table, keys).await?,
        ("list", []) => {
            let look = view.tables().look();
            Reply::Array(look.tables().map(|(name, _)| Reply::text(name)).collect())
        }
        ("info", [table]) => info(view, table)?,
        _ => return Ok(None),
    }))
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
    let deletes = keys.iter().map(|text| key(text)).collect::<Result<Vec<_>, _>>()?;
    check_count(engine, deletes.len())?;
    let write = Write { name: text(table)?.into(), upserts: Vec::new(), deletes };
    operation(engine, Operation::Write(write)).await?;
    Ok(Reply::OK)
}

fn info(view: &ReadView, table: &[u8]) -> Result<Reply, Status> {
    let name = text(table)?;
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

fn text(name: &[u8]) -> Result<&str, Status> {
    std::str::from_utf8(name).map_err(|_| error::invalid("the table's name is not UTF-8"))
}

fn key(text: &[u8]) -> Result<u64, Status> {
    let digit = |number: Option<u64>, byte: &u8| {
        let digit = u64::from(byte.wrapping_sub(b'0'));
        if digit > 9 { None } else { number?.checked_mul(10)?.checked_add(digit) }
    };
    let number = if text.is_empty() { None } else { text.iter().fold(Some(0), digit) };
    number.ok_or_else(|| error::invalid(format!("the key {:?} is no u64", text.escape_ascii().to_string())))
}
