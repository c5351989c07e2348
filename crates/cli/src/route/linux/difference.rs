//! What makes a device's tables what they should be.
//!
//! **Invariant.** Only entries that an agent has made are removed. What another hand has written stays, unless
//! a rule wants an entry of the same address, and the kernel takes it: then the rule's replaces it.

use super::desired::{Key, Network, Value};
use super::message::{Actual, Request};
use std::collections::HashMap;

/// A request for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    order: Order,
    pub(super) request: Request,
    /// An entry of an agent is there, with another value. It has to go if the kernel refuses the new one.
    pub(super) stale: bool,
    /// A forwarding entry of another hand is there. It has to give way, but only if the kernel takes the new one:
    /// an entry that is overwritten keeps its mark.
    pub(super) displaces: bool,
}

/// What comes first: removals, then hosts, then those who are behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Removal,
    Host,
    Neighbour,
}

/// The steps, in no particular order, after which a device that holds `actual` holds what `wanted` wants.
pub(super) fn difference(wanted: Option<&Network>, actual: &[Actual]) -> Vec<Step> {
    let mut missing: HashMap<Key, Step> = wanted
        .into_iter()
        .flat_map(Network::entries)
        .map(|(key, value)| (key, put(key, value, false)))
        .collect();
    let mut steps = Vec::new();
    for entry in actual {
        let key = entry.key;
        match wanted.and_then(|wanted| wanted.value(&key)) {
            None if entry.ours => steps.push(remove(key)),
            None => {}
            Some(value) if entry.ours && entry.value == Some(value) => {
                missing.remove(&key);
            }
            Some(value) => {
                let displaces = !entry.ours && matches!(key, Key::Forwarding(_));
                missing.insert(key, Step { displaces, ..put(key, value, entry.ours) });
            }
        }
    }
    steps.extend(missing.into_values());
    steps
}

/// The step from a value of ours to another; `None` if they are the same.
pub(super) fn step(key: Key, old: Option<Value>, new: Option<Value>) -> Option<Step> {
    match (old, new) {
        (old, new) if old == new => None,
        (_, None) => Some(remove(key)),
        (old, Some(new)) => Some(put(key, new, old.is_some())),
    }
}

fn put(key: Key, value: Value, stale: bool) -> Step {
    let order = if matches!(key, Key::Neighbour(_)) { Order::Neighbour } else { Order::Host };
    Step { order, request: Request::Put(key, value), stale, displaces: false }
}

fn remove(key: Key) -> Step {
    Step { order: Order::Removal, request: Request::Remove(key), stale: false, displaces: false }
}

impl Step {
    /// Sorts the steps of a network.
    pub(super) fn order(&self) -> (Order, Key) {
        (self.order, self.request.key())
    }
}

#[cfg(test)]
mod tests {
    use super::super::desired::{Desired, Mac};
    use super::*;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use quoin_proto::quoin::route::v1 as pb;
    use std::collections::BTreeMap;

    /// The tables of a device as the kernel keeps them: a value, and whether it is marked as an agent's.
    type Model = BTreeMap<Key, (Option<Value>, bool)>;

    fn key(number: u8) -> Key {
        match number {
            0..4 => Key::Neighbour([10, 0, 0, number].into()),
            _ => Key::Forwarding(Mac([2, 0, 0, 0, 0, number])),
        }
    }

    fn value(key: &Key, number: u8) -> Option<Value> {
        match key {
            _ if number == 0 => None,
            Key::Neighbour(_) => Some(Value::Mac(Mac([2, 0, 0, 0, 0, 3 + number]))),
            Key::Forwarding(_) => Some(Value::Host([192, 168, 0, number].into())),
        }
    }

    fn models() -> impl Strategy<Value = Model> {
        let entries = btree_map(0..8_u8, (0..4_u8, any::<bool>()), 0..8);
        entries.prop_map(|entries| {
            let entry = |(number, (of, ours))| (key(number), (value(&key(number), of), ours));
            entries.into_iter().map(entry).collect()
        })
    }

    fn rule((ip, mac, host): (u8, u8, u8)) -> pb::Rule {
        let mac = format!("02:00:00:00:00:0{}", 4 + mac);
        let host_ip = format!("192.168.0.{host}");
        pb::Rule { vni: 1, ip: format!("10.0.0.{ip}"), mac, host_ip, revision: 1, ..pb::Rule::default() }
    }

    fn actual(model: &Model) -> Vec<Actual> {
        model
            .iter()
            .map(|(key, (value, ours))| Actual { device: 1, key: *key, value: *value, ours: *ours })
            .collect()
    }

    fn make(model: &mut Model, mut steps: Vec<Step>) {
        steps.sort_unstable_by_key(Step::order);
        for Step { request, displaces, .. } in steps {
            if displaces {
                assert!(model.remove(&request.key()).is_some_and(|(_, ours)| !ours));
            }
            match request {
                Request::Remove(key) => assert!(model.remove(&key).is_some(), "{key}"),
                Request::Put(key, value) => {
                    let foreign = model.get(&key).is_some_and(|(_, ours)| !ours);
                    // The kernel does not mark a forwarding entry that it overwrites.
                    let marked = !(foreign && matches!(key, Key::Forwarding(_)));
                    model.insert(key, (Some(value), marked));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_tables_become_what_is_wanted_and_others_entries_stay(
            before in models(),
            rules in vec((0..4_u8, 0..4_u8, 1..4_u8).prop_map(rule), 0..5),
        ) {
            let desired = Desired::of(rules.iter());
            let wanted: BTreeMap<Key, Value> =
                desired.network(1).into_iter().flat_map(Network::entries).collect();
            let mut after = before.clone();
            let steps = difference(desired.network(1), &actual(&before));
            for step in &steps {
                let stale = before.get(&step.request.key()).is_some_and(|(_, ours)| *ours);
                prop_assert_eq!(step.stale, stale && matches!(step.request, Request::Put(..)));
            }
            make(&mut after, steps);
            for (key, value) in &wanted {
                prop_assert_eq!(after.get(key), Some(&(Some(*value), true)));
            }
            for (key, entry) in &before {
                if !wanted.contains_key(key) {
                    prop_assert_eq!(after.get(key), Some(entry).filter(|(_, ours)| !ours));
                }
            }
            prop_assert_eq!(difference(desired.network(1), &actual(&after)), vec![]);
        }
    }
}
