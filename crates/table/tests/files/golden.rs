//! The examples of docs/table-format.md: the test reads them from the page and compares them with the code.

use super::{open, write};
use quoin_table::{Codec, FileEntry, Manifest, Options, Plan, Schema, hex};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/table-format.md");

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
    let seal = open(&files, Options::default()).shards()[0].seal();
    let entry = FileEntry::new("values-00000-of-00001.qtb".into(), seal);
    let manifest = Manifest::new("colours", None, schema, vec![entry], Vec::new(), BTreeMap::new());
    let written = String::from_utf8(manifest.to_json()).expect("JSON is UTF-8");
    assert_eq!(written, example(1));
    assert_eq!(hex::encode(&Sha256::digest(example(2).trim_end())[..16]), manifest.id);

    // The page says which unknown fields are refused.
    let parse = |text: &str| Manifest::parse(text.as_bytes(), Path::new("manifest.json"));
    let with = |after: &str| written.replacen(after, &format!("{after} \"other\": 1,"), 1);
    assert_eq!(parse(&written).expect("as written"), manifest);
    assert!(parse(&with("{")).is_err(), "in the manifest");
    assert!(parse(&with("\"files\": [\n    {")).is_err(), "in a file");
    assert!(parse(&with("\"schema\": {")).is_ok(), "in the schema");
}
