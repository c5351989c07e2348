//! The auth face's records in the store. All keys begin with the face's byte `0x05`.
//!
//! ```text
//! 0x05 'p'       -> whether authentication is on, the auth revision, and the secret that signs tokens
//! 0x05 'u' name  -> a user
//! 0x05 'r' name  -> a role
//! ```
//!
//! The values are Protocol Buffers messages.

use super::command::Grant;
use bytes::Bytes;
use prost::Message;
use std::fmt;

/// The first byte of the face's store keys.
pub(crate) const FACE: u8 = 5;
/// Maximum bytes of a user's or role's name.
pub const NAME_BYTES_MAX: usize = 1024;
/// Maximum bytes of a user's or role's record.
pub(super) const RECORD_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of all records together: replicas keep them in memory.
pub(super) const BYTES_MAX: usize = 64 << 20;
/// Maximum users and roles: a change costs a little for each.
pub(super) const ENTRIES_MAX: usize = 100_000;
/// The record of what is neither user nor role.
pub(super) const STATE_KEY: &[u8] = &[FACE, b'p'];
/// The prefix of all users.
pub(super) const USERS: &[u8] = &[FACE, b'u'];
/// The prefix of all roles.
pub(super) const ROLES: &[u8] = &[FACE, b'r'];

/// What is neither user nor role.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(super) struct State {
    /// Whether requests need rights.
    #[prost(bool, tag = "1")]
    pub(super) enabled: bool,
    /// How many changes there have been, and 1.
    #[prost(uint64, tag = "2")]
    pub(super) revision: u64,
    /// Signs tokens; empty while authentication is off.
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) secret: Bytes,
}

/// A user.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct User {
    /// The password's hash; empty if there is none.
    #[prost(string, tag = "1")]
    pub hash: String,
    /// The names of its roles, in order.
    #[prost(string, repeated, tag = "2")]
    pub roles: Vec<String>,
    /// The auth revision at which the user was added or the password was replaced: older tokens do not count.
    #[prost(uint64, tag = "3")]
    pub since: u64,
}

/// A role.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Role {
    /// What it grants; of keys in the order of their first key, and before all else.
    #[prost(message, repeated, tag = "1")]
    pub(super) grants: Vec<Grant>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { enabled, revision, .. } = self;
        f.debug_struct("State").field("enabled", enabled).field("revision", revision).finish_non_exhaustive()
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { roles, since, .. } = self;
        f.debug_struct("User").field("roles", roles).field("since", since).finish_non_exhaustive()
    }
}

pub(super) fn user_key(name: &str) -> Vec<u8> {
    [USERS, name.as_bytes()].concat()
}

pub(super) fn role_key(name: &str) -> Vec<u8> {
    [ROLES, name.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::super::command::{KeyRange, Scope};
    use super::*;

    #[test]
    fn records_are_pinned() {
        let state = State { enabled: true, revision: 7, secret: "s".into() };
        assert_eq!(state.encode_to_vec(), b"\x08\x01\x10\x07\x1a\x01s");
        let user = User { hash: "$h".into(), roles: vec!["a".into(), "b".into()], since: 3 };
        assert_eq!(user.encode_to_vec(), b"\x0a\x02$h\x12\x01a\x12\x01b\x18\x03");
        let keys = KeyRange { rights: 1, key: "k".into(), range_end: Bytes::new() };
        let role = Role { grants: vec![Grant { scope: Some(Scope::Keys(keys)) }] };
        assert_eq!(role.encode_to_vec(), b"\x0a\x07\x0a\x05\x08\x01\x12\x01k");
        assert_eq!((user_key("u"), role_key("r")), (b"\x05uu".to_vec(), b"\x05rr".to_vec()));
        assert!(!format!("{state:?}{user:?}").contains('$'));
    }
}
