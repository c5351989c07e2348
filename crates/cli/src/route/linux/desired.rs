//! What the tables should hold, from rules: for each network, neighbours (IP to MAC address) and forwarding
//! entries (MAC address to host).
//!
//! Several rules may want one entry: the addresses of a dual-stack interface share its MAC address. An entry
//! exists as long as one rule wants it. If rules want different values, the one with the newest revision wins,
//! and of one revision the first by network and address; such an entry counts as a conflict.
//!
//! Nothing here knows of devices or of the kernel.

use super::super::copy::{Change, Key as RuleKey};
use quoin_proto::quoin::route::v1 as pb;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Mac(pub(super) [u8; 6]);

/// What one network's tables hold at most one entry for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    /// Whose MAC address is wanted.
    Neighbour(IpAddr),
    /// The host behind which it is.
    Forwarding(Mac),
}

/// An entry's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Value {
    Mac(Mac),
    Host(IpAddr),
}

/// An entry of any network.
pub(super) type Entry = (u32, Key);

/// The desired state.
#[derive(Default)]
pub(super) struct Desired {
    rules: HashMap<Arc<RuleKey>, Wish>,
    networks: BTreeMap<u32, Network>,
    without_mac: usize,
    conflicts: usize,
}

/// The desired state of one network.
#[derive(Default)]
pub(super) struct Network {
    entries: HashMap<Key, Wanted>,
    /// Rules with a MAC address.
    rules: usize,
}

/// What a rule asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wish {
    revision: i64,
    /// The neighbour; `None` if the rule has no MAC address.
    neighbour: Option<(IpAddr, Mac)>,
    host: Option<IpAddr>,
}

/// Who wants an entry. Nearly always it is one rule.
enum Wanted {
    By(Claim, Value),
    Among(Box<Several>),
}

/// The rules that want an entry, when there are several. A router's MAC address may have a hundred thousand.
#[derive(Default)]
struct Several {
    /// In the order in which they win.
    claims: BTreeMap<Claim, Value>,
    /// How many want which value.
    values: HashMap<Value, usize>,
}

/// Newer claims are first.
type Claim = (Reverse<i64>, Arc<RuleKey>);

