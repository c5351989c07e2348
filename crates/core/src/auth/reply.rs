//! Answers to the auth face's commands.

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The auth revision after it.
    pub revision: u64,
    /// Whether it was done.
    pub result: Result<(), Refusal>,
}

/// Why a command was not done. The texts are etcd's where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Nobody could administer.
    #[error("root user does not exist")]
    NoRootUser,
    /// Nobody could administer.
    #[error("root user does not have root role")]
    NoRootRole,
    /// It exists.
    #[error("user name already exists")]
    UserExists,
    /// A name is missing.
    #[error("user name is empty")]
    UserEmpty,
    /// It does not exist.
    #[error("user name not found")]
    UserNotFound,
    /// It exists.
    #[error("role name already exists")]
    RoleExists,
    /// A name is missing.
    #[error("role name is empty")]
    RoleEmpty,
    /// It does not exist.
    #[error("role name not found")]
    RoleNotFound,
    /// The user has not got it.
    #[error("role is not granted to the user")]
    RoleNotGranted,
    /// The grant is missing.
    #[error("permission not given")]
    NothingGiven,
    /// The role does not grant it.
    #[error("permission is not granted to the role")]
    NotGranted,
    /// It would leave nobody who can administer, or the range of keys is none.
    #[error("invalid auth management")]
    Invalid,
    /// Longer than a name may be.
    #[error("a name of {bytes} bytes is too long, at most {max} are allowed", max = super::NAME_BYTES_MAX)]
    NameTooLong {
        /// Bytes of the name.
        bytes: usize,
    },
    /// There is no room for it.
    #[error(
        "users and roles would take more than {max} {what}; delete some, or grant ranges in place of keys"
    )]
    TooMuch {
        /// Of what there would be too much.
        what: &'static str,
        /// Maximum.
        max: usize,
    },
    /// The command was admitted under other users and roles than those of now, or without any. Nothing was done.
    #[error("revision of auth store is old")]
    OldRevision,
    /// The bytes are not a command of this version.
    #[error("malformed auth command")]
    Malformed,
}
