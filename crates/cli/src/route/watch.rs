//! `quoin route watch`: changes of rules and nodes, as they happen or from a revision on.

use super::client::client;
use super::text::event_json;
use crate::connection::Connection;
use anyhow::{Context, Result};
use clap::Args;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::io::Write;
use std::process::ExitCode;

/// A watch.
#[derive(Args)]
pub(crate) struct Watch {
    /// Watch the rules of this group; repeatable
    #[arg(long = "group", value_name = "GROUP", required_unless_present_any = ["vnis", "nodes"])]
    groups: Vec<String>,
    /// Watch the rules of this network; repeatable
    #[arg(long = "vni", value_name = "VNI")]
    vnis: Vec<u32>,
    /// Watch nodes come alive and die
    #[arg(long)]
    nodes: bool,
    /// Start at this revision; 0 shows everything that exists first
    #[arg(long, default_value_t = 0, value_name = "REVISION")]
    from: i64,
    /// Exit after this many changes
    #[arg(long)]
    count: Option<usize>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn watch(request: Watch) -> Result<ExitCode> {
    let mut routes = client(request.connection.unbounded().any().await?);
    let wanted = pb::WatchRequest {
        groups: request.groups,
        vnis: request.vnis,
        node_status: request.nodes,
        from_revision: request.from,
        ..pb::WatchRequest::default()
    };
    let mut messages = routes.watch(wanted).await?.into_inner();
    let mut left = request.count.unwrap_or(usize::MAX);
    while left > 0 {
        let message = messages.message().await?.context("the server ended the watch")?;
        let snapshot = message
            .rules
            .into_iter()
            .map(|rule| pb::Event { revision: rule.revision, change: Some(pb::event::Change::Put(rule)) });
        let nodes = message.nodes.into_iter().map(|node| pb::Event {
            revision: message.revision,
            change: Some(pb::event::Change::Node(node)),
        });
        if message.kind == i32::from(Kind::SnapshotEnd) && !request.connection.json {
            writeln!(std::io::stderr(), "everything that exists at revision {}", message.revision)?;
        }
        for event in snapshot.chain(nodes).chain(message.events).take(left) {
            show(&event, &request.connection)?;
            left -= 1;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(event: &pb::Event, connection: &Connection) -> Result<()> {
    let mut out = std::io::stdout();
    if connection.json {
        writeln!(out, "{}", event_json(event))?;
        return Ok(());
    }
    let what = match &event.change {
        Some(pb::event::Change::Put(rule)) => {
            let part = |name: &str, text: &str| {
                if text.is_empty() { String::new() } else { format!(" {name} {text}") }
            };
            let (mac, host) = (part("mac", &rule.mac), part("host", &rule.host_ip));
            format!("put     {}/{}{mac}{host}{}", rule.vni, rule.ip, part("group", &rule.group))
        }
        Some(pb::event::Change::Deleted(key)) => format!("delete  {}/{}", key.vni, key.ip),
        Some(pb::event::Change::Node(node)) => {
            format!("node    {} is {}", node.name, if node.alive { "alive" } else { "dead" })
        }
        Some(pb::event::Change::DeletedNode(name)) => format!("node    {name} is gone"),
        Some(other) => format!("{other:?}"),
        None => "a change that this version does not know".to_owned(),
    };
    writeln!(out, "{:>8}  {what}", event.revision)?;
    Ok(())
}
