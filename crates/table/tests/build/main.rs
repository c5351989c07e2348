//! Building from files: every row is found in the right form, and invalid input is refused with its position.

use arrow_array::builder::{Float32Builder, Float64Builder, ListBuilder};
use arrow_array::{
    ArrayRef, BinaryArray, FixedSizeBinaryArray, Float16Array, Float32Array, Float64Array, Int8Array,
    Int64Array, RecordBatch, StringArray, UInt64Array,
};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use quoin_table::build::{self, BuildError, CodecName, DefaultRow, Duplicates, Options, TextForm};
use quoin_table::manifest::FOLDS;
use quoin_table::stack::check_patch;
use quoin_table::{Codec, Layer, Layout, Manifest, Schema, Stack, TableError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn write_parquet(file: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(700)).build();
    let handle = std::fs::File::create(file).expect("the folder is ours");
    let mut writer = ArrowWriter::try_new(handle, batch.schema(), Some(properties)).expect("a schema");
    writer.write(&batch).expect("there is room");
    writer.close().expect("there is room");
}

fn options(folder: &Path, input: &str, output: &str) -> Options {
    Options::new("t", vec![folder.join(input)], folder.join(output))
}

fn run(options: &Options) -> Result<Manifest, BuildError> {
    build::build(options, &|_| {}).map(|built| built.manifest)
}

fn open(folder: &Path) -> Stack {
    Stack::base(Arc::new(layer(folder))).expect("a base")
}

fn layer(folder: &Path) -> Layer {
    Layer::open(folder, quoin_table::Options::default()).expect("just built")
}

fn get(stack: &Stack, key: u64) -> Option<Vec<u8>> {
    let mut value = None;
    stack.locate(&[key], |_, found| value = Some(found.to_vec()));
    value
}

fn floats(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn parquet_of_fixed_binary_becomes_a_fixed_table_in_shards() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys: Vec<u64> = (0..5000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let values: Vec<[u8; 16]> = keys.iter().map(|&key| u128::from(key).to_le_bytes()).collect();
    let array = FixedSizeBinaryArray::try_from_iter(values.iter()).expect("one width");
    write_parquet(
        &folder.path().join("in.parquet"),
        vec![
            ("key", Arc::new(UInt64Array::from(keys.clone())) as ArrayRef),
            ("value", Arc::new(array) as ArrayRef),
        ],
    );
    let manifest =
        run(&Options { shards: 3, ..options(folder.path(), "in.parquet", "out") }).expect("builds");
    assert_eq!((manifest.count, manifest.shards, manifest.schema.width()), (5000, 3, Some(16)));
    assert_eq!(Manifest::read(&folder.path().join("out")).expect("written"), manifest);
    let stack = open(&folder.path().join("out"));
    for (key, value) in keys.iter().zip(&values) {
        assert_eq!(get(&stack, *key).as_deref(), Some(&value[..]));
    }
    assert_eq!(get(&stack, 12345), None);

    // The same input gives the same files, whatever the number of threads.
    let again = run(&Options { shards: 3, threads: 1, ..options(folder.path(), "in.parquet", "again") })
        .expect("builds");
    assert_eq!(again, manifest);
}

#[test]
fn parquet_lists_columns_and_signed_keys_become_vectors() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lists = ListBuilder::new(Float32Builder::new());
    for n in 0..2000 {
        lists.append_value([Some(n as f32), Some(0.5), Some(-1.0)]);
    }
    let keys: Vec<i64> = (0..2000).map(|n| n - 1000).collect();
    write_parquet(
        &folder.path().join("list.parquet"),
        vec![
            ("id", Arc::new(Int64Array::from(keys.clone())) as ArrayRef),
            ("vector", Arc::new(lists.finish()) as ArrayRef),
        ],
    );
    let column = |scale: f32| {
        Arc::new((0..2000).map(|n| Some(n as f32 * scale)).collect::<Float32Array>()) as ArrayRef
    };
    write_parquet(
        &folder.path().join("columns.parquet"),
        vec![("id", Arc::new(Int64Array::from(keys)) as ArrayRef), ("a", column(1.0)), ("b", column(2.0))],
    );
    let by = |input: &str, output: &str, codec| Options {
        key: "id".into(),
        codec,
        default_row: None,
        ..options(folder.path(), input, output)
    };
    run(&by("list.parquet", "f32", None)).expect("builds");
    assert_eq!(get(&open(&folder.path().join("f32")), (-1000i64) as u64), Some(floats(&[0.0, 0.5, -1.0])));
    let halves = run(&by("columns.parquet", "f16", Some(CodecName::F16))).expect("builds");
    assert_eq!(halves.schema.codec, Codec::F16 { dimension: 2 });
    assert_eq!(get(&open(&folder.path().join("f16")), 3).map(|value| value.len()), Some(4));
    let bytes = Options {
        default_row: Some(DefaultRow::Vector(vec![1.0, 2.0])),
        values: vec!["b".into(), "a".into()],
        ..by("columns.parquet", "q8", Some(CodecName::Q8))
    };
    let manifest = run(&bytes).expect("builds");
    assert_eq!(manifest.schema.default_row.as_ref().map(Vec::len), Some(10));
    let refused = run(&by("list.parquet", "raw", Some(CodecName::Raw))).expect_err("vectors are not bytes");
    assert!(refused.to_string().contains("choose f32, f16 or q8"), "{refused}");
}

