//! One part of a shard, laid out in memory: its entries, its heap and its pilots.
//!
//! Parts are independent, so several threads can lay them out at once. The same keys and values give the same
//! bytes, unless the keys were chosen to collide.
//!
//! Deliberately absent: where keys come from. The caller resolves duplicates and gives each part exactly the
//! keys that [`Plan::part_of`] assigns to it.

use crate::hash;
use crate::pilots::Pilots;
use crate::schema::{Layout, Schema, VALUE_BYTES_MAX};

/// The intended number of keys per part: few enough that each builder thread can hold one part in memory.
pub const PART_KEYS: u64 = 256 << 10;

/// How a table's keys are divided into shards, and each shard into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Files of the table.
    pub shards: u32,
    /// Parts of each file.
    pub parts: u32,
}

impl Plan {
    /// A plan for about `keys` keys in `shards` files (at least one).
    pub fn new(keys: u64, shards: u32) -> Self {
        let parts = keys.div_ceil(u64::from(shards.max(1)) * PART_KEYS).clamp(1, 1 << 16);
        Self { shards: shards.max(1), parts: parts as u32 }
    }

    /// The part of `key`, counted through the parts of all shards in order.
    #[inline]
    pub fn part_of(self, key: u64) -> usize {
        let parts = u64::from(self.parts);
        let (shard, part) = hash::shard_and_part(hash::mix(key), u64::from(self.shards), |_| parts);
        shard * self.parts as usize + part
    }
}

/// A part, ready to be appended to a shard file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub(crate) entries: Vec<u8>,
    pub(crate) heap: Vec<u8>,
    pub(crate) pilots: Pilots,
    pub(crate) count: u32,
}

/// Why keys cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A value's width differs from the schema's.
    #[error("the value of key {key} has {found} bytes, but the table's values have {expected}")]
    Width {
        /// The value's key.
        key: u64,
        /// The schema's width in bytes.
        expected: u32,
        /// The value's width in bytes.
        found: usize,
    },
    /// A value exceeds [`VALUE_BYTES_MAX`].
    #[error("the value of key {key} has {found} bytes, more than {VALUE_BYTES_MAX}")]
    TooLarge {
        /// The value's key.
        key: u64,
        /// The value's width in bytes.
        found: usize,
    },
    /// A key occurs twice.
    #[error("no index for {count} keys: one of them occurs twice")]
    NoIndex {
        /// Keys in the part.
        count: usize,
    },
}

impl Part {
    /// Lays out `keys`, which are distinct and belong to one part. `value` returns the value of the key at a
    /// position.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn build<'a>(
        schema: &Schema,
        keys: &[u64],
        value: impl Fn(usize) -> &'a [u8],
    ) -> Result<Self, LayoutError> {
        if keys.is_empty() {
            let pilots = Pilots { seed: 0, slots: 0, pilots: Vec::new() };
            return Ok(Self { entries: Vec::new(), heap: Vec::new(), pilots, count: 0 });
        }
        let hashes: Vec<u64> = keys.iter().map(|&key| hash::mix(key)).collect();
        let pilots = Pilots::build(&hashes).ok_or(LayoutError::NoIndex { count: keys.len() })?;
        let stride = schema.stride();
        let mut entries = vec![0; pilots.slots as usize * stride];
        let mut heap = Vec::new();
        // A free slot holds a key that belongs in another slot, so no lookup matches it.
        let first = pilots.slot(hashes[0]) as usize;
        for slot in (0..pilots.slots as usize).filter(|&slot| slot != first) {
            entries[slot * stride..slot * stride + 8].copy_from_slice(&keys[0].to_le_bytes());
        }
        for (position, (&key, &hash)) in keys.iter().zip(&hashes).enumerate() {
            let at = pilots.slot(hash) as usize * stride;
            write_entry(schema.layout, key, value(position), &mut entries[at..at + stride], &mut heap)?;
        }
        Ok(Self { entries, heap, pilots, count: keys.len() as u32 })
    }
}

fn write_entry(
    layout: Layout,
    key: u64,
    value: &[u8],
    entry: &mut [u8],
    heap: &mut Vec<u8>,
) -> Result<(), LayoutError> {
    entry[..8].copy_from_slice(&key.to_le_bytes());
    match layout {
        Layout::Fixed { width } if value.len() != width as usize => {
            Err(LayoutError::Width { key, expected: width, found: value.len() })
        }
        Layout::Fixed { .. } => {
            entry[8..].copy_from_slice(value);
            Ok(())
        }
        Layout::Variable { .. } if value.len() > VALUE_BYTES_MAX => {
            Err(LayoutError::TooLarge { key, found: value.len() })
        }
        Layout::Variable { inline } => {
            entry[8..12].copy_from_slice(&(value.len() as u32).to_le_bytes());
            if value.len() <= inline as usize {
                entry[12..12 + value.len()].copy_from_slice(value);
            } else {
                entry[12..20].copy_from_slice(&(heap.len() as u64).to_le_bytes());
                heap.extend_from_slice(value);
            }
            Ok(())
        }
    }
}
