//! What goes over the connections: messages as frames, in the transport's own encoding, and cuts that hold them back.

use crate::schedule::{MS, S};
use crate::world::{Event, World};
use anyhow::Result;
use bytes::{Bytes, BytesMut};
use quoin_consensus::message::PeerMessage;
use quoin_consensus::{GROUP, frame};
use rand::Rng;
use std::collections::BTreeSet;

/// How long a connection is silent before it counts as dead: two election timeouts, or so.
const PATIENCE: std::ops::Range<u64> = 800 * MS..2 * S;

impl World {
    pub(crate) fn send(&mut self, place: usize, to: u64, message: &PeerMessage) {
        let faults = self.faults.network;
        let mut frame = frame::encode(GROUP, message);
        if self.stormy && self.rng.random_bool(faults.lost) {
            return;
        }
        if self.stormy && self.rng.random_bool(faults.corrupted) {
            let mut bytes = BytesMut::from(&frame[..]);
            let place = self.rng.random_range(0..bytes.len());
            bytes[place] ^= 1 << self.rng.random_range(0..8);
            frame = bytes.freeze();
        }
        // A forward that came twice would be two: connections do not do that.
        let doubled = matches!(message, PeerMessage::Raft(_)) && self.rng.random_bool(faults.doubled);
        if self.stormy && doubled {
            self.transmit(place, to, frame.clone());
        }
        self.transmit(place, to, frame);
    }

    fn transmit(&mut self, place: usize, to: u64, frame: Bytes) {
        let from = self.nodes[place].id();
        let faults = self.faults.network;
        let Some(other) = self.place_of(to) else { return };
        let late = self.stormy && self.rng.random_bool(faults.late);
        let takes = 20 + if late { self.up_to(faults.late_us_max) } else { self.up_to(faults.usual_us_max) };
        let patience = self.rng.random_range(PATIENCE);
        let (now, cut) = (self.schedule.now(), self.network.is_cut(place, other));
        let reorders = self.stormy && faults.reorders;
        let Some(link) = self.network.links.get_mut(&(from, to)).filter(|link| link.connected) else {
            return;
        };
        if cut || !link.held.is_empty() {
            link.held.push(frame);
            return self.found_broken(from, to, patience);
        }
        let arrives = if reorders { now + takes } else { link.last.max(now + takes) };
        link.last = arrives;
        let epoch = link.epoch;
        self.schedule.at(arrives, Event::Frame { from, to, epoch, frame });
    }

    pub(crate) fn frame_arrives(&mut self, from: u64, to: u64, epoch: u64, frame: Bytes) -> Result<()> {
        let Some(place) = self.place_of(to) else { return Ok(()) };
        let meant = Some(self.process_at(place));
        match self.network.links.get(&(from, to)) {
            Some(link) if link.epoch == epoch && link.other == meant => {}
            // Another process is there now: it knows of no such connection, and says so.
            Some(link) if link.epoch == epoch && self.nodes[place].process.is_some() => {
                self.found_broken(from, to, MS);
                return Ok(());
            }
            _ => return Ok(()),
        }
        let node = &self.nodes[place];
        if node.paused_until > self.schedule.now() {
            self.schedule.at(node.paused_until, Event::Frame { from, to, epoch, frame });
            return Ok(());
        }
        let Some(process) = &node.process else { return Ok(()) };
        node.set_clocks(self.schedule.now());
        match frame::decode(&frame) {
            Ok((_, message)) => process.stepped.receive(from, message),
            // Whoever hears what no peer says closes the connection.
            Err(_) => self.found_broken(from, to, MS),
        }
        self.follow_up(place)
    }

    /// Cuts a machine off from others, in one direction or both, for a while.
    pub(crate) fn cut(&mut self, place: usize) {
        let (out, back) =
            [(true, true), (true, true), (true, false), (false, true)][self.rng.random_range(0..4)];
        let mut cut = BTreeSet::new();
        let all = self.rng.random_bool(0.6);
        for other in (0..self.nodes.len()).filter(|other| *other != place) {
            if all || self.rng.random_bool(0.5) {
                cut.extend(out.then_some((place, other)));
                cut.extend(back.then_some((other, place)));
            }
        }
        let lasts = if self.rng.random_bool(0.5) { self.up_to(S) } else { self.up_to(8 * S) };
        self.cut_for(cut, lasts);
    }

    /// Nothing goes in these directions for so many microseconds.
    pub(crate) fn cut_for(&mut self, cut: BTreeSet<(usize, usize)>, lasts: u64) {
        self.counts.partitions += 1;
        self.network.next += 1;
        let number = self.network.next;
        self.network.cuts.insert(number, cut);
        self.schedule.after(lasts, Event::Heal(number));
    }

    pub(crate) fn heal_cut(&mut self, number: u64) -> Result<()> {
        self.network.cuts.remove(&number);
        let pairs: Vec<(u64, u64)> = self.network.links.keys().copied().collect();
        for (from, to) in pairs {
            let (Some(place), Some(other)) = (self.place_of(from), self.place_of(to)) else { continue };
            if self.network.is_cut(place, other) {
                continue;
            }
            let Some(link) = self.network.links.get_mut(&(from, to)) else { continue };
            if link.held.is_empty() {
                continue;
            }
            // Whether the other process is still there shows when something arrives.
            link.breaking = false;
            let held = std::mem::take(&mut link.held);
            // The sender tries again after a while that grew with its failures.
            link.last = self.schedule.now() + self.rng.random_range(0..400 * MS);
            held.into_iter().for_each(|frame| self.transmit(place, to, frame));
        }
        Ok(())
    }

    pub(crate) fn heal_all(&mut self) -> Result<()> {
        for number in self.network.cuts.keys().copied().collect::<Vec<_>>() {
            self.heal_cut(number)?;
        }
        Ok(())
    }
}
