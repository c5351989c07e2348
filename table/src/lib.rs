//! Quoin's lookup tables: immutable files that map u64 keys to bytes, read a batch at a time.
//!
//! A *table* is a folder: a manifest and one file per shard. A *patch* is a folder too, with the keys that change and those
//! that go. Files are built once, checked when they are opened, mapped, and never written again.
//!
//! What is deliberately absent: Raft, the network, and which version is active. That is the node's.
//!
//! Reading order: [`format`](mod@format) and docs/table-format.md (the bytes), `hash` and `pilots` (where a key lies), [`codec`]
//! (what a value means), `writer` and `shard` (one file), [`table`] (a batch over all files), [`stack`]
//! (patches), [`manifest`] (a folder), `build` (from Parquet, CSV and JSON lines; feature `build`).
//!
//! ```
//! use quoin_table::{Codec, Options, Part, Plan, Schema, Shard, ShardWriter, Table};
//! let folder = tempfile::tempdir()?;
//! let (file, plan) = (folder.path().join("prices.qtb"), Plan::new(3, 1));
//! let schema = Schema::fixed(Codec::F32 { dimension: 1 }, 0);
//! let mut writer = ShardWriter::create(&file, &schema, plan, 0)?;
//! let prices = [1.5f32, 2.5, 3.5].map(f32::to_le_bytes);
//! writer.append(&Part::build(&schema, &[10, 20, 30], |position| &prices[position])?)?;
//! writer.finish()?;
//!
//! let table = Table::new(vec![Shard::open(&file, Options::default())?])?;
//! let mut found = Vec::new();
//! table.locate(&[20, 25, 10], |position, value| found.push((position, value.to_vec())));
//! assert_eq!(found, [(0, prices[1].to_vec()), (2, prices[0].to_vec())]);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "build")]
pub mod build;
pub mod codec;
pub mod error;
pub mod format;
mod hash;
pub mod hex;
pub mod manifest;
mod memory;
mod pilots;
mod shard;
pub mod stack;
pub mod table;
mod writer;

pub use codec::{Codec, EncodeError, Form};
pub use error::{FileError, TableError};
pub use format::{Layout, Schema};
pub use hash::shard_of;
pub use manifest::{FileEntry, Manifest};
pub use memory::Place;
pub use shard::{Options, Shard};
pub use stack::{Answer, Layer, Stack};
pub use table::Table;
pub use writer::{LayoutError, PART_KEYS, Part, Plan, Seal, ShardWriter};
