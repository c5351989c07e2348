//! A process that is killed, and a machine that loses power, before any system call of the store: what is left is
//! opened, and holds what whole entries up to some index left, never fewer than were said to be on disk.

use super::{NEWEST, key, small};
use crate::{LsmStore, StoreFolder, StoreOptions};
use bytes::Bytes;
use quoin_core::machines::read_progress;
use quoin_core::store::Order;
use quoin_core::store::contract::Random;
use quoin_core::{Index, Machines, Sequence, Store, Term};
use quoin_testkit::crashes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const ENTRIES: u64 = 50;
const KEYS: u64 = 40;

fn options() -> StoreOptions {
    StoreOptions { memtable_bytes: 6 << 10, table_bytes: 8 << 10, stepped: true, ..small() }
}

/// A change of an entry: a key, and its new value.
type Change = (Vec<u8>, Option<Bytes>);

fn changes(seed: u64, index: u64) -> Vec<Change> {
    let mut random = Random::new(seed ^ index.wrapping_mul(0x9e37_79b9));
    let one = |random: &mut Random| {
        let value = format!("{index} ").repeat(1 + random.below(60) as usize);
        (key(random.below(KEYS)), (!random.once_in(4)).then(|| value.into()))
    };
    // Each key once: a key has one version at a sequence.
    (0..random.below(9)).map(|_| one(&mut random)).collect::<BTreeMap<_, _>>().into_iter().collect()
}

/// The state after each entry, from that of none on.
fn states(seed: u64) -> Vec<BTreeMap<Vec<u8>, Bytes>> {
    let mut states = vec![BTreeMap::new()];
    for index in 1..=2 * ENTRIES {
        let mut state = states.last().cloned().unwrap_or_default();
        for (key, value) in changes(seed, index) {
            match value {
                Some(value) => state.insert(key, value),
                None => state.remove(&key),
            };
        }
        states.push(state);
    }
    states
}

/// The oldest sequence that must be readable after entry `index`.
fn forgotten(index: u64) -> u64 {
    (index / 20 * 20).saturating_sub(10)
}

/// Applies entries up to `last` and does what else happens to a store, reporting what it says to be on disk.
fn work(seed: u64, folder: &StoreFolder, mut store: LsmStore, last: u64, report: &dyn Fn(Index)) -> LsmStore {
    let mut machines = Machines::open(&store).unwrap();
    while machines.progress().index.0 < last {
        let index = machines.progress().index.next();
        let at = machines.progress().sequence.next();
        assert_eq!(at.0, index.0, "each entry has one sequence");
        for (key, value) in changes(seed, index.0) {
            match value {
                Some(value) => store.put(&key, value, at),
                None => store.delete(&key, at),
            }
        }
        machines.apply(&store, index, Term(1), Bytes::new()).unwrap();
        store.batch_applied(index).unwrap();
        store.work_background();
        store.forget(Sequence(forgotten(index.0)), b"", b"");
        match Random::new(seed ^ index.0 << 8).below(30) {
            0 => store.compact_fully().unwrap(),
            1 | 2 => store.flush().unwrap(),
            3 => {
                store = moved(folder, store);
                machines = Machines::open(&store).unwrap();
            }
            _ => {}
        }
        report(store.persisted_index());
    }
    store
}

/// The same state in another store, as a snapshot brings it.
fn moved(folder: &StoreFolder, store: LsmStore) -> LsmStore {
    let mut importer = folder.import(7, options()).unwrap();
    for chunk in store.export().unwrap() {
        importer.chunk(chunk.unwrap()).unwrap();
    }
    let (next, _) = importer.commit().unwrap();
    store.retire();
    next
}

/// Run by the test below, which stops it at its system calls.
#[test]
#[ignore = "it is another test's other process"]
fn the_process_that_crashes() {
    let Some((place, seed)) = crashes::other_process().unwrap() else { return };
    let folder = StoreFolder::open(&place.data().join("store")).unwrap();
    let store = folder.open_store(7, options()).unwrap();
    work(seed, &folder, store, ENTRIES, &|index| place.say(index.0).unwrap());
}

/// Opens what is left by a crash: it must be the state of an entry not before the one that was said, be fit to go on, and take no more
/// room than it needs.
fn check_left(seed: u64, states: &[BTreeMap<Vec<u8>, Bytes>], folder: &Path, said: u64) {
    let root = folder.join("store");
    let stores = StoreFolder::open(&root).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let store =
        stores.open_store(7, options()).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let index = read_progress(&store).unwrap().index.0;
    assert!(index >= said, "{}: entry {said} was said to be on disk, {index} is", folder.display());
    for at in forgotten(index)..=index {
        check_state(&store, &states[at as usize], Sequence(at), folder);
    }
    let store = work(seed, &stores, store, index + 10, &|_| {});
    check_state(&store, &states[index as usize + 10], NEWEST, folder);
    drop(store);
    drop(stores);
    let stores = StoreFolder::open(&root).unwrap();
    let store = stores.open_store(7, options()).unwrap();
    let live = std::fs::read_dir(&root).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir());
    let live: Vec<PathBuf> = live.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(live.len(), 1, "{}", folder.display());
    let tables = std::fs::read_dir(live[0].join("tables")).unwrap().count();
    assert_eq!(tables, store.stats().tables, "{}: files that nothing lists", folder.display());
}

fn check_state(store: &LsmStore, state: &BTreeMap<Vec<u8>, Bytes>, at: Sequence, folder: &Path) {
    let pairs = store.scan(b"key", b"kez", at, Order::Ascending).map(|pair| pair.unwrap());
    let found: BTreeMap<Vec<u8>, Bytes> = pairs.map(|(key, value)| (key.to_vec(), value)).collect();
    assert!(found == *state, "{}: another state at {at:?}", folder.display());
}

#[test]
fn a_crash_before_any_system_call_leaves_a_whole_store() {
    for seed in crashes::seeds() {
        let (states, mut random) = (states(seed), Random::new(seed));
        let mut draw = |below| random.below(below as u64) as usize;
        let mut check = |left: &Path, said| check_left(seed, &states, left, said);
        let test = "tests::crashes::the_process_that_crashes";
        let calls = crashes::each_crash(test, seed, &["store"], &[0, 50], &mut draw, &mut check).unwrap();
        assert!(calls > 200, "seed {seed}: {calls}");
    }
}
