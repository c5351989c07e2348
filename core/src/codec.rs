//! Small helpers for records that we lay out by hand: LEB128 varints and length-prefixed bytes, as
//! Protocol Buffers define them. Reading never panics: a short or malformed record is an error.

use bytes::{Buf, Bytes};

/// The bytes of a record cannot be what the writer wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what}")]
pub struct Malformed {
    /// Which record was being read.
    pub what: &'static str,
}

/// Appends `value` as a varint (1 to 10 bytes).
pub fn put_varint(out: &mut Vec<u8>, value: u64) {
    prost::encoding::encode_varint(value, out);
}

/// Appends `bytes` with its length before it.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a signed number zigzag-encoded, so that small negatives stay short.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Takes a record apart from its front. Byte strings come out as slices of the same buffer, not copies.
pub struct Reader {
    rest: Bytes,
    what: &'static str,
}

impl Reader {
    /// Reads `record`; errors will name `what`.
    pub fn new(record: Bytes, what: &'static str) -> Self {
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

    /// The next varint.
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        prost::encoding::decode_varint(&mut self.rest).map_err(|_| self.malformed())
    }

    /// The next zigzag-encoded number.
    pub fn signed(&mut self) -> Result<i64, Malformed> {
        let raw = self.varint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// The next length-prefixed byte string.
    pub fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let length = self.varint()?;
        self.take(usize::try_from(length).map_err(|_| self.malformed())?)
    }

    /// Exactly `length` bytes.
    pub fn take(&mut self, length: usize) -> Result<Bytes, Malformed> {
        if length > self.rest.len() {
            return Err(self.malformed());
        }
        Ok(self.rest.split_to(length))
    }

    /// All that is left.
    pub fn rest(self) -> Bytes {
        self.rest
    }

    /// True when nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}
