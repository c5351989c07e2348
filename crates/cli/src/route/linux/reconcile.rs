//! Keeps the tables as the rules want them: changes of rules are made at once, and what the tables hold is
//! compared with what they should hold at the start, when a device changes, and now and then.
//!
//! What the kernel refuses is remembered by entry, told once, and tried again with each comparison. It holds up
//! nothing else.

use super::super::copy::{Change, Copy};
use super::super::status::{Board, Refused, Tables};
use super::desired::{Desired, Entry, Touched};
use super::difference::{Step, difference, step};
use super::message::{Actual, ENODEV, ENOENT, ENXIO, EPERM, Link, Refusal, Request};
use super::names::Names;
use super::netlink::Netlink;
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

/// Refused entries that one pass logs, and that the status lists.
const TOLD_MAX: usize = 20;
const LISTED_MAX: usize = 100;
/// Devices that are compared one by one. The kernel goes through all neighbours to find those of one device.
const SINGLY_MAX: usize = 8;

/// The desired state, and what is known of the actual one.
pub(super) struct Reconciler {
    names: Names,
    netlink: Netlink,
    desired: Desired,
    /// The revision of the copy once it has recorded the desired state; `None` after a failure. A batch that
    /// failed may come again as other changes, which do not take back what the copy never held: then the
    /// desired state is made anew.
    folded: Option<i64>,
    /// The networks' devices.
    devices: BTreeMap<u32, u32>,
    /// What the kernel has refused when it was asked last.
    refused: BTreeMap<Entry, Refusal>,
    /// Whether the rules are known. Until then nothing is removed: an agent that has lost its copy must not
    /// empty the tables.
    known: bool,
    /// The last pass failed, so the tables may lack changes that the desired state has.
    behind: bool,
    /// The list of refused rules has to be made anew.
    refusals_changed: bool,
    tables: Tables,
    board: Board,
}

/// Why the tables are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Start,
    Links,
    Periodic,
}

impl Reconciler {
    /// # Errors
    /// The system gives no socket, or does not let this process change tables.
    pub(super) fn open(names: Names, copy: &Copy, board: Board) -> Result<Self> {
        Ok(Self::of(names, Netlink::open()?, copy, board))
    }

    fn of(names: Names, netlink: Netlink, copy: &Copy, board: Board) -> Self {
        Self {
            names,
            netlink,
            desired: Desired::of(copy.rules()),
            folded: Some(copy.revision()),
            devices: BTreeMap::new(),
            refused: BTreeMap::new(),
            known: copy.revision() != 0,
            behind: true,
            refusals_changed: false,
            tables: Tables::default(),
            board,
        }
    }

    /// Makes the tables what the rules of the copy want.
    ///
    /// # Errors
    /// The connection to the kernel fails, or it refuses everything.
    pub(super) fn start(&mut self) -> Result<()> {
        let done = self.compare(Why::Start);
        self.publish();
        done
    }

    /// Puts changes of the rules into effect, upon which `copy` will be of `revision`. Afterwards all rules are
    /// known.
    ///
    /// # Errors
    /// The connection to the kernel fails, or it refuses everything. Taking the same changes again makes up
    /// for it.
    pub(super) fn take(&mut self, changes: &[Change], revision: i64, copy: &Copy) -> Result<()> {
        if self.folded.take() != Some(copy.revision()) {
            self.desired = Desired::of(copy.rules());
            self.behind = true;
        }
        let done = self.take_now(changes);
        self.folded = done.is_ok().then_some(revision);
        self.publish();
        done
    }

    fn take_now(&mut self, changes: &[Change]) -> Result<()> {
        let touched = self.desired.fold(changes);
        self.tell_conflicts(&touched);
        self.refusals_changed |= touched.keys().any(|entry| self.refused.contains_key(entry));
        if !self.known || self.behind {
            self.known = true;
            return self.compare(Why::Start);
        }
        let mut steps = Vec::new();
        for (entry, old) in touched {
            let Some(device) = self.devices.get(&entry.0) else { continue };
            let new = self.desired.value(&entry);
            // What was refused is not in the tables. Unless it changes, the next comparison tries it again.
            let refused = old != new && self.refused.contains_key(&entry);
            if refused && new.is_none() {
                self.refused.remove(&entry);
                continue;
            }
            let old = old.filter(|_| !refused);
            steps.extend(step(entry.1, old, new).map(|step| (entry.0, *device, step)));
        }
        self.behind = true;
        self.make(&mut steps)?;
        self.behind = false;
        Ok(())
    }