#[test]
fn csv_and_json_lines_give_what_parquet_gives() {
    let folder = tempfile::tempdir().expect("a folder");
    let file =
        |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("the folder is ours");
    file("in.csv", "key,value\n1,one\n-1,\"minus, one\"\n18446744073709551614,\n");
    file(
        "in.jsonl",
        "{\"key\":1,\"value\":\"one\"}\n\n{\"key\":-1,\"value\":\"minus, one\"}\n\
         {\"key\":\"18446744073709551614\",\"value\":\"\"}\n",
    );
    write_parquet(
        &folder.path().join("in.parquet"),
        vec![
            ("key", Arc::new(UInt64Array::from(vec![1, u64::MAX, u64::MAX - 1])) as ArrayRef),
            ("value", Arc::new(StringArray::from(vec!["one", "minus, one", ""])) as ArrayRef),
        ],
    );
    let manifests: Vec<Manifest> = ["in.csv", "in.jsonl", "in.parquet"]
        .map(|name| run(&options(folder.path(), name, &format!("out-{name}"))).expect("builds"))
        .into();
    assert!(manifests.iter().all(|manifest| manifest.id == manifests[0].id));
    assert!(matches!(manifests[0].schema.layout, Layout::Variable { .. }));
    assert_eq!(get(&open(&folder.path().join("out-in.csv")), u64::MAX), Some(b"minus, one".to_vec()));

    file("vectors.csv", "key,v\n1,\"[1.5, 2]\"\n2,3 4\n");
    file("vectors.jsonl", "{\"key\":1,\"v\":[1.5,2]}\n{\"key\":2,\"v\":[3,4]}\n");
    let f32 = Some(CodecName::F32);
    let of_csv =
        run(&Options { codec: f32, ..options(folder.path(), "vectors.csv", "csv") }).expect("builds");
    let of_json = run(&options(folder.path(), "vectors.jsonl", "json")).expect("builds");
    assert_eq!(of_csv.id, of_json.id);
    file("hex.csv", "key,value\n1,00ff\n2,a0b0\n");
    run(&Options { text: TextForm::Hex, ..options(folder.path(), "hex.csv", "hex") }).expect("builds");
    assert_eq!(get(&open(&folder.path().join("hex")), 1), Some(vec![0, 255]));
}

