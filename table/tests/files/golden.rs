//! The bytes of docs/table-format.md's example, and of files that older programs wrote.

use super::{open, write};
use quoin_table::{Codec, Options, Plan, Schema, hex};
use std::collections::BTreeMap;

/// The example: keys 1, 2, 3 with two-byte values, one shard of one part.
#[test]
fn the_example_of_the_format_is_pinned() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut schema = Schema::fixed(Codec::Raw, 2);
    schema.default_row = Some(b"no".to_vec());
    let entries = BTreeMap::from([(1, b"aa".to_vec()), (2, b"bb".to_vec()), (3, b"cc".to_vec())]);
    let files = write(folder.path(), &schema, Plan::new(3, 1), &entries);
    let bytes = std::fs::read(&files[0]).expect("just written");
    let shown = |range: std::ops::Range<usize>| hex::encode(&bytes[range]);
    // The lines of the example begin with their place in the file; a word says what is not shown.
    let text = include_str!("../../../docs/table-format.md");
    let example =
        text.split("## Example").nth(1).expect("the example").split("```").nth(1).expect("its bytes");
    let digits =
        |word: &&str| word.len().is_multiple_of(2) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let documented: String =
        example.lines().flat_map(|line| line.split_whitespace().skip(1).take_while(digits)).collect();
    assert_eq!(documented, [shown(0..112), shown(252..256), shown(4096..bytes.len())].concat());
    assert_eq!(bytes.len(), 4191);
    assert!(bytes[112..252].iter().chain(&bytes[256..4096]).all(|&byte| byte == 0));
    assert_eq!(open(&files, Options::default()).get(3), Some(&b"cc"[..]));
}
