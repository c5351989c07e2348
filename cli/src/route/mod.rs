//! `quoin route`: rules by (VNI, IP) from the shell. `text.rs` is how rules look in files and answers, `load.rs` writes
//! files of them, `agent.rs` keeps a host's copy up to date.

mod agent;
mod copy;
mod linux;
mod load;
mod sink;
mod text;

use crate::connection::Connection;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use quoin_proto::quoin::kv::v1 as kv;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::route_client::RouteClient;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use text::{RuleText, event_json};
use tonic::transport::Channel;

/// Nothing was found.
const NOT_FOUND: u8 = 2;
/// Rules of a page of a listing.
const PAGE: u32 = 5_000;

/// What can be done with rules.
#[derive(Subcommand)]
pub(crate) enum Route {
    /// Write a rule
    Put(Put),
    /// Look rules up: VNI/IP ...
    Get {
        /// For example 100/10.0.0.1
        #[arg(required = true, value_name = "VNI/IP")]
        keys: Vec<String>,
        /// This replica's own state, without asking the leader
        #[arg(long)]
        local: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// List the rules of a group or a network
    List {
        #[command(flatten)]
        of: Of,
        /// As of this revision
        #[arg(long, default_value_t = 0)]
        revision: i64,
        /// At most this many
        #[arg(long)]
        limit: Option<usize>,
        #[command(flatten)]
        connection: Connection,
    },
    /// Delete rules: VNI/IP ..., or all of a group or a network
    Delete {
        /// For example 100/10.0.0.1
        #[arg(value_name = "VNI/IP", conflicts_with_all = ["group", "vni"])]
        keys: Vec<String>,
        /// All rules of this group
        #[arg(long, conflicts_with = "vni")]
        group: Option<String>,
        /// All rules of this network
        #[arg(long)]
        vni: Option<u32>,
        #[command(flatten)]
        connection: Connection,
    },
    /// Show changes of groups or networks until Ctrl-C
    Watch(Watch),
    /// Write a file of rules: CSV with a head, or JSON lines
    Load(load::Load),
    /// Nodes: who is alive, and at which revision each is
    Nodes {
        #[command(flatten)]
        connection: Connection,
    },
    /// Keep this host's copy of groups up to date: on disk, through a hook, or in Linux's tables
    Agent(agent::Agent),
}

/// A rule to write.
#[derive(Args)]
pub(crate) struct Put {
    /// For example 100/10.0.0.1
    #[arg(value_name = "VNI/IP")]
    key: String,
    /// Hardware address of IP
    #[arg(long, default_value = "")]
    mac: String,
    /// The host behind which IP is
    #[arg(long, default_value = "")]
    host_ip: String,
    /// Hardware address of that host
    #[arg(long, default_value = "")]
    host_mac: String,
    /// What it is watched by
    #[arg(long, default_value = "")]
    group: String,
    /// Anything
    #[arg(long, default_value = "")]
    user_data: String,
    #[command(flatten)]
    connection: Connection,
}

/// Which rules.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Of {
    /// Rules of this group
    #[arg(long)]
    group: Option<String>,
    /// Rules of this network
    #[arg(long)]
    vni: Option<u32>,
}

/// What to show changes of.
#[derive(Args)]
pub(crate) struct Watch {
    /// Rules of these groups
    #[arg(long = "group", required_unless_present_any = ["vnis", "nodes"])]
    groups: Vec<String>,
    /// Rules of these networks
    #[arg(long = "vni")]
    vnis: Vec<u32>,
    /// Nodes that come to life or die
    #[arg(long)]
    nodes: bool,
    /// From this revision on; 0 shows everything that is there first
    #[arg(long, default_value_t = 0)]
    from: i64,
    /// End after this many changes
    #[arg(long)]
    count: Option<usize>,
    #[command(flatten)]
    connection: Connection,
}

