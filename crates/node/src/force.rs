//! `--force-new-cluster`: after a majority was lost for good, what is in one member's folder becomes a cluster of it alone.
//!
//! The replica is opened and applies what it knows to have been committed, as at every start. Its state is restored into a
//! folder beside, as from a backup, as that of a cluster with this founder only, and the two folders change places at once.
//! The cluster has another id, so that members of the old one which come back are none of it. The old folder is kept.
//!
//! Against misuse: while a leader answers nothing is done, since then there is a majority; and a folder that was made in
//! this way and has other members by now is not made again.

use crate::config::Config;
use crate::error::{StartError, io_error};
use crate::identity::Identity;
use crate::node::open;
use crate::restore::{Restore, restore, sync_parent};
use quoin_core::{Revision, system};
use quoin_engine::Running;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// In a folder that was made in this way.
const MARK: &str = "forced";
/// What the name of the file ends with in which the state is while the folder is made.
const SAVED: &str = ".forced.snapshot";
/// Election timeouts for which a leader is waited for: one that is there is heard of within one.
const LISTENING_TIMEOUTS: u32 = 5;

/// Makes the folder, or finds that it is made. Returns the settings to start with: those of a node alone.
pub(crate) async fn force(config: Config) -> Result<Config, StartError> {
    let alone = Config { cluster: BTreeMap::new(), join: Vec::new(), ..config.clone() };
    let folder = config.data_dir.clone();
    let identity = Identity::read(&folder)
        .map_err(|error| io_error(format!("reading the identity in {}", folder.display()), error))?;
    if identity.is_none_or(|identity| identity.id == 0) {
        return refused(&folder, "holds no member's data: name the folder of the one that is left");
    }
    let is_made = folder.join(MARK).exists();
    // A cluster of its own is described by its own settings; the old one's by those that it had.
    let opening = if is_made { alone.clone() } else { config.clone() };
    let (replica, listening) = opened(opening).await?;
    let revision = replica.engine().latest().progress().revision;
    let found = examine(&replica, listening, is_made).await;
    let saved = beside(&folder, SAVED);
    let done = match found {
        Ok(true) => save(&replica, &saved)
            .map(|()| true)
            .map_err(|error| io_error(saved.display().to_string(), error)),
        other => other,
    };
    let stopped = tokio::task::spawn_blocking(move || replica.stop()).await;
    stopped.map_err(|error| io_error("stopping", io::Error::other(error)))?;
    if done? {
        let made = alone.clone();
        let making = tokio::task::spawn_blocking(move || make(made, &saved));
        making.await.map_err(|error| io_error("restoring", io::Error::other(error)))??;
    } else if is_made {
        keep_old(&folder, revision)?;
    }
    Ok(alone)
}

fn refused<T>(folder: &Path, why: &str) -> Result<T, StartError> {
    Err(StartError::Identity(format!("--force-new-cluster: {} {why}", folder.display())))
}

fn beside(folder: &Path, ending: &str) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_os_string();
    name.push(ending);
    folder.with_file_name(name)
}

/// The replica in the folder, with all applied that it knows to be committed; and how long to listen for a leader.
async fn opened(config: Config) -> Result<(Running, Duration), StartError> {
    let what = format!("listening on {} (peer); is another process using the port?", config.listen_peer);
    let listener = TcpListener::bind(config.listen_peer).map_err(|error| io_error(what, error))?;
    let keys = config.tls.for_peers()?;
    let election = u32::try_from(config.raft.election_ticks).unwrap_or(u32::MAX);
    let listening = Duration::from_millis(config.raft.tick_ms) * election * LISTENING_TIMEOUTS;
    let dialling = keys.clone();
    let (opened, peers) = tokio::task::spawn_blocking(move || open(&config, dialling.as_deref()))
        .await
        .map_err(|error| io_error("opening the data folder", io::Error::other(error)))??;
    let replica = opened.start_with(listener, peers, keys);
    let replica = replica.map_err(|error| io_error("starting the replica's threads", error))?;
    match replica.replayed().await {
        Ok(()) => Ok((replica, listening)),
        Err(reason) => {
            let _ = tokio::task::spawn_blocking(move || replica.stop()).await;
            Err(StartError::Replay(reason))
        }
    }
}

