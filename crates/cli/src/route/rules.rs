//! Reading and writing rules: put, get, list, delete.

use super::client::{client, parse_key};
use super::text::RuleText;
use crate::connection::{Connection, Read};
use crate::outcome::Write as _;
use crate::{outcome, output};
use anyhow::{Result, bail, ensure};
use clap::Args;
use quoin_proto::quoin::route::v1 as pb;
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;

/// Maximum keys that are named as not found.
const NAMED_MAX: usize = 20;
/// Rules per page of a listing.
const PAGE: u32 = 5_000;

/// A rule to write.
#[derive(Args)]
pub(crate) struct Put {
    /// Key of the rule, e.g. 100/10.0.0.1
    #[arg(value_name = "VNI/IP")]
    key: String,
    /// MAC address of IP
    #[arg(long, default_value = "", hide_default_value = true)]
    mac: String,
    /// IP address of the host that IP is on
    #[arg(long, default_value = "", hide_default_value = true)]
    host_ip: String,
    /// MAC address of that host
    #[arg(long, default_value = "", hide_default_value = true)]
    host_mac: String,
    /// Group of the rule; watches and agents follow groups
    #[arg(long, default_value = "", hide_default_value = true)]
    group: String,
    /// Text to keep with the rule
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    user_data: String,
    /// Only if the rule is at this revision; 0: only if it does not exist
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<i64>,
    #[command(flatten)]
    connection: Connection,
}

/// A lookup.
#[derive(Args)]
pub(crate) struct Get {
    /// Keys of rules, e.g. 100/10.0.0.1
    #[arg(required = true, value_name = "VNI/IP")]
    keys: Vec<String>,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// A listing.
#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    of: Of,
    /// List as of this revision; 0 is the newest
    #[arg(long, default_value_t = 0)]
    revision: i64,
    /// Maximum number of rules [default: all]
    #[arg(long)]
    limit: Option<usize>,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// Which rules to list.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Of {
    /// List the rules of this group
    #[arg(long)]
    group: Option<String>,
    /// List the rules of this network
    #[arg(long)]
    vni: Option<u32>,
    /// List the rules with this host IP: reads all rules
    #[arg(long)]
    host_ip: Option<String>,
    /// List the rules with this MAC: reads all rules
    #[arg(long)]
    mac: Option<String>,
}