/// Does it.
pub(crate) async fn run(route: Route) -> Result<ExitCode> {
    match route {
        Route::Put(request) => put(request).await,
        Route::Get { keys, local, connection } => get(&keys, local, &connection).await,
        Route::List { of, revision, limit, connection } => list(of, revision, limit, &connection).await,
        Route::Delete { keys, group, vni, connection } => delete(&keys, group, vni, &connection).await,
        Route::Watch(request) => watch(request).await,
        Route::Load(request) => load::run(request).await,
        Route::Nodes { connection } => nodes(&connection).await,
        Route::Agent(agent) => agent::run(agent).await,
    }
}

/// A client that takes large answers.
pub(crate) fn client(channel: Channel) -> RouteClient<Channel> {
    RouteClient::new(channel).max_decoding_message_size(64 << 20)
}

fn parse_key(text: &str) -> Result<pb::RuleKey> {
    let (vni, ip) =
        text.split_once('/').with_context(|| format!("{text:?} is no VNI/IP, like 100/10.0.0.1"))?;
    let vni = vni.parse().with_context(|| format!("{vni:?} in {text:?} is no VNI"))?;
    Ok(pb::RuleKey { vni, ip: ip.to_owned() })
}

async fn put(request: Put) -> Result<ExitCode> {
    let pb::RuleKey { vni, ip } = parse_key(&request.key)?;
    let rule = pb::Rule {
        vni,
        ip,
        mac: request.mac,
        host_ip: request.host_ip,
        host_mac: request.host_mac,
        group: request.group,
        revision: 0,
        user_data: request.user_data.into(),
    };
    let mut routes = client(request.connection.any().await?);
    let reply = routes.put(pb::PutRequest { rules: vec![rule], each_for_itself: false }).await?.into_inner();
    request
        .connection
        .say(&json!({ "revision": reply.revision }), &format!("written at revision {}", reply.revision))
}

