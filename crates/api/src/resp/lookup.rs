//! TABLE.LOOKUP and TABLE.MGET: many keys of a lookup table at once. They are on the hot path: keys are read
//! where they lie in the request, and values are written straight to the connection's buffer.

use super::reply::{Reply, Version, bulk, head};
use super::request::Arguments;
use super::server::Server;
use crate::error::Error;
use quoin_engine::ReadView;
use quoin_library::Found;
use quoin_table::Form;

/// Maximum bytes of buffers that a connection keeps between rounds.
const KEPT_BYTES: usize = 1 << 20;

/// How the keys of a lookup are written.
#[derive(Clone, Copy)]
pub(super) enum Lookup {
    /// TABLE.LOOKUP: keys of eight bytes, little-endian, one after the other; the reply has the values in one
    /// piece.
    Blob,
    /// TABLE.MGET: keys in decimal digits; the reply has a value for each.
    Decimal,
}

/// Buffers that the lookups of a connection share.
#[derive(Default)]
pub(super) struct Lookups {
    keys: Vec<u64>,
    found: Found,
}

impl Lookups {
    /// Appends the reply to `lookup` to `out`; nothing if there is an error.
    pub(super) fn answer(
        &mut self,
        server: &Server,
        view: &ReadView,
        (lookup, args): (Lookup, Arguments<'_>),
        version: Version,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.keys.clear();
        match lookup {
            Lookup::Blob => {
                let blob = args.get(2);
                let (keys, rest) = blob.as_chunks();
                if !rest.is_empty() {
                    let text = format!("the keys have {} bytes, which is not a multiple of 8", blob.len());
                    return Err(Error::invalid(text));
                }
                check_count(server, keys.len())?;
                self.keys.extend(keys.iter().map(|key| u64::from_le_bytes(*key)));
                self.find(server, view, args.get(1))?;
                self.write_whole(out);
            }
            Lookup::Decimal => {
                check_count(server, args.len() - 2)?;
                for text in args.iter().skip(2) {
                    self.keys.push(key(text)?);
                }
                self.find(server, view, args.get(1))?;
                self.write_each(version, out);
            }
        }
        Ok(())
    }

    /// Frees the buffers of a large lookup.
    pub(super) fn trim(&mut self) {
        let Self { keys, found: Found { answer, .. } } = self;
        if 8 * keys.capacity() + answer.values.capacity() + 4 * answer.offsets.capacity() > KEPT_BYTES {
            *self = Self::default();
        }
    }

    fn find(&mut self, server: &Server, view: &ReadView, table: &[u8]) -> Result<(), Error> {
        let bytes_max = server.engine.limits().response_bytes_max;
        server
            .library
            .lookup(&view.memory().tables, text(table)?, &self.keys, Form::Stored, bytes_max, &mut self.found)
            .map_err(Error::from)
    }

    /// Version, bitmap of the keys that were found, and values; where widths vary, then also the offsets of
    /// the values (four bytes each, little-endian, one more than there are keys).
    fn write_whole(&self, out: &mut Vec<u8>) {
        let Found { version, answer, .. } = &self.found;
        head(out, b'*', if answer.offsets.is_empty() { 3 } else { 4 });
        head(out, b':', *version as i64);
        bulk(out, &answer.found);
        bulk(out, &answer.values);
        if !answer.offsets.is_empty() {
            head(out, b'$', 4 * answer.offsets.len() as i64);
            answer.offsets.iter().for_each(|offset| out.extend_from_slice(&offset.to_le_bytes()));
            out.extend_from_slice(b"\r\n");
        }
    }

    /// A bulk string or null for each key.
    fn write_each(&self, version: Version, out: &mut Vec<u8>) {
        let Found { width, answer, .. } = &self.found;
        let (count, width) = (self.keys.len(), *width as usize);
        out.reserve(answer.values.len() + 16 * count);
        head(out, b'*', count as i64);
        for at in 0..count {
            if answer.found[at / 8] >> (at % 8) & 1 == 0 {
                Reply::Null.write(out, version);
                continue;
            }
            let place = match answer.offsets.get(at..at + 2) {
                Some(ends) => ends[0] as usize..ends[1] as usize,
                None => at * width..(at + 1) * width,
            };
            bulk(out, &answer.values[place]);
        }
    }
}

/// Refuses a command with more keys than `table.keys_max`.
pub(super) fn check_count(server: &Server, keys: usize) -> Result<(), Error> {
    let max = server.library.settings().keys_max;
    if keys > max {
        return Err(Error::invalid(format!("{keys} keys in one command, at most {max} (table.keys_max)")));
    }
    Ok(())
}

/// A table's name.
pub(super) fn text(name: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(name).map_err(|_| Error::invalid("the table's name is not UTF-8"))
}

/// A key in decimal digits.
pub(super) fn key(text: &[u8]) -> Result<u64, Error> {
    let digit = |number: Option<u64>, byte: &u8| {
        let digit = u64::from(byte.wrapping_sub(b'0'));
        if digit > 9 { None } else { number?.checked_mul(10)?.checked_add(digit) }
    };
    let number = if text.is_empty() { None } else { text.iter().fold(Some(0), digit) };
    number
        .ok_or_else(|| Error::invalid(format!("the key {:?} is not a u64", text.escape_ascii().to_string())))
}
