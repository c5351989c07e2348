//! What the table face answers.

use super::machine::{PATCHES_MAX, VERSIONS_KEPT_MAX};
use super::record::NAME_BYTES_MAX;
use crate::types::Revision;

/// The answer to a table command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The newest revision after the command.
    pub revision: Revision,
    /// The command's version (0 for a whole table), or a refusal on which all replicas agree.
    pub result: Result<u64, Refusal>,
}

/// Why a table command was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The bytes are not a command of this version.
    #[error("malformed table command")]
    Malformed,
    /// A name that the store cannot hold.
    #[error("a table's name of {bytes} bytes is too long, at most {max} can be stored", max = NAME_BYTES_MAX)]
    NameTooLong {
        /// Bytes of the name.
        bytes: usize,
    },
    /// More versions to keep than there may be.
    #[error("keeping {keep} versions is too many, at most {max}", max = VERSIONS_KEPT_MAX)]
    TooManyKept {
        /// How many were asked for.
        keep: u32,
    },
    /// A report of somebody who is no member, or is none any more.
    #[error("{member:016x} is no member: its report on a version does not count")]
    NoMember {
        /// The id in the report.
        member: u64,
    },
    /// A report on another content: the number was given to it before.
    #[error("version {version} of table {name:?} is {id}, the report is on {reported}")]
    OtherContent {
        /// The table.
        name: String,
        /// The version.
        version: u64,
        /// Its content.
        id: String,
        /// The content that the report is on.
        reported: String,
    },
    /// No such table.
    #[error("there is no table {0:?}")]
    NoTable(String),
    /// No such version.
    #[error("table {name:?} has no version {version}; it has {kept:?}")]
    NoVersion {
        /// The table.
        name: String,
        /// The version asked for.
        version: u64,
        /// The versions that exist.
        kept: Vec<u64>,
    },
    /// A patch over an unknown version.
    #[error("the patch was built over {over}, which is no version of table {name:?}: publish that first")]
    WrongBase {
        /// The table.
        name: String,
        /// The id of the unknown version.
        over: String,
    },
    /// Another schema or shard count.
    #[error(
        "table {name:?} has {expected}, this has {found}: build it alike, or publish it as a base with --new-shape \
         (new_shape)"
    )]
    WrongShape {
        /// The table.
        name: String,
        /// The table's shape.
        expected: String,
        /// The manifest's shape.
        found: String,
    },
    /// Changes that there are not yet cannot be in the files: they would be hidden once they are made.
    #[error("the files cannot have the changes up to revision {folds}: the newest is {newest}")]
    FoldsAhead {
        /// The revision that was given.
        folds: u64,
        /// The newest revision.
        newest: u64,
    },
    /// Changes that were folded into the active version, and are nowhere else, would be gone.
    #[error(
        "version {active} of table {name:?} has changes up to revision {needed} in its files, which these files do \
         not say they have: merge them in, or say so with --folds {needed} (folds_revision)"
    )]
    FoldsBehind {
        /// The table.
        name: String,
        /// The active version.
        active: u64,
        /// The newest of the changes.
        needed: u64,
    },
    /// Changes over the version were folded into later ones, and deleted.
    #[error(
        "version {version} of table {name:?} lacks changes up to revision {forgotten}, which are only in the files of \
         versions over it: merge those, and publish what comes of it"
    )]
    Forgotten {
        /// The table.
        name: String,
        /// The version, or the one below the patch that is to be published.
        version: u64,
        /// The newest of the changes.
        forgotten: u64,
    },
    /// Every lookup would ask each of the patches.
    #[error(
        "version {below} of table {name:?} has {max} patches over its base already: merge them into a new base \
         (quoin table merge)",
        max = PATCHES_MAX
    )]
    TooManyPatches {
        /// The table.
        name: String,
        /// The version below the patch.
        below: u64,
    },
    /// Some replicas do not have the files.
    #[error(
        "version {version} of table {name:?} is not ready on every replica; missing: {missing}; {advice}"
    )]
    NotReady {
        /// The table.
        name: String,
        /// The version.
        version: u64,
        /// Which replicas, with their reasons.
        missing: String,
        /// What to do.
        advice: &'static str,
    },
    /// There is no earlier version.
    #[error("table {0:?} has no earlier version to go back to")]
    NoPrevious(String),
    /// The version is active, or another needs it.
    #[error("version {version} of table {name:?} is in use by version {user}")]
    InUse {
        /// The table.
        name: String,
        /// The version.
        version: u64,
        /// The version that needs it.
        user: u64,
    },
    /// A value of another width.
    #[error("the value of key {key} has {found} bytes, table {name:?} has {expected}")]
    Width {
        /// The table.
        name: String,
        /// The value's key.
        key: u64,
        /// The table's width, bytes.
        expected: u32,
        /// The value's width, bytes.
        found: usize,
    },
}
