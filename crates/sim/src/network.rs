//! Connections between members: one in each direction per pair, as the transport keeps them. Messages are frames,
//! with the transport's own encoding.

use crate::schedule::{MS, S};
use crate::world::{At, Event, World};
use anyhow::Result;
use bytes::{Bytes, BytesMut};
use quoin_consensus::greeting::{Purpose, Verdict};
use quoin_consensus::message::PeerMessage;
use quoin_consensus::{GROUP, frame};
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// How long a connection is silent before it counts as dead: two election timeouts, or so.
const PATIENCE: std::ops::Range<u64> = 800 * MS..2 * S;
const REDIAL: std::ops::Range<u64> = 100 * MS..500 * MS;

/// All connections, by who dialled and whom.
#[derive(Default)]
pub(crate) struct Network {
    links: BTreeMap<(u64, u64), Link>,
    /// By number: directions between machines that carry nothing.
    cuts: BTreeMap<u64, BTreeSet<(usize, usize)>>,
    next: u64,
}

/// The connection that a member keeps to another one.
#[derive(Default)]
struct Link {
    connected: bool,
    /// Counts connections: tells frames of one from those of another.
    epoch: u64,
    /// The process at the other end.
    other: Option<At>,
    /// When the last frame arrives.
    last: u64,
    /// Somebody is about to dial, or about to find the connection dead.
    dialling: bool,
    breaking: bool,
    /// Frames that a cut holds back.
    held: Vec<Bytes>,
}

impl Network {
    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.values().any(|cut| cut.contains(&(from, to)))
    }
}

