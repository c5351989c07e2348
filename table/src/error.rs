//! Why a file or a table is refused.

use std::io;
use std::path::PathBuf;

/// Why a shard file is refused, or cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system refused.
    #[error("{}: {source}", file.display())]
    Io {
        /// Which file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Bytes are not what was written.
    #[error(
        "{}: block {block} has checksum {found:08x}, written was {expected:08x}: the file is damaged, fetch it again",
        file.display()
    )]
    Checksum {
        /// Which file.
        file: PathBuf,
        /// Which block of 64 KiB, counted from 0.
        block: u64,
        /// As written.
        expected: u32,
        /// As found.
        found: u32,
    },
    /// The file is shorter or longer than it was.
    #[error(
        "{}: {length} bytes, written were {expected_length}; block {block} has checksum {found:08x}, written was \
         {expected:08x}: the file is cut or appended to, fetch it again",
        file.display()
    )]
    Cut {
        /// Which file.
        file: PathBuf,
        /// Bytes as written.
        expected_length: u64,
        /// Bytes as found.
        length: u64,
        /// The block in which the shorter of both ends.
        block: u64,
        /// Checksum of the checksums, as written.
        expected: u32,
        /// Of what is there in their place.
        found: u32,
    },
    /// The checksums are right and the content is not: written by another program or version.
    #[error("{}: {what}", file.display())]
    Structure {
        /// Which file.
        file: PathBuf,
        /// What is wrong, with the value.
        what: String,
    },
}

/// Why a table (a folder with its manifest and shard files) is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// A shard file is.
    #[error(transparent)]
    File(#[from] FileError),
    /// The manifest cannot be read, or does not say what it must.
    #[error("{}: {what}", file.display())]
    Manifest {
        /// Which file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A file is not the one that the manifest names.
    #[error("{}: {what}: not the file that the manifest names", file.display())]
    Other {
        /// Which file.
        file: PathBuf,
        /// What differs, with both values.
        what: String,
    },
    /// A patch was made for something else.
    #[error(
        "the patch {patch} was built over {expected}, not over {found}: build it over {found}, or publish {expected} first"
    )]
    WrongBase {
        /// The patch's id.
        patch: String,
        /// Over which id it was built.
        expected: String,
        /// Over which it was to be laid.
        found: String,
    },
    /// A patch has another schema or shard count than its base.
    #[error("the patch {patch} has {found}, its base has {expected}")]
    WrongShape {
        /// The patch's id.
        patch: String,
        /// The base's.
        expected: String,
        /// The patch's.
        found: String,
    },
}
