//! A file that holds some disk, so that a full disk can be emptied: the log thread gives it back when the log
//! finds no room, and deletions, compaction and merging go on in the space.
//!
//! Other programs cannot take this space, which is the difference to a threshold (`store.reserve_bytes`). It
//! is taken again once there is enough room besides. What it deliberately does not do: promise that merging
//! fits. That takes as much disk as is left of the store.

use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

/// The file's name in the data folder.
const NAME: &str = "reserve";

/// Was never taken: there was no room, or it is not wanted.
const ABSENT: u8 = 0;
const HELD: u8 = 1;
/// Was given back, and is to be taken again.
const GIVEN: u8 = 2;

/// The reserve of one node.
pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
    state: AtomicU8,
}

impl Reserve {
    /// The reserve in `folder`: `bytes`, if an earlier process has taken them.
    pub(crate) fn open(folder: &std::path::Path, bytes: u64) -> Self {
        let path = folder.join(NAME);
        let held = fs::metadata(&path).is_ok_and(|file| file.len() > 0);
        Self { path, bytes, state: AtomicU8::new(if held { HELD } else { ABSENT }) }
    }

    /// Its bytes while it is held.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it was given back and is not yet taken again: space is short.
    pub(crate) fn is_given(&self) -> bool {
        self.state.load(Ordering::Relaxed) == GIVEN
    }

    /// Gives the space back; whether there was any.
    pub(crate) fn give(&self) -> bool {
        if self.state.compare_exchange(HELD, GIVEN, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        match fs::remove_file(&self.path) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "removing {}", self.path.display());
                false
            }
        }
    }

    /// Takes the space, if it is not held.
    ///
    /// # Errors
    /// There is no room, or the file cannot be written. Then nothing is held.
    pub(crate) fn take(&self) -> io::Result<()> {
        if self.bytes == 0 || self.state.load(Ordering::Relaxed) == HELD {
            return Ok(());
        }
        let file = File::create(&self.path)?;
        if let Err(error) = fallocate(&file, FallocateFlags::empty(), 0, self.bytes) {
            // A part of it is of no use.
            let _ = fs::remove_file(&self.path);
            return Err(error.into());
        }
        self.state.store(HELD, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_once_and_found_by_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let reserve = Reserve::open(folder.path(), 1 << 16);
        assert!(!reserve.give() && !reserve.is_given(), "nothing is held, and nothing missed");
        reserve.take().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 16);
        let reserve = Reserve::open(folder.path(), 1 << 16);
        assert!(reserve.give() && reserve.is_given() && !path.exists());
        assert!(!reserve.give());
        assert!(reserve.is_given(), "it is missed until it is taken again");
        reserve.take().unwrap();
        assert!(!reserve.is_given() && path.exists());
    }

    #[test]
    fn a_reserve_of_nothing_is_never_taken() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::open(folder.path(), 0);
        reserve.take().unwrap();
        assert!(!reserve.give() && !folder.path().join(NAME).exists());
    }
}
