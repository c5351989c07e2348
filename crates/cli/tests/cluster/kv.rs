//! The kv face, through etcd's API mostly, and the life of replicas: killed, restarted, left behind, added
//! and removed.

use crate::harness::{Clients, Cluster, PATIENCE, PROGRAM, SMALL, endpoint, start, wait};
use anyhow::{Context, Result, ensure};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::cluster_client::ClusterClient;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quoin_proto::etcdserverpb::watch_client::WatchClient;
use quoin_proto::mvccpb::KeyValue;
use quoin_proto::quoin::kv::v1 as quoin;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tonic::transport::Channel;

fn put_request(key: &str, value: impl Into<bytes::Bytes>) -> etcd::PutRequest {
    etcd::PutRequest { key: key.to_string().into(), value: value.into(), ..Default::default() }
}

async fn get(kv: &mut KvClient<Channel>, key: &str) -> Result<Option<KeyValue>> {
    let request = etcd::RangeRequest { key: key.to_string().into(), ..Default::default() };
    Ok(kv.range(request).await?.into_inner().kvs.into_iter().next())
}

/// Writers that keep going through any failure, and remember what was acknowledged.
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
        let addresses = cluster.client_addresses();
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
        wait("the load to make progress", || async { self.count.load(Ordering::Relaxed) >= target }).await
    }

    async fn end(self) -> Result<BTreeMap<String, u64>> {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers {
            writer.await?;
        }
        Ok(std::mem::take(&mut *self.acknowledged.lock().await))
    }
}

/// Writes fifty times through one replica, or until a write fails. The values of each key grow.
async fn write_some(
    writer: usize,
    mut number: u64,
    address: &str,
    stop: &AtomicBool,
    acknowledged: &Mutex<BTreeMap<String, u64>>,
    count: &AtomicU64,
) -> u64 {
    let endpoint = endpoint(address).expect("an address").timeout(Duration::from_secs(3));
    let Ok(channel) = endpoint.connect().await else {
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
            // On to the next replica.
            return number + 50;
        }
        acknowledged.lock().await.insert(key, number);
        count.fetch_add(1, Ordering::Relaxed);
    }
    number
}

/// Checks that each key has its acknowledged value or a later one, whose write had an unknown outcome.
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

