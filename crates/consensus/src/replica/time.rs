//! The cluster's time, of which stamps are made.
//!
//! **Invariant: Steady time.** Time is the newest time that is known, plus the monotonic time that has
//! passed since. It follows the wall clocks of a majority of the voters, by at most one part in
//! [`SLEW_PARTS`] of the time that passes. So no wall clock makes it jump while a replica that knows it
//! leads, and a minority of wrong clocks does not move it at all.
//!
//! The leader tells its time with every heartbeat, and a follower goes on from there when it is elected. A
//! replica that leads without having heard the time since it started (all of them were stopped) goes on from
//! the newest stamp in its log, or from the clocks of a majority if those are ahead: only then does time jump,
//! and only forwards.
//!
//! Time and clocks travel in fields that the library does not use in these messages: the `index` of a
//! heartbeat has the leader's time, the `index` of its answer, and the `log_term` of an answer to an append,
//! the sender's wall clock. 0 is unknown.
//!
//! All numbers are milliseconds; an offset is what must be added to the monotonic clock.

use crate::mutants;
use quoin_core::Stamp;
use raft::eraftpb::{Message, MessageType};
use std::collections::BTreeMap;

/// Time runs at most one part in this many faster or slower than the monotonic clock: 50 ms a second. A
/// client that renews its lease at half of its time to live does not notice, and an hour is made good within
/// a day.
const SLEW_PARTS: u64 = 20;

#[derive(Debug, Default)]
pub(super) struct Time {
    /// The monotonic clock, as the driver last told.
    now_ms: u64,
    offset: i64,
    /// Whether `offset` comes from a leader, or from leading, since this process started.
    known: bool,
    /// The newest stamp in the log.
    newest: Stamp,
    /// This machine's wall clock, as the driver last told.
    wall_offset: Option<i64>,
    /// The monotonic time up to which corrections were made.
    corrected_ms: u64,
    /// Wall clocks of other members: offset, and the tick at which it was told.
    walls: BTreeMap<u64, (i64, u64)>,
}

