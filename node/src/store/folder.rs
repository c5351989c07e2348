//! Where stores live: numbered sub-folders, one of them the live one, named by the file `CURRENT`.
//!
//! **Invariant (old or new).** A store is replaced by renaming a new `CURRENT` into place once the new store is
//! whole and on disk. A crash before leaves the old one, a crash after leaves the new one; what is not live is
//! removed when its last user lets go of it ([`LsmStore::retire`]), or at the next open.

use super::snapshot::{Chunk, Decoder, SnapshotError};
use super::{LsmStore, StoreOpenError, StoreOptions};
use bytes::Bytes;
use quoin_core::{Index, Progress, Store};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Release;

const CURRENT: &str = "CURRENT";
const CURRENT_NEXT: &str = "CURRENT.next";

/// The folder of a node's stores.
pub struct StoreFolder {
    root: PathBuf,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `CURRENT` is missing or wrong although there is data.
    #[error("{}: {what}; restore this replica from a backup, or remove it and add it anew", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The live store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreOpenError),
}

impl StoreFolder {
    /// Opens `root`, which is created if it is not there, and removes what is left of imports and of stores that
    /// were replaced. No other process and no other [`StoreFolder`] may use it.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open(root: &Path) -> Result<Self, FolderError> {
        let folder = Self { root: root.to_path_buf() };
        fs::create_dir_all(root).map_err(io_error(root))?;
        match folder.live()? {
            Some(_) => folder.remove_leftovers()?,
            None => folder.found()?,
        }
        Ok(folder)
    }

    /// Opens the live store.
    ///
    /// # Errors
    /// See [`StoreOpenError`].
    pub fn open_store(&self, group: u32, options: StoreOptions) -> Result<LsmStore, FolderError> {
        let live = self.live()?.ok_or_else(|| self.damaged("it is gone"))?;
        Ok(LsmStore::open(&self.path(live), group, options)?)
    }

    /// Begins to receive a snapshot into a store of its own, beside the live one.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn import(&self, group: u32, options: StoreOptions) -> Result<Importer, FolderError> {
        let number = self.numbers()?.into_iter().max().unwrap_or(0) + 1;
        let store = LsmStore::open(&self.path(number), group, options)?;
        // Until it is live: a stream that breaks off leaves nothing.
        store.retire();
        let root = self.root.clone();
        Ok(Importer {
            root,
            number,
            store,
            decoder: Decoder::default(),
            progress: None,
            last_key: Bytes::new(),
        })
    }

    fn remove_leftovers(&self) -> Result<(), FolderError> {
        let live = self.live()?;
        for number in self.numbers()?.into_iter().filter(|number| Some(*number) != live) {
            let path = self.path(number);
            fs::remove_dir_all(&path).map_err(io_error(&path))?;
        }
        Ok(())
    }

    /// The first store of a new folder.
    fn found(&self) -> Result<(), FolderError> {
        if let Some(number) =
            self.numbers()?.into_iter().find(|number| self.path(*number).join("current").exists())
        {
            return Err(
                self.damaged(&format!("it is missing, but {} holds a store", self.path(number).display()))
            );
        }
        fs::create_dir_all(self.path(1)).map_err(io_error(&self.path(1)))?;
        make_live(&self.root, 1)
    }

    /// The number in `CURRENT`; `None` without that file.
    fn live(&self) -> Result<Option<u64>, FolderError> {
        let path = self.root.join(CURRENT);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(FolderError::Io { path, source }),
        };
        let number = text.strip_suffix('\n').and_then(|number| number.parse().ok());
        let number = number.ok_or_else(|| self.damaged(&format!("{text:?} is no number and line end")))?;
        if !self.path(number).is_dir() {
            return Err(
                self.damaged(&format!("it names {}, which is not there", self.path(number).display()))
            );
        }
        Ok(Some(number))
    }

    fn numbers(&self) -> Result<Vec<u64>, FolderError> {
        let entries = fs::read_dir(&self.root).map_err(io_error(&self.root))?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>();
        let names = names.map_err(io_error(&self.root))?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.root.join(number.to_string())
    }

    fn damaged(&self, what: &str) -> FolderError {
        FolderError::Damaged { path: self.root.join(CURRENT), what: what.to_owned() }
    }
}

