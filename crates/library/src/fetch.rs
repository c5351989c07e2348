//! Brings a version's files into the data folder: fetched, checked from front to back, and only then given
//! their final name.
//!
//! Layout: `tables/<id>/` holds one layer, with its manifest as the log has it. `tables/<id>.partial/` holds
//! a layer that is being fetched: complete files, and one `NAME.part` to which the next attempt appends if
//! the server can begin in the middle.
//!
//! A file that the published place does not have, or has damaged, comes from another replica that has said that it has
//! it. Files that are whole in the layer's folder are kept: only what is damaged or missing is fetched again.
//!
//! **Invariant: Whole when named.** A folder or file with its final name was checked and is on disk, so a
//! replica that is ready no longer needs the source. A file that fails the check is removed.
//!
//! What is deliberately absent: trust, in the source or in other replicas. The manifest in the log says what the files
//! must be.

use super::lending::Lenders;
use super::settings::TableConfig;
use super::source::{Source, SourceError};
use bytes::Bytes;
use futures_util::TryStreamExt;
use quoin_table::{FileEntry, FileError, Layer, Manifest, Options, TableError, check_foreign, manifest};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A layer to fetch.
#[derive(Clone)]
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
    /// Who else may have the files.
    pub(super) lenders: Lenders,
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
    /// Neither the source nor another replica has given a file.
    #[error("{source}; nor was it to be had from {others} other replicas")]
    Nowhere {
        /// What was wrong with the source.
        #[source]
        source: Box<FetchError>,
        /// How many were asked.
        others: usize,
    },
}

impl FetchError {
    /// Whether an attempt that ends so has fetched everything in vain: the files themselves are not what the manifest says.
    pub(super) fn is_costly(&self) -> bool {
        match self {
            Self::Nowhere { source, .. } => source.is_costly(),
            Self::Refused(_) => true,
            _ => false,
        }
    }

    /// Whether trying again may help although nobody has changed anything.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Source(error) => error.is_transient(),
            Self::Copy { source, .. } => !matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
            ),
            // Others come back.
            Self::Stopped { .. } | Self::Nowhere { .. } => true,
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
            Ok(layer) => {
                // An attempt to replace it that was cut short.
                remove(&job.tables.join(format!("{}.partial", manifest.id)))?;
                return Ok(layer);
            }
            Err(error) if !is_damage(&error) => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "a table's files are damaged here: fetching them again"),
        }
    }
    let partial = job.tables.join(format!("{}.partial", manifest.id));
    std::fs::create_dir_all(&partial).map_err(at(&partial))?;
    keep_whole(&manifest, &folder, &partial)?;
    check_room(job, &manifest, &partial)?;
    for entry in manifest.all_files() {
        bring(job, &manifest, &partial, entry).await?;
    }
    manifest.write(&partial)?;
    // Invariant: Whole when named.
    let layer = match Layer::open(&partial, job.options) {
        Ok(layer) => layer,
        Err(error) if is_damage(&error) => {
            remove(&partial)?;
            return Err(error.into());
        }
        Err(error) => return Err(error.into()),
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

/// Whether fetching files again may help against what is wrong with those that are here: not if this process may not
/// lock memory, or has no more file handles.
fn is_damage(error: &TableError) -> bool {
    match error {
        TableError::File(FileError::Io { source, .. }) => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
                || source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
        }
        _ => true,
    }
}

/// Takes over the files of a damaged layer that are whole.
fn keep_whole(manifest: &Manifest, folder: &Path, partial: &Path) -> Result<(), FetchError> {
    if !folder.exists() {
        return Ok(());
    }
    for entry in manifest.all_files() {
        let (file, kept) = (folder.join(&entry.name), partial.join(&entry.name));
        if !kept.exists() && check_foreign(&file, entry).is_ok() {
            std::fs::hard_link(&file, &kept).map_err(at(&file))?;
        }
    }
    Ok(())
}

/// Fetches one file, unless it is there: from where it was published, or else from another replica.
async fn bring(job: &Job, manifest: &Manifest, partial: &Path, entry: &FileEntry) -> Result<(), FetchError> {
    let file = partial.join(&entry.name);
    if length(&file) == Some(entry.bytes) {
        return Ok(());
    }
    let part = part_of(&file);
    let Err(published) =
        from_source(job, &part, entry).await.and_then(|written| take(&written, &file, entry))
    else {
        return Ok(());
    };
    let lenders = &job.lenders;
    if lenders.bytes_per_second == 0 || lenders.members.is_empty() {
        return Err(published);
    }
    for member in &lenders.members {
        let borrowed = lenders.borrow_from(*member, &manifest.id, entry, &part).await;
        match borrowed.map_err(at(&part)).and_then(|written| take(&written, &file, entry)) {
            Ok(()) => {
                let (member, bytes) = (format!("{member:016x}"), entry.bytes);
                tracing::info!(table = manifest.name, file = entry.name, member, bytes, why = %published, "fetched a table's file from another replica");
                return Ok(());
            }
            Err(error) => {
                let member = format!("{member:016x}");
                tracing::debug!(%error, file = entry.name, member, "fetching a table's file from another replica");
            }
        }
    }
    Err(FetchError::Nowhere { source: Box::new(published), others: lenders.members.len() })
}

