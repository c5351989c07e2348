//! `quoin audit`: reads a node's audit trail again, on any machine that has the files.

use crate::outcome::refuse_with;
use crate::output;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use quoin_audit::{Known, Outcome, Record, files_in, records, verify};
use serde_json::{Map, json};
use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;

/// Commands on audit trails.
#[derive(Subcommand)]
pub(crate) enum Audit {
    /// Check that a trail is what was written: no record changed, taken out or put in; name the first that was
    Verify {
        #[command(flatten)]
        trail: Trail,
        /// A record whose hash was noted before, by which a trail that was written anew or cut off is found
        #[arg(long, value_name = "NUMBER:HASH", value_parser = known)]
        known: Vec<Known>,
    },
    /// Show records, the oldest first
    Show {
        #[command(flatten)]
        trail: Trail,
        /// Only records of this user
        #[arg(long)]
        user: Option<String>,
        /// Only records of acts that contain this text
        #[arg(long, value_name = "TEXT")]
        act: Option<String>,
        /// Only records of what was refused or failed
        #[arg(long)]
        refused: bool,
        /// Only the last N of them
        #[arg(long, value_name = "N", default_value_t = 1000)]
        last: usize,
    },
}

/// Where the records are.
#[derive(Args)]
pub(crate) struct Trail {
    /// Files of a trail in their order, or its folder (audit.folder)
    #[arg(required = true, value_name = "FILE|DIR")]
    places: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Trail {
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for place in &self.places {
            if place.is_dir() {
                files.extend(files_in(place).with_context(|| format!("reading {}", place.display()))?);
            } else {
                files.push(place.clone());
            }
        }
        ensure!(!files.is_empty(), "there is no file of an audit trail in {}", self.places[0].display());
        Ok(files)
    }
}

fn known(text: &str) -> Result<Known, String> {
    let (n, hash) = text.split_once(':').ok_or("must be NUMBER:HASH, as verify prints them")?;
    let n = n.parse().map_err(|_| format!("{n:?} is no number of a record"))?;
    Ok(Known { n, hash: hash.to_lowercase() })
}

/// Runs a command on audit trails.
pub(crate) fn run(audit: Audit) -> Result<()> {
    match audit {
        Audit::Verify { trail, known } => check(&trail, &known),
        Audit::Show { trail, user, act, refused, last } => {
            let wanted = |record: &Record| {
                user.as_ref().is_none_or(|user| record.user == *user)
                    && act.as_ref().is_none_or(|act| record.act.contains(&**act))
                    && (!refused || matches!(record.outcome, Outcome::Refused | Outcome::Failed))
            };
            show(&trail, wanted, last)
        }
    }
}

fn check(trail: &Trail, known: &[Known]) -> Result<()> {
    let report = match verify(&trail.files()?, known) {
        Ok(report) => report,
        Err(found) => {
            let mut details = Map::new();
            details.insert("file".into(), json!(found.file));
            details.insert("line".into(), json!(found.line));
            details.insert("problem".into(), json!(found.problem));
            return refuse_with(found.to_string(), String::new(), details);
        }
    };
    if trail.json {
        return output::json(&json!({
            "files": report.files, "records": report.records, "first": report.first, "last": report.last,
            "hash": report.hash, "from": report.times.0, "to": report.times.1, "lost": report.lost,
            "unfinished_bytes": report.unfinished_bytes,
        }));
    }
    let mut out = std::io::stdout();
    let (first, last) = (report.first, report.last);
    writeln!(
        out,
        "{} records in {} files are what was written: {first} to {last}",
        report.records, report.files
    )?;
    writeln!(out, "from {} to {}", report.times.0, report.times.1)?;
    if first > 1 {
        writeln!(out, "records before {first} are not there: older files were deleted, or not given")?;
    }
    if report.lost > 0 {
        writeln!(out, "the trail says that {} records were lost (audit.when_full)", report.lost)?;
    }
    if report.unfinished_bytes > 0 {
        writeln!(
            out,
            "the last {} bytes are no whole record: it is being written, or was when the node crashed",
            report.unfinished_bytes
        )?;
    }
    writeln!(out, "note this elsewhere, and give it as --known later: {last}:{}", report.hash)?;
    Ok(())
}

fn show(trail: &Trail, wanted: impl Fn(&Record) -> bool, last: usize) -> Result<()> {
    let mut found = VecDeque::new();
    for file in trail.files()? {
        let read = records(&file, |record| {
            if wanted(&record) {
                found.push_back(record);
            }
            if found.len() > last {
                found.pop_front();
            }
        });
        if let Err(broken) = read {
            tracing::warn!("{broken}; records behind it are not shown (see quoin audit verify)");
            break;
        }
    }
    if trail.json {
        let mut out = std::io::stdout();
        for record in found {
            writeln!(out, "{}", record.line())?;
        }
        return Ok(());
    }
    let rows: Vec<Vec<String>> = found.into_iter().map(row).collect();
    output::table(&["record", "time", "who", "from", "act", "about", "outcome"], &rows)?;
    Ok(())
}

fn row(record: Record) -> Vec<String> {
    let who = match (record.user, record.certificate) {
        (user, _) if !user.is_empty() => user,
        (_, certificate) if !certificate.is_empty() => format!("({certificate})"),
        _ => String::new(),
    };
    let about = record.about.iter().map(|(name, value)| format!("{name}={value}"));
    let outcome = serde_json::to_value(record.outcome).ok();
    let outcome = outcome.as_ref().and_then(|word| word.as_str()).unwrap_or_default().to_owned();
    let outcome = match record.outcome {
        Outcome::Done => outcome,
        _ => format!("{outcome} {}", record.code).trim_end().to_owned(),
    };
    let from = format!("{} {}", record.wire, record.address).trim().to_owned();
    let (n, about) = (record.n.to_string(), about.collect::<Vec<_>>().join(" "));
    vec![n, record.time, who, from, record.act, about, outcome]
}
