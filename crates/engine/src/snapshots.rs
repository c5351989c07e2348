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
use quoin_consensus::{Configuration, GROUP, PeerStream};
use quoin_core::{StoreError, machines};
use quoin_store::{Export, ImportError, Importer, LsmStore, read_chunk};
use std::io::{self, Read, Write};
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
        sending.inbox.push(Input::SnapshotSent { to, success: result.is_ok() });
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to send a snapshot");
        shared.inbox.push(Input::SnapshotSent { to, success: false });
    }
}

/// The newest state, for `to`, and the stream's number. The log is kept from there on until the stream has [`ended`].
pub(crate) fn export(shared: &Shared, to: u64) -> Result<(u64, Export<'static>), StoreError> {
    let published: Arc<Published> = shared.published.load_full();
    // The export may hold later entries, and no earlier end.
    let stream = shared.holds.lock().begin(to, published.progress.index.0);
    let export = published.store.export();
    if export.is_err() {
        ended(shared, stream, false);
    }
    Ok((stream, export?))
}

/// The stream with this number has ended.
pub(crate) fn ended(shared: &Shared, stream: u64, success: bool) {
    shared.holds.lock().ended(stream, success, shared.now());
}

/// The entry at which the snapshot ends, and its bytes.
fn stream_to(shared: &Shared, to: u64) -> io::Result<(u64, u64)> {
    let mut stream = shared.transport().dial(to, Purpose::Snapshot)?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let (number, export) = export(shared, to).map_err(io::Error::other)?;
    let sent = send_all(&mut stream, export);
    ended(shared, number, sent.is_ok());
    sent
}

fn send_all(stream: &mut PeerStream, export: Export<'static>) -> io::Result<(u64, u64)> {
    let index = export.progress().index.0;
    let mut total = 0;
    for chunk in export {
        let chunk = chunk.map_err(io::Error::other)?;
        stream.write_all(&chunk)?;
        total += chunk.len() as u64;
    }
    stream.finish()?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    if answer[0] != RECEIVED {
        return Err(io::Error::other("the receiver could not use the snapshot: see its log"));
    }
    Ok((index, total))
}

/// Receives a snapshot on a greeted connection, and hands it to the raft thread.
pub(crate) fn receive(shared: &Shared, from: u64, mut stream: PeerStream) {
    match receive_all(shared, from, &mut stream) {
        Ok(received) => {
            shared.inbox.push(Input::SnapshotReceived(Box::new(received)));
            // If the answer is lost, the leader learns from this replica's next messages how far it is.
            let _ = stream.write_all(&[RECEIVED]);
        }
        Err(error) => tracing::warn!(from = format!("{from:016x}"), %error, "receiving a snapshot"),
    }
}

