//! Watches of rules against a model: whatever is written, compacted, broken off and resumed in between, and whatever is
//! added to a watch or removed from it, each watcher has exactly the final table, is told nothing twice, and has at every
//! revision that it is told what was there at that revision.

use super::feed::{Feed, Options, RESPONSES_MAX};
use super::live::Live;
use super::snapshot::{SNAPSHOT_MESSAGE_BYTES, Tables};
use super::subscribe::Change;
use crate::grpc::outbound;
use crate::life::Life;
use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use prost::Message;
use quoin_core::route::{self, Operation, Rule, RuleKey, Scope, Table, pack_keys, pack_rule};
use quoin_core::store::MemoryStore;
use quoin_core::{
    Batch, Command, Index, Machines, Progress, Revision, Stamp, Store, Term, View, history, system,
};
use quoin_engine::watch::{BATCH_BYTES_MAX, Hub, Options as HubOptions, Source};
use quoin_proto::Encoded;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tonic::{Code, Status};

const GROUPS: u8 = 3;
const RULES: u8 = 6;

/// A replica of one: applies commands and publishes.
struct World {
    store: Arc<MemoryStore>,
    machines: Mutex<Machines>,
    /// As many references as there are readers: what they read must not be forgotten meanwhile.
    pins: Arc<()>,
}

impl Source for World {
    fn latest(&self) -> (Arc<dyn Store>, Progress, Box<dyn Any + Send>) {
        let machines = self.machines.lock();
        (Arc::clone(&self.store) as _, machines.progress(), Box::new(Arc::clone(&self.pins)))
    }
}

impl World {
    /// What was in scope at a revision, if that is known.
    fn held(&self, scopes: &[Scope], revision: u64) -> Option<Held> {
        let progress = self.machines.lock().progress();
        let view = View::new(&*self.store, progress.sequence);
        let at = history::sequence_at(view, &progress, Revision(revision)).unwrap().ok()?;
        let rules = scopes.iter().flat_map(|scope| route::rules(view.at(at), scope, None));
        let held = rules.map(|rule| {
            let rule = rule.unwrap();
            let IpAddr::V4(ip) = rule.key.ip else { panic!("{rule:?}") };
            let version = std::str::from_utf8(&rule.user_data).unwrap().parse().unwrap();
            (ip.octets()[3], (rule.group[0] - b'a', version))
        });
        Some(held.collect())
    }
}

impl Tables for World {
    fn table(&self) -> Arc<Table> {
        self.machines.lock().memory().routes
    }
}

/// The replica, and what its clients hold.
struct Case {
    world: Arc<World>,
    hub: Arc<Hub>,
    live: Live,
    /// Group and version of each rule.
    model: BTreeMap<u8, (u8, u64)>,
    version: u64,
    /// Streams end when this is dropped.
    _stop: watch::Sender<bool>,
    life: Life,
}

impl Case {
    fn new(ring: usize) -> Self {
        let store = Arc::new(MemoryStore::new());
        let machines = Mutex::new(Machines::open(&*store).unwrap());
        let world = Arc::new(World { store, machines, pins: Arc::default() });
        let hub =
            Hub::new(Arc::clone(&world) as _, HubOptions { ring_events_max: ring, ..HubOptions::default() });
        let (stop, stopping) = watch::channel(false);
        let (model, live) = (BTreeMap::new(), Live::default());
        Self { world, hub, live, model, version: 0, _stop: stop, life: Life(stopping) }
    }

    fn apply(&self, command: Command) {
        self.apply_to(&mut self.world.machines.lock(), command);
    }

    fn apply_to(&self, machines: &mut Machines, command: Command) {
        let index = Index(machines.progress().index.0 + 1);
        let payload = Batch::encode(Stamp(index.0), &[command]);
        let outcome = machines.apply(&*self.world.store, index, Term(1), payload).unwrap();
        let newest = machines.progress().revision;
        self.hub.publish(outcome.events, newest);
    }

