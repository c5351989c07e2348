//! Faults as they happen.

use crate::clients::{Known, Outcome};
use crate::faults::{Fault, LATE_MAX};
use crate::node::FIRST_MS;
use crate::schedule::{MS, S};
use crate::world::{Event, World};
use anyhow::Result;
use quoin_core::{Face, system};
use rand::Rng;

const HOUR_MS: i64 = 3_600_000;
/// How much a clock may run too fast or too slow, in parts of a million: far more than machines' do.
pub(crate) const DRIFT_PPM_MAX: i64 = 1000;
/// How long what a clock has shown may be heard: late messages, two election timeouts, and a while in which a process may
/// stand still.
const CLOCKS_RIGHT: u64 = LATE_MAX + 3 * S;
/// How far apart right clocks are, in milliseconds.
pub(crate) const CLOCK_SKEW_MS: i64 = 50;

impl World {
    pub(crate) fn schedule_fault(&mut self, fault: Fault) {
        let wait = self.faults.wait(fault, &mut self.rng);
        self.schedule.after(wait, Event::Fault(fault));
    }

    pub(crate) fn fault(&mut self, fault: Fault) -> Result<()> {
        if !self.stormy {
            return Ok(());
        }
        self.schedule_fault(fault);
        let place = self.rng.random_range(0..self.nodes.len());
        match fault {
            Fault::Kill => self.kill(place, false),
            Fault::PowerOff => self.kill(place, true),
            Fault::Pause => {
                let lasts = if self.rng.random_bool(0.7) { self.up_to(300 * MS) } else { self.up_to(5 * S) };
                self.nodes[place].paused_until = self.schedule.now() + lasts;
            }
            Fault::Cut => self.cut(place),
            Fault::Break => self.break_one(),
            Fault::DiskHangs => {
                let lasts = self.up_to(5 * S);
                self.nodes[place].hangs_until = self.schedule.now() + lasts;
            }
            Fault::SyncFails => {
                self.nodes[place].disk.fail_next_sync();
                self.nodes[place].sync_failed = true;
            }
            Fault::DiskFills => {
                let (room, lasts) = (self.up_to(20_000), self.up_to(5 * S));
                self.nodes[place].disk.set_room(room);
                self.nodes[place].full = true;
                self.space_was_short = true;
                self.schedule.after(lasts, Event::Room(place));
            }
            Fault::ClockJumps => self.move_clock(place),
            Fault::Flush => self.tend_store(place, |store| store.flush())?,
            Fault::Merge => self.tend_store(place, |store| {
                store.work_background();
                Ok(())
            })?,
            Fault::HandOver => self.hand_over()?,
            Fault::Strand => self.strand(),
            Fault::Bounce => self.bounce(),
            Fault::Compact => self.compact(place),
            Fault::Rot => self.rot(place),
            Fault::Resize => self.resize(),
            Fault::Wipe => self.lose_disk(place)?,
        }
        self.follow_up(place)
    }

    /// Ends a process between two steps, or in the middle of a write: then its sync does not return.
    pub(crate) fn kill(&mut self, place: usize, power: bool) {
        let node = &mut self.nodes[place];
        let Some(process) = &mut node.process else { return };
        self.counts.crashes += 1;
        if process.stepped.is_writing() && self.rng.random_bool(0.5) {
            node.disk.fail_next_sync();
            // What comes of it nobody hears.
            let _ = process.stepped.write();
            node.disk.spare_next_sync();
        }
        // A dead machine does not say that it is.
        self.end(place, if power { 2 * S } else { 50 * MS });
        if power {
            let seed = self.rng.random();
            self.nodes[place].disk.crash(seed);
        }
        let after = if self.rng.random_bool(0.7) { self.up_to(S) } else { self.up_to(10 * S) };
        self.schedule.after(after, Event::Start(place));
    }

    fn leads(&self, place: usize) -> bool {
        self.nodes[place].process.as_ref().is_some_and(|process| process.stepped.engine().raft().is_leader)
    }

    /// The leader's disk hangs while a follower forwards to it, dies, is back at once, and forwards again.
    fn bounce(&mut self) {
        let Some(leader) = (0..self.nodes.len()).find(|place| self.leads(*place)) else { return };
        let place = self.rng.random_range(0..self.nodes.len());
        if place == leader || self.nodes[place].process.is_none() {
            return;
        }
        let lasts = 500 * MS + self.up_to(S);
        self.nodes[leader].hangs_until = self.schedule.now() + lasts;
        let (dies, at) = (20 * MS + self.up_to(200 * MS), self.process_at(place));
        self.schedule.after(0, Event::Forward { place, left: 10 });
        self.schedule.after(dies, Event::Die(at));
        self.schedule.after(dies + 10 * MS, Event::Start(place));
        self.schedule.after(dies + 20 * MS, Event::Forward { place, left: 60 });
    }

