//! Quoin's lookup tables: immutable files that map u64 keys to bytes, read in batches.
//!
//! A *table* is a folder with a manifest and one file per shard. A *patch* is also a folder: it holds the
//! keys that it sets and the keys that it deletes. Files are built once, checked when they are opened,
//! mapped, and never written again.
//!
//! Deliberately absent: Raft, the network, and the choice of the active version. Those belong to the node.
//!
//! Reading order: [`schema`] and [`codec`] (what values are), docs/table-format.md and `format` (the bytes),
//! `hash` and `pilots` (where a key is stored), `part`, `blocks`, `digest` and `writer` (writing a file), `memory` and
//! `shard` (opening one), `recheck` (reading one again), [`manifest`] (a folder), `folds` (which changes are in it), [`table`] (a batch over all shards), [`stack`] (patches),
//! [`answer`] (a batch's values in one buffer), `build` (from Parquet, CSV and JSON lines; feature `build`).
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

pub mod answer;
mod blocks;
#[cfg(feature = "build")]
pub mod build;
pub mod codec;
mod cut;
mod digest;
mod error;
mod folds;
mod format;
mod hash;
pub mod hex;
pub mod manifest;
mod memory;
mod part;
mod pilots;
mod recheck;
pub mod schema;
mod shard;
pub mod stack;
pub mod table;
mod writer;

pub use answer::Answer;
pub use codec::{Codec, EncodeError, Form};
pub use digest::Digest;
pub use error::{FileError, TableError};
pub use folds::{Folds, NotFolds};
pub use format::Seal;
pub use hash::shard_of;
pub use manifest::{FileEntry, Manifest};
pub use memory::Place;
pub use part::{LayoutError, PART_KEYS, Part, Plan};
pub use recheck::{check_foreign, recheck};
pub use schema::{Layout, Schema};
pub use shard::{Options, Shard};
pub use stack::{Layer, Stack};
pub use table::Table;
pub use writer::ShardWriter;
