//! Lists that are read page by page and printed as they come, so that none is held in memory as a whole. A list that
//! ends before everything is shown says so: on standard error, and as `next` in its JSON.

use crate::connection::Connection;
use anyhow::Result;
use quoin_load::output::Table;
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;

/// Maximum entries of a request's page.
const PAGE_MAX: u64 = 1_000;

/// A list that is being printed.
pub(super) struct List {
    json: bool,
    /// The name of its entries.
    name: &'static str,
    head: &'static [&'static str],
    table: Table,
    printed: u64,
    /// How many are wanted.
    limit: u64,
}

/// An entry, for people and for programs.
pub(super) type Entry = (Vec<String>, Value);

impl List {
    /// A list of at most `limit` entries, or of `all`.
    pub(super) fn new(
        connection: &Connection,
        name: &'static str,
        head: &'static [&'static str],
        limit: u64,
        all: bool,
    ) -> Self {
        let limit = if all { u64::MAX } else { limit };
        Self { json: connection.json, name, head, table: Table::default(), printed: 0, limit }
    }

    /// How many entries to ask for next; 0: no more are wanted.
    pub(super) fn page(&self) -> u32 {
        (self.limit - self.printed).min(PAGE_MAX) as u32
    }

    /// Prints further entries.
    pub(super) fn print(&mut self, entries: Vec<Entry>) -> Result<()> {
        let (rows, values): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        if self.json {
            let mut out = std::io::stdout().lock();
            for value in &values {
                let before = if self.printed == 0 { format!("{{\"{}\": [", self.name) } else { ",".into() };
                write!(out, "{before}\n  {value}")?;
                self.printed += 1;
            }
        } else {
            self.table.print(self.head, &rows)?;
            self.printed += rows.len() as u64;
        }
        Ok(())
    }

    /// Ends the list; `next` is where it would go on, and the flag that says so.
    pub(super) fn end(mut self, next: Option<(&str, String)>) -> Result<ExitCode> {
        if self.json {
            let mut out = std::io::stdout().lock();
            let before = if self.printed == 0 { format!("{{\"{}\": [", self.name) } else { "\n".to_owned() };
            let next = Value::from(next.map(|(_, next)| next));
            writeln!(out, "{before}], \"next\": {next}}}")?;
        } else {
            self.table.print(self.head, &[])?;
            if let Some((flag, next)) = next {
                writeln!(std::io::stderr(), "more follow: --{flag} {next}, or --all")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A number of entries, for clap.
pub(super) fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(count @ 1..) => Ok(count),
        _ => Err("how many to show is a whole number from 1 on; --all shows all".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn nothing_is_no_number_of_entries() {
        assert_eq!(count("100000"), Ok(100_000));
        for wrong in ["0", "-1", "", "ten"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }
}
