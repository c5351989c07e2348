//! Golden scripts of the kv face, see [`crate::golden`].
//!
//! ```text
//! put KEY VALUE [lease=ID] [ttl=MS] [at=MS] [keep-ttl] [restart-ttl] [prev] [ignore-value] [ignore-lease] [meta=1,2] [keep-meta]
//! del KEY [END] [prev]          get KEY [END] [rev=N] [limit=N] [sort=TARGET] [desc] [keys] [count] [min-mod=N] ...
//! txn COMPARE,... ? STEP; ... : STEP; ...        with COMPARE = TARGET(KEY)OP VALUE and OP one of = ! < >
//! incr KEY BY
//! grant ID SECONDS   revoke ID   keep-alive ID   lease ID   leases
//! time MS (moves the next batches' stamp)   term (a new leader)   compact REVISION   events FROM   floor KEY version=N|rev=N
//! ```
//! `''` is the empty key; `END` is `*` for "all keys from here on".

#![allow(clippy::unwrap_used, reason = "tests, though other crates run them too")]

use super::{
    Compare, CompareResult, CompareTarget, Delete, Floor, Increment, KeyValue, LeaseGrant, MetadataAt,
    Operation, Put, Range, Refusal, Reply, Response, SortOrder, SortTarget, Ttl, Txn, TxnOperation,
    change_to_key_value, floor, lease, leases, range, txn_operation::Step,
};
use crate::{Batch, Event, Index, Machines, Revision, Stamp, Store, Term, View, golden, history, system};
use bytes::Bytes;
use std::fmt::Write;

struct World<'a> {
    store: &'a dyn Store,
    machines: Machines,
    stamp: u64,
    term: u64,
    out: String,
    applied: &'a mut dyn FnMut(Index),
}

