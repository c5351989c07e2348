//! The log of a stopped node, read by the code of a start and not changed.
//!
//! What a start would write (the end of the log, a seal) goes nowhere here: recovery has read everything
//! before it writes.

use super::disk::{Disk, DiskFile};
use super::error::LogError;
use super::options::Options;
use super::record::HardState;
use super::recovery::{Recovered, Torn, segment_name};
use super::segmented::Log;
use crate::group::GroupId;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is in a folder of a log.
pub struct Inspection {
    /// The segments, in order, up to the first damage.
    pub segments: Vec<SegmentReport>,
    /// The newest hard state.
    pub hard_state: Option<HardState>,
    /// The entry before the first one, and the last one: index and term.
    pub range: [(u64, u64); 2],
    /// What the next start cuts.
    pub torn: Option<Torn>,
    /// The log as a start would find it, or why it would not start.
    pub log: Result<Log, LogError>,
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its name.
    pub file: String,
    /// Its bytes.
    pub bytes: u64,
    /// Index and term of its first and last entry, of those that no later entry replaces.
    pub entries: Option<[(u64, u64); 2]>,
}

/// Reads the log in `disk`.
pub fn inspect(disk: LookOnly, options: Options, group: GroupId) -> Inspection {
    let mut recovered = Recovered::new(&options);
    let read = recovered.read(&disk, &options);
    let mut entries = BTreeMap::<u64, [(u64, u64); 2]>::new();
    let (mut range, mut hard_state) = ([(0, 0); 2], None);
    if let Some(group) = recovered.groups.get(&group) {
        let base = (group.base.index, group.base.term);
        for (index, slot) in (base.0 + 1..).zip(&group.entries) {
            entries.entry(slot.segment).or_insert([(index, slot.term); 2])[1] = (index, slot.term);
        }
        let last = group.entries.back().map_or(base, |slot| (group.last(), slot.term));
        (range, hard_state) = ([base, last], group.hard_state);
    }
    let report = |(number, segment): (&u64, &super::index::Segment)| {
        let entries = entries.get(number).copied();
        SegmentReport { file: segment_name(*number), bytes: segment.size, entries }
    };
    let (segments, torn) = (recovered.segments.iter().map(report).collect(), recovered.torn.clone());
    let log = read.and_then(|()| Log::of(Arc::new(disk), options, recovered));
    Inspection { segments, hard_state, range, torn, log }
}

/// A folder of a log that is only read. Writes go nowhere. Clones share the folder's lock.
#[derive(Clone)]
pub struct LookOnly {
    folder: PathBuf,
    _lock: Option<Arc<File>>,
}

impl LookOnly {
    /// Opens `folder`, and takes its lock, if it has one.
    ///
    /// # Errors
    /// A node runs there, or the folder cannot be read.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let lock = match File::open(folder.join("LOCK")) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match lock.as_ref().map(File::try_lock) {
            Some(Err(std::fs::TryLockError::WouldBlock)) => Err(io::ErrorKind::ResourceBusy.into()),
            Some(Err(std::fs::TryLockError::Error(error))) => Err(error),
            Some(Ok(())) | None => Ok(Self { folder: folder.to_path_buf(), _lock: lock.map(Arc::new) }),
        }
    }
}

impl Disk for LookOnly {
    fn list(&self) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create(&self, name: &str, _: u64) -> io::Result<Arc<dyn DiskFile>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("{name}: the folder is only read")))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(Unwritten(File::open(self.folder.join(name))?)))
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn free_space(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

struct Unwritten(File);

impl DiskFile for Unwritten {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn write_at(&self, _: u64, _: &mut [IoSlice<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::GROUP;
    use crate::log::{Base, Entry, EntryKind, RealDisk, Record};
    use bytes::Bytes;
    use std::collections::BTreeMap;

    fn options() -> Options {
        Options { cluster: 0xc, node: 0xa, disk: 0xd, segment_bytes: 4096, cache_bytes: 0 }
    }

    /// Entries 8 to 12 behind a base, in several segments.
    fn write(folder: &Path) {
        let log = Log::open(Arc::new(RealDisk::open(folder).unwrap()), options()).unwrap();
        let state = HardState { term: 3, vote: 1, commit: 9 };
        log.append(&[Record::Base(GROUP, Base { index: 7, term: 2 }), Record::HardState(GROUP, state)])
            .unwrap();
        for index in 8..=12 {
            let data = Bytes::from(vec![1; 1500]);
            let entry = Entry { index, term: 3, kind: EntryKind::Normal, context: Bytes::new(), data };
            log.append(&[Record::Entry(GROUP, entry)]).unwrap();
        }
    }

    fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
    }

    /// Looks, and checks that nothing has changed.
    fn look(folder: &Path) -> Inspection {
        let before = files(folder);
        let found = inspect(LookOnly::open(folder).unwrap(), options(), GROUP);
        assert_eq!(files(folder), before);
        found
    }

    fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(file).unwrap();
        change(&mut bytes);
        std::fs::write(file, bytes).unwrap();
    }

    #[test]
    fn a_log_is_told_as_a_start_finds_it_and_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        let found = look(folder.path());
        assert_eq!(found.range, [(7, 2), (12, 3)]);
        assert_eq!(found.hard_state, Some(HardState { term: 3, vote: 1, commit: 9 }));
        let entries: Vec<_> = found.segments.iter().map(|segment| segment.entries).collect();
        let of = |first, last| Some([(first, 3), (last, 3)]);
        assert_eq!(entries, [of(8, 9), of(10, 11), of(12, 12)]);
        assert!(found.torn.is_none());
        assert_eq!(found.log.unwrap().last_index(GROUP), 12);
    }

    #[test]
    fn a_torn_tail_is_told_from_damage() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        let (second, last) = (folder.path().join(segment_name(2)), folder.path().join(segment_name(3)));
        // In the data of the last block, which no seal follows: the log was not closed.
        let end = std::fs::read(&last).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
        change(&last, |bytes| bytes[end] ^= 1);
        let found = look(folder.path());
        let torn = found.torn.unwrap();
        assert_eq!((torn.file, found.range[1]), (segment_name(3), (11, 3)));
        assert!(torn.offset > 0 && found.log.is_ok());
        // It holds the lock.
        drop(found.log);

        change(&second, |bytes| bytes[2000] ^= 1);
        let found = look(folder.path());
        let said = found.log.err().expect("the damage is found").to_string();
        assert!(said.starts_with(&format!("{} is damaged at byte ", segment_name(2))), "{said}");
        assert_eq!((found.segments.len(), found.range[1]), (1, (10, 3)));
        // A start says the same.
        let started = Log::open(Arc::new(RealDisk::open(folder.path()).unwrap()), options());
        assert_eq!(started.err().map(|error| error.to_string()), Some(said));
    }

    #[test]
    fn a_folder_in_use_is_not_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        let _running = RealDisk::open(folder.path()).unwrap();
        let refused = LookOnly::open(folder.path()).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::ResourceBusy));
    }
}
