//! Makes a data folder from a snapshot file, for a new cluster that begins where the file ends.
//!
//! The file is Quoin's (`quoin snapshot save`): the chunks of [`quoin_store::Export`], zeros up to a multiple of 512
//! bytes, and the SHA-256 of all of it; or etcd's (`etcdctl snapshot save`), which [`quoin_etcd_file`] reads. How it begins
//! tells which. Every founder restores the same file with the same settings. Keys, leases and history come back with
//! their revisions; members and alarms do not. The file's checksum is part of the cluster's identity, so founders that restored
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
use quoin_etcd_file::{Imported, Reader};
use quoin_store::{LsmStore, StoreFolder, read_chunk};
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

/// How a snapshot is restored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restore {
    /// By how much the revision is raised, at most [`RAISE_MAX`]; all below is compacted then, see
    /// [`machines::found_again`].
    pub raise: Option<NonZeroU64>,
    /// A database of etcd's may come without a checksum.
    pub skip_hash_check: bool,
    /// Users and roles of etcd's may be left behind although they were asked for.
    pub skip_auth: bool,
}

/// Makes `config.data_dir` from the snapshot in `file`. Returns the progress of the state in it.
///
/// # Errors
/// The data folder exists already, the file is not a whole snapshot, or the disk failed. Then no data folder
/// was made.
pub fn restore(config: &Config, file: &Path, how: Restore) -> Result<Progress, StartError> {
    config.check()?;
    let raise = how.raise;
    assert!(raise.is_none_or(|by| by.get() <= RAISE_MAX), "the caller checks");
    let target = &config.data_dir;
    if target.exists() {
        return Err(StartError::Identity(format!(
            "{} exists already: name a new data folder to restore into",
            target.display()
        )));
    }
    let snapshot = open(file, how).map_err(|error| io_error(file.display().to_string(), error))?;
    let unfinished = unfinished_path(target);
    let failed = |error| io_error(format!("restoring into {}", unfinished.display()), error);
    match fs::remove_dir_all(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    fs::create_dir_all(&unfinished).map_err(failed)?;
    // Founders that raise it by something else begin no cluster with this one.
    let sha = &snapshot.sha;
    let begins = raise.map_or(sha.clone(), |by| format!("{sha}+{by}"));
    let (identity, _) = founder(config, begins);
    let make = || {
        let progress = fill(config, &unfinished, snapshot, file, identity.disk, how)?;
        identity.write(&unfinished).map_err(failed)?;
        fs::rename(&unfinished, target).and_then(|()| sync_parent(target)).map_err(failed)?;
        Ok(progress)
    };
    let made = make();
    match made {
        Ok(_) => debug_assert!(matches!(Identity::read(target), Ok(Some(_)))),
        // It may have filled the disk.
        Err(_) => drop(fs::remove_dir_all(&unfinished)),
    }
    made
}

/// Checks that a snapshot file is whole: that [`restore`] would take it.
///
/// # Errors
/// It is not, or it cannot be read.
pub fn check_snapshot(file: &Path) -> Result<Progress, StartError> {
    let failed = |error| io_error(file.display().to_string(), error);
    let mut snapshot = open(file, Restore::default()).map_err(failed)?;
    let checked = quoin_store::check_snapshot(&mut snapshot.content());
    checked.map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error.to_string())))
}

/// What comes between a snapshot of so many bytes and its checksum.
pub(crate) fn padding(bytes: u64) -> Vec<u8> {
    vec![0; (bytes.next_multiple_of(BLOCK_BYTES) - bytes) as usize]
}

