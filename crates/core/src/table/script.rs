//! Commands of the table face in golden scripts, see [`crate::golden`].
//!
//! ```text
//! members A,B,...   remove-member A
//! publish TABLE ID [over=ID] [width=N] [codec=NAME] [shards=N] [folds=REVISION] [new-shape] [keep=N]
//! chain TABLE ID COUNT (publishes patches ID-1, ID-2, ... over ID and each other)
//! ready TABLE VERSION MEMBER [id=ID]   failed TABLE VERSION MEMBER REASON
//! activate TABLE VERSION [without-waiting]   rollback TABLE   drop TABLE [VERSION]
//! write TABLE KEY=VALUE ... -KEY ...   write-many TABLE COUNT   forget TABLE   count TABLE
//! show (the tables as lookups see them)
//! export TABLE (the changes over its active version)
//! ```

#![allow(clippy::unwrap_used, reason = "test code, which other crates' tests run too")]

use super::{
    Activate, Drop, Failed, Forget, Operation, Publish, Ready, Rollback, Shape, Upsert, Write as Changes,
    query,
};
use crate::golden::{Line, Vocabulary, World, number};
use crate::{Event, Reply, system};
use bytes::Bytes;

pub(crate) const VOCABULARY: Vocabulary = Vocabulary { face: "table", run, show_event };

fn run(world: &mut World<'_>, line: &Line<'_>) -> bool {
    let Line { name: command, rest, words } = line;
    let name = || words[0].to_owned();
    match *command {
        "members" => rest.split(',').for_each(|letter| set_member(world, letter)),
        "remove-member" => {
            world.apply(system::Operation::RemoveMember(id(rest)).into_command());
        }
        "publish" => apply(world, Operation::Publish(publish(line))),
        "ready" => {
            let (version, member) = (line.number(1), id(words[2]));
            let id = line.option("id").unwrap_or_default().into();
            apply(world, Operation::Ready(Ready { name: name(), version, member, id }));
        }
        "failed" => {
            let (version, member, reason) = (line.number(1), id(words[2]), words[3..].join(" "));
            let failed = Failed { name: name(), version, member, reason, ..Failed::default() };
            apply(world, Operation::Failed(failed));
        }
        "activate" => {
            let (version, without_waiting) = (line.number(1), line.has("without-waiting"));
            apply(world, Operation::Activate(Activate { name: name(), version, without_waiting }));
        }
        "rollback" => apply(world, Operation::Rollback(Rollback { name: name() })),
        "drop" => {
            let version = words.get(1).map_or(0, |word| number(word));
            apply(world, Operation::Drop(Drop { name: name(), version }));
        }
        "write" => apply(world, Operation::Write(changes(words))),
        "write-many" => {
            let upsert = |key| Upsert { key, value: Bytes::from_static(b"x") };
            let upserts = (0..line.number(1)).map(upsert).collect();
            apply(world, Operation::Write(Changes { name: name(), upserts, ..Default::default() }));
        }
        "chain" => chain(world, &name(), words[1], line.number(2)),
        "forget" => apply(world, Operation::Forget(Forget { name: name() })),
        "count" => {
            let memory = world.machines.memory();
            let counted = memory.tables.look().table(words[0]).map(|state| {
                let more = if state.doomed() > 0 { ", some to be deleted" } else { "" };
                format!("{} changes{more}", state.changed())
            });
            let bytes = memory.tables.changes_bytes();
            world.say(format!("{}, {bytes} bytes over all tables", counted.unwrap_or_default()));
        }
        "show" => show(world),
        "export" => export(world, words[0]),
        _ => return false,
    }
    true
}

fn set_member(world: &mut World<'_>, letter: &str) {
    let learner = letter.starts_with('~');
    let member = system::Member { id: id(letter), name: letter.into(), learner, ..Default::default() };
    world.apply(system::Operation::SetMember(member).into_command());
}

fn apply(world: &mut World<'_>, operation: Operation) {
    let (Reply::Table(reply), _) = world.apply(operation.into_command()) else { panic!("a table command") };
    world.say(match reply.result {
        Ok(version) => format!("version {version} at revision {}", reply.revision),
        Err(refusal) => format!("refused: {refusal}"),
    });
}

fn export(world: &mut World<'_>, name: &str) {
    let Some(version) = query::active(world.view(), name).unwrap() else {
        return world.say("nothing answers");
    };
    world.say(format!("over {} up to {}", version.id, world.progress().revision));
    let changes: Vec<_> = query::changes(world.view(), name, &version).map(Result::unwrap).collect();
    for (key, value) in changes {
        let value = value.map_or("deleted".into(), |value| String::from_utf8_lossy(&value).into_owned());
        world.say(format!("  {key}: {value}"));
    }
}

fn show(world: &mut World<'_>) {
    let memory = world.machines.memory();
    for (name, state) in memory.tables.look().tables() {
        let (table, versions) = (&state.table, state.versions.values());
        let shown = versions.map(|version| {
            let super::Version { number, id, below, folds, .. } = &**version;
            format!("{number}({id} below {below} folds {folds})")
        });
        let versions = shown.collect::<Vec<_>>().join(" ");
        world.say(format!("{name}: active {} previous {:?} of {versions}", table.active, table.previous));
        for (key, revision) in state.changed_keys() {
            let shown = match state.change(key) {
                None => "hidden".into(),
                Some(None) => "deleted".into(),
                Some(Some(value)) => String::from_utf8_lossy(value).into_owned(),
            };
            world.say(format!("  {key} at {revision}: {shown}"));
        }
    }
}

fn show_event(world: &mut World<'_>, event: &Event) {
    for change in &event.changes {
        let what = if change.value.is_some() { "written" } else { "deleted" };
        world.say(format!("event {} {} {what}", event.revision, change.key.escape_ascii()));
    }
}

fn id(letter: &str) -> u64 {
    u64::from(*letter.as_bytes().last().unwrap())
}

fn publish(line: &Line<'_>) -> Publish {
    let shape = Shape {
        shards: line.option("shards").map_or(1, number),
        width_plus_1: line.option("width").map_or(1, number::<u32>) + 1,
        codec: line.option("codec").unwrap_or("raw").into(),
    };
    Publish {
        name: line.words[0].into(),
        id: line.words[1].into(),
        over: line.option("over").unwrap_or_default().into(),
        location: "/somewhere".into(),
        manifest: Bytes::from_static(b"{}"),
        shape: Some(shape),
        folds: line.option("folds").map_or(0, number),
        new_shape: line.has("new-shape"),
        keep: line.option("keep").map_or(0, number),
    }
}

/// Says the answer to the last one.
fn chain(world: &mut World<'_>, name: &str, id: &str, count: u64) {
    let mut over = id.to_owned();
    let mut last = Ok(0);
    for number in 1..=count {
        let shape = Shape { shards: 1, width_plus_1: 2, codec: "raw".into() };
        let patch = format!("{id}-{number}");
        let publish = Publish {
            name: name.into(),
            id: patch.clone(),
            over: std::mem::replace(&mut over, patch),
            manifest: Bytes::from_static(b"{}"),
            shape: Some(shape),
            ..Publish::default()
        };
        let command = Operation::Publish(publish).into_command();
        let (Reply::Table(reply), _) = world.apply(command) else { panic!("a table command") };
        last = reply.result;
    }
    world.say(match last {
        Ok(version) => format!("version {version}"),
        Err(refusal) => format!("refused: {refusal}"),
    });
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
