//! The apply thread: changes the state, publishes it, then answers.

use super::work::{Work, WorkQueue};
use crate::apply::Applier;
use crate::input::{Input, ReceivedSnapshot};
use crate::shared::{Published, Shared};
use crate::snapshots;
use quoin_consensus::replica::Committed;
use quoin_core::{Progress, Stamp, StoreError, View, system};
use quoin_store::LsmStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) struct ApplyThread {
    pub(super) shared: Arc<Shared>,
    pub(super) applier: Applier,
    pub(super) work: Arc<WorkQueue>,
}

impl ApplyThread {
    /// Works until the queue is closed, or until a fault.
    ///
    /// **Invariant: Three kinds of no.** A fault ends the replica: the entry may be half applied.
    pub(super) fn run(mut self) {
        if let Err(error) = self.work_off() {
            self.shared.fail(&error);
        }
    }

    fn work_off(&mut self) -> Result<(), StoreError> {
        self.begin()?;
        self.warm_while_idle();
        let mut work = Vec::new();
        while self.work.take(&mut work) {
            self.step(&mut work)?;
            self.warm_while_idle();
        }
        Ok(())
    }

    /// Nobody waits for an entry: reads what entries to come will ask for.
    fn warm_while_idle(&mut self) {
        while self.work.is_idle() && self.warm() {}
    }

    /// Reads a little of the state into memory; false once there is nothing left to do.
    pub(super) fn warm(&mut self) -> bool {
        let store = Arc::clone(&self.shared.published.load().store);
        self.applier.warm(&*store)
    }

    /// Before the first step.
    pub(super) fn begin(&mut self) -> Result<(), StoreError> {
        let bytes = self.shared.settings.ledger.cache_bytes;
        self.applier.set_ledger_cache_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
        self.system_changed()?;
        self.publish_deadline();
        Ok(())
    }

    /// Does all of `work`, and says how far it has come.
    pub(super) fn step(&mut self, work: &mut Vec<Work>) -> Result<(), StoreError> {
        let before = self.applier.progress().index;
        for item in work.drain(..) {
            self.carry_out(item)?;
        }
        for waiter in self.applier.ready_reads() {
            // An error: the client has disconnected.
            let _ = waiter.send(Ok(()));
        }
        let applied = self.applier.progress().index;
        if applied != before {
            self.publish_deadline();
            self.shared.inbox.push(Input::Applied(applied));
        }
        Ok(())
    }

    fn publish_deadline(&self) {
        let deadline = self.applier.next_deadline().map_or(u64::MAX, |Stamp(ms)| ms);
        self.shared.next_deadline.store(deadline, Ordering::Relaxed);
    }

    fn carry_out(&mut self, work: Work) -> Result<(), StoreError> {
        match work {
            Work::Expect(expectation) => self.applier.expect(expectation),
            Work::Wait(barrier) => self.applier.wait(barrier),
            Work::Commit(committed) => return self.commit(committed),
            Work::Install(received, done) => {
                self.install(*received)?;
                // An error: the raft thread has ended.
                let _ = done.send(());
            }
            Work::Tick(tick) => {
                self.applier.give_up(tick);
                self.shared.published.load().store.between_entries();
            }
        }
        Ok(())
    }

    fn commit(&mut self, committed: Committed) -> Result<(), StoreError> {
        let begun_us = self.shared.clock.monotonic_us();
        let store = Arc::clone(&self.shared.published.load().store);
        self.work.taken(&committed);
        let applied = self.applier.apply(&*store, committed)?;
        let progress = self.applier.progress();
        self.shared.compare.applied(progress.index.0, applied.effects);
        for effects in &applied.told {
            let voters = self.shared.raft.borrow().voters.clone();
            self.shared.compare.told(effects, self.shared.id, &voters);
        }
        store.batch_applied(progress.index)?;
        let took_us = self.shared.clock.monotonic_us() - begun_us;
        self.shared.metrics.apply_seconds.observe(took_us as f64 / 1e6);
        if applied.expired {
            self.shared.expiry_us.store(took_us, Ordering::Relaxed);
        }
        self.shared.metrics.batch_commands.observe(applied.commands as f64);
        self.publish(store, progress);
        if !applied.events.is_empty() {
            self.shared.hub.publish(applied.events, progress.revision);
        }
        if !applied.messages.is_empty() && self.shared.has_been_fresh() {
            self.shared.messages.publish(applied.messages);
        }
        if applied.system_changed {
            self.system_changed()?;
        }
        // Invariant: Durable before answered. Whoever has an answer can also read what it answers for.
        for (waiter, answer) in applied.answers {
            // An error: the client has disconnected.
            let _ = waiter.send(answer);
        }
        Ok(())
    }

