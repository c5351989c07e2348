//! `Maintenance.Snapshot`: the state as one file.
//!
//! For etcd's clients it is a database of etcd's ([`quoin_etcd_file`]), which its tools check and restore. It is written
//! to a file without a name beside the store first, since a database begins with what is known only at its end. For
//! `quoin snapshot save`, which asks for it by [`SNAPSHOT_FORMAT`], it is in Quoin's format: the chunks of
//! [`quoin_store::Export`], as they are read, and zeros up to a multiple of 512 bytes. Behind both is their SHA-256.
//!
//! **Invariant: Bounded.** At most [`FILES_MAX`] databases are on the disk, for as long as their clients take them; others
//! wait. They leave free what merging must leave free.

use super::header::{API_VERSION, header_at, signed};
use crate::commands::pinned;
use crate::error::{Error, Kind};
use crate::grpc::outbound::{self, AnswerStream, Answers, send_blocking};
use crate::life::Life;
use bytes::{Bytes, BytesMut};
use quoin_engine::{Engine, ReadView};
use quoin_etcd_file::{ExportError, export};
use quoin_proto::SNAPSHOT_FORMAT;
use quoin_proto::etcdserverpb as pb;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::metadata::MetadataMap;

/// Maximum messages that wait for a slow client; then reading waits.
const MESSAGES_MAX: usize = 4;
/// Maximum bytes in a message.
const MESSAGE_BYTES: usize = 256 << 10;
/// etcd's tools take a file for a snapshot with a checksum if its length is a multiple of this plus a
/// SHA-256.
const PADDING: usize = 512;
/// Maximum databases of etcd's that are written or sent at a time.
const FILES_MAX: usize = 2;
/// How often a database is begun anew because history was compacted meanwhile.
const ATTEMPTS_MAX: usize = 3;

/// Sends snapshots.
pub(super) struct Snapshots {
    files: Arc<Semaphore>,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self { files: Arc::new(Semaphore::new(FILES_MAX)) }
    }
}

impl Snapshots {
    /// A snapshot in the format that the caller asks for.
    pub(super) fn send(
        &self,
        engine: &Engine,
        life: &Life,
        metadata: &MetadataMap,
    ) -> Result<AnswerStream<pb::SnapshotResponse>, Error> {
        let (name, ours) = SNAPSHOT_FORMAT;
        match metadata.get(name).map(|format| format.as_bytes()) {
            None => Ok(self.send_etcds(engine, life)),
            Some(format) if format == ours.as_bytes() => Ok(send_ours(engine, life)),
            Some(format) => {
                let format = format.escape_ascii();
                Err(Error::invalid(format_args!(
                    "{name} is {format}: leave it out for etcd's, or say {ours}"
                )))
            }
        }
    }

    fn send_etcds(&self, engine: &Engine, life: &Life) -> AnswerStream<pb::SnapshotResponse> {
        let (files, engine) = (Arc::clone(&self.files), engine.clone());
        outbound::spawn(life, MESSAGES_MAX, |answers| async move {
            let place = files.acquire_owned().await.map_err(Error::fault)?;
            outbound::blocking(move || {
                let _place = place;
                send_database(&engine, &answers)
            })
            .await
        })
    }
}

fn send_database(engine: &Engine, answers: &Answers<pb::SnapshotResponse>) -> Result<(), Error> {
    let (mut database, view) = database(engine)?;
    let mut left = database.stream_position().map_err(Error::fault)?;
    database.rewind().map_err(Error::fault)?;
    let mut blob = Blob::new(answers, header_at(engine, view.progress()));
    while left > 0 {
        let mut piece = BytesMut::zeroed(left.min(MESSAGE_BYTES as u64) as usize);
        database.read_exact(&mut piece).map_err(Error::fault)?;
        left -= piece.len() as u64;
        blob.remaining = left + Sha256::output_size() as u64;
        blob.push(piece.freeze())?;
    }
    blob.finish()
}

