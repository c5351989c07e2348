//! Streaming a replica's state to one that is new or too far behind, while writes go on.
//!
//! On the connection, after the greeting: the chunks of [`crate::store::Export`], which frame themselves, and the
//! end of the sender's direction; the receiver answers one byte, 1, when it has all of them. Memory is bounded by
//! a chunk on both sides.

use super::threads::{Input, ReceivedSnapshot};
use super::{Published, Shared};
use crate::raft::replica::decode_configuration;
use crate::store::{Importer, LsmStore, SnapshotError, read_chunk};
use quoin_core::{StoreError, machines};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A side that hears nothing for this long gives up.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const RECEIVED: u8 = 1;

/// Streams the newest state to `to`, on a thread of its own, and reports the end to the raft thread.
pub(crate) fn send(shared: &Arc<Shared>, to: u64) {
    let sending = Arc::clone(shared);
    let spawned = std::thread::Builder::new().name("snapshot-send".into()).spawn(move || {
        let begun = Instant::now();
        let result = stream_to(&sending, to);
        match &result {
            Ok((index, bytes)) => {
                let seconds = begun.elapsed().as_secs_f64();
                tracing::info!(to = format!("{to:x}"), index, bytes, seconds, "sent a snapshot");
            }
            Err(error) => tracing::warn!(to = format!("{to:x}"), %error, "sending a snapshot"),
        }
        sending.inbox.push(Input::SnapshotSent { to, success: result.is_ok() });
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to send a snapshot");
        shared.inbox.push(Input::SnapshotSent { to, success: false });
    }
}

fn stream_to(shared: &Shared, to: u64) -> io::Result<(u64, u64)> {
    let mut stream = shared.transport().dial_snapshot(to)?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let published: Arc<Published> = shared.published.load_full();
    let export = published.store.export().map_err(io::Error::other)?;
    let index = export.progress().index.0;
    let mut total = 0;
    for chunk in export {
        let chunk = chunk.map_err(io::Error::other)?;
        stream.write_all(&chunk)?;
        total += chunk.len() as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    if answer[0] != RECEIVED {
        return Err(io::Error::other("the receiver could not use it"));
    }
    Ok((index, total))
}

/// Receives a snapshot on a connection that was greeted, and hands it to the raft thread.
pub(crate) fn receive(shared: &Shared, from: u64, mut stream: TcpStream) {
    match receive_all(shared, &mut stream) {
        Ok(mut received) => {
            received.from = from;
            shared.inbox.push(Input::SnapshotReceived(Box::new(received)));
            // The sender only keeps a record of it: should the answer be lost, Raft finds out by itself.
            let _ = stream.write_all(&[RECEIVED]);
        }
        Err(error) => tracing::warn!(from = format!("{from:x}"), %error, "receiving a snapshot"),
    }
}

fn receive_all(shared: &Shared, stream: &mut TcpStream) -> io::Result<ReceivedSnapshot> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    let options = crate::store_options(&shared.config);
    // One at a time: a second sender waits, and is refused by its own time limit.
    let importing = shared.stores.lock();
    let mut importer = importing.import(crate::raft::GROUP.0, options).map_err(io::Error::other)?;
    while let Some(chunk) = read_chunk(stream)? {
        importer.chunk(chunk).map_err(io::Error::other)?;
    }
    importer.check_whole().map_err(io::Error::other)?;
    let (index, term, configuration) = describe(importer.store()).map_err(io::Error::other)?;
    Ok(ReceivedSnapshot { from: 0, index, term, configuration, importer })
}

fn describe(store: &LsmStore) -> Result<(u64, u64, raft::eraftpb::ConfState), StoreError> {
    let progress = machines::read_progress(store)?;
    let configuration = machines::read_configuration(store)?.unwrap_or_default();
    let configuration = decode_configuration(&configuration)
        .map_err(|error| StoreError::new("decode the snapshot's configuration", error))?;
    Ok((progress.index.0, progress.term.0, configuration))
}

/// Makes the received store the live one.
///
/// # Errors
/// The disk failed: the old store is still the live one on disk.
pub(super) fn activate(importer: Importer) -> Result<Arc<LsmStore>, StoreError> {
    let committed: Result<_, SnapshotError> = importer.commit();
    let (store, _) = committed.map_err(|error| StoreError::new("installing a snapshot", error))?;
    Ok(Arc::new(store))
}
