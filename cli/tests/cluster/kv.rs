//! Keys.

use crate::harness::{Cluster, PATIENCE, PROGRAM, SMALL, wait};
use anyhow::{Context, Result, ensure};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::cluster_client::ClusterClient;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quoin_proto::etcdserverpb::watch_client::WatchClient;
use quoin_proto::mvccpb::KeyValue;
use quoin_proto::quoin::kv::v1 as quoin;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tonic::transport::{Channel, Endpoint};

fn put_request(key: &str, value: impl Into<bytes::Bytes>) -> etcd::PutRequest {
    etcd::PutRequest { key: key.to_string().into(), value: value.into(), ..Default::default() }
}

async fn get(kv: &mut KvClient<Channel>, key: &str) -> Result<Option<KeyValue>> {
    let request = etcd::RangeRequest { key: key.to_string().into(), ..Default::default() };
    Ok(kv.range(request).await?.into_inner().kvs.into_iter().next())
}

/// Writers that go on whatever happens, and remember what was acknowledged.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeMap<String, u64>>>,
    count: Arc<AtomicU64>,
    writers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(cluster: &Cluster, writers: usize) -> Self {
        let load = Self {
            stop: Arc::default(),
            acknowledged: Arc::default(),
            count: Arc::default(),
            writers: Vec::new(),
        };
        let addresses: Vec<String> = (0..3).map(|replica| cluster.address(replica, 0)).collect();
        let spawn = |writer: usize| {
            let (stop, acknowledged, count) =
                (Arc::clone(&load.stop), Arc::clone(&load.acknowledged), Arc::clone(&load.count));
            let addresses = addresses.clone();
            tokio::spawn(async move {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let address = &addresses[(writer + number as usize / 50) % addresses.len()];
                    number = write_some(writer, number, address, &stop, &acknowledged, &count).await;
                }
            })
        };
        let writers = (0..writers).map(spawn).collect();
        Self { writers, ..load }
    }

    async fn more(&self, writes: u64) -> Result<()> {
        let target = self.count.load(Ordering::Relaxed) + writes;
        wait("the load to go on", || async { self.count.load(Ordering::Relaxed) >= target }).await
    }

    async fn end(self) -> Result<BTreeMap<String, u64>> {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers {
            writer.await?;
        }
        Ok(std::mem::take(&mut *self.acknowledged.lock().await))
    }
}

/// Writes through one replica until that fails, each key's values in growing order.
async fn write_some(
    writer: usize,
    mut number: u64,
    address: &str,
    stop: &AtomicBool,
    acknowledged: &Mutex<BTreeMap<String, u64>>,
    count: &AtomicU64,
) -> u64 {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let Ok(channel) =
        endpoint.connect_timeout(Duration::from_millis(300)).timeout(Duration::from_secs(3)).connect().await
    else {
        tokio::time::sleep(Duration::from_millis(20)).await;
        return number + 50;
    };
    let mut kv = KvClient::new(channel);
    for _ in 0..50 {
        number += 1;
        let key = format!("load/{writer}/{}", number % 17);
        let value = format!("{number} {}", "x".repeat(700));
        if stop.load(Ordering::Relaxed) {
            return number;
        }
        if kv.put(put_request(&key, value)).await.is_err() {
            // The next replica's turn.
            return number + 50;
        }
        acknowledged.lock().await.insert(key, number);
        count.fetch_add(1, Ordering::Relaxed);
    }
    number
}

/// Each key must have its acknowledged value or a later one (one of unknown fate).
async fn check_acknowledged(
    cluster: &Cluster,
    replica: usize,
    acknowledged: &BTreeMap<String, u64>,
) -> Result<()> {
    let mut kv = cluster.kv(replica).await?;
    for (key, number) in acknowledged {
        let stored = get(&mut kv, key).await?.with_context(|| format!("{key} is lost"))?;
        let text = String::from_utf8(stored.value.to_vec())?;
        let found: u64 = text.split(' ').next().unwrap_or_default().parse()?;
        ensure!(found >= *number, "{key}: {number} was acknowledged, replica {replica} has {found}");
    }
    Ok(())
}