impl Desired {
    /// What `rules` ask for.
    pub(super) fn of<'a>(rules: impl Iterator<Item = &'a pb::Rule>) -> Self {
        let mut desired = Self::default();
        for rule in rules {
            desired.put(rule, &mut Touched::new());
        }
        desired
    }

    /// Makes `changes`, one after the other. Making them again changes nothing.
    pub(super) fn fold(&mut self, changes: &[Change]) -> Touched {
        let mut touched = Touched::new();
        for change in changes {
            match change {
                Change::Put { rule, .. } => self.put(rule, &mut touched),
                Change::Delete { key, .. } => self.delete(key, &mut touched),
            }
        }
        touched
    }

    pub(super) fn value(&self, (vni, key): &Entry) -> Option<Value> {
        self.networks.get(vni)?.value(key)
    }

    pub(super) fn network(&self, vni: u32) -> Option<&Network> {
        self.networks.get(&vni)
    }

    /// The rules that want an entry, the winner first.
    pub(super) fn rules_of(&self, (vni, key): &Entry) -> Vec<&RuleKey> {
        match self.networks.get(vni).and_then(|network| network.entries.get(key)) {
            None => Vec::new(),
            Some(Wanted::By((_, rule), _)) => vec![rule],
            Some(Wanted::Among(several)) => several.claims.keys().map(|(_, rule)| &**rule).collect(),
        }
    }

    /// All rules, those without a MAC address included.
    pub(super) fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Rules without a MAC address.
    pub(super) fn without_mac(&self) -> usize {
        self.without_mac
    }

    /// Rules with a MAC address, by network.
    pub(super) fn rules_by_network(&self) -> impl Iterator<Item = (u32, usize)> {
        self.networks.iter().map(|(vni, network)| (*vni, network.rules))
    }

    /// Entries of which rules want different values.
    pub(super) fn conflicts(&self) -> usize {
        self.conflicts
    }

    /// Whether rules want different values of an entry.
    pub(super) fn is_contested(&self, (vni, key): &Entry) -> bool {
        let wanted = self.networks.get(vni).and_then(|network| network.entries.get(key));
        wanted.is_some_and(Wanted::is_contested)
    }

    fn put(&mut self, rule: &pb::Rule, touched: &mut Touched) {
        let key = (rule.vni, rule.ip.clone());
        let wish = Wish::of(rule);
        if self.rules.get(&key) == Some(&wish) {
            return;
        }
        self.delete(&key, touched);
        let id = Arc::new(key);
        self.without_mac += usize::from(wish.neighbour.is_none());
        if wish.neighbour.is_some() {
            self.networks.entry(rule.vni).or_default().rules += 1;
        }
        for (key, value) in wish.entries() {
            let entry = (rule.vni, key);
            self.touch(entry, touched);
            let network =
                self.networks.get_mut(&rule.vni).expect("a wish with entries counts in its network");
            self.conflicts -= usize::from(network.entries.get(&key).is_some_and(Wanted::is_contested));
            network.claim(key, (Reverse(wish.revision), Arc::clone(&id)), value);
            self.conflicts += usize::from(network.entries[&key].is_contested());
        }
        self.rules.insert(id, wish);
    }

    fn delete(&mut self, key: &RuleKey, touched: &mut Touched) {
        let Some((id, wish)) = self.rules.remove_entry(key) else { return };
        if wish.neighbour.is_none() {
            self.without_mac -= 1;
            return;
        }
        for (key, _) in wish.entries() {
            self.touch((id.0, key), touched);
            let network = self.networks.get_mut(&id.0).expect("its rules are counted");
            self.conflicts -= usize::from(network.entries[&key].is_contested());
            network.release(key, &(Reverse(wish.revision), Arc::clone(&id)));
            self.conflicts += usize::from(network.entries.get(&key).is_some_and(Wanted::is_contested));
        }
        let network = self.networks.get_mut(&id.0).expect("its rules are counted");
        network.rules -= 1;
        if network.rules == 0 {
            self.networks.remove(&id.0);
        }
    }

    /// Keeps the value from before the first change.
    fn touch(&self, entry: Entry, touched: &mut Touched) {
        touched.entry(entry).or_insert_with(|| self.value(&entry));
    }
}

/// Entries that changes have touched, with the values that they had before.
pub(super) type Touched = BTreeMap<Entry, Option<Value>>;

impl Network {
    /// All entries, in no particular order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Key, Value)> {
        self.entries.iter().map(|(key, wanted)| (*key, wanted.value()))
    }

    pub(super) fn value(&self, key: &Key) -> Option<Value> {
        self.entries.get(key).map(Wanted::value)
    }

    fn claim(&mut self, key: Key, claim: Claim, value: Value) {
        let wanted = match self.entries.remove(&key) {
            None => Wanted::By(claim, value),
            Some(Wanted::By(first, of_first)) => {
                let mut several = Several::default();
                several.add(first, of_first);
                several.add(claim, value);
                Wanted::Among(Box::new(several))
            }
            Some(Wanted::Among(mut several)) => {
                several.add(claim, value);
                Wanted::Among(several)
            }
        };
        self.entries.insert(key, wanted);
    }

    fn release(&mut self, key: Key, claim: &Claim) {
        let Some(Wanted::Among(mut several)) = self.entries.remove(&key) else { return };
        several.remove(claim);
        let left = if several.claims.len() > 1 {
            Wanted::Among(several)
        } else {
            let (claim, value) = several.claims.pop_first().expect("one of several is left");
            Wanted::By(claim, value)
        };
        self.entries.insert(key, left);
    }
}