    fn put(&mut self, numbers: &[u8], group: u8) {
        self.version += 1;
        let (mut packed, mut scratch) = (Vec::new(), Vec::new());
        for number in numbers {
            self.model.insert(*number, (group, self.version));
            pack_rule(&mut packed, &rule(*number, group, self.version), &mut scratch);
        }
        self.apply(Operation::Put(packed.into()).into_command());
    }

    fn delete(&mut self, number: u8) {
        self.model.remove(&number);
        self.apply(Operation::Delete(pack_keys(&[rule(number, 0, 0).key])).into_command());
    }

    fn compact(&self, keep: u64) {
        let mut machines = self.world.machines.lock();
        let progress = machines.progress();
        let bound = progress.revision.0.saturating_sub(keep);
        if bound > progress.compacted.0 && Arc::strong_count(&self.world.pins) == 1 {
            self.apply_to(&mut machines, system::Operation::Compact(bound).into_command());
        }
    }

    /// Opens or resumes a client's stream.
    fn open(&self, client: &mut Client) {
        let options = Options {
            scopes: client.scopes.clone(),
            from: client.position.map_or(0, |position| position + 1),
            snapshot_if_compacted: client.forgiving,
            progress_ms: 0,
            cluster: 7,
        };
        let (hub, tables) = (Arc::clone(&self.hub), Arc::clone(&self.world) as _);
        let (sender, changes) = mpsc::channel(1);
        let stream = outbound::spawn(&self.life, RESPONSES_MAX, |responses| {
            Feed::new(hub, tables, self.live.clone(), options, changes, responses).run()
        });
        client.stream = Some(stream.into_inner());
        client.changes = Some(sender);
        client.pending.clear();
        client.adding.clear();
        client.snapshot = client.position.is_none().then(BTreeMap::new);
    }
}

fn rule(number: u8, group: u8, version: u64) -> Rule {
    Rule {
        key: RuleKey { vni: u32::from(number % 2), ip: [10, 0, 0, number].into() },
        mac: None,
        host_ip: None,
        host_mac: None,
        group: vec![b'a' + group].into(),
        revision: 0,
        user_data: Bytes::from(version.to_string()),
    }
}

/// Group and version of each rule.
type Held = BTreeMap<u8, (u8, u64)>;

/// A client: what it holds, and up to which revision.
struct Client {
    world: Arc<World>,
    scopes: Vec<Scope>,
    forgiving: bool,
    stream: Option<mpsc::Receiver<Result<Encoded, Status>>>,
    position: Option<u64>,
    snapshot: Option<Held>,
    table: Held,
    changes: Option<mpsc::Sender<Change>>,
    /// Changes that are not in effect yet.
    pending: VecDeque<Change>,
    /// What has come of what the first of them adds.
    adding: Held,
}

impl Client {
    fn new(world: &Arc<World>, scopes: Vec<Scope>, forgiving: bool) -> Self {
        Self {
            world: Arc::clone(world),
            scopes,
            forgiving,
            stream: None,
            position: None,
            snapshot: None,
            table: Held::new(),
            changes: None,
            pending: VecDeque::new(),
            adding: Held::new(),
        }
    }

    /// Asks for a change, if there is room for one.
    fn change(&mut self, request_id: u64, add: &[Scope], remove: &[Scope]) {
        let add: BTreeSet<Scope> = add.iter().cloned().collect();
        let remove = remove.iter().filter(|scope| !add.contains(scope)).cloned().collect();
        let change = Change { request_id, add, remove };
        if self.stream.is_some()
            && self.changes.as_ref().is_some_and(|to| to.try_send(change.clone()).is_ok())
        {
            self.pending.push_back(change);
        }
    }

