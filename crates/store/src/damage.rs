//! Faults of the engine, and which file is to blame.
//!
//! The engine's errors name no files. So after a fault, every table file is checked until the damaged ones
//! are known.

use lsm_tree::checksum::ChecksummedWriter;
use lsm_tree::{Cache, Checksum, Table};
use std::fs::File;
use std::io::{self, Read, Write};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a table file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The engine refuses the file.
    #[error("table file {}: {source}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The engine's reason.
        #[source]
        source: lsm_tree::Error,
    },
    /// The engine panicked while it read the file.
    #[error("table file {}: the engine panicked while reading it", path.display())]
    Panicked {
        /// The file.
        path: PathBuf,
    },
    /// The file's checksum is not the recorded one.
    #[error("table file {}: its checksum does not match the recorded one", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
    },
}

impl TableError {
    /// The file.
    pub fn path(&self) -> &Path {
        let (Self::Refused { path, .. } | Self::Panicked { path } | Self::Checksum { path }) = self;
        path
    }

    /// What is wrong with it, without its name.
    pub fn problem(&self) -> String {
        match self {
            Self::Refused { source, .. } => source.to_string(),
            Self::Panicked { .. } => "the engine panicked while reading it".into(),
            Self::Checksum { .. } => "its checksum does not match the recorded one".into(),
        }
    }

    /// The engine's fault, with the name of the table's file.
    pub(crate) fn refused(table: &Table, source: lsm_tree::Error) -> Self {
        Self::Refused { path: table.path.to_path_buf(), source }
    }
}

/// A fault of the engine, with the damaged files that may explain it.
#[derive(Debug, thiserror::Error)]
#[error("{source}{}", damaged.iter().map(|file| format!("; {file}")).collect::<String>())]
pub(crate) struct EngineFault {
    source: lsm_tree::Error,
    damaged: Vec<TableError>,
}

impl EngineFault {
    /// Reads all `tables` to find the damaged ones.
    pub(crate) fn explain<'a>(source: lsm_tree::Error, tables: impl Iterator<Item = &'a Table>) -> Self {
        Self { source, damaged: tables.filter_map(|table| check_table(table).err()).collect() }
    }
}

fn check_table(table: &Table) -> Result<(), TableError> {
    check_slowly(table, &mut |_| true)
}

/// Reads all of a table's file. `pace` is told the bytes of each step, and says whether to go on; what was
/// not read to its end is not damaged.
pub(crate) fn check_slowly(table: &Table, pace: &mut dyn FnMut(u64) -> bool) -> Result<(), TableError> {
    match checksum_paced(&table.path, pace) {
        Ok(Some(checksum)) if checksum != table.checksum() => {
            Err(TableError::Checksum { path: table.path.to_path_buf() })
        }
        Ok(_) => Ok(()),
        Err(error) => Err(TableError::refused(table, error.into())),
    }
}

/// Opens each table file in the store's `folder` by itself, to find one that cannot be opened.
pub(crate) fn check_table_files(folder: &Path) -> Result<(), TableError> {
    let entries = std::fs::read_dir(folder.join("tables")).into_iter().flatten();
    entries.flatten().try_for_each(|entry| open_table(entry.path()))
}

fn open_table(path: PathBuf) -> Result<(), TableError> {
    let none = Checksum::from_raw(0);
    let cache = Arc::new(Cache::with_capacity_bytes(0));
    let file = path.clone();
    match catch_unwind(|| Table::recover(file, none, 0, 0, cache, None, true, true)) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(source)) => Err(TableError::Refused { path, source }),
        Err(_) => Err(TableError::Panicked { path }),
    }
}

/// The engine's checksum of a whole file.
pub(crate) fn checksum_of(path: &Path) -> io::Result<Checksum> {
    let checksum = checksum_paced(path, &mut |_| true)?;
    Ok(checksum.expect("nothing stops it"))
}

/// Bytes that are read at once.
const STEP_BYTES: usize = 256 << 10;

/// [`checksum_of`], read in steps; `None` if `pace` stopped it.
fn checksum_paced(path: &Path, pace: &mut dyn FnMut(u64) -> bool) -> io::Result<Option<Checksum>> {
    let (mut file, mut writer) = (File::open(path)?, ChecksummedWriter::new(io::sink()));
    let mut step = vec![0; STEP_BYTES];
    let mut at = 0;
    loop {
        forget(&file, at);
        let read = match file.read(&mut step) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return Ok(Some(writer.checksum()));
        }
        writer.write_all(&step[..read])?;
        at += read as u64;
        if !pace(read as u64) {
            return Ok(None);
        }
    }
}

/// Asks the system to forget what it has in memory of the next step, so that the disk is read.
#[cfg(target_os = "linux")]
fn forget(file: &File, at: u64) {
    use rustix::fs::{Advice, fadvise};
    // An error: then what is in memory is read.
    let _ = fadvise(file, at, std::num::NonZeroU64::new(STEP_BYTES as u64), Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &File, _: u64) {}
