//! From divided rows to shard files: parts are laid out by all threads and appended in order.
//!
//! **Invariant.** A thread holds one part: its records, and what they become. It waits for its turn before it takes another.

use super::spill::{self, Divided};
use super::{BuildError, Duplicates, Options, Progress, in_threads};
use crate::codec::Codec;
use crate::error::FileError;
use crate::format::Schema;
use crate::manifest::FileEntry;
use crate::writer::{Part, Plan, ShardWriter};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

/// Writes all shards; says the files with values, and those with a patch's deletes (none where nothing is deleted).
pub(super) fn write(
    options: &Options,
    schema: &Schema,
    plan: Plan,
    divided: &Divided,
    rows: u64,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(Vec<FileEntry>, Vec<FileEntry>), BuildError> {
    let (mut values, mut deletes) = (Vec::new(), Vec::new());
    let parts_total = u64::from(plan.shards) * u64::from(plan.parts);
    for shard in 0..plan.shards {
        let report = |done: usize| {
            let parts = u64::from(shard) * u64::from(plan.parts) + done as u64;
            progress(Progress::Writing { parts, parts_total, rows });
        };
        let (written, deleted) = write_shard(options, schema, plan, shard, divided, &report)?;
        values.push(written);
        deletes.extend(deleted);
    }
    if deletes.iter().all(|file| file.count == 0) {
        for file in deletes.drain(..) {
            let path = options.output.join(&file.name);
            std::fs::remove_file(&path).map_err(|source| FileError::Io { file: path, source })?;
        }
    }
    Ok((values, deletes))
}

struct Writers {
    next: usize,
    values: ShardWriter,
    deletes: Option<ShardWriter>,
}

fn write_shard(
    options: &Options,
    schema: &Schema,
    plan: Plan,
    shard: u32,
    divided: &Divided,
    report: &(dyn Fn(usize) + Sync),
) -> Result<(FileEntry, Option<FileEntry>), BuildError> {
    let name = |what: &str| format!("{what}-{shard:05}-of-{:05}.qtb", plan.shards);
    let create =
        |name: &str, schema: &Schema| ShardWriter::create(&options.output.join(name), schema, plan, shard);
    let no_values = Schema::fixed(Codec::Raw, 0);
    let patch = options.over.is_some();
    let deletes = patch.then(|| create(&name("deletes"), &no_values)).transpose()?;
    let writers = Mutex::new(Writers { next: 0, values: create(&name("values"), schema)?, deletes });
    let (turn, stopped, taken) = (Condvar::new(), AtomicBool::new(false), AtomicUsize::new(0));

    let work = || -> Result<(), BuildError> {
        let mut room = Room::default();
        loop {
            let number = taken.fetch_add(1, Ordering::Relaxed);
            if number >= plan.parts as usize || stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            room.load(divided, shard as usize * plan.parts as usize + number, options.duplicates)?;
            let values = room.values(schema)?;
            let deletes = patch.then(|| Part::build(&no_values, &room.deleted, |_| &[])).transpose()?;

            let mut writers = writers.lock().expect("no thread panicked");
            while writers.next != number {
                if stopped.load(Ordering::Relaxed) {
                    return Ok(());
                }
                writers = turn.wait(writers).expect("no thread panicked");
            }
            writers.values.append(&values)?;
            if let (Some(writer), Some(part)) = (&mut writers.deletes, &deletes) {
                writer.append(part)?;
            }
            writers.next += 1;
            turn.notify_all();
            report(writers.next);
        }
    };
    in_threads(options.threads().min(plan.parts as usize), work, &|| {
        // Under the lock, so that nobody goes to wait after having looked and before being told.
        let _waiting = writers.lock();
        stopped.store(true, Ordering::Relaxed);
        turn.notify_all();
    })?;
    let Writers { values, deletes, .. } = writers.into_inner().expect("no thread panicked");
    let values = FileEntry::new(name("values"), values.finish()?);
    let deletes = deletes.map(ShardWriter::finish).transpose()?;
    Ok((values, deletes.map(|seal| FileEntry::new(name("deletes"), seal))))
}

/// One part's records, and which of them count.
#[derive(Default)]
struct Room {
    records: Vec<u8>,
    places: Vec<(u64, usize)>,
    keys: Vec<u64>,
    at: Vec<usize>,
    deleted: Vec<u64>,
}

impl Room {
    fn load(&mut self, divided: &Divided, part: usize, duplicates: Duplicates) -> Result<(), BuildError> {
        divided.read(part, &mut self.records)?;
        spill::places(&self.records, &mut self.places);
        // By key, and rows of one key in the order of the input.
        self.places.sort_unstable();
        self.keys.clear();
        self.at.clear();
        self.deleted.clear();
        for same in self.places.chunk_by(|left, right| left.0 == right.0) {
            let (key, at) = match duplicates {
                Duplicates::First => same[0],
                Duplicates::Last => same[same.len() - 1],
                Duplicates::Error if same.len() > 1 => return Err(BuildError::Duplicate(same[0].0)),
                Duplicates::Error => same[0],
            };
            if spill::value_at(&self.records, at).is_some() {
                self.keys.push(key);
                self.at.push(at);
            } else {
                self.deleted.push(key);
            }
        }
        Ok(())
    }

    fn values(&self, schema: &Schema) -> Result<Part, BuildError> {
        let value = |position: usize| spill::value_at(&self.records, self.at[position]).unwrap_or_default();
        Ok(Part::build(schema, &self.keys, value)?)
    }
}