/// Makes what was renamed in the folder of `target` outlast a loss of power.
pub(crate) fn sync_parent(target: &Path) -> io::Result<()> {
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn unfinished_path(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(".restoring");
    target.with_file_name(name)
}

/// A snapshot file that has been checked against its checksum.
struct Snapshot {
    file: File,
    /// Without the checksum.
    bytes: u64,
    /// In hexadecimal, of these bytes.
    sha: String,
    is_etcds: bool,
}

impl Snapshot {
    fn content(&mut self) -> impl Read {
        io::BufReader::new(&mut self.file).take(self.bytes)
    }
}

/// Opens a snapshot file and checks its checksum.
fn open(path: &Path, how: Restore) -> io::Result<Snapshot> {
    let mut file = File::open(path)?;
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
    let length = file.metadata()?.len();
    let mut head = Vec::new();
    (&mut file).take(quoin_etcd_file::HEAD_BYTES as u64).read_to_end(&mut head)?;
    file.rewind()?;
    let is_etcds = quoin_etcd_file::is_database(&head);
    let has_checksum = length % BLOCK_BYTES == SHA_BYTES;
    let bytes = match (has_checksum, is_etcds) {
        (true, _) => length - SHA_BYTES,
        (false, true) if how.skip_hash_check => length,
        (false, true) => {
            return Err(invalid(
                "this database of etcd's has no checksum behind it: save it with etcdctl, or, if it was copied from the \
                 data folder of a member that was stopped, give --skip-hash-check",
            ));
        }
        (false, false) => {
            return Err(invalid("the file is not a whole snapshot with a checksum: save it again"));
        }
    };
    let mut sha = Sha256::new();
    io::copy(&mut (&mut file).take(bytes), &mut sha)?;
    let found = sha.finalize();
    if has_checksum {
        let mut expected = [0; SHA_BYTES as usize];
        file.read_exact(&mut expected)?;
        if found[..] != expected {
            return Err(invalid("the checksum does not match the content: save it again"));
        }
    }
    file.rewind()?;
    let sha = found.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Snapshot { file, bytes, sha, is_etcds })
}

fn fill(
    config: &Config,
    folder: &Path,
    mut snapshot: Snapshot,
    file: &Path,
    disk: u64,
    how: Restore,
) -> Result<Progress, StartError> {
    let failed = |error: OpenError| StartError::Open(error);
    let stores = StoreFolder::open(&folder.join("store")).map_err(|error| failed(error.into()))?;
    let store = if snapshot.is_etcds {
        fill_from_etcds(config, &stores, snapshot, file, how)?
    } else {
        fill_from_ours(config, &stores, &mut snapshot.content(), file)?
    };
    let founding = founding(config, disk);
    let begin = || {
        let progress = machines::found_again(&store, founding.record(), &founding.members, how.raise)?;
        store.batch_applied(progress.index)?;
        store.flush()?;
        Ok(progress)
    };
    begin().map_err(failed)
}

fn damaged(file: &Path, error: &dyn std::fmt::Display) -> StartError {
    io_error(file.display().to_string(), io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

fn fill_from_etcds(
    config: &Config,
    stores: &StoreFolder,
    snapshot: Snapshot,
    file: &Path,
    how: Restore,
) -> Result<LsmStore, StartError> {
    let store = stores.open_store(GROUP.0, config.store.options());
    let store = store.map_err(|error| StartError::Open(error.into()))?;
    let database = Reader::open(snapshot.file, snapshot.bytes).map_err(|error| damaged(file, &error))?;
    let ended = |index| store.batch_applied(index);
    let imported = quoin_etcd_file::import(&database, &store, how.skip_auth, &ended);
    let imported = imported.map_err(|error| damaged(file, &error))?;
    let Imported { progress, changes, leases, users, roles } = imported;
    tracing::info!(
        revision = progress.revision.0,
        compacted = progress.compacted.0,
        changes,
        leases,
        "etcd's keys, leases and history were taken over"
    );
    if users + roles > 0 {
        tracing::warn!(users, roles, "etcd's users and roles are not taken over");
    }
    Ok(store)
}

fn fill_from_ours(
    config: &Config,
    stores: &StoreFolder,
    snapshot: &mut impl Read,
    file: &Path,
) -> Result<LsmStore, StartError> {
    let options = config.store.options();
    let importer = stores.import(GROUP.0, options);
    let mut importer = importer.map_err(|error| StartError::Open(error.into()))?;
    while !importer.is_whole() {
        let chunk = read_chunk(snapshot).map_err(|error| damaged(file, &error))?;
        let chunk = chunk.ok_or_else(|| damaged(file, &"the file ends before the snapshot does"))?;
        importer.chunk(chunk).map_err(|error| damaged(file, &error))?;
    }
    let (store, _) = importer.commit().map_err(|error| damaged(file, &error))?;
    Ok(store)
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
            // What had been restored until then was left beside, as large as the disk.
            let config = Config { data_dir: folder.path().join("new"), ..Config::default() };
            assert!(restore(&config, &path, Restore::default()).is_err());
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "more than the snapshot is there");
            let error = check_snapshot(&path).unwrap_err().to_string();
            assert!(error.contains(&*path.to_string_lossy()), "{error}");
        }
    }
}
