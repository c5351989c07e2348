//! etcd's `Maintenance`: what an operator asks of one replica or of the cluster.

use super::{API_VERSION, header_at, signed};
use crate::api::commands::{long_read, off_the_hot_path, system_operation};
use crate::api::error;
use crate::engine::{Consistency, Engine, ReadView};
use bytes::Bytes;
use quoin_core::store::Order;
use quoin_core::system::{self, AlarmKind};
use quoin_core::{Face, Revision, StoreError, View, history};
use quoin_proto::etcdserverpb as pb;
use quoin_proto::etcdserverpb::alarm_request::AlarmAction;
use quoin_proto::etcdserverpb::downgrade_request::DowngradeAction;
use quoin_proto::etcdserverpb::maintenance_server;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Messages of a snapshot that wait for a slow client; with more, reading waits.
const SNAPSHOT_MESSAGES_MAX: usize = 4;
/// Bytes in one message of a snapshot at most.
const SNAPSHOT_MESSAGE_BYTES: usize = 256 << 10;
/// etcd's tools take a file for a snapshot with a checksum if its length is a multiple of this and a SHA-256.
const SNAPSHOT_PADDING: usize = 512;

/// The service.
pub(crate) struct Maintenance {
    engine: Engine,
}

impl Maintenance {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(header_at(&self.engine, self.engine.latest().progress()))
    }

    async fn alarms(&self) -> Result<Vec<system::Alarm>, Status> {
        let view = self.engine.read(Consistency::Linearizable).await?;
        system::alarms(view.view()).map_err(error::store)
    }
}

#[tonic::async_trait]
impl maintenance_server::Maintenance for Maintenance {
    async fn alarm(&self, request: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        let request = request.into_inner();
        let Ok(action) = AlarmAction::try_from(request.action) else {
            return Err(error::invalid(format_args!("alarm action {} is none of etcd's", request.action)));
        };
        let Ok(kind) = AlarmKind::try_from(request.alarm) else {
            return Err(error::invalid(format_args!("alarm {} is none of etcd's", request.alarm)));
        };
        let wanted = |alarm: &system::Alarm| kind == AlarmKind::None || alarm.kind() == kind;
        let alarm = system::Alarm { member: request.member_id, kind: kind.into() };
        let alarms = match action {
            AlarmAction::Get => self.alarms().await?.into_iter().filter(wanted).collect(),
            // As in etcd: no alarm, nothing to do.
            AlarmAction::Activate | AlarmAction::Deactivate if kind == AlarmKind::None => Vec::new(),
            AlarmAction::Activate => {
                system_operation(&self.engine, system::Operation::RaiseAlarm(alarm.clone())).await?;
                vec![alarm]
            }
            AlarmAction::Deactivate => {
                let raised = self.alarms().await?.into_iter();
                let meant = |raised: &system::Alarm| raised.kind == alarm.kind && covers(&alarm, raised);
                let cleared: Vec<_> = raised.filter(meant).collect();
                for alarm in &cleared {
                    system_operation(&self.engine, system::Operation::ClearAlarm(alarm.clone())).await?;
                }
                cleared
            }
        };
        let alarms = alarms.into_iter().map(alarm_member).collect();
        Ok(Response::new(pb::AlarmResponse { header: self.header(), alarms }))
    }

    async fn status(&self, _: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        let status = self.engine.status();
        let mut errors = Vec::new();
        if status.raft.leader == 0 {
            errors.push(error::NO_LEADER.text().to_owned());
        }
        let view = self.engine.latest();
        for alarm in system::alarms(view.view()).map_err(error::store)? {
            let kind = pb::AlarmType::try_from(alarm.kind).unwrap_or_default();
            errors.push(format!("memberID:{} alarm:{}", alarm.member, kind.as_str_name()));
        }
        let bytes = signed(status.store_bytes);
        let mut response = Response::new(pb::StatusResponse {
            header: Some(header_at(&self.engine, &status.progress)),
            version: API_VERSION.to_owned(),
            db_size: bytes,
            leader: status.raft.leader,
            raft_index: status.raft.committed.max(status.progress.index.0),
            raft_term: status.raft.term,
            raft_applied_index: status.progress.index.0,
            errors,
            db_size_in_use: bytes,
            is_learner: status.raft.learners.contains(&status.id),
            storage_version: API_VERSION.to_owned(),
            db_size_quota: signed(self.engine.space()),
            downgrade_info: Some(pb::DowngradeInfo::default()),
        });
        // Clients of etcd read its version and act on it; ours is for people.
        response
            .metadata_mut()
            .insert("quoin-version", tonic::metadata::MetadataValue::from_static(env!("CARGO_PKG_VERSION")));
        Ok(response)
    }

    async fn defragment(
        &self,
        _: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        tracing::info!(
            "defragment: nothing to do; the store gives space back by itself as it merges its tables, and has no \
             file that only grows"
        );
        Ok(Response::new(pb::DefragmentResponse { header: self.header() }))
    }

    async fn hash(&self, _: Request<pb::HashRequest>) -> Result<Response<pb::HashResponse>, Status> {
        let view = self.engine.latest();
        let header = Some(header_at(&self.engine, view.progress()));
        let hash = long_read(move || hash_of(view.view(), b"", b"")).await?;
        Ok(Response::new(pb::HashResponse { header, hash }))
    }

