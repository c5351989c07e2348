//! Tests of the whole store on real files.

#[cfg(target_os = "linux")]
mod crashes;
mod faces;
mod snapshot;

use crate::{LsmStore, StoreFolder, StoreOptions};
use bytes::Bytes;
use quoin_core::machines::read_progress;
use quoin_core::store::Order;
use quoin_core::store::contract::{self, Random};
use quoin_core::{Index, Machines, Revision, Sequence, Store};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tempfile::TempDir;

/// So small that a test flushes and compacts often.
fn small() -> StoreOptions {
    StoreOptions {
        cache_bytes: 1 << 20,
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        files_open_max: 8,
        ..StoreOptions::default()
    }
}

fn open(folder: &TempDir) -> LsmStore {
    LsmStore::open(folder.path(), 7, small()).unwrap()
}

const NEWEST: Sequence = Sequence(u64::MAX - 1);

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

fn value(number: u64) -> Bytes {
    format!("value{number:06}").repeat(50).into()
}

#[test]
fn the_store_keeps_the_contract() {
    for seed in 0..6 {
        let folder = TempDir::new().unwrap();
        let store = open(&folder);
        let mut index = 0;
        contract::check(&store, seed, 1500, &mut |random| {
            index += 1;
            match random % 8 {
                0 => store.compact_fully().unwrap(),
                1..=4 => store.flush().unwrap(),
                _ => store.batch_applied(Index(index)).unwrap(),
            }
        });
        assert!(store.stats().flushes > 10);
    }
}

/// Without threads whoever waits does the work: nothing is waited for in vain.
#[test]
fn a_stepped_store_keeps_the_contract() {
    for seed in 0..3 {
        let folder = TempDir::new().unwrap();
        let store = LsmStore::open(
            folder.path(),
            7,
            StoreOptions { stepped: true, memtables_sealed_max: 1, ..small() },
        );
        let (store, mut index) = (store.unwrap(), 0);
        contract::check(&store, seed, 1500, &mut |random| {
            index += 1;
            match random % 8 {
                0 => store.compact_fully().unwrap(),
                1 | 2 => store.flush().unwrap(),
                3 => store.work_background(),
                _ => store.batch_applied(Index(index)).unwrap(),
            }
        });
        assert!(store.stats().flushes > 10 && store.stats().compactions > 0, "{:?}", store.stats());
    }
}

/// One thread writes, flushes and compacts. Others read keys that are about to be written, some at older
/// sequences, and must see the newest version announced by then, and no later one.
#[test]
fn readers_beside_the_writer_see_exactly_what_was_announced() {
    const KEYS: u64 = 1000;
    const LAST: u64 = 15_000;
    let folder = TempDir::new().unwrap();
    let (store, announced) = (open(&folder), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..3u64 {
            let (store, announced) = (&store, &announced);
            scope.spawn(move || {
                let mut random = Random::new(reader);
                while announced.load(SeqCst) < LAST {
                    let at = announced.load(SeqCst).saturating_sub(random.below(3) * random.below(5));
                    let which = (at + random.below(8)) % KEYS;
                    // Write `n` goes to key `n % KEYS`; every seventh is a deletion.
                    let newest = at.checked_sub((at + KEYS - which) % KEYS).filter(|newest| *newest > 0);
                    let expected = newest.filter(|newest| !newest.is_multiple_of(7)).map(value);
                    let seen = store.get(&key(which), Sequence(at)).unwrap();
                    assert!(seen == expected, "key {which} at {at}: {seen:?}, not {expected:?}");
                }
            });
        }
        for number in 1..=LAST {
            match number % 7 {
                0 => store.delete(&key(number % KEYS), Sequence(number)),
                _ => store.put(&key(number % KEYS), value(number), Sequence(number)),
            }
            store.batch_applied(Index(number)).unwrap();
            announced.store(number, SeqCst);
        }
    });
    assert!(store.stats().flushes > 10);
}

/// Applies empty log entries, which write only their progress, and writes one key for each.
fn apply(store: &LsmStore, machines: &mut Machines, entries: u64) {
    for _ in 0..entries {
        let index = machines.progress().index.next();
        let at = machines.progress().sequence.next();
        store.put(&key(index.0), value(index.0), at);
        machines.apply(store, index, quoin_core::Term(1), Bytes::new()).unwrap();
        store.batch_applied(index).unwrap();
    }
}

