//! The store of a stopped node, opened without changing a byte of it.
//!
//! The engine removes files that it does not know when it opens a store. So it is given a folder of its own:
//! copies of the small files, and links to the tables, which it opens only to read.

use crate::damage::{TableError, check_slowly};
use crate::folder::StoreFolder;
use crate::options::StoreOptions;
use crate::store::LsmStore;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Bytes of blocks in memory: each is read about once.
const CACHE_BYTES: u64 = 8 << 20;

/// A store that is only looked at. It lives in a temporary folder.
pub struct Inspected {
    store: LsmStore,
    folder: PathBuf,
    shadow: TempDir,
}

/// Opens the live store of the folder `root` without changing it; `None` if there is no store yet.
///
/// # Errors
/// No temporary folder can be made. The inner error says why a start would not open it, with the file.
pub fn inspect(root: &Path, group: u32) -> io::Result<Result<Option<Inspected>, String>> {
    Ok(open(root, group, TempDir::new()?))
}

fn open(root: &Path, group: u32, shadow: TempDir) -> Result<Option<Inspected>, String> {
    let Some(folder) = StoreFolder::look(root).map_err(|error| error.to_string())? else { return Ok(None) };
    mirror(&folder, shadow.path()).map_err(|error| format!("{}: {error}", folder.display()))?;
    let options = StoreOptions { cache_bytes: CACHE_BYTES, stepped: true, ..StoreOptions::default() };
    let store = LsmStore::open(shadow.path(), group, options);
    let store = store.map_err(|error| named(&error.to_string(), shadow.path(), &folder))?;
    Ok(Some(Inspected { store, folder, shadow }))
}

/// `text` with the names of the store's own files.
fn named(text: &str, shadow: &Path, folder: &Path) -> String {
    text.replace(&*shadow.to_string_lossy(), &folder.to_string_lossy())
}

fn mirror(folder: &Path, shadow: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (from, to) = (entry?.path(), |name| shadow.join(name));
        let Some(name) = from.file_name() else { continue };
        if !from.is_dir() {
            fs::copy(&from, to(name))?;
            continue;
        }
        fs::create_dir(to(name))?;
        for table in fs::read_dir(&from)? {
            let table = table?;
            symlink(fs::canonicalize(table.path())?, to(name).join(table.file_name()))?;
        }
    }
    Ok(())
}

impl Inspected {
    /// The store. What is written to it goes nowhere.
    pub fn store(&self) -> &LsmStore {
        &self.store
    }

    /// The folder that it was found in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The text of an error of this store, with the names of its own files.
    pub fn explain(&self, error: &dyn std::fmt::Display) -> String {
        named(&error.to_string(), self.shadow.path(), &self.folder)
    }

    /// Reads every byte of every table. `progress` is told how many were read, of how many. Returns what is wrong
    /// with those that are damaged.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Vec<String> {
        let layers = self.store.shared.layers.load_full();
        let (mut done, total) = (0, layers.tables.bytes);
        let mut pace = |bytes| {
            done += bytes;
            progress(done, total);
            true
        };
        let damaged = layers.tables.iter().filter_map(|table| check_slowly(table, &mut pace).err());
        damaged.map(|error: TableError| self.explain(&error)).collect()
    }
}
