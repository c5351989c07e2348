//! The table that benches and the demo look up: distinct random keys, each with 40 bytes that identify the
//! key.

use anyhow::Result;
use quoin_table::{Codec, FileEntry, Manifest, Part, Plan, Schema, ShardWriter};
use std::path::{Path, PathBuf};

/// Bytes of a value.
pub const VALUE_BYTES: usize = 40;

/// Builds the table in a subfolder of `folder`, unless it exists. Returns the subfolder.
///
/// # Errors
/// The files cannot be written.
pub fn build(folder: &Path, name: &str, keys: u64) -> Result<PathBuf> {
    build_other(folder, name, keys, 0)
}

/// As [`build`], but each key has the value of the key `plus` above it.
pub(crate) fn build_other(folder: &Path, name: &str, keys: u64, plus: u64) -> Result<PathBuf> {
    let plain = format!("{name}-{keys}");
    let folder = folder.join(if plus == 0 { plain } else { format!("{plain}-plus-{plus}") });
    if Manifest::read(&folder).is_err() {
        std::fs::create_dir_all(&folder)?;
        let (schema, plan) = (Schema::fixed(Codec::Raw, VALUE_BYTES as u32), Plan::new(keys, 1));
        let mut parts = vec![Vec::new(); plan.parts as usize];
        (0..keys).map(key).for_each(|key| parts[plan.part_of(key)].push(key));
        let file = "values-00000-of-00001.qtb";
        let mut writer = ShardWriter::create(&folder.join(file), &schema, plan, 0)?;
        for keys in &parts {
            let values: Vec<[u8; VALUE_BYTES]> =
                keys.iter().map(|key| value(key.wrapping_add(plus))).collect();
            writer.append(&Part::build(&schema, keys, |position| &values[position])?)?;
        }
        let files = vec![FileEntry::new(file.into(), writer.finish()?)];
        Manifest::new(name, None, schema, files, Vec::new(), Default::default()).write(&folder)?;
    }
    Ok(folder.canonicalize()?)
}

/// The table's key number `number`. Distinct numbers give distinct keys: splitmix64 is a bijection.
pub fn key(number: u64) -> u64 {
    let mut x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The value of a key. It identifies the key.
pub fn value(key: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    for (word, bytes) in value.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&key.wrapping_add(word as u64).to_le_bytes());
    }
    value
}

/// Draws keys of the table uniformly.
#[derive(Clone, Debug)]
pub struct Keys {
    count: u64,
    state: u64,
}

impl Keys {
    /// Draws from the first `count` keys, in an order that depends on `seed`.
    pub fn new(count: u64, seed: u64) -> Self {
        Self { count, state: key(seed) }
    }

    /// Draws a key.
    pub fn draw(&mut self) -> u64 {
        self.state = key(self.state);
        key(self.state % self.count)
    }

    /// Draws `batch` keys.
    pub fn take(&mut self, batch: usize) -> Vec<u64> {
        (0..batch).map(|_| self.draw()).collect()
    }
}