async fn from_source(job: &Job, part: &Path, entry: &FileEntry) -> Result<File, FetchError> {
    download(&Source::open(&job.location, &job.settings).await?, part, entry).await
}

/// Gives a file its name, once it is whole and on disk.
fn take(written: &File, file: &Path, entry: &FileEntry) -> Result<(), FetchError> {
    let part = part_of(file);
    if let Err(error) = check_foreign(&part, entry) {
        // Nothing of it is worth going on from.
        std::fs::remove_file(&part).map_err(at(&part))?;
        return Err(error.into());
    }
    let partial = file.parent().unwrap_or(Path::new("/"));
    written.sync_all().map_err(at(&part))?;
    std::fs::rename(&part, file).map_err(at(file))?;
    // It will be mapped: nobody is to write to it by mistake. Not before it is named: the next attempt appends.
    std::fs::set_permissions(file, Permissions::from_mode(0o444)).map_err(at(file))?;
    sync_folder(partial)
}

fn sync_folder(folder: &Path) -> Result<(), FetchError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(at(folder))
}

fn too_long(name: String, entry: &FileEntry, found: u64) -> FetchError {
    SourceError::TooLong { name, expected: entry.bytes, found }.into()
}

/// Appends to what an earlier attempt left. Never writes more than the manifest allows.
async fn download(source: &Source, part: &Path, entry: &FileEntry) -> Result<File, FetchError> {
    let mut file = File::options().create(true).append(true).open(part).map_err(at(part))?;
    let mut there = length(part).unwrap_or(0);
    if there == entry.bytes && there > 0 {
        return Ok(file);
    }
    if there > entry.bytes {
        there = 0;
    }
    let opened = source.stream(&entry.name, there).await?;
    if opened.length > entry.bytes {
        return Err(too_long(source.name(&entry.name), entry, opened.length));
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
            return Err(too_long(source.name(&entry.name), entry, there));
        }
        file.write_all(&more).map_err(at(part))?;
    }
    if there < opened.length {
        return Err(SourceError::Ended {
            name: source.name(&entry.name),
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
    #[tokio::test]
    async fn no_more_is_copied_than_the_manifest_allows() {
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join("values.part");
        let settings = TableConfig { sources: vec![super::super::ANYWHERE.into()], ..TableConfig::default() };
        let entry =
            |name: &str| FileEntry { name: name.into(), bytes: 10, count: 1, checksum: 1, digest: None };
        // It says that it has no bytes.
        let source = Source::open("/proc/self", &settings).await.unwrap();
        let copied = download(&source, &part, &entry("status")).await;
        assert!(
            matches!(copied, Err(FetchError::Source(SourceError::TooLong { expected: 10, .. }))),
            "{copied:?}"
        );
        assert!(length(&part).unwrap() <= 10);
        // One that is no file kept a fetching thread for good.
        let source = Source::open("/dev", &settings).await.unwrap();
        for other in ["zero", "fd"] {
            let refused = download(&source, &part, &entry(other)).await.unwrap_err();
            assert!(
                refused.to_string().contains("not a regular file") && !refused.is_transient(),
                "{refused}"
            );
        }
    }

    /// A whole table was downloaded every 30 seconds, for ever, because its files were not those of its manifest.
    #[test]
    fn only_a_fetch_that_was_in_vain_is_costly() {
        let what = TableError::Other { file: "values".into(), what: "another digest".into() };
        let refused = FetchError::from(what);
        assert!(refused.is_costly());
        assert!(FetchError::Nowhere { source: Box::new(refused), others: 2 }.is_costly());
        assert!(!FetchError::NoRoom { needed: 2, free: 1 }.is_costly());
    }

    /// A replica that was not allowed to lock memory took its files for damaged, deleted them and fetched them again,
    /// for ever.
    #[test]
    fn only_what_fetching_again_may_mend_is_damage() {
        let failed = |source: io::Error| TableError::File(FileError::Io { file: "values".into(), source });
        let errno = |errno: rustix::io::Errno| failed(errno.into());
        for error in
            [errno(rustix::io::Errno::PERM), errno(rustix::io::Errno::NOMEM), errno(rustix::io::Errno::MFILE)]
        {
            assert!(!is_damage(&error), "{error}");
        }
        let cut = failed(io::ErrorKind::UnexpectedEof.into());
        let what = TableError::Other { file: "values".into(), what: "another digest".into() };
        for error in [errno(rustix::io::Errno::IO), errno(rustix::io::Errno::NOENT), cut, what] {
            assert!(is_damage(&error), "{error}");
        }
    }
}
