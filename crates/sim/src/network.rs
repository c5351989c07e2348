//! Connections between members: one in each direction per pair, as the transport keeps them. What goes over them is in
//! `frames.rs`.

use crate::schedule::MS;
use crate::world::{At, Event, World};
use anyhow::Result;
use bytes::Bytes;
use quoin_consensus::greeting::{Purpose, Verdict};
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};

const REDIAL: std::ops::Range<u64> = 100 * MS..500 * MS;

/// All connections, by who dialled and whom.
#[derive(Default)]
pub(crate) struct Network {
    pub(crate) links: BTreeMap<(u64, u64), Link>,
    /// By number: directions between machines that carry nothing.
    pub(crate) cuts: BTreeMap<u64, BTreeSet<(usize, usize)>>,
    pub(crate) next: u64,
}

/// The connection that a member keeps to another one.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) connected: bool,
    /// Counts connections: tells frames of one from those of another.
    pub(crate) epoch: u64,
    /// The process at the other end.
    pub(crate) other: Option<At>,
    /// When the last frame arrives.
    pub(crate) last: u64,
    /// Somebody is about to dial, or about to find the connection dead.
    dialling: bool,
    pub(crate) breaking: bool,
    /// Frames that a cut holds back.
    pub(crate) held: Vec<Bytes>,
}

impl Network {
    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
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
    pub(crate) fn found_broken(&mut self, from: u64, to: u64, noticed: u64) {
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
                // What it has sent arrives all the same, until its next process connects.
                let link = self.network.links.entry((from, to)).or_default();
                (link.connected, link.dialling, link.breaking) = (false, false, false);
                link.held.clear();
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
}
