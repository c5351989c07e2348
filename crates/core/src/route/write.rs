//! What a command does to rules, in the store and in the table in memory.
//!
//! **Invariant: Nothing half.** A command is decoded as a whole, and its conditions are checked, before it writes
//! anything.
//!
//! **Invariant: Changes of a group.** A command that puts a rule into a group, changes one in it or removes one from
//! it records its revision as that of the group: one record for each group that it changes.

use super::command::{Condition, Packed, Write, unpack_conditions, unpack_keys, unpack_rules};
use super::record::{self, Written};
use super::reply::Refusal;
use super::rule::{RuleKey, group_in_body, group_of, revision_of};
use super::table::{Rules, Table};
use crate::store::{StoreError, View};
use crate::tx::Tx;
use crate::types::Revision;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Writes and deletes rules.
#[derive(Debug)]
pub(super) struct Writer {
    table: Arc<Table>,
    /// The record of [`record::CHANGES_SINCE`] is there.
    changes_recorded: bool,
}

impl Writer {
    /// That of a store that may hold rules already, up to `revision`.
    pub(super) fn open(view: View<'_>, revision: Revision) -> Result<Self, StoreError> {
        let changes_recorded = view.get(&record::CHANGES_SINCE)?.is_some();
        Ok(Self { table: Arc::new(Table::open(view, revision)?), changes_recorded })
    }

    pub(super) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Writes and deletes rules if the conditions hold; returns how many of each.
    pub(super) fn write(&mut self, tx: &mut Tx<'_>, write: Write) -> Result<(u64, u64), Refusal> {
        let malformed = |_| Refusal::Malformed;
        let puts = unpack_rules(write.puts).map_err(malformed)?;
        let deletes = unpack_keys(write.deletes).map_err(malformed)?;
        let conditions = unpack_conditions(write.conditions).map_err(malformed)?;
        let mut groups = Groups::default();
        // Readers see all of a command, or nothing.
        let mut table = self.table.change();
        check(&table, &conditions)?;
        let written = put_rules(tx, &mut table, puts, &mut groups);
        let deleted = delete_rules(tx, &mut table, deletes.into_iter(), &mut groups);
        table.set_revision(tx.revision());
        drop(table);
        self.record(tx, &groups);
        Ok((written, deleted))
    }

    /// Deletes rules; returns how many there were.
    pub(super) fn delete(&mut self, tx: &mut Tx<'_>, keys: impl Iterator<Item = (RuleKey, Bytes)>) -> u64 {
        let mut groups = Groups::default();
        let mut table = self.table.change();
        let deleted = delete_rules(tx, &mut table, keys, &mut groups);
        table.set_revision(tx.revision());
        drop(table);
        self.record(tx, &groups);
        deleted
    }

    /// Records that this command changed `groups`.
    fn record(&mut self, tx: &mut Tx<'_>, groups: &Groups) {
        let Groups(groups) = groups;
        let revision = tx.next_revision();
        if !self.changes_recorded && !groups.is_empty() {
            self.changes_recorded = true;
            tx.put(&record::CHANGES_SINCE, record::encode_revision(Revision(revision.0 - 1)));
        }
        let value = record::encode_revision(revision);
        for group in groups {
            tx.put(&record::group_change_key(group), value.clone());
        }
    }
}

/// The groups that a command changes.
#[derive(Default)]
struct Groups(BTreeSet<Box<[u8]>>);

impl Groups {
    fn add(&mut self, group: &[u8]) {
        if !self.0.contains(group) {
            self.0.insert(group.into());
        }
    }
}

/// Refuses if a condition does not hold.
fn check(table: &Rules, conditions: &[Condition]) -> Result<(), Refusal> {
    for (place, Condition { key, revision: wanted }) in conditions.iter().enumerate() {
        let found = table.get(key).map_or(0, revision_of);
        if found != *wanted {
            return Err(Refusal::Condition { place, key: *key, wanted: *wanted, found });
        }
    }
    Ok(())
}

/// Writes rules; returns how many.
fn put_rules(tx: &mut Tx<'_>, table: &mut Rules, rules: Vec<(RuleKey, Packed)>, groups: &mut Groups) -> u64 {
    let revision = tx.next_revision().0;
    let mut written = 0;
    for (key, (key_bytes, body)) in rules {
        if table.get(&key).is_some_and(|old| revision_of(old) == revision) {
            // A key twice in one command, which adapters refuse: the first write stands.
            continue;
        }
        let group = group_in_body(&body).expect("checked when unpacked");
        groups.add(group);
        let Written { store_key, group_key, record } = record::written(&key_bytes, group, revision, &body);
        if let Some(old) = table.insert(key, group, &record) {
            let old_group = group_of(old.record()).expect("checked when written");
            if old_group != group {
                groups.add(old_group);
                tx.change_also_known_as(record::group_key(old_group, &key_bytes), &store_key, None);
            }
        }
        tx.change(store_key.clone(), Some(record.clone()));
        tx.change_also_known_as(group_key, &store_key, Some(record));
        written += 1;
    }
    written
}

