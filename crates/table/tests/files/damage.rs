//! Damaged files: a changed, missing or added byte is refused, and the error names file, block and checksums.

use super::{open as open_files, write};
use proptest::prelude::*;
use quoin_table::{
    Codec, FileEntry, FileError, Layer, Manifest, Options, Plan, Schema, Shard, Table, recheck,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

const BLOCK: usize = 64 << 10;

/// A file of a little over two blocks, with a heap and a default row.
fn sample(folder: &Path) -> Vec<u8> {
    let mut schema = Schema::variable(8);
    schema.default_row = Some(b"none".to_vec());
    let entries: BTreeMap<u64, Vec<u8>> =
        (0..2000u64).map(|key| (key, vec![key as u8; key as usize % 90])).collect();
    let files = write(folder, &schema, Plan { shards: 1, parts: 3 }, &entries);
    std::fs::read(&files[0]).expect("just written")
}

fn open(folder: &Path, bytes: &[u8]) -> Result<Shard, FileError> {
    let file = folder.join("damaged");
    std::fs::write(&file, bytes).expect("there is room");
    Shard::open(&file, Options::default())
}

#[test]
fn every_flipped_byte_is_refused_with_file_block_and_both_checksums() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = sample(folder.path());
    let checksums_at = whole.len() - 4 * (whole.len() / BLOCK + 1);
    // All of the header and the checksums, and a sample of the rest.
    let mut places: Vec<usize> = (0..300).chain(checksums_at - 200..whole.len()).collect();
    places.extend((300..checksums_at).step_by(97));
    let mut bytes = whole.clone();
    for place in places {
        bytes[place] ^= 1 << (place % 8);
        let Err(FileError::Checksum { file, block, expected, found }) = open(folder.path(), &bytes) else {
            panic!("flipped byte {place} went unnoticed");
        };
        assert!(file.ends_with("damaged"));
        assert_ne!(expected, found);
        let expected_block = if place < 256 { 0 } else { place.min(checksums_at) / BLOCK };
        assert_eq!(block as usize, expected_block, "byte {place}");
        bytes[place] = whole[place];
    }
    open(folder.path(), &bytes).expect("whole again");
}

/// Two tables that differed in a value by what leaves CRC32C as it is had one id: the server answered one version with
/// the other's value, and `verify` said that it was whole.
#[test]
fn a_file_with_forged_checksums_has_another_digest_and_another_id() {
    let folder = tempfile::tempdir().expect("a folder");
    let schema = Schema::fixed(Codec::Raw, 40);
    let entries = BTreeMap::from([(1, vec![7; 40])]);
    let (built, name) = (write(folder.path(), &schema, Plan::new(1, 1), &entries), "values");
    let file = folder.path().join(name);
    std::fs::rename(&built[0], &file).expect("just written");
    let manifest = |shard: &Shard| {
        let entry = FileEntry::new(name.into(), (shard.seal(), shard.digest()));
        Manifest::new("t", None, schema.clone(), vec![entry], Vec::new(), BTreeMap::new())
    };
    let honest = Shard::open(&file, Options::default()).expect("whole");
    let published = manifest(&honest);
    published.write(folder.path()).expect("there is room");
    assert!(Layer::open_foreign(folder.path(), Options::default()).is_ok());

    // The polynomial itself, lowest bit of a byte first, somewhere in the value.
    let mut bytes = std::fs::read(&file).expect("just written");
    for bit in (0..33).filter(|bit| 0x1_1edc_6f41_u64 >> (32 - bit) & 1 == 1) {
        bytes[4096 + 8 + bit / 8] ^= 1 << (bit % 8);
    }
    std::fs::remove_file(&file).expect("ours");
    std::fs::write(&file, bytes).expect("ours");
    let forged = Shard::open(&file, Options::default()).expect("its checksums are right");
    assert_eq!(forged.seal(), honest.seal());
    assert_ne!(manifest(&forged).id, published.id);
    let refused =
        Layer::open_foreign(folder.path(), Options::default()).err().expect("another file").to_string();
    assert!(refused.contains("its digest is") && refused.contains(name), "{refused}");
}