/// Writers in parts leave files without a row: a CSV without a header, a Parquet without a row group.
#[test]
fn an_empty_part_file_is_no_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("ours");
    for name in ["a.csv", "a.jsonl"] {
        file(name, "");
    }
    file("b.csv", "key,x,y\n1,2,3\n");
    file("c.csv", "key,x,y\n");
    let of_lists = |name: &str, count: u64| {
        let mut lists = ListBuilder::new(Float32Builder::new());
        (0..count).for_each(|_| lists.append_value([Some(2.0), Some(3.0)]));
        let keys = UInt64Array::from_iter_values(7..7 + count);
        let columns =
            vec![("key", Arc::new(keys) as ArrayRef), ("vector", Arc::new(lists.finish()) as ArrayRef)];
        write_parquet(&folder.path().join(name), columns);
    };
    of_lists("d.parquet", 0);
    of_lists("e.parquet", 1);
    let inputs = ["a.csv", "a.jsonl", "c.csv", "d.parquet", "b.csv", "e.parquet", "a.csv"];
    let inputs = inputs.iter().map(|name| folder.path().join(name)).collect();
    let built = run(&Options { inputs, ..options(folder.path(), "", "out") }).expect("builds");
    assert_eq!((built.count, built.schema.codec), (2, Codec::F32 { dimension: 2 }));
    assert_eq!(get(&open(&folder.path().join("out")), 7), Some(floats(&[2.0, 3.0])));
    assert_eq!(run(&options(folder.path(), "a.csv", "empty")).expect("builds").count, 0);

    // A patch that only deletes says nothing of its values.
    file("deletes.csv", "key,x,op\n7,,delete\n");
    let over = Options {
        over: Some(built),
        operation: Some("op".into()),
        ..options(folder.path(), "deletes.csv", "patch")
    };
    assert_eq!(run(&over).expect("builds").deleted, 1);
}

#[test]
fn numbers_and_lists_of_numbers_of_any_type_make_one_vector() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lists = ListBuilder::new(Float64Builder::new());
    lists.append_value([Some(0.5), Some(1.5)]);
    lists.append_value([Some(2.5), Some(3.5)]);
    let columns = vec![
        ("key", Arc::new(UInt64Array::from(vec![1, 2])) as ArrayRef),
        ("byte", Arc::new(Int8Array::from(vec![-1, 2])) as ArrayRef),
        ("list", Arc::new(lists.finish()) as ArrayRef),
        ("half", Arc::new(Float16Array::from(vec![half::f16::ONE; 2])) as ArrayRef),
        ("long", Arc::new(Int64Array::from(vec![1 << 40, -3])) as ArrayRef),
    ];
    write_parquet(&folder.path().join("in.parquet"), columns);
    let built = run(&options(folder.path(), "in.parquet", "out")).expect("builds");
    assert_eq!(built.schema.codec, Codec::F32 { dimension: 5 });
    let stack = open(&folder.path().join("out"));
    assert_eq!(get(&stack, 1), Some(floats(&[-1.0, 0.5, 1.5, 1.0, (1u64 << 40) as f32])));
    assert_eq!(get(&stack, 2), Some(floats(&[2.0, 2.5, 3.5, 1.0, -3.0])));
}

/// They were stored as infinite.
#[test]
fn a_number_beyond_f32_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("ours");
    file("a.csv", "key,x,y\n1,1e39,0\n");
    file("b.jsonl", "{\"key\":1,\"value\":[1e39]}\n");
    let columns = vec![
        ("key", Arc::new(UInt64Array::from(vec![1])) as ArrayRef),
        ("x", Arc::new(Float64Array::from(vec![1e39])) as ArrayRef),
    ];
    write_parquet(&folder.path().join("c.parquet"), columns);
    for name in ["a.csv", "b.jsonl", "c.parquet"] {
        let refused = run(&options(folder.path(), name, name.split('.').next().unwrap_or_default()));
        let refused = refused.expect_err(name).to_string();
        assert!(refused.contains("too large: vectors hold numbers up to 3.4"), "{refused}");
    }
    file("inf.csv", "key,x,y\n1,inf,-inf\n");
    run(&options(folder.path(), "inf.csv", "inf")).expect("an infinity that is meant");
}