impl Time {
    /// The monotonic clock shows `now_ms`.
    pub(super) fn pass(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// The time; never before a stamp of the log.
    pub(super) fn now(&self) -> Stamp {
        let by_wall = self.wall_offset.filter(|_| mutants::is("stamp-by-wall"));
        let offset = by_wall.unwrap_or(self.offset);
        Stamp(u64::try_from(self.at(offset)).unwrap_or(0)).max(self.newest)
    }

    /// See [`super::Replica::time_offset_ms`].
    pub(super) fn offset(&self) -> i64 {
        self.offset
    }

    /// See [`super::Replica::wall_ahead_ms`].
    pub(super) fn wall_ahead(&self) -> Option<i64> {
        self.wall_offset.filter(|_| self.known).map(|wall| wall.saturating_sub(self.offset))
    }

    fn at(&self, offset: i64) -> i64 {
        signed(self.now_ms).saturating_add(offset)
    }

    fn offset_of(&self, shown: u64) -> i64 {
        signed(shown).saturating_sub(signed(self.now_ms))
    }

    /// The log has an entry with this stamp.
    pub(super) fn know(&mut self, stamp: Stamp) {
        if stamp > self.now() {
            self.offset = self.offset_of(stamp.0);
        }
        self.newest = self.newest.max(stamp);
    }

    /// This machine's wall clock shows `wall`.
    pub(super) fn set_wall(&mut self, wall: Stamp) {
        self.wall_offset = Some(self.offset_of(wall.0));
    }

    /// A tick has passed: what was told more than `patience` ticks ago is forgotten.
    pub(super) fn tick(&mut self, tick: u64, patience: u64) {
        self.walls.retain(|_, (_, told)| tick - *told <= patience);
    }

    /// This replica follows: it corrects nothing.
    pub(super) fn follow(&mut self) {
        self.corrected_ms = self.now_ms;
    }

    /// This replica, `id`, leads: draws the time nearer to the clocks of a majority of `voters`.
    pub(super) fn correct(&mut self, id: u64, voters: &[u64]) {
        let Some(agreed) = self.agreed(id, voters).filter(|_| self.known) else { return self.follow() };
        let allowed = (self.now_ms - self.corrected_ms) / SLEW_PARTS;
        self.corrected_ms += allowed * SLEW_PARTS;
        let allowed = signed(allowed);
        self.offset += agreed.saturating_sub(self.offset).clamp(-allowed, allowed);
    }

    /// This replica, `id`, leads and wants to stamp a batch. False while it must wait: it does not know the
    /// time, nor the clocks of a majority of `voters`. They tell when they acknowledge the entry that opens
    /// the term, unless they cannot; `acknowledged` says that a majority has.
    pub(super) fn begin(&mut self, id: u64, voters: &[u64], acknowledged: bool) -> bool {
        if self.known {
            return true;
        }
        let agreed = self.agreed(id, voters);
        let own = acknowledged.then(|| self.wall_offset.unwrap_or(self.offset));
        let Some(agreed) = agreed.or(own) else { return false };
        self.known = true;
        let ahead_ms = agreed.saturating_sub(self.offset);
        if ahead_ms > 0 {
            self.offset = agreed;
            if self.newest > Stamp(0) {
                tracing::info!(
                    ahead_ms,
                    "nobody knows the time since all replicas were stopped: it goes on from the clocks of a majority"
                );
            }
        }
        true
    }

    /// The latest moment that the clocks of a majority of `voters` have reached, as an offset; `None` where
    /// fewer are known.
    fn agreed(&self, id: u64, voters: &[u64]) -> Option<i64> {
        let told = |voter: &u64| match *voter == id {
            true => self.wall_offset,
            false => self.walls.get(voter).map(|(offset, _)| *offset),
        };
        let mut offsets: Vec<i64> = voters.iter().filter_map(told).collect();
        offsets.sort_unstable_by(|a, b| b.cmp(a));
        offsets.get(voters.len() / 2).copied()
    }

    /// Writes what this replica knows of time into a message to a peer.
    pub(super) fn write(&self, message: &mut Message) {
        let wall = || self.wall_offset.map_or(0, |offset| u64::try_from(self.at(offset)).unwrap_or(0));
        match message.get_msg_type() {
            MessageType::MsgHeartbeat if self.known => message.index = self.now().0,
            MessageType::MsgHeartbeatResponse => message.index = wall(),
            MessageType::MsgAppendResponse if !message.reject => message.log_term = wall(),
            _ => {}
        }
    }

    /// Takes what a peer's message says of time out of it.
    pub(super) fn take(message: &mut Message) -> Told {
        let number = match message.get_msg_type() {
            MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse => &mut message.index,
            MessageType::MsgAppendResponse if !message.reject => &mut message.log_term,
            _ => return Told::Nothing,
        };
        match (std::mem::take(number), message.get_msg_type()) {
            (0, _) => Told::Nothing,
            (time, MessageType::MsgHeartbeat) => Told::Time(Stamp(time)),
            (wall, MessageType::MsgHeartbeatResponse) => Told::Clock(wall),
            (wall, _) => Told::LateClock(wall),
        }
    }

    /// Takes in what `from` told, at `tick`.
    pub(super) fn hear(&mut self, from: u64, told: Told, tick: u64) {
        match told {
            Told::Nothing => {}
            Told::Time(time) => {
                self.offset = self.offset_of(time.0);
                self.known = true;
            }
            Told::Clock(wall) => {
                self.walls.insert(from, (self.offset_of(wall), tick));
            }
            // Written before a sync, so it is late by that. For a beginning it will do.
            Told::LateClock(wall) if !self.known => {
                self.walls.insert(from, (self.offset_of(wall), tick));
            }
            Told::LateClock(_) => {}
        }
    }
}

/// What a message says of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    /// The leader's time.
    Time(Stamp),
    /// The sender's wall clock.
    Clock(u64),
    /// The sender's wall clock a while ago.
    LateClock(u64),
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    /// A leader that knows the time: 1,000,000 at monotonic 0.
    fn leader() -> Time {
        let mut time = Time::default();
        time.set_wall(Stamp(1_000_000));
        assert!(time.begin(1, &[1], false));
        time
    }

    /// Lets `seconds` pass, with a wall clock that is `ahead_ms` ahead.
    fn lead(time: &mut Time, voters: &[u64], seconds: u64, ahead_ms: i64) {
        for _ in 0..seconds * 20 {
            let now_ms = time.now_ms + 50;
            time.pass(now_ms);
            time.set_wall(Stamp((1_000_000 + now_ms).saturating_add_signed(ahead_ms)));
            time.correct(1, voters);
        }
    }

