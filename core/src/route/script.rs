//! Golden scripts of the route face, see [`crate::golden`].
//!
//! ```text
//! put VNI IP GROUP [mac=M] [host=IP] [data=TEXT]; ...   del VNI IP; ...   get VNI IP [rev=N]
//! del-group GROUP LIMIT [not-after=REVISION]            del-vni VNI LIMIT
//! list group=NAME|vni=N [rev=N] [after=VNI,IP] [limit=N]
//! object KIND NAME TEXT   del-object KIND NAME   objects KIND   beat NODE TTL_MS REVISION   nodes
//! time MS   compact REVISION   events FROM [group=NAME|vni=N|kind=N|status]   reopen
//! ```

use super::{
    Changed, DeleteMany, DeleteObject, Heartbeat, ObjectKind, Operation, PutObject, Reply, Rule, RuleKey,
    Scope, changed, node_statuses, objects, pack_keys, pack_rule, rule, rules,
};
use crate::store::MemoryStore;
use crate::{Batch, Event, Index, Machines, Revision, Stamp, Store, Term, View, golden, history, system};
use bytes::Bytes;
use std::fmt::Write;

struct World<'a> {
    store: &'a dyn Store,
    machines: Machines,
    stamp: u64,
    out: String,
}

impl World<'_> {
    fn view(&self) -> View<'_> {
        View::new(self.store, self.machines.progress().sequence)
    }

    fn at(&self, revision: Option<&str>) -> View<'_> {
        let Some(revision) = revision else { return self.view() };
        let revision = Revision(number(revision));
        let sequence =
            history::sequence_at(self.view(), &self.machines.progress(), revision).unwrap().unwrap();
        self.view().at(sequence)
    }

    fn say(&mut self, text: impl AsRef<str>) {
        writeln!(self.out, "{}", text.as_ref()).unwrap();
    }

    fn apply(&mut self, command: crate::Command) -> (crate::Reply, Vec<Event>) {
        let index = Index(self.machines.progress().index.0 + 1);
        let payload = Batch::encode(Stamp(self.stamp), &[command]);
        let outcome = self.machines.apply(self.store, index, Term(1), payload).unwrap();
        (outcome.replies.into_iter().next().unwrap(), outcome.events)
    }

    fn route(&mut self, operation: Operation) {
        let before = self.machines.progress().revision;
        let (crate::Reply::Route(Reply { revision, result }), _) = self.apply(operation.into_command())
        else {
            panic!("a route command")
        };
        self.say(match result {
            Ok(response) => format!("{response:?}"),
            Err(refusal) => format!("refused: {refusal}"),
        });
        if revision != before {
            self.say(format!("revision {revision}"));
        }
    }

    fn run(&mut self, line: &str) {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        let option = |name: &str| {
            words
                .iter()
                .find_map(|word| word.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value))
        };
        match name {
            "put" => {
                let (mut packed, mut scratch) = (Vec::new(), Vec::new());
                for one in rest.split(';') {
                    pack_rule(&mut packed, &parse_rule(one), &mut scratch);
                }
                self.route(Operation::Put(packed.into()));
            }
            "del" => {
                let keys: Vec<RuleKey> = rest.split(';').map(parse_key).collect();
                self.route(Operation::Delete(pack_keys(&keys)));
            }
            "raw-put" => self.route(Operation::Put(Bytes::copy_from_slice(rest.as_bytes()))),
            "del-group" | "del-vni" => {
                let group = (name == "del-group").then(|| Bytes::copy_from_slice(words[0].as_bytes()));
                let vni = if group.is_none() { number(words[0]) as u32 } else { 0 };
                let not_after = option("not-after").map_or(self.machines.progress().revision.0, number);
                let limit = number(words[1]) as u32;
                self.route(Operation::DeleteMany(DeleteMany { group, vni, limit, not_after }));
            }
            "get" => {
                let key = parse_key(&words[..2].join(" "));
                let found = rule(self.at(option("rev")), key).unwrap();
                if option("rev").is_none() {
                    let table = self.machines.routes();
                    let (look, stored) = (table.look(), found.as_ref().map(Rule::as_ref));
                    assert_eq!(look.get(&key).unwrap(), stored, "the table and the store differ");
                }
                self.say(found.map_or("nothing".into(), |rule| shown(&rule)));
            }
            "list" => {
                let scope = scope(&words);
                let after = option("after").map(|text| parse_key(&text.replace(',', " ")));
                let limit = option("limit").map_or(usize::MAX, |text| number(text) as usize);
                let found: Vec<Rule> =
                    rules(self.at(option("rev")), &scope, after).map(Result::unwrap).take(limit).collect();
                if let (Scope::Group(group), None) = (&scope, option("rev")) {
                    let members = self.machines.routes().look().group(group, after, limit);
                    let stored = found.iter().map(Rule::as_ref);
                    assert!(members.rules().map(Result::unwrap).eq(stored), "the table and the store differ");
                }
                found.iter().for_each(|rule| self.say(shown(rule)));
            }
            "object" => self.route(Operation::PutObject(PutObject {
                kind: number(words[0]) as u32,
                name: Bytes::copy_from_slice(words[1].as_bytes()),
                body: Bytes::copy_from_slice(words[2].as_bytes()),
            })),
            "del-object" => self.route(Operation::DeleteObject(DeleteObject {
                kind: number(words[0]) as u32,
                name: Bytes::copy_from_slice(words[1].as_bytes()),
            })),
            "objects" => {
                let kind = ObjectKind::try_from(number(words[0]) as u32).unwrap();
                let found: Vec<_> = objects(self.view(), kind, None).map(Result::unwrap).collect();
                found.iter().for_each(|object| self.say(format!("{object:?}")));
            }
            "beat" => self.route(Operation::Heartbeat(Heartbeat {
                node: Bytes::copy_from_slice(words[0].as_bytes()),
                ttl_ms: number(words[1]),
                applied_revision: number(words[2]),
            })),
            "nodes" => {
                for node in node_statuses(self.view()).unwrap() {
                    self.say(format!("{node:?}"));
                }
            }
            "time" => self.time(number(words[0])),
            "compact" => {
                let (reply, _) = self.apply(system::Operation::Compact(number(words[0])).into_command());
                self.say(format!("{reply:?}"));
            }
            "events" => {
                let prefix = if words.len() > 1 { scope(&words[1..]).prefix() } else { vec![2] };
                let newest = self.machines.progress().revision;
                let from = Revision(number(words[0]));
                let wanted = |key: &[u8]| key.starts_with(&prefix);
                let events: Vec<Event> =
                    history::events(self.view(), from, newest, wanted).map(Result::unwrap).collect();
                events.iter().for_each(|event| self.show_event(event));
            }
            "reopen" => self.machines = Machines::open(self.store).unwrap(),
            other => panic!("unknown command {other:?}"),
        }
    }

    fn time(&mut self, ms: u64) {
        self.stamp += ms;
        while self.machines.next_deadline().is_some_and(|deadline| deadline.0 <= self.stamp) {
            let (_, events) = self.apply(system::Operation::Tick(true).into_command());
            events.iter().for_each(|event| self.show_event(event));
        }
    }

    fn show_event(&mut self, event: &Event) {
        for change in &event.changes {
            let what = match changed(change).unwrap().unwrap() {
                Changed::Put(rule) => shown(&rule),
                other => format!("{other:?}"),
            };
            self.say(format!("event {} {what}", event.revision));
        }
    }
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
            ("group", name) => Some(Scope::Group(Bytes::copy_from_slice(name.as_bytes()))),
            ("vni", text) => Some(Scope::Vni(number(text) as u32)),
            ("kind", text) => Some(Scope::Objects(ObjectKind::try_from(number(text) as u32).unwrap())),
            ("status", _) => Some(Scope::NodeStatus),
            _ => None,
        })
        .expect("a scope")
}

