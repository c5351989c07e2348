//! What clients were promised holds while the cluster changes under them. Every test keeps a load running.

use anyhow::{Context, Result, ensure};
use etcd_client::{Client, GetOptions, MemberAddOptions, WatchOptions};
use quoin_compat_etcd_client::{Cluster, SMALL, client_of, connect, start, wait};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

/// A call that takes longer counts as failed, with an unknown outcome.
const CALL: Duration = Duration::from_secs(5);
const KEYS: u64 = 17;

/// Writers that keep going through any failure, and remember each key's largest acknowledged number.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeMap<String, u64>>>,
    count: Arc<AtomicU64>,
    newest_revision: Arc<AtomicI64>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    async fn start(cluster: &Cluster, writers: usize) -> Result<Self> {
        let mut load = Self {
            stop: Arc::default(),
            acknowledged: Arc::default(),
            count: Arc::default(),
            newest_revision: Arc::default(),
            writers: Vec::new(),
        };
        for writer in 0..writers {
            let client = connect(&cluster.client_addresses()).await?;
            let handle = tokio::spawn(write(
                client,
                writer,
                Arc::clone(&load.stop),
                Arc::clone(&load.acknowledged),
                Arc::clone(&load.count),
                Arc::clone(&load.newest_revision),
            ));
            load.writers.push(handle);
        }
        Ok(load)
    }

    async fn more(&self, writes: u64) -> Result<()> {
        let target = self.count.load(Ordering::SeqCst) + writes;
        wait("the load to make progress", || async { self.count.load(Ordering::SeqCst) >= target }).await
    }

    async fn end(mut self) -> Result<BTreeMap<String, u64>> {
        self.stop.store(true, Ordering::SeqCst);
        for writer in std::mem::take(&mut self.writers) {
            writer.await?;
        }
        Ok(std::mem::take(&mut *self.acknowledged.lock().expect("no writer panicked")))
    }
}

/// A test that fails ends: its writers would go on.
impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

async fn write(
    mut client: Client,
    writer: usize,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeMap<String, u64>>>,
    count: Arc<AtomicU64>,
    newest_revision: Arc<AtomicI64>,
) {
    for number in 1.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let key = format!("load/{writer}/{}", number % KEYS);
        let value = format!("{number} {}", "x".repeat(700));
        let Ok(Ok(reply)) = tokio::time::timeout(CALL, client.put(key.clone(), value, None)).await else {
            continue;
        };
        acknowledged.lock().expect("no writer panicked").insert(key, number);
        let revision = reply.header().map_or(0, etcd_client::ResponseHeader::revision);
        newest_revision.fetch_max(revision, Ordering::SeqCst);
        count.fetch_add(1, Ordering::SeqCst);
    }
}

async fn number_at(client: &mut Client, key: &str) -> Result<Option<u64>> {
    let reply = client.get(key, None).await?;
    let Some(kv) = reply.kvs().first() else { return Ok(None) };
    Ok(Some(kv.value_str()?.split(' ').next().unwrap_or_default().parse()?))
}

/// Checks that each key has its acknowledged value on every replica, or a later one whose write had an
/// unknown outcome, and that the replicas are equal.
async fn check(cluster: &Cluster, replicas: &[usize], acknowledged: &BTreeMap<String, u64>) -> Result<()> {
    ensure!(acknowledged.len() > 20, "only {} keys were written", acknowledged.len());
    let mut revision = 0;
    for replica in replicas {
        let mut client = client_of(cluster, *replica).await?;
        for (key, number) in acknowledged {
            let found = number_at(&mut client, key).await?.with_context(|| format!("{key} is lost"))?;
            ensure!(found >= *number, "{key}: {number} was acknowledged, replica {replica} has {found}");
        }
        revision = revision.max(client.get("x", None).await?.header().context("a header")?.revision());
    }
    let mut hashes = Vec::new();
    for replica in replicas {
        let mut client = client_of(cluster, *replica).await?;
        client.get("x", None).await?;
        hashes.push(client.hash_kv(revision).await?.hash());
    }
    ensure!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "different at {revision}: {hashes:?}");
    Ok(())
}