impl World<'_> {
    fn view(&self) -> View<'_> {
        View::new(self.store, self.machines.progress().sequence)
    }

    fn apply(&mut self, command: crate::Command) -> (crate::Reply, Vec<Event>) {
        let index = Index(self.machines.progress().index.0 + 1);
        let payload = Batch::encode(Stamp(self.stamp), &[command]);
        let outcome = self.machines.apply(self.store, index, Term(self.term), payload).unwrap();
        (self.applied)(index);
        (outcome.replies.into_iter().next().unwrap(), outcome.events)
    }

    fn say(&mut self, text: impl AsRef<str>) {
        writeln!(self.out, "{}", text.as_ref()).unwrap();
    }

    fn run(&mut self, line: &str) {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        match name {
            "put" => self.kv(Operation::Put(put(&words))),
            "del" => self.kv(Operation::Delete(delete(&words))),
            "txn" => self.kv(Operation::Txn(txn(rest))),
            "grant" => {
                self.kv(Operation::LeaseGrant(LeaseGrant { id: number(words[0]), ttl_s: number(words[1]) }))
            }
            "revoke" => self.kv(Operation::LeaseRevoke(number(words[0]))),
            "incr" => self.kv(Operation::Increment(Increment { key: key(words[0]), by: number(words[1]) })),
            "keep-alive" => self.kv(Operation::LeaseKeepAlive(number(words[0]))),
            "get" => {
                let reply = range(self.view(), &self.machines.progress(), &get(&words)).unwrap();
                self.show_result(&reply.map(Response::Range));
            }
            "floor" => self.floor(&words),
            "lease" => self.lease(number(words[0])),
            "leases" => {
                for info in leases(self.view(), &self.machines.progress()).unwrap() {
                    self.say(format!(
                        "lease {} granted {} s ends {}",
                        info.id, info.granted_ttl_s, info.deadline
                    ));
                }
            }
            "time" => self.time(number(words[0]) as u64),
            "term" => self.term += 1,
            "compact" => {
                let command = system::Operation::Compact(number(words[0]) as u64).into_command();
                let (reply, _) = self.apply(command);
                self.say(match reply {
                    crate::Reply::System(system::Reply::Done) => "done".into(),
                    crate::Reply::System(system::Reply::Unavailable(why)) => format!("refused: {why}"),
                    other => format!("{other:?}"),
                });
            }
            "events" => self.events(number(words[0]) as u64),
            other => panic!("unknown command {other:?}"),
        }
    }

    fn kv(&mut self, operation: Operation) {
        let before = self.machines.progress().revision;
        let (reply, events) = self.apply(operation.into_command());
        let crate::Reply::Kv(Reply { revision, result }) = reply else { panic!("a kv command") };
        self.show_result(&result);
        if revision != before {
            self.say(format!("revision {revision}"));
        }
        assert!(events.iter().all(|event| event.revision > before), "events carry new revisions");
    }

    fn show_result(&mut self, result: &Result<Response, Refusal>) {
        match result {
            Ok(response) => self.show(response, ""),
            Err(refusal) => self.say(format!("refused: {refusal}")),
        }
    }

    fn show(&mut self, response: &Response, indent: &str) {
        match response {
            Response::Range(reply) => {
                for kv in &reply.kvs {
                    self.say(format!("{indent}{}", shown(kv)));
                }
                let more = if reply.more { ", more" } else { "" };
                self.say(format!("{indent}count {}{more}", reply.count));
            }
            Response::Put(previous) => {
                if let Some(kv) = previous {
                    self.say(format!("{indent}previous {}", shown(kv)));
                }
            }
            Response::Delete { deleted, prev_kvs } => {
                self.say(format!("{indent}deleted {deleted}"));
                for kv in prev_kvs {
                    self.say(format!("{indent}previous {}", shown(kv)));
                }
            }
            Response::Txn { succeeded, responses } => {
                self.say(format!("{indent}{}", if *succeeded { "then" } else { "else" }));
                for response in responses {
                    self.show(response, &format!("{indent}  "));
                }
            }
            Response::Lease { id, ttl_s } => self.say(format!("{indent}lease {id} for {ttl_s} s")),
            Response::Number(number) => self.say(format!("{indent}{number}")),
            Response::Revoked => self.say(format!("{indent}revoked")),
        }
    }

    fn floor(&mut self, words: &[&str]) {
        let key = Bytes::copy_from_slice(words[0].as_bytes());
        let wanted = match words[1].split_once('=').unwrap() {
            ("version", text) => Floor::Version(number(text)),
            (_, text) => Floor::ModRevision(number(text)),
        };
        let found = floor(self.view(), &self.machines.progress(), &key, wanted).unwrap();
        self.say(match found {
            Ok(Some(kv)) => shown(&kv),
            Ok(None) => "nothing".into(),
            Err(refusal) => format!("refused: {refusal}"),
        });
    }

    fn lease(&mut self, id: i64) {
        let found = lease(self.view(), &self.machines.progress(), id, true).unwrap();
        let Some((info, keys)) = found else { return self.say("no such lease") };
        let keys: Vec<String> = keys.iter().map(|key| text(key)).collect();
        self.say(format!("ends {} keys [{}]", info.deadline, keys.join(" ")));
    }

    /// Lets time pass, as a leader with nothing else to do does when something is due.
    fn time(&mut self, ms: u64) {
        self.stamp += ms;
        while self.machines.next_deadline().is_some_and(|deadline| deadline.0 <= self.stamp) {
            let (_, events) = self.apply(system::Operation::Tick(true).into_command());
            for event in events {
                self.show_event(&event);
            }
        }
    }

    fn events(&mut self, from: u64) {
        let newest = self.machines.progress().revision;
        let events: Vec<Event> =
            history::events(self.view(), Revision(from), newest, |_| true).map(Result::unwrap).collect();
        for event in events {
            self.show_event(&event);
        }
    }

    fn show_event(&mut self, event: &Event) {
        for change in &event.changes {
            let kv = change_to_key_value(change, event.revision).unwrap().unwrap();
            let what = if change.value.is_some() { shown(&kv) } else { format!("{} deleted", text(&kv.key)) };
            self.say(format!("event {} {what}", event.revision));
        }
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

fn number(text: &str) -> i64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
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
            "ttl" => put.ttl = Some(Ttl::Milliseconds(number(value) as u64)),
            "at" => put.ttl = Some(Ttl::At(number(value) as u64)),
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

/// `COMPARE,... ? STEP; ... : STEP; ...`; a step in brackets is a transaction within.
fn txn(text: &str) -> Txn {
    let (compares, steps) = split(text, '?').unwrap_or(("", text));
    let (then, otherwise) = split(steps, ':').unwrap_or((steps, ""));
    let compare = compares.split(',').map(str::trim).filter(|text| !text.is_empty()).map(compare).collect();
    Txn { compare, success: self::steps(then), failure: self::steps(otherwise) }
}

/// Splits at the first `at` that is in no brackets.
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
                other => panic!("unknown step {other:?}"),
            }
        };
        steps.push(TxnOperation { step: Some(step) });
    }
    steps
}

/// `TARGET(KEY)OP VALUE`, `TARGET(KEY..END)OP VALUE`, `meta0(KEY)OP VALUE`; a `~` in front lets an absent key pass.
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
        meta => {
            let position = number(meta.strip_prefix("meta").expect("a known target")) as u32;
            CompareTarget::Metadata(MetadataAt { position, value: number(value) })
        }
    };
    Compare { result: result.into(), key: key(from), range_end: end, target: Some(target), absent_passes }
}

/// What the commands of `script` are answered on the empty `store`. After each entry `applied` is called with its index:
/// there the store may reorganise itself.
///
/// # Panics
/// The script has a command that there is not, or the store fails.
pub fn replay(script: &str, store: &dyn Store, applied: &mut dyn FnMut(Index)) -> String {
    let machines = Machines::open(store).unwrap();
    let mut world = World { store, machines, stamp: 1000, term: 1, out: String::new(), applied };
    for line in golden::kept_lines(script) {
        world.say(line);
        if let Some(command) = line.strip_prefix("> ") {
            world.run(command);
        }
    }
    // What the machine remembers besides the store must not matter: a fresh one on the same store sees the same.
    let fresh = Machines::open(store).unwrap();
    assert_eq!(fresh.progress(), world.machines.progress());
    assert!(
        fresh.next_deadline() >= world.machines.next_deadline(),
        "a deadline is never later than remembered"
    );
    world.out
}

#[test]
fn scripts_answer_as_recorded() {
    let replay = |script: &str| replay(script, &crate::store::MemoryStore::new(), &mut |_| {});
    golden::check("kv", 5, replay);
}
