//! What can be wrong with certificates.

use std::io;
use std::path::PathBuf;

/// A certificate, key or authority that cannot be used, or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file holds something else. Its content is never part of the text.
    #[error("{}: {problem}", file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// What the files hold does not fit together.
    #[error("{} and {}: {source}; do they belong together?", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// A certificate cannot be made, or read.
    #[error("{0}")]
    Certificate(String),
}

impl TlsError {
    pub(crate) fn content(file: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Content { file: file.into(), problem: problem.into() }
    }
}
