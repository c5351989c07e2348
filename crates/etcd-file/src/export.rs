//! Quoin's keys, leases and history become a database of etcd's.
//!
//! etcd orders everything by revision. Quoin's events are in that order already; the keys as they were at the compacted
//! revision are in that of their names, and are sorted first ([`crate::sort`]).

use crate::records::{
    ALARM, AUTH, AUTH_ROLES, AUTH_USERS, CLUSTER, CONFIGURATION, CONSISTENT_INDEX, FINISHED_COMPACTION, KEY,
    LEASE, Lease, MEMBERS, MEMBERS_REMOVED, META, Place, SCHEDULED_COMPACTION, TERM,
};
use crate::sort::{SORT_BYTES, Sorter};
use crate::writer::Writer;
use prost::Message;
use quoin_core::kv::{self, KeyValue, Kind};
use quoin_core::{Order, Progress, Revision, Sequence, StoreError, View, history};
use quoin_proto::mvccpb;
use std::fs::File;
use std::io;
use std::path::Path;

/// The folder is asked whether it has room each time that so much was written.
const ROOM_BYTES: u64 = 32 << 20;

/// Why a database was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database could not be written.
    #[error("writing etcd's database: {0}")]
    Io(#[from] io::Error),
    /// History went while it was read.
    #[error("the history from revision {0} on was compacted meanwhile: take the snapshot again")]
    Compacted(Revision),
}

/// What an etcd cannot hold, and was left behind or became something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Hashes, which became values that tell about them.
    pub hashes: u64,
    /// Keys with a time to live of their own, which became keys without one.
    pub expiring: u64,
    /// There are route rules.
    pub routes: bool,
    /// There are accounts or transfers.
    pub ledger: bool,
    /// There are lookup tables.
    pub tables: bool,
    /// There are users or roles: who restores the file lets everybody in.
    pub users: bool,
    /// There are libraries of functions.
    pub functions: bool,
}

impl Left {
    /// What it is, in words; `None` if nothing is.
    pub fn text(&self) -> Option<String> {
        let mut parts = Vec::new();
        if self.hashes > 0 {
            parts.push(format!("{} hashes (their keys have a text about them)", self.hashes));
        }
        if self.expiring > 0 {
            parts.push(format!("{} times to live of keys (they stay)", self.expiring));
        }
        for (there, name) in [
            (self.routes, "route rules"),
            (self.ledger, "the ledger"),
            (self.tables, "lookup tables"),
            (self.functions, "libraries of functions"),
            (self.users, "users and roles (whoever reaches the etcd that restores it may do everything)"),
        ] {
            if there {
                parts.push(name.to_owned());
            }
        }
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Writes the state of `view`, at `progress`, into a file without a name in `folder`, and returns it with what etcd
/// cannot hold. The caller keeps the history from `oldest` on, where the compacted revision is seen, from being
/// compacted; `room` says whether the disk has room for more.
///
/// # Errors
/// See [`ExportError`].
pub fn export(
    view: View<'_>,
    progress: &Progress,
    oldest: Sequence,
    folder: &Path,
    room: &dyn Fn() -> io::Result<()>,
) -> Result<(File, Left), ExportError> {
    let mut out = Output { writer: Writer::new(tempfile::tempfile_in(folder)?)?, room, asked: 0 };
    // In the order of their names, as a database has them.
    for name in [ALARM, AUTH, AUTH_ROLES, AUTH_USERS, CLUSTER] {
        out.writer.begin_bucket(name)?;
    }
    out.writer.begin_bucket(KEY)?;
    // What it holds of the records of events stays, whatever is compacted from here on.
    let mut events = history::events(view, progress.compacted.next(), progress.revision, kv::is_key);
    let mut next = progress.compacted.0.max(1) + 1;
    let mut newest = base(view.at(oldest), folder, &mut out)?;
    for event in &mut events {
        let event = event?;
        if event.revision.0 != next {
            return Err(ExportError::Compacted(Revision(next)));
        }
        next += 1;
        for (sub, change) in event.changes.iter().enumerate() {
            let Some(kv) = kv::change_to_key_value(change, event.revision)? else { continue };
            let deleted = change.value.is_none();
            let place = Place { revision: event.revision.0, sub: sub as u64, deleted };
            newest = place.revision;
            out.put(&place.encode(), &record(kv, deleted))?;
        }
    }
    if next <= progress.revision.0 {
        return Err(ExportError::Compacted(Revision(next)));
    }
    // Revisions after the last change of a key belong to other faces. The deletion of a key that nobody can name keeps
    // etcd from giving them again.
    if newest < progress.revision.0 && progress.revision.0 > 1 {
        let place = Place { revision: progress.revision.0, sub: 0, deleted: true };
        out.put(&place.encode(), &[])?;
    }
    out.writer.begin_bucket(LEASE)?;
    for lease in kv::leases(view, progress)? {
        let record = Lease { id: lease.id, ttl: lease.granted_ttl_s, remaining_ttl: 0 };
        out.put(&lease.id.to_be_bytes(), &record.encode_to_vec())?;
    }
    out.writer.begin_bucket(MEMBERS)?;
    out.writer.begin_bucket(MEMBERS_REMOVED)?;
    out.writer.begin_bucket(META)?;
    meta(progress, &mut out)?;
    Ok((out.writer.finish()?, left(view)?))
}

/// What is written, and whether the disk has room for it.
struct Output<'a> {
    writer: Writer,
    room: &'a dyn Fn() -> io::Result<()>,
    /// How much was written when the disk was asked last.
    asked: u64,
}

impl Output<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.ask(self.writer.bytes())?;
        self.writer.put(key, &[value])
    }

    fn ask(&mut self, written: u64) -> io::Result<()> {
        if written < self.asked + ROOM_BYTES {
            return Ok(());
        }
        self.asked = written;
        (self.room)()
    }
}

