//! What a stopped node's data folder holds, whether it is damaged, and what to do. Nothing in it is changed.
//!
//! Log and store are read by the code of a start, which is kept from writing: what is said here is what a start
//! would find. What it deliberately does not do: repair. A replica's state is in its peers and in backups.

use crate::identity::Identity;
use quoin_consensus::GROUP;
use quoin_consensus::log::{self, Fit, Inspection, JoinError, LogError, LookOnly, Options, fit};
use quoin_core::{Progress, View, machines, system};
use quoin_library::LayerReport;
use quoin_store::Inspected;
use serde::Serialize;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// Where commands are explained.
const GUIDE: &str = "docs/operations.md#a-damaged-data-folder";

/// How far the examination is: what is being read, and of how many bytes how many were, as far as that is known.
pub type Watcher<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

/// What a data folder holds.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The folder.
    pub folder: String,
    /// Whether every file's bytes were read, besides those that a start reads.
    pub full: bool,
    /// Whether nothing is damaged.
    pub healthy: bool,
    /// Whom it belongs to, if that can be read.
    pub identity: Option<Whose>,
    /// Its log, if it has one and its owner is known.
    pub log: Option<LogReport>,
    /// Its store, if it can be opened.
    pub store: Option<StoreReport>,
    /// Its table files.
    pub tables: Vec<TableReport>,
    /// What is damaged.
    pub damage: Vec<Damage>,
    /// What is unusual, and mended by a start, or what an operator should know.
    pub notes: Vec<String>,
    /// What to do, in a sentence or two.
    pub advice: String,
}

/// `identity.json`.
#[derive(Debug, Serialize)]
pub struct Whose {
    /// The node's name.
    pub name: String,
    /// The member's id, in hexadecimal.
    pub member: String,
    /// The cluster's id, in hexadecimal.
    pub cluster: String,
    /// The disk, in hexadecimal.
    pub disk: String,
    /// `founder`, `restored` (a founder of a cluster that begins with a backup) or `joined`.
    pub origin: &'static str,
    /// Whether it has taken part in its cluster.
    pub settled: bool,
    /// The version of the folder's layout.
    pub layout: u32,
}

/// The log.
#[derive(Debug, Serialize)]
pub struct LogReport {
    /// The segments before the first damage.
    pub segments: Vec<Segment>,
    /// Their bytes.
    pub bytes: u64,
    /// The first entry that it has.
    pub first: u64,
    /// The last entry, and its term.
    pub last: u64,
    /// Its term.
    pub last_term: u64,
    /// The newest term that the member has seen; 0 for none.
    pub term: u64,
    /// The member that it voted for in that term, in hexadecimal, if any.
    pub vote: Option<String>,
    /// An entry known to be committed.
    pub commit: u64,
}

/// A segment of the log.
#[derive(Debug, Serialize)]
pub struct Segment {
    /// Its file's name.
    pub file: String,
    /// Its bytes.
    pub bytes: u64,
    /// Indexes of its first and last entry.
    pub entries: Option<[u64; 2]>,
    /// Their terms.
    pub terms: Option<[u64; 2]>,
}

/// The store.
#[derive(Debug, Serialize)]
pub struct StoreReport {
    /// Its folder.
    pub folder: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of its files.
    pub files: usize,
    /// The last entry whose effects are in it.
    pub applied: u64,
    /// The term of that entry.
    pub term: u64,
    /// The newest revision.
    pub revision: u64,
    /// Revisions up to this one are forgotten.
    pub compacted: u64,
    /// Names of the members that it knows.
    pub members: Vec<String>,
}

/// A layer of a lookup table.
#[derive(Debug, Serialize)]
pub struct TableReport {
    /// Its folder in `tables`.
    pub folder: String,
    /// The table's name.
    pub table: String,
    /// Bytes of its files.
    pub bytes: u64,
}

/// Something that is not what was written.
#[derive(Debug, Serialize)]
pub struct Damage {
    /// `identity`, `log`, `store` or `tables`.
    pub part: &'static str,
    /// The file, if one is known to be to blame.
    pub file: Option<String>,
    /// The offset in it, in bytes, if it is known.
    pub offset: Option<u64>,
    /// What is wrong, and what to do about it.
    pub problem: String,
}