fn receive_all(shared: &Shared, from: u64, stream: &mut PeerStream) -> io::Result<ReceivedSnapshot> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::founding::Founding;
    use crate::owner::Owner;
    use crate::peers::PeerHandler;
    use crate::purge;
    use crate::settings::{LogConfig, Settings};
    use crate::start::Opened;
    use crate::status::RaftStatus;
    use bytes::Bytes;
    use parking_lot::Mutex;
    use quoin_consensus::GroupId;
    use quoin_consensus::log::{Entry, EntryKind, Record, SimDisk};
    use quoin_consensus::message::PeerMessage;
    use quoin_consensus::transport::{Endpoint, Handler, Transport};
    use quoin_core::{Index, Progress, Store, system};
    use std::collections::BTreeMap;
    use std::net::TcpListener;
    use std::sync::mpsc::{Sender, channel};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A follower that takes a snapshot only when the test does.
    struct Follower(Mutex<Sender<PeerStream>>);

    impl Handler for Follower {
        fn received(&self, _: u64, _: GroupId, _: PeerMessage) {}
        fn lost(&self, _: u64) {}
        fn file_asked(&self, _: PeerStream) {}
        fn snapshot_offered(&self, _: u64, stream: PeerStream) {
            self.0.lock().send(stream).unwrap();
        }
        fn name_of(&self, _: u64) -> String {
            String::new()
        }
        fn join_asked(&self, _: PeerStream) {}
        fn founding_asked(&self, _: u64, _: u64, _: PeerStream) {}
        fn is_removed(&self, _: u64) -> bool {
            false
        }
        fn is_other_disk(&self, _: u64, _: u64) -> bool {
            false
        }
        fn is_vouched_for(&self, _: u64, _: &str) -> bool {
            true
        }
        fn cast_out(&self, _: &str) {}
        fn failed(&self, _: &str) {}
    }

    /// The transport of member `id`, with its address.
    fn transport(
        id: u64,
        peers: &BTreeMap<u64, String>,
        handler: Arc<dyn Handler>,
    ) -> (String, Arc<Transport>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let started = Transport::start(
            Endpoint { listener, address: address.clone(), keys: None },
            (7, id, id),
            GROUP,
            handler,
            peers,
            PATIENCE,
        );
        (address, started.unwrap())
    }

    /// Nothing held the log while a snapshot was streamed: a follower of a busy leader needed the next one as soon as
    /// it had the first.
    #[test]
    fn the_log_is_held_while_a_snapshot_is_streamed_and_until_the_follower_has_caught_up() {
        let (folder, runtime) = (tempfile::tempdir().unwrap(), tokio::runtime::Runtime::new().unwrap());
        let log = LogConfig { segment_bytes: 1 << 20, keep_bytes: 0, ..LogConfig::default() };
        let settings = Settings { log, ..Settings::default() };
        let founding = Founding::of([1, 2].map(|id| system::Member { id, ..Default::default() }).into());
        let owner = Owner { cluster: 7, id: 1, disk: 1, ..Owner::default() };
        let disk = Arc::new(SimDisk::new());
        let opened = Opened::open(owner, folder.path(), disk, settings, Some(&founding)).unwrap();
        let (shared, _replica, _applier) = opened.into_parts();
        let (offered, streams) = channel();
        let (address, _follower) = transport(2, &BTreeMap::new(), Arc::new(Follower(Mutex::new(offered))));
        let handler = Arc::new(PeerHandler::new(&shared, Some(runtime.handle().clone())));
        shared.set_transport(transport(1, &BTreeMap::from([(2, address)]), handler).1);

        send(&shared, 2);
        let mut stream = streams.recv_timeout(PATIENCE).unwrap();
        for index in 2..10 {
            let data = vec![0; 1 << 19].into();
            let entry = Entry { index, term: 1, kind: EntryKind::Normal, context: Bytes::new(), data };
            shared.log.append(&[Record::Entry(GROUP, entry)]).unwrap();
        }
        let store = Arc::clone(&shared.published.load().store);
        let Progress { sequence, .. } = shared.published.load().progress;
        store.put(b"something", Bytes::from_static(b"written"), sequence);
        store.batch_applied(Index(9)).unwrap();
        store.flush().unwrap();
        let purged_to = |matched| {
            let followers = vec![(2, matched, true)];
            shared.raft.send_replace(Arc::new(RaftStatus { applied: 9, followers, ..RaftStatus::default() }));
            purge::purge(&shared).unwrap();
            shared.log.first_index(GROUP)
        };
        // The stream has begun once its first bytes are here.
        stream.read_exact(&mut [0]).unwrap();
        assert_eq!(purged_to(0), 2, "while it is streamed");
        io::copy(&mut stream, &mut io::sink()).unwrap();
        stream.write_all(&[RECEIVED]).unwrap();
        let (mut inputs, deadline) = (Vec::new(), Some(Instant::now() + PATIENCE));
        let is_sent = |input: &Input| matches!(input, Input::SnapshotSent { to: 2, success: true });
        while !inputs.iter().any(is_sent) {
            assert!(Some(Instant::now()) < deadline, "nobody was told that it was sent");
            shared.inbox.take(&mut inputs, deadline);
        }
        assert_eq!(purged_to(0), 2, "until it is installed");
        assert!(purged_to(9) > 2, "it has all of the log");
    }
}
