//! Measures the store: CPU time per operation, background work included, and the longest stalls.
//!
//! `cargo run --release --manifest-path bench/store/Cargo.toml -- [--keys N] [--puts N] [--gets N] [--rate
//! PER_S] [--cache-mib N] [--memtable-mib N] [--table-mib N] [--block-bytes N] [--history N] [--folder DIR]`
//!
//! One put is what a face does for a 1 KiB record: read the old version, write the new one, write a small
//! event record. Each batch of 256 puts stands for a log entry. `--rate` spaces the overwrites evenly (0 =
//! unlimited). `--folder` must name an empty folder or one that does not exist; the default is a temporary
//! one.

use quoin_core::store::{Order, Store};
use quoin_core::{Index, Sequence};
use quoin_store::{LsmStore, StoreOptions};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::{Duration, Instant};

const BATCH: u64 = 256;
const VALUE_BYTES: usize = 1024;

struct Settings {
    keys: u64,
    puts: u64,
    gets: u64,
    rate: u64,
    history: u64,
    folder: Option<String>,
    options: StoreOptions,
}

fn main() -> anyhow::Result<()> {
    let settings = settings()?;
    let scratch = tempfile::tempdir()?;
    let folder = settings.folder.as_deref().map_or(scratch.path(), std::path::Path::new);
    let store = LsmStore::open(folder, 1, settings.options.clone())?;
    let mut writer = Writer { store: &store, sequence: 0, index: 0, history: settings.history };
    println!(
        "{:<28}{:>10}{:>10}{:>10}{:>9}{:>9}{:>9}",
        "", "ops/s", "cpu us", "wall us", "p99 ms", "p99.9", "max ms"
    );

    measure("fill, shuffled keys", settings.keys, 0, |number| {
        // The factor is prime, so each key is written once.
        writer.batch(number, |place| place.wrapping_mul(0x9e37_79b1) % settings.keys)
    })?;
    let mut random = Random(2);
    measure("overwrite at random", settings.puts, settings.rate, |number| {
        writer.batch(number, |_| random.next() % settings.keys)
    })?;
    measure("flush", BATCH, 0, |_| Ok(store.flush()?))?;
    let newest = Sequence(writer.sequence);
    println!("{:?}", store.stats());

    let mut random = Random(3);
    measure("get at random", settings.gets, 0, |_| {
        for _ in 0..BATCH {
            assert!(store.get(&key(random.next() % settings.keys), newest)?.is_some());
        }
        Ok(())
    })?;
    measure("get at random, absent", settings.gets, 0, |_| {
        for _ in 0..BATCH {
            assert!(store.get(&key(settings.keys + random.next() % settings.keys), newest)?.is_none());
        }
        Ok(())
    })?;
    let mut scan = store.scan(b"k", b"l", newest, Order::Ascending);
    measure("scan, per key", settings.keys / BATCH * BATCH, 0, |_| {
        for _ in 0..BATCH {
            black_box(scan.next().expect("the fill wrote this many keys")?);
        }
        Ok(())
    })?;
    measure("scan of 10, per scan", settings.gets / 10, 0, |_| {
        for _ in 0..BATCH {
            let from = key(random.next() % settings.keys);
            assert!(store.scan(&from, b"l", newest, Order::Ascending).take(10).count() > 0);
        }
        Ok(())
    })?;
    if let Some(kib) = peak_memory_kib() {
        println!("peak memory {} MiB", kib / 1024);
    }
    Ok(())
}

struct Writer<'a> {
    store: &'a LsmStore,
    sequence: u64,
    index: u64,
    history: u64,
}

impl Writer<'_> {
    fn batch(&mut self, number: u64, mut choose: impl FnMut(u64) -> u64) -> anyhow::Result<()> {
        for place in number * BATCH..(number + 1) * BATCH {
            self.sequence += 1;
            let at = Sequence(self.sequence);
            let key = key(choose(place));
            black_box(self.store.get(&key, at)?);
            self.store.put(&key, value(self.sequence), at);
            let mut event = Vec::with_capacity(48);
            event.extend_from_slice(&self.sequence.to_le_bytes());
            event.extend_from_slice(&key);
            self.store.put(&event_key(self.sequence), event.into(), at);
        }
        self.sequence += 1;
        self.index += 1;
        self.store.put(b"\0p", self.index.to_le_bytes().to_vec().into(), Sequence(self.sequence));
        if self.index.is_multiple_of(64) {
            let kept = self.sequence.saturating_sub(self.history);
            self.store.forget(Sequence(kept), &event_key(0), &event_key(kept));
        }
        Ok(self.store.batch_applied(Index(self.index))?)
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("k{number:015}").into_bytes()
}

fn event_key(number: u64) -> Vec<u8> {
    [b"\0e".as_slice(), &number.to_be_bytes()].concat()
}

/// Half random bytes, half zeros: neither the best nor the worst case for compression.
fn value(seed: u64) -> bytes::Bytes {
    let mut random = Random(seed);
    let mut value = vec![0; VALUE_BYTES];
    for chunk in value[..VALUE_BYTES / 2].chunks_exact_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes());
    }
    value.into()
}

/// A mixed counter: cheap enough not to disturb the figures.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 31)
    }
}

fn measure(
    name: &str,
    operations: u64,
    rate: u64,
    mut batch: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let batches = (operations / BATCH).max(1);
    let mut walls = Vec::with_capacity(batches as usize);
    let (started, cpu_before) = (Instant::now(), cpu_time());
    for number in 0..batches {
        if rate > 0 {
            let due = started + Duration::from_secs_f64((number * BATCH) as f64 / rate as f64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let began = Instant::now();
        batch(number)?;
        walls.push(began.elapsed());
    }
    let (wall, cpu) = (started.elapsed(), cpu_time() - cpu_before);
    walls.sort();
    let done = (batches * BATCH) as f64;
    let ms = |share: f64| walls[((walls.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{name:<28}{:>10.0}{:>10.2}{:>10.2}{:>9.2}{:>9.2}{:>9.2}",
        done / wall.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / done,
        walls.iter().sum::<Duration>().as_secs_f64() * 1e6 / done,
        ms(0.99),
        ms(0.999),
        ms(1.0)
    );
    Ok(())
}

/// CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The largest resident size of this process so far; `None` where `/proc` does not tell.
fn peak_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().strip_suffix(" kB")?.parse().ok()
}

fn settings() -> anyhow::Result<Settings> {
    let mut settings = Settings {
        keys: 1_000_000,
        puts: 1_000_000,
        gets: 1_000_000,
        rate: 0,
        history: 100_000,
        folder: None,
        options: StoreOptions::default(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let text = arguments.next().ok_or_else(|| anyhow::anyhow!("{name} needs a value"))?;
        let number = || text.parse::<u64>().map_err(|error| anyhow::anyhow!("{name} {text}: {error}"));
        match name.as_str() {
            "--keys" => settings.keys = number()?,
            "--puts" => settings.puts = number()?,
            "--gets" => settings.gets = number()?,
            "--rate" => settings.rate = number()?,
            "--history" => settings.history = number()?,
            "--cache-mib" => settings.options.cache_bytes = number()? << 20,
            "--memtable-mib" => settings.options.memtable_bytes = number()? << 20,
            "--table-mib" => settings.options.table_bytes = number()? << 20,
            "--block-bytes" => settings.options.block_bytes = u32::try_from(number()?)?,
            "--folder" => settings.folder = Some(text),
            _ => anyhow::bail!("unknown argument {name}"),
        }
    }
    settings.keys = settings.keys.next_multiple_of(BATCH);
    Ok(settings)
}
