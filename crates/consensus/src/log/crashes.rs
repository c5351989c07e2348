//! A process that is killed, and a machine that loses power, before any system call of the log on a real disk: what is
//! left is opened, and holds what was answered, and of the append under way all or nothing.

use super::*;
use crate::group::GroupId;
use bytes::Bytes;
use quoin_testkit::{crashes, wait_blocking};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::path::Path;
use std::sync::Arc;

const G: GroupId = GroupId(1);
const STEPS: u64 = 70;

fn open(folder: &Path) -> Log {
    let options = Options { cluster: 0xc, node: 0xa, disk: 0xd, segment_bytes: 4096, cache_bytes: 1000 };
    // A process that another test is just starting holds the lock of the log before, until it runs its own program.
    let disk = wait_blocking("the folder's lock", || match RealDisk::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => None,
        opened => Some(opened.unwrap()),
    })
    .unwrap();
    Log::open(Arc::new(disk), options).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

/// What a log holds: its base, index, term and length of its entries, and its hard state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    base: u64,
    entries: Vec<(u64, u64, usize)>,
    hard: Option<HardState>,
}

impl State {
    fn of(log: &Log) -> Self {
        let entries = log.entries(G, log.first_index(G)..log.last_index(G) + 1, u64::MAX).unwrap();
        let entries = entries.iter().map(|entry| (entry.index, entry.term, entry.data.len())).collect();
        Self { base: log.base(G).index, entries, hard: log.hard_state(G) }
    }

    fn last(&self) -> u64 {
        self.base + self.entries.len() as u64
    }
}

/// Step `number` of what happens to a log, which depends on nothing but its state.
fn step(log: &Log, seed: u64, number: u64) {
    let mut random = SmallRng::seed_from_u64(seed ^ number << 32);
    let state = State::of(log);
    let last = state.last();
    match random.random_range(0..12) {
        0 => log.seal().unwrap(),
        1 | 2 => log.purge(G, last.saturating_sub(random.random_range(0..9))).unwrap(),
        3 if random.random_bool(0.4) => {
            let base = Base { index: last + random.random_range(1..5), term: number };
            log.append(&[Record::Base(G, base)]).unwrap();
        }
        _ => {
            let back = random.random_range(0..3).min(state.entries.len() as u64);
            let mut records: Vec<Record> = (1..=random.random_range(1..4))
                .map(|nth| {
                    let data = Bytes::from(vec![number as u8; random.random_range(0..1500)]);
                    let context = Bytes::from_static(b"c");
                    let index = last - back + nth;
                    Record::Entry(G, Entry { index, term: number, kind: EntryKind::Normal, context, data })
                })
                .collect();
            records.push(Record::HardState(G, HardState { term: number, vote: 1, commit: state.base }));
            log.append(&records).unwrap();
        }
    }
}

/// Run by the test below, which stops it at its system calls.
#[test]
#[ignore = "it is another test's other process"]
fn the_process_that_crashes() {
    let Some((place, seed)) = crashes::other_process().unwrap() else { return };
    let log = open(&place.data().join("log"));
    for number in 1..=STEPS {
        step(&log, seed, number);
        place.say(number).unwrap();
    }
}

/// The state after each step, from that of none on.
fn states(seed: u64) -> Vec<State> {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    let mut states = vec![State::of(&log)];
    states.extend((1..=STEPS).map(|number| {
        step(&log, seed, number);
        State::of(&log)
    }));
    states
}

fn check_left(seed: u64, states: &[State], left: &Path, said: u64) {
    let (folder, shown) = (left.join("log"), left.display());
    let found = State::of(&open(&folder));
    let said = said as usize;
    let may_be = &states[said..states.len().min(said + 2)];
    assert!(may_be.contains(&found), "{shown}: {found:?} is left, not {may_be:?}");
    let log = open(&folder);
    (1..=8).for_each(|number| step(&log, seed, STEPS + number));
    let expected = State::of(&log);
    drop(log);
    assert_eq!(State::of(&open(&folder)), expected, "{shown}: what was written later");
}

#[test]
fn a_crash_before_any_system_call_leaves_a_whole_log() {
    for seed in crashes::seeds() {
        let (states, mut random) = (states(seed), SmallRng::seed_from_u64(seed));
        let mut draw = |below| random.random_range(0..below);
        let mut check = |left: &Path, said| check_left(seed, &states, left, said);
        let test = "log::crashes::the_process_that_crashes";
        let calls = crashes::each_crash(test, seed, &["log"], &[0, 50, 50], &mut draw, &mut check).unwrap();
        assert!(calls > 150, "seed {seed}: {calls}");
    }
}
