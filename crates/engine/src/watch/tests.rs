//! Watchers against a model: whatever happens in between, each gets exactly what it wants, in order and once.

use super::piece::{BATCH_BYTES_MAX, BATCH_EVENTS_MAX, event_bytes};
use super::{Hub, Interest, Options, Source, WatchEnd, Watcher};
use bytes::Bytes;
use proptest::prelude::*;
use quoin_core::store::MemoryStore;
use quoin_core::{Event, Index, Machines, Progress, Revision, Stamp, Store, Term, kv, system};
use std::any::Any;
use std::sync::{Arc, Mutex};

/// A replica of one: applies commands and publishes.
struct World {
    store: Arc<MemoryStore>,
    machines: Mutex<Machines>,
}

impl Source for World {
    fn latest(&self) -> (Arc<dyn Store>, Progress, Box<dyn Any + Send>) {
        let progress = self.machines.lock().unwrap().progress();
        (Arc::clone(&self.store) as _, progress, Box::new(()))
    }
}

impl World {
    fn new(ring: usize) -> (Arc<Self>, Arc<Hub>) {
        let store = Arc::new(MemoryStore::new());
        let machines = Mutex::new(Machines::open(&*store).unwrap());
        let world = Arc::new(Self { store, machines });
        let options = Options { ring_events_max: ring, ..Options::default() };
        let hub = Hub::new(Arc::clone(&world) as _, options);
        (world, hub)
    }

    fn apply(&self, hub: &Hub, command: quoin_core::Command) {
        self.apply_together(hub, &[command]);
    }

    /// Applies and publishes one entry.
    fn apply_together(&self, hub: &Hub, commands: &[quoin_core::Command]) {
        let mut machines = self.machines.lock().unwrap();
        let index = Index(machines.progress().index.0 + 1);
        let payload = quoin_core::Batch::encode(Stamp(index.0), commands);
        let outcome = machines.apply(&*self.store, index, Term(1), payload).unwrap();
        let newest = machines.progress().revision;
        drop(machines);
        hub.publish(outcome.events, newest);
    }

    fn put(&self, hub: &Hub, key: &str, value: &str) {
        self.apply(hub, put(key, value));
    }

    fn compact(&self, hub: &Hub, revision: u64) {
        self.apply(hub, system::Operation::Compact(revision).into_command());
    }
}

fn put(key: &str, value: &str) -> quoin_core::Command {
    let put = kv::Put {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        ..Default::default()
    };
    kv::Operation::Put(put).into_command()
}

fn all_keys() -> Interest {
    let (from, to) = kv::watch_bounds(b"\0", b"\0");
    Interest::range(from, to.unwrap())
}

fn one_key(key: &str) -> Interest {
    Interest::key(kv::watch_bounds(key.as_bytes(), b"").0)
}

fn seen(events: &[Arc<Event>]) -> Vec<(u64, String)> {
    let changes = events.iter().flat_map(|event| event.changes.iter().map(|change| (event.revision, change)));
    changes
        .map(|(revision, change)| {
            let kv = kv::change_to_key_value(change, revision).unwrap().unwrap();
            (
                revision.0,
                format!("{}={}", String::from_utf8_lossy(&kv.key), String::from_utf8_lossy(&kv.value)),
            )
        })
        .collect()
}

/// Everything a watcher can get without waiting for another publication.
async fn drain(watcher: &mut Watcher) -> Result<Vec<(u64, String)>, WatchEnd> {
    let mut all = Vec::new();
    while let Some(events) = watcher.next_ready().await? {
        all.extend(seen(&events));
    }
    Ok(all)
}

#[tokio::test]
async fn a_watcher_gets_the_past_and_then_the_present() {
    let (world, hub) = World::new(4);
    for number in 0..10 {
        world.put(&hub, &format!("k{}", number % 2), &format!("v{number}"));
    }
    let mut all = hub.watch(all_keys(), Revision(2));
    let mut one = hub.watch(one_key("k1"), Revision(2));
    assert_eq!(drain(&mut all).await.unwrap().len(), 10);
    assert_eq!(drain(&mut one).await.unwrap().len(), 5);
    world.put(&hub, "k1", "live");
    assert_eq!(seen(&all.next().await.unwrap()), [(12, "k1=live".to_string())]);
    assert_eq!(seen(&one.next().await.unwrap()), [(12, "k1=live".to_string())]);
    world.put(&hub, "k0", "not for one");
    assert_eq!((one.position(), one.is_synced()), (Revision(13), true));
    assert!(!all.is_synced());
}

