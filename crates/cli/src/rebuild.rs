//! `quoin doctor DIR --rebuild`: replaces a member whose data folder is damaged.
//!
//! The member is removed, its folder moved aside, and a new one added in its place; it gets the state from the
//! others once it is started. Each step is left out if it was done before, so the command can be run again.
//!
//! **Invariant: One disk per member.** What the member has voted and acknowledged is not known any more, so it never
//! comes back: the new one has another id.

use crate::cluster::when_healthy;
use crate::connection::Connection;
use crate::outcome::refuse;
use anyhow::{Context, Result, ensure};
use quoin_load::client::Channel;
use quoin_node::doctor::Report;
use quoin_proto::etcdserverpb::cluster_client::ClusterClient;
use quoin_proto::etcdserverpb::{Member, MemberAddRequest, MemberListRequest, MemberRemoveRequest};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Replaces the member to which `folder` belongs, of which `report` was made. `peer` is where the others reach it, if
/// they do not know that any more.
pub(crate) async fn rebuild(
    folder: &Path,
    report: &Report,
    peer: Option<&str>,
    connection: &Connection,
) -> Result<ExitCode> {
    if report.healthy {
        return refuse(format!("nothing in {} is damaged: start the node", report.folder));
    }
    let Some(whose) = &report.identity else {
        return refuse(format!(
            "the identity in {} cannot be read, so it is not known which member to replace: quoin cluster remove NAME, \
             move the folder away, quoin cluster add HOST:PORT",
            report.folder
        ));
    };
    let id = u64::from_str_radix(&whose.member, 16).context("the member's id")?;
    let mut client = ClusterClient::new(connection.leader().await?);
    let (cluster, members) = list(&mut client).await?;
    if format!("{cluster:016x}") != whose.cluster {
        return refuse(format!(
            "{} is of cluster {}, and {} serve cluster {cluster:016x}",
            report.folder,
            whose.cluster,
            connection.endpoints.join(", ")
        ));
    }
    let (own, others): (Vec<_>, Vec<_>) = members.into_iter().partition(|member| member.id == id);
    if others.is_empty() {
        return refuse("it is the only member: restore a backup, see docs/operations.md#backups");
    }
    let known = own.first().and_then(|member| member.peer_ur_ls.first()).cloned();
    let given = peer.map(|peer| format!("http://{peer}"));
    let Some(url) = known.or(given) else {
        return refuse(format!(
            "member {} was removed already: say with --peer HOST:PORT where the others reach the new one",
            whose.member
        ));
    };
    if !own.is_empty() {
        when_healthy(|| async { client.clone().member_remove(MemberRemoveRequest { id }).await })
            .await
            .context("removing the member")?;
    }
    let aside = move_aside(folder, &whose.member)?;
    let added = match others.iter().find(|member| member.peer_ur_ls.contains(&url)) {
        Some(member) => member.id,
        None => {
            let request = MemberAddRequest { peer_ur_ls: vec![url.clone()], is_learner: false };
            let added = when_healthy(|| async { client.clone().member_add(request.clone()).await }).await;
            let added = added.context("adding the new member")?.into_inner();
            added.member.context("the answer does not say which member was added")?.id
        }
    };
    let peers = others.iter().filter(|member| member.id != added).flat_map(|member| &member.peer_ur_ls);
    let join: Vec<_> = peers.map(|url| url.trim_start_matches("http://")).collect();
    let (added, aside) = (format!("{added:016x}"), aside.display().to_string());
    connection.say(
        &json!({ "removed": whose.member, "added": added, "moved_to": aside, "join": join }),
        &format!(
            "member {} is removed, and {added} added in its place; the damaged folder is now {aside}\n\
             start the new one with the settings of the old one, but for --cluster, and with:\n  \
             quoin serve --name {} --data-dir {} --listen-peer {} --join {}",
            whose.member,
            whose.name,
            report.folder,
            url.trim_start_matches("http://"),
            join.join(",")
        ),
    )
}

async fn list(client: &mut ClusterClient<Channel>) -> Result<(u64, Vec<Member>)> {
    let reply = client.member_list(MemberListRequest { linearizable: true }).await?.into_inner();
    Ok((reply.header.map_or(0, |header| header.cluster_id), reply.members))
}

/// Renames the folder to one that no node starts from by mistake.
fn move_aside(folder: &Path, member: &str) -> Result<PathBuf> {
    let mut name = folder.file_name().context("the folder has no name")?.to_os_string();
    name.push(format!(".damaged-{member}"));
    let aside = folder.with_file_name(name);
    ensure!(!aside.exists(), "{} exists already: move it away", aside.display());
    fs::rename(folder, &aside).with_context(|| format!("moving {}", folder.display()))?;
    Ok(aside)
}
