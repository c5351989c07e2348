//! Commands of the kv face in golden scripts, see [`crate::golden`].
//!
//! ```text
//! put KEY VALUE [lease=ID] [ttl=MS] [at=MS] [keep-ttl] [restart-ttl] [prev] [ignore-value] [ignore-lease]
//!     [meta=1,2] [keep-meta]
//! del KEY [END] [prev]
//! get KEY [END] [rev=N] [limit=N] [sort=TARGET] [desc] [keys] [count] [min-mod=N] ...
//! txn COMPARE,... ? STEP; ... : STEP; ...    with COMPARE = TARGET(KEY)OP VALUE and OP one of = ! < >
//! incr KEY BY
//! hset KEY [FIELD=VALUE|FIELD?VALUE|FIELD+NUMBER|-FIELD|~FIELD][:MS]... [anew] [persist] [from=KEY] [ttl=MS]
//!     sets, sets if absent, adds, deletes, and changes only the time to live; MS is the field's
//! fields KEY    of a hash
//! grant ID SECONDS   revoke ID   keep-alive ID   lease ID   leases
//! floor KEY version=N|rev=N
//! hash [REV]    what replicas are compared by, as FNV-1a
//! ```
//! `''` is the empty key; `END` is `*` for "all keys from here on".

#![allow(clippy::unwrap_used, reason = "test code, which other crates' tests run too")]

use super::{
    Compare, CompareResult, CompareTarget, Delete, Field, FieldAction, FieldChange, FieldsReply, Floor,
    Increment, KeyValue, LeaseGrant, MetadataAt, Operation, Publish, Put, Range, Refusal, Reply, Response,
    SortOrder, SortTarget, Ttl, Txn, TxnOperation, WriteFields, change_to_key_value, fields, find, floor,
    hash, lease, leases, range, txn_operation::Step,
};
use crate::golden::{Line, Vocabulary, World, number};
use crate::{Event, Revision, history, system};
use bytes::Bytes;
use std::fmt::Write;

pub(crate) const VOCABULARY: Vocabulary = Vocabulary { face: "kv", run, show_event };

fn run(world: &mut World<'_>, line: &Line<'_>) -> bool {
    let words = &line.words;
    match line.name {
        "put" => apply(world, Operation::Put(put(words))),
        "del" => apply(world, Operation::Delete(delete(words))),
        "txn" => apply(world, Operation::Txn(txn(line.rest))),
        "grant" => {
            apply(world, Operation::LeaseGrant(LeaseGrant { id: line.number(0), ttl_s: line.number(1) }));
        }
        "revoke" => apply(world, Operation::LeaseRevoke(line.number(0))),
        "incr" => {
            apply(world, Operation::Increment(Increment { key: key(words[0]), by: line.number(1) }));
        }
        "hset" => apply(world, Operation::WriteFields(write_fields(words))),
        "fields" => show_fields(world, &key(words[0])),
        "keep-alive" => apply(world, Operation::LeaseKeepAlive(line.number(0))),
        "get" => {
            let reply = range(world.view(), &world.progress(), &get(words)).unwrap();
            show_result(world, &reply.map(Response::Range));
        }
        "hash" => show_hash(world, words),
        "floor" => show_floor(world, words),
        "lease" => show_lease(world, line.number(0)),
        "leases" => {
            for info in leases(world.view(), &world.progress()).unwrap() {
                let (id, granted, deadline) = (info.id, info.granted_ttl_s, info.deadline);
                world.say(format!("lease {id} granted {granted} s ends {deadline}"));
            }
        }
        "compact" => {
            let reply = world.compact(line.number(0));
            world.say(match reply {
                system::Reply::Done => "done".into(),
                system::Reply::Unavailable(why) => format!("refused: {why}"),
                other => format!("{other:?}"),
            });
        }
        _ => return false,
    }
    true
}

fn apply(world: &mut World<'_>, operation: Operation) {
    let before = world.progress().revision;
    let (reply, events) = world.apply(operation.into_command());
    let crate::Reply::Kv(Reply { revision, result }) = reply else { panic!("a kv command") };
    show_result(world, &result);
    if revision != before {
        world.say(format!("revision {revision}"));
    }
    assert!(events.iter().all(|event| event.revision > before), "events carry new revisions");
}

