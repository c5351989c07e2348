//! Brings a version's files into the data folder: fetched, checked from front to back, and only then given
//! their final name.
//!
//! Layout: `tables/<id>/` holds one layer, with its manifest as the log has it. `tables/<id>.partial/` holds
//! a layer that is being fetched: complete files, and one `NAME.part` to which the next attempt appends if
//! the server can begin in the middle.
//!
//! **Invariant: Whole when named.** A folder or file with its final name was checked and is on disk, so a
//! replica that is ready no longer needs the source. A layer that fails the check is removed whole, and the
//! next attempt begins anew.
//!
//! What is deliberately absent: trust in the source. The manifest in the log says what the files must be.

use super::settings::TableConfig;
use super::source::{Objects, Source, SourceError};
use bytes::Bytes;
use futures_util::TryStreamExt;
use quoin_table::{FileEntry, Layer, Manifest, Options, TableError, manifest};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A layer to fetch.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// The folder with all layers.
    pub(super) tables: PathBuf,
    /// The manifest's text.
    pub(super) manifest: Bytes,
    /// Where the files are.
    pub(super) location: String,
    /// How to map the files.
    pub(super) options: Options,
    /// How to reach buckets.
    pub(super) settings: TableConfig,
    /// Bytes of the disk that must stay free.
    pub(super) reserve_bytes: u64,
}

/// Why a layer could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum FetchError {
    /// The source failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Copying or writing failed.
    #[error("{}: {source}", file.display())]
    Copy {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The disk has too little room.
    #[error("the files need {needed} more bytes, and the disk has {free} above its reserve: make room")]
    NoRoom { needed: u64, free: u64 },
    /// No version needs the layer any more.
    #[error("fetching from {location} was stopped")]
    Stopped { location: String },
    /// The files are not what the manifest says.
    #[error(transparent)]
    Refused(#[from] TableError),
}

impl FetchError {
    /// Whether trying again may help although nobody has changed anything.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Source(error) => error.is_transient(),
            Self::Copy { source, .. } => {
                !matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
            }
            Self::Stopped { .. } => true,
            Self::NoRoom { .. } | Self::Refused(_) => false,
        }
    }
}

/// Fetches a layer, unless it is in the data folder already, and maps it. Blocks its thread while files are
/// written and checked.
///
/// # Errors
/// See [`FetchError`].
pub(super) async fn layer(job: &Job) -> Result<Layer, FetchError> {
    let manifest = Manifest::parse(&job.manifest, Path::new(manifest::MANIFEST))?;
    let folder = job.tables.join(&manifest.id);
    if folder.join(manifest::MANIFEST).exists() {
        match Layer::open(&folder, job.options) {
            Ok(layer) => return Ok(layer),
            Err(error) => tracing::warn!(%error, "a table's files are damaged here: fetching them again"),
        }
    }
    let source = Source::open(&job.location, &job.settings)?;
    let partial = job.tables.join(format!("{}.partial", manifest.id));
    std::fs::create_dir_all(&partial).map_err(at(&partial))?;
    check_room(job, &manifest, &partial)?;
    for entry in manifest.all_files() {
        bring(&source, &partial, entry).await?;
    }
    manifest.write(&partial)?;
    // Invariant: Whole when named.
    let layer = match Layer::open_foreign(&partial, job.options) {
        Ok(layer) => layer,
        Err(error) => {
            remove(&partial)?;
            return Err(error.into());
        }
    };
    remove(&folder)?;
    std::fs::rename(&partial, &folder).map_err(at(&folder))?;
    sync_folder(&job.tables)?;
    Ok(layer)
}

fn at(file: &Path) -> impl FnOnce(io::Error) -> FetchError {
    move |source| FetchError::Copy { file: file.into(), source }
}

fn length(file: &Path) -> Option<u64> {
    std::fs::metadata(file).ok().map(|metadata| metadata.len())
}

fn part_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Refuses a layer that would take the room that log and store need.
fn check_room(job: &Job, manifest: &Manifest, partial: &Path) -> Result<(), FetchError> {
    let there = |entry: &FileEntry| {
        let file = partial.join(&entry.name);
        length(&file).or_else(|| length(&part_of(&file))).unwrap_or(0).min(entry.bytes)
    };
    let needed = manifest.all_files().map(|entry| entry.bytes - there(entry)).sum();
    let stat = rustix::fs::statvfs(partial).map_err(|error| at(partial)(error.into()))?;
    let free = (stat.f_bavail * stat.f_frsize).saturating_sub(job.reserve_bytes);
    if needed > free { Err(FetchError::NoRoom { needed, free }) } else { Ok(()) }
}