impl World {
    /// Whether a machine can talk to another one that runs.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        let other = &self.nodes[to];
        let cut = self.network.is_cut(from, to) || self.network.is_cut(to, from);
        !cut && other.process.is_some() && other.paused_until <= self.schedule.now()
    }

    /// The members that a process keeps connections to.
    pub(crate) fn set_peers(&mut self, place: usize, addresses: &BTreeMap<u64, String>) {
        let id = self.nodes[place].id();
        let peers: BTreeSet<u64> = addresses.keys().copied().filter(|peer| *peer != id).collect();
        let old = std::mem::replace(&mut self.process(place).peers, peers.clone());
        for gone in old.difference(&peers) {
            self.disconnect(place, *gone);
        }
        for new in peers.difference(&old) {
            self.dial_later(id, *new, 0..MS);
        }
    }

    /// Closes the connections that removed members have made.
    pub(crate) fn part_with(&mut self, place: usize, removed: &BTreeSet<u64>) {
        let id = self.nodes[place].id();
        for peer in removed {
            self.found_broken(*peer, id, MS);
        }
    }

    fn dial_later(&mut self, from: u64, to: u64, after: std::ops::Range<u64>) {
        let after = self.rng.random_range(after);
        let link = self.network.links.entry((from, to)).or_default();
        if !std::mem::replace(&mut link.dialling, true) {
            self.schedule.after(after, Event::Dial { from, to });
        }
    }

    pub(crate) fn dial(&mut self, from: u64, to: u64) -> Result<()> {
        let link = self.network.links.entry((from, to)).or_default();
        link.dialling = false;
        if link.connected {
            return Ok(());
        }
        let Some(place) = self.place_of(from) else { return Ok(()) };
        let wanted = self.nodes[place].process.as_ref().is_some_and(|process| process.peers.contains(&to));
        if !wanted {
            return Ok(());
        }
        let other = self.place_of(to).filter(|other| self.reaches(place, *other));
        match other.map_or(Verdict::Unknown, |other| self.judge(place, other)) {
            Verdict::Welcome => self.connect(place, to),
            verdict @ (Verdict::Removed | Verdict::OtherDisk) => {
                self.process(place).stepped.cast_out(&format!("refused: {verdict:?}"));
                self.follow_up(place)?;
            }
            _ => self.dial_later(from, to, REDIAL),
        }
        Ok(())
    }

    /// What the member at `other` answers when the one at `place` dials it.
    fn judge(&mut self, place: usize, other: usize) -> Verdict {
        let (from, to) = (self.nodes[place].id(), self.nodes[other].id());
        let greeting = self.nodes[place].greeting(Purpose::Frames, to);
        let (Some(greeting), Some(who)) = (greeting, self.nodes[other].who()) else {
            return Verdict::Unknown;
        };
        let is_peer = self.process(other).peers.contains(&from);
        let verdict = self.process(other).stepped.judge(&greeting, who, is_peer);
        if verdict != Verdict::Unknown || !self.is_vouched_for(other, from) {
            return verdict;
        }
        // It dials the newcomer, until its own list of members says otherwise.
        self.process(other).peers.insert(from);
        self.dial_later(to, from, 0..MS);
        self.process(other).stepped.judge(&greeting, who, true)
    }

    /// Whether members that the one at `place` knows say that `newcomer` is one too.
    fn is_vouched_for(&self, place: usize, newcomer: u64) -> bool {
        let Some(process) = &self.nodes[place].process else { return false };
        process.stepped.is_settled()
            && process.peers.iter().filter_map(|peer| self.place_of(*peer)).any(|peer| {
                let members = || Some(self.nodes[peer].process.as_ref()?.stepped.engine().members());
                let knows = |members: Vec<quoin_core::system::Member>| {
                    members.iter().any(|member| member.id == newcomer)
                };
                self.reaches(place, peer) && members().is_some_and(|members| members.is_ok_and(knows))
            })
    }

    fn connect(&mut self, place: usize, to: u64) {
        let from = self.nodes[place].id();
        let other = self.place_of(to).map(|other| self.process_at(other));
        let link = self.network.links.entry((from, to)).or_default();
        let epoch = link.epoch + 1;
        *link = Link { connected: true, epoch, other, last: self.schedule.now(), ..Link::default() };
        self.process(place).surroundings.set_connected(to, true);
    }

    /// The dialler at `place` finds its connection gone.
    fn disconnect(&mut self, place: usize, to: u64) {
        let from = self.nodes[place].id();
        if let Some(link) = self.network.links.get_mut(&(from, to)) {
            (link.connected, link.breaking) = (false, false);
            link.held.clear();
        }
        if let Some(process) = &self.nodes[place].process {
            process.surroundings.set_connected(to, false);
            process.stepped.lost(to);
        }
    }

    pub(crate) fn broken(&mut self, from: u64, to: u64, epoch: u64) -> Result<()> {
        let Some(link) = self.network.links.get_mut(&(from, to)) else { return Ok(()) };
        if link.epoch != epoch || !link.connected || !link.breaking {
            return Ok(());
        }
        let Some(place) = self.place_of(from) else { return Ok(()) };
        self.disconnect(place, to);
        self.dial_later(from, to, REDIAL);
        self.follow_up(place)
    }

    /// The connection that `from` has made is dead, which it finds within `noticed`.
    fn found_broken(&mut self, from: u64, to: u64, noticed: u64) {
        let after = self.up_to(noticed);
        let Some(link) = self.network.links.get_mut(&(from, to)) else { return };
        if link.connected && !std::mem::replace(&mut link.breaking, true) {
            self.schedule.after(after, Event::Broken { from, to, epoch: link.epoch });
        }
    }

    /// The process of `id` has ended: nobody is at the other end of its connections.
    pub(crate) fn break_links(&mut self, id: u64, noticed: u64) {
        let pairs: Vec<(u64, u64)> = self.network.links.keys().copied().collect();
        for (from, to) in pairs {
            if from == id {
                self.network.links.remove(&(from, to));
            } else if to == id {
                self.found_broken(from, to, noticed);
            }
        }
    }

    /// Breaks one connection.
    pub(crate) fn break_one(&mut self) {
        let pairs: Vec<(u64, u64)> = self.network.links.keys().copied().collect();
        if !pairs.is_empty() {
            let (from, to) = pairs[self.rng.random_range(0..pairs.len())];
            self.found_broken(from, to, MS);
        }
    }

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
        self.network.next += 1;
        let number = self.network.next;
        self.network.cuts.insert(number, cut);
        let lasts = if self.rng.random_bool(0.5) { self.up_to(S) } else { self.up_to(8 * S) };
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

    /// The state of all connections, for people.
    pub(crate) fn connections(&self) -> String {
        let shown = self.network.links.iter().map(|((from, to), link)| {
            let Link { connected, dialling, breaking, held, .. } = link;
            format!(
                "\n  {from} to {to}: connected {connected}, dialling {dialling}, breaking {breaking}, held {}",
                held.len()
            )
        });
        shown.collect()
    }

    pub(crate) fn heal_all(&mut self) -> Result<()> {
        for number in self.network.cuts.keys().copied().collect::<Vec<_>>() {
            self.heal_cut(number)?;
        }
        Ok(())
    }
}