    /// A change is in effect as of `revision`.
    fn changed(&mut self, request_id: u64) {
        let change = self.pending.pop_front().expect("a change was asked for");
        assert_eq!(request_id, change.request_id);
        let adding = std::mem::take(&mut self.adding);
        for (number, held) in &adding {
            let known = self.table.get(number).is_none_or(|known| known == held);
            let replaced = self.table.get(number).is_some_and(|(group, _)| {
                // It has left what is removed, unnoticed.
                !wants(&self.without(&change), *number, *group)
            });
            assert!(known || replaced, "{number} is {:?} and comes as {held:?}", self.table.get(number));
        }
        self.scopes = self.without(&change);
        let scopes = self.scopes.clone();
        self.table.retain(|number, (group, _)| wants(&scopes, *number, *group));
        self.table.extend(adding);
        self.scopes.extend(change.add);
        self.scopes.sort_unstable();
        self.scopes.dedup();
    }

    fn without(&self, change: &Change) -> Vec<Scope> {
        self.scopes.iter().filter(|scope| !change.remove.contains(scope)).cloned().collect()
    }

    /// What the client holds is what was there at its revision.
    fn check(&self) {
        // What is removed may be behind already.
        if self.pending.is_empty()
            && let Some(held) = self.world.held(&self.scopes, self.position.unwrap())
        {
            assert_eq!(self.table, held, "of {:?} at {:?}", self.scopes, self.position);
        }
    }

    /// Takes one message; false where the stream has ended and nothing remains but to begin anew.
    async fn take(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return true };
        match stream.recv().await {
            Some(Ok(Encoded(bytes))) => {
                self.took(pb::WatchResponse::decode(bytes).unwrap());
                true
            }
            Some(Err(status)) => {
                assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
                assert!(!self.forgiving, "told of compaction instead of everything that is there");
                false
            }
            None => panic!("the stream ended without a word"),
        }
    }

    fn took(&mut self, message: pb::WatchResponse) {
        let number = |ip: &str| ip.rsplit('.').next().unwrap().parse::<u8>().unwrap();
        let version = |rule: &pb::Rule| std::str::from_utf8(&rule.user_data).unwrap().parse::<u64>().unwrap();
        let held = |rule: &pb::Rule| (rule.group.as_bytes()[0] - b'a', version(rule));
        match message.kind() {
            Kind::Compacted => {
                assert!(self.adding.is_empty());
                self.snapshot = Some(Held::new());
            }
            Kind::Snapshot if message.request_id != 0 => {
                assert_eq!(self.pending[0].request_id, message.request_id);
                for rule in &message.rules {
                    let twice = self.adding.insert(number(&rule.ip), held(rule));
                    assert_eq!(twice, None, "twice in a snapshot");
                }
            }
            Kind::Changed => {
                assert!(message.revision as u64 >= self.position.unwrap());
                self.position = Some(message.revision as u64);
                self.changed(message.request_id);
                self.check();
            }
            Kind::Snapshot => {
                let snapshot = self.snapshot.as_mut().expect("no snapshot was asked for");
                for rule in &message.rules {
                    assert_eq!(snapshot.insert(number(&rule.ip), held(rule)), None, "twice in a snapshot");
                }
            }
            Kind::SnapshotEnd => {
                self.table = self.snapshot.take().expect("no snapshot was asked for");
                self.position = Some(message.revision as u64);
                self.check();
            }
            Kind::Events => {
                assert!(self.adding.is_empty(), "events between what is added and its revision");
                let mut last = self.position.expect("events follow a snapshot or a position");
                for event in message.events {
                    let revision = event.revision as u64;
                    assert!(revision > self.position.unwrap(), "revision {revision} came again");
                    assert!(revision >= last, "revision {revision} after {last}");
                    last = revision;
                    match event.change.unwrap() {
                        pb::event::Change::Put(rule) => self.table.insert(number(&rule.ip), held(&rule)),
                        pb::event::Change::Deleted(key) => self.table.remove(&number(&key.ip)),
                        other => panic!("{other:?}"),
                    };
                }
                self.position = Some(message.revision as u64);
                self.check();
            }
            other => panic!("{other:?}"),
        }
    }

    fn wants(&self, number: u8, group: u8) -> bool {
        wants(&self.scopes, number, group)
    }
}