/// Writes the keys as `view` has them, and returns the newest of their revisions.
fn base(view: View<'_>, folder: &Path, out: &mut Output<'_>) -> Result<u64, ExportError> {
    let mut sorter = Sorter::new(folder, SORT_BYTES);
    for kv in kv::all(view) {
        let kv = kv?;
        let mut key = kv.mod_revision.to_be_bytes().to_vec();
        key.extend_from_slice(&kv.key);
        sorter.push(key, record(kv, false))?;
        out.ask(sorter.spooled())?;
    }
    out.asked = 0;
    let mut sorted = sorter.sorted()?;
    let mut last = Place { revision: 0, sub: 0, deleted: false };
    while let Some((key, value)) = sorted.next()? {
        let revision = key.first_chunk().copied().map_or(0, u64::from_be_bytes);
        let sub = if revision == last.revision { last.sub + 1 } else { 0 };
        last = Place { revision, sub, deleted: false };
        out.put(&last.encode(), &value)?;
    }
    Ok(last.revision)
}

fn record(kv: KeyValue, deleted: bool) -> Vec<u8> {
    let KeyValue { key, value, create_revision, mod_revision, version, lease, .. } = kv;
    let record = if deleted {
        mvccpb::KeyValue { key, ..mvccpb::KeyValue::default() }
    } else {
        mvccpb::KeyValue { key, value, create_revision, mod_revision, version, lease }
    };
    record.encode_to_vec()
}

