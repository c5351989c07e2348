//! Bringing a version's files into the data folder: copied, checked from front to back, and only then named.
//!
//! Layout: `tables/<id>/` holds one layer, its manifest as the log has it; `tables/<id>.partial/` is being fetched.
//!
//! What is deliberately absent: trust in the place they come from. The manifest of the log says what the files must be.

use quoin_table::{Layer, Manifest, Options, TableError, manifest};
use std::io;
use std::path::{Path, PathBuf};

/// Why a layer cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The place is not one that can be read.
    #[error("{0:?} is no folder on this machine: give a path, or a file:// URL, that every replica can read")]
    Location(String),
    /// Copying failed.
    #[error("copying {}: {source}", file.display())]
    Copy {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    /// What was copied is not what the manifest says.
    #[error(transparent)]
    Refused(#[from] TableError),
}

/// The folder of a location.
pub(crate) fn folder_of(location: &str) -> Option<PathBuf> {
    let path = match location.strip_prefix("file://") {
        Some(path) => path,
        None if location.contains("://") => return None,
        None => location,
    };
    let path = PathBuf::from(path);
    path.is_absolute().then_some(path)
}

/// The layer of `text` (a manifest), from the data folder if it is there and whole, else from `location`.
pub(super) fn layer(
    tables: &Path,
    text: &[u8],
    location: &str,
    options: Options,
) -> Result<Layer, FetchError> {
    let manifest = Manifest::parse(text, Path::new(manifest::MANIFEST))?;
    let folder = tables.join(&manifest.id);
    if folder.join(manifest::MANIFEST).exists() {
        match Layer::open(&folder, options) {
            Ok(layer) => return Ok(layer),
            Err(error) => tracing::warn!(%error, "a table's files are damaged here: fetching them again"),
        }
    }
    let from = folder_of(location).ok_or_else(|| FetchError::Location(location.into()))?;
    let partial = tables.join(format!("{}.partial", manifest.id));
    let fetched = copy(&from, &partial, &manifest).and_then(|()| {
        // Checked before it has its name: what is named is whole.
        let layer = Layer::open(&partial, options)?;
        remove(&folder)?;
        std::fs::rename(&partial, &folder).map_err(|source| FetchError::Copy { file: folder, source })?;
        Ok(layer)
    });
    if fetched.is_err() {
        let _ = std::fs::remove_dir_all(&partial);
    }
    fetched
}

fn copy(from: &Path, to: &Path, manifest: &Manifest) -> Result<(), FetchError> {
    remove(to)?;
    let made = std::fs::create_dir_all(to);
    made.map_err(|source| FetchError::Copy { file: to.into(), source })?;
    for file in manifest.all_files() {
        let source_file = from.join(&file.name);
        let copied = std::fs::copy(&source_file, to.join(&file.name));
        copied.map_err(|source| FetchError::Copy { file: source_file, source })?;
    }
    manifest.write(to)?;
    Ok(())
}

fn remove(folder: &Path) -> Result<(), FetchError> {
    match std::fs::remove_dir_all(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(FetchError::Copy { file: folder.into(), source })
        }
        _ => Ok(()),
    }
}

/// Removes the folders of layers that no version needs.
pub(super) fn forget_others(tables: &Path, needed: &std::collections::BTreeSet<String>) {
    let Ok(entries) = std::fs::read_dir(tables) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !needed.contains(&name)
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            tracing::warn!(%error, folder = %entry.path().display(), "removing a table's old files");
        }
    }
}
