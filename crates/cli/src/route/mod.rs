//! `quoin route`: rules by (VNI, IP) from the shell.
//!
//! `rules.rs` reads and writes them, `write.rs` several at once, `load.rs` writes files of them (`text.rs` is how they look there),
//! `watch.rs` follows changes, `nodes.rs` lists hosts, `objects.rs` writes and reads VPCs, gateways and nodes. `agent.rs` keeps a host's copy (`copy.rs`) up to date
//! and puts it into effect (`sink.rs`, the folder
//! `linux`).

mod agent;
mod client;
mod copy;
mod linux;
mod load;
mod nodes;
mod objects;
mod rules;
mod sink;
mod status;
mod text;
mod watch;
mod write;

use crate::connection::{Connection, Read};
use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// Commands on rules.
#[derive(Subcommand)]
pub(crate) enum Route {
    /// Write a rule
    Put(rules::Put),
    /// Look up rules
    Get(rules::Get),
    /// List the rules of a group or a network, or those with a host or MAC address
    List(rules::List),
    /// Show at which revision groups changed last
    GroupRevision(rules::GroupRevision),
    /// Delete rules, or all rules of a group or a network
    Delete(rules::Delete),
    /// Write and delete rules at one revision, if conditions hold
    Write(write::Write),
    /// Show changes of groups, networks or nodes until Ctrl-C
    Watch(watch::Watch),
    /// Write a file of rules: CSV with a header line, or JSON lines
    Load(load::Load),
    /// VPCs: write, show, list and delete
    #[command(subcommand)]
    Vpc(objects::Vpcs),
    /// Gateway clusters: write, show, list and delete
    #[command(subcommand)]
    Gateways(objects::Gateways),
    /// Nodes: write, show, list and delete
    #[command(subcommand)]
    Node(objects::Nodes),
    /// List nodes: which are alive, and up to which revision each has applied the rules
    Nodes {
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        connection: Connection,
    },
    /// Keep this host's copy of groups up to date: on disk, through a hook, or in Linux's tables
    Agent(agent::Agent),
}

/// Runs a command on rules.
pub(crate) async fn run(route: Route) -> Result<ExitCode> {
    match route {
        Route::Put(put) => rules::put(put).await,
        Route::Get(get) => rules::get(get).await,
        Route::List(list) => rules::list(list).await,
        Route::GroupRevision(groups) => rules::group_revision(groups).await,
        Route::Delete(delete) => rules::delete(delete).await,
        Route::Write(write) => write::run(write).await,
        Route::Watch(watch) => watch::watch(watch).await,
        Route::Load(load) => load::run(load).await,
        Route::Vpc(vpcs) => objects::vpcs(vpcs).await,
        Route::Gateways(gateways) => objects::gateways(gateways).await,
        Route::Node(nodes) => objects::nodes(nodes).await,
        Route::Nodes { read, connection } => nodes::nodes(read, &connection).await,
        Route::Agent(agent) => agent::run(agent).await,
    }
}
