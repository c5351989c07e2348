//! Tests of the store as a whole, on real files.

use super::*;
use bytes::Bytes;
use quoin_core::machines::read_progress;
use quoin_core::store::contract::{self, Random};
use quoin_core::{Machines, Revision};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use tempfile::TempDir;

/// Small enough that a test flushes and compacts often.
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

/// One writes, flushes and merges; others read, mostly what is about to be written, some as of a while ago: each sees for
/// each key the newest version that was told to be there, and none that was not.
#[test]
fn readers_beside_the_writer_see_exactly_what_was_told() {
    const KEYS: u64 = 1000;
    const LAST: u64 = 15_000;
    let folder = TempDir::new().unwrap();
    let (store, told) = (open(&folder), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..3u64 {
            let (store, told) = (&store, &told);
            scope.spawn(move || {
                let mut random = Random::new(reader);
                while told.load(SeqCst) < LAST {
                    let at = told.load(SeqCst).saturating_sub(random.below(3) * random.below(5));
                    let which = (at + random.below(8)) % KEYS;
                    // Version `n` is of key `n % KEYS`; every seventh is a deletion.
                    let newest = at.checked_sub((at + KEYS - which) % KEYS).filter(|newest| *newest > 0);
                    let expected = newest.filter(|newest| !newest.is_multiple_of(7)).map(value);
                    let seen = store.get(&key(which), Sequence(at)).unwrap();
                    assert!(seen == expected, "key {which} as of {at}: {seen:?}, not {expected:?}");
                }
            });
        }
        for number in 1..=LAST {
            match number % 7 {
                0 => store.delete(&key(number % KEYS), Sequence(number)),
                _ => store.put(&key(number % KEYS), value(number), Sequence(number)),
            }
            store.batch_applied(Index(number)).unwrap();
            told.store(number, SeqCst);
        }
    });
    assert!(store.stats().flushes > 10);
}

/// Writes out and merges at random, so that versions lie in every place that there is.
fn reorganise(store: &LsmStore, index: Index, random: u64) {
    match random % 16 {
        0 => store.compact_fully().unwrap(),
        1..=6 => store.flush().unwrap(),
        _ => store.batch_applied(index).unwrap(),
    }
}

#[test]
fn the_kv_face_does_the_same_on_this_store_as_in_memory() {
    quoin_core::golden::check("kv", 5, |script| {
        let folder = TempDir::new().unwrap();
        let store = open(&folder);
        let mut random = Random::new(1);
        let applied = &mut |index| reorganise(&store, index, random.number());
        quoin_core::kv::script::replay(script, &store, applied)
    });
    for seed in 0..3 {
        let folder = TempDir::new().unwrap();
        let store = open(&folder);
        let applied = &mut |index, random| reorganise(&store, index, random);
        quoin_core::kv::model::check(&store, seed, 150, applied);
    }
}

/// Applies empty log entries, which write nothing but their progress, beside a key per entry.
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
fn after_a_crash_the_store_is_what_was_flushed_with_the_progress_that_belongs_to_it() {
    let folder = TempDir::new().unwrap();
    let mut applied = 0;
    let mut random = Random::new(1);
    for _ in 0..8 {
        let store = open(&folder);
        let mut machines = Machines::open(&store).unwrap();
        let index = machines.progress().index;
        assert!(index.0 <= applied, "nothing comes from nowhere");
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
        assert!(after.index >= persisted, "what was reported as persisted stays");
        assert!(!flushed || after.index == Index(applied));
        assert_eq!(after.revision, Revision(1));
    }
}

#[test]
fn an_old_memtable_is_flushed_although_it_is_small() {
    let folder = TempDir::new().unwrap();
    let options = StoreOptions { flush_after: Duration::ZERO, ..small() };
    let store = LsmStore::open(folder.path(), 7, options).unwrap();
    let mut machines = Machines::open(&store).unwrap();
    apply(&store, &mut machines, 3);
    store.shared.wait_until(|layers| layers.sealed.is_empty()).unwrap();
    assert_eq!(store.persisted_index(), Index(3));
}

