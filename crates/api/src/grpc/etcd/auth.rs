//! etcd's `Auth`: users, roles, and tokens.
//!
//! Who may call what is in `crate::auth`; here requests become commands. Passwords are hashed before they are proposed.

use super::header::header_at;
use crate::auth::{self, Gate, check_user};
use crate::error::{Error, Known};
use bytes::Bytes;
use quoin_core::Reply;
use quoin_core::auth::{
    Access, AddUser, Enable, Grant, KeyRange, KeyRights, Operation, Policy, Refusal, RoleGrant, Scope,
    SetPassword, UserRole,
};
use quoin_engine::Consistency;
use quoin_proto::authpb::Permission;
use quoin_proto::etcdserverpb as pb;
use quoin_proto::etcdserverpb::auth_server;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Bytes of the secret that signs tokens.
const SECRET_BYTES: usize = 32;

/// The service.
pub(crate) struct Auth {
    gate: Arc<Gate>,
}

impl Auth {
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        Self { gate }
    }

    fn header(&self) -> Option<pb::ResponseHeader> {
        let engine = self.gate.engine();
        Some(header_at(engine, engine.latest().progress()))
    }

    /// Applies an operation; returns the header of its answer.
    async fn apply(&self, operation: Operation) -> Result<Option<pb::ResponseHeader>, Status> {
        auth::tell(&operation);
        match self.gate.engine().propose(operation.into_command()).await.map_err(Error::from)? {
            Reply::Auth(reply) => reply.result.map_err(Error::from)?,
            other => return Err(Error::unexpected_reply("auth", &other).into()),
        }
        Ok(self.header())
    }

    /// The newest users and roles.
    async fn policy(&self) -> Result<Arc<Policy>, Error> {
        let view = self.gate.engine().read(Consistency::Linearizable).await?;
        Ok(Arc::clone(&view.memory().auth))
    }
}

/// The only place where refusals of the auth face become errors.
impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoRootUser => Known::RootUserMissing.into(),
            Refusal::NoRootRole => Known::RootRoleMissing.into(),
            Refusal::UserExists => Known::UserExists.into(),
            Refusal::UserEmpty => Known::UserEmpty.into(),
            Refusal::UserNotFound => Known::UserNotFound.into(),
            Refusal::RoleExists => Known::RoleExists.into(),
            Refusal::RoleEmpty => Known::RoleEmpty.into(),
            Refusal::RoleNotFound => Known::RoleNotFound.into(),
            Refusal::RoleNotGranted => Known::RoleNotGranted.into(),
            Refusal::NothingGiven => Known::PermissionNotGiven.into(),
            Refusal::NotGranted => Known::PermissionNotGranted.into(),
            Refusal::Invalid => Known::InvalidAuthMgmt.into(),
            Refusal::OldRevision => Known::AuthOldRevision.into(),
            Refusal::NameTooLong { .. } => Self::invalid(refusal),
            Refusal::TooMuch { .. } => {
                Self::Refused(crate::error::Kind::ResourceExhausted, refusal.to_string())
            }
            other => Self::fault(other),
        }
    }
}

fn keys(rights: i32, key: Bytes, range_end: Bytes) -> Option<Grant> {
    Some(Grant { scope: Some(Scope::Keys(KeyRange { rights, key, range_end })) })
}

/// What a role grants of keys: all that etcd's API can say.
fn permissions(grants: &[Grant]) -> Vec<Permission> {
    let keys = grants.iter().filter_map(|grant| match &grant.scope {
        Some(Scope::Keys(range)) => Some(range.clone()),
        _ => None,
    });
    keys.map(|KeyRange { rights, key, range_end }| Permission { perm_type: rights, key, range_end }).collect()
}

#[tonic::async_trait]
impl auth_server::Auth for Auth {
    async fn auth_status(
        &self,
        _: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        let policy = self.policy().await?;
        let (enabled, auth_revision) = (policy.enabled(), policy.revision());
        Ok(Response::new(pb::AuthStatusResponse { header: self.header(), enabled, auth_revision }))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        let pb::AuthenticateRequest { name, password } = request.into_inner();
        let token = self.gate.token(&name, &password).await?;
        Ok(Response::new(pb::AuthenticateResponse { header: self.header(), token }))
    }

