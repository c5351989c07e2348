//! `quoin route nodes`: the hosts that run agents, whether they are alive, and how far they are.

use super::client::client;
use crate::connection::{Connection, Read};
use crate::output;
use anyhow::Result;
use quoin_proto::quoin::route::v1 as pb;
use serde_json::json;
use std::process::ExitCode;

pub(super) async fn nodes(read: Read, connection: &Connection) -> Result<ExitCode> {
    let mut routes = client(connection.any().await?);
    let reply = routes.nodes(pb::NodesRequest { consistency: read.consistency() }).await?.into_inner();
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
