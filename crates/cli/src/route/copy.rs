//! An agent's copy of its rules on disk, so that after a restart it fetches only what changed meanwhile.
//!
//! It is one file of JSON lines, which people can read and write too: `{"put": RULE}`,
//! `{"delete": {"vni", "ip"}}`, and `{"revision": N}` after each batch; before them the groups of the copy, and the
//! cluster whose revisions these are. Lines after the last revision belong to a batch that was cut off, and are dropped. The file is rewritten when most of its lines are obsolete.

use super::text::RuleText;
use anyhow::{Context, Result, bail};
use quoin_proto::quoin::route::v1 as pb;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

const FILE: &str = "rules.jsonl";
const LOCK: &str = "LOCK";
const REWRITTEN: &str = "rules.jsonl.new";
/// Obsolete lines that a file may have beyond twice its rules before it is rewritten.
const OBSOLETE_LINES_MAX: usize = 10_000;

/// VNI and IP.
pub(super) type Key = (u32, String);

/// A change of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Put { rule: pb::Rule, old: Option<pb::Rule> },
    Delete { key: Key, rule: pb::Rule },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Put(RuleText),
    Delete {
        vni: u32,
        ip: String,
    },
    Revision(i64),
    /// The first line: the groups of the copy. An agent refuses a copy of other groups.
    Groups(Vec<String>),
    /// The cluster whose revisions those that follow are.
    Cluster(u64),
}

/// A copy of rules.
pub(super) struct Copy {
    folder: PathBuf,
    groups: Vec<String>,
    rules: BTreeMap<Key, pb::Rule>,
    /// The copy is complete up to this revision; 0 means that nothing is known of it.
    revision: i64,
    /// The cluster whose revision this is; 0 if that is not known.
    cluster: u64,
    file: BufWriter<File>,
    lines: usize,
    /// Kept for as long as the copy is open.
    _lock: File,
}

impl Copy {
    /// Opens the copy in `folder`, or starts one.
    ///
    /// # Errors
    /// The folder cannot be read or written, or holds a copy of other groups.
    pub(super) fn open(folder: &Path, groups: &[String]) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let lock =
            File::create(folder.join(LOCK)).with_context(|| format!("writing {}", folder.display()))?;
        lock.try_lock().with_context(|| {
            format!("{} is in use by another agent; give each its own --dir", folder.display())
        })?;
        let path = folder.join(FILE);
        let Found { rules, revision, cluster } =
            if path.exists() { read(&path, groups)? } else { Found::default() };
        let mut copy = Self {
            folder: folder.to_owned(),
            groups: groups.to_vec(),
            rules,
            revision,
            cluster,
            _lock: lock,
            file: BufWriter::new(OpenOptions::new().create(true).append(true).open(&path)?),
            lines: 0,
        };
        copy.rewrite()?;
        Ok(copy)
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn cluster(&self) -> u64 {
        self.cluster
    }

