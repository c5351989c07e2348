//! `quoin.auth.v1`: rights in parts of the node, which etcd's API cannot say.

use crate::auth::{self, check_user};
use crate::error::{Error, Known};
use quoin_core::Reply;
use quoin_core::auth::{Access, FaceGrant, Grant, Operation, Policy, RoleGrant, Scope};
use quoin_engine::{Consistency, Engine};
use quoin_proto::quoin::auth::v1 as pb;
use quoin_proto::quoin::auth::v1::auth_server;
use tonic::{Request, Response, Status};

/// The service.
pub(super) struct Auth {
    engine: Engine,
}

impl Auth {
    pub(super) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// Applies an operation; returns the auth revision after it.
    async fn apply(&self, operation: Operation) -> Result<u64, Error> {
        auth::tell(&operation);
        match self.engine.propose(operation.into_command()).await? {
            Reply::Auth(reply) => reply.result.map(|()| reply.revision).map_err(Error::from),
            other => Err(Error::unexpected_reply("auth", &other)),
        }
    }
}

fn grant(role: String, part: i32, rights: u32) -> RoleGrant {
    RoleGrant { role, grant: Some(Grant { scope: Some(Scope::Part(FaceGrant { part, rights })) }) }
}

#[tonic::async_trait]
impl auth_server::Auth for Auth {
    async fn grant(&self, request: Request<pb::GrantRequest>) -> Result<Response<pb::GrantResponse>, Status> {
        let pb::GrantRequest { role, grant: given } = request.into_inner();
        let pb::PartRights { part, rights } = given.ok_or(Known::PermissionNotGiven)?;
        let auth_revision = self.apply(Operation::Grant(grant(role, part, rights))).await?;
        Ok(Response::new(pb::GrantResponse { auth_revision }))
    }

    async fn revoke(
        &self,
        request: Request<pb::RevokeRequest>,
    ) -> Result<Response<pb::RevokeResponse>, Status> {
        let pb::RevokeRequest { role, part } = request.into_inner();
        let auth_revision = self.apply(Operation::Revoke(grant(role, part, 0))).await?;
        Ok(Response::new(pb::RevokeResponse { auth_revision }))
    }

    async fn role(&self, request: Request<pb::RoleRequest>) -> Result<Response<pb::RoleResponse>, Status> {
        let role = request.into_inner().role;
        let has =
            |policy: &Policy, name: &str| policy.user(name).is_some_and(|user| user.roles.contains(&role));
        check_user(&self.engine, has, Access::is_root)?;
        let view = self.engine.read(Consistency::Linearizable).await.map_err(Error::from)?;
        let grants = view.memory().auth.role(&role).ok_or(Known::RoleNotFound)?;
        let parts = grants.iter().filter_map(|grant| match &grant.scope {
            Some(Scope::Part(FaceGrant { part, rights })) => Some((*part, *rights)),
            _ => None,
        });
        let grants = parts.map(|(part, rights)| pb::PartRights { part, rights }).collect();
        Ok(Response::new(pb::RoleResponse { grants }))
    }
}