impl Wanted {
    fn value(&self) -> Value {
        match self {
            Self::By(_, value) => *value,
            Self::Among(several) => {
                *several.claims.first_key_value().expect("it holds at least two claims").1
            }
        }
    }

    fn is_contested(&self) -> bool {
        match self {
            Self::By(..) => false,
            Self::Among(several) => several.values.len() > 1,
        }
    }
}

impl Several {
    fn add(&mut self, claim: Claim, value: Value) {
        self.claims.insert(claim, value);
        *self.values.entry(value).or_default() += 1;
    }

    fn remove(&mut self, claim: &Claim) {
        let Some(value) = self.claims.remove(claim) else { return };
        let count = self.values.get_mut(&value).expect("every claim's value is counted");
        *count -= 1;
        if *count == 0 {
            self.values.remove(&value);
        }
    }
}

impl Wish {
    fn of(rule: &pb::Rule) -> Self {
        let ip = rule.ip.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
        let host = rule.host_ip.parse::<IpAddr>().ok().map(|host| host.to_canonical());
        Self { revision: rule.revision, neighbour: ip.zip(Mac::parse(&rule.mac)), host }
    }

    fn entries(&self) -> impl Iterator<Item = (Key, Value)> + use<> {
        let neighbour = self.neighbour.map(|(ip, mac)| (Key::Neighbour(ip), Value::Mac(mac)));
        let forwarding = self.neighbour.zip(self.host);
        let forwarding = forwarding.map(|((_, mac), host)| (Key::Forwarding(mac), Value::Host(host)));
        neighbour.into_iter().chain(forwarding)
    }
}

