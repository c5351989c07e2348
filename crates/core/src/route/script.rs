//! Commands of the route face in golden scripts, see [`crate::golden`].
//!
//! ```text
//! put VNI IP GROUP [mac=M] [host=IP] [data=TEXT]; ...
//! raw-put TEXT (as packed rules)
//! write [if VNI IP REVISION] ; [put RULE] ; [del VNI IP] ; ... (a rule as after put)
//! del VNI IP; ...   del-group GROUP LIMIT [not-after=REVISION]   del-vni VNI LIMIT   get VNI IP [rev=N]
//! group NAME [rev=N] (the revision of its newest change)
//! list group=NAME|vni=N [rev=N] [after=VNI,IP] [limit=N]
//! vpc NAME VNI   old-vpc NAME VNI (as earlier versions wrote it)   vpcs VNI
//! object KIND NAME TEXT   del-object KIND NAME   objects KIND   beat NODE TTL_MS REVISION   nodes
//! events FROM group=NAME|vni=N|kind=N|status
//! ```

#![allow(clippy::unwrap_used, reason = "test code, which other crates' tests run too")]

use super::vpcs;
use super::{
    Changed, Condition, DeleteMany, DeleteObject, Heartbeat, ObjectKind, Operation, PutObject, Reply, Rule,
    RuleKey, Scope, Write, changed, group_revision, node_statuses, objects, pack_condition, pack_keys,
    pack_rule, rule, rules,
};
use crate::golden::{Line, Vocabulary, World, number};
use crate::{Event, Revision};
use bytes::Bytes;
use prost::Message;
use std::fmt::Write as _;

pub(crate) const VOCABULARY: Vocabulary = Vocabulary { face: "route", run, show_event };

fn run(world: &mut World<'_>, line: &Line<'_>) -> bool {
    let Line { name, rest, words } = line;
    match *name {
        "put" => {
            let (mut packed, mut scratch) = (Vec::new(), Vec::new());
            for one in rest.split(';') {
                pack_rule(&mut packed, &parse_rule(one), &mut scratch);
            }
            apply(world, Operation::Put(packed.into()));
        }
        "del" => {
            let keys: Vec<RuleKey> = rest.split(';').map(parse_key).collect();
            apply(world, Operation::Delete(pack_keys(&keys)));
        }
        "write" => apply(world, Operation::Write(parse_write(rest))),
        "raw-put" => apply(world, Operation::Put(bytes(rest))),
        "del-group" | "del-vni" => {
            let group = (*name == "del-group").then(|| bytes(words[0]));
            let vni = if group.is_none() { line.number(0) } else { 0 };
            let not_after = line.option("not-after").map_or(world.progress().revision.0, number);
            apply(world, Operation::DeleteMany(DeleteMany { group, vni, limit: line.number(1), not_after }));
        }
        "get" => get(world, line),
        "list" => list(world, line),
        "group" => {
            let revision = group_revision(world.view_at(at(line)), words[0].as_bytes()).unwrap();
            world.say(revision.map_or("unknown".into(), |revision| format!("revision {revision}")));
        }
        "object" => {
            let (name, body) = (bytes(words[1]), bytes(words[2]));
            apply(world, Operation::PutObject(PutObject { kind: line.number(0), name, body, alone: true }));
        }
        "vpc" | "old-vpc" => {
            let body = vpcs::Body { vpc: Some(vpcs::Vpc { vni: line.number(1) }) }.encode_to_vec().into();
            let (kind, alone) = (ObjectKind::Vpc as u32, *name == "vpc");
            apply(world, Operation::PutObject(PutObject { kind, name: bytes(words[0]), body, alone }));
        }
        "vpcs" => {
            let names = world.machines.memory().vpcs.of(line.number(0));
            world.say(format!("{names:?}"));
        }
        "del-object" => {
            let (kind, name) = (line.number(0), bytes(words[1]));
            apply(world, Operation::DeleteObject(DeleteObject { kind, name }));
        }
        "objects" => {
            let kind = ObjectKind::try_from(line.number::<u32>(0)).unwrap();
            let found: Vec<_> = objects(world.view(), kind, None).map(Result::unwrap).collect();
            found.iter().for_each(|object| world.say(format!("{object:?}")));
        }
        "beat" => {
            let (node, ttl_ms, applied_revision) = (bytes(words[0]), line.number(1), line.number(2));
            apply(world, Operation::Heartbeat(Heartbeat { node, ttl_ms, applied_revision }));
        }
        "nodes" => {
            for node in node_statuses(world.view()).unwrap() {
                world.say(format!("{node:?}"));
            }
        }
        "events" if words.len() > 1 => {
            let prefix = scope(&words[1..]).prefix();
            world.events(Revision(line.number(0)), |key| key.starts_with(&prefix));
        }
        _ => return false,
    }
    true
}

