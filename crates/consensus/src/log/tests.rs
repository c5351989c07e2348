//! The promises of the log, on a simulated disk and once on a real one.

use super::recovery::segment_name;
use super::*;
use crate::group::GroupId;
use bytes::Bytes;
use proptest::prelude::*;
use std::sync::Arc;

const G: GroupId = GroupId(1);

fn options() -> Options {
    Options { cluster: 0xc, node: 0xa, disk: 0xd, segment_bytes: 4096, cache_bytes: 1000 }
}

fn open(disk: &Arc<SimDisk>) -> Result<Log, LogError> {
    Log::open(Arc::clone(disk) as _, options())
}

fn entry(index: u64, term: u64, size: usize) -> Record {
    let data = Bytes::from(vec![(index % 251) as u8 + 1; size]);
    Record::Entry(G, Entry { index, term, kind: EntryKind::Normal, context: Bytes::from_static(b"c"), data })
}

fn all(log: &Log) -> Vec<(u64, u64, usize)> {
    let entries = log.entries(G, log.first_index(G)..log.last_index(G) + 1, u64::MAX).unwrap();
    entries.iter().map(|entry| (entry.index, entry.term, entry.data.len())).collect()
}

#[test]
fn appended_records_survive_reopening() {
    let disk = Arc::new(SimDisk::new());
    let log = open(&disk).unwrap();
    let state = HardState { term: 2, vote: 3, commit: 1 };
    log.append(&[entry(1, 1, 10), Record::HardState(G, state), entry(2, 2, 3000)]).unwrap();
    log.append(&[entry(3, 2, 3000)]).unwrap();
    log.append(&[entry(2, 3, 20), entry(3, 3, 9000)]).unwrap();
    let expected = [(1, 1, 10), (2, 3, 20), (3, 3, 9000)];
    assert_eq!(all(&log), expected);
    drop(log);
    disk.crash(1);
    let log = open(&disk).unwrap();
    assert_eq!(all(&log), expected);
    assert_eq!((log.hard_state(G), log.term(G, 3), log.term(G, 4)), (Some(state), Some(3), None));
    log.append(&[entry(4, 3, 5)]).unwrap();
    assert_eq!(log.last_index(G), 4);
}

#[test]
fn purging_removes_segments_and_keeps_the_term_before_the_first_entry() {
    let disk = Arc::new(SimDisk::new());
    let log = open(&disk).unwrap();
    log.append(&[Record::HardState(G, HardState { term: 7, vote: 1, commit: 0 })]).unwrap();
    for index in 1..=40 {
        log.append(&[entry(index, 7, 1000)]).unwrap();
    }
    let before = log.size_on_disk();
    log.purge(G, 35).unwrap();
    assert!(log.size_on_disk() < before / 3);
    for log in [log, open(&disk).unwrap()] {
        assert_eq!(log.base(G), Base { index: 35, term: 7 });
        assert_eq!(all(&log).first(), Some(&(36, 7, 1000)));
        assert_eq!(log.hard_state(G).map(|state| state.term), Some(7));
    }
}

/// A log above its bound lost all that its store had, and the next replica that had been away needed a snapshot.
#[test]
fn a_purge_need_not_go_further_than_the_bound() {
    let disk = Arc::new(SimDisk::new());
    let log = open(&disk).unwrap();
    for index in 1..=40 {
        log.append(&[entry(index, 7, 1000)]).unwrap();
    }
    let bytes = log.size_on_disk();
    assert_eq!((log.beyond(G, bytes, 40), log.beyond(G, bytes, 38)), (0, 2));
    let up_to = log.beyond(G, bytes / 2, 40);
    log.purge(G, up_to).unwrap();
    let kept = log.size_on_disk();
    assert!(kept <= bytes / 2 && kept > bytes / 4, "{kept} of {bytes} bytes");
    assert_eq!(all(&log).first().map(|first| first.0), Some(up_to + 1));
    assert_eq!(log.beyond(G, bytes / 2, 40), 0);
    assert_eq!(log.beyond(GroupId(99), 0, 0), 0);
    // The newest segment stays.
    log.purge(G, log.beyond(G, 0, 40)).unwrap();
    assert!(!all(&log).is_empty());
}