    fn publish(&self, store: Arc<LsmStore>, progress: Progress) {
        let memory = self.applier.memory();
        let clock = Arc::clone(&self.shared.clock);
        let policy = Arc::clone(&memory.auth);
        // Before, so that whoever sees the new state looks for rights.
        self.shared.note_policy(&policy);
        self.shared.published.store(Arc::new(Published { store, memory, progress, clock }));
        // Behind, so that a stream that looks again does not find the rights of before and go on.
        self.shared.tell_policy(&policy);
    }

    fn install(&mut self, received: ReceivedSnapshot) -> Result<(), StoreError> {
        let store = snapshots::activate(received.importer)?;
        // Reads under way keep the old store, which removes its files when the last of them ends.
        self.shared.published.load().store.retire();
        self.applier.installed(&*store)?;
        self.shared.compare.installed();
        let progress = self.applier.progress();
        tracing::info!(index = progress.index.0, revision = progress.revision.0, "installed a snapshot");
        self.publish(store, progress);
        self.shared.hub.reset(progress.revision);
        self.system_changed()
    }

    /// Members or alarms may have changed: tells the transport, and those who admit commands.
    fn system_changed(&self) -> Result<(), StoreError> {
        let published = self.shared.published.load();
        let view = View::new(&*published.store, published.progress.sequence);
        let mut addresses = BTreeMap::new();
        for member in system::members(view)? {
            if member.disk != 0 {
                self.note_disk(member.id, member.disk);
            }
            if let Some(address) = member.peer_addresses.first() {
                let address = address.strip_prefix("http://").unwrap_or(address);
                addresses.insert(member.id, address.to_string());
            }
        }
        let removed = system::removed(view)?;
        // Recorded before its connections are closed: a removed member that dials again at once must be told.
        self.shared.removed.lock().clone_from(&removed);
        self.shared.part_with(&removed);
        // A replica that joins has no member records yet, and keeps the peers that it started with.
        if !addresses.is_empty() {
            self.set_members(addresses);
        }
        let alarms = system::alarms(view)?;
        let stands = |kind| alarms.iter().any(|alarm| alarm.kind() == kind);
        self.shared.no_space_alarm.store(stands(system::AlarmKind::Nospace), Ordering::Relaxed);
        self.shared.metrics.corrupt.set(stands(system::AlarmKind::Corrupt).into());
        Ok(())
    }

    /// **Invariant: One disk per member.** A replica on another disk than the recorded one ends.
    fn note_disk(&self, member: u64, disk: u64) {
        self.shared.disks.lock().insert(member, disk);
        if member == self.shared.id && disk != self.shared.disk {
            self.shared.cast_out(&format!(
                "this member is recorded on disk {disk:x}, and this data folder is on disk {:x}: put the \
                data folder of that disk back, or delete this one, remove the member and add it anew",
                self.shared.disk
            ));
        }
    }

    fn set_members(&self, addresses: BTreeMap<u64, String>) {
        let mut members = self.shared.members.lock();
        if *members == addresses {
            return;
        }
        if members.contains_key(&self.shared.id) && !addresses.contains_key(&self.shared.id) {
            self.shared.cast_out(
                "this member was removed from the cluster: delete its data folder before adding it anew \
                (quoin cluster add), and then start it with --join",
            );
        }
        self.shared.set_peers(&addresses);
        *members = addresses;
    }
}

impl Drop for ApplyThread {
    fn drop(&mut self) {
        self.work.end();
    }
}
