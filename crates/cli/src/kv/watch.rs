//! `quoin kv watch`: changes as they happen, or from a revision on.

use super::keys::{as_json, range_end};
use crate::connection::Connection;
use crate::{outcome, output};
use anyhow::{Context, Result};
use clap::Args;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::mvccpb::KeyValue;
use quoin_proto::mvccpb::event::EventType;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// A watch.
#[derive(Args)]
pub(crate) struct Watch {
    key: String,
    /// Watch all keys that begin with KEY
    #[arg(long)]
    prefix: bool,
    /// Start at this revision; 0 is now
    #[arg(long, default_value_t = 0, value_name = "REVISION")]
    from: i64,
    /// Exit after this many changes
    #[arg(long)]
    count: Option<usize>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn watch(watch: Watch) -> Result<ExitCode> {
    let Watch { key, prefix, from, count, connection } = watch;
    let create = etcd::WatchCreateRequest {
        range_end: range_end(&key, prefix),
        key: key.into(),
        start_revision: from,
        ..Default::default()
    };
    let mut events = quoin_load::client::watch(connection.unbounded().any().await?, create).await?;
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        let message = events.message().await?.context("the server ended the watch")?;
        if message.canceled {
            let (reason, compacted) = (message.cancel_reason, message.compact_revision);
            return outcome::refuse(format!(
                "the watch ended: {reason} (history begins at revision {compacted})"
            ));
        }
        for event in message.events {
            let deleted = event.r#type() == EventType::Delete;
            show(&connection, deleted, &event.kv.context("an event without a key")?)?;
            shown += 1;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(connection: &Connection, deleted: bool, kv: &KeyValue) -> Result<()> {
    let (mut out, key) = (std::io::stdout(), output::text(&kv.key));
    if connection.json {
        writeln!(out, "{}", json!({ "type": if deleted { "delete" } else { "put" }, "kv": as_json(kv) }))?;
    } else if deleted {
        writeln!(out, "{:>8}  delete  {key}", kv.mod_revision)?;
    } else {
        writeln!(out, "{:>8}  put     {key} = {}", kv.mod_revision, output::text(&kv.value))?;
    }
    Ok(())
}