/// Reads on every replica until told to stop, and counts the answers. No read may be older than what was
/// acknowledged before it.
async fn read_on(
    mut clients: Vec<Client>,
    acknowledged: Arc<Mutex<BTreeMap<String, u64>>>,
    reads: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Result<()> {
    for round in 0u64.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let (key, replica) = (format!("load/0/{}", round % KEYS), (round % 3) as usize);
        let before = acknowledged.lock().expect("no writer panicked").get(&key).copied().unwrap_or(0);
        let read = tokio::time::timeout(CALL, number_at(&mut clients[replica], &key)).await;
        // An error, from a replica that is down or has no leader, is no answer.
        let Ok(Ok(seen)) = read else { continue };
        let seen = seen.unwrap_or(0);
        ensure!(seen >= before, "replica {replica} showed {key}={seen} after {before} was acknowledged");
        reads.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_are_killed_and_no_write_is_lost_and_no_read_is_stale() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let load = Load::start(&cluster, 4).await?;
    load.more(100).await?;
    let mut clients = Vec::new();
    for replica in 0..3 {
        clients.push(client_of(&cluster, replica).await?);
    }
    let (reads, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let reading = read_on(clients, Arc::clone(&load.acknowledged), Arc::clone(&reads), Arc::clone(&stop));
    let readers = tokio::spawn(reading);
    for _ in 0..3 {
        let leader = cluster.leader()?;
        cluster.kill(leader)?;
        load.more(200).await?;
        cluster.restart(leader)?;
        load.more(100).await?;
        let target = reads.load(Ordering::SeqCst) + 30;
        let more = || async { reads.load(Ordering::SeqCst) >= target || readers.is_finished() };
        wait("the reads to make progress", more).await?;
    }
    stop.store(true, Ordering::SeqCst);
    readers.await??;
    check(&cluster, &[0, 1, 2], &load.end().await?).await
}

/// A watch that continues where its stream ended, until it has seen the revision `last`.
struct Watcher {
    /// Every revision up to this one was seen, once.
    seen: Arc<AtomicI64>,
    /// The revision at which to end; 0 while that is not known.
    last: Arc<AtomicI64>,
    task: JoinHandle<Result<()>>,
}

impl Watcher {
    fn start(endpoint: String) -> Self {
        // Revision 1 is that of the empty store.
        let (seen, last) = (Arc::new(AtomicI64::new(1)), Arc::new(AtomicI64::new(0)));
        let task = tokio::spawn(watch_on(endpoint, Arc::clone(&seen), Arc::clone(&last)));
        Self { seen, last, task }
    }

    fn has_seen(&self, revision: i64) -> bool {
        self.seen.load(Ordering::SeqCst) >= revision || self.task.is_finished()
    }
}

async fn watch_on(endpoint: String, seen: Arc<AtomicI64>, last: Arc<AtomicI64>) -> Result<()> {
    let done =
        || matches!(last.load(Ordering::SeqCst), last if last > 0 && seen.load(Ordering::SeqCst) >= last);
    while !done() {
        let Ok(mut client) = connect(std::slice::from_ref(&endpoint)).await else { continue };
        let from = seen.load(Ordering::SeqCst) + 1;
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let Ok(mut stream) = client.watch("load/", Some(options)).await else {
            // The replica is down.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        while !done() {
            // The stream ended, or the replica died silently: the next stream continues here.
            let Ok(Ok(Some(message))) = tokio::time::timeout(CALL, stream.message()).await else { break };
            ensure!(!message.canceled(), "the watch from {from} was cancelled: {}", message.cancel_reason());
            for event in message.events() {
                let revision = event.kv().context("an event has a key")?.mod_revision();
                let before = seen.swap(revision, Ordering::SeqCst);
                // Every revision is one put of the load.
                ensure!(revision == before + 1, "{endpoint}: revision {revision} came after {before}");
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_have_no_gap_and_no_duplicate_across_leader_changes_and_compaction() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let watchers: Vec<Watcher> = cluster.client_addresses().into_iter().map(Watcher::start).collect();
    let load = Load::start(&cluster, 4).await?;
    let mut compacted = 0;
    for _ in 0..3 {
        load.more(200).await?;
        let leader = cluster.leader()?;
        cluster.kill(leader)?;
        load.more(100).await?;
        cluster.restart(leader)?;
        // What every watcher has seen is compacted while they go on; a watcher that was cut off catches up
        // first.
        let newest = load.newest_revision.load(Ordering::SeqCst);
        wait("the watchers to follow", || async { watchers.iter().all(|watcher| watcher.has_seen(newest)) })
            .await?;
        client_of(&cluster, 0).await?.compact(newest, None).await?;
        compacted = newest;
        load.more(100).await?;
    }
    load.end().await?;
    let mut client = client_of(&cluster, 1).await?;
    let reply = client.get("load/", Some(GetOptions::new().with_prefix().with_count_only())).await?;
    let newest = reply.header().context("a header")?.revision();
    ensure!(newest > compacted && compacted > 500, "compacted {compacted}, newest {newest}");
    for watcher in &watchers {
        watcher.last.store(newest, Ordering::SeqCst);
    }
    for watcher in watchers {
        watcher.task.await??;
        ensure!(watcher.seen.load(Ordering::SeqCst) == newest, "a watcher ended early");
    }
    // A watch that begins below the compaction is refused with the compacted revision.
    for replica in 0..3 {
        let mut client = client_of(&cluster, replica).await?;
        client.get("x", None).await?;
        let mut stream = client.watch("load/", Some(WatchOptions::new().with_start_revision(2))).await?;
        let mut message = stream.message().await?.context("an answer")?;
        if !message.canceled() {
            message = stream.message().await?.context("an answer")?;
        }
        ensure!(message.canceled() && message.compact_revision() == compacted, "{message:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_left_behind_gets_a_snapshot_and_then_takes_part() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let leader = cluster.leader()?;
    let (away, other) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.kill(away)?;
    let load = Load::start(&cluster, 4).await?;
    let mut client = client_of(&cluster, leader).await?;
    // 24 MiB, twelve times the log's minimum size.
    for number in 0..384 {
        client.put(format!("large/{}", number % 40), vec![number as u8; 64 << 10], None).await?;
    }
    cluster.restart(away)?;
    wait("the snapshot to be logged", || async { cluster.log(away).contains("installed a snapshot") })
        .await?;
    load.more(100).await?;
    let acknowledged = load.end().await?;
    check(&cluster, &[0, 1, 2], &acknowledged).await?;
    // With another replica down its vote is needed.
    cluster.kill(other)?;
    cluster.leader()?;
    let client = client_of(&cluster, away).await?;
    wait("a write through it", || async { client.clone().put("after", "v", None).await }).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_come_and_go_under_load() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let watcher = Watcher::start(cluster.client_address(cluster.leader()?));
    let load = Load::start(&cluster, 4).await?;
    load.more(100).await?;
    let leader = cluster.leader()?;
    let mut client = client_of(&cluster, leader).await?;
    let options = MemberAddOptions::new().with_is_learner();
    let added = client.member_add([format!("http://{}", cluster.peer_address(3))], Some(options)).await?;
    let added = added.member().context("the new member")?.id();
    cluster.restart(3)?;
    load.more(100).await?;
    let promote = || async { client.clone().member_promote(added).await };
    wait("the learner to be ready to vote", promote).await?;
    load.more(100).await?;
    let members = client.member_list().await?;
    let gone = (leader + 1) % 3;
    let name = format!("r{gone}");
    let victim = members.members().iter().find(|member| member.name() == name).context("the member")?.id();
    // Refused until most voters have answered the leader for five seconds.
    let remove = || async { client.clone().member_remove(victim).await };
    wait("the others to be well for long enough", remove).await?;
    load.more(100).await?;
    // The newcomer leads and its vote counts: the change loses nothing.
    client.move_leader(added).await?;
    load.more(100).await?;
    let newest = load.newest_revision.load(Ordering::SeqCst);
    let acknowledged = load.end().await?;
    wait("the watch to have seen it all", || async { watcher.has_seen(newest) }).await?;
    watcher.last.store(newest, Ordering::SeqCst);
    watcher.task.await??;
    let rest: Vec<usize> = (0..4).filter(|replica| *replica != gone).collect();
    check(&cluster, &rest, &acknowledged).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_all_replicas_are_killed_at_once() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let load = Load::start(&cluster, 4).await?;
    load.more(400).await?;
    let mut client = client_of(&cluster, 0).await?;
    let lease = client.lease_grant(600, None).await?.id();
    let options = etcd_client::PutOptions::new().with_lease(lease);
    client.put("leased", "v", Some(options)).await?;
    let before = client.get("leased", None).await?.kvs()[0].clone();
    cluster.kill_all()?;
    cluster.start_all()?;
    load.more(100).await?;
    let acknowledged = load.end().await?;
    let mut client = client_of(&cluster, 2).await?;
    let after = client.get("leased", None).await?.kvs()[0].clone();
    ensure!(format!("{before:?}") == format!("{after:?}"), "{before:?} is now {after:?}");
    ensure!(client.lease_time_to_live(lease, None).await?.ttl() > 0, "the lease is gone");
    check(&cluster, &[0, 1, 2], &acknowledged).await
}
