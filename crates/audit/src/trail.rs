//! The way of a record: handed in by whoever served the request, written by a thread of its own, many at once, with one
//! sync.
//!
//! **Invariant: Bounded.** A record has a place before what it tells of is done, or is not certain to be kept:
//! [`Settings::queue_max`] places for those that are not on disk yet, each of a record's size at most. While the disk takes nothing,
//! records keep their places and are tried again. What happens without a place is [`WhenFull`]; what is lost is counted, in a
//! metric and in the trail itself.

use crate::files::Files;
use crate::record::{About, Entry, Head, Outcome, Who};
use crate::refused::Refused;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Maximum records of one write.
const BATCH_MAX: usize = 256;
/// How long to wait before a write that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What to do with what cannot be recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is done, and the record is lost; how many are, is counted.
    #[default]
    Lose,
    /// It is refused.
    Refuse,
}

/// How a trail is kept.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name, which stands in each record.
    pub node: String,
    /// Where the files are.
    pub folder: PathBuf,
    /// Bytes after which a file is followed by another.
    pub file_bytes_max: u64,
    /// Maximum files; the oldest are deleted.
    pub files_max: usize,
    /// Maximum records that are not on disk.
    pub queue_max: usize,
    /// See [`WhenFull`].
    pub when_full: WhenFull,
}

/// The metrics of a trail.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Records on disk.
    pub written: IntCounter,
    /// Records that were lost.
    pub lost: IntCounter,
    /// 1 while the disk takes nothing.
    pub failing: IntGauge,
}

/// The trail cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the audit trail in {folder} (audit.folder): {source}")]
pub struct OpenError {
    folder: String,
    source: io::Error,
}

/// There is no place for a record, and what it would tell of is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the audit trail takes no more records, and without a record this is not done (audit.when_full); its disk is full or \
     fails, or it is asked for too much"
)]
pub struct Full;

/// A handle to hand in records.
#[derive(Clone, Debug)]
pub struct Trail(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// To the thread.
    queue: Mutex<Sender<Message>>,
    /// Places that are taken.
    taken: AtomicUsize,
    queue_max: usize,
    when_full: WhenFull,
    /// Records that were lost and that the trail does not tell of yet.
    lost: AtomicU64,
    refused: Refused,
    counters: Counters,
}

enum Message {
    Entry(SystemTime, Box<Entry>, Place),
    Stop,
}

/// A record's place, until it is on disk.
#[derive(Debug)]
pub struct Place(Option<Arc<Shared>>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Trail {
    /// Opens a trail, and begins it or goes on with it. `about` says more of this start.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub fn open(settings: Settings, counters: Counters, about: About) -> Result<(Self, Writer), OpenError> {
        let Settings { node, folder, file_bytes_max, files_max, queue_max, when_full } = settings;
        let failed = |source| OpenError { folder: folder.display().to_string(), source };
        let (files, found) = Files::open(&folder, file_bytes_max, files_max).map_err(failed)?;
        let (queue, messages) = channel();
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            taken: AtomicUsize::new(0),
            queue_max,
            when_full,
            lost: AtomicU64::new(0),
            refused: Refused::default(),
            counters,
        });
        let mut start = own("audit.start");
        start.about = about;
        if found.torn_bytes > 0 {
            start.about.push("torn_bytes", &found.torn_bytes.to_string());
        }
        if let Some(file) = &found.damaged {
            start.about.push("damaged", file);
        }
        let mut writing = Writing { node, files, head: found.head, shared: Arc::clone(&shared) };
        writing.write(&[(SystemTime::now(), &start)]).map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || writing.run(&messages))
            .map_err(failed)?;
        let trail = Self(shared);
        Ok((trail.clone(), Writer { trail, thread: Some(thread) }))
    }

    /// A place for a record of what is about to be done.
    ///
    /// # Errors
    /// There is none, and without one it is refused.
    pub fn place(&self) -> Result<Place, Full> {
        let place = self.place_below(self.0.queue_max);
        match self.0.when_full {
            WhenFull::Refuse if place.0.is_none() => Err(Full),
            _ => Ok(place),
        }
    }

    /// A place for a record of what was not done: half of them are left to what will be. So nobody keeps others out by
    /// being refused.
    pub fn spare_place(&self) -> Place {
        self.place_below(self.0.queue_max / 2)
    }

    fn place_below(&self, max: usize) -> Place {
        // Given back at once if it is one too many.
        let place = Place(Some(Arc::clone(&self.0)));
        if self.0.taken.fetch_add(1, Ordering::Relaxed) < max { place } else { Place(None) }
    }

    /// Hands in a record.
    pub fn record(&self, place: Place, entry: Entry) {
        let message = Message::Entry(SystemTime::now(), Box::new(entry), place);
        let lost = match message {
            Message::Entry(_, _, Place(None)) => true,
            message => self.0.queue.lock().send(message).is_err(),
        };
        if lost {
            self.lose();
        }
    }

    /// As [`Self::record`], of what was not done; beyond a bound it is counted as lost.
    pub fn record_refused(&self, place: Place, entry: Entry) {
        if self.0.refused.take(&entry.who.address, Instant::now()) {
            self.record(place, entry);
        } else {
            self.lose();
        }
    }

    fn lose(&self) {
        self.0.lost.fetch_add(1, Ordering::Relaxed);
        self.0.counters.lost.inc();
    }
}

