//! etcd's `Election`: one leader per name among clients, in the order of candidacy.

use super::header::{header, header_at};
use super::queue::{self, if_created_at};
use super::translate;
use crate::auth;
use crate::commands::check_space;
use crate::error::{Error, Known};
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::life::Life;
use bytes::Bytes;
use quoin_core::kv;
use quoin_core::kv::txn_operation::Step;
use quoin_engine::{Consistency, Engine};
use quoin_proto::etcdserverpb::ResponseHeader;
use quoin_proto::v3electionpb as pb;
use quoin_proto::v3electionpb::election_server;
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct Election {
    engine: Engine,
    life: Life,
}

impl Election {
    pub(crate) fn new(engine: Engine, life: Life) -> Self {
        Self { engine, life }
    }

    /// Replaces a leader's value.
    async fn announce(&self, leader: &pb::LeaderKey, value: Bytes) -> Result<ResponseHeader, Error> {
        check_space(&self.engine)?;
        let (key, lease) = (leader.key.clone(), leader.lease);
        let put = Step::Put(kv::Put { key, value, lease, ..kv::Put::default() });
        let done = if_created_at(&self.engine, &leader.key, leader.rev, put, None).await?;
        if !done.held {
            return Err(Known::NotElectionLeader.into());
        }
        Ok(header(&self.engine, done.revision))
    }
}

#[tonic::async_trait]
impl election_server::Election for Election {
    async fn campaign(
        &self,
        request: Request<pb::CampaignRequest>,
    ) -> Result<Response<pb::CampaignResponse>, Status> {
        let pb::CampaignRequest { name, lease, value } = request.into_inner();
        let place = queue::join(&self.engine, &name, lease, value.clone()).await?;
        let (key, rev, lease) = (place.key.clone(), place.revision, place.lease);
        let leader = pb::LeaderKey { name, key, rev, lease };
        if place.value_before.as_ref().is_some_and(|before| *before != value) {
            self.announce(&leader, value).await?;
        }
        let header = Some(queue::wait_for_turn(&self.engine, &place).await?);
        Ok(Response::new(pb::CampaignResponse { header, leader: Some(leader) }))
    }

    async fn proclaim(
        &self,
        request: Request<pb::ProclaimRequest>,
    ) -> Result<Response<pb::ProclaimResponse>, Status> {
        let request = request.into_inner();
        let leader = given(request.leader)?;
        let header = Some(self.announce(&leader, request.value).await?);
        Ok(Response::new(pb::ProclaimResponse { header }))
    }

    async fn leader(
        &self,
        request: Request<pb::LeaderRequest>,
    ) -> Result<Response<pb::LeaderResponse>, Status> {
        let name = request.into_inner().name;
        let (progress, found) = queue::holder(&self.engine, &name, Consistency::Linearizable).await?;
        let found = found.ok_or(Error::Etcd(Known::NoElectionLeader))?;
        let header = Some(header_at(&self.engine, &progress));
        Ok(Response::new(pb::LeaderResponse { header, kv: Some(translate::key_value(found)) }))
    }

    type ObserveStream = AnswerStream<pb::LeaderResponse>;

    async fn observe(
        &self,
        request: Request<pb::LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let name = request.into_inner().name;
        let engine = self.engine.clone();
        Ok(Response::new(outbound::spawn(&self.life, 1, |answers| observe(engine, name, answers))))
    }

    async fn resign(
        &self,
        request: Request<pb::ResignRequest>,
    ) -> Result<Response<pb::ResignResponse>, Status> {
        let leader = given(request.into_inner().leader)?;
        // As in etcd: a client that is not, or no longer, the leader has resigned already.
        let done = queue::leave(&self.engine, &leader.key, leader.rev).await?;
        Ok(Response::new(pb::ResignResponse { header: Some(header(&self.engine, done.revision)) }))
    }
}

fn given(leader: Option<pb::LeaderKey>) -> Result<pb::LeaderKey, Error> {
    match leader {
        Some(leader) if leader.key.is_empty() => Err(Known::EmptyKey.into()),
        Some(leader) => Ok(leader),
        None => Err(Known::MissingLeaderKey.into()),
    }
}

/// Sends the leader's value now and whenever it has changed. Of several changes in quick succession only the
/// last is sent, as in etcd.
async fn observe(engine: Engine, name: Bytes, answers: Answers<pb::LeaderResponse>) -> Result<(), Error> {
    let (mut progress, mut found) = queue::holder(&engine, &name, Consistency::Linearizable).await?;
    let mut changes = queue::changes(&engine, &name, progress.revision.next());
    let mut sent = 0;
    loop {
        if let Some(kv) = found.filter(|kv| kv.mod_revision != sent) {
            sent = kv.mod_revision;
            let header = Some(header_at(&engine, &progress));
            let kv = Some(translate::key_value(kv));
            if answers.send(Ok(pb::LeaderResponse { header, kv })).await.is_err() {
                return Ok(());
            }
        }
        changes.next().await?;
        // A stream outlives changes of users and roles.
        (progress, found) = auth::renewed(&engine, queue::holder(&engine, &name, Consistency::ANY)).await??;
    }
}