/// What etcd's tools look for at a restore. They write their own over most of it.
fn meta(progress: &Progress, out: &mut Output<'_>) -> io::Result<()> {
    let compacted = Place { revision: progress.compacted.0, sub: 0, deleted: false }.encode();
    out.put(CONFIGURATION, br#"{"voters":[1],"auto_leave":false}"#)?;
    out.put(CONSISTENT_INDEX, &1_u64.to_be_bytes())?;
    for name in [FINISHED_COMPACTION, SCHEDULED_COMPACTION] {
        if progress.compacted.0 > 1 {
            out.put(name, &compacted)?;
        }
    }
    out.put(TERM, &1_u64.to_be_bytes())
}

fn left(view: View<'_>) -> Result<Left, StoreError> {
    let holds = |face: u8| -> Result<bool, StoreError> {
        let mut rows = view.scan(&[face], &[face + 1], Order::Ascending);
        Ok(rows.next().transpose()?.is_some())
    };
    let [routes, ledger, tables, users, functions] = [2, 3, 4, 5, 6].map(holds);
    let (routes, ledger, tables, users) = (routes?, ledger?, tables?, users?);
    let mut left = Left { routes, ledger, tables, users, functions: functions?, ..Left::default() };
    for kv in kv::all(view) {
        let kv = kv?;
        left.hashes += u64::from(kv.kind == Kind::Hash);
        left.expiring += u64::from(kv.expires.is_some());
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::import;
    use crate::reader::Reader;
    use quoin_core::kv::{Delete, LeaseGrant, Operation, Put, Txn, TxnOperation, txn_operation::Step};
    use quoin_core::store::MemoryStore;
    use quoin_core::{Batch, Command, Machines, Stamp, Term, machines, system};
    use quoin_core::{auth, function};
    use std::os::unix::fs::FileExt;

    struct Cluster {
        store: MemoryStore,
        machines: Machines,
    }

    impl Cluster {
        fn new() -> Self {
            let store = MemoryStore::new();
            machines::found(&store, bytes::Bytes::new(), &[]);
            let machines = Machines::open(&store).unwrap();
            Self { store, machines }
        }

        fn apply(&mut self, command: Command) {
            let index = self.machines.progress().index.next();
            self.machines.apply(&self.store, index, Term(1), Batch::encode(Stamp(1), &[command])).unwrap();
        }

        fn export(&self) -> (Reader, Left) {
            let progress = self.machines.progress();
            let view = View::new(&self.store, progress.sequence);
            let oldest = history::sequence_at(view, &progress, progress.compacted).unwrap().unwrap();
            let (file, left) = export(view, &progress, oldest, &std::env::temp_dir(), &|| Ok(())).unwrap();
            let length = file.metadata().unwrap().len();
            (Reader::open(file, length).unwrap(), left)
        }
    }

    fn put(key: &str, value: &str, lease: i64) -> Put {
        let (key, value) = (key.to_owned().into(), value.to_owned().into());
        Put { key, value, lease, ..Put::default() }
    }

    type Row = (String, String, i64, i64, i64, i64);

    fn rows(store: &MemoryStore, progress: &Progress, revision: u64) -> Vec<Row> {
        let view = View::new(store, progress.sequence);
        let at = history::sequence_at(view, progress, Revision(revision)).unwrap().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let row = |kv: KeyValue| {
            (text(&kv.key), text(&kv.value), kv.create_revision, kv.mod_revision, kv.version, kv.lease)
        };
        kv::all(view.at(at)).map(|kv| row(kv.unwrap())).collect()
    }

    /// Keys, leases and history go to etcd's format and come back as they were, with and without compaction.
    #[test]
    fn what_is_exported_and_imported_is_the_same_at_every_revision() {
        let mut cluster = Cluster::new();
        cluster.apply(Operation::LeaseGrant(LeaseGrant { id: 7, ttl_s: 60 }).into_command());
        for round in 0..30 {
            let step = |put| TxnOperation { step: Some(Step::Put(put)) };
            let success = vec![
                step(put("a", &"v".repeat(300 * round), 0)),
                step(put(&format!("k{}", round % 7), "t", 7)),
            ];
            cluster.apply(Operation::Txn(Txn { success, ..Txn::default() }).into_command());
            let delete = Delete { key: format!("k{}", round % 5).into(), ..Delete::default() };
            cluster.apply(Operation::Delete(delete).into_command());
        }
        // The last revisions are of another face's.
        for compacted in [None, Some(20)] {
            if let Some(revision) = compacted {
                cluster.apply(system::Operation::Compact(revision).into_command());
            }
            let (reader, left) = cluster.export();
            assert_eq!(left.text(), None);
            let copy = MemoryStore::new();
            let imported = import(&reader, &copy, false, &|_| Ok(())).unwrap();
            let progress = cluster.machines.progress();
            assert_eq!(imported.progress.revision, progress.revision);
            assert_eq!(imported.progress.compacted, progress.compacted);
            assert_eq!(imported.leases, 1);
            for revision in progress.compacted.0.max(1)..=progress.revision.0 {
                let expected = rows(&cluster.store, &progress, revision);
                assert_eq!(rows(&copy, &imported.progress, revision), expected, "at {revision}");
            }
            let view = View::new(&copy, imported.progress.sequence);
            let lease = kv::lease(view, &imported.progress, 7, true).unwrap().unwrap();
            let here = View::new(&cluster.store, progress.sequence);
            let expected = kv::lease(here, &progress, 7, true).unwrap().unwrap();
            assert_eq!((lease.0.granted_ttl_s, lease.1), (expected.0.granted_ttl_s, expected.1));
        }
    }

    /// Whoever restores a file has it from elsewhere.
    #[test]
    fn no_flipped_byte_makes_an_import_panic() {
        let mut cluster = Cluster::new();
        cluster.apply(Operation::LeaseGrant(LeaseGrant { id: 7, ttl_s: 60 }).into_command());
        for round in 0..8 {
            cluster.apply(Operation::Put(put(&format!("k{}", round % 3), "v", 7)).into_command());
            let delete = Delete { key: format!("k{}", round % 2).into(), ..Delete::default() };
            cluster.apply(Operation::Delete(delete).into_command());
        }
        cluster.apply(system::Operation::Compact(6).into_command());
        let progress = cluster.machines.progress();
        let view = View::new(&cluster.store, progress.sequence);
        let oldest = history::sequence_at(view, &progress, progress.compacted).unwrap().unwrap();
        let (file, _) = export(view, &progress, oldest, &std::env::temp_dir(), &|| Ok(())).unwrap();
        let length = file.metadata().unwrap().len();
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let mut refused = 0;
        // All that is not there to fill pages up.
        for (place, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            for flip in [1, 2, 0x80, 0xff] {
                file.write_all_at(&[byte ^ flip], place as u64).unwrap();
                let imported = Reader::open(file.try_clone().unwrap(), length)
                    .is_ok_and(|reader| import(&reader, &MemoryStore::new(), false, &|_| Ok(())).is_ok());
                refused += usize::from(!imported);
            }
            file.write_all_at(&[*byte], place as u64).unwrap();
        }
        assert!(refused > 0);
    }

    #[test]
    fn revisions_of_other_faces_are_not_given_again_and_what_etcd_cannot_hold_is_named() {
        let mut cluster = Cluster::new();
        let ttl = Put { ttl: Some(kv::Ttl::Milliseconds(60_000)), ..put("k", "v", 0) };
        cluster.apply(Operation::Put(ttl).into_command());
        // Who restored the file had let everybody in without having been told.
        cluster.apply(auth::Operation::AddRole("r".into()).into_command());
        let function = function::Function { name: "f".into(), ..Default::default() };
        let library = function::Library { name: "l".into(), code: "c".into(), functions: vec![function] };
        let load = function::Load { libraries: vec![library], existing: 0 };
        cluster.apply(function::Operation::Load(load).into_command());
        let (reader, left) = cluster.export();
        assert_eq!(
            left.text().unwrap(),
            "1 times to live of keys (they stay), libraries of functions, users and roles (whoever reaches the etcd that restores it may do \
             everything)"
        );
        let copy = MemoryStore::new();
        assert_eq!(import(&reader, &copy, false, &|_| Ok(())).unwrap().progress.revision, Revision(2));
    }
}
