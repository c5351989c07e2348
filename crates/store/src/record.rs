//! What the tree holds: how our keys, sequences and values are laid out in the engine's.
//!
//! - Key: the group (4 bytes, big-endian), then the store's key.
//! - The engine's sequence number: our sequence plus [`SEQNO_BASE`].
//! - Value: varint `sequence * 2 + live`, then the value. `live` 0 marks a deletion and is followed by
//!   nothing.
//!
//! **Invariant: Versions.** Every version of a key is an entry of its own, at the sequence of its command.
//!
//! The sequence is in the value too, because garbage collection must keep, for each key, everything newer
//! than the compacted sequence *and the newest version at or below it*. The engine's own rule drops that
//! version as soon as a newer one hides it, and its compaction filters see keys and values only, neither
//! sequence numbers nor tombstones. So a deletion is a value here, and each value carries its sequence.

use bytes::{Buf, Bytes};
use lsm_tree::{InternalValue, Slice, ValueType};
use quoin_core::Sequence;
use quoin_core::codec::{self, Malformed};

/// The engine stamps its manifests with sequence numbers below this one. It is also the watermark below which
/// the engine may drop hidden entries: none of ours.
pub(crate) const SEQNO_BASE: u64 = 16;

/// Every key begins with its group.
pub(crate) const GROUP_BYTES: usize = 4;

/// The engine's key for a store key of `group`.
pub(crate) fn tree_key(group: u32, key: &[u8]) -> Slice {
    let mut out = Vec::with_capacity(GROUP_BYTES + key.len());
    out.extend_from_slice(&group.to_be_bytes());
    out.extend_from_slice(key);
    Slice::from(out)
}

/// The engine's exclusive upper bound on sequence numbers for a read at `at`.
pub(crate) fn seqno_limit(at: Sequence) -> u64 {
    at.0.saturating_add(SEQNO_BASE + 1)
}

/// An entry for the engine; a `None` value is a deletion.
pub(crate) fn entry(key: Slice, value: Option<&[u8]>, at: Sequence) -> InternalValue {
    let header = at.0 << 1 | u64::from(value.is_some());
    let mut out = Vec::with_capacity(varint_length(header) + value.map_or(0, <[u8]>::len));
    codec::put_varint(&mut out, header);
    out.extend_from_slice(value.unwrap_or_default());
    InternalValue::from_components(key, out, at.0 + SEQNO_BASE, ValueType::Value)
}

/// The value within a stored value, not copied; `None` for a deletion.
pub(crate) fn decode(stored: Slice) -> Result<Option<Bytes>, Malformed> {
    let (_, live, length) = header(&stored)?;
    Ok(live.then(|| {
        let mut value = Bytes::from(stored);
        value.advance(length);
        value
    }))
}

/// A stored value's sequence, whether it is live, and the length of its header in bytes.
pub(crate) fn header(mut stored: &[u8]) -> Result<(Sequence, bool, usize), Malformed> {
    let whole = stored.len();
    let header =
        prost::encoding::decode_varint(&mut stored).map_err(|_| Malformed { what: "stored value" })?;
    Ok((Sequence(header >> 1), header & 1 == 1, whole - stored.len()))
}

fn varint_length(value: u64) -> usize {
    prost::encoding::encoded_len_varint(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_pinned() {
        let put = entry(tree_key(0x0102, b"k"), Some(b"value"), Sequence(300));
        assert_eq!(&put.key.user_key[..], b"\0\0\x01\x02k");
        assert_eq!(put.key.seqno, 316);
        assert_eq!(&put.value[..], b"\xd9\x04value");
        let deletion = entry(tree_key(0, b""), None, Sequence(1));
        assert_eq!(&deletion.value[..], b"\x02");
    }

    #[test]
    fn a_deletion_is_not_an_empty_value() {
        let stored = |value| decode(entry(tree_key(1, b"k"), value, Sequence(7)).value).unwrap();
        assert_eq!(stored(Some(b"")), Some(Bytes::new()));
        assert_eq!(stored(None), None);
        assert!(decode(Slice::empty()).is_err());
    }
}
