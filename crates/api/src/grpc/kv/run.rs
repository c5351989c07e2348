//! Many operations at once: the writes go into the log together, and reads of one consistency share a view.
//!
//! **Invariant: Bounded.** The records of one run are bounded by `limits.response_bytes_max`; reads beyond
//! that get a status. A stream takes the answers in pieces instead. Many reads yield to other tasks.

use super::translate;
use crate::audit::{self, Use};
use crate::auth;
use crate::commands::{check_size, kv_reply, pinned, read, read_range};
use crate::consistency;
use crate::error::{Error, Known};
use bytes::Bytes;
use quoin_core::{Command, Reply, Revision, kv};
use quoin_engine::{Consistency, Engine, ProposeError, ReadView};
use quoin_proto::quoin::kv::v1 as pb;
use quoin_proto::quoin::kv::v1::floor_request::NotAbove;
use quoin_proto::quoin::kv::v1::operation::Operation;
use quoin_proto::quoin::kv::v1::result::Result as Done;
use std::collections::VecDeque;

/// Reads before the task yields to others.
const READS_AT_ONCE: usize = 128;

/// Operations, by what they need. `Id` names an operation in its answer.
pub(super) struct Parts<Id> {
    pub(super) writes: Writes<Id>,
    pub(super) reads: Reads<Id>,
    /// Results of invalid operations.
    pub(super) done: Vec<(Id, pb::Result)>,
}

/// Writes, ready for the log.
pub(super) struct Writes<Id> {
    commands: Vec<Command>,
    awaited: Vec<(Id, translate::Kind)>,
}

/// Reads, by consistency.
pub(super) struct Reads<Id> {
    groups: Vec<(Consistency, VecDeque<(Id, Read)>)>,
}

enum Read {
    Get(pb::GetRequest),
    Floor(pb::FloorRequest),
}

impl<Id> Parts<Id> {
    pub(super) fn of(engine: &Engine, operations: impl IntoIterator<Item = (Id, pb::Operation)>) -> Self {
        let mut parts = Self {
            writes: Writes { commands: Vec::new(), awaited: Vec::new() },
            reads: Reads { groups: Vec::new() },
            done: Vec::new(),
        };
        for (id, operation) in operations {
            match operation.operation {
                Some(Operation::Put(request)) => parts.write(engine, id, translate::put(engine, request)),
                Some(Operation::Delete(request)) => {
                    parts.write(engine, id, translate::delete(engine, request));
                }
                Some(Operation::Get(request)) => {
                    let consistency = consistency::of(request.consistency.as_ref());
                    parts.reads.add(consistency, id, Read::Get(request));
                }
                Some(Operation::Floor(request)) => {
                    let consistency = consistency::of(request.consistency.as_ref());
                    parts.reads.add(consistency, id, Read::Floor(request));
                }
                None => {
                    let error = Error::invalid("the operation is empty, or of a later version of the API");
                    parts.done.push((id, result(Err(error))));
                }
            }
        }
        parts
    }

    fn write(&mut self, engine: &Engine, id: Id, write: Result<translate::Write, Error>) {
        match write.and_then(|write| check_size(engine, &write.command).map(|()| write)) {
            Ok(write) => {
                self.writes.commands.push(write.command);
                self.writes.awaited.push((id, write.kind));
            }
            Err(error) => self.done.push((id, result(Err(error)))),
        }
    }
}

impl<Id> Writes<Id> {
    pub(super) fn len(&self) -> usize {
        self.commands.len()
    }

    pub(super) async fn run(self, engine: &Engine) -> Vec<(Id, pb::Result)> {
        if self.commands.is_empty() {
            return Vec::new();
        }
        let replies = engine.propose_many(self.commands).await;
        let answers = self.awaited.into_iter().zip(replies);
        answers.map(|((id, kind), reply)| (id, result(written(engine, kind, reply)))).collect()
    }
}

fn written(
    engine: &Engine,
    kind: translate::Kind,
    reply: Result<Reply, ProposeError>,
) -> Result<Done, Error> {
    let (revision, response) = kv_reply(reply?)?;
    match kind {
        translate::Kind::Put => translate::put_response(engine, (revision, response)).map(Done::Put),
        translate::Kind::Delete => translate::delete_response(engine, response).map(Done::Delete),
    }
}

impl<Id> Reads<Id> {
    pub(super) fn len(&self) -> usize {
        self.groups.iter().map(|(_, reads)| reads.len()).sum()
    }

    fn add(&mut self, consistency: Consistency, id: Id, read: Read) {
        match self.groups.iter_mut().find(|(other, _)| *other == consistency) {
            Some((_, reads)) => reads.push_back((id, read)),
            None => self.groups.push((consistency, [(id, read)].into())),
        }
    }

