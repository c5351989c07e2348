//! What a transfer has for its client alone: three numbers, as TigerBeetle has them, and texts by name. The
//! ledger keeps them and finds transfers by the numbers; it does nothing else with them.
//!
//! Metadata is encoded as names and values, each a length and its bytes, in the order of the names, which
//! differ. So equal metadata are equal bytes.

use crate::codec::{self, Malformed, Reader};
use std::collections::BTreeMap;
use std::fmt;

/// Maximum bytes of all names and values of a transfer's metadata.
pub const TRANSFER_METADATA_BYTES_MAX: usize = 1024;

const USER_DATA_128: u64 = 0x100;
const USER_DATA_64: u64 = 0x200;
const USER_DATA_32: u64 = 0x400;
const METADATA: u64 = 0x800;
/// All of their bits.
pub(super) const EXTRAS: u64 = USER_DATA_128 | USER_DATA_64 | USER_DATA_32 | METADATA;

/// Numbers and texts that are the client's. Zero and empty are the same as absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra<'a> {
    /// Any number, as an order's UUID.
    pub user_data_128: u128,
    /// Any number, as a time.
    pub user_data_64: u64,
    /// Any number, as a shop.
    pub user_data_32: u32,
    /// Any texts by name.
    pub metadata: Metadata<'a>,
}

impl<'a> Extra<'a> {
    /// The bits of those that are there.
    pub(super) fn bits(&self) -> u64 {
        let bit = |wanted: bool, bit: u64| if wanted { bit } else { 0 };
        bit(self.user_data_128 > 0, USER_DATA_128)
            | bit(self.user_data_64 > 0, USER_DATA_64)
            | bit(self.user_data_32 > 0, USER_DATA_32)
            | bit(!self.metadata.is_empty(), METADATA)
    }

    pub(super) fn encode_into(&self, out: &mut Vec<u8>) {
        if self.user_data_128 > 0 {
            codec::put_varint_u128(out, self.user_data_128);
        }
        if self.user_data_64 > 0 {
            codec::put_varint(out, self.user_data_64);
        }
        if self.user_data_32 > 0 {
            codec::put_varint(out, self.user_data_32.into());
        }
        if !self.metadata.is_empty() {
            codec::put_bytes(out, self.metadata.0);
        }
    }

    /// Reads those whose `bits` are set.
    pub(super) fn decode_from(from: &mut Reader<&'a [u8]>, bits: u64) -> Result<Self, Malformed> {
        let mut extra = Self::default();
        if bits & USER_DATA_128 != 0 {
            extra.user_data_128 = from.varint_u128()?;
        }
        if bits & USER_DATA_64 != 0 {
            extra.user_data_64 = from.varint()?;
        }
        if bits & USER_DATA_32 != 0 {
            extra.user_data_32 = u32::try_from(from.varint()?).map_err(|_| from.malformed())?;
        }
        if bits & METADATA != 0 {
            extra.metadata = Metadata::decode(from.bytes()?)?;
        }
        // There is one way to encode them.
        if extra.bits() == bits & EXTRAS { Ok(extra) } else { Err(from.malformed()) }
    }
}

/// Texts by name, as a transfer has them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Metadata<'a>(&'a [u8]);

impl<'a> Metadata<'a> {
    /// Encodes texts, for [`Self::encoded`].
    pub fn encode(texts: &BTreeMap<String, String>) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, text) in texts {
            codec::put_bytes(&mut out, name.as_bytes());
            codec::put_bytes(&mut out, text.as_bytes());
        }
        out
    }

    /// What [`Self::encode`] made.
    ///
    /// # Panics
    /// It was not made by that.
    pub fn encoded(bytes: &'a [u8]) -> Self {
        Self::decode(bytes).expect("encoded by this module")
    }

    fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, "metadata of a transfer");
        let mut before = None;
        while !reader.is_empty() {
            let name = reader.text()?;
            reader.text()?;
            if before.is_some_and(|before| before >= name) {
                return Err(reader.malformed());
            }
            before = Some(name);
        }
        Ok(Self(bytes))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of all names and values.
    pub fn bytes(&self) -> usize {
        self.iter().map(|(name, text)| name.len() + text.len()).sum()
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let mut reader = Reader::new(self.0, "metadata of a transfer");
        std::iter::from_fn(move || {
            if reader.is_empty() {
                return None;
            }
            let mut text = || reader.text().expect("checked when it was decoded");
            Some((text(), text()))
        })
    }
}

impl fmt::Debug for Metadata<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
