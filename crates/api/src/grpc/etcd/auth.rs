//! etcd's `Auth`: not implemented, and every call answers so.

use crate::error::{Error, Kind};
use quoin_proto::etcdserverpb as pb;
use quoin_proto::etcdserverpb::auth_server;
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct Auth;

fn absent() -> Error {
    let text = "users and roles are not implemented; keep the client port inside a trusted network";
    Error::Refused(Kind::Unimplemented, text.into())
}

macro_rules! absent {
    ($($method:ident($request:ident) -> $response:ident;)*) => {
        #[tonic::async_trait]
        impl auth_server::Auth for Auth {
            $(
                async fn $method(
                    &self,
                    _: Request<pb::$request>,
                ) -> Result<Response<pb::$response>, Status> {
                    Err(absent().into())
                }
            )*
        }
    };
}

absent! {
    auth_enable(AuthEnableRequest) -> AuthEnableResponse;
    auth_disable(AuthDisableRequest) -> AuthDisableResponse;
    auth_status(AuthStatusRequest) -> AuthStatusResponse;
    authenticate(AuthenticateRequest) -> AuthenticateResponse;
    user_add(AuthUserAddRequest) -> AuthUserAddResponse;
    user_get(AuthUserGetRequest) -> AuthUserGetResponse;
    user_list(AuthUserListRequest) -> AuthUserListResponse;
    user_delete(AuthUserDeleteRequest) -> AuthUserDeleteResponse;
    user_change_password(AuthUserChangePasswordRequest) -> AuthUserChangePasswordResponse;
    user_grant_role(AuthUserGrantRoleRequest) -> AuthUserGrantRoleResponse;
    user_revoke_role(AuthUserRevokeRoleRequest) -> AuthUserRevokeRoleResponse;
    role_add(AuthRoleAddRequest) -> AuthRoleAddResponse;
    role_get(AuthRoleGetRequest) -> AuthRoleGetResponse;
    role_list(AuthRoleListRequest) -> AuthRoleListResponse;
    role_delete(AuthRoleDeleteRequest) -> AuthRoleDeleteResponse;
    role_grant_permission(AuthRoleGrantPermissionRequest) -> AuthRoleGrantPermissionResponse;
    role_revoke_permission(AuthRoleRevokePermissionRequest) -> AuthRoleRevokePermissionResponse;
}