/// Looks at a data folder. `full` reads every byte of store and tables.
///
/// # Errors
/// There is no data folder, a node runs in it, or it cannot be read.
pub fn examine(folder: &Path, full: bool, watch: Watcher<'_>) -> io::Result<Report> {
    let name = folder.display().to_string();
    let error = |kind, text: &str| io::Error::new(kind, format!("{name} {text}"));
    if !["identity.json", "log", "store"].iter().any(|part| folder.join(part).exists()) {
        return Err(error(io::ErrorKind::NotFound, "is no data folder: it has no identity, log or store"));
    }
    let disk = LookOnly::open(&folder.join("log")).map_err(|failed| match failed.kind() {
        io::ErrorKind::ResourceBusy => {
            error(failed.kind(), "is in use: stop the node that runs there, or ask it (quoin cluster status)")
        }
        _ => failed,
    })?;
    let mut report = Report { folder: name.clone(), full, ..Report::default() };
    let identity = report.identity(folder);
    watch("the log", 0, 0);
    // `disk` keeps the lock.
    let log = identity.map(|identity| (log::inspect(disk.clone(), owner(&identity), GROUP), identity));
    let log = log.and_then(|(log, identity)| report.log(folder, log, &identity));
    watch("the store", 0, 0);
    let progress = match quoin_store::inspect(&folder.join("store"), GROUP.0)? {
        Ok(store) => store.and_then(|store| report.store(&store, full, watch)),
        Err(problem) => {
            report.damaged("store", None, None, problem);
            None
        }
    };
    watch("the tables", 0, 0);
    report.tables(quoin_library::inspect(&folder.join("tables"), full)?);
    if let Some(log) = &log {
        report.joint(log, progress.unwrap_or_default());
    }
    report.healthy = report.damage.is_empty();
    report.advice = report.advise();
    Ok(report)
}

fn owner(identity: &Identity) -> Options {
    let Identity { cluster, id, disk, .. } = *identity;
    Options { cluster, node: id, disk, segment_bytes: 0, cache_bytes: 0 }
}

impl Report {
    fn damaged(&mut self, part: &'static str, file: Option<String>, offset: Option<u64>, problem: String) {
        self.damage.push(Damage { part, file, offset, problem });
    }

    fn identity(&mut self, folder: &Path) -> Option<Identity> {
        let file = Some(folder.join("identity.json").display().to_string());
        match Identity::read(folder) {
            Ok(Some(identity)) => {
                let restored = if identity.restored.is_empty() { "founder" } else { "restored" };
                self.identity = Some(Whose {
                    name: identity.name.clone(),
                    member: hexadecimal(identity.id),
                    cluster: hexadecimal(identity.cluster),
                    disk: hexadecimal(identity.disk),
                    origin: if identity.founder { restored } else { "joined" },
                    settled: identity.settled || identity.layout == 1,
                    layout: identity.layout,
                });
                return Some(identity);
            }
            Ok(None) => {
                self.damaged("identity", file, None, "it is gone, and the folder is not empty".into());
            }
            Err(error) => self.damaged("identity", file, None, error.to_string()),
        }
        None
    }

    fn log(&mut self, folder: &Path, log: Inspection, identity: &Identity) -> Option<log::Log> {
        let Inspection { segments, hard_state, range: [base, last], torn, log } = log;
        if let Some(torn) = torn {
            let log::Torn { file, offset, problem } = torn;
            self.notes.push(format!(
                "log/{file} has a torn tail at byte {offset} ({problem}): an append that a crash cut short. \
                 Nobody was told that it was done, and a start cuts it"
            ));
        }
        let state = hard_state.unwrap_or(log::HardState { term: 0, vote: 0, commit: 0 });
        let segment = |segment: log::SegmentReport| Segment {
            file: segment.file,
            bytes: segment.bytes,
            entries: segment.entries.map(|ends| ends.map(|(index, _)| index)),
            terms: segment.entries.map(|ends| ends.map(|(_, term)| term)),
        };
        let bytes = segments.iter().map(|segment| segment.bytes).sum();
        self.log = Some(LogReport {
            segments: segments.into_iter().map(segment).collect(),
            bytes,
            first: base.0 + 1,
            last: last.0,
            last_term: last.1,
            term: state.term,
            vote: (state.vote != 0).then(|| hexadecimal(state.vote)),
            commit: state.commit,
        });
        match log {
            Ok(_) if identity.settled && hard_state.is_none() => {
                self.damaged(
                    "log",
                    None,
                    None,
                    "it is gone, with what this member voted and acknowledged".into(),
                );
            }
            Ok(log) => return Some(log),
            Err(LogError::Corrupt { file, offset, problem }) => {
                let file = folder.join("log").join(file).display().to_string();
                let problem = format!("{problem}. These bytes were synced, and have changed since");
                self.damaged("log", Some(file), Some(offset), problem);
            }
            Err(error) => self.damaged("log", None, None, error.to_string()),
        }
        None
    }