    /// Compares all tables with what they should hold, and makes up the difference.
    ///
    /// # Errors
    /// The connection to the kernel fails, or it refuses everything.
    pub(super) fn compare(&mut self, why: Why) -> Result<()> {
        let began = Instant::now();
        self.behind = true;
        self.devices = self.find_devices()?;
        if !self.known {
            return Ok(());
        }
        let mut by_device: HashMap<u32, Vec<Actual>> = HashMap::new();
        for entry in self.netlink.entries(None)? {
            by_device.entry(entry.device).or_default().push(entry);
        }
        let mut steps = Vec::new();
        for (vni, device) in &self.devices {
            let actual = by_device.get(device).map_or(&[][..], Vec::as_slice);
            let wanted = self.desired.network(*vni);
            steps.extend(difference(wanted, actual).into_iter().map(|step| (*vni, *device, step)));
        }
        self.repair(&mut steps, why, began)?;
        self.behind = false;
        self.tables.comparisons += 1;
        self.tables.last_comparison_s = began.elapsed().as_secs_f64();
        Ok(())
    }

    /// Takes changes of devices; `None`: any may have changed.
    ///
    /// # Errors
    /// The connection to the kernel fails, or it refuses everything.
    pub(super) fn links(&mut self, changed: Option<&[Link]>) -> Result<()> {
        let began = Instant::now();
        let Some(changed) = changed.filter(|_| self.known && !self.behind) else {
            self.netlink.wait_for_links()?;
            return self.compare(Why::Links);
        };
        let mut concerned: BTreeSet<u32> =
            changed.iter().filter_map(|link| self.names.vni(&link.name)).collect();
        let indexes: BTreeSet<u32> = changed.iter().map(|link| link.index).collect();
        concerned
            .extend(self.devices.iter().filter(|(_, index)| indexes.contains(index)).map(|(vni, _)| vni));
        if concerned.is_empty() {
            return Ok(());
        }
        self.behind = true;
        // The kernel announces some changes before it has made all of them.
        self.netlink.wait_for_links()?;
        if concerned.len() > SINGLY_MAX {
            return self.compare(Why::Links);
        }
        self.devices = self.find_devices()?;
        let mut steps = Vec::new();
        for vni in concerned {
            let Some(device) = self.devices.get(&vni) else { continue };
            let actual = self.netlink.entries(Some(*device))?;
            let wanted = self.desired.network(vni);
            steps.extend(difference(wanted, &actual).into_iter().map(|step| (vni, *device, step)));
        }
        self.repair(&mut steps, Why::Links, began)?;
        self.behind = false;
        Ok(())
    }

    /// Tells how a comparison ended. The next one makes up for a failure.
    pub(super) fn note(&mut self, done: Result<()>) {
        if let Err(error) = done {
            self.tables.comparisons_failed += 1;
            tracing::warn!(error = %format!("{error:#}"), "comparing the tables with the rules failed");
        }
        self.publish();
    }

    fn find_devices(&mut self) -> Result<BTreeMap<u32, u32>> {
        let mut devices = BTreeMap::new();
        for link in self.netlink.links()? {
            let Some(vni) = self.names.vni(&link.name) else { continue };
            if link.kind == "vxlan" {
                devices.insert(vni, link.index);
            } else if self.tables.comparisons == 0 {
                tracing::warn!(device = link.name, kind = link.kind, "left alone: not a VXLAN device");
            }
        }
        self.refusals_changed |= !self.refused.is_empty();
        Ok(devices)
    }

