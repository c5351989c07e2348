//! Who may do what: users, roles, and what roles grant.
//!
//! `command.rs` is what changes them, `record.rs` what is stored, `machine.rs` applies, `policy.rs` is what readers
//! see, `access.rs` what one user may do, prepared for asking.
//!
//! **Invariant: Newest rights.** A client's command carries the auth revision under which it was admitted
//! ([`crate::Command::admitted`]). Once authentication is on, apply does nothing that was admitted under another
//! one: whoever proposed it judges it again. So nothing is written that the newest acknowledged state forbids,
//! whichever replica admitted it.
//!
//! Deliberately absent: passwords. What arrives here was hashed before it was proposed, and is compared
//! elsewhere. What a command of another face needs is that face's adapter's to say.

mod access;
mod command;
mod machine;
mod policy;
mod record;
mod reply;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod script;

pub use access::{Access, Ranges};
pub use command::{
    AddUser, Enable, FaceGrant, Grant, KeyRange, KeyRights, Operation, Part, RoleGrant, Scope, SetPassword,
    TableGrant, UserRole, rights, table_rights,
};
pub use machine::Machine;
pub use policy::{Policy, ROOT, User};
pub(crate) use record::FACE;
pub use record::NAME_BYTES_MAX;
pub use reply::{Refusal, Reply};