async fn get(keys: &[String], local: bool, connection: &Connection) -> Result<ExitCode> {
    let mut lookups = Vec::with_capacity(keys.len());
    for (request_id, key) in keys.iter().enumerate() {
        let pb::RuleKey { vni, ip } = parse_key(key)?;
        lookups.push(pb::Lookup { request_id: request_id as u64, vni, ip });
    }
    let level = kv::consistency::Level::Local(kv::Local::default());
    let consistency = local.then_some(kv::Consistency { level: Some(level) });
    let mut routes = client(connection.any().await?);
    let answers = routes.get(pb::GetRequest { lookups, consistency }).await?.into_inner().answers;
    let found: Vec<pb::Rule> = answers.into_iter().filter_map(|answer| answer.rule).collect();
    show(&found, connection)?;
    if found.len() < keys.len() {
        writeln!(std::io::stderr(), "{} of {} not found", keys.len() - found.len(), keys.len())?;
        return Ok(ExitCode::from(NOT_FOUND));
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(of: Of, revision: i64, limit: Option<usize>, connection: &Connection) -> Result<ExitCode> {
    let of = match (of.group, of.vni) {
        (Some(group), _) => pb::list_request::Of::Group(group),
        (None, Some(vni)) => pb::list_request::Of::Vni(vni),
        (None, None) => bail!("give --group or --vni"),
    };
    let limit = limit.unwrap_or(usize::MAX);
    let mut routes = client(connection.any().await?);
    let mut request = pb::ListRequest { of: Some(of), revision, ..pb::ListRequest::default() };
    let mut rules = Vec::new();
    loop {
        request.limit = PAGE.min(u32::try_from(limit - rules.len()).unwrap_or(PAGE)).max(1);
        let page = routes.list(request.clone()).await?.into_inner();
        request.revision = page.header.map_or(request.revision, |header| header.revision);
        request.after = page.rules.last().map(|rule| pb::RuleKey { vni: rule.vni, ip: rule.ip.clone() });
        rules.extend(page.rules);
        if !page.more || rules.len() >= limit {
            break;
        }
    }
    show(&rules, connection)?;
    Ok(ExitCode::SUCCESS)
}

fn show(rules: &[pb::Rule], connection: &Connection) -> Result<()> {
    if connection.json {
        let rules: Vec<_> = rules.iter().map(|rule| RuleText::of(rule).json()).collect();
        return output::json(&rules.into());
    }
    if rules.is_empty() {
        writeln!(std::io::stderr(), "no rules")?;
        return Ok(());
    }
    let row = |rule: &pb::Rule| {
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        vec![
            rule.vni.to_string(),
            rule.ip.clone(),
            or_dash(&rule.mac),
            or_dash(&rule.host_ip),
            or_dash(&rule.host_mac),
            or_dash(&rule.group),
            rule.revision.to_string(),
            or_dash(&output::text(&rule.user_data)),
        ]
    };
    let head = ["vni", "ip", "mac", "host ip", "host mac", "group", "revision", "user data"];
    output::table(&head, &rules.iter().map(row).collect::<Vec<_>>())
}

async fn delete(
    keys: &[String],
    group: Option<String>,
    vni: Option<u32>,
    connection: &Connection,
) -> Result<ExitCode> {
    ensure!(!keys.is_empty() || group.is_some() || vni.is_some(), "give VNI/IP, --group or --vni");
    let keys = keys.iter().map(|key| parse_key(key)).collect::<Result<Vec<_>>>()?;
    let all_of = match (group, vni) {
        (Some(group), _) => Some(pb::delete_request::AllOf::Group(group)),
        (None, Some(vni)) => Some(pb::delete_request::AllOf::Vni(vni)),
        (None, None) => None,
    };
    let mut routes = client(connection.any().await?);
    let deleted = routes.delete(pb::DeleteRequest { keys, all_of }).await?.into_inner().deleted;
    let rules = if deleted == 1 { "rule" } else { "rules" };
    connection.say(&json!({ "deleted": deleted }), &format!("deleted {deleted} {rules}"))
}

async fn watch(request: Watch) -> Result<ExitCode> {
    let patient = Connection { timeout: 1e9, ..request.connection.clone() };
    let mut routes = client(patient.any().await?);
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
            writeln!(std::io::stderr(), "everything there is, as of revision {}", message.revision)?;
        }
        for event in snapshot.chain(nodes).chain(message.events).take(left) {
            show_event(&event, &request.connection)?;
            left -= 1;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_event(event: &pb::Event, connection: &Connection) -> Result<()> {
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
        None => "a change of a later version".to_owned(),
    };
    writeln!(out, "{:>8}  {what}", event.revision)?;
    Ok(())
}

async fn nodes(connection: &Connection) -> Result<ExitCode> {
    let mut routes = client(connection.any().await?);
    let reply = routes.nodes(pb::NodesRequest::default()).await?.into_inner();
    let newest = reply.header.map_or(0, |header| header.revision);
    let states = reply.nodes.into_iter().map(|state| (state.node.unwrap_or_default(), state.status));
    if connection.json {
        let nodes: Vec<_> = states
            .map(|(node, status)| {
                json!({
                    "name": node.name, "address": node.address, "groups": node.groups,
                    "alive": status.as_ref().is_some_and(|status| status.alive),
                    "since_ms": status.as_ref().map(|status| status.since_ms),
                    "last_heartbeat_ms": status.as_ref().map(|status| status.last_heartbeat_ms),
                    "applied_revision": status.as_ref().map(|status| status.applied_revision),
                })
            })
            .collect();
        output::json(&json!({ "revision": newest, "nodes": nodes }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = states
        .map(|(node, status)| {
            let state = match &status {
                Some(status) if status.alive => "alive",
                Some(_) => "dead",
                None => "never seen",
            };
            let applied = status.map_or_else(|| "-".to_owned(), |status| status.applied_revision.to_string());
            vec![node.name, state.to_owned(), applied, node.address, node.groups.join(",")]
        })
        .collect();
    output::table(&["node", "state", "at revision", "address", "groups"], &rows)?;
    Ok(ExitCode::SUCCESS)
}
