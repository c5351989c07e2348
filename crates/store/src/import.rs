//! Receiving a snapshot into a store of its own, which then replaces the live one.

use crate::folder::{FolderError, StoreFolder, make_live};
use crate::options::StoreOptions;
use crate::snapshot::{Chunk, Decoder, SnapshotError};
use crate::store::LsmStore;
use bytes::Bytes;
use quoin_core::store::Version;
use quoin_core::{Index, Progress, Store, StoreError, machines};
use std::path::PathBuf;

/// Why a snapshot cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The snapshot is damaged or incomplete.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The records hold another progress than the header announces.
    #[error("snapshot: its header announces {announced:?}, its records hold {found:?}; take another one")]
    Progress {
        /// The header's progress.
        announced: Box<Progress>,
        /// The progress record that was imported.
        found: Box<Progress>,
    },
    /// The new store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The new store could not be made the live one.
    #[error(transparent)]
    Folder(#[from] FolderError),
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

impl StoreFolder {
    /// Begins to receive a snapshot into a new store beside the live one.
    ///
    /// # Errors
    /// The new store cannot be created.
    pub fn import(&self, group: u32, options: StoreOptions) -> Result<Importer, FolderError> {
        let (number, path) = self.next()?;
        let store = LsmStore::open(&path, group, options)?;
        // Retired until it is live, so that a broken stream leaves nothing behind.
        store.retire();
        Ok(Importer {
            root: self.root().to_path_buf(),
            number,
            store,
            decoder: Decoder::default(),
            progress: None,
            last_key: Bytes::new(),
        })
    }
}

impl Importer {
    /// Takes the next chunk, as [`crate::Export`] yielded it. Waits while the disk is behind.
    ///
    /// # Errors
    /// The chunk is damaged or not the next one, or the new store failed: drop the importer and start over.
    pub fn chunk(&mut self, framed: Bytes) -> Result<(), ImportError> {
        match self.decoder.decode(framed)? {
            Chunk::Header(progress) => self.progress = Some(progress),
            Chunk::Records(records) => records.into_iter().try_for_each(|record| self.insert(record))?,
            Chunk::End => {}
        }
        Ok(())
    }

    fn insert(&mut self, (key, at, value): Version) -> Result<(), StoreError> {
        // A key's versions come newest first, and a newer memtable hides the ones before it: so all versions
        // of a key must be in one memtable.
        if key != self.last_key {
            self.store.batch_applied(Index(0))?;
            // A copy, because the slice would keep the whole chunk in memory.
            self.last_key = Bytes::copy_from_slice(&key);
        }
        match value {
            Some(value) => self.store.put(&key, value, at),
            None => self.store.delete(&key, at),
        }
        Ok(())
    }

    /// Whether the last chunk was taken.
    pub fn is_whole(&self) -> bool {
        self.decoder.finish().is_ok()
    }

    /// Checks that the whole snapshot was received, and returns the progress that it holds.
    ///
    /// # Errors
    /// The last chunk is missing, or the records hold another progress than the header announced.
    pub fn check_whole(&self) -> Result<Progress, ImportError> {
        self.decoder.finish()?;
        let found = machines::read_progress(&self.store)?;
        if self.progress != Some(found) {
            let announced = Box::new(self.progress.unwrap_or_default());
            return Err(ImportError::Progress { announced, found: Box::new(found) });
        }
        Ok(found)
    }

    /// The received store, not live yet.
    pub fn store(&self) -> &LsmStore {
        &self.store
    }

    /// Drops it as a crash would: what was received stays, and the next [`StoreFolder::open`] removes it.
    pub fn leave(self) {
        self.store.reinstate();
    }

    /// Makes the received store the live one, on disk, and returns it with the progress that it holds. The
    /// store that was live until then stays usable; call [`LsmStore::retire`] on it.
    ///
    /// # Errors The snapshot is incomplete, or the disk failed: the old store stays live. If only the last
    /// sync failed, a crash may leave either of them live, so neither is removed.
    pub fn commit(self) -> Result<(LsmStore, Progress), ImportError> {
        let progress = self.check_whole()?;
        // Invariant: Store before log. The new store is on disk and live before the caller may restart its
        // log.
        self.store.flush()?;
        self.store.set_persisted(progress.index);
        // Before the rename: if that fails halfway, the new store may be live, and a live store must not be
        // removed.
        self.store.reinstate();
        make_live(&self.root, self.number)?;
        Ok((self.store, progress))
    }
}
