//! The route face: rules, their watchers, and the agent.

use crate::harness::{Clients, Cluster, PATIENCE, PROGRAM, SMALL, endpoint, start, wait};
use anyhow::{Context, Result, ensure};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::route_client::RouteClient;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tonic::Code;
use tonic::transport::Channel;

type Table = BTreeMap<(u32, String), pb::Rule>;

async fn routes(cluster: &Cluster, replica: usize) -> Result<RouteClient<Channel>> {
    Ok(RouteClient::new(cluster.channel(replica).await?).max_decoding_message_size(64 << 20))
}

/// A client whose streams may last.
async fn patient(cluster: &Cluster, replica: usize) -> Result<RouteClient<Channel>> {
    Ok(RouteClient::new(cluster.patient_channel(replica).await?).max_decoding_message_size(64 << 20))
}

fn rule(number: u64, group: &str, user_data: u64) -> pb::Rule {
    let [.., b, c] = number.to_be_bytes();
    pb::Rule {
        vni: (number % 3) as u32,
        ip: format!("10.0.{b}.{c}"),
        mac: format!("02:00:00:00:{b:02x}:{c:02x}"),
        host_ip: "192.168.0.1".into(),
        group: group.into(),
        user_data: user_data.to_string().into(),
        ..pb::Rule::default()
    }
}

fn put(rules: Vec<pb::Rule>) -> pb::PutRequest {
    pb::PutRequest { rules, each_for_itself: false }
}

async fn list(routes: &mut RouteClient<Channel>, group: &str) -> Result<(i64, Table)> {
    let mut request = pb::ListRequest {
        of: Some(pb::list_request::Of::Group(group.into())),
        limit: 100,
        ..pb::ListRequest::default()
    };
    let mut table = Table::new();
    loop {
        let page = routes.list(request.clone()).await?.into_inner();
        request.revision = page.header.context("a header")?.revision;
        request.after = page.rules.last().map(|rule| pb::RuleKey { vni: rule.vni, ip: rule.ip.clone() });
        table.extend(page.rules.into_iter().map(|rule| ((rule.vni, rule.ip.clone()), rule)));
        if !page.more {
            return Ok((request.revision, table));
        }
    }
}

/// A watcher that moves to the next replica when its stream breaks, and checks the order of what it receives.
struct Watcher {
    addresses: Vec<String>,
    next: usize,
    position: i64,
    table: Table,
}

impl Watcher {
    fn new(cluster: &Cluster, first: usize) -> Self {
        Self { addresses: cluster.client_addresses(), next: first, position: 0, table: Table::new() }
    }

    async fn open(&mut self) -> Result<tonic::Streaming<pb::WatchResponse>> {
        let address = &self.addresses[self.next % self.addresses.len()];
        self.next += 1;
        let channel = endpoint(address)?.connect().await?;
        let request = pb::WatchRequest {
            groups: vec!["g".into()],
            from_revision: if self.position == 0 { 0 } else { self.position + 1 },
            progress_ms: 100,
            ..pb::WatchRequest::default()
        };
        if self.position == 0 {
            self.table.clear();
        }
        Ok(RouteClient::new(channel).watch(request).await?.into_inner())
    }