#[test]
fn after_a_crash_the_store_holds_what_was_flushed_with_the_progress_of_that() {
    let folder = TempDir::new().unwrap();
    let mut applied = 0;
    let mut random = Random::new(1);
    for _ in 0..8 {
        let store = open(&folder);
        let mut machines = Machines::open(&store).unwrap();
        let index = machines.progress().index;
        assert!(index.0 <= applied, "nothing that was not applied");
        assert_eq!(store.persisted_index(), index);
        for number in 1..=index.0 {
            assert_eq!(store.get(&key(number), NEWEST).unwrap(), Some(value(number)), "{number}");
        }
        assert_eq!(store.get(&key(index.0 + 1), NEWEST).unwrap(), None);
        let entries = random.below(600);
        apply(&store, &mut machines, entries);
        applied = index.0 + entries;
        let flushed = random.once_in(2);
        if flushed {
            store.flush().unwrap();
            assert_eq!(store.persisted_index(), Index(applied));
        }
        let persisted = store.persisted_index();
        drop(store);
        let after = read_progress(&open(&folder)).unwrap();
        assert!(after.index >= persisted, "what was reported as persisted is there");
        assert!(!flushed || after.index == Index(applied));
        assert_eq!(after.revision, Revision(1));
    }
}

#[test]
fn an_old_memtable_is_flushed_even_if_it_is_small() {
    let folder = TempDir::new().unwrap();
    let options = StoreOptions { flush_after: Duration::ZERO, ..small() };
    let store = LsmStore::open(folder.path(), 7, options).unwrap();
    let mut machines = Machines::open(&store).unwrap();
    apply(&store, &mut machines, 3);
    store.shared.wait_until(|layers| layers.sealed.is_empty()).unwrap();
    assert_eq!(store.persisted_index(), Index(3));
}

#[test]
fn forgotten_versions_and_dead_keys_are_removed_from_disk() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    let log = |number: u64| [b"\0e".as_slice(), &number.to_be_bytes()].concat();
    for sequence in 1..=3000 {
        store.put(&key(sequence % 10), value(sequence), Sequence(sequence));
        store.put(&log(sequence), value(sequence), Sequence(sequence));
        store.batch_applied(Index(sequence)).unwrap();
    }
    store.flush().unwrap();
    let before = store.stats();
    assert!(before.table_entries >= 6000);
    let pin = store.pin(Sequence(3000)).unwrap();
    store.forget(Sequence(3000), &log(0), &log(3000));
    store.compact_fully().unwrap();
    assert_eq!(store.stats().table_entries, before.table_entries, "a pin keeps everything");
    drop(pin);
    store.compact_fully().unwrap();
    assert_eq!(store.stats().table_entries, 11);
    // The background threads may still hold replaced layers.
    let begun = std::time::Instant::now();
    while std::fs::read_dir(folder.path().join("tables")).unwrap().count() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "old files remain");
        store.shared.layers.drop_retired();
        std::thread::yield_now();
    }
}

#[test]
fn deletions_are_removed_from_disk_once_they_hide_nothing() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    store.put(b"a", value(1), Sequence(1));
    store.delete(b"a", Sequence(2));
    store.put(b"b", value(3), Sequence(3));
    store.compact_fully().unwrap();
    assert_eq!(store.stats().table_entries, 3);
    store.forget(Sequence(3), b"", b"");
    store.compact_fully().unwrap();
    assert_eq!(store.stats().table_entries, 1);
}

/// Nothing merged while no entry was applied, so deleting freed nothing.
#[test]
fn an_idle_store_that_is_asked_gives_back_what_was_deleted() {
    let folder = TempDir::new().unwrap();
    let store =
        LsmStore::open(folder.path(), 7, StoreOptions { memtable_bytes: 1 << 20, ..small() }).unwrap();
    for number in 0..1000 {
        store.put(&key(number), value(number), Sequence(1));
    }
    store.batch_applied(Index(1)).unwrap();
    store.flush().unwrap();
    for number in 0..1000 {
        store.delete(&key(number), Sequence(2));
    }
    store.batch_applied(Index(2)).unwrap();
    store.forget(Sequence(2), b"", b"");
    let number = store.ask_reclaim();
    assert!(store.is_reclaiming() && store.reclaimed(number).is_none(), "the writer has not been there");
    store.between_entries();
    let begun = std::time::Instant::now();
    while store.reclaimed(number).is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it was never done");
        std::thread::yield_now();
    }
    store.reclaimed(number).unwrap().unwrap();
    let stats = store.stats();
    assert_eq!((stats.table_entries, stats.memtable_bytes), (0, 0));
    assert_eq!(store.persisted_index(), Index(2));
}

/// The engine leaves behind what a failed merge has written. On a full disk every attempt took more of it.
#[test]
fn a_merge_without_room_fails_and_leaves_no_files() {
    let folder = TempDir::new().unwrap();
    let store =
        LsmStore::open(folder.path(), 7, StoreOptions { free_bytes_min: u64::MAX, ..small() }).unwrap();
    for round in 1..=3 {
        for number in 0..100 {
            store.put(&key(number), value(number), Sequence(round));
        }
        store.batch_applied(Index(round)).unwrap();
        store.flush().unwrap();
        let error = store.compact_fully().unwrap_err();
        let said = std::error::Error::source(&error).unwrap().to_string();
        assert!(said.starts_with("the disk has no room to merge the store"), "{said}");
        let files = std::fs::read_dir(folder.path().join("tables")).unwrap().count();
        assert_eq!(files, store.stats().tables, "round {round}");
    }
    store.health().unwrap();
    assert_eq!(store.get(&key(7), NEWEST).unwrap(), Some(value(7)));
}

