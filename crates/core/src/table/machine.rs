//! What a table command does. Reading order: [`Machine::apply`], then one section per operation.
//!
//! **Invariant: Ready first.** A version becomes active only after every voting member has reported that it
//! has the files (a majority of them, if the caller asks for no more), and is kept as long as the active
//! version or one to roll back to needs it.
//!
//! A number names one content of a table, for ever: numbers go on after a table was dropped, the same content is
//! published once, and reports name the content that they are on. So a late report cannot be taken for one on another
//! version.
//!
//! Streamed changes count by their revision: a version hides those up to the revision that it folds, and those made while
//! versions of another shape were active. So rolling back shows them again. They are deleted once no version that may
//! be active again by itself shows them: neither the active one, nor those to roll back to, nor those that wait. One that
//! is kept only because patches are over it is no longer activated then, so no acknowledged change is ever missing.

use super::command::{
    Activate, Command, Drop, Failed, Forget, Operation, Publish, Ready, Rollback, Shape, Write,
};
use super::live::{Live, TableState};
use super::record::{self, Era, Failure, Table, Version};
use super::reply::{Refusal, Reply};
use crate::codec::decode_command;
use crate::store::{StoreError, View};
use crate::system;
use crate::tx::Tx;
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Versions kept besides the active one, by default.
pub const VERSIONS_KEPT: u32 = 2;
/// Maximum bytes of a failure's reason; the rest is cut off.
const REASON_MAX: usize = 1000;
/// Maximum versions kept besides the active one.
pub const VERSIONS_KEPT_MAX: u32 = 1000;
/// Maximum patches over a base.
pub const PATCHES_MAX: usize = 64;
/// Maximum changes deleted by one [`super::Forget`], or with an activation. Members send it for as long as there are more.
const FORGOTTEN_MAX: usize = 10_000;

/// The table face's machine: the store holds its state; this holds what is derived from it.
#[derive(Debug)]
pub struct Machine {
    live: Arc<Live>,
}

impl Machine {
    /// The machine of a store that may hold state already.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(view: View<'_>) -> Result<Self, StoreError> {
        Ok(Self { live: Arc::new(Live::open(view)?) })
    }

    /// The tables as lookups see them.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Applies one command.
    ///
    /// # Errors
    /// The store failed. What a client may not do is a refusal, not an error.
    pub fn apply(&mut self, tx: &mut Tx<'_>, bytes: Bytes) -> Result<Reply, StoreError> {
        let result = match decode_command(bytes) {
            Some(Command { operation: Some(operation) }) => self.perform(tx, operation)?,
            _ => Err(Refusal::Malformed),
        };
        Ok(Reply { revision: tx.revision(), result })
    }

    fn perform(&self, tx: &mut Tx<'_>, operation: Operation) -> Result<Result<u64, Refusal>, StoreError> {
        let mut tables = self.live.change();
        let name = name_of(&operation).to_owned();
        let bytes = |tables: &Tables| tables.get(&name).map_or(0, TableState::changes_bytes);
        let before = bytes(&tables);
        let result = self.perform_on(tx, &mut tables, operation);
        self.live.count_bytes(before, bytes(&tables));
        result
    }

    fn perform_on(
        &self,
        tx: &mut Tx<'_>,
        tables: &mut Tables,
        operation: Operation,
    ) -> Result<Result<u64, Refusal>, StoreError> {
        if let Operation::Publish(publish) = operation {
            let new = !tables.contains_key(&publish.name);
            let state = tables.entry(publish.name.clone()).or_default();
            let name = publish.name.clone();
            if new && let Some(number) = tx.get(&record::number_key(&name))? {
                state.table.newest = record::decode_number(number)?;
            }
            let result = publish_version(tx, state, publish);
            if new && result.is_err() {
                tables.remove(&name);
            }
            self.live.changed();
            return Ok(result);
        }
        let name = name_of(&operation).to_string();
        let Some(state) = tables.get_mut(&name) else { return Ok(Err(Refusal::NoTable(name))) };
        let result = match operation {
            Operation::Write(write) => return Ok(write_changes(tx, state, &write)),
            Operation::Publish(_) => unreachable!("handled above"),
            Operation::Ready(ready) => mark_ready(tx, state, &ready)?,
            Operation::Failed(failed) => mark_failed(tx, state, failed)?,
            Operation::Activate(activate) => activate_version(tx, state, &activate)?,
            Operation::Rollback(rollback) => roll_back(tx, state, &rollback)?,
            Operation::Drop(drop) if drop.version == 0 => {
                drop_table(tx, state, &name);
                tables.remove(&name);
                Ok(0)
            }
            Operation::Drop(drop) => drop_version(tx, state, &drop),
            Operation::Forget(_) => {
                forget(tx, state, &name);
                return Ok(Ok(state.table.active));
            }
        };
        self.live.changed();
        Ok(result)
    }
}

