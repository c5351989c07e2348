//! Shard files through the public API: what is written is found, damage is refused, and the bytes are pinned.

mod damage;
mod golden;
mod model;

use quoin_table::{Options, Part, Plan, Schema, Shard, ShardWriter, Table};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Writes `entries` as the shard files of `plan` in `folder`.
fn write(folder: &Path, schema: &Schema, plan: Plan, entries: &BTreeMap<u64, Vec<u8>>) -> Vec<PathBuf> {
    let mut parts = vec![Vec::new(); (plan.shards * plan.parts) as usize];
    for &key in entries.keys() {
        parts[plan.part_of(key)].push(key);
    }
    let mut files = Vec::new();
    for (shard, parts) in parts.chunks(plan.parts as usize).enumerate() {
        let file = folder.join(format!("shard-{shard}"));
        let mut writer = ShardWriter::create(&file, schema, plan, shard as u32).expect("the folder is ours");
        for keys in parts {
            let part =
                Part::build(schema, keys, |position| &entries[&keys[position]]).expect("distinct keys");
            writer.append(&part).expect("there is room");
        }
        writer.finish().expect("there is room");
        files.push(file);
    }
    files
}

fn open(files: &[PathBuf], options: Options) -> Table {
    let shards = files.iter().map(|file| Shard::open(file, options).expect("whole")).collect();
    Table::new(shards).expect("all shards of one table")
}