/// An upsert without a value set its key to zeros, or to no bytes.
#[test]
fn only_a_row_that_deletes_needs_no_value() {
    let folder = tempfile::tempdir().expect("a folder");
    let base = |values: ArrayRef, name: &str| {
        let columns = vec![("key", Arc::new(UInt64Array::from(vec![1])) as ArrayRef), ("value", values)];
        write_parquet(&folder.path().join(format!("{name}.parquet")), columns);
        run(&options(folder.path(), &format!("{name}.parquet"), name)).expect("builds")
    };
    let lists = |rows: [Option<[Option<f32>; 2]>; 2]| {
        let mut lists = ListBuilder::new(Float32Builder::new());
        rows.into_iter().for_each(|row| lists.append_option(row));
        Arc::new(lists.finish()) as ArrayRef
    };
    let full = Some([Some(1.0), Some(2.0)]);
    let vectors = {
        let mut lists = ListBuilder::new(Float32Builder::new());
        lists.append_option(full);
        base(Arc::new(lists.finish()), "vectors")
    };
    let bytes = base(Arc::new(BinaryArray::from_opt_vec(vec![Some(b"x")])), "bytes");
    let numbers = base(Arc::new(Float32Array::from(vec![1.0])), "numbers");
    let cases: [(&Manifest, ArrayRef, ArrayRef); 3] = [
        (&vectors, lists([None, full]), lists([None, None])),
        (
            &bytes,
            Arc::new(BinaryArray::from_opt_vec(vec![None, Some(b"y")])),
            Arc::new(BinaryArray::from_opt_vec(vec![None, None])),
        ),
        (
            &numbers,
            Arc::new(Float32Array::from(vec![None, Some(2.0)])),
            Arc::new(Float32Array::from(vec![None, None])),
        ),
    ];
    for (number, (over, good, bad)) in cases.into_iter().enumerate() {
        let patch = |values: ArrayRef, name: String| {
            let columns = vec![
                ("key", Arc::new(UInt64Array::from(vec![1, 2])) as ArrayRef),
                ("op", Arc::new(StringArray::from(vec!["delete", "upsert"])) as ArrayRef),
                ("value", values),
            ];
            write_parquet(&folder.path().join(format!("{name}.parquet")), columns);
            run(&Options {
                over: Some(over.clone()),
                operation: Some("op".into()),
                ..options(folder.path(), &format!("{name}.parquet"), &name)
            })
        };
        let built = patch(good, format!("good-{number}")).expect("builds");
        assert_eq!((built.count, built.deleted), (1, 1));
        let refused = patch(bad, format!("bad-{number}")).expect_err("an upsert without a value").to_string();
        assert!(refused.contains("row 1, key 2: column \"value\" is null"), "{refused}");
    }
}