type Tables = BTreeMap<String, TableState>;

fn name_of(operation: &Operation) -> &str {
    match operation {
        Operation::Publish(Publish { name, .. })
        | Operation::Ready(Ready { name, .. })
        | Operation::Failed(Failed { name, .. })
        | Operation::Activate(Activate { name, .. })
        | Operation::Rollback(Rollback { name })
        | Operation::Drop(Drop { name, .. })
        | Operation::Forget(Forget { name })
        | Operation::Write(Write { name, .. }) => name,
    }
}

// Versions.

fn publish_version(tx: &mut Tx<'_>, state: &mut TableState, publish: Publish) -> Result<u64, Refusal> {
    let Publish { name, id, over, location, manifest, shape, folds, new_shape, keep } = publish;
    let Some(shape) = shape.filter(|_| !name.is_empty() && !name.contains('\0')) else {
        return Err(Refusal::Malformed);
    };
    let bytes = name.len();
    if bytes > record::NAME_BYTES_MAX {
        return Err(Refusal::NameTooLong { bytes });
    }
    if keep > VERSIONS_KEPT_MAX {
        return Err(Refusal::TooManyKept { keep });
    }
    let below = if over.is_empty() {
        None
    } else {
        let newest = state.versions.values().rev().find(|version| version.id == over);
        Some(newest.ok_or(Refusal::WrongBase { name: name.clone(), over })?)
    };
    // A patch must have its base's shape, a base the active version's.
    let like = below.or_else(|| state.versions.get(&state.table.active).filter(|_| !new_shape));
    if let Some(expected) = like.and_then(|version| version.shape.as_ref())
        && expected != &shape
    {
        return Err(Refusal::WrongShape { name, expected: describe(expected), found: describe(&shape) });
    }
    let newest = tx.revision().0;
    if folds > newest {
        return Err(Refusal::FoldsAhead { folds, newest });
    }
    let same =
        |version: &&Arc<Version>| version.id == id && version.below == below.map_or(0, |below| below.number);
    if let Some(there) = state.versions.values().rev().find(same) {
        let there = Version::clone(there);
        return Ok(publish_again(tx, state, &name, there, location, folds, keep));
    }
    if let Some(below) = below
        && patches(state, below) >= PATCHES_MAX
    {
        return Err(Refusal::TooManyPatches { name, below: below.number });
    }
    if let Some(refusal) = loses_changes(state, &name, below.map(|below| &**below), &shape, folds, new_shape)
    {
        return Err(refusal);
    }
    let number = state.table.newest + 1;
    let alike = below.or_else(|| state.versions.get(&state.table.active));
    let renounced =
        alike.filter(|alike| alike.shape.as_ref() == Some(&shape)).map_or(0, |alike| alike.renounced);
    // It must hide all that its base hides, or the active version: else those changes would reappear.
    let at_least = below.map_or(state.folded().0, |below| below.folds);
    let folds = folds.max(at_least);
    let version = Version {
        number,
        id,
        below: below.map_or(0, |below| below.number),
        location,
        manifest,
        shape: Some(shape),
        folds,
        ready: Vec::new(),
        failed: Vec::new(),
        activated: false,
        manifest_apart: false,
        renounced,
    };
    state.table.newest = number;
    if keep > 0 || state.table.keep == 0 {
        state.table.keep = if keep == 0 { VERSIONS_KEPT } else { keep };
    }
    put_table(tx, state, &name);
    put_version(tx, state, &name, version, true);
    Ok(number)
}

