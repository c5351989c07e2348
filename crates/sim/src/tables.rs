//! Work on lookup tables, as far as the log has it: versions are published, reported ready, activated, rolled back and
//! dropped, and keys changed over the active one. There are no files: members say that they have them.

use crate::clients::Known;
use crate::world::World;
use anyhow::{Result, ensure};
use quoin_core::table::{
    self, Activate, Drop, Operation, Publish, Ready, Refusal, Reply, Rollback, Shape, Upsert, Write,
};
use quoin_core::{Revision, history};
use quoin_engine::ReadView;
use rand::Rng;

const NAMES: [&str; 2] = ["one", "two"];
const WIDTH: u32 = 8;

/// What a client asked for.
#[derive(Debug)]
pub(crate) enum Tables {
    Activate { name: &'static str, version: u64 },
    Write { name: &'static str, upserts: Vec<(u64, u64)> },
    Drop { name: &'static str },
    Other,
}

impl World {
    /// A client changes tables.
    pub(crate) fn change_tables(&mut self, place: usize) {
        let name = NAMES[self.rng.random_range(0..NAMES.len())];
        let version = self.draw_version(place, name);
        let (asked, operation) = match self.rng.random_range(0..20) {
            0..3 => (Tables::Other, Operation::Publish(self.draw_publish(name))),
            // All members of the first cluster, and those that took their place.
            3..6 => return self.report_ready(place, name, version),
            6..9 => {
                let activate =
                    Activate { name: name.into(), version, without_waiting: self.rng.random_bool(0.5) };
                (Tables::Activate { name, version }, Operation::Activate(activate))
            }
            9 => (Tables::Other, Operation::Rollback(Rollback { name: name.into() })),
            10 if self.rng.random_bool(0.2) => {
                (Tables::Drop { name }, Operation::Drop(Drop { name: name.into(), version: 0 }))
            }
            11 => (Tables::Other, Operation::Drop(Drop { name: name.into(), version })),
            _ => self.draw_write(name),
        };
        self.ask_tables(place, asked, operation);
    }

    fn ask_tables(&mut self, place: usize, asked: Tables, operation: Operation) {
        let (at, floor) = (self.process_at(place), self.clients.newest_told);
        self.propose(place, Known::Tables { at, asked, floor }, operation.into_command());
    }

    /// A version that is there, as a replica sees it just now, or one that is not.
    fn draw_version(&mut self, place: usize, name: &str) -> u64 {
        let view = self.process(place).stepped.engine().latest();
        let look = view.memory().tables.look();
        let versions: Vec<u64> =
            look.table(name).map_or(Vec::new(), |state| state.versions.keys().copied().collect());
        if versions.is_empty() { 1 } else { versions[self.rng.random_range(0..versions.len())] }
    }

    fn draw_publish(&mut self, name: &str) -> Publish {
        let (value, _) = self.clients.value(&mut self.rng);
        let newest = self.record.lock().newest();
        let folds =
            if self.rng.random_bool(0.3) { newest.saturating_sub(self.rng.random_range(0..30)) } else { 0 };
        let shape = Some(Shape { shards: 1, width_plus_1: WIDTH + 1, codec: "raw".into() });
        let (id, keep) = (value.to_string(), self.rng.random_range(0..4));
        Publish { name: name.into(), id, shape, folds, keep, ..Publish::default() }
    }

    fn report_ready(&mut self, place: usize, name: &'static str, version: u64) {
        for id in self.nodes.iter().map(crate::node::Node::id).collect::<Vec<_>>() {
            let ready = Ready { name: name.into(), version, member: id, ..Ready::default() };
            self.ask_tables(place, Tables::Other, Operation::Ready(ready));
        }
    }

    fn draw_write(&mut self, name: &'static str) -> (Tables, Operation) {
        let mut upserts = Vec::new();
        for key in 0..self.rng.random_range(1..4) {
            upserts.push((key, self.clients.value(&mut self.rng).0));
        }
        let deletes = if self.rng.random_bool(0.3) { vec![9] } else { Vec::new() };
        let packed =
            |(key, value): &(u64, u64)| Upsert { key: *key, value: value.to_be_bytes().to_vec().into() };
        let write = Write { name: name.into(), upserts: upserts.iter().map(packed).collect(), deletes };
        (Tables::Write { name, upserts }, Operation::Write(write))
    }

    /// A change of tables was answered, by the replica at `place`.
    pub(crate) fn tables_changed(
        &mut self,
        place: usize,
        asked: &Tables,
        floor: u64,
        reply: &Reply,
    ) -> Result<()> {
        let revision = reply.revision.0;
        ensure!(revision >= floor, "tables are changed at {revision}; a client was told of {floor} before");
        let version = match &reply.result {
            Ok(version) => *version,
            Err(Refusal::Malformed) => anyhow::bail!("{asked:?} was answered: malformed"),
            Err(_) => return Ok(()),
        };
        self.counts.tables += 1;
        let view = self.process(place).stepped.engine().latest();
        let Ok(at) = history::sequence_at(view.view(), view.progress(), Revision(revision))? else {
            return Ok(());
        };
        let then = view.view().at(at);
        match asked {
            Tables::Activate { name, version: asked } => {
                let active = table::active(then, name)?.map(|active| active.number);
                ensure!(
                    version == *asked && active == Some(version),
                    "version {asked} of {name} was said to be active at {revision}, where {active:?} is"
                );
            }
            Tables::Drop { name } => {
                ensure!(table::active(then, name)?.is_none(), "{name} was said to be gone at {revision}");
            }
            Tables::Write { name, upserts } => {
                let Some(active) = table::active(then, name)? else { return Ok(()) };
                let changes: Vec<_> = table::changes(then, name, &active).collect::<Result<_, _>>()?;
                let missing = upserts.iter().find(|(key, value)| {
                    let written = |(changed, held): &(u64, Option<bytes::Bytes>)| {
                        changed == key && held.as_deref() == Some(&value.to_be_bytes()[..])
                    };
                    !changes.iter().any(written)
                });
                ensure!(
                    missing.is_none(),
                    "{missing:?} was said to be written over {name} at {revision}: {changes:?}"
                );
            }
            Tables::Other => {}
        }
        Ok(())
    }

    /// What lookups see in memory is what the store holds.
    pub(crate) fn check_tables(&self, view: &ReadView) -> Result<()> {
        let look = view.memory().tables.look();
        for name in NAMES {
            let stored = table::active(view.view(), name)?;
            let live = look.table(name).map_or(0, |state| state.table.active);
            ensure!(
                live == stored.as_ref().map_or(0, |stored| stored.number),
                "{name} has {live} active in memory"
            );
            let Some(stored) = stored else { continue };
            for change in table::changes(view.view(), name, &stored) {
                let (key, value) = change?;
                let seen =
                    look.table(name).and_then(|state| state.change(key)).map(|seen| seen.map(<[u8]>::to_vec));
                let expected = Some(value.map(|value| value.to_vec()));
                ensure!(
                    seen == expected,
                    "key {key} over {name} is {seen:?} in memory, and {expected:?} in the store"
                );
            }
        }
        Ok(())
    }
}
