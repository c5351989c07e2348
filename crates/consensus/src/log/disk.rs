//! The folder of a log: a real one, and one in memory that loses what was not synced when it crashes.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The files of one folder.
pub trait Disk: Send + Sync + 'static {
    /// The names of all files, in order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a file of `bytes` zeros, reserves its space on the disk, and makes its name durable.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file to read and write.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Removes a file. Its name may return after a crash.
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
    /// Makes everything written durable. After an error the file must not be written again: the operating
    /// system may have dropped the written bytes from memory.
    fn sync(&self) -> io::Result<()>;
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
        std::fs::remove_file(self.folder.join(name))
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
}

/// A folder in memory. A crash loses what was not synced, or any part of it.
#[derive(Default)]
pub struct SimDisk {
    files: Mutex<BTreeMap<String, Arc<SimFile>>>,
    room: Arc<AtomicU64>,
    fail_next_sync: Arc<AtomicBool>,
}

struct SimFile {
    content: Mutex<SimContent>,
    fail_next_sync: Arc<AtomicBool>,
}

struct SimContent {
    durable: Vec<u8>,
    current: Vec<u8>,
}

impl SimDisk {
    /// An empty folder on an unlimited disk.
    pub fn new() -> Self {
        let disk = Self::default();
        disk.set_room(u64::MAX);
        disk
    }

    /// Sets how many more bytes can be reserved.
    pub fn set_room(&self, bytes: u64) {
        self.room.store(bytes, Ordering::SeqCst);
    }

    /// Makes the next sync fail without effect.
    pub fn fail_next_sync(&self) {
        self.fail_next_sync.store(true, Ordering::SeqCst);
    }

    /// Crashes the machine. Of what was written and not synced, a part drawn from `seed` has reached the
    /// disk: pages in any order, each perhaps torn.
    pub fn crash(&self, seed: u64) {
        self.fail_next_sync.store(false, Ordering::SeqCst);
        let mut state = seed;
        for file in self.files.lock().values() {
            file.content.lock().crash(&mut state);
        }
    }

    /// The bytes of a file, synced or not.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.files.lock().get(name).map(|file| file.content.lock().current.clone())
    }

    /// Replaces the synced and current bytes of a file.
    pub fn set_bytes(&self, name: &str, bytes: Vec<u8>) {
        if let Some(file) = self.files.lock().get(name) {
            *file.content.lock() = SimContent { durable: bytes.clone(), current: bytes };
        }
    }
}

/// Bytes that reach the disk independently of others. A crash may cut anywhere within.
const PAGE: usize = 512;

impl SimContent {
    fn crash(&mut self, state: &mut u64) {
        for start in (0..self.current.len()).step_by(PAGE) {
            let end = (start + PAGE).min(self.current.len());
            if self.durable[start..end] == self.current[start..end] {
                continue;
            }
            *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let draw = (*state >> 33) as usize;
            let kept = match draw % 3 {
                0 => 0,
                1 => end - start,
                _ => (draw / 3) % (end - start),
            };
            self.durable[start..start + kept].copy_from_slice(&self.current[start..start + kept]);
        }
        self.current.clone_from(&self.durable);
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let room = self.room.load(Ordering::SeqCst);
        if bytes > room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room.store(room - bytes, Ordering::SeqCst);
        let zeros = vec![0; bytes as usize];
        let content = Mutex::new(SimContent { durable: zeros.clone(), current: zeros });
        let file = Arc::new(SimFile { content, fail_next_sync: Arc::clone(&self.fail_next_sync) });
        self.files.lock().insert(name.into(), Arc::clone(&file));
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.files.lock().get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let file = self.files.lock().remove(name).ok_or(io::ErrorKind::NotFound)?;
        let freed = file.content.lock().current.len() as u64;
        let room = self.room.load(Ordering::SeqCst);
        self.room.store(room.saturating_add(freed), Ordering::SeqCst);
        Ok(())
    }

    fn free_space(&self) -> io::Result<u64> {
        Ok(self.room.load(Ordering::SeqCst))
    }
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.content.lock().current.len() as u64)
    }

    fn write_at(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut content = self.content.lock();
        let mut at = offset as usize;
        for part in parts.iter() {
            let end = at + part.len();
            content.current.get_mut(at..end).ok_or(io::ErrorKind::StorageFull)?.copy_from_slice(part);
            at = end;
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let content = self.content.lock();
        let range = offset as usize..offset as usize + buffer.len();
        buffer.copy_from_slice(content.current.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.fail_next_sync.swap(false, Ordering::SeqCst) {
            return Err(io::Error::other("simulated failure of a sync"));
        }
        let mut content = self.content.lock();
        content.durable = content.current.clone();
        Ok(())
    }
}