fn show_result(world: &mut World<'_>, result: &Result<Response, Refusal>) {
    match result {
        Ok(response) => show(world, response, ""),
        Err(refusal) => world.say(format!("refused: {refusal}")),
    }
}

fn show(world: &mut World<'_>, response: &Response, indent: &str) {
    match response {
        Response::Range(reply) => {
            for kv in &reply.kvs {
                world.say(format!("{indent}{}", shown(kv)));
            }
            let more = if reply.more { ", more" } else { "" };
            world.say(format!("{indent}count {}{more}", reply.count));
        }
        Response::Put(previous) => {
            if let Some(kv) = previous {
                world.say(format!("{indent}previous {}", shown(kv)));
            }
        }
        Response::Delete { deleted, prev_kvs } => {
            world.say(format!("{indent}deleted {deleted}"));
            for kv in prev_kvs {
                world.say(format!("{indent}previous {}", shown(kv)));
            }
        }
        Response::Txn { succeeded, responses } => {
            world.say(format!("{indent}{}", if *succeeded { "then" } else { "else" }));
            for response in responses {
                show(world, response, &format!("{indent}  "));
            }
        }
        Response::Lease { id, ttl_s } => world.say(format!("{indent}lease {id} for {ttl_s} s")),
        Response::Fields(FieldsReply { added, removed, number }) => {
            world.say(format!("{indent}added {added}, removed {removed}, number {number}"));
        }
        Response::Published => world.say(format!("{indent}published")),
        Response::Number(number) => world.say(format!("{indent}{number}")),
        Response::Revoked { more } => {
            world.say(format!("{indent}revoked{}", if *more { " in part" } else { "" }));
        }
    }
}

