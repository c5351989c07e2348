//! Watchers: each sees every change of its keys once, in order, on whatever replica it goes on.

use crate::clients::{Known, Outcome};
use crate::record::number;
use crate::schedule::{MS, S};
use crate::world::{Event, World};
use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use quoin_core::kv::{change_to_key_value, watch_bounds};
use quoin_core::{Event as Changes, Revision};
use quoin_engine::watch::{Interest, WatchEnd, Watcher};
use rand::Rng;
use std::sync::Arc;

const WATCHERS: usize = 3;

/// What a watcher was told.
pub(crate) struct Watched {
    watcher: Watcher,
    outcome: Result<Vec<Arc<Changes>>, WatchEnd>,
}

/// All watchers.
#[derive(Default)]
pub(crate) struct Watches(Vec<Watch>);

struct Watch {
    prefix: Vec<u8>,
    /// Everything up to this revision was seen.
    seen: u64,
    /// The replica and the task that it waits in.
    task: Option<u64>,
}

impl World {
    pub(crate) fn begin_watches(&mut self) {
        for number in 0..WATCHERS {
            let prefix = if number == 0 { b"key ".to_vec() } else { format!("key {number}").into_bytes() };
            self.watches.0.push(Watch { prefix, seen: 1, task: None });
            self.schedule.after(S, Event::MoveWatcher { number, again: true });
        }
    }

    /// A watcher goes on at another replica.
    pub(crate) fn move_watcher(&mut self, number: usize, again: bool) -> Result<()> {
        if again && self.stormy {
            let wait = 100 * MS + self.up_to(4 * S);
            self.schedule.after(wait, Event::MoveWatcher { number, again });
        }
        if let Some(task) = self.watches.0[number].task.take() {
            self.tasks.give_up(task);
        }
        let serves = |place: &usize| {
            self.nodes[*place].process.as_ref().is_some_and(|process| process.stepped.has_replayed())
        };
        let serving: Vec<usize> = (0..self.nodes.len()).filter(serves).collect();
        if serving.is_empty() {
            self.schedule.after(100 * MS, Event::MoveWatcher { number, again: false });
            return Ok(());
        }
        let place = serving[self.rng.random_range(0..serving.len())];
        let engine = self.process(place).stepped.engine();
        let watch = &self.watches.0[number];
        let (from, to) = watch_bounds(&watch.prefix, &prefix_end(&watch.prefix));
        let interest = Interest::range(from, to.unwrap_or_default());
        let watcher = engine.hub().watch(interest, Revision(watch.seen + 1));
        self.wait(place, number, watcher);
        Ok(())
    }

    fn wait(&mut self, place: usize, number: usize, mut watcher: Watcher) {
        let at = self.process_at(place);
        let task = self.tasks.add(Known::Watch { at, number }, async move {
            let outcome = watcher.next().await;
            Outcome::Watch(Box::new(Watched { watcher, outcome }))
        });
        self.watches.0[number].task = Some(task);
    }

    pub(crate) fn watched(&mut self, place: usize, number: usize, watched: Watched) -> Result<()> {
        let Watched { watcher, outcome } = watched;
        let events = match outcome {
            Ok(events) => events,
            // Whoever was away for too long reads the state instead, and goes on from there.
            Err(WatchEnd::Compacted { compacted }) => {
                let watch = &mut self.watches.0[number];
                let refused = watch.seen + 1;
                ensure!(
                    refused < compacted.0,
                    "watcher {number} is refused revision {refused} of {compacted}"
                );
                (watch.seen, watch.task) = (compacted.0 - 1, None);
                self.schedule.after(MS, Event::MoveWatcher { number, again: false });
                return Ok(());
            }
            Err(WatchEnd::Stopped) => {
                self.watches.0[number].task = None;
                self.schedule.after(100 * MS, Event::MoveWatcher { number, again: false });
                return Ok(());
            }
            Err(error) => bail!("watcher {number}: {error}"),
        };
        self.counts.watched += events.len() as u64;
        self.check_changes(number, &events)?;
        let position = watcher.position().0;
        let watch = &mut self.watches.0[number];
        let missed = self.record.lock().changes_after(watch.seen, |key| key.starts_with(&watch.prefix));
        let missed = missed.first().map_or(u64::MAX, |(revision, ..)| *revision);
        ensure!(
            position < missed,
            "watcher {number} is told that it has everything up to {position}, and misses {missed}"
        );
        ensure!(position >= watch.seen, "watcher {number} goes back from {} to {position}", watch.seen);
        self.wait(place, number, watcher);
        Ok(())
    }

    /// Compares what a watcher was told with what has happened.
    fn check_changes(&mut self, number: usize, events: &[Arc<Changes>]) -> Result<()> {
        let watch = &mut self.watches.0[number];
        let mut told = Vec::new();
        for event in events {
            for change in &event.changes {
                let Some(kv) = change_to_key_value(change, event.revision)? else { continue };
                let value = change.value.as_ref().and_then(|_| self::number(&kv.value));
                told.push((event.revision.0, kv.key.to_vec(), value));
            }
        }
        told.sort();
        let Some(last) = told.last().map(|(revision, ..)| *revision) else { return Ok(()) };
        let record = self.record.lock();
        let mut happened = record.changes_after(watch.seen, |key| key.starts_with(&watch.prefix));
        happened.retain(|(revision, ..)| *revision <= last);
        ensure!(
            told == happened,
            "watcher {number} of {:?} was told {told:?} after revision {}; what happened is {happened:?}",
            String::from_utf8_lossy(&watch.prefix),
            watch.seen
        );
        watch.seen = last;
        Ok(())
    }

    /// Whether all watchers have seen everything.
    pub(crate) fn watchers_are_done(&self) -> bool {
        let record = self.record.lock();
        self.watches.0.iter().all(|watch| {
            watch.task.is_some()
                && record.changes_after(watch.seen, |key| key.starts_with(&watch.prefix)).is_empty()
        })
    }
}

fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}
