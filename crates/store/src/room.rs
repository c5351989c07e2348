//! Whether the disk has room for what the background is about to write.

use std::io;
use std::path::{Path, PathBuf};

/// The disk of a store's folder, and how much of it merging leaves free.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    folder: PathBuf,
    free_bytes_min: u64,
}

impl Room {
    pub(crate) fn new(folder: &Path, free_bytes_min: u64) -> Self {
        Self { folder: folder.into(), free_bytes_min }
    }

    /// Checks that merging may go on: the last free bytes are the log's.
    ///
    /// # Errors
    /// `StorageFull`, which merging takes as it takes a full disk.
    pub(crate) fn check_merge(&self) -> io::Result<()> {
        self.check(self.free_bytes_min)
    }

    /// Checks that `bytes` can be written: what does not fit is better not begun.
    ///
    /// # Errors
    /// `StorageFull`.
    pub(crate) fn check(&self, bytes: u64) -> io::Result<()> {
        // Where the system does not say, writing finds out.
        let Ok(disk) = rustix::fs::statvfs(&self.folder) else { return Ok(()) };
        if disk.f_bavail.saturating_mul(disk.f_frsize) < bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}