/// How many patches a version has over its base, its own files among them.
fn patches(state: &TableState, version: &Version) -> usize {
    let below = |version: &&Version| state.versions.get(&version.below).map(|below| &**below);
    std::iter::successors(Some(version), below).count() - 1
}

/// Why files that have the changes up to `folds`, by what is said of them, would lose some that nothing else has.
fn loses_changes(
    state: &TableState,
    name: &str,
    below: Option<&Version>,
    shape: &Shape,
    folds: u64,
    new_shape: bool,
) -> Option<Refusal> {
    let forgotten = state.table.forgotten(Some(shape));
    if let Some(below) = below {
        let lacks = folds.max(below.folds) < forgotten;
        return lacks.then(|| Refusal::Forgotten { name: name.into(), version: below.number, forgotten });
    }
    let active = state.versions.get(&state.table.active)?;
    if new_shape || active.shape.as_ref() != Some(shape) {
        return None;
    }
    // Those that are not deleted yet would be hidden.
    let is_folded = |revision: &crate::types::Revision| {
        (active.renounced + 1..=active.folds).contains(&revision.0)
            && state.table.era(*revision).is_none_or(|era| era.shape == active.shape)
    };
    let hidden = state.revisions().filter(is_folded).map(|revision| revision.0).max().unwrap_or(0);
    let forgotten = if forgotten > active.renounced { forgotten.min(active.folds) } else { 0 };
    let needed = hidden.max(forgotten);
    (folds < needed).then(|| Refusal::FoldsBehind { name: name.into(), active: active.number, needed })
}

/// The content is there: it keeps its number, and members fetch it from where it is now. What they said was wrong with
/// it may have been put right: their failures are forgotten, and they try again.
fn publish_again(
    tx: &mut Tx<'_>,
    state: &mut TableState,
    name: &str,
    version: Version,
    location: String,
    folds: u64,
    keep: u32,
) -> u64 {
    if keep > 0 && keep != state.table.keep {
        state.table.keep = keep;
        put_table(tx, state, name);
    }
    let number = version.number;
    let moved = version.location != location || folds > version.folds;
    if moved || !version.failed.is_empty() {
        let folds = folds.max(version.folds);
        put_version(tx, state, name, Version { location, folds, failed: Vec::new(), ..version }, moved);
    }
    number
}

fn describe(shape: &Shape) -> String {
    let width = match shape.width_plus_1 {
        0 => "any width".into(),
        width => format!("{} bytes", width - 1),
    };
    format!("{} shards, values of {width}, {}", shape.shards, shape.codec)
}

fn mark_ready(
    tx: &mut Tx<'_>,
    state: &mut TableState,
    ready: &Ready,
) -> Result<Result<u64, Refusal>, StoreError> {
    let Ready { name, version: number, member, id } = ready;
    let reported = reported_on(tx.view(), state, (name, *number, id), *member)?;
    Ok(reported.map(|mut version| {
        version.failed.retain(|failure| failure.member != *member);
        if let Err(place) = version.ready.binary_search(member) {
            version.ready.insert(place, *member);
        }
        put_version(tx, state, name, version, false);
        *number
    }))
}

/// The version that `member` reports on, without the reports of those who are no members any more: so there are never more
/// than members.
fn reported_on(
    view: View<'_>,
    state: &TableState,
    (name, number, id): (&str, u64, &str),
    member: u64,
) -> Result<Result<Version, Refusal>, StoreError> {
    let mut version = match find(state, name, number) {
        Ok(version) => version,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if !id.is_empty() && id != version.id {
        let (name, id, reported) = (name.into(), version.id, id.into());
        return Ok(Err(Refusal::OtherContent { name, version: number, id, reported }));
    }
    let members: BTreeSet<u64> = system::members(view)?.into_iter().map(|member| member.id).collect();
    if !members.contains(&member) {
        return Ok(Err(Refusal::NoMember { member }));
    }
    version.ready.retain(|ready| members.contains(ready));
    version.failed.retain(|failure| members.contains(&failure.member));
    Ok(Ok(version))
}

/// A failure's reason as it is kept.
pub fn failure_reason(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(REASON_MAX)]
}