    /// A client writes through whatever process runs there, and then again.
    pub(crate) fn forward(&mut self, place: usize, left: u64) -> Result<()> {
        if left > 1 && self.stormy {
            let after = self.up_to(20 * MS);
            self.schedule.after(after, Event::Forward { place, left: left - 1 });
        }
        let serves =
            |process: &crate::node::Process| process.stepped.has_replayed() && process.stepped.is_settled();
        if self.nodes[place].process.as_ref().is_some_and(serves) {
            self.transfer(place)?;
            return self.follow_up(place);
        }
        Ok(())
    }

    /// Cuts the leader off while many clients write through it: its log ends with entries that are never committed.
    fn strand(&mut self) {
        let leader = (0..self.nodes.len()).find(|place| self.leads(*place));
        let Some(place) = leader.filter(|_| self.nodes.len() > 2) else { return };
        let others = (0..self.nodes.len()).filter(|other| *other != place);
        let cut = others.flat_map(|other| [(place, other), (other, place)]).collect();
        let lasts = 2 * S + self.up_to(3 * S);
        self.cut_for(cut, lasts);
        // The others purge what they can until it is back: it needs a snapshot, which its log may reach beyond.
        let early = self.up_to(S);
        self.schedule.after(lasts - S - early, Event::FlushAll);
        // Its log may end further than theirs.
        if self.rng.random_bool(0.5) {
            self.clients.quiet_until = self.schedule.now() + lasts;
        }
        let (at, left) = (self.process_at(place), self.rng.random_range(20..400));
        self.schedule.after(0, Event::Burst { at, left });
    }

    /// A bit of a member's log rots where it lies, so that a majority is left. Its process reads it when it starts again.
    fn rot(&mut self, place: usize) {
        if self.is_dispensable(place) && self.nodes[place].rot(&mut self.rng) {
            self.counts.bits_rotted += 1;
            self.kill(place, false);
        }
    }

    /// Makes a wall clock wrong, or a wrong one right. A minority is wrong, also as far as messages on their way say: what
    /// a clock has shown is heard for a while, so all are right for longer than that before another one is wrong.
    fn move_clock(&mut self, place: usize) {
        for node in &mut self.nodes {
            node.clock_ahead_ms = self.rng.random_range(0..CLOCK_SKEW_MS);
        }
        let now = self.schedule.now();
        let place = match self.wrong_clock.take() {
            Some(wrong) if self.rng.random_bool(0.5) => wrong,
            Some(_) => return self.clocks_right_since = now,
            None if now < self.clocks_right_since + CLOCKS_RIGHT => return,
            None => place,
        };
        let furthest = if self.rng.random_bool(0.5) { HOUR_MS } else { (FIRST_MS / 2) as i64 };
        if self.nodes.len() > 2 {
            self.nodes[place].clock_ahead_ms = self.rng.random_range(-furthest..furthest);
            self.wrong_clock = Some(place);
            self.counts.clocks_moved += 1;
        }
    }

    /// All stores write their memtables out: then logs need not be kept for them.
    pub(crate) fn flush_all(&mut self) -> Result<()> {
        (0..self.nodes.len()).try_for_each(|place| {
            self.tend_store(place, |store| store.flush())?;
            self.follow_up(place)
        })
    }

    fn tend_store(
        &mut self,
        place: usize,
        tend: impl FnOnce(&quoin_store::LsmStore) -> Result<(), quoin_core::StoreError>,
    ) -> Result<()> {
        let Some(process) = &self.nodes[place].process else { return Ok(()) };
        Ok(tend(process.stepped.engine().latest().store())?)
    }

    fn hand_over(&mut self) -> Result<()> {
        let to = self.nodes[self.rng.random_range(0..self.nodes.len())].id();
        for node in &self.nodes {
            if let Some(process) = &node.process {
                process.stepped.transfer(to);
            }
        }
        (0..self.nodes.len()).try_for_each(|place| self.follow_up(place))
    }

    fn compact(&mut self, place: usize) {
        let at = self.process_at(place);
        let Some(process) = &self.nodes[place].process else { return };
        let engine = process.stepped.engine();
        let newest = engine.latest().progress().revision.0;
        let keep = self.rng.random_range(1..60);
        let command = system::Operation::Compact(newest.saturating_sub(keep)).into_command();
        self.tasks.add(Known::Other { at, face: Face::System }, async move {
            Outcome::Write(engine.propose(command).await)
        });
    }

    /// A disk has room again.
    pub(crate) fn room(&mut self, place: usize) -> Result<()> {
        self.nodes[place].disk.set_room(u64::MAX);
        self.nodes[place].full = false;
        Ok(())
    }
}
