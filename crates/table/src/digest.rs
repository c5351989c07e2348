//! What identifies a file, and with all of them a table: a cryptographic digest, which nobody can give to other
//! bytes. Checksums only find accidents.
//!
//! BLAKE3 of the file's bytes from the end of the header on, then of the header, because a builder knows the header
//! last: so it is computed while the file is written.
//!
//! Deliberately absent: a check at every opening. A digest is checked where bytes come from somebody else; from then
//! on checksums guard them against the disk, at a multiple of the speed.

use crate::format::HEADER;
use crate::hex;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The digest of a shard file, or of a manifest's content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of a whole file, which has a header.
    pub(crate) fn of_file(bytes: &[u8]) -> Self {
        let (header, rest) = bytes.split_at(HEADER.min(bytes.len()));
        let mut hasher = Hasher::default();
        hasher.update(rest);
        hasher.finish(header)
    }

    /// The digest of plain bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// A file's digest in the making.
#[derive(Default)]
pub(crate) struct Hasher(blake3::Hasher);

impl Hasher {
    /// Adds the next bytes behind the header.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest, now that the header is known.
    pub(crate) fn finish(mut self, header: &[u8]) -> Digest {
        self.0.update(header);
        Digest(*self.0.finalize().as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = hex::decode(&text).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a digest")))
    }
}
