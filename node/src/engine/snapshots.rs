//! Streaming a replica's state to one that is new or too far behind, while writes go on.
//!
//! On the connection, after the greeting: chunks, each with a little-endian u32 length before it, then a length
//! of 0; the receiver answers one byte, 1, when it has all of them on disk. The chunks are those of
//! [`crate::store::snapshot`]. Memory is bounded by a chunk on both sides.

use super::threads::{Input, ReceivedSnapshot};
use super::{Published, Shared};
use crate::raft::replica::decode_configuration;
use crate::store::LsmStore;
use crate::store::snapshot::{self, Importer};
use quoin_core::StoreError;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use crate::store::snapshot::Imported;

/// A chunk larger than this is no chunk.
const CHUNK_BYTES_MAX: usize = 64 << 20;
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
    let mut total = 0;
    for chunk in snapshot::export(&published.store, &published.progress).map_err(io::Error::other)? {
        let chunk = chunk.map_err(io::Error::other)?;
        let length = u32::try_from(chunk.len()).expect("chunks are far below 4 GiB");
        stream.write_all(&length.to_le_bytes())?;
        stream.write_all(&chunk)?;
        total += u64::from(length);
    }
    stream.write_all(&0u32.to_le_bytes())?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    if answer[0] != RECEIVED {
        return Err(io::Error::other("the receiver could not use it"));
    }
    Ok((published.progress.index.0, total))
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
    let mut importer = Importer::create(
        &shared.config.data_dir.join("store"),
        crate::raft::GROUP.0,
        crate::store_options(&shared.config),
    )
    .map_err(io::Error::other)?;
    let mut chunk = Vec::new();
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 {
            break;
        }
        if length > CHUNK_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a chunk of {length} bytes")));
        }
        chunk.resize(length, 0);
        stream.read_exact(&mut chunk)?;
        importer.push(&chunk).map_err(io::Error::other)?;
    }
    let imported = importer.finish().map_err(io::Error::other)?;
    let (index, term, configuration) = describe(imported.store()).map_err(io::Error::other)?;
    Ok(ReceivedSnapshot { from: 0, index, term, configuration, imported })
}

fn describe(store: &LsmStore) -> Result<(u64, u64, raft::eraftpb::ConfState), StoreError> {
    let progress = quoin_core::machines::read_progress(store)?;
    let configuration = quoin_core::machines::read_configuration(store)?.unwrap_or_default();
    let configuration = decode_configuration(&configuration)
        .map_err(|error| StoreError::new("decode the snapshot's configuration", error))?;
    Ok((progress.index.0, progress.term.0, configuration))
}
