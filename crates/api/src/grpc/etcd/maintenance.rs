//! etcd's `Maintenance`: what operators ask of a replica or of the cluster.

use super::header::{API_VERSION, header_at, signed};
use super::snapshot::Snapshots;
use crate::audit::about;
use crate::commands::{off_the_hot_path, pinned, read, system_operation};
use crate::error::{Error, Known};
use crate::grpc::outbound::AnswerStream;
use crate::life::Life;
use quoin_core::store::Order;
use quoin_core::system::{self, AlarmKind};
use quoin_core::{Revision, StoreError, View, history, kv};
use quoin_engine::{Consistency, Engine, ReadView};
use quoin_proto::etcdserverpb as pb;
use quoin_proto::etcdserverpb::alarm_request::AlarmAction;
use quoin_proto::etcdserverpb::downgrade_request::DowngradeAction;
use quoin_proto::etcdserverpb::maintenance_server;
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct Maintenance {
    engine: Engine,
    life: Life,
    /// Locked by the one request that waits for it.
    defragmenting: tokio::sync::Mutex<()>,
    snapshots: Snapshots,
}

impl Maintenance {
    pub(crate) fn new(engine: Engine, life: Life) -> Self {
        let defragmenting = tokio::sync::Mutex::default();
        Self { engine, life, defragmenting, snapshots: Snapshots::default() }
    }

    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(header_at(&self.engine, self.engine.latest().progress()))
    }

    async fn alarms(&self) -> Result<Vec<system::Alarm>, Error> {
        let view = read(&self.engine, Consistency::Linearizable).await?;
        Ok(system::alarms(view.view())?)
    }

    /// The problems that this replica knows of.
    fn problems(&self, leader: u64) -> Result<Vec<String>, Error> {
        let leaderless = (leader == 0).then(|| Known::NoLeader.text().to_owned());
        let alarms = system::alarms(self.engine.latest().view())?.into_iter().map(|alarm| {
            let kind = pb::AlarmType::try_from(alarm.kind).unwrap_or_default();
            format!("memberID:{} alarm:{}", alarm.member, kind.as_str_name())
        });
        let damage = self.engine.damage().into_iter().map(|damage| damage.to_string());
        Ok(leaderless.into_iter().chain(alarms).chain(damage).collect())
    }
}

#[tonic::async_trait]
impl maintenance_server::Maintenance for Maintenance {
    async fn alarm(&self, request: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        let request = request.into_inner();
        let Ok(action) = AlarmAction::try_from(request.action) else {
            return Err(
                Error::invalid(format_args!("alarm action {} is not one of etcd's", request.action)).into()
            );
        };
        let Ok(kind) = AlarmKind::try_from(request.alarm) else {
            return Err(Error::invalid(format_args!("alarm {} is not one of etcd's", request.alarm)).into());
        };
        about("action", action.as_str_name().to_lowercase());
        about("alarm", format!("{kind:?}").to_lowercase());
        let wanted = |alarm: &system::Alarm| kind == AlarmKind::None || alarm.kind() == kind;
        let alarm = system::Alarm { member: request.member_id, kind: kind.into() };
        let alarms = match action {
            AlarmAction::Get => self.alarms().await?.into_iter().filter(wanted).collect(),
            // As in etcd: without an alarm there is nothing to do.
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
        let errors = self.problems(status.raft.leader)?;
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
        // etcd's clients act on the version in the answer; this one is for people.
        response
            .metadata_mut()
            .insert("quoin-version", tonic::metadata::MetadataValue::from_static(env!("CARGO_PKG_VERSION")));
        Ok(response)
    }

    /// Writes the store out and merges it, which frees the space of what was deleted and compacted. Only on
    /// this replica, as in etcd; unlike etcd's, it goes on serving.
    async fn defragment(
        &self,
        _: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        let Ok(_only) = self.defragmenting.try_lock() else {
            return Err(Error::precondition("this replica is being defragmented already").into());
        };
        self.engine.reclaim().await.map_err(Error::precondition)?;
        Ok(Response::new(pb::DefragmentResponse { header: self.header() }))
    }

    async fn hash(&self, _: Request<pb::HashRequest>) -> Result<Response<pb::HashResponse>, Status> {
        let view = self.engine.latest();
        let header = Some(header_at(&self.engine, view.progress()));
        let hash = off_the_hot_path(move || hash_of_all(&view)).await??;
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
            Err(_) => return Err(Known::Compacted.into()),
        };
        let hash = off_the_hot_path(move || hash_of_keys(&view, revision)).await??;
        let hash_revision = signed(revision.0);
        Ok(Response::new(pb::HashKvResponse { header, hash, compact_revision, hash_revision }))
    }

    type SnapshotStream = AnswerStream<pb::SnapshotResponse>;

