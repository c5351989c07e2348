//! What nobody asks for and somebody must do, once a second: compact history that is too old or too long, purge
//! the log, raise the alarm before the disk is full.

use super::{Engine, Shared, wall_clock};
use crate::raft::GROUP;
use parking_lot::{Condvar, Mutex};
use quoin_core::system::{self, Alarm, AlarmKind, Operation};
use quoin_core::{Revision, Stamp, StoreError, history};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(1);

/// The thread that does it.
pub(crate) struct Upkeep {
    stop: Arc<(Mutex<bool>, Condvar)>,
    handle: JoinHandle<()>,
}

impl Upkeep {
    pub(crate) fn start(shared: Arc<Shared>, runtime: tokio::runtime::Handle) -> io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopping = Arc::clone(&stop);
        let handle = std::thread::Builder::new().name("upkeep".into()).spawn(move || {
            let (stopped, changed) = &*stopping;
            let mut stopped = stopped.lock();
            while !*stopped {
                changed.wait_for(&mut stopped, PERIOD);
                if let Err(error) = round(&shared, &runtime) {
                    tracing::warn!(%error, "upkeep");
                }
            }
        })?;
        Ok(Self { stop, handle })
    }

    pub(crate) fn stop(self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if self.handle.join().is_err() {
            tracing::error!("upkeep panicked");
        }
    }
}

fn round(shared: &Arc<Shared>, runtime: &tokio::runtime::Handle) -> Result<(), StoreError> {
    if shared.is_leader() && shared.config.history.auto_compaction {
        compact(shared, runtime)?;
    }
    introduce(shared, runtime)?;
    purge(shared);
    watch_space(shared, runtime);
    Ok(())
}

fn compact(shared: &Arc<Shared>, runtime: &tokio::runtime::Handle) -> Result<(), StoreError> {
    let published = shared.published.load_full();
    let (progress, keep) = (&published.progress, &shared.config.history);
    let view = quoin_core::View::new(&*published.store, progress.sequence);
    let too_many = Revision(progress.revision.0.saturating_sub(keep.keep_revisions));
    let oldest_kept = Stamp(wall_clock().0.saturating_sub(keep.keep_s * 1000));
    let too_old = history::revision_before(view, progress, oldest_kept)?;
    let target = too_many.max(too_old);
    if target > progress.compacted && target.0 > 1 {
        propose(shared, runtime, Operation::Compact(target.0));
    }
    Ok(())
}

/// Tells the cluster this node's name and where clients reach it, when that is not what the member list says.
fn introduce(shared: &Arc<Shared>, runtime: &tokio::runtime::Handle) -> Result<(), StoreError> {
    if shared.raft.load().leader == 0 {
        return Ok(());
    }
    let published = shared.published.load_full();
    let view = quoin_core::View::new(&*published.store, published.progress.sequence);
    let Some(known) = system::members(view)?.into_iter().find(|member| member.id == shared.id) else {
        return Ok(());
    };
    let present = system::Member {
        name: shared.config.name.clone(),
        client_urls: shared.config.client_urls(),
        ..known.clone()
    };
    if present != known {
        propose(shared, runtime, Operation::SetMember(present));
    }
    Ok(())
}

/// Keeps what the store has not persisted, and otherwise about `log.keep_bytes` for followers that were away.
fn purge(shared: &Shared) {
    let excess = shared.log.size_on_disk() > shared.config.log.keep_bytes;
    if !excess {
        return;
    }
    let persisted = shared.published.load().store.persisted_index();
    if let Err(error) = shared.log.purge(GROUP, persisted.0) {
        tracing::warn!(%error, "purging the log");
    }
}

fn watch_space(shared: &Arc<Shared>, runtime: &tokio::runtime::Handle) {
    if shared.no_space_alarm.load(Ordering::Relaxed) || shared.raft.load().leader == 0 {
        return;
    }
    let config = &shared.config.store;
    let free = shared.log.free_space().unwrap_or(u64::MAX);
    let used = shared.published.load().store.disk_bytes();
    let over_quota = config.quota_bytes > 0 && used > config.quota_bytes;
    if free < config.reserve_bytes || over_quota {
        tracing::error!(free, used, "raising the NOSPACE alarm: writes that grow the store are refused");
        let alarm = Alarm { member: shared.id, kind: AlarmKind::Nospace as i32 };
        propose(shared, runtime, Operation::RaiseAlarm(alarm));
    }
}

fn propose(shared: &Arc<Shared>, runtime: &tokio::runtime::Handle, operation: Operation) {
    let engine = Engine::new(Arc::clone(shared));
    // Waiting for the answer keeps a slow cluster from gathering these; a failed one is tried next time.
    if let Err(error) = runtime.block_on(engine.propose(operation.into_command())) {
        tracing::debug!(%error, "upkeep proposal");
    }
}
