//! Watchers: each sees every change of its keys once, in order, on whatever replica it goes on.

use crate::clients::{Known, Outcome};
use crate::record::hash;
use crate::routes;
use crate::schedule::{MS, S};
use crate::world::{At, Event, World};
use anyhow::{Result, bail, ensure};
use quoin_core::kv::watch_bounds;
use quoin_core::{Event as Changes, Face, Revision};
use quoin_engine::watch::{Interest, WatchEnd, Watcher};
use rand::Rng;
use std::sync::Arc;

/// What a watcher was told.
pub(crate) struct Watched {
    watcher: Watcher,
    outcome: Result<Vec<Arc<Changes>>, WatchEnd>,
}

/// All watchers.
pub(crate) struct Watches {
    all: Vec<Watch>,
    /// Odds that a watcher is busy for a while with what it was told.
    slow: f64,
}

struct Watch {
    interest: Interest,
    /// Everything up to this revision was seen.
    seen: u64,
    /// The task that it waits in.
    task: Option<u64>,
    /// Where it was told something that it is busy with.
    busy: Option<(At, Watcher)>,
    /// Counts the times it was busy, or has moved.
    visit: u64,
}

impl Watches {
    pub(crate) fn draw(rng: &mut impl Rng) -> Self {
        Self { all: Vec::new(), slow: if rng.random_bool(0.7) { rng.random_range(0.0..0.5) } else { 0.0 } }
    }
}

impl World {
    pub(crate) fn begin_watches(&mut self) {
        let group = |number| Interest::prefix(routes::group_prefix(number).into());
        let tables = vec![Face::Table as u8].into();
        let interests =
            [keys(b"key "), keys(b"key 1"), keys(b"txn "), group(0), group(1).and(Interest::prefix(tables))];
        for (number, interest) in interests.into_iter().enumerate() {
            self.watches.all.push(Watch { interest, seen: 1, task: None, busy: None, visit: 0 });
            self.schedule.after(S, Event::MoveWatcher { number, again: true });
        }
    }

    /// A watcher goes on at another replica.
    pub(crate) fn move_watcher(&mut self, number: usize, again: bool) -> Result<()> {
        if again && self.stormy {
            let wait = 100 * MS + self.up_to(4 * S);
            self.schedule.after(wait, Event::MoveWatcher { number, again });
        }
        let watch = &mut self.watches.all[number];
        (watch.busy, watch.visit) = (None, watch.visit + 1);
        if let Some(task) = watch.task.take() {
            self.tasks.give_up(task);
        }
        let Some(place) = self.serving() else {
            self.schedule.after(100 * MS, Event::MoveWatcher { number, again: false });
            return Ok(());
        };
        let engine = self.process(place).stepped.engine();
        let watch = &self.watches.all[number];
        let watcher = engine.hub().watch(watch.interest.clone(), Revision(watch.seen + 1));
        self.wait(place, number, watcher);
        Ok(())
    }

    fn wait(&mut self, place: usize, number: usize, mut watcher: Watcher) {
        let at = self.process_at(place);
        let task = self.tasks.add(Known::Watch { at, number }, async move {
            let outcome = watcher.next().await;
            Outcome::Watch(Box::new(Watched { watcher, outcome }))
        });
        self.watches.all[number].task = Some(task);
    }

    pub(crate) fn watched(&mut self, place: usize, number: usize, watched: Watched) -> Result<()> {
        let Watched { watcher, outcome } = watched;
        let events = match outcome {
            Ok(events) => events,
            // Whoever was away for too long reads the state instead, and goes on from there.
            Err(WatchEnd::Compacted { compacted }) => {
                let watch = &mut self.watches.all[number];
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
                self.watches.all[number].task = None;
                self.schedule.after(100 * MS, Event::MoveWatcher { number, again: false });
                return Ok(());
            }
            Err(error) => bail!("watcher {number}: {error}"),
        };
        self.counts.watched += events.len() as u64;
        self.check_changes(number, &events)?;
        self.check_position(number, &watcher)?;
        if !self.stormy || !self.rng.random_bool(self.watches.slow) {
            self.wait(place, number, watcher);
            return Ok(());
        }
        let (at, lasts) = (self.process_at(place), self.up_to(S));
        let watch = &mut self.watches.all[number];
        (watch.task, watch.busy, watch.visit) = (None, Some((at, watcher)), watch.visit + 1);
        self.schedule.after(lasts, Event::ReadOn { number, visit: watch.visit });
        Ok(())
    }

    /// A watcher that was busy asks how far it is, and for more.
    pub(crate) fn read_on(&mut self, number: usize, visit: u64) -> Result<()> {
        let watch = &mut self.watches.all[number];
        let Some((at, watcher)) = watch.busy.take_if(|_| watch.visit == visit) else { return Ok(()) };
        self.check_position(number, &watcher)?;
        self.wait(at.place, number, watcher);
        Ok(())
    }

    /// The process of a machine has ended, and those that were busy with what it said will notice.
    pub(crate) fn lose_watchers(&mut self, place: usize) {
        for (number, watch) in self.watches.all.iter_mut().enumerate() {
            if watch.busy.take_if(|(at, _)| at.place == place).is_some() {
                self.schedule.after(100 * MS, Event::MoveWatcher { number, again: false });
            }
        }
    }

    /// What a watcher is told of how far it is, which etcd's clients may ask for at any time.
    fn check_position(&self, number: usize, watcher: &Watcher) -> Result<()> {
        let position = watcher.position().0;
        let watch = &self.watches.all[number];
        let missed = self.record.lock().changes_after(watch.seen, |key| watch.interest.contains(key));
        let missed = missed.first().map_or(u64::MAX, |(revision, ..)| *revision);
        ensure!(
            position < missed,
            "watcher {number} is told that it has everything up to {position}, and misses {missed}"
        );
        ensure!(position >= watch.seen, "watcher {number} goes back from {} to {position}", watch.seen);
        Ok(())
    }

    /// Compares what a watcher was told with what has happened.
    fn check_changes(&mut self, number: usize, events: &[Arc<Changes>]) -> Result<()> {
        let watch = &mut self.watches.all[number];
        let mut told = Vec::new();
        for event in events {
            for change in &event.changes {
                let shown = change.value.as_ref().map(|value| hash(0, value));
                told.push((event.revision.0, change.key.clone(), shown));
            }
        }
        told.sort();
        let Some(last) = told.last().map(|(revision, ..)| *revision) else { return Ok(()) };
        let record = self.record.lock();
        let mut happened = record.changes_after(watch.seen, |key| watch.interest.contains(key));
        happened.retain(|(revision, ..)| *revision <= last);
        ensure!(
            told == happened,
            "watcher {number} of {:?} was told {told:?} after revision {}; what happened is {happened:?}",
            watch.interest,
            watch.seen
        );
        watch.seen = last;
        Ok(())
    }

    /// Whether all watchers have seen everything.
    pub(crate) fn watchers_are_done(&self) -> bool {
        let record = self.record.lock();
        self.watches.all.iter().all(|watch| {
            watch.task.is_some()
                && record.changes_after(watch.seen, |key| watch.interest.contains(key)).is_empty()
        })
    }
}

/// Keys with a prefix.
fn keys(prefix: &[u8]) -> Interest {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    let (from, to) = watch_bounds(prefix, &end);
    Interest::range(from, to.unwrap_or_default())
}