    async fn snapshot(
        &self,
        request: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        Ok(Response::new(self.snapshots.send(&self.engine, &self.life, request.metadata())?))
    }

    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        let target = request.into_inner().target_id;
        about("member", format_args!("{target:x}"));
        let raft = self.engine.raft();
        if !raft.is_leader {
            return Err(Known::NotLeader.into());
        }
        if !raft.voters.contains(&target) {
            return Err(Known::BadTransferee.into());
        }
        if target != self.engine.id() {
            self.engine.transfer_leader(target).await.map_err(|_| Error::Etcd(Known::TimedOut))?;
        }
        Ok(Response::new(pb::MoveLeaderResponse { header: self.header() }))
    }

    /// Every target is refused: there is no older version to downgrade to.
    async fn downgrade(
        &self,
        request: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        let request = request.into_inner();
        match DowngradeAction::try_from(request.action) {
            Ok(DowngradeAction::Cancel) => Err(Known::NoDowngrade.into()),
            Ok(_) if is_version(&request.version) => Err(Known::InvalidDowngradeTarget.into()),
            Ok(_) => Err(Known::WrongDowngradeFormat.into()),
            Err(_) => {
                Err(Error::invalid(format_args!("downgrade action {} is not one of etcd's", request.action))
                    .into())
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

/// A hash of the keys as of `revision`: equal on all replicas.
fn hash_of_keys(view: &ReadView, revision: Revision) -> Result<u32, Error> {
    let (_pin, sequence) = pinned(view, revision)??;
    let mut hash = 0;
    kv::hash(view.view().at(sequence), |bytes| hash = crc32c::crc32c_append(hash, bytes))?;
    Ok(hash)
}

/// A hash of everything in the store: equal on all replicas that have applied the same entries.
fn hash_of_all(view: &ReadView) -> Result<u32, Error> {
    let (_pin, sequence) = pinned(view, view.progress().revision)??;
    let view_at = view.view().at(sequence);
    // Each replica drops the event records of compacted revisions when it comes to it.
    let (dead, kept) = (history::event_key(Revision(0)), history::event_key(view.progress().compacted));
    let hash = hash_of(view_at, b"", &dead, 0)?;
    Ok(hash_of(view_at, &kept, b"", hash)?)
}

fn hash_of(view: View<'_>, from: &[u8], to: &[u8], mut hash: u32) -> Result<u32, StoreError> {
    for pair in view.scan(from, to, Order::Ascending) {
        let (key, value) = pair?;
        // The lengths tell apart pairs whose bytes are the same together.
        let lengths = [key.len() as u64, value.len() as u64].map(u64::to_le_bytes);
        for part in [&lengths[0], &lengths[1], &key[..], &value[..]] {
            hash = crc32c::crc32c_append(hash, part);
        }
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;
    use maintenance_server::Maintenance as _;
    use quoin_core::Command;

    async fn apply(engine: &Engine, command: Command) {
        engine.propose(command).await.unwrap();
    }

    async fn hash_kv(service: &Maintenance, revision: i64) -> (i64, u32) {
        let answer =
            service.hash_kv(Request::new(pb::HashKvRequest { revision })).await.unwrap().into_inner();
        (answer.hash_revision, answer.hash)
    }

    /// Leases and the expiry index were hashed too, at the newest sequence: replicas asked at different moments
    /// differed though nothing had changed, which operators' tools take for corruption.
    #[test]
    fn the_hash_of_a_revision_changes_with_no_lease_and_no_compaction() {
        alone(|engine| async move {
            let (_running, life) = tokio::sync::watch::channel(false);
            let service = Maintenance::new(engine.clone(), Life(life));
            let put = |key: &'static str, lease| {
                kv::Operation::Put(kv::Put { key: key.into(), lease, ..kv::Put::default() }).into_command()
            };
            let grant = |id, ttl_s| kv::Operation::LeaseGrant(kv::LeaseGrant { id, ttl_s }).into_command();
            apply(&engine, grant(7, 60)).await;
            apply(&engine, put("leased", 7)).await;
            let first = hash_kv(&service, 0).await;
            for id in [8, 9] {
                apply(&engine, grant(id, 60)).await;
                apply(&engine, kv::Operation::LeaseKeepAlive(7).into_command()).await;
                assert_eq!(hash_kv(&service, 0).await, first);
            }
            apply(&engine, put("other", 0)).await;
            let second = hash_kv(&service, 0).await;
            assert!(second.0 > first.0 && second.1 != first.1);
            apply(&engine, system::Operation::Compact(first.0 as u64).into_command()).await;
            assert_eq!((hash_kv(&service, first.0).await, hash_kv(&service, 0).await), (first, second));
            apply(&engine, system::Operation::Compact(second.0 as u64).into_command()).await;
            assert_eq!(hash_kv(&service, 0).await, second);
            let gone = service.hash_kv(Request::new(pb::HashKvRequest { revision: first.0 })).await;
            assert_eq!(gone.unwrap_err().message(), Known::Compacted.text());
        });
    }
}
