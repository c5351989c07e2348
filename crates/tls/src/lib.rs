//! TLS for all ports and all clients: one provider of cryptography, one way in which certificates come from files.
//!
//! | file | what |
//! |---|---|
//! | `keys.rs` | what a node proves itself with, and whom it trusts; read again when a file changes |
//! | `client.rs` | the same for a client |
//! | `certificate.rs` | whom a certificate names, and until when |
//! | `authority.rs`, `folder.rs` | make certificates for people who have none, and keep them |
//! | `connector.rs` | gRPC channels over TLS |
//!
//! Deliberately absent: other sockets. Who has a connection wraps it, with the configuration that it finds here.

mod authority;
mod certificate;
mod client;
#[cfg(feature = "connector")]
mod connector;
mod error;
mod files;
mod folder;
mod keys;

pub use authority::{Authority, Pair, Subject, Validity};
pub use certificate::Certificate;
pub use client::{ClientFiles, client_config};
#[cfg(feature = "connector")]
pub use connector::{Connector, server_name};
pub use error::TlsError;
pub use folder::{Folder, Found, Place, found};
pub use keys::{Clients, Files, Keys, Options, Protocol, RELOAD_PERIOD, Version};

use rustls::crypto::CryptoProvider;
use std::sync::Arc;

/// The one provider of cryptography: the one that the tables' object stores bring already.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