/// The thread that writes. Dropped, it writes what was handed in, and ends.
#[derive(Debug)]
pub struct Writer {
    trail: Trail,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// To hand in records.
    pub fn trail(&self) -> &Trail {
        &self.trail
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // An error: it has ended.
        let _ = self.trail.0.queue.lock().send(Message::Stop);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the audit trail's thread panicked");
        }
    }
}

/// The trail's own record.
fn own(act: &str) -> Entry {
    Entry {
        who: Who::default(),
        act: act.into(),
        about: About::default(),
        outcome: Outcome::Done,
        code: String::new(),
        revision: None,
    }
}

struct Writing {
    node: String,
    files: Files,
    head: Head,
    shared: Arc<Shared>,
}

impl Writing {
    fn run(mut self, messages: &Receiver<Message>) {
        let mut waiting: Vec<(SystemTime, Box<Entry>, Place)> = Vec::new();
        let mut stopping = false;
        loop {
            if waiting.is_empty() && !stopping {
                match messages.recv() {
                    Ok(Message::Entry(time, entry, place)) => waiting.push((time, entry, place)),
                    Ok(Message::Stop) | Err(_) => stopping = true,
                }
            }
            while waiting.len() < BATCH_MAX
                && let Ok(message) = messages.try_recv()
            {
                match message {
                    Message::Entry(time, entry, place) => waiting.push((time, entry, place)),
                    Message::Stop => stopping = true,
                }
            }
            let stop = own("audit.stop");
            let ends = stopping && waiting.len() < BATCH_MAX;
            let mut batch: Vec<(SystemTime, &Entry)> =
                waiting.iter().map(|(time, entry, _)| (*time, &**entry)).collect();
            if ends {
                batch.push((SystemTime::now(), &stop));
            }
            match self.write(&batch) {
                Ok(()) => {
                    self.shared.counters.failing.set(0);
                    waiting.clear();
                }
                Err(error) => {
                    tracing::error!(%error, waiting = waiting.len(), "the audit trail cannot be written");
                    self.shared.counters.failing.set(1);
                    if stopping {
                        let lost = waiting.len() as u64 + messages.try_iter().count() as u64;
                        self.shared.counters.lost.inc_by(lost);
                        tracing::error!(lost, "records of the audit trail are lost: the node stops");
                        return;
                    }
                    // Others wait in the channel, within their places, and `Stop` too.
                    match messages.recv_timeout(RETRY) {
                        Ok(Message::Entry(time, entry, place)) => waiting.push((time, entry, place)),
                        Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => stopping = true,
                        Err(RecvTimeoutError::Timeout) => {}
                    }
                    continue;
                }
            }
            if ends {
                return;
            }
        }
    }