    fn store(&mut self, found: &Inspected, full: bool, watch: Watcher<'_>) -> Option<Progress> {
        let store = found.store();
        let read = machines::read_progress(store)
            .and_then(|progress| Ok((progress, system::members(View::new(store, progress.sequence))?)));
        let (progress, members) = match read {
            Ok(read) => read,
            Err(error) => {
                self.damaged("store", None, None, found.explain(&error));
                self.verify(found, watch);
                return None;
            }
        };
        self.notes.extend(members.iter().filter_map(open_to_all));
        let stats = store.stats();
        self.store = Some(StoreReport {
            folder: found.folder().display().to_string(),
            bytes: stats.disk_bytes,
            files: stats.tables,
            applied: progress.index.0,
            term: progress.term.0,
            revision: progress.revision.0,
            compacted: progress.compacted.0,
            members: members.iter().map(system::Member::label).collect(),
        });
        if full {
            self.verify(found, watch);
        }
        Some(progress)
    }

    fn verify(&mut self, found: &Inspected, watch: Watcher<'_>) {
        for problem in found.verify(&mut |done, total| watch("the store", done, total)) {
            self.damaged("store", None, None, problem);
        }
    }

    fn tables(&mut self, layers: Vec<LayerReport>) {
        for LayerReport { folder, table, bytes, problem } in layers {
            if let Some(problem) = problem {
                self.damaged("tables", None, None, problem);
            }
            self.tables.push(TableReport { folder, table, bytes });
        }
    }

    /// Compares log and store as a start does.
    fn joint(&mut self, log: &log::Log, progress: Progress) {
        let (index, term) = (progress.index.0, progress.term.0);
        match fit(log, GROUP, index, term) {
            Ok(Fit::Joined) => {}
            Ok(Fit::Restarts) => self.notes.push(format!(
                "the store is at entry {index}, and the log does not have it: as after a snapshot was received \
                 and before the log heard of it. A start lets the log begin there"
            )),
            Err(JoinError::Log(_)) => {}
            Err(error) => self.damaged("log", None, None, error.to_string()),
        }
    }

    fn advise(&self) -> String {
        let worst = self.damage.iter().find(|damage| damage.part != "tables");
        let Some(worst) = worst else {
            return if self.damage.is_empty() {
                "Nothing is to be done: start the node with its settings.".into()
            } else {
                "Start the node with its settings: it fetches the damaged tables again from where they were \
                 published."
                    .into()
            };
        };
        let alone = self.store.as_ref().is_some_and(|store| store.members.len() == 1);
        if alone {
            return format!("It is the only member: restore a backup into another folder. See {GUIDE}.");
        }
        let name = self.identity.as_ref().map_or("NAME", |identity| &identity.name);
        let first = match worst.part {
            "identity" => "If the file was only moved, put it back. If not, replace",
            _ => "Replace",
        };
        format!(
            "{first} this member while a majority of the others runs: quoin doctor {} --rebuild --endpoints \
             HOST:PORT,... does what quoin cluster remove {name} and adding it anew do. If it is the only member, \
             restore a backup. See {GUIDE}.",
            self.folder
        )
    }
}

fn hexadecimal(number: u64) -> String {
    format!("{number:016x}")
}

/// Says that clients reach a member without TLS from other machines.
fn open_to_all(member: &system::Member) -> Option<String> {
    let url = member.client_urls.iter().find(|url| {
        let address = url.strip_prefix("http://");
        let host = address.and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
        host.is_some_and(|host| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        })
    })?;
    let name = member.label();
    Some(format!(
        "clients reach {name} at {url}, without TLS: whoever reaches it can read and change everything (docs/security.md)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_reached_without_tls_from_elsewhere_is_named() {
        let reached = |url: &str| {
            let member =
                system::Member { name: "n1".into(), client_urls: vec![url.into()], ..Default::default() };
            open_to_all(&member)
        };
        for closed in
            ["http://127.0.0.1:2379", "http://[::1]:2379", "http://localhost:1", "https://db.example:2379"]
        {
            assert_eq!(reached(closed), None);
        }
        assert!(reached("http://10.0.0.1:2379").unwrap().contains("10.0.0.1"));
        assert!(reached("http://db.example:2379").is_some());
    }
}