#[test]
fn invalid_input_is_refused_with_file_position_and_value() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        ("a.csv", "key,value\n1,x\nabc,y\n", "line 3: the key \"abc\" is not a 64-bit integer"),
        ("b.csv", "id,value\n1,x\n", "there is no column \"key\"; the columns are id, value"),
        ("c.csv", "key,a,b\n1,1,2\n2,1,x\n", "line 3: \"x\" is not a number"),
        ("d.jsonl", "{\"key\":1,\"value\":\"x\"}\n{\"key\":2", "line 2: EOF"),
        (
            "e.jsonl",
            "{\"key\":1,\"value\":[1,2]}\n{\"key\":2,\"value\":[1]}\n",
            "line 2: key 2: the vector has 1 components",
        ),
        ("f.jsonl", "{\"key\":1.5,\"value\":\"x\"}\n", "the key 1.5 is not a 64-bit integer"),
        ("g.txt", "key\n", "unknown format"),
        ("h.parquet", "no parquet", "h.parquet: "),
        ("i.csv", "key\n1\n", "there is no column for the values"),
    ];
    for (name, text, expected) in cases {
        std::fs::write(folder.path().join(name), text).expect("the folder is ours");
        let refused = run(&options(folder.path(), name, &format!("out-{name}"))).expect_err(name).to_string();
        assert!(refused.contains(name) && refused.contains(expected), "{name}: {refused}");
        assert!(!folder.path().join(format!("out-{name}/manifest.json")).exists());
    }
    write_parquet(
        &folder.path().join("nulls.parquet"),
        vec![
            ("key", Arc::new(UInt64Array::from(vec![1, 2])) as ArrayRef),
            ("value", Arc::new(BinaryArray::from_opt_vec(vec![Some(b"x"), None])) as ArrayRef),
        ],
    );
    let refused = run(&options(folder.path(), "nulls.parquet", "nulls")).expect_err("a null").to_string();
    assert!(refused.contains("column \"value\" is null in row 1"), "{refused}");
    let missing =
        run(&options(folder.path(), "missing.csv", "missing")).expect_err("no such file").to_string();
    assert!(missing.contains("missing.csv"), "{missing}");
}

#[test]
fn duplicate_keys_keep_the_last_or_first_row_or_fail_the_build() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, value) in [("a.csv", "old"), ("b.csv", "new")] {
        let rows: String = (0..3000).map(|key| format!("{key},{value}{}\n", key % 7)).collect();
        std::fs::write(folder.path().join(name), format!("key,value\n{rows}{rows}"))
            .expect("the folder is ours");
    }
    let inputs = vec![folder.path().join("a.csv"), folder.path().join("b.csv")];
    let by = |duplicates, output: &str| {
        run(&Options { inputs: inputs.clone(), duplicates, ..options(folder.path(), "a.csv", output) })
    };
    assert_eq!(by(Duplicates::Last, "last").expect("builds").count, 3000);
    by(Duplicates::First, "first").expect("builds");
    assert_eq!(get(&open(&folder.path().join("last")), 5), Some(b"new5".to_vec()));
    assert_eq!(get(&open(&folder.path().join("first")), 5), Some(b"old5".to_vec()));
    let refused = by(Duplicates::Error, "error").expect_err("duplicate keys");
    assert!(matches!(refused, BuildError::Duplicate(_)), "{refused}");
    assert!(!folder.path().join("error/manifest.json").exists());
    let again = by(Duplicates::Last, "last").expect_err("the folder contains a table").to_string();
    assert!(again.contains("already contains a table"), "{again}");
}

type Model = BTreeMap<u64, Vec<u8>>;