#[test]
fn a_snapshot_restarts_the_log_behind_it() {
    let disk = Arc::new(SimDisk::new());
    let log = open(&disk).unwrap();
    log.append(&[entry(1, 1, 10), entry(2, 1, 10)]).unwrap();
    log.append(&[Record::Base(G, Base { index: 90, term: 4 }), entry(91, 4, 10)]).unwrap();
    for log in [log, open(&disk).unwrap()] {
        assert_eq!((log.first_index(G), all(&log)), (91, vec![(91, 4, 10)]));
        assert_eq!((log.term(G, 90), log.term(G, 2)), (Some(4), None));
    }
}

/// Two answered appends and a third, with the byte offsets at which each ends.
fn three_blocks() -> (Arc<SimDisk>, Vec<u8>, [usize; 3]) {
    let disk = Arc::new(SimDisk::new());
    let log = open(&disk).unwrap();
    let mut ends = [0; 3];
    for (index, end) in (1..).zip(&mut ends) {
        log.append(&[entry(index, 1, 40), entry(index, 2, 30)]).unwrap();
        *end = log.end();
    }
    let bytes = disk.bytes(&segment_name(1)).unwrap();
    (disk, bytes, ends)
}

#[test]
fn a_tail_cut_anywhere_loses_only_the_block_that_it_cuts() {
    let (disk, whole, ends) = three_blocks();
    for cut in ends[1]..=ends[2] {
        let mut bytes = whole.clone();
        bytes[cut..].fill(0);
        disk.set_bytes(&segment_name(1), bytes);
        let log = open(&disk).unwrap();
        assert_eq!(log.last_index(G), if cut == ends[2] { 3 } else { 2 }, "cut at {cut}");
        let next = log.last_index(G) + 1;
        log.append(&[entry(next, 9, 5)]).unwrap();
        assert_eq!(open(&disk).unwrap().term(G, next), Some(9), "cut at {cut}");
    }
}

#[test]
fn every_flipped_byte_is_found_unless_it_is_in_the_last_block() {
    let (disk, whole, ends) = three_blocks();
    for place in 0..ends[2] {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x41;
        disk.set_bytes(&segment_name(1), bytes);
        match open(&disk) {
            Err(LogError::Corrupt { file, offset, .. }) => {
                assert!(place < ends[1], "byte {place} is in the last block, whose end may be torn");
                assert_eq!(file, segment_name(1));
                assert!(offset as usize <= place, "byte {place} reported at {offset}");
            }
            Err(LogError::Foreign { .. }) => {
                panic!("byte {place}: a damaged header was taken for a foreign one")
            }
            Err(error) => panic!("byte {place}: {error}"),
            Ok(log) => {
                assert!(place >= ends[1], "byte {place} went unnoticed");
                assert_eq!(log.last_index(G), 2, "byte {place}");
            }
        }
    }
}

/// Damage to the last block was taken for a torn write, and what it held was forgotten silently: entries
/// that were acknowledged, and votes.
#[test]
fn every_flipped_byte_of_a_sealed_block_is_found() {
    let (disk, _, ends) = three_blocks();
    drop(open(&disk).unwrap());
    let whole = disk.bytes(&segment_name(1)).unwrap();
    for place in ends[1]..ends[2] {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x41;
        disk.set_bytes(&segment_name(1), bytes);
        let Err(LogError::Corrupt { offset, .. }) = open(&disk) else {
            panic!("byte {place} went unnoticed")
        };
        assert_eq!(offset as usize, ends[1]);
    }
}

/// A value that holds the bytes of a log made a torn tail look like damage: the node did not start again.
#[test]
fn a_torn_tail_is_cut_though_its_payload_looks_like_blocks() {
    let disk = Arc::new(SimDisk::new());
    let log = open(&disk).unwrap();
    log.append(&[entry(1, 1, 40)]).unwrap();
    let (end, name) = (log.end(), segment_name(1));
    let blocks = disk.bytes(&name).unwrap()[48..end].repeat(4);
    let data = Bytes::from(blocks);
    let copy = Entry { index: 2, term: 1, kind: EntryKind::Normal, context: Bytes::new(), data };
    log.append(&[Record::Entry(G, copy)]).unwrap();
    let (next, whole) = (log.end(), disk.bytes(&name).unwrap());
    for cut in end..next {
        let mut bytes = whole.clone();
        bytes[cut..].fill(0);
        disk.set_bytes(&name, bytes);
        assert_eq!(open(&disk).unwrap().last_index(G), 1, "cut at {cut}");
    }
}