fn show_hash(world: &mut World<'_>, words: &[&str]) {
    let revision = words.first().map_or(world.progress().revision, |text| Revision(number(text)));
    let sequence = history::sequence_at(world.view(), &world.progress(), revision).unwrap();
    let shown = sequence.map(|sequence| {
        let mut fnv = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |byte: u8| fnv = (fnv ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        hash(world.view().at(sequence), |bytes| bytes.iter().for_each(|byte| add(*byte))).unwrap();
        format!("hash {fnv:016x}")
    });
    world.say(shown.unwrap_or_else(|why| format!("refused: {why}")));
}

fn show_fields(world: &mut World<'_>, key: &Bytes) {
    let found: Vec<String> = match find(world.view(), key).unwrap() {
        None => return world.say("nothing"),
        Some((kv, None)) => return world.say(format!("a {:?}", kv.kind)),
        Some((_, Some(hash))) => fields(world.view(), hash, b"")
            .map(|field| {
                let (name, Field { value, expires }) = field.unwrap();
                let until = expires.map_or(String::new(), |at| format!(" until {at}"));
                format!("{}={}{until}", text(&name), text(&value))
            })
            .collect(),
    };
    world.say(format!("[{}]", found.join(", ")));
}

fn show_floor(world: &mut World<'_>, words: &[&str]) {
    let wanted = match words[1].split_once('=').unwrap() {
        ("version", text) => Floor::Version(number(text)),
        (_, text) => Floor::ModRevision(number(text)),
    };
    let found = floor(world.view(), &world.progress(), &key(words[0]), wanted).unwrap();
    world.say(match found {
        Ok(Some(kv)) => shown(&kv),
        Ok(None) => "nothing".into(),
        Err(refusal) => format!("refused: {refusal}"),
    });
}

fn show_lease(world: &mut World<'_>, id: i64) {
    let found = lease(world.view(), &world.progress(), id, true).unwrap();
    let Some((info, keys)) = found else { return world.say("no such lease") };
    let keys: Vec<String> = keys.iter().map(|key| text(key)).collect();
    world.say(format!("ends {} keys [{}]", info.deadline, keys.join(" ")));
}

fn show_event(world: &mut World<'_>, event: &Event) {
    for change in &event.changes {
        let kv = change_to_key_value(change, event.revision).unwrap().unwrap();
        let what = if change.value.is_some() { shown(&kv) } else { format!("{} deleted", text(&kv.key)) };
        world.say(format!("event {} {what}", event.revision));
    }
}

fn shown(kv: &KeyValue) -> String {
    let mut out = format!(
        "{}={} create {} mod {} version {}",
        text(&kv.key),
        text(&kv.value),
        kv.create_revision,
        kv.mod_revision,
        kv.version
    );
    if kv.lease != 0 {
        write!(out, " lease {}", kv.lease).unwrap();
    }
    if let Some(deadline) = kv.expires {
        write!(out, " expires {deadline}").unwrap();
    }
    if !kv.metadata.is_empty() {
        write!(out, " meta {:?}", kv.metadata).unwrap();
    }
    out
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn numbers(text: &str) -> Vec<i64> {
    text.split(',').map(number).collect()
}

fn key(word: &str) -> Bytes {
    match word {
        "*" => Bytes::from_static(b"\0"),
        "''" => Bytes::new(),
        word => Bytes::copy_from_slice(word.as_bytes()),
    }
}

fn options<'a>(words: &'a [&'a str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    words.iter().map(|word| word.split_once('=').unwrap_or((word, "")))
}

fn put(words: &[&str]) -> Put {
    let mut put = Put { key: key(words[0]), value: key(words[1]), ..Put::default() };
    for (name, value) in options(&words[2..]) {
        match name {
            "lease" => put.lease = number(value),
            "ttl" => put.ttl = Some(Ttl::Milliseconds(number(value))),
            "at" => put.ttl = Some(Ttl::At(number(value))),
            "keep-ttl" => put.ttl = Some(Ttl::Keep(true)),
            "restart-ttl" => put.ttl = Some(Ttl::Restart(true)),
            "prev" => put.prev_kv = true,
            "ignore-value" => put.ignore_value = true,
            "ignore-lease" => put.ignore_lease = true,
            "meta" => put.metadata = numbers(value),
            "keep-meta" => put.keep_metadata = true,
            other => panic!("unknown option {other:?}"),
        }
    }
    put
}

fn write_fields(words: &[&str]) -> WriteFields {
    let mut write = WriteFields { key: key(words[0]), ..WriteFields::default() };
    for word in &words[1..] {
        match word.split_once('=') {
            None if *word == "anew" => write.anew = true,
            None if *word == "persist" => write.persist = true,
            Some(("from", from)) => write.from = key(from),
            Some(("ttl", ms)) => write.ttl = Some(Ttl::Milliseconds(number(ms))),
            _ => write.changes.push(field_change(word)),
        }
    }
    write
}

fn field_change(word: &str) -> FieldChange {
    let (word, ms) = word.split_once(':').map_or((word, None), |(word, ms)| (word, Some(number(ms))));
    let (field, action) = match (word.strip_prefix('-'), word.strip_prefix('~')) {
        (Some(field), _) => (field, FieldAction::Delete(true)),
        (_, Some(field)) => (field, FieldAction::Expire(true)),
        _ => {
            let at = word.find(['=', '?', '+']).expect("FIELD=VALUE, FIELD?VALUE or FIELD+NUMBER");
            let (field, rest) = word.split_at(at);
            let action = match (&rest[..1], &rest[1..]) {
                ("=", value) => FieldAction::Put(key(value)),
                ("?", value) => FieldAction::PutNew(key(value)),
                (_, by) => FieldAction::Add(number(by)),
            };
            (field, action)
        }
    };
    FieldChange { field: key(field), action: Some(action), ttl: ms.map(Ttl::Milliseconds) }
}

fn delete(words: &[&str]) -> Delete {
    let prev_kv = words.last() == Some(&"prev");
    let range_end = words.get(1).filter(|word| **word != "prev").map(|word| key(word)).unwrap_or_default();
    Delete { key: key(words[0]), range_end, prev_kv }
}

fn get(words: &[&str]) -> Range {
    let mut get = Range { key: key(words[0]), ..Range::default() };
    let mut rest = &words[1..];
    if let Some(end) =
        rest.first().filter(|word| !word.contains('=') && !["keys", "count", "desc"].contains(*word))
    {
        get.range_end = key(end);
        rest = &rest[1..];
    }
    for (name, value) in options(rest) {
        match name {
            "rev" => get.revision = number(value),
            "limit" => get.limit = number(value),
            "keys" => get.keys_only = true,
            "count" => get.count_only = true,
            "desc" => get.sort_order = SortOrder::Descend.into(),
            "sort" => {
                get.sort_target = match value {
                    "version" => SortTarget::Version.into(),
                    "create" => SortTarget::Create.into(),
                    "mod" => SortTarget::Mod.into(),
                    "value" => SortTarget::Value.into(),
                    _ => SortTarget::Key.into(),
                }
            }
            "min-mod" => get.min_mod_revision = number(value),
            "max-mod" => get.max_mod_revision = number(value),
            "min-create" => get.min_create_revision = number(value),
            "max-create" => get.max_create_revision = number(value),
            other => panic!("unknown option {other:?}"),
        }
    }
    get
}

/// `COMPARE,... ? STEP; ... : STEP; ...`; a step in brackets is a nested transaction.
fn txn(text: &str) -> Txn {
    let (compares, steps) = split(text, '?').unwrap_or(("", text));
    let (then, otherwise) = split(steps, ':').unwrap_or((steps, ""));
    let compare = compares.split(',').map(str::trim).filter(|text| !text.is_empty()).map(compare).collect();
    Txn { compare, success: self::steps(then), failure: self::steps(otherwise) }
}

/// Splits at the first `at` outside brackets.
fn split(text: &str, at: char) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (place, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            c if c == at && depth == 0 => return Some((&text[..place], &text[place + 1..])),
            _ => {}
        }
    }
    None
}