    #[test]
    fn a_jump_of_the_wall_clock_changes_the_speed_of_time_by_a_twentieth_at_most() {
        for (jump, expected) in [(HOUR as i64, 1_010_500), (-(HOUR as i64), 1_009_500), (i64::MAX, 1_010_500)]
        {
            let mut time = leader();
            lead(&mut time, &[1], 10, jump);
            assert_eq!(time.now(), Stamp(expected), "{jump}");
        }
        let mut time = leader();
        lead(&mut time, &[1], 60, 1000);
        assert_eq!(time.now(), Stamp(1_000_000 + 60_000 + 1000), "a second is made good in a minute");
        assert_eq!(time.wall_ahead(), Some(0));
    }

    #[test]
    fn time_does_not_run_backwards() {
        let mut time = leader();
        time.know(Stamp(1_000_100));
        assert_eq!(time.now(), Stamp(1_000_100));
        time.hear(2, Told::Time(Stamp(1_000_050)), 0);
        assert_eq!(time.now(), Stamp(1_000_100), "a late heartbeat");
        time.pass(60);
        assert_eq!(time.now(), Stamp(1_000_110));
    }

    #[test]
    fn a_minority_of_wrong_clocks_does_not_move_time() {
        let voters = [1, 2, 3];
        for (own, other) in [(HOUR as i64, 0), (0, HOUR as i64), (-(HOUR as i64), 0), (0, -(HOUR as i64))] {
            let mut time = leader();
            time.hear(2, Told::Clock(1_000_000u64.saturating_add_signed(other)), 0);
            time.hear(3, Told::Clock(1_000_000), 0);
            lead(&mut time, &voters, 60, own);
            assert_eq!(time.now(), Stamp(1_060_000), "{own} {other}");
        }
        let mut alone = leader();
        lead(&mut alone, &voters, 60, HOUR as i64);
        assert_eq!(alone.now(), Stamp(1_060_000), "one clock of three is no majority");
    }

    #[test]
    fn who_has_not_heard_the_time_begins_at_the_clocks_of_a_majority() {
        let voters = [1, 2, 3];
        let cold = |wall| {
            let mut time = Time::default();
            time.know(Stamp(500_000));
            time.set_wall(Stamp(wall));
            time
        };
        let mut ahead = cold(1_000_000 + HOUR);
        assert!(!ahead.begin(1, &voters, false), "one clock is no majority");
        assert_eq!(ahead.now(), Stamp(500_000));
        ahead.hear(3, Told::LateClock(1_000_000), 0);
        assert!(ahead.begin(1, &voters, false));
        assert_eq!(ahead.now(), Stamp(1_000_000));
        ahead.hear(2, Told::LateClock(2_000_000), 0);
        assert!(ahead.begin(1, &voters, false));
        assert_eq!(ahead.now(), Stamp(1_000_000), "it begins once");
        let mut behind = cold(0);
        behind.hear(2, Told::Clock(400_000), 0);
        assert!(behind.begin(1, &voters, false));
        assert_eq!(behind.now(), Stamp(500_000), "never before the newest stamp");
        let mut silent = cold(700_000);
        assert!(silent.begin(1, &voters, true));
        assert_eq!(silent.now(), Stamp(700_000), "peers that cannot tell");
    }

    #[test]
    fn time_and_clocks_travel_in_spare_fields() {
        let message = |kind| {
            let mut message = Message::default();
            message.set_msg_type(kind);
            message
        };
        let mut time = leader();
        time.set_wall(Stamp(5));
        let told = |kind, reject| {
            let mut message = message(kind);
            message.reject = reject;
            time.write(&mut message);
            let told = Time::take(&mut message);
            assert_eq!((message.index, message.log_term), (0, 0), "the library sees nothing of it");
            told
        };
        assert_eq!(told(MessageType::MsgHeartbeat, false), Told::Time(Stamp(1_000_000)));
        assert_eq!(told(MessageType::MsgHeartbeatResponse, false), Told::Clock(5));
        assert_eq!(told(MessageType::MsgAppendResponse, false), Told::LateClock(5));
        assert_eq!(told(MessageType::MsgAppendResponse, true), Told::Nothing);
        assert_eq!(told(MessageType::MsgAppend, false), Told::Nothing);
        let mut unknown = message(MessageType::MsgHeartbeat);
        Time::default().write(&mut unknown);
        assert_eq!(Time::take(&mut unknown), Told::Nothing);
    }
}
