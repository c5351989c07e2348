//! The folder of a log, and the real one.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of one folder.
pub trait Disk: Send + Sync + 'static {
    /// The names of all files, in order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a file of `bytes` zeros, reserves its space on the disk, and makes its name durable.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file to read and write.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Removes a file, durably. A crash meanwhile may leave it.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Bytes that the disk has left.
    fn free_space(&self) -> io::Result<u64>;
}

/// One file of a [`Disk`].
pub trait DiskFile: Send + Sync {
    /// Bytes of the file.
    fn size(&self) -> io::Result<u64>;
    /// Writes all of `parts` in order, from `offset` on.
    fn write_at(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()>;
    /// Fills `buffer` with the bytes from `offset` on.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Makes everything written durable. After an error it cannot be repeated: the operating system may count
    /// what it failed to write as written. Only bytes that are written again are synced again.
    fn sync(&self) -> io::Result<()>;
    /// Asks the system to forget what it has in memory of `bytes` bytes from `offset` on, which are synced: so
    /// that reading them reads the disk.
    fn forget(&self, _offset: u64, _bytes: u64) {}
}

/// A folder of the file system. No other process can open it while this value lives.
#[derive(Debug)]
pub struct RealDisk {
    folder: PathBuf,
    _lock: File,
}

impl RealDisk {
    /// Opens `folder`, and creates it if it is missing.
    ///
    /// # Errors
    /// Another process has the folder, or it cannot be created or written.
    pub fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let lock = File::create(folder.join("LOCK"))?;
        lock.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!(
                    "{} is in use by another process; each node needs a data folder of its own",
                    folder.display()
                ),
            ),
            std::fs::TryLockError::Error(error) => error,
        })?;
        Ok(Self { folder: folder.to_path_buf(), _lock: lock })
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.folder.join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let reserved = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
            .map_err(io::Error::from)
            .and_then(|()| file.sync_all())
            .and_then(|()| self.sync_folder());
        if let Err(error) = reserved {
            // A half-created segment would get in the way of the next attempt.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.folder.join(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        // Synced: a loss of power may undo any of several removals, and a log without a segment in its middle is damaged.
        std::fs::remove_file(self.folder.join(name)).and_then(|()| self.sync_folder())
    }

    fn free_space(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.folder)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn write_at(&self, mut offset: u64, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        const PARTS_MAX: usize = 1024;
        while !parts.is_empty() {
            let count = parts.len().min(PARTS_MAX);
            match rustix::io::pwritev(&self.0, &parts[..count], offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut parts, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn forget(&self, offset: u64, bytes: u64) {
        // An error: then what is in memory is read.
        let _ = rustix::fs::fadvise(
            &self.0,
            offset,
            std::num::NonZeroU64::new(bytes),
            rustix::fs::Advice::DontNeed,
        );
    }
}
