//! A replica fed with any frames: for the fuzz target `frames`, for the test that runs its corpus, and for the
//! tests of what a peer may send (`tests.rs`).

#[cfg(test)]
mod tests;

use crate::GROUP;
use crate::configuration::Configuration;
use crate::frame::decode_body;
use crate::log::{Log, Options as LogOptions, SimDisk, join};
use crate::message::PeerMessage;
use crate::replica::{Append, Committed, Content, Effects, Options, Proposal, Replica};
use bytes::{Buf, Bytes};
use quoin_core::machines::{FOUNDING_INDEX, FOUNDING_TERM};
use quoin_core::{Command, Face, Stamp};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Feeds a replica with what `input` says; false if one of its frames cannot be decoded.
///
/// The input is a sequence of steps, each a byte and what belongs to it: 0 and a byte lets so many ticks pass, 1
/// completes the appends, 2 proposes a command, 3 asks for a read, 4 and a byte breaks the connection to that
/// member. Any other byte, modulo 4, is the sender of a frame: a u16 with its length, little-endian, and its body.
///
/// # Panics
/// The replica does, or an entry that was committed is gone or another one.
#[allow(unreachable_pub, reason = "public with the feature `fuzzing`")]
pub fn frames(mut input: &[u8]) -> bool {
    let mut victim = Victim::start(1, &[1, 2, 3]);
    let mut decodable = true;
    while let Ok(step) = input.try_get_u8() {
        match step {
            0 => (0..input.try_get_u8().unwrap_or(1)).for_each(|_| victim.tick()),
            1 => victim.write(),
            2 => victim.propose(),
            3 => victim.read(),
            4 => victim.replica.peer_lost(input.try_get_u8().unwrap_or(1).into()),
            _ => {
                let length = usize::from(input.try_get_u16_le().unwrap_or(0)).min(input.len());
                let body = Bytes::copy_from_slice(&input[..length]);
                input.advance(length);
                let crc = crc32c::crc32c(&body);
                match decode_body(body, crc) {
                    Ok((_, message)) => victim.receive(u64::from(step % 4), message),
                    Err(_) => decodable = false,
                }
            }
        }
        victim.work();
    }
    decodable
}

/// One replica, and what a driver holds for it.
pub(crate) struct Victim {
    pub(crate) replica: Replica,
    /// What it has sent.
    pub(crate) sent: VecDeque<(u64, PeerMessage)>,
    log: Arc<Log>,
    appends: VecDeque<Append>,
    /// Index and term of the entries that it has committed and handed out.
    committed: Vec<(u64, u64)>,
}

impl Victim {
    /// A founder of a cluster of `voters`.
    pub(crate) fn start(id: u64, voters: &[u64]) -> Self {
        let options =
            LogOptions { cluster: 1, node: id, disk: id, segment_bytes: 1 << 16, cache_bytes: 1 << 10 };
        let log = Arc::new(Log::open(Arc::new(SimDisk::new()), options).expect("an empty disk"));
        join(&log, GROUP, FOUNDING_INDEX.0, FOUNDING_TERM.0).expect("an empty log");
        let configuration = Configuration::of_voters(voters.iter().copied());
        let options = Options { seed: id, ..Options::default() };
        let mut replica =
            Replica::new(id, GROUP, Arc::clone(&log), &configuration, FOUNDING_INDEX.0, options)
                .expect("the options are the defaults");
        replica.set_wall(Stamp(1_000_000));
        Self { replica, sent: VecDeque::new(), log, appends: VecDeque::new(), committed: Vec::new() }
    }

    pub(crate) fn receive(&mut self, from: u64, message: PeerMessage) {
        self.replica.step(from, message);
    }

    pub(crate) fn tick(&mut self) {
        self.replica.tick();
        self.work();
    }

    pub(crate) fn propose(&mut self) {
        let command = Command { face: Face::Kv, bytes: Bytes::from_static(b"command") };
        self.replica.propose(Proposal { command, waiter: oneshot::channel().0 });
    }

    pub(crate) fn read(&mut self) {
        self.replica.read(oneshot::channel().0);
    }

    /// Completes all appends with one sync.
    pub(crate) fn write(&mut self) {
        while let Some(append) = self.appends.pop_front() {
            self.log.append(&append.records).expect("the disk has room");
            self.sent.extend(append.messages);
            self.replica.written(append.number);
        }
        self.work();
    }

    /// Carries out what the replica asks, and checks what it has committed.
    pub(crate) fn work(&mut self) {
        loop {
            let effects = self.replica.effects(self.replica.ticks());
            if effects.is_empty() {
                break;
            }
            let Effects { messages, append, committed, install, .. } = effects;
            assert_eq!(install, None, "nobody has offered a snapshot");
            self.sent.extend(messages);
            self.appends.extend(append);
            committed.into_iter().for_each(|entry| self.apply(entry));
        }
        for (index, term) in &self.committed {
            assert_eq!(
                self.log.term(GROUP, *index),
                Some(*term),
                "the committed entry at {index} has changed"
            );
        }
    }

    fn apply(&mut self, entry: Committed) {
        let before = self.committed.last().map_or(FOUNDING_INDEX.0, |(index, _)| *index);
        assert_eq!(entry.index, before + 1, "entries are committed in order, and once");
        if let Content::Batch(payload) = &entry.content
            && !payload.is_empty()
        {
            assert!(quoin_core::Batch::decode(payload.clone()).is_ok(), "an entry that ends its node");
        }
        self.committed.push((entry.index, entry.term));
        self.replica.applied(entry.index);
    }
}
