//! What an auth command does. The rules are etcd's.

use super::command::{
    AddUser, Command, Enable, Grant, KeyRange, KeyRights, Operation, Part, RoleGrant, Scope, SetPassword,
    TableGrant, UserRole, rights, table_rights,
};
use super::policy::{Known, Policy, ROOT, User};
use super::record::{self, BYTES_MAX, ENTRIES_MAX, NAME_BYTES_MAX, RECORD_BYTES_MAX, Role};
use super::reply::{Refusal, Reply};
use crate::codec::decode_command;
use crate::limits::STORE_KEY_BYTES_MAX;
use crate::store::{StoreError, View};
use crate::tx::Tx;
use bytes::Bytes;
use prost::Message;
use std::sync::Arc;

/// The auth face's machine: the store holds its state; this holds what is derived from it.
#[derive(Debug)]
pub struct Machine {
    policy: Arc<Policy>,
}

/// A change while it is made: what is written, and what readers will see. It is dropped if it is refused.
struct Change {
    policy: Policy,
    writes: Vec<(Vec<u8>, Option<Bytes>)>,
}

impl Machine {
    /// The machine of a store that may hold state already.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(view: View<'_>) -> Result<Self, StoreError> {
        Ok(Self { policy: Arc::new(Policy::open(view)?) })
    }

    /// Users and roles as readers see them.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Whether a command that was admitted at an auth revision (`None`: without asking) counts.
    ///
    /// **Invariant: Newest rights.**
    pub(crate) fn still_admits(&self, revision: Option<u64>) -> bool {
        !self.policy.enabled() || revision == Some(self.policy.revision())
    }

    /// The answer to what does not count.
    pub(crate) fn refuse(&self, refusal: Refusal) -> Reply {
        Reply { revision: self.policy.revision(), result: Err(refusal) }
    }

    /// Applies one command.
    pub fn apply(&mut self, tx: &mut Tx<'_>, bytes: Bytes) -> Reply {
        let Some(Command { operation: Some(operation) }) = decode_command(bytes) else {
            return self.refuse(Refusal::Malformed);
        };
        let mut change = Change { policy: (*self.policy).clone(), writes: Vec::new() };
        match change.perform(operation) {
            // **Invariant: Nothing half.** What is refused was done to a copy.
            Err(refusal) => return self.refuse(refusal),
            Ok(()) if change.writes.is_empty() => {}
            Ok(()) => {
                for (key, value) in change.writes {
                    match value {
                        Some(value) => tx.put(&key, value),
                        None => tx.delete(&key),
                    }
                }
                self.policy = Arc::new(change.policy);
            }
        }
        Reply { revision: self.policy.revision(), result: Ok(()) }
    }
}

impl Change {
    fn perform(&mut self, operation: Operation) -> Result<(), Refusal> {
        match operation {
            Operation::Enable(Enable { secret }) => return self.enable(secret),
            Operation::Disable(_) if !self.policy.enabled() => return Ok(()),
            Operation::Disable(_) => {
                (self.policy.state.enabled, self.policy.state.secret) = (false, Bytes::new());
            }
            Operation::AddUser(AddUser { name, hash }) => self.add_user(name, hash)?,
            Operation::DeleteUser(name) => self.delete_user(&name)?,
            Operation::SetPassword(SetPassword { name, hash }) => self.set_password(&name, hash)?,
            Operation::GrantRole(UserRole { user, role }) => {
                if !self.grant_role(&user, role)? {
                    return Ok(());
                }
            }
            Operation::RevokeRole(UserRole { user, role }) => self.revoke_role(&user, &role)?,
            Operation::AddRole(name) => self.add_role(name)?,
            Operation::DeleteRole(name) => self.delete_role(&name)?,
            Operation::Grant(RoleGrant { role, grant }) => self.grant(&role, grant)?,
            Operation::Revoke(RoleGrant { role, grant }) => self.revoke(&role, grant)?,
        }
        self.policy.state.revision += 1;
        self.put_state();
        Ok(())
    }

    /// As in etcd, it leaves the revision: all that was admitted before had none.
    fn enable(&mut self, secret: Bytes) -> Result<(), Refusal> {
        if self.policy.enabled() {
            return Ok(());
        }
        if secret.len() > NAME_BYTES_MAX {
            return Err(Refusal::Malformed);
        }
        let root = self.policy.user(ROOT).ok_or(Refusal::NoRootUser)?;
        if !root.roles.iter().any(|role| role == ROOT) {
            return Err(Refusal::NoRootRole);
        }
        (self.policy.state.enabled, self.policy.state.secret) = (true, secret);
        self.put_state();
        Ok(())
    }