    fn repair(&mut self, steps: &mut [(u32, u32, Step)], why: Why, began: Instant) -> Result<()> {
        let made = self.make(steps)?;
        let written = &mut self.tables.written;
        *match why {
            Why::Start => &mut written.start,
            Why::Links => &mut written.links,
            Why::Periodic => &mut written.periodic,
        } += made as u64;
        if made > 0 {
            tracing::info!(
                entries = made,
                ?why,
                devices = self.devices.len(),
                ms = began.elapsed().as_millis(),
                "the tables differed; written"
            );
        }
        Ok(())
    }

    /// Makes steps: (network, device, step). Returns how many the kernel has made.
    fn make(&mut self, steps: &mut [(u32, u32, Step)]) -> Result<usize> {
        steps.sort_unstable_by_key(|(vni, _, step)| (step.order(), *vni));
        let requests: Vec<(u32, Request)> =
            steps.iter().map(|(_, device, step)| (*device, step.request)).collect();
        self.displace(steps)?;
        let mut refusals = Vec::new();
        self.netlink.change(&requests, |at, refusal| refusals.push((at, refusal)))?;
        let made = steps.len() - refusals.len();
        let before = std::mem::take(&mut self.refused);
        self.refusals_changed |= !before.is_empty() || !refusals.is_empty();
        self.refused = self.still_refused(&before, steps);
        let (mut stale, mut told) = (Vec::new(), 0);
        for (at, refusal) in refusals {
            let (vni, device, step) = steps[at];
            match (step.request, refusal.errno) {
                (_, EPERM) => bail!("the kernel no longer lets this process change neighbours"),
                (Request::Remove(_), ENOENT | ENXIO) => {}
                (_, ENODEV) => self.devices.retain(|_, index| *index != device),
                (Request::Remove(key), _) => {
                    tracing::warn!(vni, entry = %key, error = %refusal, "the kernel keeps an entry");
                }
                (Request::Put(key, _), _) => {
                    if step.stale {
                        stale.push((device, Request::Remove(key)));
                    }
                    if before.get(&(vni, key)) != Some(&refusal) {
                        told += 1;
                        if told <= TOLD_MAX {
                            self.tell(&(vni, key), &refusal);
                        }
                    }
                    self.refused.insert((vni, key), refusal);
                }
            }
        }
        if told > TOLD_MAX {
            tracing::warn!(entries = told - TOLD_MAX, "the kernel refuses more entries");
        }
        self.netlink.change(&stale, |_, _| {})?;
        Ok(made)
    }

    /// Replaces entries of other hands by those of `steps`. One that the kernel refuses leaves the other as it is.
    fn displace(&mut self, steps: &[(u32, u32, Step)]) -> Result<()> {
        let displacing = steps.iter().filter(|(.., step)| step.displaces);
        let over: Vec<(u32, Request)> = displacing.map(|(_, device, step)| (*device, step.request)).collect();
        let mut refused = BTreeSet::new();
        self.netlink.change(&over, |at, _| {
            refused.insert(at);
        })?;
        // What was overwritten has not got the mark.
        let taken = over.into_iter().enumerate().filter(|(at, _)| !refused.contains(at));
        let anew: Vec<(u32, Request)> = taken
            .flat_map(|(_, (device, put))| [(device, Request::Remove(put.key())), (device, put)])
            .collect();
        self.netlink.change(&anew, |_, _| {})
    }

    /// Those of `before` that `steps` do not concern.
    fn still_refused(
        &self,
        before: &BTreeMap<Entry, Refusal>,
        steps: &[(u32, u32, Step)],
    ) -> BTreeMap<Entry, Refusal> {
        let mut still = before.clone();
        if !still.is_empty() {
            for (vni, _, step) in steps {
                still.remove(&(*vni, step.request.key()));
            }
        }
        still
    }

    fn tell(&self, entry: &Entry, refusal: &Refusal) {
        let rules = self.desired.rules_of(entry);
        let rule = rules.first().map(|(vni, ip)| format!("{vni}/{ip}")).unwrap_or_default();
        tracing::warn!(
            rule,
            rules = rules.len(),
            entry = %entry.1,
            device = self.names.of(entry.0),
            error = %refusal,
            "the kernel refuses an entry; correct the rule or the device"
        );
    }