fn mark_failed(
    tx: &mut Tx<'_>,
    state: &mut TableState,
    failed: Failed,
) -> Result<Result<u64, Refusal>, StoreError> {
    let Failed { name, version: number, member, reason, transient, id } = failed;
    let reported = reported_on(tx.view(), state, (&name, number, &id), member)?;
    let reason = failure_reason(&reason).to_owned();
    Ok(reported.map(|mut version| {
        version.ready.retain(|ready| *ready != member);
        version.failed.retain(|failure| failure.member != member);
        version.failed.push(Failure { member, reason, transient });
        version.failed.sort_unstable_by_key(|failure| failure.member);
        put_version(tx, state, &name, version, false);
        number
    }))
}

fn activate_version(
    tx: &mut Tx<'_>,
    state: &mut TableState,
    activate: &Activate,
) -> Result<Result<u64, Refusal>, StoreError> {
    let name = &activate.name;
    let mut version = match find(state, name, activate.version) {
        Ok(version) => version,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if let Some(refusal) = not_ready(tx.view(), activate, &version)? {
        return Ok(Err(refusal));
    }
    let before = state.table.active;
    let first = !version.activated;
    let of_another_shape = state.versions.get(&before).is_some_and(|before| before.shape != version.shape);
    let forgotten = state.table.forgotten(version.shape.as_ref());
    // Changes of another shape do not apply to what has never been active.
    if version.folds < forgotten && !(first && of_another_shape) {
        return Ok(Err(Refusal::Forgotten { name: name.clone(), version: version.number, forgotten }));
    }
    if before != activate.version {
        begin_era(tx, state, before, version.shape.as_ref());
        state.table.previous.retain(|previous| *previous != activate.version);
        if before != 0 {
            state.table.previous.push(before);
        }
        state.table.active = activate.version;
        if first {
            version.activated = true;
            if of_another_shape {
                // Its publisher has said that it has nothing to do with what was before.
                version.folds = tx.next_revision().0;
                version.renounced = version.folds;
            }
            put_version(tx, state, name, version, of_another_shape);
        }
        settle(tx, state, name);
    }
    Ok(Ok(activate.version))
}

/// From the next revision on, changes have the shape of the version that becomes active.
fn begin_era(tx: &mut Tx<'_>, state: &mut TableState, before: u64, shape: Option<&Shape>) {
    let from = tx.next_revision().0;
    if state.table.eras.is_empty()
        && let Some(before) = state.versions.get(&before)
    {
        let era = Era { from: 0, shape: before.shape.clone(), forgotten: 0 };
        state.table.eras.push(era);
    }
    if state.table.eras.last().is_none_or(|era| era.shape.as_ref() != shape) {
        state.table.eras.push(Era { from, shape: shape.cloned(), forgotten: 0 });
    }
}

/// Why the version may not become active yet: all voting members must have the files, or a majority if that
/// is enough.
fn not_ready(view: View<'_>, activate: &Activate, version: &Version) -> Result<Option<Refusal>, StoreError> {
    let voters: Vec<_> = system::members(view)?.into_iter().filter(|member| !member.learner).collect();
    let missing: Vec<_> = voters.iter().filter(|voter| !version.ready.contains(&voter.id)).collect();
    let majority = 2 * (voters.len() - missing.len()) > voters.len();
    if missing.is_empty() || (activate.without_waiting && majority) {
        return Ok(None);
    }
    let described: Vec<String> = missing
        .iter()
        .map(|member| {
            let said = version.failed.iter().find(|failure| failure.member == member.id);
            let said = said.map_or("still fetching, or away", |failure| &failure.reason);
            format!("{} ({said})", member.label())
        })
        .collect();
    Ok(Some(Refusal::NotReady {
        name: activate.name.clone(),
        version: activate.version,
        missing: described.join(", "),
        advice: if majority {
            "wait for them, or activate --without-waiting: until they have it, those answer UNAVAILABLE"
        } else {
            "a majority must have it"
        },
    }))
}

fn roll_back(
    tx: &mut Tx<'_>,
    state: &mut TableState,
    rollback: &Rollback,
) -> Result<Result<u64, Refusal>, StoreError> {
    let Some(previous) = state.table.previous.pop() else {
        return Ok(Err(Refusal::NoPrevious(rollback.name.clone())));
    };
    let shape = state.versions.get(&previous).and_then(|version| version.shape.clone());
    begin_era(tx, state, state.table.active, shape.as_ref());
    state.table.active = previous;
    put_table(tx, state, &rollback.name);
    Ok(Ok(previous))
}

fn drop_version(tx: &mut Tx<'_>, state: &mut TableState, drop: &Drop) -> Result<u64, Refusal> {
    find(state, &drop.name, drop.version)?;
    let in_use = |user| Refusal::InUse { name: drop.name.clone(), version: drop.version, user };
    if state.table.active == drop.version {
        return Err(in_use(drop.version));
    }
    if let Some(above) = state.versions.values().find(|version| version.below == drop.version) {
        return Err(in_use(above.number));
    }
    state.table.previous.retain(|previous| *previous != drop.version);
    remove_version(tx, state, &drop.name, drop.version);
    put_table(tx, state, &drop.name);
    Ok(drop.version)
}

fn drop_table(tx: &mut Tx<'_>, state: &mut TableState, name: &str) {
    for number in state.versions.keys().copied().collect::<Vec<_>>() {
        remove_version(tx, state, name, number);
    }
    for (key, _) in state.changed_keys() {
        tx.delete(&record::change_key(name, key));
    }
    tx.put(&record::number_key(name), record::encode_number(state.table.newest));
    tx.change(record::table_key(name).into(), None);
}

/// After another version has become active, deletes versions beyond those kept, and changes that no kept
/// version shows.
fn settle(tx: &mut Tx<'_>, state: &mut TableState, name: &str) {
    let keep = state.table.keep as usize;
    let excess = state.table.previous.len().saturating_sub(keep);
    let dropped: BTreeSet<u64> = state.table.previous.drain(..excess).collect();
    // In use: the active version, those to roll back to, as many as are kept beside them of those that were rolled back,
    // those that were never active yet, and the bases of all of these.
    let active = state.table.active;
    let back: BTreeSet<u64> = state.table.previous.iter().copied().chain([active]).collect();
    let others = state.versions.values().rev().filter(|version| !back.contains(&version.number));
    let (been, waiting): (Vec<_>, Vec<_>) =
        others.partition(|version| version.activated || dropped.contains(&version.number));
    let been = been.into_iter().filter(|version| !dropped.contains(&version.number));
    let beside = been.take(keep - state.table.previous.len()).chain(waiting).map(|version| version.number);
    let roots: BTreeSet<u64> = back.iter().copied().chain(beside).collect();
    let mut used = BTreeSet::new();
    for root in roots.iter().copied() {
        let mut number = root;
        while number != 0 && used.insert(number) {
            number = state.versions.get(&number).map_or(0, |version| version.below);
        }
    }
    for number in state.versions.keys().copied().filter(|number| !used.contains(number)).collect::<Vec<_>>() {
        remove_version(tx, state, name, number);
    }
    give_up_hidden(state, &roots);
    put_table(tx, state, name);
    forget(tx, state, name);
}

/// Marks the changes that none of the versions `roots` shows as to be deleted, and ends eras without changes.
fn give_up_hidden(state: &mut TableState, roots: &BTreeSet<u64>) {
    let mut eras = std::mem::take(&mut state.table.eras);
    let (mut newest_hidden, mut oldest) = (vec![0; eras.len()], u64::MAX);
    // Per era the revision from which on some version shows its changes.
    let shown_from: Vec<u64> = eras
        .iter()
        .map(|era| {
            let alike = roots.iter().filter_map(|root| state.versions.get(root));
            let alike = alike.filter(|version| version.shape == era.shape);
            alike.map(|version| version.folds).min().unwrap_or(u64::MAX)
        })
        .collect();
    for revision in state.revisions() {
        oldest = oldest.min(revision.0);
        let after = eras.partition_point(|era| era.from <= revision.0);
        if let Some(at) = after.checked_sub(1)
            && revision.0 <= shown_from[at]
        {
            newest_hidden[at] = newest_hidden[at].max(revision.0);
        }
    }
    for (era, newest) in eras.iter_mut().zip(newest_hidden) {
        era.forgotten = era.forgotten.max(newest);
    }
    // What was forgotten of a shape counts for as long as there is a version of it.
    let shapes: Vec<_> = state.versions.values().map(|version| version.shape.clone()).collect();
    let last = eras.len().saturating_sub(1);
    let ends: Vec<u64> = eras.iter().skip(1).map(|era| era.from).chain([u64::MAX]).collect();
    let mut places = 0..;
    eras.retain(|era| {
        let at = places.next().unwrap_or(last);
        let matters = era.forgotten > 0 && shapes.contains(&era.shape);
        at == last || ends[at] > oldest || matters
    });
    state.table.eras = eras;
    state.doom();
}

/// Deletes some of the changes that no version shows.
fn forget(tx: &mut Tx<'_>, state: &mut TableState, name: &str) {
    for key in state.forget(FORGOTTEN_MAX) {
        tx.delete(&record::change_key(name, key));
    }
}

fn find(state: &TableState, name: &str, number: u64) -> Result<Version, Refusal> {
    let kept = || state.versions.keys().copied().collect();
    let version = state.versions.get(&number).map(|version| (**version).clone());
    version.ok_or_else(|| Refusal::NoVersion { name: name.into(), version: number, kept: kept() })
}

fn put_table(tx: &mut Tx<'_>, state: &TableState, name: &str) {
    let record = Table::encode_to_vec(&state.table).into();
    tx.change(record::table_key(name).into(), Some(record));
}

/// Writes a version; unless it is `visible`, without history and watchers. Its manifest is written once, however often
/// members report.
fn put_version(tx: &mut Tx<'_>, state: &mut TableState, name: &str, mut version: Version, visible: bool) {
    if !version.manifest_apart {
        tx.put(&record::manifest_key(name, version.number), version.manifest.clone());
        version.manifest_apart = true;
    }
    let manifest = std::mem::take(&mut version.manifest);
    let (key, record) = (record::version_key(name, version.number), version.encode_to_vec().into());
    version.manifest = manifest;
    if visible {
        tx.change(key.into(), Some(record));
    } else {
        tx.put(&key, record);
    }
    state.versions.insert(version.number, Arc::new(version));
}

fn remove_version(tx: &mut Tx<'_>, state: &mut TableState, name: &str, number: u64) {
    tx.change(record::version_key(name, number).into(), None);
    tx.delete(&record::manifest_key(name, number));
    state.versions.remove(&number);
}

// Changes.

fn write_changes(tx: &mut Tx<'_>, state: &mut TableState, write: &Write) -> Result<u64, Refusal> {
    let active = state.table.active;
    let version = find(state, &write.name, active)?;
    let width = version.shape.map_or(0, |shape| shape.width_plus_1);
    let wrong = write.upserts.iter().find(|upsert| width != 0 && upsert.value.len() != width as usize - 1);
    if let Some(upsert) = wrong {
        return Err(Refusal::Width {
            name: write.name.clone(),
            key: upsert.key,
            expected: width - 1,
            found: upsert.value.len(),
        });
    }
    let revision = tx.next_revision();
    // Deletes come first: a key in both lists gets its value.
    let deletes = write.deletes.iter().map(|key| (*key, None));
    let upserts = write.upserts.iter().map(|upsert| (upsert.key, Some(&upsert.value[..])));
    let mut last = BTreeMap::new();
    last.extend(deletes.chain(upserts));
    for (key, value) in last {
        tx.change(record::change_key(&write.name, key).into(), Some(record::encode_change(revision, value)));
        state.set(key, revision, value);
    }
    Ok(active)
}