    /// Answers all.
    pub(super) async fn run(self, engine: &Engine) -> Vec<(Id, pb::Result)> {
        let mut done = Vec::with_capacity(self.len());
        let bytes_max = engine.limits().response_bytes_max;
        let mut room = bytes_max;
        for (consistency, mut reads) in self.groups {
            let view = read(engine, consistency).await;
            read_until_full(view, &mut reads, &mut room, &mut done).await;
            let too_large = || result(Err(Error::response_too_large(bytes_max)));
            done.extend(reads.into_iter().map(|(id, _)| (id, too_large())));
        }
        done
    }

    /// Answers some reads of one consistency: as many as have about `bytes` of records together. Returns
    /// nothing once all are answered.
    pub(super) async fn run_some(&mut self, engine: &Engine, bytes: usize) -> Vec<(Id, pb::Result)> {
        let (mut done, mut room) = (Vec::new(), bytes);
        if let Some((consistency, reads)) = self.groups.last_mut() {
            let view = read(engine, *consistency).await;
            read_until_full(view, reads, &mut room, &mut done).await;
            if reads.is_empty() {
                self.groups.pop();
            }
        }
        done
    }
}

/// Moves reads to `done` until their records have filled `room`, or none is left.
async fn read_until_full<Id>(
    view: Result<ReadView, Error>,
    reads: &mut VecDeque<(Id, Read)>,
    room: &mut usize,
    done: &mut Vec<(Id, pb::Result)>,
) {
    let mut count = 0_usize;
    while *room > 0
        && let Some((id, wanted)) = reads.pop_front()
    {
        count += 1;
        if count.is_multiple_of(READS_AT_ONCE) {
            tokio::task::yield_now().await;
        }
        let answer = view.as_ref().map_err(Error::clone).and_then(|view| read_one(view, wanted));
        *room = room.saturating_sub(answer.as_ref().map_or(0, record_bytes));
        done.push((id, result(answer)));
    }
}

fn read_one(view: &ReadView, read: Read) -> Result<Done, Error> {
    match read {
        Read::Get(request) => get(view, request).map(Done::Get),
        Read::Floor(request) => floor(view, request).map(Done::Floor),
    }
}

fn record_bytes(answer: &Done) -> usize {
    let record = match answer {
        Done::Get(response) => response.record.as_ref(),
        Done::Floor(response) => response.record.as_ref(),
        _ => None,
    };
    record.map_or(0, |record| record.key.len() + record.value.len())
}

fn result(answer: Result<Done, Error>) -> pb::Result {
    pb::Result { result: Some(answer.unwrap_or_else(translate::status)) }
}

/// Reads one key.
///
/// # Errors
/// An empty key, an unavailable revision, a fault of the store.
pub(super) fn get(view: &ReadView, request: pb::GetRequest) -> Result<pb::GetResponse, Error> {
    let record = point(view, request.key, request.revision, request.without_value)?;
    Ok(pb::GetResponse { header: None, record: record.map(|found| translate::record(found, view.now())) })
}

/// Reads an earlier state of one key.
///
/// # Errors
/// As [`get`], or `not_above` is missing.
pub(super) fn floor(view: &ReadView, request: pb::FloorRequest) -> Result<pb::FloorResponse, Error> {
    let not_above = match request.not_above {
        Some(NotAbove::Version(version)) => kv::Floor::Version(version),
        Some(NotAbove::ModRevision(revision)) => kv::Floor::ModRevision(revision),
        None => {
            return Err(Error::invalid(
                "floor: give the version or the mod_revision that must not be exceeded",
            ));
        }
    };
    check_key(view, &request.key)?;
    // The state found may be of any revision that is kept.
    let oldest = view.progress().compacted.max(Revision(1));
    let _held = pinned(view, oldest)??;
    let found = kv::floor(view.view(), view.progress(), &request.key, not_above)??;
    let mut record = found.map(|found| translate::record(found, view.now()));
    if let Some(record) = record.as_mut().filter(|_| request.without_value) {
        record.value.clear();
    }
    Ok(pb::FloorResponse { header: None, record })
}

fn check_key(view: &ReadView, key: &Bytes) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Known::EmptyKey.into());
    }
    let judged = auth::check_view(view, |access| access.reads(key, b""));
    audit::uses(judged.is_ok(), Use::Reads, key, b"")?;
    judged
}

fn point(view: &ReadView, key: Bytes, revision: i64, keys_only: bool) -> Result<Option<kv::KeyValue>, Error> {
    check_key(view, &key)?;
    let range = kv::Range { key, revision, keys_only, ..kv::Range::default() };
    Ok(read_range(view, &range, usize::MAX)?.kvs.into_iter().next())
}