/// A database of etcd's, at its end, and the state that is in it.
fn database(engine: &Engine) -> Result<(File, ReadView), Error> {
    for _ in 0..ATTEMPTS_MAX {
        let view = engine.latest();
        let Ok((_pin, oldest)) = pinned(&view, view.progress().compacted)? else { continue };
        let store = view.store();
        let room = || store.check_room();
        match export(view.view(), view.progress(), oldest, store.scratch_folder(), &room) {
            Ok((file, left)) => {
                if let Some(left) = left.text() {
                    tracing::warn!(left, "a snapshot for etcd leaves out what etcd cannot hold");
                }
                return Ok((file, view));
            }
            Err(ExportError::Compacted(_)) => {}
            Err(ExportError::Io(error)) if error.kind() == ErrorKind::StorageFull => {
                let text = "the disk has no room for a file of all keys, in which a snapshot for etcd is made: free some, \
                            or use quoin snapshot save, which needs none";
                return Err(Error::Refused(Kind::ResourceExhausted, text.into()));
            }
            Err(error) => return Err(Error::fault(error)),
        }
    }
    Err(Error::unavailable("history is compacted too often to be read: take the snapshot again"))
}

fn send_ours(engine: &Engine, life: &Life) -> AnswerStream<pb::SnapshotResponse> {
    let view = engine.latest();
    let header = header_at(engine, view.progress());
    outbound::spawn_blocking(life, MESSAGES_MAX, move |answers| {
        let chunks = view.store().export()?;
        let mut blob = Blob::new(answers, header);
        // The snapshot may be newer than the view; the header has its revision.
        blob.header.revision = signed(chunks.progress().revision.0);
        for chunk in chunks {
            blob.push(chunk?)?;
        }
        blob.finish()
    })
}

/// A snapshot's bytes on their way to the client.
struct Blob<'a> {
    answers: &'a Answers<pb::SnapshotResponse>,
    header: pb::ResponseHeader,
    sha: Sha256,
    bytes: usize,
    /// Bytes that follow; 0 if that is not known.
    remaining: u64,
}

impl<'a> Blob<'a> {
    fn new(answers: &'a Answers<pb::SnapshotResponse>, header: pb::ResponseHeader) -> Self {
        Self { answers, header, sha: Sha256::new(), bytes: 0, remaining: 0 }
    }

    fn push(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.sha.update(&bytes);
        self.bytes += bytes.len();
        self.send(bytes)
    }

    fn send(&self, mut bytes: Bytes) -> Result<(), Error> {
        while !bytes.is_empty() {
            let blob = bytes.split_to(bytes.len().min(MESSAGE_BYTES));
            let message = pb::SnapshotResponse {
                header: Some(self.header),
                remaining_bytes: self.remaining,
                blob,
                version: API_VERSION.to_owned(),
            };
            send_blocking(self.answers, message)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        let padding = self.bytes.next_multiple_of(PADDING) - self.bytes;
        self.push(Bytes::from(vec![0; padding]))?;
        self.remaining = 0;
        let digest = std::mem::take(&mut self.sha).finalize();
        self.send(Bytes::copy_from_slice(&digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::etcd::Maintenance;
    use crate::testing::alone;
    use pb::maintenance_server::Maintenance as _;
    use tokio_stream::StreamExt;
    use tonic::{Code, Request};

    /// Whoever asks for no format is a client of etcd's: its tools could not read what they had saved.
    #[test]
    fn the_format_is_etcds_unless_ours_is_asked_for() {
        alone(|engine| async move {
            let (_running, life) = tokio::sync::watch::channel(false);
            let service = Maintenance::new(engine, Life(life));
            for (format, is_etcds) in [(None, true), (Some("quoin"), false)] {
                let mut request = Request::new(pb::SnapshotRequest {});
                if let Some(format) = format {
                    request.metadata_mut().insert(SNAPSHOT_FORMAT.0, format.parse().unwrap());
                }
                let mut pieces = service.snapshot(request).await.unwrap().into_inner();
                let (mut saved, mut remaining) = (Vec::new(), None);
                while let Some(piece) = pieces.next().await {
                    let piece = piece.unwrap();
                    saved.extend_from_slice(&piece.blob);
                    remaining = Some(piece.remaining_bytes);
                }
                assert_eq!(quoin_etcd_file::is_database(&saved), is_etcds);
                assert_eq!(remaining, Some(0));
                let (content, sha) = saved.split_at(saved.len() - Sha256::output_size());
                assert_eq!(content.len() % PADDING, 0);
                assert_eq!(Sha256::digest(content)[..], *sha);
            }
            let mut request = Request::new(pb::SnapshotRequest {});
            request.metadata_mut().insert(SNAPSHOT_FORMAT.0, "other".parse().unwrap());
            let refused = service.snapshot(request).await.map(|_| ()).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains("quoin-snapshot-format is other"), "{refused}");
        });
    }
}
