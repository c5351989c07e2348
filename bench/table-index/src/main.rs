//! Measures lookups in process: nanoseconds of processor time per key. One thread looks up batches of 100
//! random existing keys and copies the 40-byte values into one buffer.
//!
//! Usage: `cargo run --release -- KEYS FOLDER`. The folder needs 48 bytes per key and must not be on a slow
//! disk.
//!
//! Three ways to find an entry of 48 bytes are compared: ours (pilots in parts, a real file), the crate
//! `ptr_hash`, and buckets ordered by hash with linear probing at 80% load. The latter two keep their entries
//! in anonymous memory, once on 4 KiB pages and once on huge pages.

use memmap2::{Advice, MmapMut};
use ptr_hash::{PtrHash, PtrHashParams, bucket_fn::Linear, hash::StrongerIntHash};
use quoin_table::{Codec, Options, Part, Place, Plan, Schema, Shard, ShardWriter, Table};
use std::hint::black_box;
use std::path::Path;

const ENTRY: usize = 48;
const BATCH: usize = 100;
const BATCHES: usize = 200_000;
const LOAD: f64 = 0.8;
type Index = PtrHash<u64, Linear, Vec<u32>, StrongerIntHash, Vec<u8>>;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count: u64 = arguments.next().ok_or_else(|| anyhow::anyhow!("KEYS FOLDER"))?.parse()?;
    let folder = arguments.next().ok_or_else(|| anyhow::anyhow!("KEYS FOLDER"))?;
    let keys: Vec<u64> = (0..count).map(|n| mix(n + 1)).collect();
    let asked: Vec<u64> =
        (0..(BATCH * BATCHES) as u64).map(|n| keys[reduce(mix(!n), count) as usize]).collect();
    ours(&keys, &asked, Path::new(&folder))?;
    for huge in [false, true] {
        ptr_hash(&keys, &asked, huge)?;
        probing(&keys, &asked, huge)?;
    }
    Ok(())
}

fn ours(keys: &[u64], asked: &[u64], folder: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let (file, schema, plan) =
        (folder.path().join("table"), Schema::fixed(Codec::Raw, 40), Plan::new(keys.len() as u64, 1));
    let began = cpu_ns();
    let mut parts = vec![Vec::new(); plan.parts as usize];
    keys.iter().for_each(|&key| parts[plan.part_of(key)].push(key));
    let mut writer = ShardWriter::create(&file, &schema, plan, 0)?;
    for keys in &parts {
        let values: Vec<[u8; 40]> = keys.iter().map(|key| value(*key)).collect();
        writer.append(&Part::build(&schema, keys, |position| &values[position])?)?;
    }
    let bytes = writer.finish()?.bytes;
    println!(
        "pilots: built in {:.0} ns/key by one thread, a file of {bytes} bytes",
        per_key(began, keys.len())
    );
    for place in [Place::Mapped, Place::Huge] {
        let table = Table::new(vec![Shard::open(&file, Options { place, lock: false })?])?;
        measure(&format!("pilots, {place:?}"), asked, |batch, out| {
            let mut found = 0;
            table.locate(batch, |at, value| {
                out[at * 40..at * 40 + 40].copy_from_slice(value);
                found += 1;
            });
            found
        });
    }
    Ok(())
}

fn ptr_hash(keys: &[u64], asked: &[u64], huge: bool) -> anyhow::Result<()> {
    let began = cpu_ns();
    let index: Index = PtrHash::new(keys, PtrHashParams::<Linear>::default_fast());
    println!("ptr_hash: index alone in {:.0} ns/key of the main thread", per_key(began, keys.len()));
    let mut entries = memory((index.max_index_no_remap() + 1) * ENTRY, huge)?;
    keys.iter().for_each(|&key| put(&mut entries, index.index_no_remap(&key), key, key));
    measure(&format!("ptr_hash, huge {huge}"), asked, |batch, out| {
        let (mut places, mut next) = ([0; BATCH], 0);
        index.index_stream_maybe_remap::<32, false, _>(batch.iter()).for_each(|slot| {
            places[next] = slot * ENTRY;
            prefetch(&entries, places[next]);
            next += 1;
        });
        (0..batch.len())
            .filter(|&at| copy(&entries, places[at], batch[at], &mut out[at * 40..at * 40 + 40]))
            .count()
    });
    Ok(())
}