    /// Follows until everything up to `target` was delivered.
    async fn follow_to(&mut self, target: &Mutex<Option<i64>>) -> Result<()> {
        loop {
            if let Ok(mut messages) = self.open().await
                && self.take_from(&mut messages, target).await?
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// False where the stream broke.
    async fn take_from(
        &mut self,
        messages: &mut tonic::Streaming<pb::WatchResponse>,
        target: &Mutex<Option<i64>>,
    ) -> Result<bool> {
        while let Ok(Some(message)) = messages.message().await {
            self.take(message)?;
            if target.lock().await.is_some_and(|target| self.position >= target) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take(&mut self, message: pb::WatchResponse) -> Result<()> {
        let (kind, revision) = (message.kind(), message.revision);
        match kind {
            Kind::Snapshot => {
                ensure!(self.position == 0, "a snapshot in the middle of a watch");
                for rule in message.rules {
                    let twice = self.table.insert((rule.vni, rule.ip.clone()), rule);
                    ensure!(twice.is_none(), "{twice:?} came twice in a snapshot");
                }
            }
            Kind::Events => {
                for event in message.events {
                    ensure!(event.revision > self.position, "revision {} came again", event.revision);
                    match event.change.context("a change")? {
                        pb::event::Change::Put(rule) => self.table.insert((rule.vni, rule.ip.clone()), rule),
                        pb::event::Change::Deleted(key) => self.table.remove(&(key.vni, key.ip)),
                        other => anyhow::bail!("{other:?} was not asked for"),
                    };
                }
            }
            Kind::SnapshotEnd | Kind::Progress => {}
            other => anyhow::bail!("{other:?} was not asked for"),
        }
        // What a snapshot holds is only complete at its end: one that breaks off begins anew.
        if kind != Kind::Snapshot {
            self.position = revision.max(self.position);
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_on_all_replicas_have_the_final_table_though_leaders_are_killed() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let leader = cluster.leader()?;
    let filled =
        (0..2_000).map(|number| rule(number, if number % 4 == 0 { "other" } else { "g" }, 0)).collect();
    routes(&cluster, leader).await?.put(put(filled)).await?;
    let target = Arc::new(Mutex::new(None));
    let watchers: Vec<_> = (0..3)
        .map(|replica| {
            let (mut watcher, target) = (Watcher::new(&cluster, replica), Arc::clone(&target));
            tokio::spawn(async move {
                watcher.follow_to(&target).await?;
                Ok::<_, anyhow::Error>(watcher.table)
            })
        })
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let addresses = cluster.client_addresses();
    let done = Arc::new(AtomicU64::new(0));
    let writing = tokio::spawn(write_until(Arc::clone(&stop), Arc::clone(&done), addresses));
    for _ in 0..2 {
        let leader = cluster.leader()?;
        cluster.kill(leader)?;
        let before = done.load(Ordering::Relaxed);
        wait("writes to go on", || async { done.load(Ordering::Relaxed) > before + 50 }).await?;
        cluster.restart(leader)?;
    }
    stop.store(true, Ordering::Relaxed);
    writing.await??;
    let leader = cluster.leader()?;
    let mut routes = routes(&cluster, leader).await?;
    routes.put(put(vec![rule(1, "g", u64::MAX)])).await?;
    let (revision, table) = list(&mut routes, "g").await?;
    *target.lock().await = Some(revision);
    for watcher in watchers {
        let seen =
            tokio::time::timeout(PATIENCE, watcher).await.context("a watcher did not get there")???;
        ensure!(seen == table, "a watcher has another table than the cluster");
    }
    Ok(())
}

/// Puts rules, moves them between groups and deletes them, through any replica that accepts; counts what
/// succeeded.
async fn write_until(stop: Arc<AtomicBool>, done: Arc<AtomicU64>, addresses: Vec<String>) -> Result<()> {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let address = &addresses[number as usize % addresses.len()];
        let Ok(channel) = endpoint(address)?.timeout(Duration::from_secs(2)).connect().await else {
            number += 1;
            continue;
        };
        let mut routes = RouteClient::new(channel);
        for _ in 0..50 {
            number += 1;
            let place = number.wrapping_mul(7919) % 2_000;
            let outcome = match number % 5 {
                0 => {
                    let pb::Rule { vni, ip, .. } = rule(place, "", 0);
                    let keys = vec![pb::RuleKey { vni, ip }];
                    routes.delete(pb::DeleteRequest { keys, all_of: None }).await.map(drop)
                }
                1 => routes.put(put(vec![rule(place, "other", number)])).await.map(drop),
                _ => routes.put(put(vec![rule(place, "g", number)])).await.map(drop),
            };
            if outcome.is_err() {
                break;
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_and_revisions_survive_when_all_replicas_are_killed() -> Result<()> {
    let mut cluster = start(&[])?;
    let leader = cluster.leader()?;
    let mut client = routes(&cluster, leader).await?;
    let rules = (0..500).map(|number| rule(number, "g", number)).collect();
    let first = client.put(put(rules)).await?.into_inner().revision;
    client
        .delete(pb::DeleteRequest { keys: vec![pb::RuleKey { vni: 0, ip: "10.0.0.0".into() }], all_of: None })
        .await?;
    let (revision, before) = list(&mut client, "g").await?;
    cluster.kill_all()?;
    cluster.start_all()?;
    for replica in 0..3 {
        let (_, after) = list(&mut routes(&cluster, replica).await?, "g").await?;
        ensure!(after == before, "replica {replica} has another table");
    }
    // A watcher that was disconnected gets the deletion that it missed, and nothing else.
    let request = pb::WatchRequest {
        groups: vec!["g".into()],
        from_revision: first + 1,
        ..pb::WatchRequest::default()
    };
    let mut messages = patient(&cluster, 0).await?.watch(request).await?.into_inner();
    let message = tokio::time::timeout(PATIENCE, messages.message()).await??.context("a message")?;
    let deleted = pb::event::Change::Deleted(pb::RuleKey { vni: 0, ip: "10.0.0.0".into() });
    ensure!(message.events == [pb::Event { revision: first + 1, change: Some(deleted) }], "{message:?}");
    let later = routes(&cluster, 1).await?.put(put(vec![rule(1, "g", 1)])).await?.into_inner().revision;
    ensure!(later > revision, "revision {later} after {revision}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_watchers_are_served_though_some_never_read() -> Result<()> {
    const WATCHERS: usize = 2_000;
    let cluster = start(&[])?;
    let leader = cluster.leader()?;
    let mut writer = routes(&cluster, leader).await?;
    writer.put(put((0..50).map(|number| rule(number, "g", 0)).collect())).await?;
    let mut connections = Vec::new();
    let mut watchers = Vec::new();
    for number in 0..WATCHERS {
        if number % 100 == 0 {
            // A hundred streams per connection.
            connections.push(patient(&cluster, number / 100 % 3).await?);
        }
        let mut client = connections[number / 100].clone();
        let request = pb::WatchRequest { groups: vec!["g".into()], ..pb::WatchRequest::default() };
        watchers.push(client.watch(request).await?.into_inner());
    }
    // Two that never read, and are sent more than connections buffer.
    let mut never_read = Vec::new();
    for groups in [vec!["g".to_owned()], vec!["g".to_owned(), "big".to_owned()]] {
        let request = pb::WatchRequest { groups, ..pb::WatchRequest::default() };
        never_read.push(patient(&cluster, leader).await?.watch(request).await?.into_inner());
    }
    for round in 1..=20 {
        writer.put(put((0..5).map(|number| rule(number, "g", round)).collect())).await?;
        let large = (100..110)
            .map(|number| pb::Rule { user_data: vec![7; 32 << 10].into(), ..rule(number, "big", 0) });
        writer.put(put(large.collect())).await?;
    }
    let last = writer.put(put(vec![rule(0, "g", 999_999)])).await?.into_inner().revision;
    let mut told = tokio::task::JoinSet::new();
    for mut watcher in watchers {
        told.spawn(async move {
            loop {
                let message = watcher.message().await?.context("a watch ended")?;
                if message.revision >= last {
                    return Ok::<_, anyhow::Error>(());
                }
            }
        });
    }
    while let Some(one) =
        tokio::time::timeout(PATIENCE, told.join_next()).await.context("not all were told")?
    {
        one??;
    }
    drop(never_read);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_a_compacted_revision_is_refused_or_restarts_from_a_snapshot() -> Result<()> {
    let cluster = start(&[])?;
    let leader = cluster.leader()?;
    let mut client = patient(&cluster, leader).await?;
    for number in 0..5 {
        client.put(put(vec![rule(number, "g", number)])).await?;
    }
    let newest = client.put(put(vec![rule(0, "g", 9)])).await?.into_inner().revision;
    let compaction = etcd::CompactionRequest { revision: newest, physical: true };
    KvClient::new(cluster.channel(leader).await?).compact(compaction).await?;
    let watch = |snapshot_if_compacted| pb::WatchRequest {
        groups: vec!["g".into()],
        from_revision: 2,
        snapshot_if_compacted,
        ..pb::WatchRequest::default()
    };
    let mut refused = client.watch(watch(false)).await?.into_inner();
    let status = refused.message().await.err().context("it went on")?;
    ensure!(
        status.code() == Code::OutOfRange && status.message().contains(&newest.to_string()),
        "{status:?}"
    );
    let mut begun_anew = client.watch(watch(true)).await?.into_inner();
    let mut kinds = Vec::new();
    let mut rules = 0;
    while kinds.last() != Some(&Kind::SnapshotEnd) {
        let message = begun_anew.message().await?.context("it ended")?;
        rules += message.rules.len();
        kinds.push(message.kind());
    }
    ensure!(
        kinds == [Kind::Compacted, Kind::Snapshot, Kind::SnapshotEnd] && rules == 5,
        "{kinds:?}, {rules} rules"
    );
    Ok(())
}

/// It was confirmed, and told nothing until the cluster's revisions had come that far: after a restore an agent kept what
/// was gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_the_future_or_of_another_cluster_is_refused() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = patient(&cluster, 0).await?;
    let newest = client.put(put(vec![rule(1, "g", 0)])).await?.into_inner().revision;
    let from = |from_revision, cluster_id| pb::WatchRequest {
        groups: vec!["g".into()],
        from_revision,
        cluster_id,
        progress_ms: 100,
        ..pb::WatchRequest::default()
    };
    let mut begun = client.watch(from(newest + 1, 0)).await?.into_inner();
    let progress = begun.message().await?.context("it ended")?;
    ensure!(progress.kind() == Kind::Progress && progress.cluster_id != 0, "{progress:?}");
    client.watch(from(newest + 1, progress.cluster_id)).await?;
    let least = pb::WatchRequest { min_revision: newest + 2, ..from(0, 0) };
    for (request, named) in [
        (from(newest + 2, 0), format!("from_revision: {} is in the future", newest + 2)),
        (from(newest, 7), "cluster_id: the revisions are of cluster 0000000000000007".to_owned()),
        (least, format!("min_revision: {} is in the future", newest + 2)),
    ] {
        let status = client.watch(request).await.err().context("it was confirmed")?;
        ensure!(status.code() == Code::OutOfRange && status.message().contains(&named), "{status:?}");
    }
    // As the message says: the client that knows another cluster begins anew.
    client.watch(from(0, 7)).await?;
    Ok(())
}

/// How many rules a watch begins with; `None` while the replica serves none.
async fn shown(cluster: &Cluster, replica: usize) -> Option<usize> {
    let mut client = patient(cluster, replica).await.ok()?;
    let request = pb::WatchRequest { groups: vec!["g".into()], ..pb::WatchRequest::default() };
    let (mut messages, mut shown) = (client.watch(request).await.ok()?.into_inner(), 0);
    loop {
        let message = messages.message().await.ok()??;
        shown += message.rules.len();
        if message.kind() == Kind::SnapshotEnd {
            return Some(shown);
        }
    }
}

/// A replica that had been away showed what it had, as all that there was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_the_beginning_shows_all_that_was_written_before_it() -> Result<()> {
    let mut cluster = start(&[])?;
    let leader = cluster.leader()?;
    let follower = (leader + 1) % 3;
    let mut client = routes(&cluster, leader).await?;
    for round in 1..=4 {
        cluster.kill(follower)?;
        for number in 0..50 {
            client.put(put(vec![rule(round as u64 * 50 + number, "g", 0)])).await?;
        }
        cluster.spawn(follower)?;
        let shown = wait("the replica to serve a watch", || shown(&cluster, follower)).await?;
        ensure!(shown == round * 50, "{shown} of {} rules", round * 50);
    }
    Ok(())
}

/// `::ffff:10.0.0.1` was another rule than `10.0.0.1`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_has_one_name() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = routes(&cluster, 0).await?;
    let mapped = pb::Rule { vni: 9, ip: "::ffff:10.0.0.1".into(), ..rule(1, "g", 0) };
    client.put(put(vec![mapped])).await?;
    for ip in ["10.0.0.1", "::ffff:10.0.0.1", "::FFFF:a00:1"] {
        let lookups = vec![pb::Lookup { request_id: 0, vni: 9, ip: ip.into() }];
        let answers = client.get(pb::GetRequest { lookups, consistency: None }).await?.into_inner().answers;
        ensure!(answers[0].rule.as_ref().is_some_and(|rule| rule.ip == "10.0.0.1"), "{ip}: {answers:?}");
    }
    for (mac, named) in
        [("00:00:00:00:00:00", "no interface's"), ("01:00:5e:00:00:01", "a multicast address")]
    {
        let wrong = pb::Rule { host_mac: mac.into(), ..rule(1, "g", 0) };
        let status = client.put(put(vec![wrong])).await.err().context("it was written")?;
        ensure!(status.message().contains(named) && status.message().contains(mac), "{status:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_rule_is_refused_by_field_and_nothing_is_written() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = routes(&cluster, 0).await?;
    let wrong = pb::Rule { mac: "02:00".into(), ..rule(2, "g", 0) };
    let twice = vec![rule(1, "g", 0), rule(1, "g", 1)];
    for (rules, words) in [
        (vec![rule(1, "g", 0), wrong.clone()], ["rules[1].mac", "02:00"]),
        (twice, ["rules[1].ip", "rules[0]"]),
    ] {
        let status = client.put(put(rules)).await.err().context("it was written")?;
        ensure!(status.code() == Code::InvalidArgument, "{status:?}");
        ensure!(words.iter().all(|word| status.message().contains(word)), "{status:?}");
    }
    ensure!(list(&mut client, "g").await?.1.is_empty(), "a refused batch was written");
    let request = pb::PutRequest { rules: vec![rule(1, "g", 0), wrong], each_for_itself: true };
    let codes: Vec<i32> =
        client.put(request).await?.into_inner().statuses.iter().map(|status| status.code).collect();
    ensure!(codes == [0, i32::from(Code::InvalidArgument)], "{codes:?}");
    ensure!(list(&mut client, "g").await?.1.len() == 1, "the right one was not written");
    let lookups = vec![
        pb::Lookup { request_id: 7, vni: 1, ip: "10.0.0.1".into() },
        pb::Lookup { request_id: 8, vni: 9, ip: "::1".into() },
    ];
    let answers = client.get(pb::GetRequest { lookups, consistency: None }).await?.into_inner().answers;
    let found: Vec<(u64, bool)> = answers.iter().map(|answer| (answer.request_id, answer.found)).collect();
    ensure!(found == [(7, true), (8, false)], "{found:?}");
    let status = client.watch(pb::WatchRequest::default()).await.err().context("a watch of nothing")?;
    ensure!(status.code() == Code::InvalidArgument, "{status:?}");
    let beat = pb::HeartbeatRequest { node: "nobody".into(), ..pb::HeartbeatRequest::default() };
    let status = client.heartbeat(beat).await.err().context("a heartbeat of nobody")?;
    ensure!(status.code() == Code::NotFound && status.message().contains("put it"), "{status:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_keeps_its_copy_across_restarts_and_its_node_expires_without_it() -> Result<()> {
    let cluster = start(&[])?;
    let leader = cluster.leader()?;
    let mut client = routes(&cluster, leader).await?;
    client.put(put((0..50).map(|number| rule(number, "g", 0)).collect())).await?;
    let folder = tempfile::tempdir()?;
    let seen = folder.path().join("seen.jsonl");
    let start_agent = || {
        let mut command = cluster.quoin(&["route", "agent", "--group", "g", "--node", "n1", "--ttl", "0.5"]);
        command.args(["--endpoints", &cluster.endpoints()]);
        command.arg("--dir").arg(folder.path().join("copy"));
        command.args(["--hook", &format!("cat >> {}", seen.display())]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    let lines = || std::fs::read_to_string(&seen).map_or(0, |text| text.lines().count());
    let mut agent = start_agent()?;
    let has = |count| {
        let seen = lines();
        async move { (seen >= count).then_some(()).ok_or_else(|| format!("{seen} of {count}")) }
    };
    wait("the agent to have all rules", || has(50)).await?;
    let alive = |client: &RouteClient<Channel>| {
        let mut client = client.clone();
        async move {
            let nodes = client.nodes(pb::NodesRequest::default()).await.map(tonic::Response::into_inner);
            nodes.ok()?.nodes.first()?.status.as_ref().map(|status| status.alive)
        }
    };
    wait("the node to be alive", || async { alive(&client).await == Some(true) }).await?;
    agent.kill()?;
    agent.wait()?;
    wait("the node to be found dead", || async { alive(&client).await == Some(false) }).await?;
    client.put(put(vec![rule(1, "g", 1)])).await?;
    let pb::Rule { vni, ip, .. } = rule(2, "", 0);
    client.delete(pb::DeleteRequest { keys: vec![pb::RuleKey { vni, ip }], all_of: None }).await?;
    let mut agent = start_agent()?;
    wait("the agent to get what it missed", || has(52)).await?;
    wait("the node to be alive again", || async { alive(&client).await == Some(true) }).await?;
    kill_process(Pid::from_child(&agent), Signal::TERM)?;
    let ended = agent.wait()?;
    ensure!(ended.success(), "asked to end, the agent ended with {ended}");
    // It got only what it missed, not everything again.
    let text = std::fs::read_to_string(&seen)?;
    let missed: Vec<&str> = text.lines().skip(50).collect();
    ensure!(missed.len() == 2, "{missed:?}");
    ensure!(missed[0].contains(r#""put""#) && missed[1].contains(r#""delete""#), "{missed:?}");
    Ok(())
}

/// Once refused, it asked for everything still as of the old cluster, and was refused for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_of_a_cluster_that_was_made_anew_fetches_everything() -> Result<()> {
    let cluster = start(&[])?;
    let mut client = patient(&cluster, 0).await?;
    client.put(put((0..5).map(|number| rule(number, "g", 0)).collect())).await?;
    let folder = tempfile::tempdir()?;
    let seen = folder.path().join("seen.jsonl");
    let start_agent = || {
        let mut command = cluster.quoin(&["route", "agent", "--group", "g", "--once"]);
        command.args(["--endpoints", &cluster.endpoints()]);
        command.arg("--dir").arg(folder.path().join("copy"));
        command.args(["--hook", &format!("cat >> {}", seen.display())]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    ensure!(start_agent()?.wait()?.success());
    // The copy becomes one of another cluster, with a rule that this one does not have.
    let path = folder.path().join("copy").join("rules.jsonl");
    let text = std::fs::read_to_string(&path)?;
    let of = text.lines().rev().find(|line| line.starts_with("{\"cluster\":")).context("no cluster")?;
    std::fs::write(&path, text.replace(of, "{\"cluster\":7}"))?;
    let pb::Rule { vni, ip, .. } = rule(2, "", 0);
    client.delete(pb::DeleteRequest { keys: vec![pb::RuleKey { vni, ip }], all_of: None }).await?;
    let mut agent = start_agent()?;
    let ended = wait("the agent to fetch everything", || {
        let ended = agent.try_wait();
        async { ended.ok()? }
    });
    let ended = ended.await;
    let _ = agent.kill();
    agent.wait()?;
    ensure!(ended?.success());
    let text = std::fs::read_to_string(&seen)?;
    let changes: Vec<&str> = text.lines().skip(5).collect();
    ensure!(changes.len() == 1 && changes[0].contains(r#""delete""#), "{changes:?}");
    ensure!(std::fs::read_to_string(&path)?.lines().any(|line| line == of), "of the old cluster still");
    Ok(())
}

/// Readers of CSV drop blanks at the ends of texts, and would load another group.
#[tokio::test(flavor = "multi_thread")]
async fn rules_that_are_listed_as_csv_are_loaded_as_they_were() -> Result<()> {
    let cluster = Cluster::dev(PROGRAM, &[])?;
    let mut routes = routes(&cluster, 0).await?;
    let texts: [(&str, &[u8]); 6] = [
        ("plain", b"text"),
        (" blanks at both ends ", b"\ta\n"),
        ("\"quotes\", commas,\nlines\r\n", b"a,b\n\"c\""),
        ("\u{a0}of another kind", "\u{2003}".as_bytes()),
        ("bytes", &[0xff, 0, b' ']),
        ("empty", b""),
    ];
    let ruled = |(number, (group, user_data)): (u64, (&str, &[u8]))| {
        let group = group.to_owned();
        pb::Rule { vni: 7, group, user_data: user_data.to_vec().into(), ..rule(number, "", 0) }
    };
    let rules: Vec<_> = (0..).zip(texts).map(ruled).collect();
    routes.put(put(rules.clone())).await?;
    let file = cluster.folder().join("rules.csv");
    let url = format!("http://{}/v1/rules?vni=7", cluster.http_address(0));
    let curl = std::process::Command::new("curl")
        .args(["-sf", "-H", "Accept: text/csv", "-o"])
        .arg(&file)
        .arg(&url)
        .status()?;
    ensure!(curl.success(), "curl ended with {curl}");
    let all_of = Some(pb::delete_request::AllOf::Vni(7));
    routes.delete(pb::DeleteRequest { all_of, ..Default::default() }).await?;
    let load = cluster.quoin(&["route", "load", "--endpoints", &cluster.endpoints()]).arg(&file).output()?;
    ensure!(load.status.success(), "{load:?}");
    let of = Some(pb::list_request::Of::Vni(7));
    let loaded = routes.list(pb::ListRequest { of, ..Default::default() }).await?.into_inner().rules;
    let loaded: Vec<_> = loaded.into_iter().map(|rule| pb::Rule { revision: 0, ..rule }).collect();
    assert_eq!(loaded, rules);
    Ok(())
}
