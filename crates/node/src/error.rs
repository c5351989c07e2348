//! Why a node does not start.

use crate::config::ConfigError;
use quoin_engine::OpenError;
use std::io;

/// Why a node does not start. Nothing was changed on disk unless the text says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting has an impossible value.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// The data folder belongs to another node or cluster, or this node has no place in the cluster.
    #[error("{0}")]
    Identity(String),
    /// A certificate, or its key, cannot be used.
    #[error("certificates: {0}")]
    Tls(#[from] quoin_tls::TlsError),
    /// The audit trail cannot be kept.
    #[error(transparent)]
    Audit(#[from] quoin_audit::OpenError),
    /// A file or socket failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path or address.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// The replica stopped while it applied what was committed before the start.
    #[error("applying the log: {0}")]
    Replay(String),
    /// The replica in the data folder cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

pub(crate) fn io_error(what: impl Into<String>, source: io::Error) -> StartError {
    StartError::Io { what: what.into(), source }
}
