//! The examples of docs/table-format.md: the test reads them from the page and compares them with the code.

use super::{open, write};
use quoin_table::{Codec, FileEntry, Manifest, Options, Plan, Schema, hex};
use std::collections::BTreeMap;
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/table-format.md");

const FORMAT_1: &str = r#"{
  "format": 1,
  "id": "024d511ab3cd8e6e98e763a8383e39e8",
  "name": "colours",
  "schema": {"values": "fixed", "width": 2, "codec": "raw", "default_row": "6e6f"},
  "shards": 1,
  "count": 3,
  "deleted": 0,
  "files": [{"name": "values-00000-of-00001.qtb", "bytes": 4191, "count": 3, "checksum": "93b48fc6a52bd8ae"}],
  "metadata": {}
}"#;

/// The code block number `block`, from 0, of the page's examples.
fn example(block: usize) -> &'static str {
    let examples = PAGE.split("## Example").nth(1).expect("the page has examples");
    let (_language, text) =
        examples.split("```").nth(2 * block + 1).and_then(|block| block.split_once('\n')).expect("a block");
    text
}

/// Keys 1, 2, 3 with two-byte values, one shard of one part.
fn write_example(folder: &Path) -> (Schema, Vec<std::path::PathBuf>) {
    let mut schema = Schema::fixed(Codec::Raw, 2);
    schema.default_row = Some(b"no".to_vec());
    let entries = BTreeMap::from([(1, b"aa".to_vec()), (2, b"bb".to_vec()), (3, b"cc".to_vec())]);
    let files = write(folder, &schema, Plan::new(3, 1), &entries);
    (schema, files)
}

#[test]
fn the_pages_example_of_a_file_has_the_bytes_that_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, files) = write_example(folder.path());
    let bytes = std::fs::read(&files[0]).expect("just written");
    let shown = |range: std::ops::Range<usize>| hex::encode(&bytes[range]);
    // Each line begins with an offset; the first word that is not hexadecimal ends the digits.
    let digits =
        |word: &&str| word.len().is_multiple_of(2) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let documented: String =
        example(0).lines().flat_map(|line| line.split_whitespace().skip(1).take_while(digits)).collect();
    assert_eq!(documented, [shown(0..112), shown(252..256), shown(4096..bytes.len())].concat());
    assert!(PAGE.contains(&format!("{} bytes", bytes.len())));
    assert!(bytes[112..252].iter().chain(&bytes[256..4096]).all(|&byte| byte == 0));
    assert_eq!(open(&files, Options::default()).get(3), Some(&b"cc"[..]));
}

#[test]
fn the_pages_example_of_a_manifest_is_the_one_that_is_written_and_its_id_is_computed_as_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let (schema, files) = write_example(folder.path());
    let table = open(&files, Options::default());
    let shard = &table.shards()[0];
    let entry = FileEntry::new("values-00000-of-00001.qtb".into(), (shard.seal(), shard.digest()));
    // The digest while the file is written is that of the file.
    let bytes = std::fs::read(&files[0]).expect("just written");
    let digest = blake3::hash(&[&bytes[256..], &bytes[..256]].concat());
    assert_eq!(shard.digest().to_string(), digest.to_hex().as_str());
    let entry_checksum = entry.checksum;
    let manifest = Manifest::new("colours", None, schema, vec![entry], Vec::new(), BTreeMap::new());
    let written = String::from_utf8(manifest.to_json()).expect("JSON is UTF-8");
    assert_eq!(written, example(1));
    assert_eq!(blake3::hash(example(2).trim_end().as_bytes()).to_hex().as_str(), manifest.id);

    // Of format 1, without digests: as it was written by the version before.
    let old = Manifest::parse(FORMAT_1.as_bytes(), Path::new("manifest.json")).expect("still read");
    assert_eq!(
        (old.id.as_str(), old.files[0].checksum),
        ("024d511ab3cd8e6e98e763a8383e39e8", entry_checksum)
    );
    let mixed = FORMAT_1.replace("\"format\": 1", "\"format\": 2");
    let refused = Manifest::parse(mixed.as_bytes(), Path::new("manifest.json")).expect_err("no digest");
    assert!(refused.to_string().contains("should have a digest"), "{refused}");

    // The page says which unknown fields are refused.
    let parse = |text: &str| Manifest::parse(text.as_bytes(), Path::new("manifest.json"));
    let with = |after: &str| written.replacen(after, &format!("{after} \"other\": 1,"), 1);
    assert_eq!(parse(&written).expect("as written"), manifest);
    assert!(parse(&with("{")).is_err(), "in the manifest");
    assert!(parse(&with("\"files\": [\n    {")).is_err(), "in a file");
    assert!(parse(&with("\"schema\": {")).is_ok(), "in the schema");
}
