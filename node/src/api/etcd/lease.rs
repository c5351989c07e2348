//! etcd's `Lease`: keys that end together.

use super::{header, header_at, translate};
use crate::api::commands::{check_space, kv_operation, kv_reply, long_read};
use crate::api::{Life, clock, error, inbound};
use crate::engine::{Consistency, Engine};
use quoin_core::kv::{self, LeaseGrant, LeaseInfo, Operation, Response as Done};
use quoin_core::{Progress, Revision};
use quoin_proto::etcdserverpb::lease_server;
use quoin_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

/// Keep-alives that go into the log together at most, and answers that wait for a slow client; with more, the
/// stream is not read.
const KEEP_ALIVES_MAX: usize = 1000;

/// The service.
pub(crate) struct Lease {
    engine: Engine,
    life: Life,
}

impl Lease {
    pub(crate) fn new(engine: Engine, life: Life) -> Self {
        Self { engine, life }
    }
}

/// Makes a lease; with `id` 0, one whose id is chosen here.
///
/// # Errors
/// The id is taken, or the time out of bounds.
pub(crate) async fn grant(engine: &Engine, id: i64, ttl_s: i64) -> Result<(Revision, i64, i64), Status> {
    check_space(engine)?;
    loop {
        let chosen = if id == 0 { rand::random_range(1..=i64::MAX) } else { id };
        // As in etcd, too short a time is made longer, and the answer says so.
        let grant = LeaseGrant { id: chosen, ttl_s: ttl_s.max(1) };
        match kv_operation(engine, Operation::LeaseGrant(grant)).await {
            Ok((revision, Done::Lease { id, ttl_s })) => return Ok((revision, id, ttl_s)),
            Ok((_, other)) => return Err(translate::unexpected(&other)),
            // Somebody else has the number that we drew: draw again.
            Err(status) if id == 0 && status.message() == error::LEASE_EXISTS.text() => {}
            Err(status) => return Err(status),
        }
    }
}

#[tonic::async_trait]
impl lease_server::Lease for Lease {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let request = request.into_inner();
        let (revision, id, ttl) = grant(&self.engine, request.id, request.ttl).await?;
        let header = Some(header(&self.engine, revision));
        Ok(Response::new(LeaseGrantResponse { header, id, ttl, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let operation = Operation::LeaseRevoke(request.into_inner().id);
        let (revision, _) = kv_operation(&self.engine, operation).await?;
        Ok(Response::new(LeaseRevokeResponse { header: Some(header(&self.engine, revision)) }))
    }

    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let mut requests = request.into_inner();
        let (sender, receiver) = mpsc::channel(KEEP_ALIVES_MAX);
        let (engine, life) = (self.engine.clone(), self.life.clone());
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = keep_alive(&engine, &mut requests, &sender) => ended,
                () = life.ended() => Err(error::STOPPED.into()),
                () = sender.closed() => Ok(()),
            };
            if let Err(status) = ended {
                // Nobody is left to be told where this fails.
                let _ = sender.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let view = self.engine.read(Consistency::Linearizable).await?;
        let progress = *view.progress();
        let read = move || kv::lease(view.view(), &progress, id, keys);
        let found = if keys { long_read(read).await? } else { read().map_err(error::store)? };
        let header = Some(header_at(&self.engine, &progress));
        Ok(Response::new(match found {
            Some((lease, keys)) => LeaseTimeToLiveResponse {
                header,
                id,
                ttl: seconds_left(&lease, &progress),
                granted_ttl: lease.granted_ttl_s,
                keys,
            },
            None => LeaseTimeToLiveResponse { header, id, ttl: -1, ..Default::default() },
        }))
    }

    async fn lease_leases(
        &self,
        _: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let view = self.engine.read(Consistency::Linearizable).await?;
        let header = Some(header_at(&self.engine, view.progress()));
        let leases = long_read(move || kv::leases(view.view(), view.progress())).await?;
        let leases = leases.into_iter().map(|lease| LeaseStatus { id: lease.id }).collect();
        Ok(Response::new(LeaseLeasesResponse { header, leases }))
    }
}

fn seconds_left(lease: &LeaseInfo, progress: &Progress) -> i64 {
    let left = lease.deadline.0.saturating_sub(clock::now(progress).0);
    super::signed(left / 1000)
}

/// Answers keep-alives until the client ends the stream.
async fn keep_alive(
    engine: &Engine,
    requests: &mut Streaming<LeaseKeepAliveRequest>,
    sender: &mpsc::Sender<Result<LeaseKeepAliveResponse, Status>>,
) -> Result<(), Status> {
    loop {
        let ids = inbound::next_many(requests, KEEP_ALIVES_MAX).await?;
        if ids.is_empty() {
            return Ok(());
        }
        let commands =
            ids.iter().map(|request| Operation::LeaseKeepAlive(request.id).into_command()).collect();
        let replies = engine.propose_many(commands).await;
        for (LeaseKeepAliveRequest { id }, reply) in ids.into_iter().zip(replies) {
            let (revision, ttl) = match kv_reply(reply?) {
                Ok((revision, Done::Lease { ttl_s, .. })) => (revision, ttl_s),
                Ok((_, other)) => return Err(translate::unexpected(&other)),
                Err(status) if status.code() == Code::NotFound => (engine.latest().progress().revision, 0),
                Err(status) => return Err(status),
            };
            let header = Some(header(engine, revision));
            if sender.send(Ok(LeaseKeepAliveResponse { header, id, ttl })).await.is_err() {
                return Ok(());
            }
        }
    }
}
