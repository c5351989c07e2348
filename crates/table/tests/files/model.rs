//! Tables answer as a map does.

use super::{open, write};
use proptest::prelude::*;
use quoin_table::answer::{answer_width, gather};
use quoin_table::{Answer, Codec, Form, Options, Place, Plan, Schema, Table};
use std::collections::BTreeMap;

/// Keys that are close together, random, extreme, or equal in their low or high bits.
fn keys() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..200u64,
        any::<u64>(),
        Just(u64::MAX),
        (0..200u64).prop_map(|n| n << 56),
        (0..200u64).prop_map(|n| n << 32 | 0xffff),
    ]
}

fn schemas() -> impl Strategy<Value = Schema> {
    let vector =
        |codec: fn(u32) -> Codec| (0..40u32).prop_map(move |dimension| Schema::fixed(codec(dimension), 0));
    let schema = prop_oneof![
        (0..100u32).prop_map(|width| Schema::fixed(Codec::Raw, width)),
        (0..40u32).prop_map(Schema::variable),
        vector(|dimension| Codec::F32 { dimension }),
        vector(|dimension| Codec::F16 { dimension }),
        vector(|dimension| Codec::Q8 { dimension }),
    ];
    (schema, any::<Option<u8>>()).prop_map(|(mut schema, filler)| {
        schema.default_row = filler.map(|byte| vec![byte; schema.width().unwrap_or(17) as usize]);
        schema
    })
}

/// A value for each key: of the schema's width, or of any width below 80 bytes.
fn value(schema: &Schema, key: u64, salt: u8) -> Vec<u8> {
    let width = schema.width().unwrap_or((key ^ u64::from(salt)) as u32 % 80);
    if let Some(dimension) = schema.codec.dimension() {
        let vector: Vec<f32> = (0..dimension).map(|n| (key % 1000) as f32 / 8.0 - n as f32).collect();
        let mut stored = Vec::new();
        schema.codec.encode(&vector, &mut stored).expect("small numbers");
        return stored;
    }
    (0..width).map(|n| (key as u32).wrapping_mul(31).wrapping_add(n) as u8 ^ salt).collect()
}

fn check(table: &Table, schema: &Schema, entries: &BTreeMap<u64, Vec<u8>>, asked: &[u64]) {
    let mut seen = vec![None; asked.len()];
    table.locate(asked, |position, stored| seen[position] = Some(stored.to_vec()));
    for (&key, found) in asked.iter().zip(seen) {
        assert_eq!(found.as_ref(), entries.get(&key), "key {key}");
    }
    for form in [Form::Stored, Form::F32] {
        let mut answer = Answer::default();
        gather(schema, form, asked, usize::MAX, &mut answer, |keys, found| table.locate(keys, found))
            .expect("no limit");
        assert_eq!(answer.count as usize, asked.iter().filter(|key| entries.contains_key(key)).count());
        for (at, key) in asked.iter().enumerate() {
            assert_eq!(answer.found[at / 8] >> (at % 8) & 1 == 1, entries.contains_key(key));
            let stored = entries.get(key).or(schema.default_row.as_ref());
            let range = match answer_width(schema, form) {
                Some(width) => at * width..(at + 1) * width,
                None => answer.offsets[at] as usize..answer.offsets[at + 1] as usize,
            };
            let got = &answer.values[range];
            match stored {
                None => assert!(got.iter().all(|&byte| byte == 0)),
                Some(stored) if form == Form::Stored || schema.codec == Codec::Raw => assert_eq!(got, stored),
                Some(stored) => {
                    let mut expected = vec![0; got.len()];
                    schema.codec.decode(stored, &mut expected);
                    assert_eq!(got, expected);
                }
            }
        }
    }
    let all: BTreeMap<u64, Vec<u8>> = table
        .shards()
        .iter()
        .flat_map(|shard| (0..shard.parts()).flat_map(|part| shard.entries(part)))
        .map(|(key, value)| (key, value.to_vec()))
        .collect();
    assert_eq!(&all, entries);
    assert_eq!(table.count(), entries.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn a_table_answers_as_a_map(
        schema in schemas(),
        present in prop::collection::btree_set(keys(), 0..300),
        others in prop::collection::vec(keys(), 0..300),
        shards in 1..5u32,
        parts in 1..4u32,
        huge in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let entries = present.iter().map(|&key| (key, value(&schema, key, 7))).collect();
        let files = write(folder.path(), &schema, Plan { shards, parts }, &entries);
        let place = if huge { Place::Huge } else { Place::Mapped };
        let table = open(&files, Options { place, lock: false });
        prop_assert_eq!(table.schema(), &schema);
        // The existing keys twice: a key asked for twice is answered twice.
        let twice = present.iter().chain(&present).copied();
        let asked: Vec<u64> = others.into_iter().chain(twice).collect();
        check(&table, &schema, &entries, &asked);
    }
}

#[test]
fn empty_tables_and_single_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let schema = Schema::fixed(Codec::Raw, 4);
    for (entries, plan) in [
        (BTreeMap::new(), Plan::new(0, 1)),
        (BTreeMap::new(), Plan { shards: 3, parts: 2 }),
        (BTreeMap::from([(0, vec![1, 2, 3, 4])]), Plan::new(1, 1)),
        (BTreeMap::from([(u64::MAX, vec![0; 4])]), Plan { shards: 2, parts: 3 }),
    ] {
        let table = open(&write(folder.path(), &schema, plan, &entries), Options::default());
        check(&table, &schema, &entries, &[0, 1, u64::MAX, u64::MAX - 1]);
        check(&table, &schema, &entries, &[]);
    }
}

#[test]
fn an_answer_above_the_limit_is_refused_before_anything_is_copied() {
    let folder = tempfile::tempdir().expect("a folder");
    for schema in [Schema::fixed(Codec::Raw, 100), Schema::variable(8)] {
        let entries = (0..10u64).map(|key| (key, vec![1; 100])).collect();
        let table = open(&write(folder.path(), &schema, Plan::new(10, 1), &entries), Options::default());
        let keys: Vec<u64> = (0..10).collect();
        let mut answer = Answer::default();
        let refused =
            gather(&schema, Form::Stored, &keys, 999, &mut answer, |keys, found| table.locate(keys, found));
        assert_eq!(refused.map_err(|refusal| (refusal.bytes, refusal.limit)), Err((1000, 999)));
        assert!(answer.values.is_empty());
        gather(&schema, Form::Stored, &keys, 1000, &mut answer, |keys, found| table.locate(keys, found))
            .expect("it fits");
    }
}