fn wants(scopes: &[Scope], number: u8, group: u8) -> bool {
    scopes.iter().any(|scope| match scope {
        Scope::Group(name) => name[..] == [b'a' + group],
        Scope::Vni(vni) => *vni == u32::from(number % 2),
        _ => false,
    })
}

#[derive(Clone, Debug)]
enum Step {
    Put { number: u8, group: u8 },
    Delete(u8),
    Compact { keep: u64 },
    Watch { scopes: Vec<Scope>, forgiving: bool },
    Change { place: usize, add: Vec<Scope>, remove: Vec<Scope> },
    Take(usize),
    Break(usize),
    Resume(usize),
}

fn scopes(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Scope>> {
    let scope = prop_oneof![
        3 => (0..GROUPS).prop_map(|group| Scope::Group(vec![b'a' + group].into())),
        1 => (0..2u32).prop_map(Scope::Vni),
    ];
    prop::collection::btree_set(scope, count).prop_map(|scopes| scopes.into_iter().collect())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..RULES, 0..GROUPS).prop_map(|(number, group)| Step::Put { number, group }),
        3 => (0..RULES).prop_map(Step::Delete),
        1 => (0..12u64).prop_map(|keep| Step::Compact { keep }),
        2 => (scopes(1..3), any::<bool>()).prop_map(|(scopes, forgiving)| Step::Watch { scopes, forgiving }),
        3 => (0..6usize, scopes(0..3), scopes(0..3))
            .prop_map(|(place, add, remove)| Step::Change { place, add, remove }),
        4 => (0..6usize).prop_map(Step::Take),
        2 => (0..6usize).prop_map(Step::Break),
        2 => (0..6usize).prop_map(Step::Resume),
    ]
}

async fn replay(steps: Vec<Step>, ring: usize) {
    let mut case = Case::new(ring);
    let mut clients: Vec<Client> = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Put { number, group } => case.put(&[number], group),
            Step::Delete(number) => case.delete(number),
            Step::Compact { keep } => case.compact(keep),
            Step::Watch { scopes, forgiving } => {
                let mut client = Client::new(&case.world, scopes, forgiving);
                case.open(&mut client);
                clients.push(client);
            }
            Step::Change { place, add, remove } => {
                if let Some(client) = clients.get_mut(place) {
                    client.change(1 + number as u64, &add, &remove);
                }
            }
            // Only what is there already: nobody waits for a message that may not come.
            Step::Take(place) if place < clients.len() => {
                let client = &mut clients[place];
                let waiting = client.stream.as_ref().is_some_and(|stream| !stream.is_empty());
                if waiting && !client.take().await {
                    client.stream = None;
                    client.position = None;
                }
            }
            Step::Break(place) if place < clients.len() => clients[place].stream = None,
            Step::Resume(place) if place < clients.len() && clients[place].stream.is_none() => {
                case.open(&mut clients[place]);
            }
            Step::Take(_) | Step::Break(_) | Step::Resume(_) => {}
        }
        tokio::task::yield_now().await;
    }
    // A rule of each network in each group, at the end: every watcher has something to wait for.
    for group in 0..GROUPS {
        case.put(&[RULES + 2 * group, RULES + 2 * group + 1], group);
    }
    for mut client in clients {
        if client.stream.is_none() {
            case.open(&mut client);
        }
        let wanted = |client: &Client| -> Held {
            let all = case.model.iter().filter(|(number, (group, _))| client.wants(**number, *group));
            all.map(|(number, held)| (*number, *held)).collect()
        };
        let newest = |held: &Held| held.values().map(|(_, version)| *version).max();
        while !client.pending.is_empty() || newest(&client.table) != newest(&wanted(&client)) {
            if !client.take().await {
                client.position = None;
                case.open(&mut client);
            }
        }
        assert_eq!(client.table, wanted(&client), "of {:?}", client.scopes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_watcher_has_the_final_table(steps in prop::collection::vec(step(), 1..120), ring in 1..40usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let patience = std::time::Duration::from_secs(60);
            tokio::time::timeout(patience, replay(steps, ring)).await.expect("a watcher waits in vain");
        });
    }
}

