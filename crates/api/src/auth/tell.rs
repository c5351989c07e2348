//! What an audit record says of a change of users and roles: names and grants, never a password's hash.

use crate::audit::about;
use quoin_core::auth::{Grant, KeyRange, Operation, RoleGrant, Scope, UserRole, rights, table_rights};

/// Says what an operation changes.
pub(crate) fn tell(operation: &Operation) {
    match operation {
        Operation::Enable(_) | Operation::Disable(_) => {}
        Operation::AddUser(add) => about("user", &add.name),
        Operation::SetPassword(set) => about("user", &set.name),
        Operation::DeleteUser(name) => about("user", name),
        Operation::AddRole(name) | Operation::DeleteRole(name) => about("role", name),
        Operation::GrantRole(UserRole { user, role }) | Operation::RevokeRole(UserRole { user, role }) => {
            about("user", user);
            about("role", role);
        }
        Operation::Grant(RoleGrant { role, grant }) => {
            about("role", role);
            tell_grant(grant.as_ref(), true);
        }
        Operation::Revoke(RoleGrant { role, grant }) => {
            about("role", role);
            tell_grant(grant.as_ref(), false);
        }
    }
}

/// `with_rights`: a grant is taken away whatever rights it has.
fn tell_grant(grant: Option<&Grant>, with_rights: bool) {
    match grant.and_then(|grant| grant.scope.as_ref()) {
        None => {}
        Some(Scope::Keys(range)) => {
            let KeyRange { key, range_end, .. } = range;
            about("keys", crate::audit::range(key, range_end));
            if with_rights {
                about("rights", format!("{:?}", range.rights()).to_lowercase());
            }
        }
        Some(Scope::Tables(grant)) => {
            about("tables", &grant.pattern);
            if with_rights {
                about("rights", chosen(table_rights::ALL, grant.rights));
            }
        }
        Some(Scope::Part(grant)) => {
            about("part", format!("{:?}", grant.part()).to_lowercase());
            if with_rights {
                about("rights", chosen(rights::of(grant.part()), grant.rights));
            }
        }
    }
}

/// The names of rights, separated by commas.
fn chosen(all: &[(&str, u32)], granted: u32) -> String {
    let all = all.iter().filter(|(_, right)| granted & right != 0);
    all.map(|(name, _)| *name).collect::<Vec<_>>().join(",")
}
