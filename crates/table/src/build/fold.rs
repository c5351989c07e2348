//! From divided rows to a table folder: all threads lay out parts, which are appended in order.
//!
//! Memory is bounded because each thread holds one part (its records, and the part made of them) and takes
//! the next one only after it has appended the last.

use super::counters::Progress;
use super::error::BuildError;
use super::options::{Duplicates, Options};
use super::spill::{self, Divided};
use super::threads::in_threads;
use crate::codec::Codec;
use crate::error::FileError;
use crate::manifest::{FileEntry, Manifest};
use crate::part::{Part, Plan};
use crate::schema::Schema;
use crate::writer::ShardWriter;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

/// What was built.
#[derive(Clone, Debug)]
pub struct Built {
    /// The manifest, as written.
    pub manifest: Manifest,
    /// The number of rows read.
    pub rows: u64,
}

/// Writes all shards, then the manifest.
pub(super) fn write(
    options: &Options,
    schema: Schema,
    plan: Plan,
    divided: &Divided,
    rows: u64,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Built, BuildError> {
    let (files, deletes) = write_shards(options, &schema, plan, divided, rows, progress)?;
    let over = options.over.as_ref().map(|below| below.id.clone());
    let manifest = Manifest::new(&options.name, over, schema, files, deletes, options.metadata.clone());
    manifest.write(&options.output)?;
    Ok(Built { manifest, rows })
}

/// Writes all shards. Returns the files with values, and those with a patch's deletes (none if it deletes
/// nothing).
fn write_shards(
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
        let mut buffers = Buffers::default();
        loop {
            let number = taken.fetch_add(1, Ordering::Relaxed);
            if number >= plan.parts as usize || stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            buffers.load(divided, shard as usize * plan.parts as usize + number, options.duplicates)?;
            let values = buffers.values(schema)?;
            let deletes = patch.then(|| Part::build(&no_values, &buffers.deleted, |_| &[])).transpose()?;

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
        // Under the lock, so that no thread misses the notification between checking `stopped` and waiting.
        let _waiting = writers.lock();
        stopped.store(true, Ordering::Relaxed);
        turn.notify_all();
    })?;
    let Writers { values, deletes, .. } = writers.into_inner().expect("no thread panicked");
    let values = FileEntry::new(name("values"), values.finish()?);
    let deletes = deletes.map(ShardWriter::finish).transpose()?;
    Ok((values, deletes.map(|sealed| FileEntry::new(name("deletes"), sealed))))
}

/// One thread's buffers: the records of a part, and which of them win.
#[derive(Default)]
struct Buffers {
    records: Vec<u8>,
    places: Vec<(u64, usize)>,
    keys: Vec<u64>,
    at: Vec<usize>,
    deleted: Vec<u64>,
}

impl Buffers {
    fn load(&mut self, divided: &Divided, part: usize, duplicates: Duplicates) -> Result<(), BuildError> {
        divided.read(part, &mut self.records)?;
        spill::places(&self.records, &mut self.places);
        // By key; rows of the same key in the order of the inputs.
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