/// A snapshot being received. Dropping it before [`Importer::commit`] leaves the live store as it is.
pub struct Importer {
    root: PathBuf,
    number: u64,
    store: LsmStore,
    decoder: Decoder,
    progress: Option<Progress>,
    last_key: Bytes,
}

impl Importer {
    /// Takes the next chunk, as [`super::Export`] yielded it. Waits while the disk is behind.
    ///
    /// # Errors
    /// The chunk is damaged or not the next one, or the new store failed: drop the importer and begin anew.
    pub fn chunk(&mut self, framed: Bytes) -> Result<(), SnapshotError> {
        match self.decoder.decode(framed)? {
            Chunk::Header(progress) => self.progress = Some(progress),
            Chunk::Records(records) => records.into_iter().try_for_each(|record| self.insert(record))?,
            Chunk::End => {}
        }
        Ok(())
    }

    fn insert(&mut self, (key, at, value): quoin_core::store::Version) -> Result<(), SnapshotError> {
        // A memtable hides those before it, and versions come newest first: one key must not span two memtables.
        if key != self.last_key {
            self.store.batch_applied(Index(0))?;
            // The slice would keep the whole chunk.
            self.last_key = Bytes::copy_from_slice(&key);
        }
        match value {
            Some(value) => self.store.put(&key, value, at),
            None => self.store.delete(&key, at),
        }
        Ok(())
    }

    /// The last chunk was taken.
    pub fn is_whole(&self) -> bool {
        self.decoder.finish().is_ok()
    }

    /// Checks that the snapshot is here whole.
    ///
    /// # Errors
    /// The stream has not come to its end, or its records are not those that its header announced.
    pub fn check_whole(&self) -> Result<Progress, SnapshotError> {
        self.decoder.finish()?;
        let malformed = |what: &str| SnapshotError::Malformed { chunk: 0, what: what.to_owned() };
        let progress = self.progress.ok_or_else(|| malformed("no header"))?;
        if quoin_core::machines::read_progress(&self.store)? != progress {
            return Err(malformed("its progress is not the one in its records"));
        }
        Ok(progress)
    }

    /// The store that was received, not yet the live one.
    pub fn store(&self) -> &LsmStore {
        &self.store
    }

    /// Makes the received store the live one, on disk, and returns it with the progress that it holds. The store
    /// that was live before stays usable; call [`LsmStore::retire`] on it.
    ///
    /// # Errors
    /// The stream has not come to its end, or the disk failed: the old store stays the live one.
    pub fn commit(self) -> Result<(LsmStore, Progress), SnapshotError> {
        let progress = self.check_whole()?;
        self.store.flush()?;
        self.store.restored(progress.index);
        // Before it is named: whether a failed renaming has happened is not known, and a live store must not go.
        self.store.folder.retired.store(false, Release);
        make_live(&self.root, self.number)?;
        Ok((self.store, progress))
    }
}

/// Renames a new `CURRENT` into place; when this returns, it is on disk.
fn make_live(root: &Path, number: u64) -> Result<(), FolderError> {
    let next = root.join(CURRENT_NEXT);
    let mut file = File::create(&next).map_err(io_error(&next))?;
    writeln!(file, "{number}").and_then(|()| file.sync_all()).map_err(io_error(&next))?;
    sync_folder(root)?;
    fs::rename(&next, root.join(CURRENT)).map_err(io_error(&next))?;
    sync_folder(root)
}

fn sync_folder(path: &Path) -> Result<(), FolderError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(io_error(path))
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_path_buf();
    move |source| FolderError::Io { path, source }
}