/// Without its last segment a log had an earlier end, and the replica voted again.
#[test]
fn a_missing_newest_segment_or_its_mark_is_noticed() {
    for (file, problem) in
        [(segment_name(3), "it was the newest"), ("newest".into(), "is the newest, which is")]
    {
        let disk = Arc::new(SimDisk::new());
        let log = open(&disk).unwrap();
        (1..=3).for_each(|index| log.append(&[entry(index, 1, 3000)]).unwrap());
        drop(log);
        disk.remove(&file).unwrap();
        let Err(error) = open(&disk) else { panic!("{file} is gone, and nobody noticed") };
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn a_damaged_first_block_of_a_segment_that_was_begun_is_not_taken_for_an_unfinished_one() {
    let disk = Arc::new(SimDisk::new());
    let log = open(&disk).unwrap();
    log.append(&[Record::HardState(G, HardState { term: 7, vote: 1, commit: 0 }), entry(1, 7, 10)]).unwrap();
    drop(log);
    for place in [0, 8, 20, 48] {
        let whole = disk.bytes(&segment_name(1)).unwrap();
        let mut bytes = whole.clone();
        bytes[place..].fill(0);
        disk.set_bytes(&segment_name(1), bytes);
        assert!(matches!(open(&disk), Err(LogError::Corrupt { .. })), "zeros from byte {place} on");
        disk.set_bytes(&segment_name(1), whole);
    }
    assert_eq!(open(&disk).unwrap().last_index(G), 1);
}

#[test]
fn a_segment_of_another_disk_is_refused() {
    let disk = Arc::new(SimDisk::new());
    open(&disk).unwrap().append(&[entry(1, 1, 1)]).unwrap();
    disk.remove("newest").unwrap();
    let other = Options { disk: 0xe, ..options() };
    let Err(error) = Log::open(Arc::clone(&disk) as _, other) else { panic!("a foreign log was opened") };
    assert!(error.to_string().contains("was written by disk 000000000000000d of this member"), "{error}");
}

/// It was taken for a segment that was never finished, and removed; another was called damaged, and the data folder
/// was to be deleted.
#[test]
fn a_newer_log_is_refused_by_name_and_left_alone() {
    let disk = Arc::new(SimDisk::new());
    open(&disk).unwrap().append(&[entry(1, 1, 40)]).unwrap();
    disk.remove("newest").unwrap();
    let name = segment_name(1);
    let mut bytes = disk.bytes(&name).unwrap();
    bytes[8] = 3;
    bytes[48..].fill(0x33);
    disk.set_bytes(&name, bytes.clone());
    let Err(error) = open(&disk) else { panic!("a log of version 3 was opened") };
    let said = error.to_string();
    assert!(
        said.starts_with(&format!("{name} has log format 3, and this program reads 1 and 2: start")),
        "{said}"
    );
    assert_eq!(disk.bytes(&name), Some(bytes));
}

#[test]
fn a_log_of_version_1_is_read_and_goes_on_in_a_segment_of_version_2() {
    let hex = include_str!("golden_1.hex").trim();
    let mut bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    let end = bytes.len();
    bytes.resize(4096, 0);
    for torn in [false, true] {
        let disk = Arc::new(SimDisk::new());
        drop(disk.create(&segment_name(1), 4096).unwrap());
        let mut bytes = bytes.clone();
        if torn {
            bytes[end..end + 20].fill(9);
        }
        disk.set_bytes(&segment_name(1), bytes);
        let state = Some(HardState { term: 1, vote: 2, commit: 3 });
        let log = open(&disk).unwrap();
        assert_eq!((all(&log), log.hard_state(G)), (vec![(1, 1, 3)], state));
        log.append(&[entry(2, 1, 5)]).unwrap();
        for _ in 0..2 {
            let log = open(&disk).unwrap();
            assert_eq!((all(&log), log.hard_state(G)), (vec![(1, 1, 3), (2, 1, 5)], state));
        }
        assert_eq!(disk.bytes(&segment_name(2)).unwrap()[8], 2);
    }
}

#[test]
fn damage_is_found_when_an_old_entry_is_read() {
    let disk = Arc::new(SimDisk::new());
    let log = open(&disk).unwrap();
    for index in 1..=3 {
        log.append(&[entry(index, 1, 900)]).unwrap();
    }
    let name = segment_name(1);
    let mut bytes = disk.bytes(&name).unwrap();
    bytes[300] ^= 1;
    disk.set_bytes(&name, bytes);
    assert!(matches!(log.entries(G, 1..2, 1 << 20), Err(LogError::Corrupt { .. })));
    assert_eq!(log.entries(G, 3..4, 1 << 20).unwrap().len(), 1);
}

#[test]
fn a_foreign_segment_is_refused() {
    let disk = Arc::new(SimDisk::new());
    open(&disk).unwrap().append(&[entry(1, 1, 1)]).unwrap();
    let other = Options { node: 0xb, ..options() };
    let Err(error) = Log::open(Arc::clone(&disk) as _, other) else { panic!("a foreign log was opened") };
    assert!(
        error.to_string().contains(
            "belongs to node 000000000000000a of cluster 000000000000000c, not to 000000000000000b of "
        ),
        "{error}"
    );
}

#[test]
fn an_append_to_a_full_disk_changes_nothing_and_can_be_retried() {
    let disk = Arc::new(SimDisk::new());
    // For a segment, and for the file with the newest one's number.
    disk.set_room(4096 + 8192);
    let log = open(&disk).unwrap();
    log.append(&[entry(1, 1, 3000)]).unwrap();
    assert!(matches!(log.append(&[entry(2, 1, 3000)]), Err(LogError::NoSpace { .. })));
    assert_eq!(all(&log), [(1, 1, 3000)]);
    disk.set_room(4096);
    log.append(&[entry(2, 1, 3000)]).unwrap();
    assert_eq!(open(&disk).unwrap().last_index(G), 2);
}

#[test]
fn after_a_failed_sync_the_log_takes_no_appends() {
    let disk = Arc::new(SimDisk::new());
    let log = open(&disk).unwrap();
    log.append(&[entry(1, 1, 10)]).unwrap();
    disk.fail_next_sync();
    assert!(matches!(log.append(&[entry(2, 1, 10)]), Err(LogError::Io { operation: "syncing", .. })));
    assert!(matches!(log.append(&[entry(2, 1, 10)]), Err(LogError::Failed)));
    assert_eq!(log.last_index(G), 1);
}

/// A replica whose process died at the sync vouched after its restart for entries that were only in memory.
#[test]
fn what_is_found_at_a_start_is_on_the_disk_though_its_sync_failed() {
    for (seed, size) in (0..40).zip([10, 700, 3000].into_iter().cycle()) {
        let disk = Arc::new(SimDisk::new());
        let log = open(&disk).unwrap();
        log.append(&[entry(1, 1, 2000)]).unwrap();
        disk.fail_next_sync();
        assert!(log.append(&[entry(2, 1, size)]).is_err());
        drop(log);
        let found = open(&disk).unwrap().last_index(G);
        disk.crash(seed);
        let log = open(&disk).unwrap();
        assert_eq!(log.last_index(G), found, "seed {seed}");
        log.append(&[entry(found + 1, 1, size)]).unwrap();
    }
}

#[test]
fn the_layout_is_pinned_and_documented() {
    let disk = Arc::new(SimDisk::new());
    let log = open(&disk).unwrap();
    log.append(&[Record::HardState(G, HardState { term: 1, vote: 2, commit: 3 }), entry(1, 1, 3)]).unwrap();
    let bytes = disk.bytes("0000000000000001.log").unwrap();
    let end = log.end();
    let hex: String = bytes[..end].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("golden.hex").trim());
    assert!(bytes[end..].iter().all(|byte| *byte == 0));
    assert_eq!(golden_bytes_of_page(), hex, "docs/log-format.md shows other bytes");
}

/// The hexadecimal digits under "Golden bytes": on each line the words before two spaces.
fn golden_bytes_of_page() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/log-format.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("## Golden bytes").expect("the page has a section \"Golden bytes\"");
    let (_, block) = section.split_once("```text\n").expect("the section has a block of text");
    let (block, _) = block.split_once("```").expect("the block ends");
    block.lines().filter_map(|line| line.split("  ").next()).flat_map(str::split_whitespace).collect()
}