    async fn hash_kv(
        &self,
        request: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        let revision = request.into_inner().revision;
        let view = self.engine.latest();
        let header = Some(header_at(&self.engine, view.progress()));
        let compact_revision = signed(view.progress().compacted.0);
        let revision = match u64::try_from(revision) {
            Ok(0) => view.progress().revision,
            Ok(revision) => Revision(revision),
            Err(_) => return Err(error::COMPACTED.into()),
        };
        let hash = off_the_hot_path(move || hash_at(&view, revision)).await??;
        let hash_revision = signed(revision.0);
        Ok(Response::new(pb::HashKvResponse { header, hash, compact_revision, hash_revision }))
    }

    type SnapshotStream = ReceiverStream<Result<pb::SnapshotResponse, Status>>;

    /// The blob is Quoin's own: the chunks of [`crate::store::snapshot`], zeros up to a multiple of 512 bytes, and
    /// the SHA-256 of all that.
    async fn snapshot(
        &self,
        _: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let view = self.engine.latest();
        let header = header_at(&self.engine, view.progress());
        let (sender, receiver) = mpsc::channel(SNAPSHOT_MESSAGES_MAX);
        tokio::task::spawn_blocking(move || {
            let blob = Blob { sender: sender.clone(), header, sha: Sha256::new(), bytes: 0 };
            if let Err(status) = send_snapshot(&view, blob) {
                // Nobody is left to be told where this fails.
                let _ = sender.blocking_send(Err(status));
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        let target = request.into_inner().target_id;
        let raft = self.engine.raft();
        if !raft.is_leader {
            return Err(error::NOT_LEADER.into());
        }
        if !raft.voters.contains(&target) {
            return Err(error::BAD_TRANSFEREE.into());
        }
        if target != self.engine.id() {
            self.engine.transfer_leader(target).await.map_err(|_| Status::from(error::TIMED_OUT))?;
        }
        Ok(Response::new(pb::MoveLeaderResponse { header: self.header() }))
    }

    /// There is no older version whose data this one could become: every target is refused.
    async fn downgrade(
        &self,
        request: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        let request = request.into_inner();
        match DowngradeAction::try_from(request.action) {
            Ok(DowngradeAction::Cancel) => Err(error::NO_DOWNGRADE.into()),
            Ok(_) if is_version(&request.version) => Err(error::INVALID_DOWNGRADE_TARGET.into()),
            Ok(_) => Err(error::WRONG_DOWNGRADE_FORMAT.into()),
            Err(_) => {
                Err(error::invalid(format_args!("downgrade action {} is none of etcd's", request.action)))
            }
        }
    }
}

fn covers(asked: &system::Alarm, raised: &system::Alarm) -> bool {
    asked.member == 0 || asked.member == raised.member
}

fn alarm_member(alarm: system::Alarm) -> pb::AlarmMember {
    pb::AlarmMember { member_id: alarm.member, alarm: alarm.kind }
}

fn is_version(text: &str) -> bool {
    let numbers: Vec<_> = text.split('.').map(str::parse::<u32>).collect();
    (2..=3).contains(&numbers.len()) && numbers.iter().all(Result::is_ok)
}

/// A hash over the kv face as of `revision`: equal on all replicas.
fn hash_at(view: &ReadView, revision: Revision) -> Result<u32, Status> {
    let sequence = history::sequence_at(view.view(), view.progress(), revision).map_err(error::store)?;
    let sequence = sequence.map_err(error::revision_unavailable)?;
    let (face, next) = ([Face::Kv as u8], [Face::Kv as u8 + 1]);
    hash_of(view.view().at(sequence), &face, &next).map_err(error::store)
}

fn hash_of(view: View<'_>, from: &[u8], to: &[u8]) -> Result<u32, StoreError> {
    let mut hash = 0;
    for pair in view.scan(from, to, Order::Ascending) {
        let (key, value) = pair?;
        // Lengths keep a byte's move from key to value from going unseen.
        let lengths = [key.len() as u64, value.len() as u64].map(u64::to_le_bytes);
        for part in [&lengths[0], &lengths[1], &key[..], &value[..]] {
            hash = crc32c::crc32c_append(hash, part);
        }
    }
    Ok(hash)
}

fn send_snapshot(view: &ReadView, mut blob: Blob) -> Result<(), Status> {
    let chunks = view.store().export().map_err(error::store)?;
    // What is sent may be newer than the view: the header says what it is.
    blob.header.revision = signed(chunks.progress().revision.0);
    for chunk in chunks {
        blob.push(chunk.map_err(error::store)?)?;
    }
    blob.finish()
}

/// A snapshot's bytes on their way to the client.
struct Blob {
    sender: mpsc::Sender<Result<pb::SnapshotResponse, Status>>,
    header: pb::ResponseHeader,
    sha: Sha256,
    bytes: usize,
}

impl Blob {
    fn push(&mut self, bytes: Bytes) -> Result<(), Status> {
        self.sha.update(&bytes);
        self.bytes += bytes.len();
        self.send(bytes)
    }

    fn send(&self, mut bytes: Bytes) -> Result<(), Status> {
        while !bytes.is_empty() {
            let blob = bytes.split_to(bytes.len().min(SNAPSHOT_MESSAGE_BYTES));
            let message = pb::SnapshotResponse {
                header: Some(self.header),
                // How much is alive in the store shows only by reading it: never said ahead.
                remaining_bytes: 0,
                blob,
                version: API_VERSION.to_owned(),
            };
            let sent = self.sender.blocking_send(Ok(message));
            sent.map_err(|_| Status::cancelled("the client has left"))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Status> {
        let padding = self.bytes.next_multiple_of(SNAPSHOT_PADDING) - self.bytes;
        self.push(Bytes::from(vec![0; padding]))?;
        let digest = std::mem::take(&mut self.sha).finalize();
        self.send(Bytes::copy_from_slice(&digest))
    }
}