#[test]
fn a_file_that_is_read_again_is_whole_or_named_with_the_block() {
    let folder = tempfile::tempdir().expect("a folder");
    let (whole, file) = (sample(folder.path()), folder.path().join("damaged"));
    let shard = open(folder.path(), &whole).expect("whole");
    let entry = FileEntry::new("damaged".into(), (shard.seal(), shard.digest()));
    let mut read = 0;
    let mut again = |bytes: &[u8]| {
        std::fs::write(&file, bytes).expect("there is room");
        recheck(&file, &entry, &mut |step| {
            read += step;
            true
        })
    };
    again(&whole).expect("whole");
    let mut bytes = whole.clone();
    for place in (256..whole.len()).step_by(997) {
        bytes[place] ^= 1;
        let Err(FileError::Checksum { block, .. }) = again(&bytes) else {
            panic!("flipped byte {place} went unnoticed");
        };
        assert_eq!(block as usize, place / BLOCK, "byte {place}");
        bytes[place] = whole[place];
    }
    let cut = again(&whole[..whole.len() - 1]).expect_err("a file that was cut").to_string();
    assert!(cut.contains("the manifest says"), "{cut}");
    assert!(read > 10 * whole.len() as u64, "the pace is told of what is read");
}

/// The process died of SIGBUS.
#[test]
fn a_mapped_file_that_is_cut_is_an_error_of_its_table_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let entries: BTreeMap<u64, Vec<u8>> = (0..20_000u64).map(|key| (key, vec![key as u8; 90])).collect();
    let files = write(folder.path(), &Schema::variable(8), Plan { shards: 2, parts: 2 }, &entries);
    // A mapping that is gone must not be blamed.
    drop(open_files(&files, Options::default()));
    let (table, whole) = (open_files(&files, Options::default()), open_files(&files[..], Options::default()));
    let opened_later = folder.path().join("later");
    std::fs::create_dir(&opened_later).expect("ours");
    let other = write(&opened_later, &Schema::variable(8), Plan { shards: 2, parts: 2 }, &entries);
    let other = open_files(&other, Options::default());
    assert!(table.check_read().is_ok());
    std::fs::File::options().write(true).open(&files[1]).and_then(|file| file.set_len(100)).expect("cut");
    let read = |table: &Table| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| entries.keys().for_each(|key| _ = std::hint::black_box(table.get(*key))));
            }
        });
        table.check_read().map_err(|error| error.to_string())
    };
    let error = read(&table).expect_err("a cut");
    assert!(error.contains("shard-1") && error.contains("Input/output error"), "{error}");
    assert!(read(&whole).is_err(), "each mapping of it");
    assert!(read(&other).is_ok());
    assert!(entries.iter().all(|(key, value)| other.get(*key) == Some(value)));
    drop(table);
    // Its place, used again.
    let again = write(&opened_later, &Schema::variable(8), Plan { shards: 2, parts: 2 }, &entries);
    assert!(read(&open_files(&again, Options::default())).is_ok());
}

#[test]
fn a_cut_or_lengthened_file_is_refused_with_file_block_and_both_checksums() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = sample(folder.path());
    for length in (0..whole.len()).step_by(251).chain([255, 256, whole.len() - 1]) {
        let Err(FileError::Cut { length: said, block, expected, found, .. }) =
            open(folder.path(), &whole[..length])
        else {
            panic!("a cut at {length} went unnoticed");
        };
        assert_eq!((said, block as usize), (length as u64, length / BLOCK));
        assert!(expected != found || length == 0, "cut at {length}");
    }
    let mut longer = whole;
    longer.push(0);
    assert!(matches!(open(folder.path(), &longer), Err(FileError::Cut { .. })));
}