fn write_patch(folder: &Path, name: &str, rows: &[(u64, Option<Vec<u8>>)], over: &Manifest) -> PathBuf {
    let lines: String = rows
        .iter()
        .map(|(key, value)| match value {
            Some(value) => format!("{key},{},upsert\n", quoin_table::hex::encode(value)),
            None => format!("{key},,delete\n"),
        })
        .collect();
    let input = folder.join(format!("{name}.csv"));
    std::fs::write(&input, format!("key,value,op\n{lines}")).expect("the folder is ours");
    let output = folder.join(name);
    run(&Options {
        text: TextForm::Hex,
        over: Some(over.clone()),
        operation: Some("op".into()),
        ..Options::new("t", vec![input], output.clone())
    })
    .expect("builds");
    output
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn patches_over_a_base_and_their_merge_answer_as_a_map(
        base in prop::collection::btree_map(0..300u64, prop::collection::vec(any::<u8>(), 0..40), 1..200),
        patches in prop::collection::vec(
            prop::collection::vec(
                (0..300u64, prop::option::of(prop::collection::vec(any::<u8>(), 0..40))),
                1..80,
            ),
            1..4,
        ),
        shards in 1..3u32,
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let row = |(key, value): (&u64, &Vec<u8>)| format!("{key},{}\n", quoin_table::hex::encode(value));
        let rows: String = base.iter().map(row).collect();
        std::fs::write(folder.path().join("base.csv"), format!("key,value\n{rows}")).expect("our folder");
        let defaults = options(folder.path(), "base.csv", "base");
        let of_base = Options { shards, variable: true, text: TextForm::Hex, ..defaults };
        let of_base = run(&of_base).expect("builds");
        let mut model: Model = base;
        let (mut stack, mut below) = (open(&folder.path().join("base")), of_base);
        let mut folders = Vec::new();
        for (number, rows) in patches.iter().enumerate() {
            let patch = write_patch(folder.path(), &format!("patch{number}"), rows, &below);
            for (key, value) in rows {
                match value {
                    Some(value) => model.insert(*key, value.clone()),
                    None => model.remove(key),
                };
            }
            let layer = Arc::new(layer(&patch));
            below = layer.manifest().clone();
            stack = stack.with(layer).expect("over its base");
            folders.push(patch);
        }
        let merged = Options::new("t", Vec::new(), folder.path().join("merged"));
        let built = build::merge(&merged, &folder.path().join("base"), &folders, &|_| {}).expect("merges");
        prop_assert_eq!(built.manifest.count, model.len() as u64);
        let merged = open(&folder.path().join("merged"));
        let keys: Vec<u64> = (0..310).collect();
        for stack in [&stack, &merged] {
            let mut answers = vec![None; keys.len()];
            stack.locate(&keys, |at, value| answers[at] = Some(value.to_vec()));
            for (key, answer) in keys.iter().zip(answers) {
                prop_assert_eq!(answer.as_ref(), model.get(key), "key {}", key);
            }
        }
    }
}

#[test]
fn a_patch_over_the_wrong_base_or_of_another_shape_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.csv"), "key,value\n1,00\n2,01\n").expect("the folder is ours");
    std::fs::write(folder.path().join("b.csv"), "key,value\n1,00\n2,02\n").expect("the folder is ours");
    let build = |input: &str, output: &str| {
        run(&Options { text: TextForm::Hex, ..options(folder.path(), input, output) }).expect("builds")
    };
    let (a, _b) = (build("a.csv", "a"), build("b.csv", "b"));
    let patch = write_patch(folder.path(), "patch", &[(1, Some(vec![9])), (2, None)], &a);
    let patch = Arc::new(layer(&patch));
    let patched = open(&folder.path().join("a")).with(Arc::clone(&patch)).expect("over its base");
    assert_eq!((get(&patched, 1), get(&patched, 2)), (Some(vec![9]), None));
    let refused =
        open(&folder.path().join("b")).with(Arc::clone(&patch)).map(|_| ()).expect_err("another base");
    assert!(matches!(refused, TableError::WrongBase { .. }), "{refused}");
    assert!(patched.with(Arc::clone(&patch)).is_err(), "not over itself");
    assert!(Stack::base(patch).is_err(), "a patch is no base");
    // A patch with another width or shard count is refused even if it names the right base.
    let shaped = |width, shards| {
        let files = vec![a.files[0].clone(); shards];
        let (over, schema) = (Some(a.id.clone()), Schema::fixed(Codec::Raw, width));
        check_patch(&a, &Manifest::new("t", over, schema, files, Vec::new(), BTreeMap::new()))
    };
    assert!(shaped(1, 1).is_ok());
    assert!(matches!(shaped(2, 1), Err(TableError::WrongShape { .. })));
    assert!(matches!(shaped(1, 2), Err(TableError::WrongShape { .. })));
    // A fixed-width table refuses a value of another width.
    std::fs::write(folder.path().join("wide.csv"), "key,value\n1,0000\n").expect("the folder is ours");
    let wide = Options { text: TextForm::Hex, over: Some(a), ..options(folder.path(), "wide.csv", "wide") };
    let refused = run(&wide).expect_err("another width").to_string();
    assert!(refused.contains("the value of key 1 has 2 bytes, but the table's values have 1"), "{refused}");
}