fn probing(keys: &[u64], asked: &[u64], huge: bool) -> anyhow::Result<()> {
    let homes = (keys.len() as f64 / LOAD) as u64;
    let mut entries = memory((homes as usize + 4096) * ENTRY, huge)?;
    let mut hashes: Vec<(u64, u64)> = keys.iter().map(|&key| (mix(key), key)).collect();
    hashes.sort_unstable();
    let mut free = 0;
    for (hash, key) in hashes {
        // The hash stands for the key, because mix is a bijection. Zero marks an empty entry.
        free = free.max(reduce(hash, homes) as usize);
        put(&mut entries, free, hash, key);
        free += 1;
    }
    measure(&format!("probing, huge {huge}"), asked, |batch, out| {
        let mut places = [0; BATCH];
        for (place, &key) in places.iter_mut().zip(batch) {
            *place = reduce(mix(key), homes) as usize * ENTRY;
            prefetch(&entries, *place);
        }
        let find = |&at: &usize| {
            let (mut place, hash) = (places[at], mix(batch[at]));
            while !copy(&entries, place, hash, &mut out[at * 40..at * 40 + 40]) {
                place += ENTRY;
            }
            true
        };
        (0..batch.len()).filter(find).count()
    });
    Ok(())
}

fn measure(what: &str, asked: &[u64], mut lookup: impl FnMut(&[u64], &mut [u8]) -> usize) {
    let mut out = vec![0; BATCH * 40];
    let rounds: Vec<String> = (0..4)
        .map(|_| {
            let began = cpu_ns();
            let found: usize = asked.chunks(BATCH).map(|batch| lookup(batch, black_box(&mut out))).sum();
            assert_eq!(found, asked.len());
            format!("{:.1}", per_key(began, asked.len()))
        })
        .collect();
    println!("{what}: {} ns/key", rounds.join(" "));
}

fn per_key(began: u64, keys: usize) -> f64 {
    (cpu_ns() - began) as f64 / keys as f64
}

/// Processor time of this thread: other load on the machine counts only through its effect on the caches.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn memory(bytes: usize, huge: bool) -> std::io::Result<MmapMut> {
    let memory = MmapMut::map_anon(bytes.next_multiple_of(2 << 20))?;
    memory.advise(if huge { Advice::HugePage } else { Advice::NoHugePage })?;
    Ok(memory)
}

fn mix(key: u64) -> u64 {
    let x = (key ^ key >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

fn reduce(hash: u64, n: u64) -> u64 {
    (u128::from(hash) * u128::from(n) >> 64) as u64
}

fn value(key: u64) -> [u8; 40] {
    [key.to_le_bytes(); 5].concat().try_into().expect("five times eight bytes")
}

fn put(entries: &mut [u8], slot: usize, mark: u64, key: u64) {
    entries[slot * ENTRY..slot * ENTRY + 8].copy_from_slice(&mark.to_le_bytes());
    entries[slot * ENTRY + 8..(slot + 1) * ENTRY].copy_from_slice(&value(key));
}

fn copy(entries: &[u8], place: usize, mark: u64, out: &mut [u8]) -> bool {
    let entry = &entries[place..place + ENTRY];
    let same = entry[..8] == mark.to_le_bytes();
    if same {
        out.copy_from_slice(&entry[8..]);
    }
    same
}

fn prefetch(entries: &[u8], place: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for at in [place, place + ENTRY - 1] {
        let line = &entries[at];
        // SAFETY: the line is within `entries`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast()) }
    }
}
