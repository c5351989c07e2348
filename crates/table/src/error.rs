//! Why a file or a table is refused.

use std::io;
use std::path::PathBuf;

/// Why a shard file is refused or cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system reported an error.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// A block's bytes have changed.
    #[error(
        "{}: block {block} has checksum {found:08x}, expected {expected:08x}: the file is damaged, fetch it \
         again",
        file.display()
    )]
    Checksum {
        /// The file.
        file: PathBuf,
        /// Which block of 64 KiB, counted from 0.
        block: u64,
        /// The checksum stored in the file.
        expected: u32,
        /// The checksum of the bytes found.
        found: u32,
    },
    /// The file's length has changed.
    #[error(
        "{}: {length} bytes, expected {expected_length}; block {block} has checksum {found:08x}, expected \
         {expected:08x}: the file was cut or appended to, fetch it again",
        file.display()
    )]
    Cut {
        /// The file.
        file: PathBuf,
        /// The length stored in the header, in bytes.
        expected_length: u64,
        /// The length found, in bytes.
        length: u64,
        /// The block in which the shorter of the two ends.
        block: u64,
        /// The checksum of the block checksums, as stored in the header.
        expected: u32,
        /// The checksum of the bytes found in their place.
        found: u32,
    },
    /// The checksums are right but the content is invalid: another program or version wrote the file.
    #[error("{}: {what}", file.display())]
    Structure {
        /// The file.
        file: PathBuf,
        /// What is wrong, with the value.
        what: String,
    },
}

/// Why a table (a folder with its manifest and shard files) is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// A shard file is refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// The manifest cannot be read or written, or is invalid.
    #[error("{}: {what}", file.display())]
    Manifest {
        /// The manifest.
        file: PathBuf,
        /// What is wrong, with the value.
        what: String,
    },
    /// A file is not the one that the manifest names.
    #[error("{}: {what}: not the file that the manifest names", file.display())]
    Other {
        /// The file, or the folder.
        file: PathBuf,
        /// What differs, with both values.
        what: String,
    },
    /// A patch was built over another table.
    #[error(
        "patch {patch} was built over {expected}, not over {found}: build it over {found}, or publish \
         {expected} first"
    )]
    WrongBase {
        /// The patch's id.
        patch: String,
        /// The id over which it was built.
        expected: String,
        /// The id of the layer below it.
        found: String,
    },
    /// A patch's schema or shard count differs from its base's.
    #[error("patch {patch} has {found}, but its base has {expected}")]
    WrongShape {
        /// The patch's id.
        patch: String,
        /// The base's shape.
        expected: String,
        /// The patch's shape.
        found: String,
    },
}