    fn add_user(&mut self, name: String, hash: String) -> Result<(), Refusal> {
        if name.is_empty() {
            return Err(Refusal::UserEmpty);
        }
        check_name(&name)?;
        if self.policy.users.contains_key(&name) {
            return Err(Refusal::UserExists);
        }
        let since = self.policy.state.revision + 1;
        self.put_user(&name, User { hash, roles: Vec::new(), since })
    }

    fn delete_user(&mut self, name: &str) -> Result<(), Refusal> {
        if self.policy.enabled() && name == ROOT {
            return Err(Refusal::Invalid);
        }
        let known = self.policy.users.remove(name).ok_or(Refusal::UserNotFound)?;
        self.delete(record::user_key(name), known.user.encoded_len());
        Ok(())
    }

    fn set_password(&mut self, name: &str, hash: String) -> Result<(), Refusal> {
        let user = self.policy.user(name).ok_or(Refusal::UserNotFound)?.clone();
        let hash = if user.hash.is_empty() { String::new() } else { hash };
        let since = self.policy.state.revision + 1;
        self.put_user(name, User { hash, since, ..user })
    }

    /// False if the user has the role already.
    fn grant_role(&mut self, name: &str, role: String) -> Result<bool, Refusal> {
        let mut user = self.policy.user(name).ok_or(Refusal::UserNotFound)?.clone();
        if role != ROOT && !self.policy.roles.contains_key(&role) {
            return Err(Refusal::RoleNotFound);
        }
        let Err(place) = user.roles.binary_search(&role) else { return Ok(false) };
        user.roles.insert(place, role);
        self.put_user(name, user)?;
        Ok(true)
    }

    fn revoke_role(&mut self, name: &str, role: &str) -> Result<(), Refusal> {
        if self.policy.enabled() && name == ROOT && role == ROOT {
            return Err(Refusal::Invalid);
        }
        let mut user = self.policy.user(name).ok_or(Refusal::UserNotFound)?.clone();
        let place = user.roles.iter().position(|known| known == role).ok_or(Refusal::RoleNotGranted)?;
        user.roles.remove(place);
        self.put_user(name, user)
    }

    fn add_role(&mut self, name: String) -> Result<(), Refusal> {
        if name.is_empty() {
            return Err(Refusal::RoleEmpty);
        }
        check_name(&name)?;
        if self.policy.roles.contains_key(&name) {
            return Err(Refusal::RoleExists);
        }
        self.put_role(&name, Role::default())
    }

    fn delete_role(&mut self, name: &str) -> Result<(), Refusal> {
        if self.policy.enabled() && name == ROOT {
            return Err(Refusal::Invalid);
        }
        let role = self.policy.roles.remove(name).ok_or(Refusal::RoleNotFound)?;
        self.delete(record::role_key(name), role.encoded_len());
        for user in self.users_with(name) {
            let Some(mut record) = self.policy.user(&user).cloned() else { continue };
            record.roles.retain(|role| role != name);
            self.put_user(&user, record)?;
        }
        Ok(())
    }

    fn grant(&mut self, name: &str, grant: Option<Grant>) -> Result<(), Refusal> {
        let Some(Grant { scope: Some(scope) }) = grant else { return Err(Refusal::NothingGiven) };
        check_scope(&scope)?;
        let mut role = (**self.policy.roles.get(name).ok_or(Refusal::RoleNotFound)?).clone();
        role.grants.retain(|known| !known.scope.as_ref().is_some_and(|known| same(known, &scope)));
        let order = order(&scope);
        let place = role
            .grants
            .partition_point(|known| known.scope.as_ref().is_some_and(|known| self::order(known) <= order));
        role.grants.insert(place, Grant { scope: Some(scope) });
        self.put_role(name, role)
    }

    fn revoke(&mut self, name: &str, grant: Option<Grant>) -> Result<(), Refusal> {
        let Some(Grant { scope: Some(scope) }) = grant else { return Err(Refusal::NothingGiven) };
        let mut role = (**self.policy.roles.get(name).ok_or(Refusal::RoleNotFound)?).clone();
        let before = role.grants.len();
        role.grants.retain(|known| !known.scope.as_ref().is_some_and(|known| same(known, &scope)));
        if role.grants.len() == before {
            return Err(Refusal::NotGranted);
        }
        self.put_role(name, role)
    }

    fn users_with(&self, role: &str) -> Vec<String> {
        let users = self.policy.users.iter();
        let with = users.filter(|(_, known)| known.user.roles.iter().any(|known| known == role));
        with.map(|(name, _)| name.clone()).collect()
    }

    // Records.