/// The ways in which a watcher is concerned are not found in the order of revisions.
#[tokio::test]
async fn a_watcher_of_a_key_and_a_range_gets_what_an_entry_changes_in_both() {
    let (world, hub) = World::new(100);
    let (from, to) = kv::watch_bounds(b"a", b"c");
    let mut watcher = hub.watch(one_key("k").and(Interest::range(from, to.unwrap())), Revision(2));
    world.put(&hub, "b", "0");
    assert_eq!(drain(&mut watcher).await.unwrap(), [(2, "b=0".to_string())]);
    world.apply_together(&hub, &[put("b", "1"), put("other", "2"), put("k", "3")]);
    assert_eq!(drain(&mut watcher).await.unwrap(), [(3, "b=1".to_string()), (5, "k=3".to_string())]);
}

/// Ninety watchers that nobody read from had taken 515 MiB.
#[tokio::test]
async fn a_watcher_takes_few_events_and_bytes_at_once_from_memory_and_from_history() {
    for ring in [10_000, 2] {
        let (world, hub) = World::new(ring);
        for (count, bytes) in [(20, BATCH_BYTES_MAX / 4), (3000, 1)] {
            let from = hub.newest().next();
            let mut watcher = hub.watch(all_keys(), from);
            let value = "v".repeat(bytes);
            (0..count).for_each(|_| world.put(&hub, "k", &value));
            let mut next = from.0;
            while let Some(events) = watcher.next_ready().await.unwrap() {
                let taken: usize = events.iter().map(|event| event_bytes(event)).sum();
                assert!(
                    taken <= BATCH_BYTES_MAX + bytes + 1000 && events.len() <= BATCH_EVENTS_MAX,
                    "{taken}"
                );
                assert!(events.iter().map(|event| event.revision.0).eq(next..next + events.len() as u64));
                next += events.len() as u64;
            }
            assert_eq!(next, from.0 + count);
        }
    }
}

#[tokio::test]
async fn a_watch_of_the_future_begins_there() {
    let (world, hub) = World::new(100);
    let mut watcher = hub.watch(all_keys(), Revision(4));
    for number in 2..=5 {
        world.put(&hub, "k", &number.to_string());
    }
    assert_eq!(drain(&mut watcher).await.unwrap(), [(4, "k=4".to_string()), (5, "k=5".to_string())]);
}

#[tokio::test]
async fn a_watch_is_live_once_it_has_begun_and_needs_no_history() {
    let (world, hub) = World::new(4);
    let mut ahead = hub.watch(all_keys(), Revision(4));
    let mut behind = hub.watch(all_keys(), Revision(2));
    assert!(!ahead.is_live(), "it begins in the future");
    assert!(behind.is_live(), "nothing is missing");
    for number in 2..=10 {
        world.put(&hub, "k", &number.to_string());
    }
    assert!(!behind.is_live(), "its events have left the ring");
    assert_eq!(seen(&behind.next_ready_to(Revision(5)).await.unwrap().unwrap()).last().unwrap().0, 5);
    assert_eq!(behind.next_ready_to(Revision(5)).await.unwrap(), None);
    assert!(!behind.is_live() && behind.position() == Revision(5));
    let rest = drain(&mut behind).await.unwrap();
    assert_eq!((rest[0].0, rest.len(), behind.is_live()), (6, 5, true));
    assert_eq!(drain(&mut ahead).await.unwrap().len(), 7);
    assert!(ahead.is_live());
}

#[tokio::test]
async fn a_watcher_behind_compaction_is_told_so() {
    let (world, hub) = World::new(2);
    let mut watcher = hub.watch(all_keys(), Revision(2));
    for number in 2..=20 {
        world.put(&hub, "k", &number.to_string());
    }
    world.compact(&hub, 15);
    let end = watcher.next().await.unwrap_err();
    assert!(matches!(end, WatchEnd::Compacted { compacted: Revision(15) }), "{end}");
    assert_eq!(drain(&mut hub.watch(all_keys(), Revision(15))).await.unwrap().len(), 6);
}