#[test]
fn changes_become_a_patch_and_a_merge_keeps_the_note_of_what_it_folds() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("in.csv"), "key,value\n1,aaaa\n2,bbbb\n3,cccc\n").expect("ours");
    let base = run(&options(folder.path(), "in.csv", "base")).expect("builds");
    let mut patch = Options { over: Some(base.clone()), ..options(folder.path(), "in.csv", "changes") };
    patch.metadata.insert(FOLDS.into(), "17 t ab 1".into());
    let value = |text: &str| Some(text.as_bytes().to_vec());
    let changes = [(2, value("BBBB")), (3, None), (4, value("xxxx")), (4, value("dddd")), (5, None)];
    let build = |options: &Options, changes: Vec<build::Change<Vec<u8>>>| {
        build::patch(options, 5, changes, &|_| {}).map(|built| built.manifest)
    };
    let built = build(&patch, changes.map(Ok).to_vec()).expect("builds");
    assert_eq!((built.count, built.deleted, built.over), (2, 2, Some(base.id)));
    let options = Options::new("t", Vec::new(), at("merged"));
    let merged = build::merge(&options, &at("base"), &[at("changes")], &|_| {}).expect("merges").manifest;
    assert_eq!((merged.count, merged.metadata.get(FOLDS).map(String::as_str)), (3, Some("17 t ab 1")));
    let stack = open(&at("merged"));
    let found = [1, 2, 3, 4, 5].map(|key| get(&stack, key));
    assert_eq!(found, [value("aaaa"), value("BBBB"), None, value("dddd"), None]);

    // No changes make an empty patch. An invalid change, or an error instead of one, leaves no patch.
    patch.output = at("none");
    assert_eq!(build(&patch, Vec::new()).expect("builds").count, 0);
    let refused = |changes| {
        let patch = Options { output: at("refused"), ..patch.clone() };
        let error = build(&patch, changes).expect_err("refused").to_string();
        assert!(!at("refused").join("manifest.json").exists());
        error
    };
    assert!(refused(vec![Ok((7, value("five!")))]).contains("the value of key 7 has 5 bytes"));
    assert_eq!(refused(vec![Err("the server is away".into())]), "the server is away");
    let orphan = Options { over: None, ..patch };
    assert!(
        build(&orphan, Vec::new()).expect_err("over nothing").to_string().contains("needs a table below it")
    );
}

#[test]
fn a_changed_manifest_or_a_file_of_another_table_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.csv"), "key,value\n1,x\n").expect("the folder is ours");
    std::fs::write(folder.path().join("b.csv"), "key,value\n1,y\n").expect("the folder is ours");
    let manifest = run(&options(folder.path(), "a.csv", "a")).expect("builds");
    run(&options(folder.path(), "b.csv", "b")).expect("builds");
    let refused = |what: &str| match Layer::open(&folder.path().join("a"), quoin_table::Options::default()) {
        Ok(_) => panic!("{what} went unnoticed"),
        Err(error) => error.to_string(),
    };
    let file = folder.path().join("a/manifest.json");
    let text = std::fs::read_to_string(&file).expect("written");
    std::fs::write(&file, text.replace("\"count\": 1", "\"count\": 2")).expect("the folder is ours");
    assert!(refused("another count").contains("it was changed or damaged"));
    std::fs::write(&file, text.replace(&manifest.files[0].name, "../b")).expect("the folder is ours");
    assert!(refused("a path").contains("must consist of letters"));
    std::fs::write(&file, &text).expect("the folder is ours");
    let name = &manifest.files[0].name;
    std::fs::copy(folder.path().join("b").join(name), folder.path().join("a").join(name))
        .expect("both are there");
    assert!(refused("another file").contains("not the file that the manifest names"));
}
