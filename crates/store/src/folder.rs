//! Where a node's stores are: numbered sub-folders. The file `CURRENT` names the live one.
//!
//! **Invariant: Old or new.** Renaming a new `CURRENT` into place replaces the live store, once the new store
//! is whole and on disk. A crash before the rename leaves the old store live, a crash after it the new one. A
//! store that is not live is removed when its last user drops it ([`LsmStore::retire`]), or when the folder
//! is next opened.

use crate::open::StoreOpenError;
use crate::options::StoreOptions;
use crate::store::LsmStore;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const CURRENT: &str = "CURRENT";
const CURRENT_NEXT: &str = "CURRENT.next";
/// The version of what stores hold: their keys and values. A later one is written behind the number in `CURRENT`,
/// as `format` and a number on a line of their own; this one is not, so that earlier programs read it.
const FORMAT: u64 = 1;

/// The folder of a node's stores.
pub struct StoreFolder {
    root: PathBuf,
}

/// Why a folder of stores cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The file system failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// `CURRENT` is missing or wrong, although there are stores.
    #[error("{}: {what}; delete the data folder, remove this member and add it anew", path.display())]
    Damaged {
        /// `CURRENT`.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A newer version wrote the stores.
    #[error(
        "{}: the store has format {found}, and this program reads {FORMAT}: start it with the version of quoin that \
         wrote it, or a newer one",
        path.display()
    )]
    Version {
        /// `CURRENT`.
        path: PathBuf,
        /// The store's format.
        found: u64,
    },
    /// A store in the folder cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreOpenError),
}

impl StoreFolder {
    /// Opens `root`, which is created if it does not exist, and removes what replaced stores and
    /// interrupted imports left behind. No other process and no other [`StoreFolder`] may use it.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open(root: &Path) -> Result<Self, FolderError> {
        let folder = Self { root: root.to_path_buf() };
        fs::create_dir_all(root).map_err(io_error(root))?;
        match folder.live()? {
            Some(_) => folder.remove_leftovers()?,
            None => folder.found()?,
        }
        Ok(folder)
    }

    /// Opens the live store.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open_store(&self, group: u32, options: StoreOptions) -> Result<LsmStore, FolderError> {
        let live = self.live()?.ok_or_else(|| self.damaged("it is missing"))?;
        Ok(LsmStore::open(&self.path(live), group, options)?)
    }

    fn remove_leftovers(&self) -> Result<(), FolderError> {
        let live = self.live()?;
        for number in self.numbers()?.into_iter().filter(|number| Some(*number) != live) {
            let path = self.path(number);
            fs::remove_dir_all(&path).map_err(io_error(&path))?;
        }
        Ok(())
    }

    /// The folder of the live store; `None` if there is no store yet. Changes nothing.
    pub(crate) fn look(root: &Path) -> Result<Option<PathBuf>, FolderError> {
        let folder = Self { root: root.to_path_buf() };
        if !root.exists() {
            return Ok(None);
        }
        let live = folder.live()?;
        if live.is_none() {
            folder.check_orphans()?;
        }
        Ok(live.map(|number| folder.path(number)))
    }

    /// Without `CURRENT` there must be no store.
    fn check_orphans(&self) -> Result<(), FolderError> {
        let orphan = self.numbers()?.into_iter().find(|number| self.path(*number).join("current").exists());
        let text = |number| format!("it is missing, but {} holds a store", self.path(number).display());
        orphan.map_or(Ok(()), |number| Err(self.damaged(&text(number))))
    }

    /// Makes an empty first store the live one.
    fn found(&self) -> Result<(), FolderError> {
        self.check_orphans()?;
        fs::create_dir_all(self.path(1)).map_err(io_error(&self.path(1)))?;
        make_live(&self.root, 1)
    }

    /// The number in `CURRENT`; `None` without that file.
    fn live(&self) -> Result<Option<u64>, FolderError> {
        let path = self.root.join(CURRENT);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(FolderError::Io { path, source }),
        };
        let mut lines = text.strip_suffix('\n').into_iter().flat_map(|text| text.split('\n'));
        let number = lines.next().and_then(|number| number.parse().ok());
        let number =
            number.ok_or_else(|| self.damaged(&format!("it holds {text:?}, not a number and a line end")))?;
        if let Some(line) = lines.next() {
            let found = line.strip_prefix("format ").and_then(|format| format.parse().ok());
            return Err(match found {
                Some(found) if found > FORMAT => FolderError::Version { path, found },
                _ => self.damaged(&format!("it holds {text:?}")),
            });
        }
        if !self.path(number).is_dir() {
            return Err(
                self.damaged(&format!("it names {}, which does not exist", self.path(number).display()))
            );
        }
        Ok(Some(number))
    }

    /// The number and path for another store.
    pub(crate) fn next(&self) -> Result<(u64, PathBuf), FolderError> {
        let number = self.numbers()?.into_iter().max().unwrap_or(0) + 1;
        Ok((number, self.path(number)))
    }

    /// The folder that holds the stores.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn numbers(&self) -> Result<Vec<u64>, FolderError> {
        let entries = fs::read_dir(&self.root).map_err(io_error(&self.root))?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>();
        let names = names.map_err(io_error(&self.root))?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.root.join(number.to_string())
    }

    fn damaged(&self, what: &str) -> FolderError {
        FolderError::Damaged { path: self.root.join(CURRENT), what: what.to_owned() }
    }
}

/// Makes store `number` in `root` the live one: renames a new `CURRENT` into place and syncs it to disk.
pub(crate) fn make_live(root: &Path, number: u64) -> Result<(), FolderError> {
    let next = root.join(CURRENT_NEXT);
    let mut file = File::create(&next).map_err(io_error(&next))?;
    writeln!(file, "{number}").and_then(|()| file.sync_all()).map_err(io_error(&next))?;
    sync_folder(root)?;
    fs::rename(&next, root.join(CURRENT)).map_err(io_error(&next))?;
    sync_folder(root)
}

fn sync_folder(path: &Path) -> Result<(), FolderError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(io_error(path))
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_path_buf();
    move |source| FolderError::Io { path, source }
}