fn parse_key(text: &str) -> RuleKey {
    let mut words = text.split_whitespace();
    let vni = number(words.next().unwrap()) as u32;
    RuleKey { vni, ip: words.next().unwrap().parse().unwrap() }
}

fn parse_rule(text: &str) -> Rule {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rule = Rule {
        key: parse_key(&words[..2].join(" ")),
        mac: None,
        host_ip: None,
        host_mac: None,
        group: Bytes::copy_from_slice(words[2].as_bytes()),
        revision: 0,
        user_data: Bytes::new(),
    };
    for word in &words[3..] {
        match word.split_once('=').unwrap() {
            ("mac", byte) => rule.mac = Some([number(byte) as u8; 6]),
            ("host", ip) => rule.host_ip = Some(ip.parse().unwrap()),
            ("data", data) => rule.user_data = Bytes::copy_from_slice(data.as_bytes()),
            other => panic!("unknown option {other:?}"),
        }
    }
    rule
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

fn replay(script: &str) -> String {
    let store = MemoryStore::new();
    let machines = Machines::open(&store).unwrap();
    let mut world = World { store: &store, machines, stamp: 1000, out: String::new() };
    for line in golden::kept_lines(script) {
        world.say(line);
        if let Some(command) = line.strip_prefix("> ") {
            world.run(command);
        }
    }
    world.out
}

#[test]
fn scripts_answer_as_recorded() {
    golden::check("route", 3, replay);
}
