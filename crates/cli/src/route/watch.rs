//! `quoin route watch`: changes of rules and nodes, as they happen or from a revision on.

use super::client::client;
use super::text::event_json;
use crate::connection::Connection;
use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args};
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::subscribe_request::Request;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::io::Write;
use std::process::ExitCode;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;

/// A watch.
#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(["groups", "vnis", "nodes", "changes"])))]
pub(crate) struct Watch {
    /// Watch the rules of this group; repeatable
    #[arg(long = "group", value_name = "GROUP")]
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
    /// Change what is watched by lines on standard input: add or remove, then group NAME or vni NUMBER
    #[arg(long)]
    changes: bool,
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
    let (mut messages, mut wrong) = if request.changes {
        let (requests, wrong) = requests(wanted);
        (routes.subscribe(requests).await?.into_inner(), wrong)
    } else {
        (routes.watch(wanted).await?.into_inner(), mpsc::channel(1).1)
    };
    let mut left = request.count.unwrap_or(usize::MAX);
    while left > 0 {
        let message = tokio::select! {
            Some(wrong) = wrong.recv() => return Err(wrong),
            message = messages.message() => message?.context("the server ended the watch")?,
        };
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
        if message.kind == i32::from(Kind::Changed) && !request.connection.json {
            writeln!(std::io::stderr(), "changed at revision {}", message.revision)?;
        }
        for event in snapshot.chain(nodes).chain(message.events).take(left) {
            show(&event, &request.connection)?;
            left -= 1;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The requests of a watch that is changed by standard input, and what is wrong there.
fn requests(
    start: pb::WatchRequest,
) -> (impl Stream<Item = pb::SubscribeRequest>, mpsc::Receiver<anyhow::Error>) {
    let ((sender, requests), (wrong, told)) = (mpsc::channel(4), mpsc::channel(1));
    // A thread of its own, which nobody waits for: the program may end while it reads.
    std::thread::spawn(move || {
        let start = pb::SubscribeRequest { request: Some(Request::Start(start)) };
        let changes = std::io::stdin().lines().map(|line| change(&line?));
        for request in std::iter::once(Ok(start)).chain(changes) {
            match request {
                // This fails if the watch has ended, which is told by itself.
                Ok(request) => drop(sender.blocking_send(request)),
                Err(error) => {
                    // As above.
                    let _ = wrong.blocking_send(error);
                    return;
                }
            }
        }
    });
    (ReceiverStream::new(requests), told)
}

fn change(line: &str) -> Result<pb::SubscribeRequest> {
    let mut change = pb::WatchChange::default();
    let words: Vec<&str> = line.trim().splitn(3, ' ').collect();
    let vni = |name: &str| name.parse().with_context(|| format!("{name:?} in {line:?} is not a VNI"));
    match words[..] {
        ["add", "group", name] => change.add_groups.push(name.to_owned()),
        ["remove", "group", name] => change.remove_groups.push(name.to_owned()),
        ["add", "vni", name] => change.add_vnis.push(vni(name)?),
        ["remove", "vni", name] => change.remove_vnis.push(vni(name)?),
        _ => bail!("{line:?} is not add or remove, then group NAME or vni NUMBER"),
    }
    Ok(pb::SubscribeRequest { request: Some(Request::Change(change)) })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_line_by_line_and_wrong_ones_named() {
        for line in ["add group rack 7", "remove group x", " add vni 7 ", "remove vni 8"] {
            change(line).unwrap();
        }
        for (line, problem) in [
            ("add vni x", "\"x\""),
            ("watch group g", "watch group g"),
            ("add group", "add group"),
            ("", "\"\""),
        ] {
            let error = change(line).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
