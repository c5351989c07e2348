//! etcd's errors: its kinds and its texts, to the letter. Clients decide by both whether to try again.

use super::kind::Kind;
use std::fmt;

macro_rules! known {
    ($($name:ident: $kind:ident, $text:literal;)*) => {
        /// One of etcd's errors.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Known {
            $(#[doc = $text] $name,)*
        }

        impl Known {
            /// Its text, with etcd's own prefix.
            pub(crate) fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// etcd's status code for it.
            pub(crate) fn kind(self) -> Kind {
                match self {
                    $(Self::$name => Kind::$kind,)*
                }
            }
        }
    };
}

known! {
    EmptyKey: InvalidArgument, "etcdserver: key is not provided";
    KeyNotFound: InvalidArgument, "etcdserver: key not found";
    ValueProvided: InvalidArgument, "etcdserver: value is provided";
    LeaseProvided: InvalidArgument, "etcdserver: lease is provided";
    TooManyOperations: InvalidArgument, "etcdserver: too many operations in txn request";
    DuplicateKey: InvalidArgument, "etcdserver: duplicate key given in txn request";
    InvalidSort: InvalidArgument, "etcdserver: invalid sort option";
    RequestTooLarge: InvalidArgument, "etcdserver: request is too large";
    Compacted: OutOfRange, "etcdserver: mvcc: required revision has been compacted";
    FutureRevision: OutOfRange, "etcdserver: mvcc: required revision is a future revision";
    NoSpace: ResourceExhausted, "etcdserver: mvcc: database space exceeded";
    TooManyRequests: ResourceExhausted, "etcdserver: too many requests";
    LeaseNotFound: NotFound, "etcdserver: requested lease not found";
    LeaseExists: FailedPrecondition, "etcdserver: lease already exists";
    LeaseTtlTooLarge: OutOfRange, "etcdserver: too large lease TTL";
    MemberExists: FailedPrecondition, "etcdserver: member ID already exist";
    PeerUrlExists: FailedPrecondition, "etcdserver: Peer URLs already exists";
    MembersNotStarted: FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members";
    Unhealthy: Unavailable, "etcdserver: unhealthy cluster";
    BadMemberUrls: InvalidArgument, "etcdserver: given member URLs are invalid";
    MemberNotFound: NotFound, "etcdserver: member not found";
    MemberNotLearner: FailedPrecondition, "etcdserver: can only promote a learner member";
    LearnerNotReady: FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader";
    NoLeader: Unavailable, "etcdserver: no leader";
    NotLeader: FailedPrecondition, "etcdserver: not leader";
    LeaderChanged: Unavailable, "etcdserver: leader changed";
    Stopped: Unavailable, "etcdserver: server stopped";
    LeaderLost: Unavailable, "etcdserver: request timed out, possibly due to previous leader failure";
    TimedOut: Unavailable, "etcdserver: request timed out";
    BadTransferee: FailedPrecondition, "etcdserver: bad leader transferee";
    WrongDowngradeFormat: InvalidArgument, "etcdserver: wrong downgrade target version format";
    InvalidDowngradeTarget: InvalidArgument, "etcdserver: invalid downgrade target version";
    NoDowngrade: FailedPrecondition, "etcdserver: no inflight downgrade job";
    AuthNotEnabled: FailedPrecondition, "etcdserver: authentication is not enabled";
    RootUserMissing: FailedPrecondition, "etcdserver: root user does not exist";
    RootRoleMissing: FailedPrecondition, "etcdserver: root user does not have root role";
    UserExists: FailedPrecondition, "etcdserver: user name already exists";
    UserEmpty: InvalidArgument, "etcdserver: user name is empty";
    UserNotFound: FailedPrecondition, "etcdserver: user name not found";
    RoleExists: FailedPrecondition, "etcdserver: role name already exists";
    RoleNotFound: FailedPrecondition, "etcdserver: role name not found";
    RoleEmpty: InvalidArgument, "etcdserver: role name is empty";
    AuthFailed: InvalidArgument, "etcdserver: authentication failed, invalid user ID or password";
    NoPasswordUser: Unknown, "auth: authentication failed, password was given for no password user";
    PermissionNotGiven: InvalidArgument, "etcdserver: permission not given";
    PermissionDenied: PermissionDenied, "etcdserver: permission denied";
    RoleNotGranted: FailedPrecondition, "etcdserver: role is not granted to the user";
    PermissionNotGranted: FailedPrecondition, "etcdserver: permission is not granted to the role";
    InvalidAuthToken: Unauthenticated, "etcdserver: invalid auth token";
    InvalidAuthMgmt: InvalidArgument, "etcdserver: invalid auth management";
    AuthOldRevision: InvalidArgument, "etcdserver: revision of auth store is old";
    SessionExpired: Unknown, "mutex: session is expired";
    NoElectionLeader: Unknown, "election: no leader";
    NotElectionLeader: Unknown, "election: not leader";
    MissingLeaderKey: Unknown, "\"leader\" field must be provided";
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Known {}