/// Whether there is something to do.
async fn examine(replica: &Running, listening: Duration, is_made: bool) -> Result<bool, StartError> {
    let engine = replica.engine();
    let view = engine.latest();
    let members = system::members(view.view())
        .map_err(|error| io_error("reading the members", io::Error::other(error)))?;
    if members.len() == 1 {
        tracing::warn!("--force-new-cluster: this node is the only member already; take the flag out");
        return Ok(false);
    }
    if is_made {
        return Err(StartError::Identity(
            "--force-new-cluster: this cluster was made by it already, and has other members by now, which would be \
             removed: take the flag out. If that is meant, delete the file \"forced\" in the data folder"
                .into(),
        ));
    }
    let heard = async {
        while engine.raft().leader == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(listening, heard).await.is_ok() {
        return Err(StartError::Identity(
            "--force-new-cluster: a majority of the members answers, and has a leader: start this node without the flag, and \
             remove members with quoin cluster remove"
                .into(),
        ));
    }
    Ok(true)
}

/// Writes the replica's state as `quoin snapshot save` does.
fn save(replica: &Running, path: &Path) -> io::Result<()> {
    let view = replica.engine().latest();
    let mut file = File::create(path)?;
    let (mut sha, mut bytes) = (Sha256::new(), 0_u64);
    let mut write = |chunk: &[u8]| {
        sha.update(chunk);
        bytes += chunk.len() as u64;
        file.write_all(chunk)
    };
    for chunk in view.store().export().map_err(io::Error::other)? {
        write(&chunk.map_err(io::Error::other)?)?;
    }
    let padding = crate::restore::padding(bytes);
    sha.update(&padding);
    file.write_all(&padding)?;
    file.write_all(&sha.finalize())?;
    file.sync_all()
}

/// Restores the state into a folder beside the node's, and lets the two change places.
fn make(config: Config, saved: &Path) -> Result<(), StartError> {
    let folder = config.data_dir.clone();
    let made = beside(&folder, ".forced");
    let failed = |error: io::Error| io_error(format!("making {}", made.display()), error);
    let attempt = || {
        match fs::remove_dir_all(&made) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let progress = restore(&Config { data_dir: made.clone(), ..config }, saved, Restore::default())?;
        File::create(made.join(MARK)).and_then(|_| File::open(&made)?.sync_all()).map_err(failed)?;
        // At once: a crash leaves the one or the other. Whichever it is stays before anything is acknowledged: what is at
        // the other path may be deleted.
        renameat_with(CWD, &folder, CWD, &made, RenameFlags::EXCHANGE)
            .map_err(io::Error::from)
            .and_then(|()| sync_parent(&folder))
            .map_err(failed)?;
        Ok(progress)
    };
    let done = attempt();
    let _ = fs::remove_file(saved);
    keep_old(&folder, done?.revision)
}

/// The old folder has changed places with the one that was made, though the process may have ended then: gives it the name
/// under which it is kept, since under the other one a later start would delete it.
fn keep_old(folder: &Path, revision: Revision) -> Result<(), StartError> {
    let made = beside(folder, ".forced");
    let _ = fs::remove_file(beside(folder, SAVED));
    if !made.exists() {
        return Ok(());
    }
    let kept = beside(folder, &format!(".before-{revision}"));
    // Files of lookup tables are found by content; without them they are fetched again.
    let _ = fs::rename(made.join("tables"), folder.join("tables"));
    let what = || format!("keeping {} as {}", made.display(), kept.display());
    let renamed = fs::rename(&made, &kept).and_then(|()| sync_parent(folder));
    renamed.map_err(|error| io_error(what(), error))?;
    tracing::warn!(
        revision = revision.0,
        old = %kept.display(),
        "--force-new-cluster: this node alone is a cluster now; delete the old folder when nothing of it is missed, and take \
         the flag out, with the other members in the setting cluster"
    );
    Ok(())
}