#[test]
fn the_revision_of_a_table_is_that_of_its_store() {
    let mut case = Case::new(4);
    case.put(&[1], 0);
    case.apply(system::Operation::Tick(true).into_command());
    let reopened = Machines::open(&*case.world.store).unwrap();
    assert_eq!(reopened.memory().routes.look().revision(), Revision(2));
    assert_eq!(reopened.memory().routes.look().group_len(b"a"), 1);
}

/// What waits for an agent that does not read: the whole table, or all that it missed, would be gibibytes.
#[tokio::test]
async fn an_agent_that_reads_nothing_has_a_few_messages_of_a_bounded_size_waiting() {
    const RULE_BYTES: usize = 64 << 10;
    const COUNT: u8 = 60;
    let case = Case::new(4);
    let put = |number: u8| {
        let (mut packed, mut scratch) = (Vec::new(), Vec::new());
        let rule = Rule { user_data: vec![7; RULE_BYTES].into(), ..rule(number, 0, 0) };
        pack_rule(&mut packed, &rule, &mut scratch);
        case.apply(Operation::Put(packed.into()).into_command());
    };
    (0..COUNT).for_each(put);
    for scope in [Scope::Group(vec![b'a'].into()), Scope::Vni(0)] {
        let mut client = Client::new(&case.world, vec![scope], false);
        case.open(&mut client);
        let mut stream = client.stream.take().expect("it was opened");
        let mut take = async |bytes_max: usize| {
            let Encoded(bytes) = stream.recv().await.unwrap().unwrap();
            assert!(bytes.len() <= bytes_max + 2 * RULE_BYTES, "a message of {} bytes", bytes.len());
            pb::WatchResponse::decode(bytes).unwrap()
        };
        while take(SNAPSHOT_MESSAGE_BYTES).await.kind() != Kind::SnapshotEnd {}
        // It falls behind the ring, and is sent what it missed from history.
        (0..COUNT).for_each(put);
        let newest = case.world.machines.lock().progress().revision.0 as i64;
        while take(BATCH_BYTES_MAX).await.revision < newest - 1 {}
    }
}

/// An agent that came back to a busy group was never told that it lacked nothing: other progress waits for a pause.
#[tokio::test]
async fn a_watch_that_goes_on_says_when_it_has_caught_up() {
    let mut case = Case::new(4);
    (1..=20).for_each(|number| case.put(&[number], 0));
    let newest = case.world.machines.lock().progress().revision.0;
    for (from, events) in [(5, newest - 4), (newest + 1, 0)] {
        let options = Options {
            scopes: vec![Scope::Group(vec![b'a'].into())],
            from,
            snapshot_if_compacted: false,
            progress_ms: 3_600_000,
            cluster: 7,
        };
        let (hub, tables) = (Arc::clone(&case.hub), Arc::clone(&case.world) as _);
        let (_sender, changes) = mpsc::channel(1);
        let stream = outbound::spawn(&case.life, RESPONSES_MAX, |responses| {
            Feed::new(hub, tables, case.live.clone(), options, changes, responses).run()
        });
        let (mut stream, mut seen) = (stream.into_inner(), 0);
        loop {
            let Encoded(bytes) = stream.recv().await.unwrap().unwrap();
            let message = pb::WatchResponse::decode(bytes).unwrap();
            seen += message.events.len() as u64;
            if message.kind() == Kind::Progress {
                assert_eq!((message.revision, seen, message.cluster_id), (newest as i64, events, 7));
                break;
            }
        }
    }
}