/// Which groups to ask about.
#[derive(Args)]
pub(crate) struct GroupRevision {
    /// Groups
    #[arg(required = true, value_name = "GROUP")]
    groups: Vec<String>,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// A deletion.
#[derive(Args)]
pub(crate) struct Delete {
    /// Keys of rules, e.g. 100/10.0.0.1
    #[arg(value_name = "VNI/IP", conflicts_with_all = ["group", "vni"])]
    keys: Vec<String>,
    /// Delete all rules of this group
    #[arg(long, conflicts_with = "vni")]
    group: Option<String>,
    /// Delete all rules of this network
    #[arg(long)]
    vni: Option<u32>,
    /// Only if all the given rules are at this revision
    #[arg(long, value_name = "REVISION", requires = "keys")]
    if_revision: Option<i64>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn put(request: Put) -> Result<ExitCode> {
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
    let revision = match request.if_revision {
        None => {
            routes
                .put(pb::PutRequest { rules: vec![rule], each_for_itself: false })
                .await
                .or_send_again()?
                .into_inner()
                .revision
        }
        Some(wanted) => {
            let conditions = conditions(&[pb::RuleKey { vni, ip: rule.ip.clone() }], wanted);
            let write = pb::WriteRequest { puts: vec![rule], conditions, ..pb::WriteRequest::default() };
            routes.write(write).await.or_look(look)?.into_inner().revision
        }
    };
    request.connection.say(&json!({ "revision": revision }), &format!("written at revision {revision}"))
}

/// What to do about a conditional write without an answer: sent again it is refused if it was done.
pub(super) fn look() -> String {
    "read the rules before you send it again (`quoin route get`)".into()
}

fn conditions(keys: &[pb::RuleKey], revision: i64) -> Vec<pb::Condition> {
    keys.iter().map(|key| pb::Condition { key: Some(key.clone()), revision }).collect()
}

pub(super) async fn get(get: Get) -> Result<ExitCode> {
    let Get { keys, read, connection } = get;
    let mut lookups = Vec::with_capacity(keys.len());
    for (request_id, key) in keys.iter().enumerate() {
        let pb::RuleKey { vni, ip } = parse_key(key)?;
        lookups.push(pb::Lookup { request_id: request_id as u64, vni, ip });
    }
    let mut routes = client(connection.any().await?);
    let answers =
        routes.get(pb::GetRequest { lookups, consistency: read.consistency() }).await?.into_inner().answers;
    let found: Vec<pb::Rule> = answers.iter().filter_map(|answer| answer.rule.clone()).collect();
    show(&found, &connection)?;
    if found.len() < keys.len() {
        let asked = keys.iter().zip(&answers);
        let missing: Vec<&str> =
            asked.filter(|(_, answer)| answer.rule.is_none()).map(|(key, _)| key.as_str()).collect();
        writeln!(std::io::stderr(), "{}", not_found(&missing, keys.len()))?;
        return Ok(ExitCode::from(outcome::REFUSED));
    }
    Ok(ExitCode::SUCCESS)
}

/// Names the first of those that were not found.
fn not_found(missing: &[&str], asked: usize) -> String {
    let more = if missing.len() > NAMED_MAX { ", ..." } else { "" };
    let first = missing.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    format!("{} of {asked} not found: {first}{more}", missing.len())
}

pub(super) async fn list(list: List) -> Result<ExitCode> {
    let List { of, revision, limit, read, connection } = list;
    let of = match of {
        Of { group: Some(group), .. } => pb::list_request::Of::Group(group),
        Of { vni: Some(vni), .. } => pb::list_request::Of::Vni(vni),
        Of { host_ip: Some(ip), .. } => pb::list_request::Of::HostIp(ip),
        Of { mac: Some(mac), .. } => pb::list_request::Of::Mac(mac),
        _ => bail!("give --group, --vni, --host-ip or --mac"),
    };
    let limit = limit.unwrap_or(usize::MAX);
    let mut routes = client(connection.any().await?);
    let mut request = pb::ListRequest {
        of: Some(of),
        revision,
        consistency: read.consistency(),
        ..pb::ListRequest::default()
    };
    let mut rules = Vec::new();
    loop {
        request.limit = PAGE.min(u32::try_from(limit - rules.len()).unwrap_or(PAGE)).max(1);
        let page = routes.list(request.clone()).await?.into_inner();
        request.revision = page.header.map_or(request.revision, |header| header.revision);
        // Versions before this one do not say where the next page begins.
        let last = page.rules.last().map(|rule| pb::RuleKey { vni: rule.vni, ip: rule.ip.clone() });
        request.after = page.next.or(last);
        rules.extend(page.rules);
        if !page.more || rules.len() >= limit {
            break;
        }
    }
    show(&rules, &connection)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn group_revision(asked: GroupRevision) -> Result<ExitCode> {
    let GroupRevision { groups, read, connection } = asked;
    let request = pb::GroupRevisionsRequest { groups: groups.clone(), consistency: read.consistency() };
    let mut routes = client(connection.any().await?);
    let revisions = routes.group_revisions(request).await?.into_inner().revisions;
    let rows = groups.iter().zip(&revisions);
    if connection.json {
        output::json(&rows.map(|(group, at)| json!({ "group": group, "revision": at })).collect::<Value>())?;
    } else {
        let rows: Vec<_> = rows.map(|(group, at)| vec![group.clone(), at.to_string()]).collect();
        output::table(&["group", "revision"], &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(rules: &[pb::Rule], connection: &Connection) -> Result<()> {
    if connection.json {
        return output::json(&rules.iter().map(|rule| RuleText::of(rule).json()).collect::<Value>());
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

pub(super) async fn delete(delete: Delete) -> Result<ExitCode> {
    let Delete { keys, group, vni, if_revision, connection } = delete;
    ensure!(!keys.is_empty() || group.is_some() || vni.is_some(), "give VNI/IP, --group or --vni");
    let keys = keys.iter().map(|key| parse_key(key)).collect::<Result<Vec<_>>>()?;
    let all_of = match (group, vni) {
        (Some(group), _) => Some(pb::delete_request::AllOf::Group(group)),
        (None, Some(vni)) => Some(pb::delete_request::AllOf::Vni(vni)),
        (None, None) => None,
    };
    let mut routes = client(connection.any().await?);
    let deleted = match if_revision {
        None => {
            let request = pb::DeleteRequest { keys, all_of };
            routes.delete(request).await.or_send_again()?.into_inner().deleted
        }
        Some(wanted) => {
            let conditions = conditions(&keys, wanted);
            let write = pb::WriteRequest { deletes: keys, conditions, ..pb::WriteRequest::default() };
            routes.write(write).await.or_look(look)?.into_inner().deleted
        }
    };
    let rules = if deleted == 1 { "rule" } else { "rules" };
    connection.say(&json!({ "deleted": deleted }), &format!("deleted {deleted} {rules}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a hundred keys one was missing, and nobody knew which.
    #[test]
    fn those_that_are_not_found_are_named() {
        assert_eq!(not_found(&["1/10.0.0.1", "2/fd00::1"], 3), "2 of 3 not found: 1/10.0.0.1, 2/fd00::1");
        let many = not_found(&["1/10.0.0.1"; 100], 100);
        assert!(many.ends_with("1/10.0.0.1, ...") && many.matches('/').count() == NAMED_MAX, "{many}");
    }
}
