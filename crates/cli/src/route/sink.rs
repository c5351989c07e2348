//! Where an agent puts rules into effect: nowhere but in its copy, in a hook, or in Linux's tables.

use super::copy::{Change, Copy};
use super::linux::Linux;
use super::text::RuleText;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Where rules take effect.
pub(super) enum Sink {
    /// Only in the copy on disk.
    Copy,
    /// A shell command, run for each batch with the changes as JSON lines on its standard input.
    Hook(String),
    /// Neighbour and forwarding entries of Linux.
    Linux(Linux),
}

impl Sink {
    /// Puts `changes` of `copy` into effect. Repeating it after a failure does no harm.
    ///
    /// # Errors
    /// The hook fails, or the system refuses.
    pub(super) async fn take(&mut self, changes: &[Change], revision: i64, copy: &Copy) -> Result<()> {
        match self {
            Self::Copy => Ok(()),
            Self::Hook(_) if changes.is_empty() => Ok(()),
            Self::Hook(command) => hook(command, changes, revision).await,
            // No changes are news too, for an agent that begins without a copy: no rules, say.
            Self::Linux(linux) => linux.take(changes, revision, copy),
        }
    }
}

async fn hook(command: &str, changes: &[Change], revision: i64) -> Result<()> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .env("QUOIN_REVISION", revision.to_string())
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let mut lines = Vec::new();
    for change in changes {
        let line = match change {
            Change::Put { rule, .. } => json!({ "put": RuleText::of(rule) }),
            Change::Delete { rule, .. } => json!({ "delete": RuleText::of(rule) }),
        };
        serde_json::to_writer(&mut lines, &line)?;
        lines.push(b'\n');
    }
    let mut stdin = child.stdin.take().context("the hook has no standard input")?;
    // A hook may do its work without reading its input. Its exit code decides.
    let _ = stdin.write_all(&lines).await;
    drop(stdin);
    let status = child.wait().await?;
    ensure!(status.success(), "the hook {command:?} ended with {status}");
    Ok(())
}
