//! Work on rules: batches that are written or deleted at one revision, or both if conditions hold, and deletions of a group
//! or a network, some at a time. Watchers follow groups; reads compare what a group holds, and when it changed last, with
//! what the replicas have applied.

use crate::clients::Known;
use crate::world::World;
use anyhow::{Result, anyhow, bail, ensure};
use bytes::Bytes;
use quoin_core::route::{
    self, Changed, Condition, DeleteMany, Operation, Response, Rule, RuleKey, Scope, Write, pack_condition,
    pack_keys, pack_rule,
};
use quoin_core::{Change, Revision};
use quoin_engine::ReadView;
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

const NETWORKS: u32 = 2;
const ADDRESSES: u8 = 6;
const GROUPS: u64 = 3;

/// What a client asked for.
pub(crate) enum Rules {
    /// Rules with these values.
    Put(BTreeMap<RuleKey, u64>),
    Delete(BTreeSet<RuleKey>),
    Write(Both),
    Many(Many),
}

/// Rules with these values, deletions, and the revisions at which rules must be.
pub(crate) struct Both {
    pub(crate) puts: BTreeMap<RuleKey, u64>,
    deletes: BTreeSet<RuleKey>,
    conditions: Vec<Condition>,
}

pub(crate) struct Many {
    scope: Scope,
    limit: u32,
    not_after: u64,
}

pub(crate) fn group(number: u64) -> Bytes {
    format!("group {number}").into()
}

/// Where a watcher of a group looks.
pub(crate) fn group_prefix(number: u64) -> Vec<u8> {
    Scope::Group(group(number)).prefix()
}

/// A rule's key in the store.
pub(crate) fn store_key(key: &RuleKey) -> Vec<u8> {
    let mut store_key = Scope::Vni(0).prefix();
    // The prefix of a network ends with its number, which the key begins with.
    store_key.truncate(2);
    key.encode_into(&mut store_key);
    store_key
}

/// The number in a rule that a client of the simulation writes, if the change is of a rule by its own key.
pub(crate) fn written(change: &Change) -> Option<Option<u64>> {
    if !change.key.starts_with(&Scope::Vni(0).prefix()[..2]) {
        return None;
    }
    match route::changed(change) {
        Ok(Some(Changed::Put(rule))) => Some(value_of(&rule)),
        Ok(Some(Changed::Deleted { .. })) => Some(None),
        _ => None,
    }
}

fn value_of(rule: &Rule) -> Option<u64> {
    Some(u64::from_be_bytes(rule.user_data.get(..8)?.try_into().ok()?))
}

impl World {
    /// A client changes rules.
    pub(crate) fn change_rules(&mut self, place: usize) {
        let (asked, operation) = match self.rng.random_range(0..12) {
            0..6 => self.draw_put(),
            10.. => self.draw_both(),
            6..8 => {
                let keys: BTreeSet<RuleKey> =
                    (0..self.rng.random_range(1..4)).map(|_| self.draw_key()).collect();
                let packed = pack_keys(&keys);
                (Rules::Delete(keys), Operation::Delete(packed))
            }
            _ => self.draw_many(),
        };
        let (at, floor) = (self.process_at(place), self.clients.newest_told);
        self.propose(place, Known::Rules { at, asked, floor }, operation.into_command());
    }

