//! etcd's `Lease`: keys that expire together.

use super::header::{header, header_at, signed};
use crate::auth;
use crate::commands::{check_space, kv_operation, kv_reply, long_kv_operation, long_read, read};
use crate::error::{Error, Known};
use crate::grpc::inbound;
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::life::Life;
use quoin_core::auth::Access;
use quoin_core::kv::{self, LeaseGrant, LeaseInfo, Operation, Response as Done};
use quoin_core::{Revision, Stamp};
use quoin_engine::{Consistency, Engine};
use quoin_proto::etcdserverpb::lease_server;
use quoin_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use tonic::{Request, Response, Status, Streaming};

/// Maximum keep-alives proposed together, and maximum answers that wait for a slow client; then the stream is
/// not read.
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

/// Grants a lease; with `id` 0, under an id chosen here. Returns the newest revision, the id, and the time to
/// live in seconds.
///
/// # Errors
/// The id is taken, or the time to live is too long; otherwise as every write.
pub(super) async fn grant(engine: &Engine, id: i64, ttl_s: i64) -> Result<(Revision, i64, i64), Error> {
    check_space(engine)?;
    loop {
        let chosen = if id == 0 { rand::random_range(1..=i64::MAX) } else { id };
        // As in etcd, a time that is too short is made longer, and the answer says so.
        let grant = LeaseGrant { id: chosen, ttl_s: ttl_s.max(1) };
        match kv_operation(engine, Operation::LeaseGrant(grant)).await {
            Ok((revision, Done::Lease { id, ttl_s })) => return Ok((revision, id, ttl_s)),
            Ok((_, other)) => return Err(Error::unexpected_reply("kv", &other)),
            // The drawn id is taken: draw again.
            Err(Error::Etcd(Known::LeaseExists)) if id == 0 => {}
            Err(error) => return Err(error),
        }
    }
}

/// Ends a lease; returns once all its keys are deleted. Very many are deleted in steps, each at a revision of its
/// own: the lease is over with the first, and the others follow even if this fails.
///
/// # Errors
/// There is no such lease; otherwise as every write.
async fn revoke(engine: &Engine, id: i64) -> Result<Revision, Error> {
    let mut begun = false;
    loop {
        let revoke = Operation::LeaseRevoke(id);
        let revoked = match begun {
            false => kv_operation(engine, revoke).await,
            true => long_kv_operation(engine, revoke).await,
        };
        match revoked {
            Ok((revision, Done::Revoked { more: false })) => return Ok(revision),
            Ok((_, Done::Revoked { more: true })) => begun = true,
            Ok((_, other)) => return Err(Error::unexpected_reply("kv", &other)),
            // The rest was deleted meanwhile, unasked.
            Err(Error::Etcd(Known::LeaseNotFound)) if begun => {
                return Ok(engine.latest().progress().revision);
            }
            Err(error) => return Err(error),
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
        let revision = revoke(&self.engine, request.into_inner().id).await?;
        Ok(Response::new(LeaseRevokeResponse { header: Some(header(&self.engine, revision)) }))
    }

    type LeaseKeepAliveStream = AnswerStream<LeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (engine, requests) = (self.engine.clone(), request.into_inner());
        Ok(Response::new(outbound::spawn(&self.life, KEEP_ALIVES_MAX, |answers| {
            keep_alive(engine, requests, answers)
        })))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        if keys && self.engine.auth_on() {
            auth::check_lease(&self.engine, id, Access::reads).await?;
        }
        let view = read(&self.engine, Consistency::Linearizable).await?;
        let progress = *view.progress();
        let now = view.now();
        let find = move || kv::lease(view.view(), &progress, id, keys);
        let found = if keys { long_read(find).await? } else { find().map_err(Error::from)? };
        let header = Some(header_at(&self.engine, &progress));
        Ok(Response::new(match found {
            Some((lease, keys)) => LeaseTimeToLiveResponse {
                header,
                id,
                ttl: seconds_left(&lease, now),
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
        let view = read(&self.engine, Consistency::Linearizable).await?;
        let header = Some(header_at(&self.engine, view.progress()));
        let leases = long_read(move || kv::leases(view.view(), view.progress())).await?;
        let leases = leases.into_iter().map(|lease| LeaseStatus { id: lease.id }).collect();
        Ok(Response::new(LeaseLeasesResponse { header, leases }))
    }
}

fn seconds_left(lease: &LeaseInfo, now: Stamp) -> i64 {
    let left = lease.deadline.0.saturating_sub(now.0);
    signed(left / 1000)
}

/// Answers keep-alives until the client ends the stream.
async fn keep_alive(
    engine: Engine,
    mut requests: Streaming<LeaseKeepAliveRequest>,
    answers: Answers<LeaseKeepAliveResponse>,
) -> Result<(), Error> {
    loop {
        let ids = inbound::next_many(&mut requests, KEEP_ALIVES_MAX).await?;
        if ids.is_empty() {
            return Ok(());
        }
        let commands =
            ids.iter().map(|request| Operation::LeaseKeepAlive(request.id).into_command()).collect();
        // A stream outlives changes of users and roles.
        let replies = auth::renewed(&engine, engine.propose_many(commands)).await?;
        for (LeaseKeepAliveRequest { id }, reply) in ids.into_iter().zip(replies) {
            let (revision, ttl) = match kv_reply(reply?) {
                Ok((revision, Done::Lease { ttl_s, .. })) => (revision, ttl_s),
                Ok((_, other)) => return Err(Error::unexpected_reply("kv", &other)),
                Err(Error::Etcd(Known::LeaseNotFound)) => (engine.latest().progress().revision, 0),
                Err(error) => return Err(error),
            };
            let header = Some(header(&engine, revision));
            if answers.send(Ok(LeaseKeepAliveResponse { header, id, ttl })).await.is_err() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;
    use lease_server::Lease as _;
    use quoin_core::store::Order;

    #[test]
    fn a_revocation_is_answered_when_all_keys_are_deleted() {
        alone(|engine| async move {
            let (_running, life) = tokio::sync::watch::channel(false);
            let service = Lease::new(engine.clone(), Life(life));
            grant(&engine, 7, 60).await.unwrap();
            let put = |number: usize| {
                let key = number.to_string().into();
                Operation::Put(kv::Put { key, lease: 7, ..kv::Put::default() }).into_command()
            };
            let puts = (0..2 * kv::LEASE_KEYS_MAX + 1).map(put).collect();
            for reply in engine.propose_many(puts).await {
                kv_reply(reply.unwrap()).unwrap();
            }
            let before = engine.latest().progress().revision;
            service.lease_revoke(Request::new(LeaseRevokeRequest { id: 7 })).await.unwrap();
            let view = engine.latest();
            assert_eq!(view.view().scan(b"\x01k", b"\x01l", Order::Ascending).count(), 0);
            assert!(view.progress().revision.0 > before.0 + 1, "one revision for each step");
            assert!(engine.metrics().commands_paced.get() > 0, "others go in between");
            let again = service.lease_revoke(Request::new(LeaseRevokeRequest { id: 7 })).await;
            assert_eq!(again.unwrap_err().message(), Known::LeaseNotFound.text());
        });
    }
}
