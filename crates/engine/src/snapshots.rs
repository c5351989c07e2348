//! Streaming a replica's state to one that is new or too far behind, while writes go on.
//!
//! After the greeting the sender sends the chunks of [`quoin_store::Export`], which frame themselves, and
//! closes its direction. The receiver answers one byte, [`RECEIVED`], when it has all of them.
//!
//! **Invariant: Bounded.** Both sides hold one chunk in memory. A side that hears nothing for [`SILENCE_MAX`]
//! gives up, and the leader tries again, after a wait that grows with each failure. Meanwhile, and until the receiver
//! has caught up, the log is kept from the snapshot on (`purge.rs`).

use super::guarded;
use super::input::{Input, ReceivedSnapshot};
use super::resume::configuration_of;
use super::shared::{Published, Shared};
use super::surroundings::Request;
use quoin_consensus::greeting::Purpose;
use quoin_consensus::{Configuration, GROUP};
use quoin_core::{StoreError, machines};
use quoin_store::{Export, ImportError, Importer, LsmStore, read_chunk};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SILENCE_MAX: Duration = Duration::from_secs(30);
const RECEIVED: u8 = 1;

/// Streams the newest state to `to`, on a thread of its own, and reports the end to the raft thread.
pub(crate) fn send(shared: &Arc<Shared>, to: u64) {
    if let Some(surroundings) = &shared.surroundings {
        return surroundings.ask(Request::Snapshot { to });
    }
    let sending = Arc::clone(shared);
    let spawned = guarded::spawn(shared, "snapshot-send", move || {
        let begun = Instant::now();
        let result = stream_to(&sending, to);
        match &result {
            Ok((index, bytes)) => {
                let seconds = begun.elapsed().as_secs_f64();
                tracing::info!(to = format!("{to:016x}"), index, bytes, seconds, "sent a snapshot");
            }
            Err(error) => tracing::warn!(to = format!("{to:016x}"), %error, "sending a snapshot"),
        }
        ended(&sending, to, result.is_ok());
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to send a snapshot");
        shared.inbox.push(Input::SnapshotSent { to, success: false });
    }
}

/// The stream to `to` has ended.
pub(crate) fn ended(shared: &Shared, to: u64, success: bool) {
    shared.holds.lock().ended(to, success, shared.now());
    shared.inbox.push(Input::SnapshotSent { to, success });
}

/// The newest state, for `to`. The log is kept from there on until the stream has [`ended`].
pub(crate) fn export(shared: &Shared, to: u64) -> Result<Export<'static>, StoreError> {
    let published: Arc<Published> = shared.published.load_full();
    // The export may hold later entries, and no earlier end.
    shared.holds.lock().begin(to, published.progress.index.0);
    published.store.export()
}

/// The entry at which the snapshot ends, and its bytes.
fn stream_to(shared: &Shared, to: u64) -> io::Result<(u64, u64)> {
    let mut stream = shared.transport().dial(to, Purpose::Snapshot)?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let export = export(shared, to).map_err(io::Error::other)?;
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
        return Err(io::Error::other("the receiver could not use the snapshot: see its log"));
    }
    Ok((index, total))
}

/// Receives a snapshot on a greeted connection, and hands it to the raft thread.
pub(crate) fn receive(shared: &Shared, from: u64, mut stream: TcpStream) {
    match receive_all(shared, from, &mut stream) {
        Ok(received) => {
            shared.inbox.push(Input::SnapshotReceived(Box::new(received)));
            // If the answer is lost, the leader learns from this replica's next messages how far it is.
            let _ = stream.write_all(&[RECEIVED]);
        }
        Err(error) => tracing::warn!(from = format!("{from:016x}"), %error, "receiving a snapshot"),
    }
}

fn receive_all(shared: &Shared, from: u64, stream: &mut TcpStream) -> io::Result<ReceivedSnapshot> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    // The lock admits one sender at a time: another one waits until it gives up.
    let stores = shared.stores.lock();
    let mut importer = stores.import(GROUP.0, shared.store_options()).map_err(io::Error::other)?;
    while let Some(chunk) = read_chunk(stream).map_err(io::Error::other)? {
        importer.chunk(chunk).map_err(io::Error::other)?;
    }
    whole(from, importer).map_err(io::Error::other)
}

/// The snapshot that `importer` has received from `from`.
///
/// # Errors
/// It is not whole.
pub(crate) fn whole(from: u64, importer: Importer) -> Result<ReceivedSnapshot, ImportError> {
    importer.check_whole()?;
    let (index, term, configuration) = describe(importer.store())?;
    Ok(ReceivedSnapshot { from, index, term, configuration, importer })
}

fn describe(store: &LsmStore) -> Result<(u64, u64, Configuration), StoreError> {
    let progress = machines::read_progress(store)?;
    Ok((progress.index.0, progress.term.0, configuration_of(store)?))
}

/// Makes the received store the live one.
///
/// # Errors
/// The disk failed. On disk the old store is still the live one.
pub(crate) fn activate(importer: Importer) -> Result<Arc<LsmStore>, StoreError> {
    let committed: Result<_, ImportError> = importer.commit();
    let (store, _) = committed.map_err(|error| StoreError::new("installing a snapshot", error))?;
    Ok(Arc::new(store))
}