    fn draw_key(&mut self) -> RuleKey {
        let (vni, last) = (self.rng.random_range(0..NETWORKS), self.rng.random_range(0..ADDRESSES));
        RuleKey { vni, ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)) }
    }

    fn draw_put(&mut self) -> (Rules, Operation) {
        let (rules, packed) = self.draw_rules();
        (Rules::Put(rules), Operation::Put(packed))
    }

    fn draw_both(&mut self) -> (Rules, Operation) {
        let (puts, packed) = self.draw_rules();
        let deletes: BTreeSet<RuleKey> = (0..2).map(|_| self.draw_key()).collect();
        let deletes: BTreeSet<RuleKey> = deletes.into_iter().filter(|key| !puts.contains_key(key)).collect();
        let (mut conditions, mut bytes) = (Vec::new(), Vec::new());
        for _ in 0..self.rng.random_range(0..3) {
            let (key, record) = (self.draw_key(), self.record.lock());
            // Mostly where it is now, if nobody else is faster.
            let now = record.value_at(&store_key(&key), record.newest()).map_or(0, |(_, at)| at);
            drop(record);
            let revision = if self.rng.random_bool(0.8) { now } else { self.rng.random_range(0..=now) };
            let condition = Condition { key, revision };
            pack_condition(&mut bytes, &condition, &mut Vec::new());
            conditions.push(condition);
        }
        let write = Write { puts: packed, deletes: pack_keys(&deletes), conditions: bytes.into() };
        (Rules::Write(Both { puts, deletes, conditions }), Operation::Write(write))
    }

    fn draw_rules(&mut self) -> (BTreeMap<RuleKey, u64>, Bytes) {
        let (mut rules, mut packed, mut scratch) = (BTreeMap::new(), Vec::new(), Vec::new());
        for _ in 0..self.rng.random_range(1..6) {
            let key = self.draw_key();
            if rules.contains_key(&key) {
                continue;
            }
            let (value, _) = self.clients.value(&mut self.rng);
            let group = group(self.rng.random_range(0..GROUPS));
            let user_data = value.to_be_bytes().to_vec().into();
            let rule = Rule { key, mac: None, host_ip: None, host_mac: None, group, revision: 0, user_data };
            pack_rule(&mut packed, &rule, &mut scratch);
            rules.insert(key, value);
        }
        (rules, packed.into())
    }

    fn draw_many(&mut self) -> (Rules, Operation) {
        let (limit, newest) = (self.rng.random_range(1..5), self.record.lock().newest());
        let not_after = newest.saturating_sub(self.rng.random_range(0..20));
        let vni = self.rng.random_range(0..NETWORKS);
        let named = self.rng.random_bool(0.5).then(|| group(self.rng.random_range(0..GROUPS)));
        let scope = named.clone().map_or(Scope::Vni(vni), Scope::Group);
        let request = DeleteMany { group: named, vni, limit, not_after };
        (Rules::Many(Many { scope, limit, not_after }), Operation::DeleteMany(request))
    }

    /// A change of rules was answered.
    pub(crate) fn rules_changed(&mut self, asked: Rules, floor: u64, reply: &route::Reply) -> Result<()> {
        let revision = reply.revision.0;
        if let (Rules::Write(write), result) = (&asked, &reply.result) {
            return self.both_done(write, revision, result);
        }
        let result = reply.result.clone();
        let response = result.map_err(|refusal| anyhow!("a change of rules was refused: {refusal}"))?;
        ensure!(revision >= floor, "rules are changed at {revision}; a client was told of {floor} before");
        let mut record = self.record.lock();
        match (asked, response) {
            (Rules::Put(rules), Response::Written(count)) if rules.len() as u64 == count => {
                rules
                    .into_iter()
                    .for_each(|(key, value)| record.done(&store_key(&key), Some(value), revision));
            }
            (Rules::Delete(keys), Response::Deleted { count, more: false }) => {
                let keys: Vec<Vec<u8>> = keys.iter().map(store_key).collect();
                let left = keys.iter().any(|key| record.value_at(key, revision).is_some());
                let gone = record.deleted_at(revision, |key| keys.iter().any(|deleted| deleted == key));
                ensure!(
                    !left && (count == 0 || count == gone),
                    "{count} of {keys:?} were said to be deleted at {revision}, and {gone} were"
                );
            }
            (Rules::Many(many), Response::Deleted { count, more }) => {
                let gone = record.deleted_at(revision, |key| key.starts_with(&Scope::Vni(0).prefix()[..2]));
                let full = count == u64::from(many.limit);
                ensure!(
                    (count == 0 || count == gone) && count <= u64::from(many.limit) && (full || !more),
                    "{count} rules were said to be deleted at {revision} (more: {more}), of at most {}, and {gone} were",
                    many.limit
                );
                drop(record);
                return self.check_gone(&many, revision, more);
            }
            (_, response) => bail!("a change of rules was answered {response:?}"),
        }
        Ok(())
    }

    /// A write with conditions was answered: they held, and all was done, or else one did not, and nothing was.
    fn both_done(
        &mut self,
        write: &Both,
        revision: u64,
        result: &Result<Response, route::Refusal>,
    ) -> Result<()> {
        let mut record = self.record.lock();
        let (changed, response) = match *result {
            Ok(Response::Wrote { written, deleted }) => (written + deleted > 0, (written, deleted)),
            Err(route::Refusal::Condition { place, key, wanted, found }) => {
                let Condition { key: named, revision: asked } = write.conditions[place];
                let is = record.value_at(&store_key(&key), revision).map_or(0, |(_, at)| at);
                ensure!(
                    (named, asked, is) == (key, wanted, found) && found != wanted,
                    "{key} was refused as {found} instead of {wanted} at {revision}, where it is {is}"
                );
                write.puts.values().for_each(|value| record.not_done(*value));
                return Ok(());
            }
            ref other => bail!("a write of rules was answered {other:?}"),
        };
        let before = if changed { revision - 1 } else { revision };
        for Condition { key, revision: wanted } in &write.conditions {
            let was = record.value_at(&store_key(key), before).map_or(0, |(_, at)| at);
            ensure!(
                was == *wanted,
                "{key} was {was} before {revision}, and a write was done that wanted {wanted}"
            );
        }
        for (key, value) in &write.puts {
            record.done(&store_key(key), Some(*value), revision);
        }
        let keys: Vec<Vec<u8>> = write.deletes.iter().map(store_key).collect();
        let left = keys.iter().any(|key| record.value_at(key, revision).is_some());
        let gone =
            if changed { record.deleted_at(revision, |key| keys.iter().any(|one| one == key)) } else { 0 };
        ensure!(
            !left && response == (write.puts.len() as u64, gone),
            "{response:?} rules were said to be written and deleted at {revision}, and {gone} were deleted"
        );
        Ok(())
    }

    /// Whether all that was to be deleted is gone, or else `more` said so. Looks where anybody still shows that revision.
    fn check_gone(&self, many: &Many, revision: u64, more: bool) -> Result<()> {
        for node in &self.nodes {
            let Some(process) = &node.process else { continue };
            let view = process.stepped.engine().latest();
            if let Some(rules) = rules_at(&view, &many.scope, revision)? {
                let left = rules.iter().any(|rule| rule.revision <= many.not_after);
                ensure!(
                    left == more,
                    "rules left after their deletion at {revision}: {left}, and its client was told: {more}"
                );
                return Ok(());
            }
        }
        Ok(())
    }

    /// A group, and a network, hold in the store and in memory what was applied.
    pub(crate) fn check_rules(&mut self, view: &ReadView) -> Result<()> {
        let revision = view.progress().revision.0;
        let vni = self.rng.random_range(0..NETWORKS);
        let Some(rules) = rules_at(view, &Scope::Vni(vni), revision)? else { return Ok(()) };
        let record = self.record.lock();
        let prefix = Scope::Vni(vni).prefix();
        let recorded = record.values_at(revision, &prefix);
        let found: BTreeMap<Vec<u8>, (u64, u64)> = rules
            .iter()
            .map(|rule| (store_key(&rule.key), (value_of(rule).unwrap_or(0), rule.revision)))
            .collect();
        ensure!(
            found == recorded,
            "network {vni} holds {found:?} at {revision}; what was written is {recorded:?}"
        );
        let number = self.rng.random_range(0..GROUPS);
        let prefix = group_prefix(number);
        let changes = record.changes_after(0, |key| key.starts_with(&prefix));
        let newest = changes.iter().rev().map(|(at, ..)| *at).find(|at| *at <= revision);
        let known = route::group_revision(view.view(), &group(number))?.map(|at| at.0);
        // Before its first change, a group has the revision at which any group first changed, less one.
        ensure!(
            newest.is_none() || known == newest,
            "group {number} changed last at {known:?} by what is stored at {revision}, and did at {newest:?}"
        );
        Ok(())
    }
}

/// The rules in scope as of a revision, if the replica still has it.
fn rules_at(view: &ReadView, scope: &Scope, revision: u64) -> Result<Option<Vec<Rule>>> {
    let at = quoin_core::history::sequence_at(view.view(), view.progress(), Revision(revision))?;
    let Ok(at) = at else { return Ok(None) };
    Ok(Some(route::rules(view.view().at(at), scope, None).collect::<Result<_, _>>()?))
}