    /// The revisions that follow are of `cluster`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn set_cluster(&mut self, cluster: u64) -> Result<()> {
        if std::mem::replace(&mut self.cluster, cluster) == cluster {
            return Ok(());
        }
        self.lines += 1;
        self.line(&Line::Cluster(cluster))
    }

    /// The revision means nothing any more, nor the cluster that it was of: the rules are kept until they are
    /// compared with all that there are.
    pub(super) fn forget_revision(&mut self) {
        (self.revision, self.cluster) = (0, 0);
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = &pb::Rule> {
        self.rules.values()
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// The changes after which this copy holds exactly `rules`.
    pub(super) fn difference(&self, rules: &BTreeMap<Key, pb::Rule>) -> Vec<Change> {
        let gone = self.rules.iter().filter(|(key, _)| !rules.contains_key(*key));
        let gone = gone.map(|(key, rule)| Change::Delete { key: key.clone(), rule: rule.clone() });
        let new = rules.iter().filter(|(key, rule)| self.rules.get(*key) != Some(*rule));
        let put = |(key, rule): (&Key, &pb::Rule)| Change::Put {
            rule: rule.clone(),
            old: self.rules.get(key).cloned(),
        };
        gone.chain(new.map(put)).collect()
    }

    /// The changes of `events`, each upon the one before it, without deletions of rules that are not there.
    pub(super) fn changes(&self, events: Vec<pb::Event>) -> Vec<Change> {
        let mut changed: BTreeMap<Key, Option<pb::Rule>> = BTreeMap::new();
        let mut change = |event: pb::Event| {
            let (key, new) = match event.change? {
                pb::event::Change::Put(rule) => ((rule.vni, rule.ip.clone()), Some(rule)),
                pb::event::Change::Deleted(pb::RuleKey { vni, ip }) => ((vni, ip), None),
                _ => return None,
            };
            let old = match changed.insert(key.clone(), new.clone()) {
                Some(old) => old,
                None => self.rules.get(&key).cloned(),
            };
            match new {
                Some(rule) => Some(Change::Put { rule, old }),
                None => Some(Change::Delete { key, rule: old? }),
            }
        };
        events.into_iter().filter_map(&mut change).collect()
    }

    /// Records `changes`, in memory and in the file; afterwards the copy is complete up to `revision`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn take(&mut self, changes: Vec<Change>, revision: i64) -> Result<()> {
        self.lines += changes.len() + 1;
        for change in changes {
            match change {
                Change::Put { rule, .. } => {
                    self.line(&Line::Put(RuleText::of(&rule)))?;
                    self.rules.insert((rule.vni, rule.ip.clone()), rule);
                }
                Change::Delete { key, .. } => {
                    self.line(&Line::Delete { vni: key.0, ip: key.1.clone() })?;
                    self.rules.remove(&key);
                }
            }
        }
        self.revision = revision;
        self.line(&Line::Revision(revision))?;
        self.file.flush()?;
        if self.lines > 2 * self.rules.len() + OBSOLETE_LINES_MAX { self.rewrite() } else { Ok(()) }
    }

    fn line(&mut self, line: &Line) -> Result<()> {
        write(&mut self.file, line)
    }

    /// Rewrites the file. The old one is replaced once the new one is on disk.
    fn rewrite(&mut self) -> Result<()> {
        let new = self.folder.join(REWRITTEN);
        let file = File::create(&new).with_context(|| format!("writing {}", new.display()))?;
        let mut file = BufWriter::new(file);
        write(&mut file, &Line::Groups(self.groups.clone()))?;
        write(&mut file, &Line::Cluster(self.cluster))?;
        for rule in self.rules.values() {
            write(&mut file, &Line::Put(RuleText::of(rule)))?;
        }
        write(&mut file, &Line::Revision(self.revision))?;
        file.flush()?;
        file.get_ref().sync_all()?;
        let path = self.folder.join(FILE);
        std::fs::rename(&new, &path).with_context(|| format!("replacing {}", path.display()))?;
        // Until here batches go to the old file.
        self.file = file;
        self.lines = self.rules.len() + 3;
        Ok(File::open(&self.folder)?.sync_all()?)
    }
}

fn write(file: &mut BufWriter<File>, line: &Line) -> Result<()> {
    serde_json::to_writer(&mut *file, line)?;
    Ok(file.write_all(b"\n")?)
}

/// What a file holds.
#[derive(Default)]
struct Found {
    rules: BTreeMap<Key, pb::Rule>,
    revision: i64,
    cluster: u64,
}

