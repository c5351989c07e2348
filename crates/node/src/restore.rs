//! Makes a data folder from a snapshot file, for a new cluster that begins where the file ends.
//!
//! The file is what etcd's `Maintenance.Snapshot` streams (`etcdctl snapshot save`): the chunks of
//! [`quoin_store::Export`], zeros up to a multiple of 512 bytes, and the SHA-256 of all of it. Every founder
//! restores the same file with the same settings. Keys, leases and history come back with their revisions;
//! members and alarms do not. The file's checksum is part of the cluster's identity, so founders that restored
//! another file, or none, do not begin one with those that did.
//!
//! **Invariant: Whole or nothing.** The folder is made beside the data folder and renamed into place at the
//! end.

use crate::config::Config;
use crate::error::{StartError, io_error};
use crate::identity::Identity;
use crate::membership::{founder, founding};
use quoin_consensus::GROUP;
use quoin_core::{Progress, machines};
use quoin_engine::OpenError;
use quoin_store::{StoreFolder, read_chunk};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

const SHA_BYTES: u64 = 32;
/// The length of what comes before the SHA-256 is a multiple of this.
const BLOCK_BYTES: u64 = 512;

/// The most by which a restore may raise the revision: the sum stays far below 2^63.
pub const RAISE_MAX: u64 = 1_000_000_000_000;

/// Makes `config.data_dir` from the snapshot in `file`. With `raise`, at most [`RAISE_MAX`], its revision is raised by so
/// much and all below is compacted, see [`machines::found_again`]. Returns the progress of the state in it.
///
/// # Errors
/// The data folder exists already, the file is not a whole snapshot, or the disk failed. Then no data folder
/// was made.
pub fn restore(config: &Config, file: &Path, raise: Option<NonZeroU64>) -> Result<Progress, StartError> {
    config.check()?;
    assert!(raise.is_none_or(|by| by.get() <= RAISE_MAX), "the caller checks");
    let target = &config.data_dir;
    if target.exists() {
        return Err(StartError::Identity(format!(
            "{} exists already: name a new data folder to restore into",
            target.display()
        )));
    }
    let (snapshot, sha) = open_checked(file).map_err(|error| io_error(file.display().to_string(), error))?;
    let unfinished = unfinished_path(target);
    let failed = |error| io_error(format!("restoring into {}", unfinished.display()), error);
    match fs::remove_dir_all(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    fs::create_dir_all(&unfinished).map_err(failed)?;
    // Founders that raise it by something else begin no cluster with this one.
    let begins = raise.map_or(sha.clone(), |by| format!("{sha}+{by}"));
    let (identity, _) = founder(config, begins);
    let progress = fill(config, &unfinished, snapshot, file, identity.disk, raise)?;
    identity.write(&unfinished).map_err(failed)?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::rename(&unfinished, target).and_then(|()| File::open(parent)?.sync_all()).map_err(failed)?;
    debug_assert!(matches!(Identity::read(target), Ok(Some(_))));
    Ok(progress)
}

/// Checks that a snapshot file is whole: that [`restore`] would take it.
///
/// # Errors
/// It is not, or it cannot be read.
pub fn check_snapshot(file: &Path) -> Result<Progress, StartError> {
    let failed = |error| io_error(file.display().to_string(), error);
    let (mut snapshot, _) = open_checked(file).map_err(failed)?;
    let checked = quoin_store::check_snapshot(&mut snapshot);
    checked.map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error.to_string())))
}

fn unfinished_path(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(".restoring");
    target.with_file_name(name)
}

/// Opens a snapshot file, checks its checksum, and returns its chunks, and the checksum in hexadecimal.
fn open_checked(path: &Path) -> io::Result<(impl Read, String)> {
    let mut file = File::open(path)?;
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
    let length = file.metadata()?.len();
    if length % BLOCK_BYTES != SHA_BYTES {
        return Err(invalid("the file is not a whole snapshot with a checksum: save it again"));
    }
    let content = length - SHA_BYTES;
    let mut sha = Sha256::new();
    io::copy(&mut (&mut file).take(content), &mut sha)?;
    let mut expected = [0; SHA_BYTES as usize];
    file.read_exact(&mut expected)?;
    if sha.finalize()[..] != expected {
        return Err(invalid("the checksum does not match the content: save it again"));
    }
    file.rewind()?;
    let sha = expected.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((io::BufReader::new(file).take(content), sha))
}

fn fill(
    config: &Config,
    folder: &Path,
    mut snapshot: impl Read,
    file: &Path,
    disk: u64,
    raise: Option<NonZeroU64>,
) -> Result<Progress, StartError> {
    let failed = |error: OpenError| StartError::Open(error);
    let stores = StoreFolder::open(&folder.join("store")).map_err(|error| failed(error.into()))?;
    let damaged = |error: &dyn std::fmt::Display| {
        let error = io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        io_error(file.display().to_string(), error)
    };
    let options = config.store.options();
    let mut importer = stores.import(GROUP.0, options).map_err(|error| failed(error.into()))?;
    while !importer.is_whole() {
        let chunk = read_chunk(&mut snapshot).map_err(|error| damaged(&error))?;
        let chunk = chunk.ok_or_else(|| damaged(&"the file ends before the snapshot does"))?;
        importer.chunk(chunk).map_err(|error| damaged(&error))?;
    }
    let (store, _) = importer.commit().map_err(|error| damaged(&error))?;
    let founding = founding(config, disk);
    let begin = || {
        let progress = machines::found_again(&store, founding.record(), &founding.members, raise)?;
        store.batch_applied(progress.index)?;
        store.flush()?;
        Ok(progress)
    };
    begin().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quoin_core::store::MemoryStore;
    use quoin_store::Export;

    /// A snapshot file: `chunks` with padding and checksum, as the server sends them.
    fn write(path: &Path, chunks: &[bytes::Bytes]) {
        let mut content = chunks.concat();
        content.resize(content.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        let sha = Sha256::digest(&content);
        content.extend_from_slice(&sha);
        fs::write(path, content).unwrap();
    }

    /// What was saved was said to be saved, and found to be damaged when it was restored.
    #[test]
    fn a_file_is_checked_beyond_its_checksum() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let store = MemoryStore::new();
        machines::found(&store, bytes::Bytes::new(), &[]);
        let progress = machines::read_progress(&store).unwrap();
        let chunks: Vec<_> = Export::new(&store, progress).map(Result::unwrap).collect();
        write(&path, &chunks);
        assert_eq!(check_snapshot(&path).unwrap(), progress);
        // Without its end, and with a chunk that is longer than any may be.
        for damaged in [chunks[..chunks.len() - 1].to_vec(), vec![chunks[0].clone(), vec![0xff; 600].into()]]
        {
            write(&path, &damaged);
            let error = check_snapshot(&path).unwrap_err().to_string();
            assert!(error.contains(&*path.to_string_lossy()), "{error}");
        }
    }
}