/// Fetches one file, unless it is there.
async fn bring(source: &Source, partial: &Path, entry: &FileEntry) -> Result<(), FetchError> {
    let file = partial.join(&entry.name);
    if length(&file) == Some(entry.bytes) {
        return Ok(());
    }
    let part = part_of(&file);
    let written = match source {
        Source::Folder(folder) => copy(&folder.join(&entry.name), &part, entry)?,
        Source::Objects(objects) => download(objects, &part, entry).await?,
    };
    written.sync_all().map_err(at(&part))?;
    std::fs::rename(&part, &file).map_err(at(&file))?;
    // It will be mapped: nobody is to write to it by mistake. Not before it is named: the next attempt appends.
    std::fs::set_permissions(&file, Permissions::from_mode(0o444)).map_err(at(&file))?;
    sync_folder(partial)
}

fn sync_folder(folder: &Path) -> Result<(), FetchError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(at(folder))
}

fn copy(from: &Path, part: &Path, entry: &FileEntry) -> Result<File, FetchError> {
    let found = std::fs::metadata(from).map_err(at(from))?.len();
    if found > entry.bytes {
        return Err(too_long(from.display().to_string(), entry, found));
    }
    let (mut from_file, mut to) =
        (File::open(from).map_err(at(from))?, File::create(part).map_err(at(part))?);
    // It may grow meanwhile, or have no length to tell, as a device.
    let copied =
        io::copy(&mut (&mut from_file).take(entry.bytes.saturating_add(1)), &mut to).map_err(at(from))?;
    if copied > entry.bytes {
        return Err(too_long(from.display().to_string(), entry, copied));
    }
    Ok(to)
}

fn too_long(name: String, entry: &FileEntry, found: u64) -> FetchError {
    SourceError::TooLong { name, expected: entry.bytes, found }.into()
}

/// Appends to what an earlier attempt left. Never writes more than the manifest allows.
async fn download(objects: &Objects, part: &Path, entry: &FileEntry) -> Result<File, FetchError> {
    let mut file = File::options().create(true).append(true).open(part).map_err(at(part))?;
    let mut there = length(part).unwrap_or(0);
    if there == entry.bytes && there > 0 {
        return Ok(file);
    }
    if there > entry.bytes {
        there = 0;
    }
    let opened = objects.stream(&entry.name, there).await?;
    if opened.length > entry.bytes {
        return Err(too_long(objects.name(&entry.name), entry, opened.length));
    }
    if there > 0 {
        tracing::info!(file = entry.name, from = opened.from, "resuming the fetch of a table's file");
    }
    there = opened.from;
    file.set_len(there).map_err(at(part))?;
    let mut bytes = opened.bytes;
    while let Some(more) = bytes.try_next().await? {
        there += more.len() as u64;
        if there > entry.bytes {
            return Err(too_long(objects.name(&entry.name), entry, there));
        }
        file.write_all(&more).map_err(at(part))?;
    }
    if there < opened.length {
        return Err(SourceError::Ended {
            name: objects.name(&entry.name),
            expected: opened.length,
            found: there,
        }
        .into());
    }
    // A file that is shorter than the manifest says is refused by the check, which tells more about it.
    Ok(file)
}

fn remove(folder: &Path) -> Result<(), FetchError> {
    match std::fs::remove_dir_all(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(at(folder)(source)),
        _ => Ok(()),
    }
}

/// Removes the folders of layers that no version needs, complete or partial.
pub(super) fn forget_others(tables: &Path, needed: &std::collections::BTreeSet<String>) {
    let Ok(entries) = std::fs::read_dir(tables) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !needed.contains(name.strip_suffix(".partial").unwrap_or(&name))
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            tracing::warn!(%error, folder = %entry.path().display(), "removing a table's old files");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file was copied to its end, whatever length it had told: one that grew, or a device, filled the disk.
    #[test]
    fn no_more_is_copied_than_the_manifest_allows() {
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join("values.part");
        let entry = FileEntry { name: "values".into(), bytes: 10, count: 1, checksum: 1, digest: None };
        // It says that it has no bytes.
        let copied = copy(Path::new("/proc/self/status"), &part, &entry);
        assert!(
            matches!(copied, Err(FetchError::Source(SourceError::TooLong { found: 11, .. }))),
            "{copied:?}"
        );
        assert_eq!(length(&part), Some(11));
    }
}
