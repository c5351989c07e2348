//! A folder of a log in memory, with the faults of a real one.

use super::disk::{Disk, DiskFile};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A folder in memory. A crash of the machine loses what was not synced, or any part of it; a crash of the
/// process loses nothing, as the page cache is still there.
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
    /// What readers see: the page cache.
    current: Vec<u8>,
    /// Pages that the next sync writes.
    dirty: BTreeSet<usize>,
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

    /// Makes the next sync fail. As on Linux, what it should have written stays readable and counts as
    /// written, so that no later sync writes it.
    pub fn fail_next_sync(&self) {
        self.fail_next_sync.store(true, Ordering::SeqCst);
    }

    /// Takes [`Self::fail_next_sync`] back.
    pub fn spare_next_sync(&self) {
        self.fail_next_sync.store(false, Ordering::SeqCst);
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

    /// The names of all files, in order.
    pub fn names(&self) -> Vec<String> {
        self.files.lock().keys().cloned().collect()
    }

    /// Changes `bits` of a byte where it lies. False if the file has no such byte.
    pub fn flip(&self, name: &str, offset: usize, bits: u8) -> bool {
        let file = self.files.lock().get(name).cloned();
        let Some(file) = file else { return false };
        let SimContent { durable, current, .. } = &mut *file.content.lock();
        let (Some(durable), Some(current)) = (durable.get_mut(offset), current.get_mut(offset)) else {
            return false;
        };
        (*durable, *current) = (*durable ^ bits, *current ^ bits);
        true
    }

    /// Replaces the synced and current bytes of a file.
    pub fn set_bytes(&self, name: &str, bytes: Vec<u8>) {
        if let Some(file) = self.files.lock().get(name) {
            *file.content.lock() = SimContent::synced(bytes);
        }
    }
}

/// Bytes that reach the disk independently of others. A crash may cut anywhere within.
const PAGE: usize = 512;

impl SimContent {
    fn synced(bytes: Vec<u8>) -> Self {
        Self { durable: bytes.clone(), current: bytes, dirty: BTreeSet::new() }
    }

    fn sync(&mut self) {
        for page in std::mem::take(&mut self.dirty) {
            let end = ((page + 1) * PAGE).min(self.current.len());
            self.durable[page * PAGE..end].copy_from_slice(&self.current[page * PAGE..end]);
        }
    }

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
        self.dirty.clear();
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
        let content = Mutex::new(SimContent::synced(vec![0; bytes as usize]));
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
        content.dirty.extend(offset as usize / PAGE..at.div_ceil(PAGE));
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let content = self.content.lock();
        let range = offset as usize..offset as usize + buffer.len();
        buffer.copy_from_slice(content.current.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut content = self.content.lock();
        if self.fail_next_sync.swap(false, Ordering::SeqCst) {
            content.dirty.clear();
            return Err(io::Error::other("simulated failure of a sync"));
        }
        content.sync();
        Ok(())
    }
}
