//! Why a build fails.

use crate::error::{FileError, TableError};
use crate::part::LayoutError;
use std::path::{Path, PathBuf};

/// Why a build fails. The output folder has no manifest then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An input cannot be used.
    #[error("{}: {what}", file.display())]
    Input {
        /// The input.
        file: PathBuf,
        /// What is wrong, with the row and the value.
        what: String,
    },
    /// The options are invalid, or do not match the input.
    #[error("{0}")]
    Options(String),
    /// A key occurs more than once, and [`super::Duplicates::Error`] was chosen.
    #[error("key {0} occurs more than once: clean the input, or choose which row wins (last or first)")]
    Duplicate(u64),
    /// A temporary file cannot be written or read.
    #[error("{}: {source}", file.display())]
    Scratch {
        /// Its folder.
        file: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// A shard file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The manifest cannot be written, or a folder to merge is refused.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The changes for a patch ended with an error, or one of them cannot be stored.
    #[error("{0}")]
    Changes(String),
    /// Keys cannot be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

impl BuildError {
    pub(super) fn scratch(file: &Path, source: std::io::Error) -> Self {
        Self::Scratch { file: file.into(), source }
    }
}
