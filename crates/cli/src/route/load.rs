//! `quoin route load`: a file of rules over one `PutStream`. The file is read no faster than the rules are
//! written.

use super::client::client;
use super::text::RuleText;
use crate::connection::Connection;
use crate::outcome::Write as _;
use crate::output;
use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use quoin_proto::quoin::route::v1 as pb;
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Maximum messages that wait for the server; reading pauses beyond.
const MESSAGES_MAX: usize = 4;
/// Interval between updates of the progress line.
const SHOWN_EVERY: Duration = Duration::from_millis(250);

/// A file of rules.
#[derive(Args)]
pub(crate) struct Load {
    /// CSV with a header line (vni,ip,mac,host_ip,host_mac,group,user_data), as `GET /v1/rules` sends it, or JSON lines; - is
    /// standard input
    file: PathBuf,
    /// Format of the file [default: by its name: .csv, .json, .jsonl or .ndjson]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Rules per message; they are written at one revision
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    batch: u32,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Csv,
    Jsonl,
}

/// Writes the file.
pub(super) async fn run(load: Load) -> Result<ExitCode> {
    let format = load.format.map_or_else(|| format_of(&load.file), Ok)?;
    let begun = Instant::now();
    let mut routes = client(load.connection.unbounded().any().await?);
    let (messages, outgoing) = mpsc::channel(MESSAGES_MAX);
    let (file, batch) = (load.file.clone(), load.batch as usize);
    let reading = tokio::task::spawn_blocking(move || read(&file, format, batch, &messages));
    let done = routes.put_stream(ReceiverStream::new(outgoing)).await.or_send_again();
    let read = reading.await?;
    if read.as_ref().is_err_and(|error| error.is::<Ended>()) {
        // It says why.
        done?;
        return read.map(|()| ExitCode::SUCCESS);
    }
    // An error of the file explains more than the server's error about the cut stream.
    read?;
    let done = done?.into_inner();
    let took = begun.elapsed();
    if load.connection.json {
        output::json(
            &json!({ "rules": done.rules, "revision": done.revision, "seconds": took.as_secs_f64() }),
        )?;
    } else {
        let rate = done.rules as f64 / took.as_secs_f64();
        let (rules, revision) = (done.rules, done.revision);
        writeln!(
            std::io::stdout(),
            "{rules} rules written in {:.2} s, {rate:.0} per second; the last at revision {revision}",
            took.as_secs_f64()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn format_of(file: &Path) -> Result<Format> {
    match file.extension().and_then(|end| end.to_str()) {
        Some("csv") => Ok(Format::Csv),
        Some("json" | "jsonl" | "ndjson") => Ok(Format::Jsonl),
        _ => {
            Err(anyhow!("{}: its name does not tell the format; give --format csv or jsonl", file.display()))
        }
    }
}

fn read(file: &Path, format: Format, batch: usize, messages: &mpsc::Sender<pb::PutRequest>) -> Result<()> {
    let (open, bytes): (Box<dyn Read>, u64) = if file == Path::new("-") {
        (Box::new(stdin()), 0)
    } else {
        let open = File::open(file).with_context(|| format!("opening {}", file.display()))?;
        let bytes = open.metadata()?.len();
        (Box::new(open), bytes)
    };
    let mut batches = Batches { batch, messages, rules: Vec::with_capacity(batch), shown: Shown::new(bytes) };
    match format {
        Format::Csv => {
            let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(BufReader::new(open));
            let mut rows = reader.deserialize::<RuleText>();
            while let Some(row) = rows.next() {
                let at = rows.reader().position().byte();
                batches.add(row.with_context(|| file.display().to_string())?.into_rule()?, at)?;
            }
        }
        Format::Jsonl => {
            let mut at = 0;
            for (number, line) in BufReader::new(open).lines().enumerate() {
                let line = line.with_context(|| format!("reading {}", file.display()))?;
                at += line.len() as u64 + 1;
                if line.trim().is_empty() {
                    continue;
                }
                let place = || format!("{} line {}", file.display(), number + 1);
                let rule: RuleText = serde_json::from_str(&line).with_context(place)?;
                batches.add(rule.into_rule().with_context(place)?, at)?;
            }
        }
    }
    batches.send()?;
    batches.shown.end()
}

struct Batches<'a> {
    batch: usize,
    messages: &'a mpsc::Sender<pb::PutRequest>,
    rules: Vec<pb::Rule>,
    shown: Shown,
}

impl Batches<'_> {
    fn add(&mut self, rule: pb::Rule, at: u64) -> Result<()> {
        self.rules.push(rule);
        if self.rules.len() == self.batch {
            self.send()?;
            self.shown.at(at)?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        if self.rules.is_empty() {
            return Ok(());
        }
        let rules = std::mem::replace(&mut self.rules, Vec::with_capacity(self.batch));
        let sent = self.messages.blocking_send(pb::PutRequest { rules, each_for_itself: false });
        Ok(sent.map_err(|_| Ended)?)
    }
}

/// The server has ended the call. The rest of the file matters no more.
#[derive(Debug, thiserror::Error)]
#[error("the server ended the call")]
struct Ended;

/// Progress, shown on a terminal.
struct Shown {
    /// 0 if nobody knows how many there are.
    bytes: u64,
    begun: Instant,
    last: Instant,
    terminal: bool,
}

impl Shown {
    fn new(bytes: u64) -> Self {
        let now = Instant::now();
        Self { bytes, begun: now, last: now, terminal: std::io::stderr().is_terminal() }
    }

    fn at(&mut self, byte: u64) -> Result<()> {
        if !self.terminal || self.bytes == 0 || self.last.elapsed() < SHOWN_EVERY {
            return Ok(());
        }
        self.last = Instant::now();
        let share = byte as f64 / self.bytes.max(1) as f64;
        let left = self.begun.elapsed().mul_f64((1.0 - share).max(0.0) / share.max(1e-9));
        write!(std::io::stderr(), "\r{:>3.0}%, {:.0} s left ", share * 100.0, left.as_secs_f64())?;
        Ok(())
    }

    fn end(&self) -> Result<()> {
        if self.terminal && self.last > self.begun {
            writeln!(std::io::stderr())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest of a large file was read, and an error in it hid the server's.
    #[test]
    fn nothing_is_read_after_the_server_has_ended_the_call() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.jsonl");
        std::fs::write(&file, "{\"vni\": 1, \"ip\": \"10.0.0.1\"}\nmalformed\n").unwrap();
        let (messages, server) = mpsc::channel(MESSAGES_MAX);
        assert!(!read(&file, Format::Jsonl, 1, &messages).unwrap_err().is::<Ended>());
        drop(server);
        assert!(read(&file, Format::Jsonl, 1, &messages).unwrap_err().is::<Ended>());
    }
}
