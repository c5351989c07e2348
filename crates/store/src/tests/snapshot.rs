//! Snapshots: their bytes, and importing them.

use super::{NEWEST, apply, key, open, small, value};
use crate::snapshot::{Decoder, FRAME_BYTES};
use crate::{
    CHUNK_BYTES, CHUNK_BYTES_MAX, Export, ImportError, LsmStore, SnapshotError, StoreFolder, check_snapshot,
    read_chunk,
};
use bytes::Bytes;
use quoin_core::kv;
use quoin_core::machines::read_progress;
use quoin_core::store::{MemoryStore, Order, contract};
use quoin_core::{Index, Machines, Progress, Revision, Sequence, Stamp, Store, StoreError, Term};
use tempfile::TempDir;

fn store() -> (MemoryStore, Progress) {
    let store = MemoryStore::new();
    store.put(b"a", Bytes::from_static(b"one"), Sequence(1));
    store.put(b"a", Bytes::from_static(b"two"), Sequence(200));
    store.delete(b"b", Sequence(201));
    store.put(b"c", Bytes::from_static(b"later"), Sequence(300));
    let progress = Progress {
        index: Index(7),
        term: Term(2),
        sequence: Sequence(250),
        revision: Revision(4),
        stamp: Stamp(1000),
        compacted: Revision(1),
        term_began: Stamp(900),
        stamped_term: Term(2),
    };
    (store, progress)
}

fn chunks(store: &MemoryStore, progress: Progress) -> Vec<Bytes> {
    Export::new(store, progress).map(|chunk| chunk.unwrap()).collect()
}

/// The bodies of the chunks of [`store`].
const BODIES: [&[u8]; 3] = [
    b"\x00\x00QUOINSNP\x01\x07\x02\xfa\x01\x04\xe8\x07\x01\x84\x07\x02",
    b"\x01\x01\x91\x03\x01a\x03two\x03\x01a\x03one\x92\x03\x01b",
    b"\x02\x02\x03",
];
/// The last chunk, with its frame.
const LAST_CHUNK: &[u8] = b"\x03\0\0\0\x6d\x32\x1e\x1b\x02\x02\x03";

#[test]
fn the_layout_is_pinned() {
    let (store, progress) = store();
    let chunks = chunks(&store, progress);
    let bodies: Vec<_> = chunks.iter().map(|chunk| &chunk[FRAME_BYTES..]).collect();
    assert_eq!(bodies, BODIES);
    assert_eq!(&chunks[2][..], LAST_CHUNK);
}

#[test]
fn the_page_on_the_format_shows_the_pinned_bytes_and_limits() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/snapshot-format.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, golden) = page.split_once("## Golden bytes").expect("the page shows golden bytes");
    let blocks: Vec<Vec<Vec<u8>>> = golden.split("```").skip(1).step_by(2).map(hex_lines).collect();
    assert_eq!(blocks, [BODIES.map(<[u8]>::to_vec).to_vec(), vec![LAST_CHUNK.to_vec()]]);
    let (closed, refused) = (CHUNK_BYTES >> 10, CHUNK_BYTES_MAX >> 20);
    assert!(page.contains(&format!("closed once its body has reached {closed} KiB")));
    assert!(page.contains(&format!("refuses a body of more than {refused} MiB")));
}

fn hex_lines(block: &str) -> Vec<Vec<u8>> {
    let byte = |text| u8::from_str_radix(text, 16).unwrap();
    let lines = block.lines().filter(|line| !line.is_empty());
    lines.map(|line| line.split_whitespace().map(byte).collect()).collect()
}

#[test]
fn a_stream_that_is_cut_reordered_or_flipped_is_refused() {
    let (store, progress) = store();
    let chunks = chunks(&store, progress);
    let decode = |chunks: &[Bytes]| {
        let mut decoder = Decoder::default();
        chunks.iter().try_for_each(|chunk| decoder.decode(chunk.clone()).map(drop))?;
        decoder.finish()
    };
    assert!(decode(&chunks).is_ok());
    assert!(matches!(decode(&chunks[..2]), Err(SnapshotError::Truncated { chunks: 2 })));
    assert!(decode(&[chunks[0].clone(), chunks[2].clone()]).is_err());
    assert!(decode(&[chunks[1].clone()]).is_err());
    assert!(decode(&[chunks.clone(), vec![chunks[2].clone()]].concat()).is_err());
    for (number, chunk) in chunks.iter().enumerate() {
        for place in 0..chunk.len() {
            let mut damaged = chunk.to_vec();
            damaged[place] ^= 0x20;
            let mut stream = chunks.clone();
            stream[number] = damaged.into();
            assert!(decode(&stream).is_err(), "byte {place} of chunk {number}");
        }
    }
}