/// Deletes rules; returns how many there were.
fn delete_rules(
    tx: &mut Tx<'_>,
    table: &mut Rules,
    keys: impl Iterator<Item = (RuleKey, Bytes)>,
    groups: &mut Groups,
) -> u64 {
    let revision = tx.next_revision().0;
    let mut count = 0;
    for (key, key_bytes) in keys {
        if table.get(&key).is_some_and(|rule| revision_of(rule) == revision) {
            // Written and deleted in one command, which adapters refuse: the write stands.
            continue;
        }
        let Some(old) = table.remove(&key) else { continue };
        let group = group_of(old.record()).expect("checked when written");
        groups.add(group);
        let store_key = record::rule_key(&key_bytes);
        tx.change(store_key.clone(), None);
        tx.change_also_known_as(record::group_key(group, &key_bytes), &store_key, None);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::command::{Operation, pack_keys, pack_rule};
    use super::super::query::group_revision;
    use super::super::rule::Rule;
    use super::*;
    use crate::hostile;
    use crate::store::contract::Random;
    use crate::store::{MemoryStore, Store};
    use crate::types::{Index, Stamp, Term};
    use crate::{Batch, Command, Event, Machines, system};
    use std::collections::BTreeMap;

    struct World {
        store: MemoryStore,
        machines: Machines,
    }

    impl World {
        fn new() -> Self {
            let store = MemoryStore::new();
            let machines = Machines::open(&store).unwrap();
            Self { store, machines }
        }

        fn apply(&mut self, command: Command) -> Vec<Event> {
            let index = Index(self.machines.progress().index.0 + 1);
            let payload = Batch::encode(Stamp(index.0), &[command]);
            self.machines.apply(&self.store, index, Term(1), payload).unwrap().events
        }

        fn put(&mut self, last: u8, group: &'static str) {
            let key = RuleKey { vni: 1, ip: [10, 0, 0, last].into() };
            let (mac, host_ip, host_mac, group) = (None, None, None, group.into());
            let rule = Rule { key, mac, host_ip, host_mac, group, revision: 0, user_data: Bytes::new() };
            let (mut packed, mut scratch) = (Vec::new(), Vec::new());
            pack_rule(&mut packed, &rule, &mut scratch);
            self.apply(Operation::Put(packed.into()).into_command());
        }

        fn delete(&mut self, last: u8) {
            let keys = pack_keys(&[RuleKey { vni: 1, ip: [10, 0, 0, last].into() }]);
            self.apply(Operation::Delete(keys).into_command());
        }

        fn revision_of(&self, group: &[u8]) -> Option<u64> {
            let view = View::new(&self.store, self.machines.progress().sequence);
            group_revision(view, group).unwrap().map(|revision| revision.0)
        }
    }

    #[test]
    fn a_groups_revision_is_that_of_the_newest_event_that_its_watchers_got() {
        let (mut random, mut world) = (Random::new(7), World::new());
        let mut newest: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut commands = 0;
        while commands < 3000 {
            let events = world.apply(hostile::command(&mut random));
            commands += 1;
            for event in events {
                for change in &event.changes {
                    let Some(rest) = change.key.strip_prefix(&record::GROUPS) else { continue };
                    let (group, _) = record::decode_group_key(rest).unwrap();
                    newest.insert(group.to_vec(), event.revision.0);
                }
            }
            if random.once_in(50) {
                world.machines = Machines::open(&world.store).unwrap();
                let bound = world.machines.progress().revision.0;
                world.apply(system::Operation::Compact(bound).into_command());
                for (group, revision) in &newest {
                    assert_eq!(world.revision_of(group), Some(*revision), "after {commands} commands");
                }
            }
        }
        assert!(newest.len() > 3, "{newest:?}");
    }

    /// A store that was written before there were such records: what was deleted from a group then is not known.
    #[test]
    fn of_changes_before_the_first_record_an_upper_bound_is_known() {
        let mut world = World::new();
        world.put(1, "a");
        world.put(2, "b");
        world.delete(2);
        for key in
            [record::CHANGES_SINCE.to_vec(), record::group_change_key(b"a"), record::group_change_key(b"b")]
        {
            world.store.delete(&key, world.machines.progress().sequence);
        }
        world.machines = Machines::open(&world.store).unwrap();
        assert_eq!((world.revision_of(b"a"), world.revision_of(b"b")), (None, None));
        let before = world.machines.progress().revision.0;
        world.put(3, "c");
        let newest = world.machines.progress().revision.0;
        let of = |world: &World| ["a", "b", "c", "never"].map(|group| world.revision_of(group.as_bytes()));
        assert_eq!(of(&world), [Some(before), Some(before), Some(newest), Some(before)]);
        world.put(1, "c");
        world.machines = Machines::open(&world.store).unwrap();
        let moved = world.machines.progress().revision.0;
        assert_eq!(of(&world), [Some(moved), Some(before), Some(moved), Some(before)]);
    }
}
