//! One node of Quoin: its configuration, its identity, and how its parts are put together.
//!
//! Reading order: `config.rs` (every setting; `addresses.rs` checks some, `tls.rs` has those of certificates, `audit.rs` those of users and of the audit trail), `node.rs` (the parts, in the order in which they need each
//! other), `membership.rs` and `identity.rs` (who the node is), `restore.rs` (a data folder made from a
//! backup), `force.rs` (or from what is left of a cluster), `doctor.rs` (a stopped node's folder).
//!
//! What it deliberately does not do: any part of a request. Those belong to the engine and the adapters.

mod addresses;
mod audit;
pub mod config;
pub mod doctor;
mod error;
mod force;
pub mod identity;
mod membership;
mod node;
mod restore;
pub mod tls;

pub use audit::{AuditConfig, AuthConfig};
pub use config::Config;
pub use error::StartError;
pub use node::Node;
pub use restore::{RAISE_MAX, Restore, check_snapshot, restore};