/// Checks that the replicas have the same keys at the same revision.
async fn check_equal(cluster: &Cluster, replicas: &[usize]) -> Result<()> {
    let revision = cluster
        .kv(replicas[0])
        .await?
        .range(etcd::RangeRequest { key: "x".into(), ..Default::default() })
        .await?;
    let revision = revision.into_inner().header.context("a header")?.revision;
    let mut hashes = Vec::new();
    for replica in replicas {
        // After a linearizable read the replica has applied the revision.
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
    let mut cluster = start(SMALL)?;
    let load = Load::start(&cluster, 8);
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = setting("QUOIN_CRASH_ROUNDS").unwrap_or(10);
    let seed = setting("QUOIN_CRASH_SEED").unwrap_or_else(|| std::process::id().into());
    eprintln!("QUOIN_CRASH_SEED={seed}");
    // An xorshift generator. It draws which replica to kill, and how many writes to wait for before and
    // after.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..rounds {
        load.more(random(300)).await?;
        // The leader in two of three rounds: that is the harder case.
        let victim = match random(3) {
            0 => random(3) as usize,
            _ => cluster.leader()?,
        };
        cluster.kill(victim)?;
        load.more(random(200)).await?;
        cluster.restart(victim)?;
    }
    let acknowledged = load.end().await?;
    ensure!(acknowledged.len() > 50, "only {} keys were written", acknowledged.len());
    for replica in 0..3 {
        check_acknowledged(&cluster, replica, &acknowledged).await?;
    }
    check_equal(&cluster, &[0, 1, 2]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_all_replicas_are_killed_at_once() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let load = Load::start(&cluster, 4);
    load.more(300).await?;
    let mut kv = cluster.kv(0).await?;
    let lease = LeaseClient::new(cluster.channel(0).await?);
    let lease = lease.clone().lease_grant(etcd::LeaseGrantRequest { ttl: 600, id: 77 }).await?.into_inner();
    kv.put(etcd::PutRequest { lease: lease.id, ..put_request("leased", "v") }).await?;
    let before = get(&mut kv, "leased").await?.context("just written")?;
    cluster.kill_all()?;
    let acknowledged = load.end().await?;
    cluster.start_all()?;
    for replica in 0..3 {
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

/// It served at once after a start, from the state that its store had, and applied its log meanwhile: a local
/// read went back behind what had been answered, and `Status` said revision 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_serves_nothing_older_than_before() -> Result<()> {
    const PUTS: usize = 200;
    // A small segment is read soon, so the port is open for long before the log is applied.
    let settings = ["--raft-tick-ms=200", "--log-segment-bytes=1048576"];
    let mut cluster = Cluster::new(PROGRAM, 1, &settings)?;
    cluster.start_all()?;
    let mut kv = cluster.kv(0).await?;
    let mut answered = 0;
    for number in 0..PUTS {
        let put = kv.put(put_request("k", number.to_string())).await?.into_inner();
        answered = put.header.context("a header")?.revision;
    }
    cluster.kill(0)?;
    cluster.spawn(0)?;
    let channel = wait("the port to be open", || cluster.channel(0)).await?;
    let key = bytes::Bytes::from_static(b"k");
    let local = etcd::RangeRequest { key, serializable: true, ..Default::default() };
    // Asked at once: each of them may be the one that comes too early.
    let (mut kv, mut maintenance) = (KvClient::new(channel.clone()), MaintenanceClient::new(channel));
    let (status, answer) = tokio::join!(maintenance.status(etcd::StatusRequest {}), kv.range(local));
    let revision = status?.into_inner().header.context("a header")?.revision;
    let found = answer?.into_inner().kvs.pop().map(|found| found.value);
    let newest = Some(bytes::Bytes::from((PUTS - 1).to_string()));
    ensure!(
        revision >= answered && found == newest,
        "of {answered}: Status says revision {revision}, a local read finds {found:?}"
    );
    cluster.stop_all()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_fell_behind_the_log_gets_a_snapshot_and_then_answers_the_same() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let away = (cluster.leader()? + 1) % 3;
    let others: Vec<usize> = (0..3).filter(|replica| *replica != away).collect();
    cluster.kill(away)?;
    let mut kv = cluster.kv(others[0]).await?;
    let value = bytes::Bytes::from(vec![7; 64 << 10]);
    // 25 MiB: the log is purged to less, so it no longer has what the replica misses.
    for number in 0..400 {
        kv.put(put_request(&format!("k{}", number % 40), value.clone())).await?;
    }
    wait("the log to be purged", || async {
        let bytes = cluster.metric(others[0], "quoin_log_bytes")?;
        ensure!(bytes < 16e6, "{bytes} bytes");
        Ok(())
    })
    .await?;
    cluster.restart(away)?;
    check_equal(&cluster, &[0, 1, 2]).await?;
    wait("the snapshot to be logged", || async { cluster.log(away).contains("installed a snapshot") })
        .await?;
    // And it takes part again: with one of the others down, its vote is needed.
    cluster.kill(others[1])?;
    cluster.leader()?;
    let mut kv = cluster.kv(away).await?;
    wait("a write through it", || {
        let mut kv = kv.clone();
        async move { kv.put(put_request("after", "v")).await }
    })
    .await?;
    ensure!(get(&mut kv, "after").await?.is_some(), "the write is not there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_added_promoted_and_removed_under_load() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let load = Load::start(&cluster, 4);
    load.more(100).await?;
    let leader = cluster.leader()?;
    let mut members = ClusterClient::new(cluster.channel(leader).await?);
    let peer = format!("http://{}", cluster.peer_address(3));
    let add = etcd::MemberAddRequest { peer_ur_ls: vec![peer], is_learner: true };
    let added = members.member_add(add).await?.into_inner().member.context("the new member")?;
    cluster.restart(3)?;
    let promote = || {
        let mut members = members.clone();
        async move { members.member_promote(etcd::MemberPromoteRequest { id: added.id }).await }
    };
    wait("the learner to be ready to vote", promote).await?;
    load.more(100).await?;
    let gone = (leader + 1) % 3;
    let list =
        members.member_list(etcd::MemberListRequest { linearizable: true }).await?.into_inner().members;
    ensure!(list.len() == 4 && list.iter().all(|member| !member.is_learner), "{list:?}");
    let victim =
        list.iter().find(|member| member.name == format!("r{gone}")).context("the member to remove")?.id;
    let remove = || {
        let mut members = members.clone();
        async move { members.member_remove(etcd::MemberRemoveRequest { id: victim }).await }
    };
    wait("the voters to have answered for five seconds", remove).await?;
    load.more(100).await?;
    wait("the removed member to learn of it", || async {
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

/// It founded again, voted again, and acknowledged writes were lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_without_its_data_or_a_part_of_it_ends_and_says_what_to_do() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let load = Load::start(&cluster, 4);
    load.more(100).await?;
    let lost = (cluster.leader()? + 1) % 3;
    cluster.kill(lost)?;
    let (folder, kept) = (cluster.data_dir(lost), cluster.folder().join("kept"));
    for (part, reason) in [
        ("", "is already bootstrapped"),
        ("identity.json", "its identity.json is gone"),
        ("log", "is gone from disk"),
    ] {
        let part = folder.join(part);
        std::fs::rename(&part, &kept)?;
        cluster.spawn(lost)?;
        wait(reason, || async { cluster.log(lost).contains(reason) }).await?;
        cluster.kill(lost)?;
        if part.is_dir() {
            std::fs::remove_dir_all(&part)?;
        }
        std::fs::rename(&kept, &part)?;
    }
    // With everything back it goes on.
    cluster.restart(lost)?;
    let acknowledged = load.end().await?;
    for replica in 0..3 {
        check_acknowledged(&cluster, replica, &acknowledged).await?;
    }
    check_equal(&cluster, &[0, 1, 2]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_linearizable_read_on_any_replica_sees_what_was_acknowledged_before() -> Result<()> {
    let cluster = start(&[])?;
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
async fn a_watch_continues_across_leader_changes_without_gap_or_duplicate() -> Result<()> {
    let mut cluster = start(&[])?;
    let load = Load::start(&cluster, 4);
    let mut watch = Watch { next: 2, seen: BTreeSet::new() };
    for round in 0..3 {
        load.more(50).await?;
        let replica = (cluster.leader()? + 1) % 3;
        watch.follow(&cluster, replica, watch.next + 100).await?;
        let victim = if round == 1 { replica } else { cluster.leader()? };
        cluster.kill(victim)?;
        load.more(20).await?;
        cluster.restart(victim)?;
    }
    load.end().await?;
    let mut kv = cluster.kv(0).await?;
    let all = etcd::RangeRequest { key: "load/".into(), range_end: "load0".into(), ..Default::default() };
    let newest = kv.range(all.clone()).await?.into_inner().header.context("a header")?.revision;
    watch.follow(&cluster, 1, newest + 1).await?;
    // Every revision is one put of the load: none may be missing.
    let missing: Vec<i64> = (2..=newest).filter(|revision| !watch.seen.contains(revision)).collect();
    ensure!(missing.is_empty(), "revisions {missing:?} were never seen");
    Ok(())
}

/// A watch of the load's keys that outlives its streams.
struct Watch {
    /// The revision from which to watch.
    next: i64,
    seen: BTreeSet<i64>,
}

impl Watch {
    /// Watches through one replica until the revision before `target` was seen.
    async fn follow(&mut self, cluster: &Cluster, replica: usize, target: i64) -> Result<()> {
        let follow = async {
            while self.next < target {
                // The stream ended or broke: the next one continues where it stopped.
                let Ok(messages) = self.open(cluster, replica).await else { continue };
                self.take(messages, target).await?;
            }
            Ok(())
        };
        let followed = tokio::time::timeout(PATIENCE, follow).await;
        followed.with_context(|| format!("the watch stopped before revision {} of {target}", self.next))?
    }

    async fn open(&self, cluster: &Cluster, replica: usize) -> Result<tonic::Streaming<etcd::WatchResponse>> {
        let create = etcd::WatchCreateRequest {
            key: "load/".into(),
            range_end: "load0".into(),
            start_revision: self.next,
            ..Default::default()
        };
        let create = etcd::watch_request::RequestUnion::CreateRequest(create);
        let request = etcd::WatchRequest { request_union: Some(create) };
        let outgoing = tokio_stream::StreamExt::chain(tokio_stream::iter([request]), tokio_stream::pending());
        let mut client = WatchClient::new(cluster.patient_channel(replica).await?);
        Ok(client.watch(outgoing).await?.into_inner())
    }

    /// Takes events until the stream ends or `target` is reached.
    async fn take(&mut self, mut messages: tonic::Streaming<etcd::WatchResponse>, target: i64) -> Result<()> {
        while self.next < target {
            let Ok(Some(message)) = messages.message().await else { return Ok(()) };
            for event in message.events {
                let revision = event.kv.context("an event has a key")?.mod_revision;
                ensure!(revision >= self.next, "revision {revision} came again");
                self.next = revision + 1;
                self.seen.insert(revision);
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_leases_expire_though_the_leader_is_killed() -> Result<()> {
    let mut cluster = start(&[])?;
    let leader = cluster.leader()?;
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
async fn invalid_requests_are_refused_with_etcds_messages() -> Result<()> {
    let cluster = start(&[])?;
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

/// The first version of this test mistook a read that timed out for a closed connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_a_port_closes_that_connection_and_is_counted() -> Result<()> {
    let cluster = start(&[])?;
    for (address, metric) in [
        (cluster.client_address(0), "quoin_client_garbage_connections_total"),
        (cluster.peer_address(0), "quoin_peer_garbage_connections"),
        (cluster.http_address(0), "quoin_http_garbage_connections_total"),
    ] {
        let before = cluster.metric(0, metric)?;
        for garbage in [&[0xfe; 4096][..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
            let mut stream = TcpStream::connect(&address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(garbage)?;
            match std::io::Read::read_to_end(&mut stream, &mut Vec::new()) {
                Ok(_) => {}
                Err(error) => ensure!(error.kind() == std::io::ErrorKind::ConnectionReset, "{error}"),
            }
        }
        wait("both to be counted", || async {
            let now = cluster.metric(0, metric)?;
            ensure!(now == before + 2.0, "{metric} was {before} and is {now}");
            Ok(())
        })
        .await?;
    }
    cluster.kv(0).await?.put(put_request("still", "here")).await?;
    Ok(())
}

/// What a node writes that must end by itself, unsuccessfully.
fn last_words(mut command: Command) -> Result<String> {
    let mut said = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone()?);
    let mut child = command.spawn()?;
    let ended = quoin_testkit::wait_blocking("the node to end", || child.try_wait().transpose());
    if ended.is_err() {
        // An error: it has ended just now.
        let _ = child.kill();
        child.wait()?;
    }
    let mut text = String::new();
    std::io::Seek::rewind(&mut said)?;
    std::io::Read::read_to_string(&mut said, &mut text)?;
    let status = ended.with_context(|| text.clone())??;
    ensure!(!status.success(), "it ended as if all were well:\n{text}");
    Ok(text)
}

/// `serve` on ports that no replica of the cluster has.
fn elsewhere(cluster: &Cluster, name: &str, data_dir: PathBuf, settings: &[&str]) -> Command {
    let mut command = cluster.quoin(&["serve", "--name", name, "--data-dir"]);
    command.arg(data_dir).args(["--listen-client", &cluster.client_address(4)]);
    command.args(["--listen-peer", &cluster.peer_address(4), "--listen-http", &cluster.http_address(4)]);
    command.args(["--listen-resp", &cluster.resp_address(4)]).args(settings);
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

/// Two nodes with one id were once found out only when they happened to dial each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_node_with_a_members_id_ends_and_names_the_first() -> Result<()> {
    let mut cluster = start(&[])?;
    cluster.kv(0).await?.put(put_request("k", "v")).await?;
    // Started again with the same name and cluster, on an empty folder.
    let settings = ["--cluster", &cluster.founders(), "--advertise-peer", &cluster.peer_address(1)];
    let fresh = cluster.folder().join("fresh");
    let text = last_words(elsewhere(&cluster, "r1", fresh, &settings))?;
    ensure!(text.contains("already bootstrapped"), "{text}");
    // Started on a copy of the folder, while the first node runs again.
    cluster.kill(1)?;
    let copy = cluster.folder().join("copy");
    copy_folder(&cluster.data_dir(1), &copy)?;
    cluster.restart(1)?;
    let text = last_words(elsewhere(&cluster, "r1", copy, &[]))?;
    let first = format!("reached at {}", cluster.peer_address(1));
    ensure!(text.contains("another node runs as member") && text.contains(&first), "{text}");
    // The first node goes on undisturbed, and restarts of the others do not make it a newcomer.
    for replica in [0, 2] {
        cluster.kill(replica)?;
        cluster.restart(replica)?;
    }
    cluster.wait_ready(1)?;
    cluster.kv(1).await?.put(put_request("k", "w")).await?;
    Ok(())
}

/// A member that was removed while it was down once waited forever, if the members that removed it had been
/// restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_removed_while_it_was_down_ends_when_it_comes_back() -> Result<()> {
    let mut cluster = start(&[])?;
    cluster.kill(2)?;
    let mut members = ClusterClient::new(cluster.channel(cluster.leader()?).await?);
    let list =
        members.member_list(etcd::MemberListRequest { linearizable: true }).await?.into_inner().members;
    let gone = list.iter().find(|member| member.name == "r2").context("the member")?.id;
    // Refused until it has missed enough answers, or the others have answered the leader for long enough.
    let remove = || {
        let mut members = members.clone();
        async move { members.member_remove(etcd::MemberRemoveRequest { id: gone }).await }
    };
    wait("the member to be removed", remove).await?;
    // After a restart the others know of it only from their folders.
    for replica in [0, 1] {
        cluster.kill(replica)?;
    }
    for replica in [0, 1] {
        cluster.spawn(replica)?;
    }
    for replica in [0, 1] {
        cluster.wait_ready(replica)?;
    }
    let text = last_words(cluster.command(2))?;
    let words = format!("member {gone:016x} was removed from cluster");
    ensure!(text.contains(&words) && text.contains("delete its data folder"), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_must_not_start_says_why() -> Result<()> {
    let mut cluster = start(&[])?;
    let mut kv = cluster.kv(0).await?;
    for byte in 1..5 {
        kv.put(put_request("k", vec![byte; 5000])).await?;
    }
    // What replica 1 has applied is in its log.
    get(&mut cluster.kv(1).await?, "k").await?;
    // A folder in use.
    let text = last_words(elsewhere(&cluster, "r0", cluster.data_dir(0), &[]))?;
    ensure!(text.contains("in use by another process"), "{text}");
    // The folder of another node.
    cluster.kill(1)?;
    let text = last_words(elsewhere(&cluster, "other", cluster.data_dir(1), &[]))?;
    ensure!(text.contains("belongs to the node named \"r1\""), "{text}");
    // The folder of another cluster, told by the founders' list, and by the cluster that the node is to join.
    let other = format!("r1={}", cluster.peer_address(4));
    let text = last_words(elsewhere(&cluster, "r1", cluster.data_dir(1), &["--cluster", &other]))?;
    ensure!(text.contains("belongs to cluster") && text.contains("describe cluster"), "{text}");
    let stranger = start(&[])?;
    let join = ["--join", &stranger.peer_address(0)];
    let text = last_words(elsewhere(&cluster, "r1", cluster.data_dir(1), &join))?;
    ensure!(text.contains("belongs to cluster") && text.contains(&stranger.peer_address(0)), "{text}");
    drop(stranger);
    // A flipped bit in the middle of the log.
    let log = cluster.data_dir(1).join("log").join("0000000000000001.log");
    let mut bytes = std::fs::read(&log)?;
    let place = bytes.windows(100).position(|window| window == [1; 100]).context("the written value")?;
    bytes[place + 50] ^= 1;
    std::fs::write(&log, &bytes)?;
    let text = last_words(elsewhere(&cluster, "r1", cluster.data_dir(1), &[]))?;
    ensure!(text.contains("0000000000000001.log is damaged at byte"), "{text}");
    Ok(())
}
