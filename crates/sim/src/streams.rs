//! Snapshots on their way, chunk by chunk. Both ends are the engine's and the store's own.

use crate::schedule::{MS, S};
use crate::world::{At, Event, World};
use anyhow::{Result, ensure};
use bytes::{Bytes, BytesMut};
use quoin_consensus::GROUP;
use quoin_store::{Export, Importer};
use rand::Rng;
use std::collections::BTreeMap;

/// How long a side waits for the other one.
const SILENCE_MAX: u64 = 30 * S;

/// A sender waits so long, and longer with each failure, before it sends the next one.
const PAUSE_MIN: u64 = 200 * MS;

/// The streams under way, by number.
#[derive(Default)]
pub(crate) struct Streams {
    next: u64,
    running: BTreeMap<u64, Stream>,
    /// By sender and receiver: when the last one that failed ended, and the sender's term.
    failed: BTreeMap<(u64, u64), (At, u64, u64)>,
    /// By sender and receiver: how many in a row followed a failure at once.
    hasty: BTreeMap<(u64, u64), u32>,
}

struct Stream {
    from: At,
    to: u64,
    /// When something of it arrived last.
    last: u64,
    export: Export<'static>,
    /// Its number where it comes from.
    number: u64,
    /// The entry at which the snapshot ends.
    index: u64,
    /// The process that receives, and what it has made of the chunks; `None` until it has begun.
    receiver: Option<(At, Importer)>,
    /// The chunk that is on its way.
    chunk: Option<Bytes>,
}

impl Stream {
    fn receiver_is(&self, process: At) -> bool {
        self.receiver.as_ref().is_some_and(|(receiver, _)| *receiver == process)
    }
}

impl World {
    /// A replica streams its state to a member.
    pub(crate) fn begin_stream(&mut self, place: usize, to: u64) -> Result<()> {
        self.counts.snapshots += 1;
        let from = self.process_at(place);
        let (id, term) = (self.nodes[place].id(), self.process(place).stepped.engine().raft().term);
        if let Some((at, failed_in, since)) = self.streams.failed.remove(&(id, to)) {
            let paused = self.schedule.now() - since;
            let is_hasty = (at, failed_in) == (from, term) && paused < PAUSE_MIN;
            let hasty = self.streams.hasty.entry((id, to)).or_default();
            *hasty = if is_hasty { *hasty + 1 } else { 0 };
            // Once is no haste: the receiver may have gone on without the one that failed, and need another since.
            ensure!(*hasty < 2, "{id} sends {to} another snapshot {paused} microseconds after one failed");
        }
        let (sent_as, export) = self.process(place).stepped.begin_snapshot(to)?;
        self.streams.next += 1;
        let (number, last) = (self.streams.next, self.schedule.now());
        self.streams.running.insert(
            number,
            Stream {
                from,
                to,
                last,
                number: sent_as,
                index: export.progress().index.0,
                export,
                receiver: None,
                chunk: None,
            },
        );
        let after = self.up_to(2 * MS);
        self.schedule.after(after, Event::Chunk(number));
        // Much is written meanwhile, and what can be purged of it is.
        if self.stormy && self.rng.random_bool(self.faults.disk.stream_slow) {
            let left = self.rng.random_range(20..300);
            self.schedule.after(0, Event::Burst { at: from, left });
            self.schedule.after(S / 2, Event::FlushAll);
        }
        Ok(())
    }

    /// A chunk arrives, and the next one follows.
    pub(crate) fn chunk(&mut self, number: u64) -> Result<()> {
        let Some(mut stream) = self.streams.running.remove(&number) else { return Ok(()) };
        let Some(place) = self.other_end(&stream) else { return self.fail_stream(stream) };
        if !self.reaches(stream.from.place, place) {
            return self.wait_for_end(number, stream);
        }
        if stream.receiver.is_none() {
            // One at a time: another sender waits until it gives up.
            let receiver = self.process_at(place);
            if self.streams.running.values().any(|other| other.receiver_is(receiver)) {
                return self.wait_for_end(number, stream);
            }
            let Some(importer) = self.process(place).stepped.begin_receiving()? else {
                return self.fail_stream(stream);
            };
            stream.receiver = Some((receiver, importer));
        }
        stream.last = self.schedule.now();
        self.check_kept(&stream)?;
        if self.stormy && self.rng.random_bool(self.faults.disk.stream_fails) {
            return self.fail_stream(stream);
        }
        if let Some(chunk) = stream.chunk.take()
            && let Some((_, importer)) = &mut stream.receiver
            && importer.chunk(self.perhaps_wrong(chunk)).is_err()
        {
            return self.fail_stream(stream);
        }
        if let Some(chunk) = stream.export.next() {
            stream.chunk = Some(chunk?);
            self.streams.running.insert(number, stream);
            let late = self.stormy
                && self.rng.random_bool(self.faults.network.late.max(self.faults.disk.stream_slow));
            let takes = if late { self.up_to(2 * S) } else { self.up_to(20 * MS) };
            self.schedule.after(takes, Event::Chunk(number));
            return Ok(());
        }
        self.deliver(place, stream)
    }

