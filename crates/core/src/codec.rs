//! Helpers for records that we lay out by hand: LEB128 varints and length-prefixed bytes, as Protocol Buffers
//! define them. Reading never panics: a short or malformed record is an error.

use crate::charge::{self, Costs};
use crate::limits::COMMAND_BYTES_MAX;
use bytes::{Buf, Bytes};
use prost::Message;

/// A record's bytes cannot be what its writer wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what}")]
pub struct Malformed {
    /// Which record was being read.
    pub what: &'static str,
}

/// A face's command, as a message.
pub(crate) trait CommandMessage: Message + Default {
    /// What decoding it takes in memory.
    const COSTS: &'static Costs;
}

/// Decodes a command. `None` if it is longer than a command may be, would take too much memory, or is none of
/// this version.
pub(crate) fn decode_command<M: CommandMessage>(bytes: Bytes) -> Option<M> {
    // Invariant: Decoded is applied. What decoding allocates is bounded before anything is allocated.
    if bytes.len() > COMMAND_BYTES_MAX || !charge::fits(&bytes, M::COSTS) {
        return None;
    }
    M::decode(bytes).ok()
}

/// Appends `value` as a varint (1 to 10 bytes).
pub fn put_varint(out: &mut Vec<u8>, value: u64) {
    prost::encoding::encode_varint(value, out);
}

/// Appends `value` as a varint (1 to 19 bytes); the same bytes as [`put_varint`] where that could write it.
pub fn put_varint_u128(out: &mut Vec<u8>, mut value: u128) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number zigzag-encoded, so that small negatives stay short.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends `bytes` after its length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// What a [`Reader`] takes apart: shared [`Bytes`] or a borrowed slice. Neither is copied.
pub trait Source: Buf + AsRef<[u8]> + Sized {
    /// Takes the first `length` bytes off; there are as many.
    fn take_front(&mut self, length: usize) -> Self;
}

impl Source for Bytes {
    fn take_front(&mut self, length: usize) -> Self {
        self.split_to(length)
    }
}

impl Source for &[u8] {
    fn take_front(&mut self, length: usize) -> Self {
        let (front, rest) = self.split_at(length);
        *self = rest;
        front
    }
}

/// Takes a record apart from its front. Byte strings come out as parts of the source, not as copies.
#[derive(Clone, Debug)]
pub struct Reader<S = Bytes> {
    rest: S,
    what: &'static str,
}

impl<S: Source> Reader<S> {
    /// Reads `record`; errors will name `what`.
    pub fn new(record: S, what: &'static str) -> Self {
        Self { rest: record, what }
    }

    /// The error for this record.
    pub fn malformed(&self) -> Malformed {
        Malformed { what: self.what }
    }

    /// The next byte.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        self.rest.try_get_u8().map_err(|_| self.malformed())
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let array = *self.rest.as_ref().first_chunk().ok_or_else(|| self.malformed())?;
        self.rest.advance(N);
        Ok(array)
    }

    /// The next 8 bytes as a big-endian number, as in keys.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// The next 16 bytes as a big-endian number, as in keys.
    pub fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_be_bytes)
    }

    /// The next varint.
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        prost::encoding::decode_varint(&mut self.rest).map_err(|_| self.malformed())
    }

    /// The next varint of up to 128 bits.
    pub fn varint_u128(&mut self) -> Result<u128, Malformed> {
        let mut value = 0;
        for shift in (0..128).step_by(7) {
            let byte = self.byte()?;
            if shift == 126 && byte > 3 {
                return Err(self.malformed());
            }
            value |= u128::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.malformed())
    }

    /// The next zigzag-encoded number.
    pub fn signed(&mut self) -> Result<i64, Malformed> {
        let raw = self.varint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// The next length-prefixed byte string.
    pub fn bytes(&mut self) -> Result<S, Malformed> {
        let length = self.varint()?;
        self.take(usize::try_from(length).map_err(|_| self.malformed())?)
    }

    /// Exactly `length` bytes.
    pub fn take(&mut self, length: usize) -> Result<S, Malformed> {
        if length > self.rest.remaining() {
            return Err(self.malformed());
        }
        Ok(self.rest.take_front(length))
    }

    /// All that is left.
    pub fn rest(self) -> S {
        self.rest
    }

    /// How many bytes are left.
    pub fn len(&self) -> usize {
        self.rest.remaining()
    }

    /// True if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Reader<&'a [u8]> {
    /// The next length-prefixed text.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| self.malformed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_128_bits_round_trip_and_longer_ones_are_refused() {
        for value in [0, 1, 127, 128, u128::from(u64::MAX), u128::MAX] {
            let mut out = Vec::new();
            put_varint_u128(&mut out, value);
            assert_eq!(Reader::new(&out[..], "n").varint_u128(), Ok(value));
            if let Ok(short) = u64::try_from(value) {
                let mut same = Vec::new();
                put_varint(&mut same, short);
                assert_eq!(out, same);
            }
        }
        let beyond = [&[0xff; 18][..], &[4]].concat();
        assert!(Reader::new(&beyond[..], "n").varint_u128().is_err());
    }

    #[test]
    fn both_sources_read_the_same_and_refuse_what_is_cut() {
        let mut out = vec![7];
        put_signed(&mut out, -300);
        put_bytes(&mut out, b"text");
        out.extend_from_slice(&9u64.to_be_bytes());
        fn read<S: Source>(record: S) -> Result<(u8, i64, Vec<u8>, u64), Malformed> {
            let mut reader = Reader::new(record, "record");
            let read = (reader.byte()?, reader.signed()?, reader.bytes()?.as_ref().to_vec(), reader.u64()?);
            assert!(reader.is_empty());
            Ok(read)
        }
        let whole = Ok((7, -300, b"text".to_vec(), 9));
        assert_eq!((read(&out[..]), read(Bytes::copy_from_slice(&out))), (whole.clone(), whole));
        for length in 0..out.len() {
            let cut = &out[..length];
            assert!(read(cut).is_err() && read(Bytes::copy_from_slice(cut)).is_err(), "cut at {length}");
        }
    }
}
