//! A Parquet file to build a table from: distinct random u64 keys, 40 random bytes each.

use anyhow::Result;
use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use parquet::arrow::ArrowWriter;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

const BATCH: u64 = 64 << 10;

/// Writes `rows` rows. The file gets its name only once it is complete.
pub(crate) fn write(file: &Path, rows: u64) -> Result<()> {
    let partial = file.with_extension("partial");
    let mut writer: Option<ArrowWriter<File>> = None;
    for first in (0..rows).step_by(BATCH as usize) {
        let batch = batch(first..rows.min(first + BATCH), rows)?;
        let writer = match &mut writer {
            Some(writer) => writer,
            none => none.insert(ArrowWriter::try_new(File::create(&partial)?, batch.schema(), None)?),
        };
        writer.write(&batch)?;
    }
    if let Some(writer) = writer {
        writer.close()?;
        std::fs::rename(partial, file)?;
    }
    Ok(())
}

fn batch(numbers: std::ops::Range<u64>, rows: u64) -> Result<RecordBatch> {
    let keys: UInt64Array = numbers.clone().map(random).collect();
    let mut values = FixedSizeBinaryBuilder::new(40);
    for number in numbers {
        let words: Vec<u8> = (0..5).flat_map(|word| random(number * 5 + word + rows).to_le_bytes()).collect();
        values.append_value(words)?;
    }
    let columns = [("key", Arc::new(keys) as ArrayRef), ("value", Arc::new(values.finish()) as ArrayRef)];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// splitmix64's finalizer: a bijection, so no key occurs twice.
fn random(number: u64) -> u64 {
    let mut x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
