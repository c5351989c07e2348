//! Opening a store's folder, and naming the file when something in it is damaged.
//!
//! The engine checks the blocks that it reads but not its manifest's checksum, and its errors name no files.
//! So the manifest is checked here, and after a fault all files are, until the damaged one is found.

use super::StoreOptions;
use super::background::Shared;
use super::layers::TableError;
use super::layers::{Layers, Tables, table_error};
use super::retention::{Collectors, Retentions};
use super::rows::Rows;
use arc_swap::ArcSwap;
use lsm_tree::checksum::ChecksummedWriter;
use lsm_tree::config::{BlockSizePolicy, CompressionPolicy};
use lsm_tree::{
    AnyTree, Cache, Checksum, CompressionType, Config, DescriptorTable, Memtable, SequenceNumberCounter,
    Table,
};
use quoin_core::StoreError;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that names the current manifest: id (8 bytes, little-endian), XXH3-128 of it (16), kind (1).
const CURRENT: &str = "current";

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOpenError {
    /// The file system refused.
    #[error("store file {}: {source}", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The manifest is not what was written.
    #[error("store file {} is damaged: {what}; restore this replica from a backup, or remove it and add it anew", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A table's file is damaged.
    #[error("{0}; restore this replica from a backup, or remove it and add it anew")]
    Table(#[from] TableError),
    /// The engine refuses for a reason that is in no single file.
    #[error("store folder {}: {what}", folder.display())]
    Engine {
        /// Which folder.
        folder: PathBuf,
        /// What the engine says.
        what: String,
    },
    /// The progress record cannot be read.
    #[error("progress record: {0}")]
    Progress(#[source] StoreError),
}

/// The state of the store in `folder`, without its threads.
pub(super) fn open(folder: &Path, options: StoreOptions) -> Result<Shared, StoreOpenError> {
    std::fs::create_dir_all(folder).map_err(|source| StoreOpenError::Io { path: folder.into(), source })?;
    check_manifest(folder)?;
    let retentions = Arc::new(Retentions::default());
    let stop = Arc::default();
    let manifest_seqno = SequenceNumberCounter::default();
    let config = config(folder, &options, manifest_seqno.clone(), Collectors::new(&retentions, &stop));
    let tree = open_tree(config, folder)?;
    let layers = Layers::new(Arc::new(Memtable::new(0)), Tables::of(&tree));
    Ok(Shared {
        tree,
        manifest_seqno,
        layers: ArcSwap::from_pointee(layers),
        rows: Rows::new(options.cache_bytes / 4),
        retentions,
        options,
        applied: Default::default(),
        persisted: Default::default(),
        stop,
        memtable_ids: 1.into(),
        counters: Default::default(),
        failure: Default::default(),
        retired: Default::default(),
        signals: Default::default(),
    })
}

fn config(
    folder: &Path,
    options: &StoreOptions,
    seqno: SequenceNumberCounter,
    collectors: Collectors,
) -> Config {
    Config::new(folder, seqno, SequenceNumberCounter::default())
        .use_cache(Arc::new(Cache::with_capacity_bytes(options.cache_bytes)))
        .use_descriptor_table(Some(Arc::new(DescriptorTable::new(options.files_open_max))))
        .data_block_size_policy(BlockSizePolicy::all(options.block_bytes))
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        .with_compaction_filter_factory(Some(Arc::new(collectors)))
}

fn open_tree(config: Config, folder: &Path) -> Result<AnyTree, StoreOpenError> {
    let outcome = catch_unwind(AssertUnwindSafe(|| config.open()));
    let what = match outcome {
        Ok(Ok(tree)) => return Ok(tree),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the engine panicked".to_owned(),
    };
    for path in table_files(folder) {
        open_table(&path)?;
    }
    Err(StoreOpenError::Engine { folder: folder.into(), what })
}

fn table_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join("tables")).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Opens a table alone, to find out which one cannot be.
fn open_table(path: &Path) -> Result<(), TableError> {
    let none = Checksum::from_raw(0);
    let cache = Arc::new(Cache::with_capacity_bytes(0));
    let outcome = catch_unwind(|| Table::recover(path.into(), none, 0, 0, cache, None, true, true));
    match outcome {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(source)) => Err(TableError { path: path.into(), source }),
        Err(_) => Err(TableError { path: path.into(), source: lsm_tree::Error::Unrecoverable }),
    }
}

/// The names of those tables whose bytes are not what was written; reads all of them.
pub(super) fn damaged_tables<'a>(tables: impl Iterator<Item = &'a Table>) -> Vec<String> {
    tables
        .filter_map(|table| match checksum_of(&table.path) {
            Ok(checksum) if checksum == table.checksum() => None,
            Ok(_) => Some(table_error(table, lsm_tree::Error::Unrecoverable).path.display().to_string()),
            Err(error) => Some(format!("{}: {error}", table.path.display())),
        })
        .collect()
}

fn check_manifest(folder: &Path) -> Result<(), StoreOpenError> {
    let path = folder.join(CURRENT);
    let current = match std::fs::read(&path) {
        Ok(current) => current,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(StoreOpenError::Io { path, source }),
    };
    let Some((id, rest)) = current.split_first_chunk::<8>() else {
        return Err(StoreOpenError::Damaged {
            path,
            what: format!("it is {} bytes long, not 25", current.len()),
        });
    };
    let Ok((expected, [0])) = rest.split_first_chunk::<16>().ok_or(()) else {
        return Err(StoreOpenError::Damaged { path, what: "no checksum of a known kind".into() });
    };
    let manifest = folder.join(format!("v{}", u64::from_le_bytes(*id)));
    let found = match checksum_of(&manifest) {
        Ok(found) => found,
        Err(error) => {
            let what = format!("it names {}, which cannot be read: {error}", manifest.display());
            return Err(StoreOpenError::Damaged { path, what });
        }
    };
    if found != Checksum::from_raw(u128::from_le_bytes(*expected)) {
        let what = format!("its checksum is not the one that the file {CURRENT:?} beside it gives");
        return Err(StoreOpenError::Damaged { path: manifest, what });
    }
    Ok(())
}

fn checksum_of(path: &Path) -> io::Result<Checksum> {
    let mut writer = ChecksummedWriter::new(io::sink());
    io::copy(&mut File::open(path)?, &mut writer)?;
    Ok(writer.checksum())
}