/// The apply thread publishes while a watcher takes: nothing that is published in between falls through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_takes_while_others_publish_misses_nothing() {
    const LAST: u64 = 30_000;
    let (world, hub) = World::new(100_000);
    let mut watcher = hub.watch(all_keys(), Revision(2));
    let publishing = {
        let (world, hub) = (Arc::clone(&world), Arc::clone(&hub));
        std::thread::spawn(move || (2..=LAST).for_each(|_| world.put(&hub, "k", "v")))
    };
    let mut taken = 1;
    while taken < LAST {
        for event in watcher.next().await.unwrap() {
            assert_eq!(event.revision.0, taken + 1);
            taken = event.revision.0;
        }
    }
    publishing.join().unwrap();
}

#[tokio::test]
async fn stopping_ends_a_waiting_watch_and_dropping_forgets_it() {
    let (_world, hub) = World::new(2);
    let mut waiting = hub.watch(all_keys(), Revision(2));
    let other = hub.watch(one_key("k"), Revision(2));
    assert_eq!(hub.watchers(), 2);
    drop(other);
    assert_eq!(hub.watchers(), 1);
    let stopping = Arc::clone(&hub);
    let (end, ()) = tokio::join!(waiting.next(), async move { stopping.stop() });
    assert!(matches!(end, Err(WatchEnd::Stopped)));
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Watch { key: Option<u8>, back: u64 },
    Read(usize),
    Compact { keep: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4u8).prop_map(Step::Put),
        1 => (prop::option::of(0..4u8), 0..10u64).prop_map(|(key, back)| Step::Watch { key, back }),
        3 => (0..8usize).prop_map(Step::Read),
        1 => (0..20u64).prop_map(|keep| Step::Compact { keep }),
    ]
}

struct Watching {
    watcher: Watcher,
    key: Option<u8>,
    next: u64,
}

impl Watching {
    /// Reads all there is and compares it with the model; false where the watch has ended.
    async fn check(&mut self, model: &[(u64, u8)], compacted: u64) -> bool {
        let wanted = |(revision, key): &&(u64, u8)| {
            *revision >= self.next && self.key.is_none_or(|wanted| wanted == *key)
        };
        let expected: Vec<(u64, String)> = model
            .iter()
            .filter(wanted)
            .map(|(revision, key)| (*revision, format!("k{key}={revision}")))
            .collect();
        match drain(&mut self.watcher).await {
            Ok(got) => {
                assert_eq!(got, expected);
                self.next = model.last().map_or(self.next, |(revision, _)| (revision + 1).max(self.next));
                true
            }
            Err(WatchEnd::Compacted { .. }) => {
                assert!(
                    self.next < compacted,
                    "told of compaction at {compacted}, but reads on from {}",
                    self.next
                );
                false
            }
            Err(other) => panic!("{other}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn every_watcher_gets_exactly_what_it_wants(steps in prop::collection::vec(step(), 1..80), ring in 1..12usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (world, hub) = World::new(ring);
            let (mut model, mut watching, mut compacted) = (Vec::<(u64, u8)>::new(), Vec::new(), 0);
            for step in steps {
                let newest = model.last().map_or(1, |(revision, _)| *revision);
                match step {
                    Step::Put(key) => {
                        world.put(&hub, &format!("k{key}"), &(newest + 1).to_string());
                        model.push((newest + 1, key));
                    }
                    Step::Watch { key, back } => {
                        let next = (newest + 1).saturating_sub(back).max(compacted).max(1);
                        let interest = key.map_or_else(all_keys, |key| one_key(&format!("k{key}")));
                        watching.push(Watching { watcher: hub.watch(interest, Revision(next)), key, next });
                    }
                    Step::Read(place) if place < watching.len() => {
                        if !watching[place].check(&model, compacted).await {
                            drop(watching.remove(place));
                        }
                    }
                    Step::Read(_) => {}
                    Step::Compact { keep } => {
                        let bound = newest.saturating_sub(keep);
                        if bound > compacted && bound > 0 {
                            world.compact(&hub, bound);
                            compacted = bound;
                        }
                    }
                }
            }
            for mut watching in watching {
                watching.check(&model, compacted).await;
            }
        });
    }
}
