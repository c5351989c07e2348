//! `quoin.auth.v1`: rights in parts of the node and in tables, which etcd's API cannot say.

use crate::auth::{self, check_user};
use crate::error::{Error, Known};
use quoin_core::Reply;
use quoin_core::auth::{Access, FaceGrant, Grant, Operation, Policy, RoleGrant, Scope, TableGrant};
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

fn part(part: i32, rights: u32) -> Scope {
    Scope::Part(FaceGrant { part, rights })
}

fn tables(pattern: String, rights: u32) -> Scope {
    Scope::Tables(TableGrant { pattern, rights })
}

fn with(role: String, scope: Scope) -> RoleGrant {
    RoleGrant { role, grant: Some(Grant { scope: Some(scope) }) }
}

/// A request names one thing to grant.
fn both() -> Error {
    Error::invalid("a part and tables in one request; grant and revoke them one after the other")
}

#[tonic::async_trait]
impl auth_server::Auth for Auth {
    async fn grant(&self, request: Request<pb::GrantRequest>) -> Result<Response<pb::GrantResponse>, Status> {
        let pb::GrantRequest { role, grant, tables: of_tables } = request.into_inner();
        let scope = match (grant, of_tables) {
            (Some(grant), None) => part(grant.part, grant.rights),
            (None, Some(grant)) => tables(grant.pattern, grant.rights),
            (None, None) => return Err(Known::PermissionNotGiven.into()),
            (Some(_), Some(_)) => return Err(both().into()),
        };
        let auth_revision = self.apply(Operation::Grant(with(role, scope))).await?;
        Ok(Response::new(pb::GrantResponse { auth_revision }))
    }

    async fn revoke(
        &self,
        request: Request<pb::RevokeRequest>,
    ) -> Result<Response<pb::RevokeResponse>, Status> {
        let pb::RevokeRequest { role, part: of_part, tables: pattern } = request.into_inner();
        let scope = match (of_part, pattern.is_empty()) {
            (_, true) => part(of_part, 0),
            (0, false) => tables(pattern, 0),
            (_, false) => return Err(both().into()),
        };
        let auth_revision = self.apply(Operation::Revoke(with(role, scope))).await?;
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
        let of_tables = view.memory().auth.role(&role).unwrap_or_default().iter();
        let of_tables = of_tables.filter_map(|grant| match &grant.scope {
            Some(Scope::Tables(TableGrant { pattern, rights })) => {
                Some(pb::TableRights { pattern: pattern.clone(), rights: *rights })
            }
            _ => None,
        });
        let tables = of_tables.collect();
        Ok(Response::new(pb::RoleResponse { grants, tables }))
    }
}