    fn tell_conflicts(&self, touched: &Touched) {
        let contested = touched.keys().filter(|entry| self.desired.is_contested(entry));
        for entry in contested.take(TOLD_MAX) {
            let rules: Vec<String> =
                self.desired.rules_of(entry).iter().take(3).map(|(vni, ip)| format!("{vni}/{ip}")).collect();
            tracing::warn!(entry = %entry.1, vni = entry.0, ?rules, "rules contradict each other; the newest wins");
        }
    }

    /// Brings the numbers up to date.
    fn publish(&mut self) {
        if std::mem::take(&mut self.refusals_changed) {
            let stands =
                |entry: &Entry| self.devices.contains_key(&entry.0) && self.desired.value(entry).is_some();
            self.refused.retain(|entry, _| stands(entry));
            let rules: BTreeSet<_> =
                self.refused.keys().flat_map(|entry| self.desired.rules_of(entry)).collect();
            self.tables.refused = rules.len();
            let listed = self.refused.iter().take(LISTED_MAX);
            self.tables.refusals = listed.map(|(entry, refusal)| self.refusal(entry, refusal)).collect();
        }
        let unplaced = self.desired.rules_by_network().filter(|(vni, _)| !self.devices.contains_key(vni));
        let (without_mac, without_device) =
            (self.desired.without_mac(), unplaced.map(|(_, rules)| rules).sum());
        let tables = &mut self.tables;
        if (tables.without_mac, tables.without_device) != (without_mac, without_device)
            && without_mac + without_device > 0
        {
            tracing::warn!(without_mac, without_device, "skipped rules without a MAC address or a device");
        }
        tables.devices = self.devices.len();
        tables.without_mac = without_mac;
        tables.without_device = without_device;
        tables.conflicts = self.desired.conflicts();
        tables.in_effect = self.desired.rules() - tables.refused - without_mac - without_device;
        tables.behind = self.behind;
        self.board.lock().tables = Some(tables.clone());
    }

    fn refusal(&self, entry: &Entry, refusal: &Refusal) -> Refused {
        let rules = self.desired.rules_of(entry);
        Refused {
            rules: rules.iter().take(3).map(|(vni, ip)| format!("{vni}/{ip}")).collect(),
            device: self.names.of(entry.0),
            entry: entry.1.to_string(),
            error: refusal.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quoin_proto::quoin::route::v1 as pb;

    fn put(ip: &str) -> Change {
        let rule = pb::Rule { vni: 1, ip: ip.into(), revision: 1, ..pb::Rule::default() };
        Change::Put { rule, old: None }
    }

    /// A rule of a batch that failed stayed in the tables for ever if it was deleted before the batch came again:
    /// the copy did not hold it, so no difference took it away.
    #[test]
    fn what_the_copy_has_not_recorded_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let mut copy = Copy::open(folder.path(), &["g".to_owned()]).unwrap();
        copy.take(vec![put("10.0.0.1")], 1).unwrap();
        // There are no such devices, so nothing is written.
        let names = Names::new("no-such{vni}").unwrap();
        let netlink = Netlink::connect().unwrap();
        let mut reconciler = Reconciler::of(names, netlink, &copy, Board::default());
        reconciler.start().unwrap();
        let works = std::mem::replace(&mut reconciler.netlink, Netlink::broken());
        reconciler.compare(Why::Periodic).unwrap_err();
        reconciler.take(&[put("10.0.0.2")], 2, &copy).unwrap_err();
        assert_eq!(reconciler.desired.rules(), 2);
        reconciler.netlink = works;
        // A comparison in between does not make the failure forgotten.
        reconciler.compare(Why::Periodic).unwrap();
        reconciler.take(&[put("10.0.0.3")], 3, &copy).unwrap();
        assert_eq!(reconciler.desired.rules(), 2, "1 and 3");
        // The copy on disk has not recorded it.
        reconciler.take(&[], 4, &copy).unwrap();
        assert_eq!(reconciler.desired.rules(), 1);
    }
}
