//! What nobody asks for and somebody must do, once a second: compact history that is too old or too long,
//! keep the member record current, purge the log, raise the alarm before the disk is full, and give back to
//! the disk what is freed under it.

use super::admission;
use super::engine::Engine;
use super::shared::Shared;
use super::{compare, guarded, purge};
use quoin_core::system::{self, Alarm, AlarmKind, DiskClaim, Introduction, Operation};
use quoin_core::{Revision, Stamp, StoreError, View, history};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Handle;

pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// The running thread.
pub(crate) struct Upkeep {
    /// Dropped to stop it.
    alive: mpsc::Sender<()>,
    handle: JoinHandle<()>,
}

impl Upkeep {
    pub(crate) fn start(shared: Arc<Shared>, runtime: Handle) -> io::Result<Self> {
        let (alive, stopped) = mpsc::channel();
        let upkeep = Arc::clone(&shared);
        let handle = guarded::spawn(&shared, "upkeep", move || {
            let mut reclaimed = None;
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                if let Err(error) = runtime.block_on(round(&upkeep, &mut reclaimed)) {
                    tracing::warn!(%error, "upkeep");
                }
            }
        })?;
        Ok(Self { alive, handle })
    }

    /// Stops the thread and waits until it has ended.
    pub(crate) fn stop(self) {
        drop(self.alive);
        // A panic ended the replica when it happened: it was caught then.
        let _ = self.handle.join();
    }
}

/// One round. `reclaimed` is up to where the store's space was given back under the alarm.
pub(crate) async fn round(shared: &Arc<Shared>, reclaimed: &mut Option<Revision>) -> Result<(), StoreError> {
    if shared.is_leader() && shared.settings.history.auto_compaction {
        compact(shared).await?;
    }
    introduce(shared).await?;
    if let Err(error) = purge::purge(shared) {
        tracing::warn!(%error, "purging the log");
    }
    watch_space(shared).await;
    reclaim(shared, reclaimed);
    compare::round(shared).await;
    yield_leadership(shared).await
}

/// Hands leadership over while this replica's disk is damaged, to a voter of which that is not known.
async fn yield_leadership(shared: &Arc<Shared>) -> Result<(), StoreError> {
    if !shared.is_leader() || !shared.findings.is_damaged() {
        return Ok(());
    }
    let published = shared.published.load_full();
    let alarms = system::alarms(View::new(&*published.store, published.progress.sequence))?;
    let corrupt = |id| alarms.iter().any(|alarm| alarm.member == id && alarm.kind() == AlarmKind::Corrupt);
    Engine::new(Arc::clone(shared)).hand_over_to(|id| !corrupt(id)).await;
    Ok(())
}

async fn compact(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let published = shared.published.load_full();
    let (progress, keep) = (&published.progress, &shared.settings.history);
    let view = View::new(&*published.store, progress.sequence);
    let too_many = Revision(progress.revision.0.saturating_sub(keep.keep_revisions));
    let oldest_kept = Stamp(shared.clock.time().0.saturating_sub(keep.keep_s.saturating_mul(1000)));
    let too_old = history::revision_before(view, progress, oldest_kept)?;
    let target = too_many.max(too_old);
    if target > progress.compacted && target.0 > 1 {
        propose(shared, Operation::Compact(target.0)).await;
    }
    Ok(())
}

/// Tells the cluster this node's disk, unless it knows one, and its name and client URLs, if the member
/// record says otherwise.
async fn introduce(shared: &Arc<Shared>) -> Result<(), StoreError> {
    if shared.leader() == 0 {
        return Ok(());
    }
    let published = shared.published.load_full();
    let view = View::new(&*published.store, published.progress.sequence);
    let Some(known) = system::members(view)?.into_iter().find(|member| member.id == shared.id) else {
        return Ok(());
    };
    if known.disk == 0 {
        let claim = DiskClaim { member: shared.id, disk: shared.disk, new: false };
        propose(shared, Operation::ClaimDisk(claim)).await;
    }
    let (name, client_urls) = (&shared.settings.name, &shared.settings.client_urls);
    if (&known.name, &known.client_urls) != (name, client_urls) {
        let (member, name, client_urls) = (shared.id, name.clone(), client_urls.clone());
        propose(shared, Operation::Introduce(Introduction { member, name, client_urls })).await;
    }
    Ok(())
}

async fn watch_space(shared: &Arc<Shared>) {
    let alarm = shared.no_space_alarm.load(Ordering::Relaxed);
    let free = shared.log.free_space().unwrap_or(u64::MAX);
    balance_reserve(shared, free, alarm);
    if alarm || shared.leader() == 0 {
        return;
    }
    let config = &shared.settings.store;
    let used = {
        let store = &shared.published.load().store;
        // Memtables become table files of about their size.
        store.disk_bytes() + store.memtable_bytes()
    };
    let over_quota = config.quota_bytes > 0 && used > config.quota_bytes;
    if free < config.reserve_bytes || shared.reserve.is_given() || over_quota {
        tracing::error!(free, used, "raising the NOSPACE alarm: writes that grow the store are refused");
        let alarm = Alarm { member: shared.id, kind: AlarmKind::Nospace as i32 };
        raise(shared, alarm).await;
    }
}

/// Raises an alarm through whoever leads: this node may be the one whose log takes nothing more. Whether it is
/// recorded.
pub(crate) async fn raise(shared: &Arc<Shared>, alarm: Alarm) -> bool {
    if shared.is_leader() && shared.disk_full.load(Ordering::Relaxed) {
        // It hands over, if it can. What waited here until there is room would raise the alarm then.
        return false;
    }
    let engine = Engine::new(Arc::clone(shared));
    let raised = engine.propose_always(Operation::RaiseAlarm(alarm).into_command()).await;
    raised.inspect_err(|error| tracing::debug!(%error, "raising an alarm")).is_ok()
}

/// Takes the reserve where there is enough room besides, and gives it back where the disk is nearly full: the
/// store's threads need it as the log does.
fn balance_reserve(shared: &Shared, free: u64, alarm: bool) {
    let (reserve, wanted) = (&shared.reserve, shared.settings.store.reserve_bytes);
    if free < wanted / 2 {
        if reserve.give() {
            tracing::error!(free, "the disk is nearly full: its reserve is now used to delete and compact");
        }
    } else if !alarm
        && free >= wanted.saturating_add(reserve.bytes())
        && let Err(error) = reserve.take()
    {
        tracing::warn!(%error, "no reserve of disk can be taken");
    }
}

/// While the alarm stands nothing grows, so nothing would be merged. What was deleted and compacted is given
/// back to the disk at once: when the alarm is raised, and at each compaction under it.
fn reclaim(shared: &Shared, reclaimed: &mut Option<Revision>) {
    if !shared.no_space_alarm.load(Ordering::Relaxed) {
        *reclaimed = None;
        return;
    }
    let published = shared.published.load();
    let compacted = published.progress.compacted;
    if *reclaimed != Some(compacted) && !published.store.is_reclaiming() {
        *reclaimed = Some(compacted);
        published.store.ask_reclaim();
    }
}

/// Proposes and waits for the answer, so that proposals do not pile up on a slow cluster. A failed one is
/// made again in the next round.
pub(crate) async fn propose(shared: &Arc<Shared>, operation: Operation) {
    let engine = Engine::new(Arc::clone(shared));
    // The node itself asks, whoever may.
    let revision = engine.policy().revision();
    if let Err(error) = admission::admitted(revision, engine.propose(operation.into_command())).await {
        tracing::debug!(%error, "upkeep proposal");
    }
}
