//! etcd's keys, leases and history become Quoin's.
//!
//! One walk over etcd's history, in its order. What is at or below the compacted revision is the base: later changes of a
//! key replace earlier ones. Members are those of the new cluster, and etcd's alarms are left behind.

use crate::reader::{DatabaseError, Reader};
use crate::records::{
    AUTH, AUTH_ENABLED, AUTH_ROLES, AUTH_USERS, FINISHED_COMPACTION, KEY, LEASE, Lease, META, Place,
    SCHEDULED_COMPACTION,
};
use bytes::Bytes;
use prost::Message;
use quoin_core::kv::{Filled, Filling, ForeignChange, ForeignRefusal, ForeignValue};
use quoin_core::{Index, Progress, Store, StoreError};
use quoin_proto::mvccpb::KeyValue;
use std::collections::HashMap;

/// Why a database cannot be taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It cannot be read.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A record in it is not what etcd writes.
    #[error("the database holds a malformed {what}: take the snapshot again")]
    Malformed {
        /// What it is.
        what: &'static str,
    },
    /// A record in it is beyond Quoin's bounds.
    #[error("the database cannot be taken over: {0}")]
    Refused(#[from] ForeignRefusal),
    /// The cluster knew its users, and Quoin would let everybody in.
    #[error(
        "authentication is enabled in this snapshot ({users} users, {roles} roles), and users and roles are not taken \
         over: whoever reaches the new cluster could read and write everything. Give --skip-auth if that is meant"
    )]
    Auth {
        /// How many users it has.
        users: usize,
        /// How many roles it has.
        roles: usize,
    },
    /// The new store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The state that the store has now.
    pub progress: Progress,
    /// Changes of keys, deletions included.
    pub changes: u64,
    /// Leases.
    pub leases: u64,
    /// Users that were left behind.
    pub users: usize,
    /// Roles that were left behind.
    pub roles: usize,
}

/// Fills the empty `store` with what the database holds; `ended` is called between entries. A database with
/// authentication is refused unless `skip_auth`.
///
/// # Errors
/// See [`ImportError`]. The store is to be thrown away then.
pub fn import(
    database: &Reader,
    store: &dyn Store,
    skip_auth: bool,
    ended: &dyn Fn(Index) -> Result<(), StoreError>,
) -> Result<Imported, ImportError> {
    let users = count(database, AUTH_USERS)?;
    let roles = count(database, AUTH_ROLES)?;
    let enabled = find(database, AUTH, AUTH_ENABLED)?.is_some_and(|enabled| enabled[..] == [1]);
    if enabled && !skip_auth {
        return Err(ImportError::Auth { users, roles });
    }
    let mut filling = Filling::begin(store, ended);
    let mut leases = 0;
    for pair in database.bucket(LEASE)? {
        let (_, value) = pair?;
        let lease = Lease::decode(value).map_err(|_| ImportError::Malformed { what: "lease" })?;
        done(filling.lease(lease.id, lease.ttl))?;
        leases += 1;
    }
    let changes = keys(database, &mut filling)?;
    let progress = filling.finish()?;
    Ok(Imported { progress, changes, leases, users, roles })
}

/// Carries the keys over, and returns how many changes they had.
fn keys(database: &Reader, filling: &mut Filling<'_>) -> Result<u64, ImportError> {
    let compacted = compacted(database)?;
    let mut history = History { filling, compacted, begun: false, revision: 0, changes: Changes::default() };
    let mut count = 0;
    for pair in database.bucket(KEY)? {
        let (key, value) = pair?;
        let place = Place::decode(&key).ok_or(ImportError::Malformed { what: "revision" })?;
        let record = KeyValue::decode(value).map_err(|_| ImportError::Malformed { what: "key" })?;
        history.take(place, record)?;
        count += 1;
    }
    history.end()?;
    Ok(count)
}

/// etcd's history on its way into the store.
struct History<'a, 'b> {
    filling: &'a mut Filling<'b>,
    compacted: u64,
    /// The base is complete.
    begun: bool,
    /// The revision that is being gathered; 0 if none.
    revision: u64,
    changes: Changes,
}

impl History<'_, '_> {
    fn take(&mut self, place: Place, record: KeyValue) -> Result<(), ImportError> {
        // A slice of a page would keep it.
        let key = Bytes::copy_from_slice(&record.key);
        let change = (!key.is_empty()).then(|| change(place, key, &record));
        if place.revision <= self.compacted {
            return change.map_or(Ok(()), |change| done(self.filling.base(place.revision, &change)));
        }
        if place.revision != self.revision {
            self.pass_on()?;
            self.revision = place.revision;
        }
        change.into_iter().for_each(|change| self.changes.add(change));
        Ok(())
    }

    fn pass_on(&mut self) -> Result<(), ImportError> {
        if !self.begun {
            self.begun = true;
            done(self.filling.begin_history(self.compacted))?;
        }
        let changes = std::mem::take(&mut self.changes);
        // Revision 1 is the empty state.
        if self.revision > 1 {
            done(self.filling.change(self.revision, &changes.in_order))?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), ImportError> {
        self.pass_on()
    }
}

/// The changes of one revision, no key twice: a nested transaction can write a key and delete it.
#[derive(Default)]
struct Changes {
    in_order: Vec<ForeignChange>,
    places: HashMap<Bytes, usize>,
}

impl Changes {
    fn add(&mut self, change: ForeignChange) {
        match self.places.get(&change.key) {
            Some(place) => self.in_order[*place] = change,
            None => {
                self.places.insert(change.key.clone(), self.in_order.len());
                self.in_order.push(change);
            }
        }
    }
}

fn change(place: Place, key: Bytes, record: &KeyValue) -> ForeignChange {
    let written = (!place.deleted).then(|| ForeignValue {
        value: record.value.clone(),
        create_revision: record.create_revision,
        version: record.version,
        lease: record.lease,
    });
    ForeignChange { key, written }
}

/// What was compacted, or is to be: etcd finishes at its start what it had begun.
fn compacted(database: &Reader) -> Result<u64, ImportError> {
    let mut compacted = 0;
    for name in [FINISHED_COMPACTION, SCHEDULED_COMPACTION] {
        if let Some(value) = find(database, META, name)? {
            let place = Place::decode(&value).ok_or(ImportError::Malformed { what: "compacted revision" })?;
            compacted = place.revision.max(compacted);
        }
    }
    Ok(compacted)
}

fn find(database: &Reader, bucket: &[u8], name: &[u8]) -> Result<Option<Bytes>, ImportError> {
    for pair in database.bucket(bucket)? {
        let (key, value) = pair?;
        if key == name {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn count(database: &Reader, bucket: &[u8]) -> Result<usize, ImportError> {
    let mut count = 0;
    for pair in database.bucket(bucket)? {
        pair?;
        count += 1;
    }
    Ok(count)
}

fn done(filled: Filled) -> Result<(), ImportError> {
    Ok(filled??)
}