/// A merge that failed after its manifest was in place had its tables removed: the store could not be opened again.
#[test]
fn what_a_failed_merge_leaves_stays_if_the_manifest_on_disk_may_list_it() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    store.put(&key(1), value(1), Sequence(1));
    // After the second one nothing is left to be merged.
    (0..2).for_each(|_| store.compact_fully().unwrap());
    let (left, current) = (folder.path().join("tables/999"), folder.path().join("current"));
    let found = std::fs::read(&current).unwrap();
    let mut newer = found.clone();
    newer[0] += 1;
    std::fs::write(&left, b"").unwrap();
    std::fs::write(&current, newer).unwrap();
    store.shared.tree.sweep(999);
    assert!(left.exists());
    std::fs::write(&current, found).unwrap();
    store.shared.tree.sweep(999);
    assert!(!left.exists());
}

#[test]
fn a_scan_sees_nothing_of_what_happens_after_it_began() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    for number in 0..500 {
        store.put(&key(number), value(number), Sequence(1));
    }
    store.flush().unwrap();
    let mut scan = store.scan(b"", b"", Sequence(1), Order::Ascending);
    assert_eq!(scan.next().unwrap().unwrap().0, key(0));
    for number in 0..500 {
        store.delete(&key(number), Sequence(2));
    }
    store.forget(Sequence(2), b"", b"");
    store.compact_fully().unwrap();
    assert_eq!(scan.count(), 499);
    assert_eq!(store.scan(b"", b"", Sequence(2), Order::Ascending).count(), 0);
}

#[test]
fn groups_do_not_see_each_other() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    store.put(b"k", value(1), Sequence(1));
    store.flush().unwrap();
    drop(store);
    let other = LsmStore::open(folder.path(), 6, small()).unwrap();
    assert_eq!(other.get(b"k", Sequence(9)).unwrap(), None);
    assert_eq!(other.scan(b"", b"", Sequence(9), Order::Ascending).count(), 0);
}

fn files(folder: &TempDir) -> Vec<PathBuf> {
    let list = |path: PathBuf| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let all = list(folder.path().join("tables")).chain(list(folder.path().into()));
    all.filter(|path| path.is_file()).collect()
}

/// Every byte that matters is covered by a checksum that is verified when the byte is used. So a flipped bit
/// is refused with the file's name, or it was in padding and every answer is still right.
/// There was no version of what a store holds: a newer one would have been read as if it were of this one.
#[test]
fn a_newer_store_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    drop(StoreFolder::open(folder.path()).unwrap());
    let opened = |current: &str| {
        std::fs::write(folder.path().join("CURRENT"), current).unwrap();
        StoreFolder::open(folder.path()).map(drop).map_err(|error| error.to_string())
    };
    let said = opened("1\nformat 2\n").unwrap_err();
    assert!(
        said.contains("CURRENT: the store has format 2, and this program reads 1: start it with"),
        "{said}"
    );
    assert!(opened("1\nformat x\n").unwrap_err().contains("delete the data folder"));
    opened("1\n").unwrap();
}

#[test]
fn a_flipped_bit_is_refused_with_the_name_of_the_file() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    for number in 0..300 {
        store.put(&key(number), value(number), Sequence(number + 1));
    }
    store.flush().unwrap();
    drop(store);
    let mut random = Random::new(5);
    let mut refused = 0;
    for _ in 0..60 {
        let files = files(&folder);
        let path = &files[random.below(files.len() as u64) as usize];
        let sound = std::fs::read(path).unwrap();
        let mut damaged = sound.clone();
        let place = random.below(sound.len() as u64) as usize;
        damaged[place] ^= 1 << random.below(8);
        std::fs::write(path, damaged).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        match read_all(&folder) {
            Ok(count) => assert_eq!(count, 300, "{name} at {place}"),
            Err(message) => {
                refused += 1;
                assert!(message.contains(name), "{name} at {place}: {message}");
            }
        }
        std::fs::write(path, sound).unwrap();
    }
    assert!(refused > 40, "only {refused} refused");
    assert_eq!(read_all(&folder), Ok(300));
}

fn read_all(folder: &TempDir) -> Result<u64, String> {
    let store = LsmStore::open(folder.path(), 7, small()).map_err(|error| error.to_string())?;
    let mut number = 0;
    for pair in store.scan(b"", b"", Sequence(1000), Order::Ascending) {
        let pair = pair.map_err(|error| error.to_string())?;
        assert_eq!(pair, (key(number).into(), value(number)));
        number += 1;
    }
    Ok(number)
}
