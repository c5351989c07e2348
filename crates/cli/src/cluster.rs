//! `quoin cluster`: who the members are, and who leads.

use crate::connection::Connection;
use crate::outcome::Write as _;
use crate::{outcome, output};
use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use quoin_proto::etcdserverpb::alarm_request::AlarmAction;
use quoin_proto::etcdserverpb::cluster_client::ClusterClient;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quoin_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, Member, MemberAddRequest, MemberListRequest, MemberPromoteRequest,
    MemberRemoveRequest, MoveLeaderRequest,
};
use quoin_proto::quoin::kv::v1::kv_client::KvClient;
use quoin_proto::quoin::kv::v1::{ReplicasRequest, Role};
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tonic::Status;

/// Commands on members.
#[derive(Subcommand)]
pub(crate) enum Cluster {
    /// Show all replicas: role, applied index, lag in log entries
    Status {
        #[command(flatten)]
        connection: Connection,
    },
    /// Show the alarms: NOSPACE (no room to write), CORRUPT (damage on a member's disk)
    Alarms {
        /// Clear them; what still holds is raised again
        #[arg(long)]
        clear: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// Add a member; then start it with --join
    Add {
        /// Address at which the others will reach it
        #[arg(value_name = "HOST:PORT")]
        peer: String,
        /// Add it as a learner: it receives the log and does not vote until it is promoted
        #[arg(long)]
        learner: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// Remove a member; it cannot come back under its id
    Remove {
        /// Id or name
        member: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Make a learner a voter
    Promote {
        /// Id or name
        member: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Transfer the leadership to another member
    TransferLeader {
        /// Id or name
        member: String,
        #[command(flatten)]
        connection: Connection,
    },
}

/// Runs a command on members.
pub(crate) async fn run(cluster: Cluster) -> Result<ExitCode> {
    match cluster {
        Cluster::Status { connection } => status(&connection).await.map(|()| ExitCode::SUCCESS),
        Cluster::Alarms { clear, connection } => alarms(&connection, clear).await,
        Cluster::Add { peer, learner, connection } => add(&connection, &peer, learner).await,
        Cluster::Remove { member, connection } => {
            let channel = connection.leader().await?;
            let id = find(&connection, &member).await?.id;
            let client = ClusterClient::new(channel);
            when_healthy(|| async { client.clone().member_remove(MemberRemoveRequest { id }).await })
                .await
                .or_look(look)?;
            say(&connection, id, "removed")
        }
        Cluster::Promote { member, connection } => {
            let channel = connection.leader().await?;
            let id = find(&connection, &member).await?.id;
            ClusterClient::new(channel).member_promote(MemberPromoteRequest { id }).await.or_look(look)?;
            say(&connection, id, "votes now")
        }
        Cluster::TransferLeader { member, connection } => {
            let channel = connection.leader().await?;
            let id = find(&connection, &member).await?.id;
            MaintenanceClient::new(channel).move_leader(MoveLeaderRequest { target_id: id }).await?;
            say(&connection, id, "leads now")
        }
    }
}

/// How long a change of members is sent again that is refused because too few voters have answered their leader for long
/// enough (`raft.member_health_ms`), as right after a start or an election.
const HEALTHY_WITHIN: Duration = Duration::from_secs(15);

/// What comes of a change of members, once enough of them are well.
pub(crate) async fn when_healthy<T, F>(change: impl Fn() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let (begun, mut told) = (Instant::now(), false);
    loop {
        match change().await {
            Err(status)
                if status.message() == "etcdserver: unhealthy cluster"
                    && begun.elapsed() < HEALTHY_WITHIN =>
            {
                if !std::mem::replace(&mut told, true) {
                    // An error: nobody reads it.
                    let _ = writeln!(
                        std::io::stderr(),
                        "waiting: most voters must have answered their leader for some seconds"
                    );
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            outcome => return outcome,
        }
    }
}

/// What to do about a change of members without an answer.
fn look() -> String {
    "see who is a member before you send it again (`quoin cluster status`)".into()
}

fn say(connection: &Connection, id: u64, what: &str) -> Result<ExitCode> {
    connection
        .say(&json!({ "member": format!("{id:016x}"), "outcome": what }), &format!("member {id:016x} {what}"))
}

async fn members(connection: &Connection) -> Result<Vec<Member>> {
    let mut client = ClusterClient::new(connection.any().await?);
    Ok(client.member_list(MemberListRequest { linearizable: true }).await?.into_inner().members)
}

/// A member by its id (hexadecimal) or name.
async fn find(connection: &Connection, wanted: &str) -> Result<Member> {
    let members = members(connection).await?;
    let id = u64::from_str_radix(wanted, 16).ok();
    if let Some(found) = members.iter().find(|member| Some(member.id) == id || member.name == wanted) {
        return Ok(found.clone());
    }
    let known: Vec<_> =
        members.iter().map(|member| format!("{:016x} ({})", member.id, member.name)).collect();
    outcome::refuse(format!("there is no member {wanted:?}; there are {}", known.join(", ")))
}

async fn status(connection: &Connection) -> Result<()> {
    let mut client = KvClient::new(connection.any().await?);
    let reply = client.replicas(ReplicasRequest {}).await?.into_inner();
    let header = reply.header.unwrap_or_default();
    let role = |role: Role| match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Learner => "learner",
        Role::Unspecified => "?",
    };
    if connection.json {
        let replicas: Vec<_> = reply
            .replicas
            .iter()
            .map(|replica| {
                json!({
                    "id": format!("{:016x}", replica.id), "name": replica.name, "role": role(replica.role()),
                    "peers": replica.peer_addresses, "clients": replica.client_urls,
                    "applied": replica.applied_index, "lag": replica.lag_entries, "matched": replica.matched_index,
                })
            })
            .collect();
        let cluster = format!("{:016x}", header.cluster_id);
        return output::json(
            &json!({ "cluster": cluster, "term": header.term, "revision": header.revision, "replicas": replicas }),
        );
    }
    let number = |number: Option<u64>| number.map_or_else(|| "-".into(), |number| number.to_string());
    let rows: Vec<Vec<String>> = reply
        .replicas
        .iter()
        .map(|replica| {
            vec![
                format!("{:016x}", replica.id),
                replica.name.clone(),
                role(replica.role()).into(),
                number(replica.applied_index),
                number(replica.lag_entries),
                replica.peer_addresses.join(","),
                replica.client_urls.join(","),
            ]
        })
        .collect();
    writeln!(
        std::io::stdout(),
        "cluster {:016x}, term {}, revision {}",
        header.cluster_id,
        header.term,
        header.revision
    )?;
    output::table(&["id", "name", "role", "applied", "lag", "peers", "clients"], &rows)?;
    if reply.replicas.iter().any(|replica| replica.applied_index.is_none()) {
        writeln!(std::io::stdout(), "applied -: the replica did not answer within a second")?;
    }
    Ok(())
}

async fn alarms(connection: &Connection, clear: bool) -> Result<ExitCode> {
    let mut client = MaintenanceClient::new(connection.any().await?);
    let get = AlarmRequest { action: AlarmAction::Get.into(), member_id: 0, alarm: AlarmType::None.into() };
    let alarms = client.alarm(get).await?.into_inner().alarms;
    if clear {
        for AlarmMember { member_id, alarm } in alarms.iter().copied() {
            client.alarm(AlarmRequest { action: AlarmAction::Deactivate.into(), member_id, alarm }).await?;
        }
    }
    let members = members(connection).await?;
    let name = |id| members.iter().find(|member| member.id == id).map_or("", |member| member.name.as_str());
    let rows: Vec<Vec<String>> = alarms
        .iter()
        .map(|alarm| {
            let id = alarm.member_id;
            vec![format!("{id:016x}"), name(id).to_string(), alarm.alarm().as_str_name().into()]
        })
        .collect();
    if connection.json {
        let rows: Vec<_> =
            rows.iter().map(|row| json!({ "member": row[0], "name": row[1], "alarm": row[2] })).collect();
        output::json(&json!({ "alarms": rows, "cleared": clear }))?;
    } else if rows.is_empty() {
        writeln!(std::io::stdout(), "no alarms")?;
    } else {
        output::table(&["member", "name", "alarm"], &rows)?;
        if clear {
            writeln!(std::io::stdout(), "cleared")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn add(connection: &Connection, peer: &str, learner: bool) -> Result<ExitCode> {
    ensure!(peer.contains(':'), "{peer:?} is not HOST:PORT");
    let url = if peer.starts_with("http://") { peer.to_string() } else { format!("http://{peer}") };
    let request = MemberAddRequest { peer_ur_ls: vec![url.clone()], is_learner: learner };
    let client = ClusterClient::new(connection.leader().await?);
    let reply = when_healthy(|| async { client.clone().member_add(request.clone()).await }).await;
    let reply = reply.or_look(look)?.into_inner();
    let member = reply.member.context("the answer does not say which member was added")?;
    let others: Vec<String> = reply
        .members
        .iter()
        .filter(|other| other.id != member.id)
        .flat_map(|other| other.peer_ur_ls.iter().map(|url| url.trim_start_matches("http://").to_string()))
        .collect();
    let peer = url.trim_start_matches("http://");
    connection.say(
        &json!({ "member": format!("{:016x}", member.id), "learner": member.is_learner }),
        &format!(
            "added member {:016x}; start it with an empty data folder:\n  \
             quoin serve --name NAME --data-dir DIR --listen-peer {peer} --listen-client HOST:PORT --join {}",
            member.id,
            others.join(",")
        ),
    )
}
