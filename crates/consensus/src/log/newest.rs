//! The number of the newest segment, in a file of its own: so a newest segment that is missing is
//! noticed, and an unfinished one is told from one that was damaged. `docs/log-format.md` describes its
//! bytes.
//!
//! The file has two slots, written in turn, so that a torn write leaves the number before.

use super::disk::{Disk, DiskFile};
use super::error::{LogError, corrupt};
use bytes::Buf;
use std::io;
use std::sync::Arc;

const FILE: &str = "newest";
/// Bytes of a slot. A disk writes no more than this at once.
const SLOT: u64 = 4096;

/// The newest segment that was begun.
pub(super) struct Newest {
    /// Of the log's disk, see [`super::Options`].
    disk: u64,
    file: Option<Arc<dyn DiskFile>>,
    number: u64,
}

impl Newest {
    /// Where there is no such file.
    pub(super) fn absent(disk: u64) -> Self {
        Self { disk, file: None, number: 0 }
    }

    /// Reads the file, if it is there.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn open(folder: &dyn Disk, disk: u64, names: &[String]) -> Result<Self, LogError> {
        let mut newest = Self::absent(disk);
        if !names.iter().any(|name| name == FILE) {
            return Ok(newest);
        }
        let file = folder.open(FILE).map_err(failed("opening"))?;
        if file.size().map_err(failed("reading the size of"))? < 2 * SLOT {
            // It was being created when the node died: nothing depends on it yet.
            folder.remove(FILE).map_err(failed("removing"))?;
            return Ok(newest);
        }
        for place in [0, SLOT] {
            let mut slot = [0; 12];
            file.read_at(place, &mut slot).map_err(failed("reading"))?;
            newest.number = newest.number.max(newest.decode(slot).unwrap_or(0));
        }
        newest.file = Some(file);
        Ok(newest)
    }

    /// The newest segment's number; 0 if there was none, or only ones of version 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Checks that `last`, the number of the last segment, of version 2, is the newest or the one after
    /// it, whose mark was not yet written.
    ///
    /// # Errors
    /// The file was damaged or removed.
    pub(super) fn check(&self, last: u64) -> Result<(), LogError> {
        if last <= self.number + 1 && self.file.is_some() {
            return Ok(());
        }
        let problem = format!("it says that segment {:x} is the newest, which is {last:x}", self.number);
        Err(corrupt(FILE.into(), 0, problem))
    }

    /// Makes sure that the file is there, before the segment after `last` is created.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub(super) fn prepare(&mut self, folder: &dyn Disk, last: u64) -> Result<(), LogError> {
        if self.file.is_none() {
            self.file = Some(folder.create(FILE, 2 * SLOT).map_err(failed("creating"))?);
        }
        if self.number < last { self.set(last) } else { Ok(()) }
    }

    /// Records that segment `number` has been begun.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn set(&mut self, number: u64) -> Result<(), LogError> {
        let file = self.file.as_ref().expect("prepared before a segment is created");
        let slot = [&number.to_le_bytes()[..], &self.crc(number).to_le_bytes()].concat();
        let place = (number % 2) * SLOT;
        let written = file.write_at(place, &mut [io::IoSlice::new(&slot)]).and_then(|()| file.sync());
        written.map_err(failed("writing"))?;
        self.number = number;
        Ok(())
    }

    fn decode(&self, slot: [u8; 12]) -> Option<u64> {
        let mut slot = &slot[..];
        let number = slot.get_u64_le();
        (slot.get_u32_le() == self.crc(number)).then_some(number)
    }

    fn crc(&self, number: u64) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.disk.to_le_bytes()), &number.to_le_bytes())
    }
}

fn failed(operation: &'static str) -> impl FnOnce(io::Error) -> LogError {
    move |source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => LogError::NoSpace { file: FILE.into() },
        _ => LogError::Io { operation, file: FILE.into(), source },
    }
}
