//! What a command prints: tables for people, JSON for programs.

use anyhow::Result;
use serde::Serialize;
use std::io::Write;

/// Prints a table. Columns are as wide as their widest cell.
///
/// # Errors
/// Standard output is closed.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> Result<()> {
    Table::default().print(head, rows)
}

/// A table that is printed in parts. Columns never become narrower from one part to the next.
#[derive(Debug, Default)]
pub struct Table {
    /// Of the columns; empty before the first part.
    widths: Vec<usize>,
}

impl Table {
    /// Prints further rows, the first time below `head`.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn print(&mut self, head: &[&str], rows: &[Vec<String>]) -> Result<()> {
        let begins = self.widths.is_empty();
        self.widths.resize(head.len(), 0);
        for (column, (width, title)) in self.widths.iter_mut().zip(head).enumerate() {
            let cells = rows.iter().map(|row| row[column].chars().count());
            *width = cells.chain([*width, title.len()]).max().unwrap_or(0);
        }
        let mut out = std::io::stdout().lock();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            // A formatter's width ends at 65535.
            let pad =
                |(cell, width): (&str, &usize)| format!("{cell}{}", " ".repeat(width - cell.chars().count()));
            let padded: Vec<String> = cells.zip(&self.widths).map(pad).collect();
            writeln!(out, "{}", padded.join("  ").trim_end())
        };
        if begins {
            line(&mut head.iter().copied())?;
        }
        for row in rows {
            line(&mut row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

/// Prints a value as indented JSON.
///
/// # Errors
/// Standard output is closed.
pub fn json(value: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    Ok(writeln!(out)?)
}