    /// The log is kept for who is sent a snapshot, as far as it may be: else it would need another one at once. Where space
    /// was short it need not be.
    fn check_kept(&self, stream: &Stream) -> Result<()> {
        let node = &self.nodes[stream.from.place];
        let process = node.process.as_ref().filter(|process| process.keeps_for_streams);
        let Some(process) = process.filter(|_| !self.space_was_short) else { return Ok(()) };
        let first = process.stepped.log().first_index(GROUP);
        ensure!(
            first <= stream.index + 1,
            "the log of {} begins at {first}, and {} is sent a snapshot of entry {}",
            node.id(),
            stream.to,
            stream.index
        );
        Ok(())
    }

    fn perhaps_wrong(&mut self, chunk: Bytes) -> Bytes {
        if !(self.stormy && self.rng.random_bool(self.faults.network.corrupted)) {
            return chunk;
        }
        let mut bytes = BytesMut::from(&chunk[..]);
        let place = self.rng.random_range(0..bytes.len());
        bytes[place] ^= 1 << self.rng.random_range(0..8);
        bytes.freeze()
    }

    /// All chunks are there.
    fn deliver(&mut self, place: usize, stream: Stream) -> Result<()> {
        let Some((_, importer)) = stream.receiver else { return Ok(()) };
        let id = self.nodes[stream.from.place].id();
        let success = self.process(place).stepped.received(id, importer).is_ok();
        // The answer may be lost.
        let lost = self.stormy && self.rng.random_bool(self.faults.network.lost);
        let after = if lost { SILENCE_MAX } else { self.up_to(5 * MS) };
        let (at, to, stream) = (stream.from, stream.to, stream.number);
        self.schedule.after(after, Event::StreamEnds { at, stream, to, success: success && !lost });
        if self.stormy && self.rng.random_bool(self.faults.disk.dies_installing) {
            let after = self.up_to(self.faults.disk.usual_us_max);
            self.schedule.after(after, Event::Die(self.process_at(place)));
        }
        self.follow_up(place)
    }

    /// Nothing gets through now: both sides wait, up to a bound.
    fn wait_for_end(&mut self, number: u64, stream: Stream) -> Result<()> {
        if self.schedule.now() - stream.last > SILENCE_MAX {
            return self.fail_stream(stream);
        }
        self.streams.running.insert(number, stream);
        self.schedule.after(100 * MS, Event::Chunk(number));
        Ok(())
    }

    /// A process has ended, and with it both ends of streams that it had. It leaves what it has received on its disk.
    /// Nothing of it may live on: a store that is dropped later would remove files of the next process.
    pub(crate) fn end_streams(&mut self, process: At) {
        let has_part = |_: &u64, stream: &mut Stream| stream.from == process || stream.receiver_is(process);
        let ended: Vec<_> = self.streams.running.extract_if(.., has_part).map(|(_, stream)| stream).collect();
        for mut stream in ended {
            if stream.receiver_is(process)
                && let Some((_, importer)) = stream.receiver.take()
            {
                importer.leave();
            }
            self.tell_failed(&stream);
        }
    }

    /// The machine of the receiver, if both processes still run.
    fn other_end(&self, stream: &Stream) -> Option<usize> {
        let sender = &self.nodes[stream.from.place];
        let place = self.place_of(stream.to)?;
        let runs = sender.life == stream.from.life && sender.process.is_some();
        let same = stream.receiver.as_ref().is_none_or(|(receiver, _)| *receiver == self.process_at(place));
        (runs && same && self.nodes[place].process.is_some()).then_some(place)
    }

    fn fail_stream(&mut self, stream: Stream) -> Result<()> {
        self.tell_failed(&stream);
        Ok(())
    }

    /// The sender learns that nothing more comes of a stream, at once or when it has waited long enough.
    fn tell_failed(&mut self, stream: &Stream) {
        let after = if self.rng.random_bool(0.5) { self.up_to(S) } else { self.up_to(SILENCE_MAX) };
        let (at, number, to) = (stream.from, stream.number, stream.to);
        self.schedule.after(after, Event::StreamEnds { at, stream: number, to, success: false });
    }

    pub(crate) fn stream_ended(&mut self, place: usize, stream: u64, to: u64, success: bool) -> Result<()> {
        let (id, at, now) = (self.nodes[place].id(), self.process_at(place), self.schedule.now());
        let term = self.process(place).stepped.engine().raft().term;
        if !success {
            self.streams.failed.insert((id, to), (at, term, now));
        }
        self.process(place).stepped.snapshot_ended(stream, to, success);
        Ok(())
    }
}