#[test]
fn shards_of_different_tables_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let entries = (0..10u64).map(|key| (key, vec![0; 4])).collect();
    let mut shards = Vec::new();
    for (name, schema, plan) in [
        ("a", Schema::fixed(Codec::Raw, 4), Plan { shards: 2, parts: 1 }),
        ("b", Schema::fixed(Codec::F32 { dimension: 1 }, 4), Plan { shards: 2, parts: 1 }),
    ] {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        shards.extend(write(&folder, &schema, plan, &entries));
    }
    let table = |files: &[usize]| {
        let open = |&number: &usize| Shard::open(&shards[number], Options::default()).expect("whole");
        Table::new(files.iter().map(open).collect()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(table(&[0, 1]), Ok(()));
    assert!(table(&[0]).expect_err("one is missing").contains("shard 0 of 2, not 0 of 1"));
    assert!(table(&[1, 0]).expect_err("wrong order").contains("shard 1 of 2, not 0 of 2"));
    assert!(table(&[0, 3]).expect_err("another schema").contains("its values are"));
    assert!(table(&[]).is_err());
}

/// Computes valid checksums for arbitrary content, as a hostile or broken writer could.
fn seal(bytes: &mut [u8]) {
    let at = u64::from_le_bytes(bytes[96..104].try_into().expect("eight bytes")) as usize;
    if at > BLOCK && at < bytes.len() || at >= 4096 && at <= bytes.len() {
        let sums: Vec<u32> = bytes[..at]
            .chunks(BLOCK)
            .enumerate()
            .map(|(number, block)| crc32c::crc32c(if number == 0 { &block[256..] } else { block }))
            .collect();
        for (place, sum) in bytes[at..].chunks_exact_mut(4).zip(sums) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        let sum = crc32c::crc32c(&bytes[at..]);
        bytes[108..112].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = crc32c::crc32c(&bytes[..252]);
    bytes[252..256].copy_from_slice(&sum.to_le_bytes());
}

/// A manifest with fields that this program does not know was called malformed, which it is not.
#[test]
fn a_newer_file_or_manifest_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bytes = WHOLE.clone();
    bytes[8] = 2;
    seal(&mut bytes);
    let Err(error) = open(folder.path(), &bytes) else { panic!("a file of version 2 was opened") };
    let said = error.to_string();
    assert!(
        said.contains("format version 2 ") && said.contains("use the version of quoin that built it"),
        "{said}"
    );
    let manifest = br#"{"format": 3, "something": "else"}"#;
    let refused = Manifest::parse(manifest, Path::new("manifest.json")).expect_err("a manifest of version 3");
    let said = refused.to_string();
    assert!(
        said.starts_with("manifest.json: format 3, but this program reads formats up to 2: use the version"),
        "{said}"
    );
}

/// Opens arbitrary bytes; if they open, reads them from end to end. Whether they opened.
fn exercise(folder: &Path, bytes: &[u8]) -> bool {
    let Ok(shard) = open(folder, bytes) else { return false };
    let keys: Vec<u64> =
        (0..shard.parts()).flat_map(|part| shard.entries(part)).map(|(key, _)| key).take(5000).collect();
    if let Ok(table) = Table::new(vec![shard]) {
        table.locate(&keys, |_, value| assert!(value.len() <= bytes.len()));
        table.locate(&[0, 1, u64::MAX], |_, _| {});
    }
    true
}

static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| sample(tempfile::tempdir().expect("a folder").path()));

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn invalid_content_under_valid_checksums_never_makes_a_reader_leave_the_file(
        changes in prop::collection::vec((0usize..6, 0usize..256, any::<u8>()), 1..5)
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut bytes = WHOLE.clone();
        let eight = |place: usize| bytes[place..place + 8].try_into().expect("eight bytes");
        let at = |place: usize| u64::from_le_bytes(eight(place)) as usize;
        let sections = [0, 4096, at(72), at(80), at(96), bytes.len() / 2];
        for (section, offset, byte) in changes {
            let place = sections[section] + offset;
            if place < bytes.len() {
                bytes[place] = byte;
            }
        }
        seal(&mut bytes);
        exercise(folder.path(), &bytes);
    }
}

/// The files in `corpus` are those that fuzzing kept. Each opens or is refused, as its name says.
#[test]
fn the_fuzz_corpus_opens_or_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/shard");
    let mut seen = (0, 0);
    for entry in std::fs::read_dir(&corpus).expect("the corpus is in the repository") {
        let path = entry.expect("a readable folder").path();
        let bytes = std::fs::read(&path).expect("a readable file");
        let opens = exercise(folder.path(), &bytes);
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        assert_eq!(opens, name.starts_with("opens"), "{name}");
        if opens { seen.0 += 1 } else { seen.1 += 1 }
    }
    assert!(seen.0 > 0 && seen.1 > 0, "both kinds: {seen:?}");
}
