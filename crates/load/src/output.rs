//! What a command prints: tables for people, JSON for programs.

use anyhow::Result;
use serde::Serialize;
use std::io::Write;

/// Prints a table. Columns are as wide as their widest cell.
///
/// # Errors
/// Standard output is closed.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> Result<()> {
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(column, title)| {
            rows.iter().map(|row| row[column].chars().count()).chain([title.len()]).max().unwrap_or(0)
        })
        .collect();
    let mut out = std::io::stdout().lock();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        // A formatter's width ends at 65535.
        let pad =
            |(cell, width): (&str, &usize)| format!("{cell}{}", " ".repeat(width - cell.chars().count()));
        let padded: Vec<String> = cells.zip(&widths).map(pad).collect();
        writeln!(out, "{}", padded.join("  ").trim_end())
    };
    line(&mut head.iter().copied())?;
    for row in rows {
        line(&mut row.iter().map(String::as_str))?;
    }
    Ok(())
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
