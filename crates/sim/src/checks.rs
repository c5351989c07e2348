//! What is looked at as a whole: states of replicas, and their logs.

use crate::inject::{CLOCK_SKEW_MS, DRIFT_PPM_MAX};
use crate::node::FIRST_MS;
use crate::record::hash;
use crate::schedule::S;
use crate::world::{Event, World};
use anyhow::{Result, ensure};
use quoin_consensus::GROUP;
use quoin_core::store::Order;
use quoin_core::{Revision, View, history, kv};
use std::collections::{BTreeMap, BTreeSet};

/// How often logs are compared.
const LOOK_EVERY: u64 = 2 * S;
/// Hashes of keys are compared at these revisions, and at the newest.
const HASH_EVERY: u64 = 8;
/// States are compared after entries whose index is a multiple of this.
const STATE_EVERY: u64 = 16;

impl World {
    /// Compares the state after the newest entry of a replica with that of others after the same one.
    pub(crate) fn compare_state(&mut self, place: usize) -> Result<()> {
        let Some(process) = &self.nodes[place].process else { return Ok(()) };
        let view = process.stepped.engine().latest();
        let progress = *view.progress();
        let now_ms = self.schedule.now() / 1000;
        let drift_ms = now_ms * DRIFT_PPM_MAX as u64 / 1_000_000;
        let right = FIRST_MS + now_ms + drift_ms + CLOCK_SKEW_MS as u64;
        ensure!(
            progress.stamp.0 <= right,
            "entry {} is stamped {} ms ahead of all right clocks",
            progress.index.0,
            progress.stamp.0 - right
        );
        if progress.index.0.is_multiple_of(STATE_EVERY) && progress.index.0 > self.nodes[place].compared {
            self.nodes[place].compared = progress.index.0;
            let state = state(&view)?;
            self.record.lock().state(self.nodes[place].id(), progress.index.0, state);
        }
        Ok(())
    }

    /// The checks that look at everything.
    pub(crate) fn look(&mut self) -> Result<()> {
        self.schedule.after(LOOK_EVERY, Event::Look);
        self.check_lost()?;
        self.check_stores()?;
        self.match_logs()
    }

    /// What a replica shows besides what clients read: hashes by which operators compare replicas, and what is to expire.
    fn check_stores(&self) -> Result<()> {
        for node in &self.nodes {
            let Some(process) = &node.process else { continue };
            let view = process.stepped.engine().latest();
            let newest = view.progress().revision.0;
            for revision in [newest, newest - newest % HASH_EVERY, newest / 2 - newest / 2 % HASH_EVERY] {
                let Ok(at) = history::sequence_at(view.view(), view.progress(), Revision(revision))? else {
                    continue;
                };
                let mut seen = 0;
                kv::hash(view.view().at(at), |bytes| seen = hash(seen, bytes))?;
                self.record.lock().hash_of_keys(node.id(), revision, seen);
            }
            check_expiries(view.view(), node.id())?;
            self.check_hashes(view.view(), node.id())?;
            self.check_tables(&view)?;
        }
        Ok(())
    }

    /// Log matching: of two logs that have an entry of one index and term, all before it are the same.
    fn match_logs(&self) -> Result<()> {
        let mut terms: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for node in &self.nodes {
            let Some(process) = &node.process else { continue };
            let log = process.stepped.log();
            for index in log.first_index(GROUP)..=log.last_index(GROUP) {
                let term = log.term(GROUP, index).unwrap_or(0);
                terms.entry(index).or_default().push((node.id(), term));
            }
        }
        // From the last entry to the first: who agreed once must agree from there on.
        let mut agreed: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for (index, there) in terms.iter().rev() {
            for (place, (one, term)) in there.iter().enumerate() {
                for (other, other_term) in &there[place + 1..] {
                    let pair = (*one, *other);
                    if term == other_term {
                        agreed.entry(pair).or_insert(*index);
                    } else if let Some(later) = agreed.get(&pair) {
                        anyhow::bail!(
                            "the logs of {one} and {other} have the same entry {later} and different ones at {index}"
                        );
                    }
                }
            }
        }
        Ok(())
    }
}

/// Each lease and each key with a time to live has one entry in the index of what expires.
fn check_expiries(view: View<'_>, id: u64) -> Result<()> {
    // The keyspace, a deadline, and the subject.
    const SUBJECT: usize = 2 + 8;
    let mut subjects = BTreeSet::new();
    for pair in view.scan_prefix(b"\x01x", Order::Ascending) {
        let subject = pair?.0.slice(SUBJECT..);
        ensure!(
            subjects.insert(subject.clone()),
            "replica {id} has {subject:?} twice in its index of what expires"
        );
    }
    Ok(())
}

/// A hash over all that can be read. Records of events that are compacted may be gone or not: they are left out,
/// since what they say is compared when it happens.
pub(crate) fn state(view: &quoin_engine::ReadView) -> Result<u64> {
    let mut seen = 0;
    for (from, to) in [(&b""[..], &b"\0e"[..]), (b"\0f", b"")] {
        for pair in view.view().scan(from, to, Order::Ascending) {
            let (key, value) = pair?;
            seen = hash(hash(seen, &key), &value);
        }
    }
    Ok(seen)
}