#[test]
fn forgotten_versions_and_dead_keys_leave_the_disk() {
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
    assert_eq!(store.stats().table_entries, before.table_entries, "a pin holds everything");
    drop(pin);
    store.compact_fully().unwrap();
    assert_eq!(store.stats().table_entries, 11);
    // Once the background threads have let go of what they looked at.
    let begun = std::time::Instant::now();
    while std::fs::read_dir(folder.path().join("tables")).unwrap().count() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "old files stay");
        store.shared.unlink_retired();
        std::thread::yield_now();
    }
}

#[test]
fn deletions_leave_the_disk_once_nobody_can_see_what_they_hide() {
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

#[test]
fn a_scan_outlives_what_happens_after_it_began() {
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

/// Every byte of a table is covered by a checksum that is looked at when the byte is used: a flipped one is
/// refused with the file's name, or it was padding and every answer is still right.
#[test]
fn a_flipped_byte_is_refused_by_the_files_name() {
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

fn transfer(
    chunks: impl Iterator<Item = Result<Bytes, StoreError>>,
    to: &StoreFolder,
) -> (LsmStore, quoin_core::Progress) {
    let mut importer = to.import(9, small()).unwrap();
    for chunk in chunks {
        importer.chunk(chunk.unwrap()).unwrap();
    }
    importer.commit().unwrap()
}

/// The progress record as the machines write it, at a sequence of its own.
fn put_progress(store: &dyn Store, sequence: Sequence) -> quoin_core::Progress {
    let progress = quoin_core::Progress { index: Index(5), sequence, ..Default::default() };
    store.put(b"\0p", quoin_core::machines::encode_progress(&progress), sequence);
    progress
}

#[test]
fn a_replica_restored_from_a_snapshot_answers_everything_as_the_exporter_does() {
    for seed in 0..4 {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let lsm = open(&from);
        let memory = quoin_core::store::MemoryStore::new();
        let mut runs = [contract::Run::new(seed), contract::Run::new(seed)];
        let mut settle = |random: u64| match random % 4 {
            0 => lsm.compact_fully().unwrap(),
            _ => lsm.flush().unwrap(),
        };
        runs[0].write(&lsm, 1200, &mut settle);
        runs[1].write(&memory, 1200, &mut |_| ());
        for (run, store) in runs.iter_mut().zip([&lsm as &dyn Store, &memory]) {
            let sequence = run.newest().next();
            let progress = put_progress(store, sequence);
            let export = Export::new(store, progress);
            // What is written, deleted and compacted while the export runs is no part of it.
            store.put(b"ab", Bytes::from_static(b"later"), sequence.next());
            store.delete(b"a", sequence.next());
            let folder = StoreFolder::open(&to.path().join(sequence.to_string())).unwrap();
            let (restored, found) = transfer(export, &folder);
            assert_eq!(found, progress);
            assert_eq!(restored.persisted_index(), Index(5));
            run.compare(&restored);
            drop(restored);
            let reopened = folder.open_store(9, small()).unwrap();
            run.compare(&reopened);
            for key in [b"a".as_slice(), b"ab", b"\0p"] {
                assert_eq!(reopened.get(key, NEWEST).unwrap(), store.get(key, sequence).unwrap(), "{key:?}");
            }
            std::fs::remove_dir_all(to.path().join(sequence.to_string())).unwrap();
        }
    }
}

/// A snapshot holds a key's versions newest first: they fill several memtables, and the newest lies in the first.
#[test]
fn a_snapshot_may_have_more_versions_of_a_key_than_a_memtable_holds() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = open(&from);
    let versions = 2000;
    for sequence in 1..=versions {
        store.put(b"many", value(sequence), Sequence(sequence));
        store.put(&key(sequence), value(sequence), Sequence(sequence));
    }
    let progress = put_progress(&store, Sequence(versions + 1));
    store.flush().unwrap();
    let held = small().memtable_bytes;
    assert!(versions * value(1).len() as u64 > 8 * held, "the versions of one key are many memtables");
    let folder = StoreFolder::open(to.path()).unwrap();
    let check = |restored: &LsmStore| {
        for sequence in 1..=versions {
            assert_eq!(
                restored.get(b"many", Sequence(sequence)).unwrap(),
                Some(value(sequence)),
                "{sequence}"
            );
        }
        let mut newest = restored.scan(b"many", b"many\0", NEWEST, Order::Ascending);
        assert_eq!(newest.next().unwrap().unwrap().1, value(versions));
        assert!(newest.next().is_none());
        let at = Sequence(versions / 2);
        let mut old = restored.scan(b"many", b"many\0", at, Order::Descending);
        assert_eq!(old.next().unwrap().unwrap().1, value(at.0));
    };
    let (restored, found) = transfer(store.export().unwrap(), &folder);
    assert_eq!(found, progress);
    check(&restored);
    restored.compact_fully().unwrap();
    check(&restored);
    drop(restored);
    check(&folder.open_store(9, small()).unwrap());
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn the_live_store_is_the_old_or_the_new_one_wherever_an_import_ends() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let source = open(&from);
    let mut machines = Machines::open(&source).unwrap();
    apply(&source, &mut machines, 900);
    let folder = StoreFolder::open(to.path()).unwrap();
    let old = folder.open_store(9, small()).unwrap();
    let mut old_machines = Machines::open(&old).unwrap();
    apply(&old, &mut old_machines, 3);
    old.flush().unwrap();
    let index_after_reopen = || {
        let folder = StoreFolder::open(to.path()).unwrap();
        let folders = std::fs::read_dir(to.path()).unwrap().count();
        assert_eq!(folders, 2, "the live store and CURRENT, and nothing else");
        read_progress(&folder.open_store(9, small()).unwrap()).unwrap().index
    };

    let mut importer = folder.import(9, small()).unwrap();
    importer.chunk(source.export().unwrap().next().unwrap().unwrap()).unwrap();
    assert!(matches!(importer.commit(), Err(SnapshotError::Truncated { chunks: 1 })));
    drop(old);
    assert_eq!(index_after_reopen(), Index(3));

    // A crash between the new store's last byte and CURRENT: all is there, but not live.
    let mut importer = folder.import(9, small()).unwrap();
    source.export().unwrap().for_each(|chunk| importer.chunk(chunk.unwrap()).unwrap());
    importer.check_whole().unwrap();
    copy_folder(&to.path().join("2"), &to.path().join("7"));
    drop(importer);
    assert_eq!(index_after_reopen(), Index(3));

    // A replaced store's folder goes with its last user, not at the next start.
    let old = folder.open_store(9, small()).unwrap();
    let (new, progress) = transfer(source.export().unwrap(), &folder);
    assert_eq!(progress, machines.progress());
    old.retire();
    assert_eq!(old.get(&key(2), NEWEST).unwrap(), Some(value(2)), "who still has it can read it");
    drop(old);
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 2, "the new store and CURRENT");
    drop(new);
    assert_eq!(index_after_reopen(), Index(900));
}

#[test]
fn a_folder_that_lost_its_live_store_is_refused() {
    let folder = TempDir::new().unwrap();
    let stores = StoreFolder::open(folder.path()).unwrap();
    drop(stores.open_store(9, small()).unwrap());
    let refusal = |what: &str| {
        let message = StoreFolder::open(folder.path()).map(drop).unwrap_err().to_string();
        assert!(message.contains("CURRENT") && message.contains(what), "{message}");
    };
    std::fs::write(folder.path().join("CURRENT"), "1").unwrap();
    refusal("no number");
    std::fs::write(folder.path().join("CURRENT"), "7\n").unwrap();
    refusal("which is not there");
    std::fs::remove_file(folder.path().join("CURRENT")).unwrap();
    refusal("holds a store");
}