    fn put_state(&mut self) {
        self.writes.push((record::STATE_KEY.to_vec(), Some(self.policy.state.encode_to_vec().into())));
    }

    fn put_user(&mut self, name: &str, user: User) -> Result<(), Refusal> {
        let old = self.policy.users.get(name).map(|known| known.user.encoded_len());
        self.put(record::user_key(name), &user, old)?;
        self.policy.users.insert(name.to_string(), Known::new(user));
        Ok(())
    }

    fn put_role(&mut self, name: &str, role: Role) -> Result<(), Refusal> {
        let old = self.policy.roles.get(name).map(|role| role.encoded_len());
        self.put(record::role_key(name), &role, old)?;
        self.policy.roles.insert(name.to_string(), Arc::new(role));
        // What they may do is made anew.
        for user in self.users_with(name) {
            if let Some(known) = self.policy.users.get_mut(&user) {
                *known = Known::new(known.user.clone());
            }
        }
        Ok(())
    }

    /// `old` is the length of the record that it replaces, if there is one.
    fn put(&mut self, key: Vec<u8>, record: &impl Message, old: Option<usize>) -> Result<(), Refusal> {
        let bytes = record.encoded_len();
        if bytes > RECORD_BYTES_MAX {
            return Err(Refusal::TooMuch { what: "bytes each", max: RECORD_BYTES_MAX });
        }
        let entries = self.policy.users.len() + self.policy.roles.len();
        if old.is_none() && entries >= ENTRIES_MAX {
            return Err(Refusal::TooMuch { what: "entries", max: ENTRIES_MAX });
        }
        let before = old.map_or(0, |old| key.len() + old);
        let after = self.policy.bytes - before + key.len() + bytes;
        // What becomes smaller always goes.
        if after > BYTES_MAX && after > self.policy.bytes {
            return Err(Refusal::TooMuch { what: "bytes", max: BYTES_MAX });
        }
        self.policy.bytes = after;
        self.writes.push((key, Some(record.encode_to_vec().into())));
        Ok(())
    }

    fn delete(&mut self, key: Vec<u8>, bytes: usize) {
        self.policy.bytes -= key.len() + bytes;
        self.writes.push((key, None));
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let bytes = name.len();
    if bytes > NAME_BYTES_MAX { Err(Refusal::NameTooLong { bytes }) } else { Ok(()) }
}

fn check_scope(scope: &Scope) -> Result<(), Refusal> {
    match scope {
        Scope::Keys(KeyRange { rights, key, range_end }) => {
            KeyRights::try_from(*rights).map_err(|_| Refusal::Malformed)?;
            let range = range_end.is_empty() || range_end > key || &range_end[..] == b"\0";
            let short = key.len() <= STORE_KEY_BYTES_MAX && range_end.len() <= STORE_KEY_BYTES_MAX;
            if key.is_empty() || !range || !short { Err(Refusal::Invalid) } else { Ok(()) }
        }
        Scope::Tables(TableGrant { pattern, rights }) => {
            let all = table_rights::ALL.iter().fold(0, |all, (_, right)| all | right);
            let stars = pattern.matches('*').count();
            let good = !pattern.is_empty() && (stars == 0 || stars == 1 && pattern.ends_with('*'));
            if pattern.len() > NAME_BYTES_MAX {
                return Err(Refusal::NameTooLong { bytes: pattern.len() });
            }
            if !good || *rights == 0 || rights & !all != 0 { Err(Refusal::Invalid) } else { Ok(()) }
        }
        Scope::Part(grant) => {
            let part = Part::try_from(grant.part).map_err(|_| Refusal::Malformed)?;
            let all = rights::of(part).iter().fold(0, |all, (_, right)| all | right);
            if grant.rights == 0 || grant.rights & !all != 0 { Err(Refusal::Invalid) } else { Ok(()) }
        }
    }
}

/// Whether one replaces the other.
fn same(left: &Scope, right: &Scope) -> bool {
    match (left, right) {
        (Scope::Keys(left), Scope::Keys(right)) => left.key == right.key && left.range_end == right.range_end,
        (Scope::Part(left), Scope::Part(right)) => left.part == right.part,
        (Scope::Tables(left), Scope::Tables(right)) => left.pattern == right.pattern,
        _ => false,
    }
}

/// Keys by their first key, parts behind them, then tables by their pattern.
fn order(scope: &Scope) -> (bool, Bytes, i32) {
    match scope {
        Scope::Keys(range) => (false, range.key.clone(), 0),
        Scope::Part(grant) => (true, Bytes::new(), grant.part),
        Scope::Tables(grant) => (true, grant.pattern.clone().into(), 0),
    }
}
