//! Tables for people. Columns are as wide as their widest cell.

use anyhow::Result;
use std::io::Write;

/// Prints a table with a head.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> Result<()> {
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(column, title)| {
            rows.iter().map(|row| row[column].chars().count()).chain([title.len()]).max().unwrap_or(0)
        })
        .collect();
    let mut out = std::io::stdout().lock();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(out, "{}", padded.join("  ").trim_end())
    };
    line(&mut head.iter().copied())?;
    for row in rows {
        line(&mut row.iter().map(String::as_str))?;
    }
    Ok(())
}

/// Prints a value as JSON.
pub(crate) fn json(value: &serde_json::Value) -> Result<()> {
    writeln!(std::io::stdout(), "{value:#}")?;
    Ok(())
}

/// Bytes as text where they are text, else escaped.
pub(crate) fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_string(),
        _ => bytes.escape_ascii().to_string(),
    }
}