#[test]
fn a_file_is_checked_to_its_end_without_a_store() {
    let (store, progress) = store();
    let mut file = chunks(&store, progress).concat();
    let whole = file.len();
    file.resize(whole + 100, 0);
    assert_eq!(check_snapshot(&mut &file[..]).unwrap(), progress);
    for length in 0..whole {
        assert!(check_snapshot(&mut &file[..length]).is_err(), "cut at {length}");
    }
    file[whole - 1] ^= 1;
    assert!(matches!(check_snapshot(&mut &file[..]), Err(SnapshotError::Checksum { chunk: 2 })));
}

/// The record of a deletion of 8,400 keys of 32 KiB was exported as a chunk that every reader refused.
#[test]
fn a_record_that_no_chunk_can_hold_is_refused_when_it_is_exported() {
    let (store, progress) = store();
    store.put(b"\0e12345678", vec![0; CHUNK_BYTES_MAX].into(), Sequence(100));
    let mut export = Export::new(&store, progress);
    assert!(export.next().unwrap().is_ok());
    let error = export.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("the record \\x00e12345678 has 268435466 bytes"), "{error}");
    assert!(error.contains("compact the history"), "{error}");
    assert!(export.next().is_none());
}

/// One command may change any number of keys.
#[test]
fn the_chunks_of_a_store_stay_small_whatever_one_command_changed() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = open(&from);
    let mut machines = Machines::open(&store).unwrap();
    let mut apply = |operation: kv::Operation| {
        let index = machines.progress().index.next();
        let payload = quoin_core::Batch::encode(Stamp(1), &[operation.into_command()]);
        machines.apply(&store, index, Term(1), payload).unwrap();
        store.batch_applied(index).unwrap();
    };
    for number in 0..100u8 {
        let key = [&[number][..], &[b'k'; 32 << 10]].concat().into();
        apply(kv::Operation::Put(kv::Put { key, ..kv::Put::default() }));
    }
    let all = kv::Delete { key: "\0".into(), range_end: "\0".into(), prev_kv: false };
    apply(kv::Operation::Delete(all));
    let progress = machines.progress();
    let folder = StoreFolder::open(to.path()).unwrap();
    let mut importer = folder.import(7, small()).unwrap();
    for chunk in store.export().unwrap() {
        let chunk = chunk.unwrap();
        assert!(chunk.len() < 3 * CHUNK_BYTES, "a chunk of {} bytes", chunk.len());
        importer.chunk(chunk).unwrap();
    }
    let (copy, _) = importer.commit().unwrap();
    let view = quoin_core::View::new(&copy, progress.sequence);
    let deleted = quoin_core::history::events(view, progress.revision, progress.revision, |_| true);
    let deleted: Vec<_> = deleted.map(Result::unwrap).collect();
    assert_eq!((deleted.len(), deleted[0].changes.len()), (1, 100));
}

fn framed(body: &[u8]) -> Bytes {
    let length = u32::try_from(body.len()).unwrap().to_le_bytes();
    [&length, &crc32c::crc32c(body).to_le_bytes(), body].concat().into()
}

#[test]
fn a_refusal_says_what_is_wrong() {
    let refused = |bodies: &[&[u8]]| {
        let mut decoder = Decoder::default();
        bodies.iter().find_map(|body| decoder.decode(framed(body)).err()).expect("one of them is refused")
    };
    let replaced = |place: usize, byte| {
        let mut body = BODIES[0].to_vec();
        body[place] = byte;
        body
    };
    let newer = refused(&[&replaced(10, 9)]);
    assert_eq!(
        newer.to_string(),
        "snapshot format 9: this version reads only 1; use a newer version of quoin"
    );
    assert!(matches!(newer, SnapshotError::Format { format: 9 }));
    assert!(matches!(refused(&[&replaced(2, b'q')]), SnapshotError::NotASnapshot));
    assert!(matches!(refused(&[&BODIES[0][..12]]), SnapshotError::Progress(_)));
    assert!(matches!(refused(&[BODIES[0], BODIES[2]]), SnapshotError::OutOfOrder { chunk: 1, .. }));
    assert!(matches!(refused(&[BODIES[0], &BODIES[1][..4]]), SnapshotError::Malformed { chunk: 1, .. }));
    let miscounted = refused(&[BODIES[0], BODIES[1], b"\x02\x02\x04"]);
    assert!(matches!(miscounted, SnapshotError::Records { expected: 4, received: 3 }));
    let long = read_chunk(&mut &[0xff; FRAME_BYTES][..]).unwrap_err();
    assert!(matches!(long, SnapshotError::TooLong { bytes: 0xffff_ffff }));
}

