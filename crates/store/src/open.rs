//! Opening a store's folder, and naming the file when something in it is damaged.
//!
//! The engine verifies the blocks that it reads but not its manifest, and its errors name no files. So the
//! manifest's checksum is verified here, and when the engine fails, every table file is checked by itself.

use crate::damage::{self, TableError, checksum_of};
use crate::options::StoreOptions;
use crate::retention::{Collectors, Retentions};
use crate::room::Room;
use crate::shared::Shared;
use crate::signals::Signals;
use crate::tree::Tree;
use lsm_tree::config::{BlockSizePolicy, CompressionPolicy};
use lsm_tree::{AnyTree, Cache, Checksum, CompressionType, Config, DescriptorTable, SequenceNumberCounter};
use quoin_core::StoreError;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that names the current manifest: its number (8 bytes, little-endian), its XXH3-128 (16 bytes),
/// and the kind of checksum (1 byte, always 0).
const CURRENT: &str = "current";

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOpenError {
    /// The file system failed.
    #[error("store file {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The manifest, or the file that names it, is not what was written.
    #[error(
        "store file {}: {what}; delete the data folder, remove this member and add it anew",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The current manifest cannot be read.
    #[error(
        "store file {} names {}: {source}; delete the data folder, remove this member and add it anew",
        path.display(), manifest.display()
    )]
    Manifest {
        /// The file that names the manifest.
        path: PathBuf,
        /// The manifest.
        manifest: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A table file is damaged.
    #[error("{0}; delete the data folder, remove this member and add it anew")]
    Table(#[from] TableError),
    /// The engine failed although every table file can be opened.
    #[error("store folder {}: {source}", folder.display())]
    Engine {
        /// The store's folder.
        folder: PathBuf,
        /// The engine's reason.
        #[source]
        source: lsm_tree::Error,
    },
    /// The engine panicked although every table file can be opened.
    #[error("store folder {}: the engine panicked while opening it", folder.display())]
    Panicked {
        /// The store's folder.
        folder: PathBuf,
    },
    /// A background thread cannot be started.
    #[error("cannot start a thread of the store: {0}")]
    Thread(#[source] io::Error),
    /// The progress record cannot be read.
    #[error("progress record: {0}")]
    Progress(#[source] StoreError),
}

/// The state of the store in `folder`, without its threads.
pub(crate) fn open(folder: &Path, options: StoreOptions) -> Result<Shared, StoreOpenError> {
    std::fs::create_dir_all(folder).map_err(|source| StoreOpenError::Io { path: folder.into(), source })?;
    check_manifest(folder)?;
    let retentions = Arc::new(Retentions::default());
    let signals = Signals::default();
    let manifest_seqno = SequenceNumberCounter::default();
    let room = Room::new(folder, options.free_bytes_min);
    let collectors = Collectors::new(&retentions, signals.stop_flag(), room.clone());
    let tree = open_tree(config(folder, &options, manifest_seqno.clone(), collectors), folder)?;
    Ok(Shared::new(Tree::new(tree, manifest_seqno), retentions, signals, room, options))
}

fn config(
    folder: &Path,
    options: &StoreOptions,
    manifest_seqno: SequenceNumberCounter,
    collectors: Collectors,
) -> Config {
    Config::new(folder, manifest_seqno, SequenceNumberCounter::default())
        .use_cache(Arc::new(Cache::with_capacity_bytes(options.cache_bytes)))
        .use_descriptor_table(Some(Arc::new(DescriptorTable::new(options.files_open_max))))
        .data_block_size_policy(BlockSizePolicy::all(options.block_bytes))
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        .with_compaction_filter_factory(Some(Arc::new(collectors)))
}

fn open_tree(config: Config, folder: &Path) -> Result<AnyTree, StoreOpenError> {
    let outcome = catch_unwind(AssertUnwindSafe(|| config.open()));
    if let Ok(Ok(tree)) = outcome {
        return Ok(tree);
    }
    damage::check_table_files(folder)?;
    Err(match outcome {
        Ok(Err(source)) => StoreOpenError::Engine { folder: folder.into(), source },
        _ => StoreOpenError::Panicked { folder: folder.into() },
    })
}

/// The number of the version that a start would find in `folder`; `None` if that cannot be read.
pub(crate) fn version_in(folder: &Path) -> Option<u64> {
    let current = std::fs::read(folder.join(CURRENT)).ok()?;
    Some(u64::from_le_bytes(*current.first_chunk()?))
}

fn check_manifest(folder: &Path) -> Result<(), StoreOpenError> {
    let path = folder.join(CURRENT);
    let current = match std::fs::read(&path) {
        Ok(current) => current,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(StoreOpenError::Io { path, source }),
    };
    let Some((number, rest)) = current.split_first_chunk::<8>() else {
        return Err(StoreOpenError::Damaged {
            path,
            what: format!("it is {} bytes long, not 25", current.len()),
        });
    };
    let Some((expected, [0])) = rest.split_first_chunk::<16>() else {
        return Err(StoreOpenError::Damaged { path, what: "it has no checksum of a known kind".into() });
    };
    let manifest = folder.join(format!("v{}", u64::from_le_bytes(*number)));
    let found = match checksum_of(&manifest) {
        Ok(found) => found,
        Err(source) => return Err(StoreOpenError::Manifest { path, manifest, source }),
    };
    if found != Checksum::from_raw(u128::from_le_bytes(*expected)) {
        let what = format!("its checksum does not match the one in the file {CURRENT:?} beside it");
        return Err(StoreOpenError::Damaged { path: manifest, what });
    }
    Ok(())
}