fn steps(mut text: &str) -> Vec<TxnOperation> {
    let mut steps = Vec::new();
    while !text.trim().is_empty() {
        let (first, rest) = split(text, ';').unwrap_or((text, ""));
        text = rest;
        let first = first.trim();
        let step = if let Some(inner) = first.strip_prefix('[') {
            Step::Txn(txn(inner.strip_suffix(']').expect("a closing bracket")))
        } else {
            let words: Vec<&str> = first.split_whitespace().collect();
            match words[0] {
                "put" => Step::Put(put(&words[1..])),
                "del" => Step::Delete(delete(&words[1..])),
                "get" => Step::Range(get(&words[1..])),
                "hset" => Step::WriteFields(write_fields(&words[1..])),
                "publish" => Step::Publish(Publish { channel: key(words[1]), payload: key(words[2]) }),
                other => panic!("unknown step {other:?}"),
            }
        };
        steps.push(TxnOperation { step: Some(step) });
    }
    steps
}

/// `TARGET(KEY)OP VALUE`, `TARGET(KEY..END)OP VALUE`, `meta0(KEY)OP VALUE`; a `~` in front lets an absent key
/// pass. `stamp()OP VALUE` compares the batch's stamp.
fn compare(text: &str) -> Compare {
    let (absent_passes, text) = text.strip_prefix('~').map_or((false, text), |text| (true, text));
    let (target, rest) = text.split_once('(').expect("TARGET(KEY)");
    let (keys, rest) = rest.split_once(')').expect("TARGET(KEY)");
    let (from, end) = keys.split_once("..").map_or((keys, Bytes::new()), |(from, end)| (from, key(end)));
    let (operator, value) = rest.split_at(1);
    let result = match operator {
        "=" => CompareResult::Equal,
        "!" => CompareResult::NotEqual,
        "<" => CompareResult::Less,
        ">" => CompareResult::Greater,
        other => panic!("unknown comparison {other:?}"),
    };
    let target = match target {
        "version" => CompareTarget::Version(number(value)),
        "create" => CompareTarget::CreateRevision(number(value)),
        "mod" => CompareTarget::ModRevision(number(value)),
        "lease" => CompareTarget::Lease(number(value)),
        "value" => CompareTarget::Value(key(value)),
        "stamp" => CompareTarget::Stamp(number(value)),
        meta => {
            let position = number(meta.strip_prefix("meta").expect("a known target"));
            CompareTarget::Metadata(MetadataAt { position, value: number(value) })
        }
    };
    Compare { result: result.into(), key: key(from), range_end: end, target: Some(target), absent_passes }
}