#[test]
fn a_real_folder_keeps_the_log_and_excludes_other_processes() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
    let options = Options { segment_bytes: 1 << 16, ..options() };
    let log = Log::open(Arc::clone(&disk) as _, options.clone()).unwrap();
    for index in 1..=100 {
        log.append(&[entry(index, 1, 5000)]).unwrap();
    }
    log.purge(G, 50).unwrap();
    let second = RealDisk::open(folder.path()).unwrap_err();
    assert!(second.to_string().contains("in use by another process"), "{second}");
    drop((log, disk));
    let log = Log::open(Arc::new(RealDisk::open(folder.path()).unwrap()), options).unwrap();
    assert_eq!((log.first_index(G), log.last_index(G)), (51, 100));
    assert_eq!(all(&log).len(), 50);
}

#[derive(Clone, Debug)]
enum Step {
    Append { back: u64, count: u64, size: usize },
    Purge { keep: u64 },
    Seal,
    Snapshot { ahead: u64 },
    Crash { seed: u64, in_write: bool, power: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..4u64, 1..5u64, 0..3000usize)
            .prop_map(|(back, count, size)| Step::Append { back, count, size }),
        2 => (0..10u64).prop_map(|keep| Step::Purge { keep }),
        1 => Just(Step::Seal),
        1 => (1..20u64).prop_map(|ahead| Step::Snapshot { ahead }),
        3 => any::<(u64, bool, bool)>()
            .prop_map(|(seed, in_write, power)| Step::Crash { seed, in_write, power }),
    ]
}

