//! Users and roles as readers see them: one state, replaced as a whole by each change.

use super::access::Access;
use super::command::Grant;
pub use super::record::User;
use super::record::{self, Role, State};
use crate::store::{Order, StoreError, View};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The name of the user who administers, and of the role that grants everything.
pub const ROOT: &str = "root";
/// The auth revision of a state that nothing has changed, as in etcd.
const FIRST_REVISION: u64 = 1;

/// Users, roles, and whether they count.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(super) state: State,
    pub(super) users: BTreeMap<String, Arc<Known>>,
    pub(super) roles: BTreeMap<String, Arc<Role>>,
    /// Bytes of all records.
    pub(super) bytes: usize,
}

/// A user, and what that lets it do.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) user: User,
    /// Made when it is asked for first. A change of a role makes its users anew.
    access: OnceLock<Access>,
}

impl Known {
    pub(super) fn new(user: User) -> Arc<Self> {
        Arc::new(Self { user, access: OnceLock::new() })
    }
}

impl Default for Policy {
    fn default() -> Self {
        let state = State { revision: FIRST_REVISION, ..State::default() };
        Self { state, users: BTreeMap::new(), roles: BTreeMap::new(), bytes: 0 }
    }
}

impl Policy {
    pub(super) fn open(view: View<'_>) -> Result<Self, StoreError> {
        let mut policy = Self::default();
        if let Some(state) = view.get(record::STATE_KEY)? {
            policy.state = decode(state)?;
        }
        for pair in view.scan_prefix(record::USERS, Order::Ascending) {
            let (key, value) = pair?;
            policy.bytes += key.len() + value.len();
            policy.users.insert(name(&key)?, Known::new(decode(value)?));
        }
        for pair in view.scan_prefix(record::ROLES, Order::Ascending) {
            let (key, value) = pair?;
            policy.bytes += key.len() + value.len();
            policy.roles.insert(name(&key)?, Arc::new(decode(value)?));
        }
        Ok(policy)
    }

    /// Whether requests need rights.
    pub fn enabled(&self) -> bool {
        self.state.enabled
    }

    /// How many changes there have been, and 1.
    pub fn revision(&self) -> u64 {
        self.state.revision
    }

    /// Signs tokens; empty while authentication is off.
    pub fn secret(&self) -> &Bytes {
        &self.state.secret
    }

    /// The names of all users, in order.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.users.keys().map(String::as_str)
    }

    /// A user.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name).map(|known| &known.user)
    }

    /// The names of all roles, in order.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// What a role grants.
    pub fn role(&self, name: &str) -> Option<&[Grant]> {
        self.roles.get(name).map(|role| &role.grants[..])
    }

    /// What a user may do; `None` if there is no such user.
    pub fn access(&self, name: &str) -> Option<&Access> {
        let known = self.users.get(name)?;
        Some(known.access.get_or_init(|| {
            let root = known.user.roles.iter().any(|role| role == ROOT);
            let roles = known.user.roles.iter().filter_map(|role| self.roles.get(role));
            Access::of(root, roles.flat_map(|role| &role.grants))
        }))
    }
}

fn name(key: &[u8]) -> Result<String, StoreError> {
    let name = key.get(record::USERS.len()..).unwrap_or_default();
    String::from_utf8(name.to_vec())
        .map_err(|error| StoreError::new("decode the name of a user or role", error))
}

fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, StoreError> {
    M::decode(bytes).map_err(|error| StoreError::new("decode an auth record", error))
}
