//! `quoin doctor`: what a stopped node's data folder holds, what is damaged, and what to do.

use crate::connection::Connection;
use crate::rebuild::rebuild;
use crate::{outcome, output};
use anyhow::Result;
use clap::Args;
use parking_lot::Mutex;
use quoin_node::doctor::{LogReport, Report, StoreReport, examine};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How often is told how far it is.
const PERIOD: Duration = Duration::from_secs(1);

/// The data folder to look at.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Data folder of a node that does not run
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Read every byte of the store and of the tables, too
    #[arg(long)]
    full: bool,
    /// Replace the member, if its folder is damaged: remove it from the cluster at --endpoints, move the folder
    /// aside, add a new member in its place, and say how to start that
    #[arg(long)]
    rebuild: bool,
    /// Where the other replicas reach the new member, if the old one was removed already
    #[arg(long, value_name = "HOST:PORT", requires = "rebuild")]
    peer: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Examines the folder. Damage is a refusal.
pub(crate) async fn run(doctor: Doctor) -> Result<ExitCode> {
    let progress = Progress::start();
    let Doctor { folder, full, rebuild: replace, peer, connection } = doctor;
    let watch = &mut |part, done, total| progress.set(part, done, total);
    let report = examine(&folder, full, watch);
    progress.end();
    let report = report?;
    if replace {
        return rebuild(&folder, &report, peer.as_deref(), &connection).await;
    }
    if connection.json {
        output::json(&report)?
    } else {
        show(&report)?
    }
    Ok(if report.healthy { ExitCode::SUCCESS } else { ExitCode::from(outcome::REFUSED) })
}

fn show(report: &Report) -> Result<()> {
    let mut rows = vec![("folder", report.folder.clone())];
    if let Some(whose) = &report.identity {
        let part = if whose.settled { "" } else { ", has not taken part yet" };
        rows.push(("node", format!("{}, {}{part}, layout {}", whose.name, whose.origin, whose.layout)));
        rows.push(("member", format!("{} of cluster {}, disk {}", whose.member, whose.cluster, whose.disk)));
    }
    rows.extend(report.log.iter().flat_map(log_rows));
    rows.extend(report.store.iter().flat_map(store_rows));
    for table in &report.tables {
        rows.push(("table", format!("{} {}, {} bytes", table.folder, table.table, table.bytes)));
    }
    let checked = match (report.healthy, report.full) {
        (false, _) => "damaged",
        (true, true) => "whole: every byte was read",
        (true, false) => "whole, as far as a start reads; --full reads every byte of store and tables",
    };
    rows.push(("state", checked.into()));
    let rows: Vec<_> = rows.into_iter().map(|(what, text)| vec![what.into(), text]).collect();
    output::table(&["what", "value"], &rows)?;
    let mut out = std::io::stdout().lock();
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    for damage in &report.damage {
        let place = damage.file.as_ref().map_or_else(String::new, |file| match damage.offset {
            Some(offset) => format!("{file} at byte {offset}: "),
            None => format!("{file}: "),
        });
        writeln!(out, "damaged {}: {place}{}", damage.part, damage.problem)?;
    }
    Ok(writeln!(out, "what to do: {}", report.advice)?)
}

fn log_rows(log: &LogReport) -> Vec<(&'static str, String)> {
    let entries = match log.last.checked_sub(log.first) {
        Some(_) => format!("entries {} to {}, of term {}", log.first, log.last, log.last_term),
        None => format!("no entries, begins after {}", log.last),
    };
    let vote = log.vote.as_ref().map_or_else(|| "no vote".into(), |vote| format!("vote for {vote}"));
    let mut rows = vec![
        ("log", format!("{entries}; {} segments, {} bytes", log.segments.len(), log.bytes)),
        ("hard state", format!("term {}, {vote}, commit {}", log.term, log.commit)),
    ];
    for segment in &log.segments {
        let entries = match (segment.entries, segment.terms) {
            (Some([first, last]), Some([from, to])) => {
                format!("entries {first} to {last}, terms {from} to {to}")
            }
            _ => "no entries".into(),
        };
        rows.push(("segment", format!("{} {entries}, {} bytes", segment.file, segment.bytes)));
    }
    rows
}

fn store_rows(store: &StoreReport) -> Vec<(&'static str, String)> {
    let StoreReport { folder, bytes, files, applied, term, revision, compacted, members } = store;
    vec![
        ("store", format!("{folder}: {files} files, {bytes} bytes")),
        ("applied", format!("entry {applied} of term {term}, revision {revision}, compacted {compacted}")),
        ("members", members.join(", ")),
    ]
}

/// Says once a second on standard error what is being read.
struct Progress {
    state: Arc<Mutex<(&'static str, u64, u64)>>,
    alive: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Progress {
    fn start() -> Self {
        let state = Arc::new(Mutex::new(("", 0, 0)));
        let (alive, stopped) = mpsc::channel();
        let shown = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let terminal = std::io::stderr().is_terminal();
            let mut said = false;
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let (part, done, total) = *shown.lock();
                let line = match u64::checked_div(done * 100, total) {
                    Some(percent) => format!("reading {part}: {percent}% of {total} bytes"),
                    None => format!("reading {part}"),
                };
                // An error means that nobody reads standard error.
                let mut out = std::io::stderr();
                let _ = if terminal { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
                said = true;
            }
            if said && terminal {
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
        });
        Self { state, alive, thread }
    }

    fn set(&self, part: &'static str, done: u64, total: u64) {
        *self.state.lock() = (part, done, total);
    }

    fn end(self) {
        drop(self.alive);
        // It only prints.
        let _ = self.thread.join();
    }
}