impl Mac {
    fn parse(text: &str) -> Option<Self> {
        let mut octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16).ok());
        let mut mac = [0; 6];
        for octet in &mut mac {
            *octet = octets.next()??;
        }
        octets.next().is_none().then_some(Self(mac))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Neighbour(ip) => write!(f, "neighbour {ip}"),
            Self::Forwarding(mac) => write!(f, "forwarding entry {mac}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn rule((vni, ip, mac, host, revision): (u32, u8, u8, u8, i64)) -> pb::Rule {
        // Few addresses, so that rules share and contradict each other; 0 is none.
        let ip = if ip < 3 { format!("10.0.0.{ip}") } else { format!("fd00::{ip}") };
        let mac = if mac == 0 { String::new() } else { format!("02:00:00:00:00:0{mac}") };
        let host_ip = if host == 0 { String::new() } else { format!("192.168.0.{host}") };
        pb::Rule { vni, ip, mac, host_ip, revision, ..pb::Rule::default() }
    }

    fn rules() -> impl Strategy<Value = pb::Rule> {
        (1..3_u32, 0..6_u8, 0..4_u8, 0..3_u8, 1..9_i64).prop_map(rule)
    }

    fn changes() -> impl Strategy<Value = Change> {
        (rules(), any::<bool>()).prop_map(|(rule, put)| {
            let key = (rule.vni, rule.ip.clone());
            if put { Change::Put { rule, old: None } } else { Change::Delete { key, rule } }
        })
    }

    /// What `rules` want, in the plainest way: the losers are written first.
    fn plain(rules: &BTreeMap<RuleKey, pb::Rule>) -> (BTreeMap<Entry, Value>, usize) {
        let mut order: Vec<&pb::Rule> = rules.values().filter(|rule| !rule.mac.is_empty()).collect();
        order.sort_by_key(|rule| (rule.revision, Reverse((rule.vni, rule.ip.clone()))));
        let (mut entries, mut values) = (BTreeMap::new(), BTreeMap::<Entry, Vec<Value>>::new());
        let mut want = |entry, value| {
            entries.insert(entry, value);
            values.entry(entry).or_default().push(value);
        };
        for rule in order {
            let mac = Mac::parse(&rule.mac).unwrap();
            want((rule.vni, Key::Neighbour(rule.ip.parse().unwrap())), Value::Mac(mac));
            if let Ok(host) = rule.host_ip.parse() {
                want((rule.vni, Key::Forwarding(mac)), Value::Host(host));
            }
        }
        let contested = values.values().filter(|values| values.iter().any(|value| *value != values[0]));
        (entries, contested.count())
    }

    fn entries(desired: &Desired) -> BTreeMap<Entry, Value> {
        let all = desired.networks.iter();
        all.flat_map(|(vni, network)| network.entries().map(|(key, value)| ((*vni, key), value))).collect()
    }

    proptest! {
        /// Whatever happens, in whatever batches: the state is what the rules that are left want, and the
        /// touched entries are those that have changed.
        #[test]
        fn the_state_is_that_of_the_rules(batches in vec(vec(changes(), 0..6), 0..20)) {
            let (mut desired, mut rules) = (Desired::default(), BTreeMap::new());
            for batch in batches {
                let mut mirror = entries(&desired);
                let touched = desired.fold(&batch);
                for change in batch.clone() {
                    match change {
                        Change::Put { rule, .. } => { rules.insert((rule.vni, rule.ip.clone()), rule); }
                        Change::Delete { key, .. } => { rules.remove(&key); }
                    }
                }
                for (entry, old) in &touched {
                    prop_assert_eq!(mirror.get(entry), old.as_ref());
                    match desired.value(entry) {
                        Some(value) => { mirror.insert(*entry, value); }
                        None => { mirror.remove(entry); }
                    }
                }
                let (wanted, conflicts) = plain(&rules);
                prop_assert_eq!(&mirror, &wanted);
                prop_assert_eq!(entries(&desired), wanted);
                prop_assert_eq!(desired.conflicts(), conflicts);
                prop_assert_eq!(desired.rules(), rules.len());
                let with_mac: usize = desired.rules_by_network().map(|(_, rules)| rules).sum();
                prop_assert_eq!(with_mac + desired.without_mac(), rules.len());
                let scratch = Desired::of(rules.values());
                prop_assert_eq!(entries(&desired), entries(&scratch));
            }
        }
    }

    fn put(rule: pb::Rule) -> Change {
        Change::Put { rule, old: None }
    }

    /// A deletion took the forwarding entry along that the other address of the interface needs.
    #[test]
    fn the_addresses_of_an_interface_share_its_forwarding_entry() {
        let (v4, v6) = (rule((1, 1, 1, 1, 5)), rule((1, 4, 1, 1, 5)));
        let mut desired = Desired::of([&v4, &v6].into_iter());
        let mac = (1, Key::Forwarding(Mac([2, 0, 0, 0, 0, 1])));
        assert_eq!(desired.rules_of(&mac), [&(1, v4.ip.clone()), &(1, v6.ip.clone())]);
        let delete = |rule: &pb::Rule| Change::Delete { key: (1, rule.ip.clone()), rule: rule.clone() };
        desired.fold(&[delete(&v4)]);
        assert_eq!(desired.value(&mac), Some(Value::Host("192.168.0.1".parse().unwrap())));
        desired.fold(&[delete(&v6)]);
        assert_eq!((desired.value(&mac), desired.rules()), (None, 0));
    }

    #[test]
    fn the_newest_of_contradicting_rules_wins_and_the_contradiction_is_counted() {
        let mut desired = Desired::default();
        let mac = (1, Key::Forwarding(Mac([2, 0, 0, 0, 0, 1])));
        desired.fold(&[put(rule((1, 1, 1, 2, 9))), put(rule((1, 2, 1, 1, 7)))]);
        assert_eq!(desired.value(&mac), Some(Value::Host("192.168.0.2".parse().unwrap())));
        assert!(desired.is_contested(&mac));
        assert_eq!(desired.conflicts(), 1);
        desired.fold(&[put(rule((1, 1, 1, 1, 10)))]);
        assert_eq!((desired.is_contested(&mac), desired.conflicts()), (false, 0));
    }
}
