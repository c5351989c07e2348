//! The faces on this store answer as in memory, wherever the versions of a key lie.

use super::{LsmStore, open, small};
use crate::{StoreFolder, StoreOptions};
use quoin_core::store::contract::Random;
use quoin_core::{Batch, Index, Machines, Reply, Stamp, Store, Term, kv};
use tempfile::TempDir;

/// Flushes and compacts at random.
fn reorganize(store: &LsmStore, index: Index, random: u64) {
    match random % 16 {
        0 => store.compact_fully().unwrap(),
        1..=6 => store.flush().unwrap(),
        _ => store.batch_applied(index).unwrap(),
    }
}

#[test]
fn the_golden_scripts_of_every_face_answer_as_recorded() {
    let mut random = Random::new(1);
    let mut flushes = 0;
    quoin_core::golden::run_all(|script| {
        let folder = TempDir::new().unwrap();
        let store = open(&folder);
        let answered = script.replay(&store, &mut |index| reorganize(&store, index, random.number()));
        flushes += store.stats().flushes;
        answered
    });
    assert!(flushes > 100, "only {flushes} flushes: the scripts ran in memtables");
}

#[test]
fn kv_does_what_its_model_does() {
    for seed in 0..3 {
        let folder = TempDir::new().unwrap();
        let store = open(&folder);
        let applied = &mut |index, random| reorganize(&store, index, random);
        quoin_core::kv::model::check(&store, seed, 150, applied);
    }
}

/// One SET with a key that the engine refuses stopped every replica, and again at each start: the machine
/// must refuse what this store cannot hold, and what it takes must survive flushing, merging and moving.
#[test]
fn whatever_can_be_decoded_can_be_applied() {
    for seed in 0..4 {
        let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let store = open(&folder);
        let applied = &mut |index, random| reorganize(&store, index, random);
        quoin_core::hostile::check(&store, seed, 250, applied);
        assert!(store.stats().flushes > 10);
        let receiver = StoreFolder::open(other.path()).unwrap();
        let mut importer = receiver.import(7, small()).unwrap();
        store.export().unwrap().for_each(|chunk| importer.chunk(chunk.unwrap()).unwrap());
        let (copy, progress) = importer.commit().unwrap();
        let whole =
            |store: &LsmStore| -> Vec<_> { store.versions(progress.sequence).map(Result::unwrap).collect() };
        assert!(whole(&store) == whole(&copy), "seed {seed}: the copy differs");
    }
}

/// A version without the bound put such commands into its log, and could not start again: what is replayed must end
/// in a refusal, at every start.
#[test]
fn a_key_that_is_too_long_in_the_log_is_refused_whenever_it_is_replayed() {
    let folder = TempDir::new().unwrap();
    let put = |bytes: usize| {
        let put = kv::Put { key: vec![b'k'; bytes].into(), value: "v".into(), ..kv::Put::default() };
        kv::Operation::Put(put).into_command()
    };
    let sizes = [1, 65_530, kv::KEY_BYTES_MAX, 70_000, 2];
    let log: Vec<_> = sizes.map(|bytes| Batch::encode(Stamp(1), &[put(bytes)])).into();
    // The first start loses what it has applied, which the second replays; the third has some of it.
    for (begun_at, flushed_at) in [(0, usize::MAX), (0, 2), (2, 4)] {
        // Nothing is written out before its time.
        let options = StoreOptions { memtable_bytes: 64 << 20, ..small() };
        let store = LsmStore::open(folder.path(), 7, options).unwrap();
        let mut machines = Machines::open(&store).unwrap();
        assert_eq!(machines.progress().index, Index(begun_at));
        for (place, payload) in log.iter().enumerate().skip(begun_at as usize) {
            let index = machines.progress().index.next();
            let outcome = machines.apply(&store, index, Term(1), payload.clone()).unwrap();
            let [Reply::Kv(reply)] = &outcome.replies[..] else { panic!("{:?}", outcome.replies) };
            let bytes = sizes[place];
            let too_long = Err(kv::Refusal::KeyTooLong { bytes });
            assert_eq!(reply.result == too_long, bytes > kv::KEY_BYTES_MAX, "{bytes}: {:?}", reply.result);
            store.batch_applied(index).unwrap();
            if place + 1 == flushed_at {
                store.flush().unwrap();
            }
        }
    }
}
