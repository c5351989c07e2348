//! Opens arbitrary bytes as a shard file, once as they are and once with valid checksums, and reads whatever
//! opens.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quoin_table::{Options, Shard, Table};

const BLOCK: usize = 64 << 10;
const HEADER: usize = 256;

fuzz_target!(|bytes: &[u8]| {
    exercise(bytes);
    if let Some(sealed) = seal(bytes) {
        exercise(&sealed);
    }
});

fn exercise(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("shard");
    std::fs::write(&file, bytes).expect("there is room");
    let Ok(shard) = Shard::open(&file, Options::default()) else { return };
    let keys: Vec<u64> =
        (0..shard.parts()).flat_map(|part| shard.entries(part)).map(|(key, _)| key).take(1000).collect();
    if let Ok(table) = Table::new(vec![shard]) {
        table.locate(&keys, |_, value| assert!(value.len() <= bytes.len()));
    }
}

/// The same bytes with valid checksums, so that the fuzzer gets past them.
fn seal(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    let at = u64::from_le_bytes(bytes.get(96..104)?.try_into().ok()?) as usize;
    if at < HEADER || at > bytes.len() {
        return None;
    }
    let sums: Vec<u32> = bytes[..at]
        .chunks(BLOCK)
        .enumerate()
        .map(|(number, block)| crc32c::crc32c(if number == 0 { &block[HEADER..] } else { block }))
        .collect();
    for (place, sum) in bytes[at..].chunks_exact_mut(4).zip(sums) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
    let sum = crc32c::crc32c(&bytes[at..]);
    bytes[108..112].copy_from_slice(&sum.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..HEADER - 4]);
    bytes[HEADER - 4..HEADER].copy_from_slice(&sum.to_le_bytes());
    Some(bytes)
}
