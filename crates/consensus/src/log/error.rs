//! Why the log failed.

use std::io;

/// Why the log failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A file operation failed.
    #[error("{operation} {file}: {source}")]
    Io {
        /// The operation, as in "writing".
        operation: &'static str,
        /// The segment.
        file: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The disk is full. Nothing was appended, and the append can be retried.
    #[error("no space left for segment {file}")]
    NoSpace {
        /// The segment that could not be created.
        file: String,
    },
    /// Synced bytes are not what was written.
    #[error(
        "{file} is damaged at byte {offset}: {problem}. The log cannot be trusted: delete the data folder, \
         remove this member and add it anew"
    )]
    Corrupt {
        /// The segment.
        file: String,
        /// Offset of the damaged block or record.
        offset: u64,
        /// What is wrong there.
        problem: String,
    },
    /// The segment is of a version that this program does not know.
    #[error(
        "{file} has log format {found}, and this program reads 1 and {known}: start it with the version of quoin \
         that wrote it, or a newer one"
    )]
    Version {
        /// The segment.
        file: String,
        /// Its format.
        found: u32,
        /// The newest format that is known.
        known: u32,
    },
    /// The segment belongs to another node.
    #[error(
        "{file} belongs to node {found_node:016x} of cluster {found_cluster:016x}, not to {node:016x} of {cluster:016x}"
    )]
    Foreign {
        /// The segment.
        file: String,
        /// The node in the segment's header.
        found_node: u64,
        /// The cluster in the segment's header.
        found_cluster: u64,
        /// The expected node.
        node: u64,
        /// The expected cluster.
        cluster: u64,
    },
    /// The segment was written on another disk.
    #[error(
        "{file} was written by disk {found:016x} of this member, and the data folder is of disk {disk:016x}: \
        folders were mixed. Put back the log that belongs to the identity, or delete the data folder, \
        remove this member and add it anew"
    )]
    OtherDisk {
        /// The segment.
        file: String,
        /// The disk in the segment's header.
        found: u64,
        /// The disk of the data folder.
        disk: u64,
    },
    /// An earlier write or sync failed. What is on disk is unknown until the node starts again.
    #[error("an earlier write failed: the log takes no more appends until the node restarts")]
    Failed,
}

pub(super) fn corrupt(file: String, offset: u64, problem: impl Into<String>) -> LogError {
    LogError::Corrupt { file, offset, problem: problem.into() }
}
