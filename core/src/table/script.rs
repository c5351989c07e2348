//! Golden scripts of the table face, see [`crate::golden`].
//!
//! ```text
//! members A,B,...            publish TABLE ID [over=ID] [width=N] [shards=N] [folds=REVISION] [new-shape] [keep=N]
//! ready TABLE VERSION A      failed TABLE VERSION A REASON    activate TABLE VERSION [without-waiting]    rollback TABLE    drop TABLE [VERSION]
//! write TABLE KEY=VALUE ... -KEY ...    show    reopen (the machines, from the store)
//! export TABLE (the changes over its active version, as of the newest entry)
//! ```

#![allow(clippy::unwrap_used, reason = "tests, though other crates run them too")]

use super::{
    Activate, Drop, Failed, Operation, Publish, Ready, Rollback, Shape, Upsert, Write as Changes, query,
};
use crate::store::{MemoryStore, View};
use crate::{Batch, Index, Machines, Reply, Stamp, Term, golden, system};
use bytes::Bytes;
use std::fmt::Write;

struct World {
    store: MemoryStore,
    machines: Machines,
    out: String,
}

impl World {
    fn apply(&mut self, command: crate::Command) -> Reply {
        let index = self.machines.progress().index.next();
        let payload = Batch::encode(Stamp(1000), &[command]);
        let outcome = self.machines.apply(&self.store, Index(index.0), Term(1), payload).unwrap();
        outcome.replies.into_iter().next().unwrap()
    }

    fn run(&mut self, line: &str) {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        match name {
            "members" => rest.split(',').for_each(|letter| self.member(letter)),
            "publish" => self.table(Operation::Publish(publish(&words))),
            "ready" => self.table(Operation::Ready(Ready {
                name: words[0].into(),
                version: words[1].parse().unwrap(),
                member: id(words[2]),
            })),
            "failed" => self.table(Operation::Failed(Failed {
                name: words[0].into(),
                version: words[1].parse().unwrap(),
                member: id(words[2]),
                reason: words[3..].join(" "),
                transient: false,
            })),
            "activate" => {
                let version = words[1].parse().unwrap();
                let (name, without_waiting) = (words[0].into(), words.contains(&"without-waiting"));
                self.table(Operation::Activate(Activate { name, version, without_waiting }));
            }
            "rollback" => self.table(Operation::Rollback(Rollback { name: words[0].into() })),
            "drop" => {
                let version = words.get(1).map_or(0, |number| number.parse().unwrap());
                self.table(Operation::Drop(Drop { name: words[0].into(), version }));
            }
            "write" => self.table(Operation::Write(changes(&words))),
            "show" => self.show(),
            "export" => self.export(words[0]),
            "reopen" => self.machines = Machines::open(&self.store).unwrap(),
            other => panic!("unknown command {other}"),
        }
    }

    fn member(&mut self, letter: &str) {
        let learner = letter.starts_with('~');
        let member = system::Member { id: id(letter), name: letter.into(), learner, ..Default::default() };
        self.apply(system::Operation::SetMember(member).into_command());
    }

    fn table(&mut self, operation: Operation) {
        let Reply::Table(reply) = self.apply(operation.into_command()) else { panic!("a table command") };
        match reply.result {
            Ok(version) => writeln!(self.out, "version {version} at revision {}", reply.revision.0).unwrap(),
            Err(refusal) => writeln!(self.out, "refused: {refusal}").unwrap(),
        }
    }

    fn export(&mut self, name: &str) {
        let progress = self.machines.progress();
        let view = View::new(&self.store, progress.sequence);
        let Some(version) = query::active(view, name).unwrap() else {
            writeln!(self.out, "nothing answers").unwrap();
            return;
        };
        writeln!(self.out, "over {} up to {}", version.id, progress.revision.0).unwrap();
        for change in query::changes(view, name, &version) {
            let (key, value) = change.unwrap();
            let value = value.map_or("deleted".into(), |value| String::from_utf8_lossy(&value).into_owned());
            writeln!(self.out, "  {key}: {value}").unwrap();
        }
    }

    fn show(&mut self) {
        let look = self.machines.tables().look();
        for (name, state) in look.tables() {
            let (table, versions) = (&state.table, state.versions.values());
            let versions: Vec<String> = versions
                .map(|version| {
                    format!(
                        "{}({} below {} folds {})",
                        version.number, version.id, version.below, version.folds
                    )
                })
                .collect();
            let previous = &table.previous;
            writeln!(
                self.out,
                "{name}: active {} previous {previous:?} of {}",
                table.active,
                versions.join(" ")
            )
            .unwrap();
            for (key, revision) in state.changed_keys() {
                let shown = match state.change(key) {
                    None => "hidden".into(),
                    Some(None) => "deleted".into(),
                    Some(Some(value)) => String::from_utf8_lossy(value).into_owned(),
                };
                writeln!(self.out, "  {key} at {}: {shown}", revision.0).unwrap();
            }
        }
    }
}

fn id(letter: &str) -> u64 {
    u64::from(*letter.as_bytes().last().unwrap())
}

fn publish(words: &[&str]) -> Publish {
    let option = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str, otherwise: u64| option(name).map_or(otherwise, |text| text.parse().unwrap());
    let shape = Shape {
        shards: number("shards", 1) as u32,
        width_plus_1: number("width", 1) as u32 + 1,
        codec: "raw".into(),
    };
    Publish {
        name: words[0].into(),
        id: words[1].into(),
        over: option("over").unwrap_or_default().into(),
        location: "/somewhere".into(),
        manifest: Bytes::from_static(b"{}"),
        shape: Some(shape),
        folds: number("folds", 0),
        new_shape: words.contains(&"new-shape"),
        keep: number("keep", 0) as u32,
    }
}

fn changes(words: &[&str]) -> Changes {
    let mut changes = Changes { name: words[0].into(), ..Default::default() };
    for word in &words[1..] {
        match word.split_once('=') {
            Some((key, value)) => {
                let value = Bytes::copy_from_slice(value.as_bytes());
                changes.upserts.push(Upsert { key: key.parse().unwrap(), value });
            }
            None => changes.deletes.push(word.strip_prefix('-').unwrap().parse().unwrap()),
        }
    }
    changes
}

fn replay(script: &str) -> String {
    let store = MemoryStore::default();
    let machines = Machines::open(&store).unwrap();
    let mut world = World { store, machines, out: String::new() };
    for line in golden::kept_lines(script) {
        writeln!(world.out, "{line}").unwrap();
        if let Some(command) = line.strip_prefix("> ") {
            world.run(command);
        }
    }
    world.out
}

#[test]
fn scripts_are_answered_as_recorded() {
    golden::check("table", 2, replay);
}