#[test]
fn a_snapshot_whose_records_hold_another_progress_than_its_header_is_refused() {
    let (store, progress) = store();
    let to = TempDir::new().unwrap();
    let mut importer = StoreFolder::open(to.path()).unwrap().import(9, small()).unwrap();
    for chunk in chunks(&store, progress) {
        importer.chunk(chunk).unwrap();
    }
    match importer.commit().map(drop).unwrap_err() {
        ImportError::Progress { announced, .. } => assert_eq!(*announced, progress),
        other => panic!("{other}"),
    }
}

#[test]
fn chunks_are_bounded_and_read_back_from_a_file() {
    let store = MemoryStore::new();
    for number in 0..2000_u64 {
        store.put(&number.to_be_bytes(), vec![7; 1000].into(), Sequence(number + 1));
    }
    store.put(b"large", vec![9; 3 * CHUNK_BYTES].into(), Sequence(2001));
    let chunks = chunks(&store, Progress { sequence: Sequence(3000), ..Progress::default() });
    assert!(chunks.len() > 8);
    let file = chunks.concat();
    let mut rest = &file[..];
    for chunk in &chunks {
        assert!(chunk.len() < 4 * CHUNK_BYTES + 1100);
        assert_eq!(read_chunk(&mut rest).unwrap().as_ref(), Some(chunk));
    }
    assert_eq!(read_chunk(&mut rest).unwrap(), None);
    assert!(read_chunk(&mut &file[..5]).is_err());
    assert!(read_chunk(&mut &file[..12]).is_err());
}

fn transfer(
    chunks: impl Iterator<Item = Result<Bytes, StoreError>>,
    to: &StoreFolder,
) -> (LsmStore, Progress) {
    let mut importer = to.import(9, small()).unwrap();
    for chunk in chunks {
        importer.chunk(chunk.unwrap()).unwrap();
    }
    importer.commit().unwrap()
}

/// Writes a progress record as the machines do, at a sequence of its own.
fn put_progress(store: &dyn Store, sequence: Sequence) -> Progress {
    let progress = Progress { index: Index(5), sequence, ..Default::default() };
    store.put(b"\0p", quoin_core::machines::encode_progress(&progress), sequence);
    progress
}

#[test]
fn a_store_restored_from_a_snapshot_answers_everything_as_the_exporter_does() {
    for seed in 0..4 {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let lsm = open(&from);
        let memory = MemoryStore::new();
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
            // What is written, deleted or compacted while the export runs is not in it.
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

/// An import writes a key's newest version first. Spread over several memtables, older versions would hide
/// it.
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
    assert!(versions * value(1).len() as u64 > 8 * held, "the versions of one key fill many memtables");
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

#[test]
fn wherever_an_import_ends_the_live_store_is_the_old_one_or_the_new_one() {
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
        assert_eq!(folders, 2, "only the live store and CURRENT");
        read_progress(&folder.open_store(9, small()).unwrap()).unwrap().index
    };

    let mut importer = folder.import(9, small()).unwrap();
    importer.chunk(source.export().unwrap().next().unwrap().unwrap()).unwrap();
    assert!(matches!(importer.commit(), Err(ImportError::Snapshot(SnapshotError::Truncated { chunks: 1 }))));
    drop(old);
    assert_eq!(index_after_reopen(), Index(3));

    // A crash after the new store's last byte and before CURRENT: everything is there, but not live.
    let mut importer = folder.import(9, small()).unwrap();
    source.export().unwrap().for_each(|chunk| importer.chunk(chunk.unwrap()).unwrap());
    importer.check_whole().unwrap();
    importer.leave();
    assert_eq!(index_after_reopen(), Index(3));

    // A replaced store is removed with its last user, not at the next start.
    let old = folder.open_store(9, small()).unwrap();
    let (new, progress) = transfer(source.export().unwrap(), &folder);
    assert_eq!(progress, machines.progress());
    old.retire();
    assert_eq!(old.get(&key(2), NEWEST).unwrap(), Some(value(2)), "its users can still read it");
    drop(old);
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 2, "the new store and CURRENT");
    drop(new);
    assert_eq!(index_after_reopen(), Index(900));
}

#[test]
fn a_folder_without_its_live_store_is_refused() {
    let folder = TempDir::new().unwrap();
    let stores = StoreFolder::open(folder.path()).unwrap();
    drop(stores.open_store(9, small()).unwrap());
    let refusal = |what: &str| {
        let message = StoreFolder::open(folder.path()).map(drop).unwrap_err().to_string();
        assert!(message.contains("CURRENT") && message.contains(what), "{message}");
    };
    std::fs::write(folder.path().join("CURRENT"), "1").unwrap();
    refusal("not a number");
    std::fs::write(folder.path().join("CURRENT"), "7\n").unwrap();
    refusal("which does not exist");
    std::fs::remove_file(folder.path().join("CURRENT")).unwrap();
    refusal("holds a store");
}