fn read(path: &Path, groups: &[String]) -> Result<Found> {
    let (mut found, mut pending) = (Found::default(), Vec::new());
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        let Ok(line) = serde_json::from_slice::<Line>(&line?) else {
            // The line was cut off, so its batch was not finished.
            break;
        };
        match line {
            Line::Groups(of) if of != groups => bail!(
                "{} is a copy of the groups {of:?}, not of {groups:?}; give another --dir, or delete it",
                path.display()
            ),
            Line::Groups(_) => {}
            Line::Revision(finished) => {
                for line in pending.drain(..) {
                    found.apply(line)?;
                }
                found.revision = finished;
            }
            other => pending.push(other),
        }
    }
    Ok(found)
}

impl Found {
    fn apply(&mut self, line: Line) -> Result<()> {
        match line {
            Line::Put(rule) => {
                let rule = rule.into_rule()?;
                self.rules.insert((rule.vni, rule.ip.clone()), rule);
            }
            Line::Delete { vni, ip } => {
                self.rules.remove(&(vni, ip));
            }
            Line::Cluster(cluster) => self.cluster = cluster,
            Line::Revision(_) | Line::Groups(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(ip: &str, data: &str) -> pb::Rule {
        pb::Rule { vni: 1, ip: ip.into(), user_data: data.to_owned().into(), ..pb::Rule::default() }
    }

    fn put(ip: &str, data: &str) -> Change {
        Change::Put { rule: rule(ip, data), old: None }
    }

    fn groups() -> Vec<String> {
        vec!["g".to_owned()]
    }

    #[test]
    fn a_reopened_copy_is_the_same_without_a_batch_that_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let mut copy = Copy::open(folder.path(), &groups()).unwrap();
        copy.take(vec![put("a", "1"), put("b", "1")], 5).unwrap();
        let delete = Change::Delete { key: (1, "a".into()), rule: rule("a", "1") };
        copy.set_cluster(9).unwrap();
        copy.take(vec![delete, put("c", "1")], 7).unwrap();
        drop(copy);
        let path = folder.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let copy = Copy::open(folder.path(), &groups()).unwrap();
            let keys: Vec<&str> = copy.rules.keys().map(|(_, ip)| ip.as_str()).collect();
            match copy.revision() {
                0 => assert!(keys.is_empty(), "cut at {cut}"),
                5 => assert_eq!((keys, copy.cluster()), (vec!["a", "b"], 0), "cut at {cut}"),
                revision => {
                    assert_eq!((revision, keys, copy.cluster()), (7, vec!["b", "c"], 9), "cut at {cut}");
                }
            }
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(Copy::open(folder.path(), &groups()).unwrap().revision(), 7);
    }

    fn event(change: pb::event::Change) -> pb::Event {
        pb::Event { revision: 0, change: Some(change) }
    }

    fn deleted(ip: &str) -> pb::Event {
        event(pb::event::Change::Deleted(pb::RuleKey { vni: 1, ip: ip.into() }))
    }

    /// A rule that one message brought and took away again stayed in the copy.
    #[test]
    fn the_events_of_a_message_follow_one_another() {
        let folder = tempfile::tempdir().unwrap();
        let mut copy = Copy::open(folder.path(), &groups()).unwrap();
        copy.take(vec![put("b", "1")], 5).unwrap();
        let written = |ip, data| event(pb::event::Change::Put(rule(ip, data)));
        let changes = copy.changes(vec![
            written("a", "1"),
            deleted("a"),
            deleted("a"),
            written("b", "2"),
            written("b", "3"),
            deleted("c"),
        ]);
        let delete = |ip: &str, data| Change::Delete { key: (1, ip.into()), rule: rule(ip, data) };
        let replace = |old, new| Change::Put { rule: rule("b", new), old: Some(rule("b", old)) };
        assert_eq!(changes, [put("a", "1"), delete("a", "1"), replace("1", "2"), replace("2", "3")]);
        copy.take(changes, 6).unwrap();
        assert_eq!(copy.rules.keys().map(|(_, ip)| ip.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    /// Two agents wrote into one file in turns.
    #[test]
    fn a_folder_that_another_agent_uses_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let first = Copy::open(folder.path(), &groups()).unwrap();
        let error = Copy::open(folder.path(), &groups()).err().unwrap().to_string();
        assert!(error.contains("another agent") && error.contains("--dir"), "{error}");
        drop(first);
        Copy::open(folder.path(), &groups()).unwrap();
    }

    #[test]
    fn a_copy_of_other_groups_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        drop(Copy::open(folder.path(), &groups()).unwrap());
        let error = Copy::open(folder.path(), &["other".to_owned()]).err().unwrap();
        assert!(error.to_string().contains("other"), "{error}");
    }

    #[test]
    fn the_file_stays_small_while_a_few_rules_change_often() {
        let folder = tempfile::tempdir().unwrap();
        let mut copy = Copy::open(folder.path(), &groups()).unwrap();
        for revision in 1..=20_000 {
            copy.take(vec![put("a", &revision.to_string())], revision).unwrap();
        }
        let lines = std::fs::read_to_string(folder.path().join(FILE)).unwrap().lines().count();
        assert!(lines <= OBSOLETE_LINES_MAX + 10, "{lines} lines");
    }

    /// Every later attempt named the old cluster, and was refused.
    #[test]
    fn a_forgotten_revision_takes_its_cluster_along() {
        let folder = tempfile::tempdir().unwrap();
        let mut copy = Copy::open(folder.path(), &groups()).unwrap();
        copy.set_cluster(9).unwrap();
        copy.take(vec![put("a", "1")], 5).unwrap();
        copy.forget_revision();
        assert_eq!((copy.revision(), copy.cluster(), copy.len()), (0, 0, 1));
        copy.set_cluster(8).unwrap();
        copy.take(vec![put("b", "1")], 3).unwrap();
        drop(copy);
        let copy = Copy::open(folder.path(), &groups()).unwrap();
        assert_eq!((copy.revision(), copy.cluster(), copy.len()), (3, 8, 2));
    }

    /// After a rewrite that had failed, batches went to a file that nobody reads.
    #[test]
    fn batches_after_a_failed_rewrite_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut copy = Copy::open(folder.path(), &groups()).unwrap();
        // Fails at its end, as the rename does.
        let elsewhere = folder.path().join("elsewhere");
        std::fs::rename(folder.path().join(FILE), &elsewhere).unwrap();
        std::fs::create_dir(folder.path().join(FILE)).unwrap();
        copy.rewrite().unwrap_err();
        std::fs::remove_dir(folder.path().join(FILE)).unwrap();
        std::fs::rename(&elsewhere, folder.path().join(FILE)).unwrap();
        copy.take(vec![put("a", "1")], 5).unwrap();
        // Fails at its beginning.
        let new = folder.path().join(REWRITTEN);
        std::fs::remove_file(&new).unwrap();
        std::fs::create_dir(&new).unwrap();
        copy.rewrite().unwrap_err();
        std::fs::remove_dir(&new).unwrap();
        copy.take(vec![put("b", "1")], 6).unwrap();
        drop(copy);
        let copy = Copy::open(folder.path(), &groups()).unwrap();
        assert_eq!((copy.revision(), copy.len()), (6, 2));
    }

    #[test]
    fn a_snapshot_becomes_the_changes_that_lead_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut copy = Copy::open(folder.path(), &groups()).unwrap();
        copy.take(["a", "b", "c"].map(|ip| put(ip, "1")).to_vec(), 5).unwrap();
        let wanted =
            ["b", "c", "d"].map(|ip| ((1, ip.to_owned()), rule(ip, if ip == "c" { "2" } else { "1" })));
        let changes = copy.difference(&wanted.into());
        let delete = Change::Delete { key: (1, "a".into()), rule: rule("a", "1") };
        let changed = Change::Put { rule: rule("c", "2"), old: Some(rule("c", "1")) };
        assert_eq!(changes, [delete, changed, put("d", "1")]);
    }
}
