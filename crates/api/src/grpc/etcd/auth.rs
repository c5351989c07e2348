//! etcd's `Auth` as it is while authentication is off: clients that are given a user and a password learn that none
//! are wanted, and go on without.
//!
//! Deliberately absent: users and roles. There are none to list, and what would make one is refused.

use super::header::header_at;
use crate::error::{Error, Kind, Known};
use quoin_engine::Engine;
use quoin_proto::etcdserverpb as pb;
use quoin_proto::etcdserverpb::auth_server;
use tonic::{Request, Response, Status};

/// etcd's revision of an authentication store that nothing has changed.
const AUTH_REVISION: u64 = 1;

/// The service.
pub(crate) struct Auth {
    engine: Engine,
}

impl Auth {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(header_at(&self.engine, self.engine.latest().progress()))
    }
}

fn absent() -> Error {
    let text = "users and roles are not implemented; keep the client port inside a trusted network";
    Error::Refused(Kind::Unimplemented, text.into())
}

#[tonic::async_trait]
impl auth_server::Auth for Auth {
    async fn auth_status(
        &self,
        _: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        let (header, auth_revision) = (self.header(), AUTH_REVISION);
        Ok(Response::new(pb::AuthStatusResponse { header, enabled: false, auth_revision }))
    }

    async fn authenticate(
        &self,
        _: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        Err(Known::AuthNotEnabled.into())
    }

    /// As in etcd, what is off can be turned off.
    async fn auth_disable(
        &self,
        _: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        Ok(Response::new(pb::AuthDisableResponse { header: self.header() }))
    }

    async fn user_list(
        &self,
        _: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        Ok(Response::new(pb::AuthUserListResponse { header: self.header(), users: Vec::new() }))
    }

    async fn role_list(
        &self,
        _: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        Ok(Response::new(pb::AuthRoleListResponse { header: self.header(), roles: Vec::new() }))
    }

    async fn auth_enable(
        &self,
        _: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        Err(absent().into())
    }

    async fn user_add(
        &self,
        _: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        Err(absent().into())
    }

    async fn user_get(
        &self,
        _: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        Err(absent().into())
    }

    async fn user_delete(
        &self,
        _: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        Err(absent().into())
    }

    async fn user_change_password(
        &self,
        _: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        Err(absent().into())
    }

    async fn user_grant_role(
        &self,
        _: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        Err(absent().into())
    }

    async fn user_revoke_role(
        &self,
        _: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        Err(absent().into())
    }

    async fn role_add(
        &self,
        _: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        Err(absent().into())
    }

    async fn role_get(
        &self,
        _: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        Err(absent().into())
    }

    async fn role_delete(
        &self,
        _: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        Err(absent().into())
    }

    async fn role_grant_permission(
        &self,
        _: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        Err(absent().into())
    }

    async fn role_revoke_permission(
        &self,
        _: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        Err(absent().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;
    use auth_server::Auth as _;

    /// A client with a user and a password ended at "not implemented"; etcd's say by this error that they go on
    /// without a token.
    #[test]
    fn authentication_is_off_as_in_etcd() {
        alone(|engine| async move {
            let auth = Auth::new(engine);
            let refused =
                auth.authenticate(Request::new(pb::AuthenticateRequest::default())).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
            assert_eq!(refused.message(), "etcdserver: authentication is not enabled");
            let status =
                auth.auth_status(Request::new(pb::AuthStatusRequest::default())).await.unwrap().into_inner();
            assert_eq!((status.enabled, status.auth_revision), (false, 1));
            assert!(
                auth.auth_disable(Request::new(pb::AuthDisableRequest::default()))
                    .await
                    .unwrap()
                    .into_inner()
                    .header
                    .is_some()
            );
            assert!(
                auth.user_list(Request::new(pb::AuthUserListRequest::default()))
                    .await
                    .unwrap()
                    .into_inner()
                    .users
                    .is_empty()
            );
            let refused = auth.auth_enable(Request::new(pb::AuthEnableRequest::default())).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unimplemented);
        });
    }
}