/// All replicas have the same keys at the same revision.
async fn check_equal(cluster: &Cluster, replicas: &[usize]) -> Result<()> {
    let revision = cluster
        .kv(replicas[0])
        .await?
        .range(etcd::RangeRequest { key: "x".into(), ..Default::default() })
        .await?;
    let revision = revision.into_inner().header.context("a header")?.revision;
    let mut hashes = Vec::new();
    for replica in replicas {
        // A linearizable read first: then the replica has the revision.
        get(&mut cluster.kv(*replica).await?, "x").await?;
        let request = etcd::HashKvRequest { revision };
        hashes.push(
            MaintenanceClient::new(cluster.channel(*replica).await?)
                .hash_kv(request)
                .await?
                .into_inner()
                .hash,
        );
    }
    ensure!(
        hashes.windows(2).all(|pair| pair[0] == pair[1]),
        "hashes differ at revision {revision}: {hashes:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost_when_replicas_are_killed_at_random_moments() -> Result<()> {
    let mut cluster = Cluster::start(SMALL).await?;
    let load = Load::start(&cluster, 8);
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = setting("QUOIN_CRASH_ROUNDS").unwrap_or(10);
    let seed = setting("QUOIN_CRASH_SEED").unwrap_or_else(|| std::process::id().into());
    writeln!(std::io::stderr(), "QUOIN_CRASH_SEED={seed}")?;
    // An xorshift generator: which replica, and after how many writes, before and while it is away.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..rounds {
        load.more(random(300)).await?;
        // Two in three times the leader: that is the harder case.
        let victim = match random(3) {
            0 => random(3) as usize,
            _ => cluster.leader().await?,
        };
        cluster.kill(victim)?;
        load.more(random(200)).await?;
        cluster.run(victim)?;
        cluster.wait_ready(victim).await?;
    }
    let acknowledged = load.end().await?;
    ensure!(acknowledged.len() > 50, "only {} keys were written", acknowledged.len());
    for replica in 0..3 {
        check_acknowledged(&cluster, replica, &acknowledged).await?;
    }
    check_equal(&cluster, &[0, 1, 2]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_there_after_all_replicas_were_killed_at_once() -> Result<()> {
    let mut cluster = Cluster::start(SMALL).await?;
    let load = Load::start(&cluster, 4);
    load.more(300).await?;
    let mut kv = cluster.kv(0).await?;
    let lease = LeaseClient::new(cluster.channel(0).await?);
    let lease = lease.clone().lease_grant(etcd::LeaseGrantRequest { ttl: 600, id: 77 }).await?.into_inner();
    kv.put(etcd::PutRequest { lease: lease.id, ..put_request("leased", "v") }).await?;
    let before = get(&mut kv, "leased").await?.context("just written")?;
    for replica in 0..3 {
        cluster.kill(replica)?;
    }
    let acknowledged = load.end().await?;
    for replica in 0..3 {
        cluster.run(replica)?;
    }
    for replica in 0..3 {
        cluster.wait_ready(replica).await?;
        check_acknowledged(&cluster, replica, &acknowledged).await?;
        ensure!(
            get(&mut cluster.kv(replica).await?, "leased").await?.as_ref() == Some(&before),
            "the leased key changed"
        );
    }
    let reply = cluster.kv(1).await?.put(put_request("after", "v")).await?.into_inner();
    ensure!(
        reply.header.is_some_and(|header| header.revision > before.mod_revision),
        "revisions ran backwards"
    );
    let request = etcd::LeaseTimeToLiveRequest { id: lease.id, keys: true };
    let left = LeaseClient::new(cluster.channel(2).await?).lease_time_to_live(request).await?.into_inner();
    ensure!(left.ttl > 0 && left.keys == ["leased"], "the lease is not as it was: {left:?}");
    check_equal(&cluster, &[0, 1, 2]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_away_too_long_gets_a_snapshot_and_answers_the_same() -> Result<()> {
    let mut cluster = Cluster::start(SMALL).await?;
    let away = (cluster.leader().await? + 1) % 3;
    let others: Vec<usize> = (0..3).filter(|replica| *replica != away).collect();
    cluster.kill(away)?;
    let mut kv = cluster.kv(others[0]).await?;
    let value = bytes::Bytes::from(vec![7; 64 << 10]);
    let mut written = 0;
    // Until the log has been purged well beyond where the replica stopped.
    while written < 400 {
        kv.put(put_request(&format!("k{}", written % 40), value.clone())).await?;
        written += 1;
    }
    wait("the log to be purged", || async {
        cluster.metric(others[0], "quoin_log_bytes").is_some_and(|bytes| bytes < 16e6)
    })
    .await?;
    cluster.run(away)?;
    cluster.wait_ready(away).await?;
    check_equal(&cluster, &[0, 1, 2]).await?;
    wait("the snapshot to be noted", || async { cluster.log(away).contains("installed a snapshot") }).await?;
    // And it takes part again: with one of the others gone, its vote is needed.
    cluster.kill(others[1])?;
    cluster.leader().await?;
    let mut kv = cluster.kv(away).await?;
    wait("a write through it", || {
        let mut kv = kv.clone();
        async move { kv.put(put_request("after", "v")).await.is_ok() }
    })
    .await?;
    ensure!(get(&mut kv, "after").await?.is_some(), "the write is not there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_added_promoted_and_removed_under_load() -> Result<()> {
    let mut cluster = Cluster::start(SMALL).await?;
    let load = Load::start(&cluster, 4);
    load.more(100).await?;
    let leader = cluster.leader().await?;
    let mut members = ClusterClient::new(cluster.channel(leader).await?);
    let peer = format!("http://{}", cluster.address(3, 1));
    let add = etcd::MemberAddRequest { peer_ur_ls: vec![peer], is_learner: true };
    let added = members.member_add(add).await?.into_inner().member.context("the new member")?;
    cluster.run(3)?;
    cluster.wait_ready(3).await?;
    let promote = || {
        let mut members = members.clone();
        async move { members.member_promote(etcd::MemberPromoteRequest { id: added.id }).await.is_ok() }
    };
    wait("the learner to be ready to vote", promote).await?;
    load.more(100).await?;
    let gone = (leader + 1) % 3;
    let list =
        members.member_list(etcd::MemberListRequest { linearizable: true }).await?.into_inner().members;
    ensure!(list.len() == 4 && list.iter().all(|member| !member.is_learner), "{list:?}");
    let victim =
        list.iter().find(|member| member.name == format!("r{gone}")).context("the member to remove")?.id;
    members.member_remove(etcd::MemberRemoveRequest { id: victim }).await?;
    load.more(100).await?;
    wait("the removed one to know", || async {
        cluster.log(gone).contains("delete its data folder before adding it anew")
    })
    .await?;
    let acknowledged = load.end().await?;
    let rest: Vec<usize> = (0..4).filter(|replica| *replica != gone).collect();
    for replica in &rest {
        check_acknowledged(&cluster, *replica, &acknowledged).await?;
    }
    check_equal(&cluster, &rest).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_linearizable_read_on_any_replica_sees_what_was_acknowledged_before() -> Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let newest = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut kv = cluster.kv(0).await?;
    kv.put(put_request("counter", "0")).await?;
    let (writing, stopped) = (Arc::clone(&newest), Arc::clone(&stop));
    let writer = tokio::spawn(async move {
        for number in 1.. {
            if stopped.load(Ordering::SeqCst) {
                break;
            }
            kv.put(put_request("counter", number.to_string())).await?;
            writing.store(number, Ordering::SeqCst);
        }
        Ok::<(), anyhow::Error>(())
    });
    for round in 0..300 {
        let mut kv = cluster.kv(round % 3).await?;
        let before = newest.load(Ordering::SeqCst);
        let stored = get(&mut kv, "counter").await?.context("the counter")?;
        let seen: u64 = std::str::from_utf8(&stored.value)?.parse()?;
        ensure!(seen >= before, "replica {} showed {seen} after {before} was acknowledged", round % 3);
    }
    stop.store(true, Ordering::SeqCst);
    writer.await?
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_across_leader_changes_without_gap_or_duplicate() -> Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    let load = Load::start(&cluster, 4);
    let (mut next, mut seen) = (2, BTreeMap::new());
    for round in 0..3 {
        load.more(50).await?;
        let replica = (cluster.leader().await? + 1) % 3;
        let target = seen.len() + 100;
        while seen.len() < target {
            // An end of the stream is no failure: it is taken up again where it ended.
            let _ = watch_from(&cluster, replica, &mut next, &mut seen, target).await;
        }
        let victim = if round == 1 { replica } else { cluster.leader().await? };
        cluster.kill(victim)?;
        load.more(20).await?;
        cluster.run(victim)?;
        cluster.wait_ready(victim).await?;
    }
    load.end().await?;
    let mut kv = cluster.kv(0).await?;
    let all = etcd::RangeRequest { key: "load/".into(), range_end: "load0".into(), ..Default::default() };
    let newest = kv.range(all.clone()).await?.into_inner().header.context("a header")?.revision;
    while next <= newest {
        let before = next;
        let target = usize::MAX;
        let reading = watch_from(&cluster, 1, &mut next, &mut seen, target);
        let _ = tokio::time::timeout(Duration::from_millis(500), reading).await;
        ensure!(next > before, "the watch stopped at {before} of {newest}");
    }
    // Every revision is one put of the load: none may be missing.
    let missing: Vec<i64> = (2..=newest).filter(|revision| !seen.contains_key(revision)).collect();
    ensure!(missing.is_empty(), "revisions {missing:?} were never seen");
    Ok(())
}

/// Takes events until the stream ends or enough are there. A revision that comes twice is an error at once.
async fn watch_from(
    cluster: &Cluster,
    replica: usize,
    next: &mut i64,
    seen: &mut BTreeMap<i64, bytes::Bytes>,
    target: usize,
) -> Result<()> {
    let create = etcd::WatchCreateRequest {
        key: "load/".into(),
        range_end: "load0".into(),
        start_revision: *next,
        ..Default::default()
    };
    let request =
        etcd::WatchRequest { request_union: Some(etcd::watch_request::RequestUnion::CreateRequest(create)) };
    let outgoing = tokio_stream::StreamExt::chain(tokio_stream::iter([request]), tokio_stream::pending());
    let endpoint = Endpoint::from_shared(format!("http://{}", cluster.address(replica, 0)))?;
    let channel = endpoint.connect().await?;
    let mut events = WatchClient::new(channel).watch(outgoing).await?.into_inner();
    while seen.len() < target {
        let message = events.message().await?.context("the watch ended")?;
        for event in message.events {
            let kv = event.kv.context("an event has a key")?;
            assert!(kv.mod_revision >= *next, "revision {} came again", kv.mod_revision);
            *next = kv.mod_revision + 1;
            seen.insert(kv.mod_revision, kv.key);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_a_time_to_live_goes_though_the_leader_was_killed() -> Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    let leader = cluster.leader().await?;
    let other = (leader + 1) % 3;
    let mut leases = LeaseClient::new(cluster.channel(other).await?);
    leases.lease_grant(etcd::LeaseGrantRequest { ttl: 2, id: 5 }).await?;
    let mut kv = cluster.kv(other).await?;
    kv.put(etcd::PutRequest { lease: 5, ..put_request("leased", "v") }).await?;
    let mut own = quoin::kv_client::KvClient::new(cluster.channel(other).await?);
    let put = quoin::PutRequest {
        key: "expiring".into(),
        ttl: Some(quoin::put_request::Ttl::TtlMs(1500)),
        ..Default::default()
    };
    own.put(put).await?;
    cluster.kill(leader)?;
    for key in ["leased", "expiring"] {
        let gone = || {
            let mut kv = kv.clone();
            async move { matches!(get(&mut kv, key).await, Ok(None)) }
        };
        wait(&format!("{key} to expire"), gone).await?;
    }
    let refused = kv
        .put(etcd::PutRequest { lease: 5, ..put_request("late", "v") })
        .await
        .expect_err("the lease is gone");
    ensure!(refused.message() == "etcdserver: requested lease not found", "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_refused_with_etcds_words() -> Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let mut kv = cluster.kv(0).await?;
    let words = |status: tonic::Status| status.message().to_string();
    let refused = kv.put(put_request("", "v")).await.map(|_| ()).map_err(words);
    assert_eq!(refused, Err("etcdserver: key is not provided".into()));
    let refused = kv.put(put_request("k", vec![0; 1_600_000])).await.map(|_| ()).map_err(words);
    assert_eq!(refused, Err("etcdserver: request is too large".into()));
    let old = etcd::RangeRequest { key: "k".into(), revision: 99, ..Default::default() };
    let refused = kv.range(old).await.map(|_| ()).map_err(words);
    assert_eq!(refused, Err("etcdserver: mvcc: required revision is a future revision".into()));
    let put =
        || etcd::RequestOp { request: Some(etcd::request_op::Request::RequestPut(put_request("k", "v"))) };
    let twice = etcd::TxnRequest { success: vec![put(), put()], ..Default::default() };
    let refused = kv.txn(twice).await.map(|_| ()).map_err(words);
    assert_eq!(refused, Err("etcdserver: duplicate key given in txn request".into()));
    let many = etcd::TxnRequest { success: (0..129).map(|_| put()).collect(), ..Default::default() };
    let refused = kv.txn(many).await.map(|_| ()).map_err(words);
    assert_eq!(refused, Err("etcdserver: too many operations in txn request".into()));
    for _ in 0..3 {
        kv.put(put_request("k", "v")).await?;
    }
    kv.compact(etcd::CompactionRequest { revision: 3, physical: false }).await?;
    let old = etcd::RangeRequest { key: "k".into(), revision: 2, ..Default::default() };
    let refused = kv.range(old).await.map(|_| ()).map_err(words);
    assert_eq!(refused, Err("etcdserver: mvcc: required revision has been compacted".into()));
    Ok(())
}

/// The first version of this test took a read that timed out for a closed connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_a_port_closes_that_connection_and_is_counted() -> Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let ports = [
        "quoin_client_garbage_connections_total",
        "quoin_peer_garbage_connections",
        "quoin_http_garbage_connections_total",
    ];
    for (offset, metric) in ports.into_iter().enumerate() {
        let before = cluster.metric(0, metric).with_context(|| format!("{metric} is not told"))?;
        for garbage in [&[0xfe; 4096][..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
            let mut stream = TcpStream::connect(("127.0.0.1", cluster.port(0, offset as u16)))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(garbage)?;
            match std::io::Read::read_to_end(&mut stream, &mut Vec::new()) {
                Ok(_) => {}
                Err(error) => ensure!(error.kind() == std::io::ErrorKind::ConnectionReset, "{error}"),
            }
        }
        wait("both to be counted", || async { cluster.metric(0, metric) == Some(before + 2.0) }).await?;
    }
    cluster.kv(0).await?.put(put_request("still", "here")).await?;
    Ok(())
}

/// What a command writes that must end by itself, unsuccessfully.
async fn last_words(mut command: Command) -> Result<String> {
    let mut said = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone()?);
    let child = Mutex::new(command.spawn()?);
    let ended =
        wait("the node to end", || async { !matches!(child.lock().await.try_wait(), Ok(None)) }).await;
    let mut child = child.into_inner();
    if ended.is_err() {
        // An error: it has ended just now.
        let _ = child.kill();
    }
    let status = child.wait()?;
    let mut text = String::new();
    std::io::Seek::rewind(&mut said)?;
    std::io::Read::read_to_string(&mut said, &mut text)?;
    ended.with_context(|| text.clone())?;
    ensure!(!status.success(), "it ended as if all were well:\n{text}");
    Ok(text)
}

/// `serve` on ports of no replica, with what the test gives it besides.
fn elsewhere(cluster: &Cluster, name: &str, data_dir: PathBuf, settings: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--name", name, "--data-dir"]).arg(data_dir);
    for (place, flag) in
        ["--listen-client", "--listen-peer", "--listen-http", "--listen-resp"].into_iter().enumerate()
    {
        command.args([flag, &cluster.address(4, place as u16)]);
    }
    command.args(settings);
    command
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Two nodes with one id were only found out when they happened to dial each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_node_with_a_members_id_ends_and_names_the_first() -> Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    cluster.kv(0).await?.put(put_request("k", "v")).await?;
    // Started twice, with one name and cluster, on another folder.
    let founders: Vec<String> =
        (0..3).map(|other| format!("r{other}={}", cluster.address(other, 1))).collect();
    let settings = ["--cluster", &founders.join(","), "--advertise-peer", &cluster.address(1, 1)];
    let fresh = cluster.folder.path().join("fresh");
    let text = last_words(elsewhere(&cluster, "r1", fresh, &settings)).await?;
    let first = format!("reached at {}", cluster.address(1, 1));
    ensure!(text.contains("another node runs as member") && text.contains(&first), "{text}");
    // On a copy of its folder, while the first one runs again.
    cluster.kill(1)?;
    let copy = cluster.folder.path().join("copy");
    copy_folder(&cluster.data_dir(1), &copy)?;
    cluster.run(1)?;
    cluster.wait_ready(1).await?;
    let text = last_words(elsewhere(&cluster, "r1", copy, &[])).await?;
    ensure!(text.contains("another node runs as member") && text.contains(&first), "{text}");
    // The first one has not noticed, and a restart of the others does not make it a newcomer.
    for replica in [0, 2] {
        cluster.kill(replica)?;
        cluster.run(replica)?;
        cluster.wait_ready(replica).await?;
    }
    cluster.wait_ready(1).await?;
    cluster.kv(1).await?.put(put_request("k", "w")).await?;
    Ok(())
}

/// A member that was removed while it was down waited for ever, once those that removed it had been restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_removed_while_it_was_down_ends_when_it_comes_back() -> Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    cluster.kill(2)?;
    let mut members = ClusterClient::new(cluster.channel(cluster.leader().await?).await?);
    let list =
        members.member_list(etcd::MemberListRequest { linearizable: true }).await?.into_inner().members;
    let gone = list.iter().find(|member| member.name == "r2").context("the member")?.id;
    members.member_remove(etcd::MemberRemoveRequest { id: gone }).await?;
    // The others have nothing but their folders from which to know it.
    for replica in [0, 1] {
        cluster.kill(replica)?;
    }
    for replica in [0, 1] {
        cluster.run(replica)?;
    }
    for replica in [0, 1] {
        cluster.wait_ready(replica).await?;
    }
    let text = last_words(cluster.command(2)).await?;
    let words = format!("member {gone:x} was removed from cluster");
    ensure!(text.contains(&words) && text.contains("delete its data folder"), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_must_not_start_says_why() -> Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    let mut kv = cluster.kv(0).await?;
    for byte in 1..5 {
        kv.put(put_request("k", vec![byte; 5000])).await?;
    }
    // What replica 1 has applied, it has on disk.
    get(&mut cluster.kv(1).await?, "k").await?;
    // Its folder is in use.
    let text = last_words(elsewhere(&cluster, "r0", cluster.data_dir(0), &[])).await?;
    ensure!(text.contains("in use by another process"), "{text}");
    // The folder of another node.
    cluster.kill(1)?;
    let text = last_words(elsewhere(&cluster, "other", cluster.data_dir(1), &[])).await?;
    ensure!(text.contains("belongs to the node named \"r1\""), "{text}");
    // The folder of another cluster: by the founders' list, and by the cluster that it is to join.
    let other = format!("r1={}", cluster.address(4, 1));
    let text = last_words(elsewhere(&cluster, "r1", cluster.data_dir(1), &["--cluster", &other])).await?;
    ensure!(text.contains("belongs to cluster") && text.contains("describe cluster"), "{text}");
    let stranger = Cluster::start(&[]).await?;
    let join = ["--join", &stranger.address(0, 1)];
    let text = last_words(elsewhere(&cluster, "r1", cluster.data_dir(1), &join)).await?;
    ensure!(text.contains("belongs to cluster") && text.contains(&stranger.address(0, 1)), "{text}");
    drop(stranger);
    // A byte in the middle of the log is not what it was.
    let log = cluster.data_dir(1).join("log").join("0000000000000001.log");
    let mut bytes = std::fs::read(&log)?;
    let place = bytes.windows(100).position(|window| window == [1; 100]).context("the written value")?;
    bytes[place + 50] ^= 1;
    std::fs::write(&log, &bytes)?;
    let text = last_words(elsewhere(&cluster, "r1", cluster.data_dir(1), &[])).await?;
    ensure!(text.contains("0000000000000001.log is damaged at byte"), "{text}");
    Ok(())
}