    /// Writes records, and before them how many were lost. After an error it is as before.
    fn write(&mut self, entries: &[(SystemTime, &Entry)]) -> io::Result<()> {
        let lost = self.shared.lost.load(Ordering::Relaxed);
        let (mut head, mut lines) = (self.head.clone(), String::new());
        let mut told = own("audit.lost");
        told.outcome = Outcome::Failed;
        told.about.push("records", &lost.to_string());
        let losses = (lost > 0).then(|| (SystemTime::now(), &told));
        for (time, entry) in losses.iter().chain(entries) {
            head.append(&mut lines, &self.node, *time, entry);
        }
        self.files.append(self.head.n + 1, &lines)?;
        self.shared.counters.written.inc_by(head.n - self.head.n);
        self.shared.lost.fetch_sub(lost, Ordering::Relaxed);
        self.head = head;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{files_in, records, verify};
    use std::path::Path;

    pub(super) fn settings(folder: &Path) -> Settings {
        Settings {
            node: "n1".into(),
            folder: folder.into(),
            file_bytes_max: 64 << 20,
            files_max: 10,
            queue_max: 100,
            when_full: WhenFull::Lose,
        }
    }

    pub(super) fn counters() -> Counters {
        let counter = |name: &str| IntCounter::new(name, name).unwrap();
        Counters {
            written: counter("written"),
            lost: counter("lost"),
            failing: IntGauge::new("failing", "failing").unwrap(),
        }
    }

    fn opened(settings: Settings) -> (Trail, Writer) {
        Trail::open(settings, counters(), About::default()).unwrap()
    }

    fn acts(folder: &Path) -> Vec<String> {
        let mut acts = Vec::new();
        for file in files_in(folder).unwrap() {
            records(&file, |record| acts.push(record.act)).unwrap();
        }
        acts
    }

    fn say(trail: &Trail, act: &str) {
        trail.record(trail.place().unwrap(), own(act));
    }

    #[test]
    fn a_trail_goes_on_after_a_stop_and_over_files() {
        let folder = tempfile::tempdir().unwrap();
        let small = Settings { file_bytes_max: 1, files_max: 5, ..settings(folder.path()) };
        for _ in 0..2 {
            let (trail, writer) = opened(small.clone());
            say(&trail, "one");
            drop(writer);
        }
        assert_eq!(
            acts(folder.path()),
            ["audit.start", "one", "audit.stop", "audit.start", "one", "audit.stop"]
                .into_iter()
                .skip(6 - acts(folder.path()).len())
                .collect::<Vec<_>>(),
        );
        let report = verify(&files_in(folder.path()).unwrap(), &[]).unwrap();
        assert_eq!((report.last, report.files <= 5), (6, true));
    }

    /// The first of them were certain to be kept, the others were not.
    #[test]
    fn what_has_no_place_is_counted_in_the_trail_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        for when_full in [WhenFull::Lose, WhenFull::Refuse] {
            let path = folder.path().join(format!("{when_full:?}"));
            let few = Settings { queue_max: 2, when_full, ..settings(&path) };
            let (trail, writer) = opened(few);
            let held = [trail.place().unwrap(), trail.place().unwrap()];
            match when_full {
                WhenFull::Refuse => assert_eq!(trail.place().unwrap_err(), Full),
                WhenFull::Lose => say(&trail, "lost"),
            }
            trail.record(trail.spare_place(), own("refused"));
            drop(held);
            say(&trail, "kept");
            drop(writer);
            let lost = if when_full == WhenFull::Lose { 2 } else { 1 };
            assert_eq!(trail.0.counters.lost.get(), lost);
            assert_eq!(acts(&path), ["audit.start", "audit.lost", "kept", "audit.stop"]);
            let report = verify(&files_in(&path).unwrap(), &[]).unwrap();
            assert_eq!(report.lost, lost);
        }
    }

    #[test]
    fn a_torn_line_is_cut_off_and_damage_is_told() {
        let folder = tempfile::tempdir().unwrap();
        drop(opened(settings(folder.path())));
        let file = files_in(folder.path()).unwrap().pop().unwrap();
        let whole = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{whole}{{\"n\":3")).unwrap();
        drop(opened(settings(folder.path())));
        let report = verify(&files_in(folder.path()).unwrap(), &[]).unwrap();
        assert_eq!((report.last, report.unfinished_bytes), (4, 0));
        assert!(std::fs::read_to_string(&file).unwrap().contains("\"torn_bytes\":\"6\""));
        // The last record is changed: what follows begins anew, and says so.
        let changed = std::fs::read_to_string(&file).unwrap().replace("audit.stop", "audit.step");
        std::fs::write(&file, changed).unwrap();
        drop(opened(settings(folder.path())));
        let found = verify(&files_in(folder.path()).unwrap(), &[]).unwrap_err();
        assert_eq!((found.file, found.line), (file, 2));
        let last = files_in(folder.path()).unwrap().pop().unwrap();
        assert!(std::fs::read_to_string(last).unwrap().contains("\"damaged\":\"audit-"));
    }

    /// Two nodes with one setting wrote over each other's records, and none of them said so.
    #[test]
    fn a_folder_has_one_writer() {
        let folder = tempfile::tempdir().unwrap();
        let (trail, writer) = opened(settings(folder.path()));
        let refused = Trail::open(settings(folder.path()), counters(), About::default()).unwrap_err();
        assert!(refused.to_string().contains("another process writes to it"), "{refused}");
        say(&trail, "one");
        drop(writer);
        drop(opened(settings(folder.path())));
        let expected = ["audit.start", "one", "audit.stop", "audit.start", "audit.stop"];
        assert_eq!(acts(folder.path()), expected);
    }

    /// A folder without room held what was to be recorded, and had it when there was room again.
    #[test]
    fn what_cannot_be_written_waits_for_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trail");
        let small = Settings { file_bytes_max: 1, ..settings(&path) };
        let (trail, writer) = opened(small);
        // Each record begins a file; there is no folder for it now.
        let away = folder.path().join("away");
        std::fs::rename(&path, &away).unwrap();
        say(&trail, "waits");
        while trail.0.counters.failing.get() == 0 {
            std::thread::yield_now();
        }
        say(&trail, "waits too");
        std::fs::rename(&away, &path).unwrap();
        drop(writer);
        let report = verify(&files_in(&path).unwrap(), &[]).unwrap();
        assert_eq!((acts(&path).len(), report.lost), (4, 0));
    }
}
