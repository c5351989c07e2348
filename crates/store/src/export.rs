//! A store's state as a snapshot: for a new or lagging replica, and for backups.
//!
//! A snapshot holds every version that a reader of the exporting store may see, in the engine's own order,
//! each at its own sequence. So the importer answers every query as the exporter does, old revisions, watches
//! and hashes included.

use crate::snapshot::Encoder;
use crate::store::LsmStore;
use bytes::Bytes;
use quoin_core::machines::read_progress;
use quoin_core::store::Versions;
use quoin_core::{Progress, Store, StoreError};

/// A snapshot of a store: an iterator of framed chunks. After an error it ends.
pub struct Export<'a> {
    progress: Progress,
    versions: Versions<'a>,
    encoder: Encoder,
    next: Next,
}

/// The kind of the next chunk.
#[derive(Clone, Copy)]
enum Next {
    Header,
    Records,
    Nothing,
}

impl<'a> Export<'a> {
    /// A snapshot of `store` as of `progress`. The store must have reached that progress, and must not have
    /// been told to forget more than its compacted revision. See [`LsmStore::export`].
    pub fn new(store: &'a dyn Store, progress: Progress) -> Self {
        Self::of(progress, store.versions(progress.sequence))
    }

    fn of(progress: Progress, versions: Versions<'a>) -> Self {
        Self { progress, versions, encoder: Encoder::default(), next: Next::Header }
    }

    /// The progress of the state in the snapshot.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    fn records_or_end(&mut self) -> Result<Bytes, StoreError> {
        self.next = Next::Nothing;
        match self.encoder.records(&mut self.versions)? {
            Some(chunk) => {
                self.next = Next::Records;
                Ok(chunk)
            }
            None => Ok(self.encoder.end()),
        }
    }
}

impl Iterator for Export<'_> {
    type Item = Result<Bytes, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next {
            Next::Header => {
                self.next = Next::Records;
                Some(Ok(self.encoder.header(&self.progress)))
            }
            Next::Records => Some(self.records_or_end()),
            Next::Nothing => None,
        }
    }
}

impl LsmStore {
    /// A snapshot of the newest whole entry. Applying continues meanwhile; the files and memtables that the
    /// snapshot needs are kept until it is dropped.
    ///
    /// # Errors
    /// The progress record cannot be read.
    pub fn export(&self) -> Result<Export<'static>, StoreError> {
        // Pinned before the progress is read: a compaction in between must not take that progress' history.
        let _pin = self.pin_now();
        let progress = read_progress(self)?;
        Ok(Export::of(progress, self.versions_owned(progress.sequence)))
    }
}