fn apply(world: &mut World<'_>, operation: Operation) {
    let before = world.progress().revision;
    let (crate::Reply::Route(Reply { revision, result }), _) = world.apply(operation.into_command()) else {
        panic!("a route command")
    };
    world.say(match result {
        Ok(response) => format!("{response:?}"),
        Err(refusal) => format!("refused: {refusal}"),
    });
    if revision != before {
        world.say(format!("revision {revision}"));
    }
}

fn get(world: &mut World<'_>, line: &Line<'_>) {
    let (key, revision) = (parse_key(&line.words[..2].join(" ")), at(line));
    let found = rule(world.view_at(revision), key).unwrap();
    if revision.is_none() {
        let memory = world.machines.memory();
        let look = memory.routes.look();
        assert_eq!(look.get(&key).unwrap(), found.as_ref().map(Rule::as_ref), "table and store differ");
    }
    world.say(found.map_or("nothing".into(), |rule| shown(&rule)));
}

fn list(world: &mut World<'_>, line: &Line<'_>) {
    let (scope, revision) = (scope(&line.words), at(line));
    let after = line.option("after").map(|text| parse_key(&text.replace(',', " ")));
    let limit = line.option("limit").map_or(usize::MAX, number);
    let found: Vec<Rule> =
        rules(world.view_at(revision), &scope, after).map(Result::unwrap).take(limit).collect();
    if let (Scope::Group(group), None) = (&scope, revision) {
        let memory = world.machines.memory();
        let members = memory.routes.look().group(group, after, limit);
        let stored = found.iter().map(Rule::as_ref);
        assert!(members.rules().map(Result::unwrap).eq(stored), "table and store differ");
    }
    found.iter().for_each(|rule| world.say(shown(rule)));
}

fn at(line: &Line<'_>) -> Option<Revision> {
    line.option("rev").map(|text| Revision(number(text)))
}

fn show_event(world: &mut World<'_>, event: &Event) {
    for change in &event.changes {
        let what = match changed(change).unwrap().unwrap() {
            Changed::Put(rule) => shown(&rule),
            other => format!("{other:?}"),
        };
        world.say(format!("event {} {what}", event.revision));
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn shown(rule: &Rule) -> String {
    let mut out = format!("{} {} group {}", rule.key.vni, rule.key.ip, rule.group.escape_ascii());
    if let Some(mac) = rule.mac {
        write!(out, " mac {mac:02x?}").unwrap();
    }
    if let Some(host) = rule.host_ip {
        write!(out, " host {host}").unwrap();
    }
    write!(out, " data {} revision {}", rule.user_data.escape_ascii(), rule.revision).unwrap();
    out
}

fn scope(words: &[&str]) -> Scope {
    words
        .iter()
        .find_map(|word| match word.split_once('=').unwrap_or((word, "")) {
            ("group", name) => Some(Scope::Group(bytes(name))),
            ("vni", text) => Some(Scope::Vni(number(text))),
            ("kind", text) => Some(Scope::Objects(ObjectKind::try_from(number::<u32>(text)).unwrap())),
            ("status", _) => Some(Scope::NodeStatus),
            _ => None,
        })
        .expect("a scope")
}

fn parse_key(text: &str) -> RuleKey {
    let mut words = text.split_whitespace();
    let vni = number(words.next().unwrap());
    RuleKey { vni, ip: words.next().unwrap().parse().unwrap() }
}

fn parse_write(text: &str) -> Write {
    let (mut puts, mut keys, mut conditions, mut scratch) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for part in text.split(';') {
        match part.trim().split_once(' ').unwrap() {
            ("put", rule) => pack_rule(&mut puts, &parse_rule(rule), &mut scratch),
            ("del", key) => keys.push(parse_key(key)),
            ("if", condition) => {
                let (key, revision) = condition.rsplit_once(' ').unwrap();
                let condition = Condition { key: parse_key(key), revision: number(revision) };
                pack_condition(&mut conditions, &condition, &mut scratch);
            }
            other => panic!("unknown part {other:?}"),
        }
    }
    Write { puts: puts.into(), deletes: pack_keys(&keys), conditions: conditions.into() }
}

fn parse_rule(text: &str) -> Rule {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rule = Rule {
        key: parse_key(&words[..2].join(" ")),
        mac: None,
        host_ip: None,
        host_mac: None,
        group: bytes(words[2]),
        revision: 0,
        user_data: Bytes::new(),
    };
    for word in &words[3..] {
        match word.split_once('=').unwrap() {
            ("mac", byte) => rule.mac = Some([number(byte); 6]),
            ("host", ip) => rule.host_ip = Some(ip.parse().unwrap()),
            ("data", data) => rule.user_data = bytes(data),
            other => panic!("unknown option {other:?}"),
        }
    }
    rule
}
