//! An agent's copy of its rules on disk, so that after a restart it fetches only what changed meanwhile.
//!
//! It is one file of JSON lines, which people can read and write too: `{"put": RULE}`,
//! `{"delete": {"vni", "ip"}}`, and `{"revision": N}` after each batch. Lines after the last revision belong
//! to a batch that was cut off, and are dropped. The file is rewritten when most of its lines are obsolete.

use super::text::RuleText;
use anyhow::{Context, Result, bail};
use quoin_proto::quoin::route::v1 as pb;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

const FILE: &str = "rules.jsonl";
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
}

/// A copy of rules.
pub(super) struct Copy {
    folder: PathBuf,
    groups: Vec<String>,
    rules: BTreeMap<Key, pb::Rule>,
    /// The copy is complete up to this revision; 0 means empty.
    revision: i64,
    file: BufWriter<File>,
    lines: usize,
}

impl Copy {
    /// Opens the copy in `folder`, or starts one.
    ///
    /// # Errors
    /// The folder cannot be read or written, or holds a copy of other groups.
    pub(super) fn open(folder: &Path, groups: &[String]) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let path = folder.join(FILE);
        let (rules, revision) = if path.exists() { read(&path, groups)? } else { (BTreeMap::new(), 0) };
        let mut copy = Self {
            folder: folder.to_owned(),
            groups: groups.to_vec(),
            rules,
            revision,
            file: BufWriter::new(OpenOptions::new().create(true).append(true).open(&path)?),
            lines: 0,
        };
        copy.rewrite()?;
        Ok(copy)
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
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

    /// The changes of `events`, without deletions of unknown rules.
    pub(super) fn changes(&self, events: Vec<pb::Event>) -> Vec<Change> {
        let change = |event: pb::Event| match event.change {
            Some(pb::event::Change::Put(rule)) => {
                let old = self.rules.get(&(rule.vni, rule.ip.clone())).cloned();
                Some(Change::Put { rule, old })
            }
            Some(pb::event::Change::Deleted(pb::RuleKey { vni, ip })) => {
                let key = (vni, ip);
                let rule = self.rules.get(&key)?.clone();
                Some(Change::Delete { key, rule })
            }
            _ => None,
        };
        events.into_iter().filter_map(change).collect()
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
        serde_json::to_writer(&mut self.file, line)?;
        self.file.write_all(b"\n")?;
        Ok(())
    }

    /// Rewrites the file. The old one is replaced once the new one is on disk.
    fn rewrite(&mut self) -> Result<()> {
        let new = self.folder.join(REWRITTEN);
        self.file = BufWriter::new(File::create(&new).with_context(|| format!("writing {}", new.display()))?);
        self.line(&Line::Groups(self.groups.clone()))?;
        let rules: Vec<RuleText> = self.rules.values().map(RuleText::of).collect();
        self.lines = rules.len() + 2;
        for rule in rules {
            self.line(&Line::Put(rule))?;
        }
        self.line(&Line::Revision(self.revision))?;
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        std::fs::rename(&new, self.folder.join(FILE))?;
        Ok(())
    }
}

fn read(path: &Path, groups: &[String]) -> Result<(BTreeMap<Key, pb::Rule>, i64)> {
    let mut rules = BTreeMap::new();
    let (mut revision, mut pending) = (0, Vec::new());
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
                    apply(line, &mut rules)?;
                }
                revision = finished;
            }
            other => pending.push(other),
        }
    }
    Ok((rules, revision))
}

fn apply(line: Line, rules: &mut BTreeMap<Key, pb::Rule>) -> Result<()> {
    match line {
        Line::Put(rule) => {
            let rule = rule.into_rule()?;
            rules.insert((rule.vni, rule.ip.clone()), rule);
        }
        Line::Delete { vni, ip } => {
            rules.remove(&(vni, ip));
        }
        Line::Revision(_) | Line::Groups(_) => {}
    }
    Ok(())
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
                5 => assert_eq!(keys, ["a", "b"], "cut at {cut}"),
                revision => assert_eq!((revision, keys), (7, vec!["b", "c"]), "cut at {cut}"),
            }
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(Copy::open(folder.path(), &groups()).unwrap().revision(), 7);
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
