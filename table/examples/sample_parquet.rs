//! Writes a Parquet file to build tables from: distinct random u64 keys, 40 random bytes each. `sample_parquet ROWS FILE`.

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use parquet::arrow::ArrowWriter;
use std::sync::Arc;

const BATCH: u64 = 64 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(rows), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("sample_parquet ROWS FILE".into());
    };
    let rows: u64 = rows.parse()?;
    let mut writer = None;
    for first in (0..rows).step_by(BATCH as usize) {
        let numbers = first..rows.min(first + BATCH);
        let keys: UInt64Array = numbers.clone().map(random).collect();
        let mut values = FixedSizeBinaryBuilder::new(40);
        for number in numbers {
            let words: Vec<u8> =
                (0..5).flat_map(|word| random(number * 5 + word + rows).to_le_bytes()).collect();
            values.append_value(words)?;
        }
        let columns = [("key", Arc::new(keys) as ArrayRef), ("value", Arc::new(values.finish()) as ArrayRef)];
        let batch = RecordBatch::try_from_iter(columns)?;
        let writer = match &mut writer {
            Some(writer) => writer,
            none => none.insert(ArrowWriter::try_new(std::fs::File::create(&file)?, batch.schema(), None)?),
        };
        writer.write(&batch)?;
    }
    if let Some(writer) = writer {
        writer.close()?;
    }
    Ok(())
}

/// A bijection (splitmix64's), so that no key comes twice.
fn random(number: u64) -> u64 {
    let mut x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