    async fn auth_enable(
        &self,
        _: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        let secret = Bytes::copy_from_slice(&rand::random::<[u8; SECRET_BYTES]>());
        let header = self.apply(Operation::Enable(Enable { secret })).await?;
        Ok(Response::new(pb::AuthEnableResponse { header }))
    }

    /// As in etcd, what is off can be turned off.
    async fn auth_disable(
        &self,
        _: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        let header = self.apply(Operation::Disable(true)).await?;
        Ok(Response::new(pb::AuthDisableResponse { header }))
    }

    async fn user_add(
        &self,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        let pb::AuthUserAddRequest { name, password, options, .. } = request.into_inner();
        if name.is_empty() {
            return Err(Known::UserEmpty.into());
        }
        let no_password = options.is_some_and(|options| options.no_password);
        let hash = if no_password { String::new() } else { self.gate.hash(password).await? };
        let header = self.apply(Operation::AddUser(AddUser { name, hash })).await?;
        Ok(Response::new(pb::AuthUserAddResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        let name = request.into_inner().name;
        check_user(self.gate.engine(), |_, caller| caller == name, Access::is_root)?;
        let policy = self.policy().await?;
        let user = policy.user(&name).ok_or(Known::UserNotFound)?;
        Ok(Response::new(pb::AuthUserGetResponse { header: self.header(), roles: user.roles.clone() }))
    }

    async fn user_list(
        &self,
        _: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        let users = self.policy().await?.users().map(str::to_owned).collect();
        Ok(Response::new(pb::AuthUserListResponse { header: self.header(), users }))
    }

    async fn user_delete(
        &self,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        let header = self.apply(Operation::DeleteUser(request.into_inner().name)).await?;
        Ok(Response::new(pb::AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        let pb::AuthUserChangePasswordRequest { name, password, .. } = request.into_inner();
        let hash = self.gate.hash(password).await?;
        let header = self.apply(Operation::SetPassword(SetPassword { name, hash })).await?;
        Ok(Response::new(pb::AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        let pb::AuthUserGrantRoleRequest { user, role } = request.into_inner();
        let header = self.apply(Operation::GrantRole(UserRole { user, role })).await?;
        Ok(Response::new(pb::AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        let pb::AuthUserRevokeRoleRequest { name: user, role } = request.into_inner();
        let header = self.apply(Operation::RevokeRole(UserRole { user, role })).await?;
        Ok(Response::new(pb::AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        let header = self.apply(Operation::AddRole(request.into_inner().name)).await?;
        Ok(Response::new(pb::AuthRoleAddResponse { header }))
    }

    async fn role_get(
        &self,
        request: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        let role = request.into_inner().role;
        let has =
            |policy: &Policy, name: &str| policy.user(name).is_some_and(|user| user.roles.contains(&role));
        check_user(self.gate.engine(), has, Access::is_root)?;
        let policy = self.policy().await?;
        let grants = policy.role(&role).ok_or(Known::RoleNotFound)?;
        let perm = match role == quoin_core::auth::ROOT {
            // As in etcd, whatever else it was granted.
            true => vec![Permission {
                perm_type: KeyRights::ReadWrite as i32,
                key: Bytes::new(),
                range_end: Bytes::from_static(b"\0"),
            }],
            false => permissions(grants),
        };
        Ok(Response::new(pb::AuthRoleGetResponse { header: self.header(), perm }))
    }

    async fn role_list(
        &self,
        _: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        let roles = self.policy().await?.roles().map(str::to_owned).collect();
        Ok(Response::new(pb::AuthRoleListResponse { header: self.header(), roles }))
    }

    async fn role_delete(
        &self,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        let header = self.apply(Operation::DeleteRole(request.into_inner().role)).await?;
        Ok(Response::new(pb::AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        let pb::AuthRoleGrantPermissionRequest { name, perm } = request.into_inner();
        let Permission { perm_type, key, range_end } = perm.ok_or(Known::PermissionNotGiven)?;
        let grant = RoleGrant { role: name, grant: keys(perm_type, key, range_end) };
        let header = self.apply(Operation::Grant(grant)).await?;
        Ok(Response::new(pb::AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        let pb::AuthRoleRevokePermissionRequest { role, key, range_end } = request.into_inner();
        let grant = RoleGrant { role, grant: keys(KeyRights::Read as i32, key, range_end) };
        let header = self.apply(Operation::Revoke(grant)).await?;
        Ok(Response::new(pb::AuthRoleRevokePermissionResponse { header }))
    }
}