/// What the log must hold: the base, and the entries after it.
#[derive(Clone, Default)]
struct Model {
    base: u64,
    entries: Vec<(u64, u64, usize)>,
    term: u64,
}

impl Model {
    fn last(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    fn append(&mut self, back: u64, count: u64, size: usize) -> Vec<Record> {
        self.term += 1;
        let first = self.last() + 1 - back.min(self.entries.len() as u64);
        self.entries.truncate((first - self.base - 1) as usize);
        let added: Vec<_> = (first..first + count).map(|index| (index, self.term, size)).collect();
        self.entries.extend(&added);
        added.into_iter().map(|(index, term, size)| entry(index, term, size)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn acknowledged_appends_survive_any_sequence_of_crashes(steps in prop::collection::vec(step(), 1..40)) {
        let disk = Arc::new(SimDisk::new());
        let mut log = open(&disk).unwrap();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Append { back, count, size } => log.append(&model.append(back, count, size)).unwrap(),
                Step::Purge { keep } => {
                    let up_to = model.last().saturating_sub(keep);
                    log.purge(G, up_to).unwrap();
                    if up_to > model.base {
                        model.entries.drain(..(up_to - model.base) as usize);
                        model.base = up_to;
                    }
                }
                Step::Seal => log.seal().unwrap(),
                Step::Snapshot { ahead } => {
                    let index = model.last() + ahead;
                    log.append(&[Record::Base(G, Base { index, term: 1 })]).unwrap();
                    model.entries.clear();
                    model.base = index;
                }
                Step::Crash { seed, in_write, power } => {
                    let mut attempted = model.clone();
                    if in_write {
                        disk.fail_next_sync();
                        let _ = log.append(&attempted.append(1, 2, 700));
                    }
                    drop(log);
                    if power {
                        disk.crash(seed);
                    }
                    log = open(&disk).unwrap();
                    // An unacknowledged append is there whole or not at all.
                    if in_write && all(&log) == attempted.entries {
                        model = attempted;
                    }
                    model.term += 1;
                }
            }
            prop_assert_eq!(log.base(G).index, model.base);
            prop_assert_eq!(&all(&log), &model.entries);
        }
    }
}
