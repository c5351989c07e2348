//! The faces on this store answer as in memory, wherever the versions of a key lie.

use super::{LsmStore, open};
use quoin_core::Index;
use quoin_core::store::contract::Random;
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
