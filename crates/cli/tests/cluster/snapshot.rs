//! Snapshot files: saved from a running cluster, restored as another one.

use crate::harness::{Clients, Cluster, PROGRAM, SMALL, start, wait};
use anyhow::{Context, Result, ensure};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::cluster_client::ClusterClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quoin_proto::mvccpb::KeyValue;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Whether a command succeeded, and what it wrote.
fn said(command: &mut Command) -> Result<(bool, String)> {
    let output = command.stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Ok((output.status.success(), text))
}

async fn read(cluster: &Cluster, replica: usize, key: &str, revision: i64) -> Result<Vec<KeyValue>> {
    let request = etcd::RangeRequest { key: key.to_string().into(), revision, ..Default::default() };
    Ok(cluster.kv(replica).await?.range(request).await?.into_inner().kvs)
}

/// The hashes of the keys at revisions 20 and 52.
async fn hashes(cluster: &Cluster, replica: usize) -> Result<[u32; 2]> {
    // After a linearizable read the replica has applied everything.
    read(cluster, replica, "k", 0).await?;
    let mut client = MaintenanceClient::new(cluster.channel(replica).await?);
    let mut hashes = [0; 2];
    for (hash, revision) in hashes.iter_mut().zip([20, 52]) {
        let answer = client.hash_kv(etcd::HashKvRequest { revision }).await?.into_inner();
        ensure!(answer.hash_revision == revision, "{answer:?}");
        *hash = answer.hash;
    }
    Ok(hashes)
}

/// Renews the lease, which changes no revision.
async fn renew(cluster: &Cluster) -> Result<()> {
    let request = etcd::LeaseKeepAliveRequest { id: 7 };
    let requests = tokio_stream::once(request);
    let mut answers =
        LeaseClient::new(cluster.channel(0).await?).lease_keep_alive(requests).await?.into_inner();
    ensure!(answers.message().await?.context("an answer")?.ttl == 600, "the lease has ended");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_file_becomes_a_new_cluster_with_the_same_past() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("saved.snapshot");
    let mut cluster = start(SMALL)?;
    let mut kv = cluster.kv(0).await?;
    let put = |key: &str, value: String| etcd::PutRequest {
        key: key.to_string().into(),
        value: value.into(),
        ..Default::default()
    };
    LeaseClient::new(cluster.channel(0).await?)
        .lease_grant(etcd::LeaseGrantRequest { ttl: 600, id: 7 })
        .await?;
    kv.put(etcd::PutRequest { lease: 7, ..put("leased", "v".into()) }).await?;
    for number in 0..50 {
        kv.put(put("k", format!("{number} {}", "x".repeat(30_000)))).await?;
    }
    let before = (read(&cluster, 0, "leased", 0).await?, read(&cluster, 0, "k", 20).await?);
    // After a linearizable read the replica has applied everything.
    read(&cluster, 1, "k", 0).await?;
    let mut save = cluster.quoin(&["snapshot", "save"]);
    save.arg(&file).args(["--endpoints", &cluster.client_address(1)]);
    let (saved, text) = said(&mut save)?;
    ensure!(saved && text.contains("everything up to revision 52"), "{text}");
    renew(&cluster).await?;
    let hashed = hashes(&cluster, 0).await?;
    ensure!(hashed[0] != hashed[1], "revisions 20 and 52 have one hash");
    // Revision 52 is a past one from now on, at which the lease was not renewed yet.
    kv.put(put("later", "v".into())).await?;
    for replica in 0..3 {
        ensure!(hashes(&cluster, replica).await? == hashed, "replica {replica} differs");
    }
    cluster.kill(1)?;
    cluster.restart(1)?;
    wait("the replica to serve", || async { hashes(&cluster, 1).await.is_ok() }).await?;
    ensure!(hashes(&cluster, 1).await? == hashed, "the restarted replica differs");

    let mut restored = Cluster::new(PROGRAM, 3, &["--cluster-token=restored"])?;
    let restore = |replica, file: &std::path::Path| {
        let mut command = restored.command_of(&["snapshot", "restore"], replica);
        command.arg(file);
        said(&mut command)
    };
    // A flipped bit, and a missing end.
    let mut bytes = std::fs::read(&file)?;
    let (damaged, cut) = (folder.path().join("damaged"), folder.path().join("cut"));
    std::fs::write(&cut, &bytes[..bytes.len() - 512])?;
    let place = bytes.len() / 2;
    bytes[place] ^= 1;
    std::fs::write(&damaged, &bytes)?;
    for file in [damaged, cut] {
        let (done, text) = restore(0, &file)?;
        ensure!(!done && text.contains(&*file.to_string_lossy()) && text.contains("checksum"), "{text}");
        ensure!(!restored.data_dir(0).exists(), "a partial data folder was left");
    }
    for replica in 0..3 {
        let (done, text) = restore(replica, &file)?;
        ensure!(done && text.contains("everything up to revision 52"), "{text}");
    }
    let (done, text) = restore(0, &file)?;
    ensure!(!done && text.contains("exists already"), "{text}");
    restored.start_all()?;
    for replica in 0..3 {
        let after = (read(&restored, replica, "leased", 0).await?, read(&restored, replica, "k", 20).await?);
        ensure!(after == before, "replica {replica} differs");
        ensure!(hashes(&restored, replica).await? == hashed, "the hash of replica {replica} differs");
        ensure!(read(&restored, replica, "later", 0).await?.is_empty(), "a key written after the snapshot");
    }
    let mut members = ClusterClient::new(restored.channel(0).await?);
    let members =
        members.member_list(etcd::MemberListRequest { linearizable: true }).await?.into_inner().members;
    let own = |member: &etcd::Member| {
        (0..3).any(|replica| member.peer_ur_ls[0].ends_with(&restored.peer_address(replica)))
    };
    ensure!(members.len() == 3 && members.iter().all(own), "{members:?}");
    let reply = restored.kv(2).await?.put(put("k", "new".into())).await?.into_inner();
    ensure!(reply.header.context("a header")?.revision == 53, "revisions do not continue after the snapshot");
    let request = etcd::LeaseTimeToLiveRequest { id: 7, keys: true };
    let lease = LeaseClient::new(restored.channel(1).await?).lease_time_to_live(request).await?.into_inner();
    ensure!(lease.ttl > 0 && lease.keys == ["leased"], "{lease:?}");
    Ok(())
}

/// The founders that had not been restored were a majority, and could begin the cluster empty.
#[tokio::test(flavor = "multi_thread")]
async fn founders_that_were_not_all_restored_begin_no_cluster() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("saved.snapshot");
    let saved = start(SMALL)?;
    let put = etcd::PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
    saved.kv(0).await?.put(put).await?;
    let mut save = saved.quoin(&["snapshot", "save"]);
    save.arg(&file).args(["--endpoints", &saved.client_address(0)]);
    let (done, text) = said(&mut save)?;
    ensure!(done, "{text}");
    drop(saved);
    let mut restored = Cluster::new(PROGRAM, 3, &["--cluster-token=restored"])?;
    let restore = |cluster: &Cluster, replica| {
        let mut command = cluster.command_of(&["snapshot", "restore"], replica);
        said(command.arg(&file))
    };
    let (done, text) = restore(&restored, 0)?;
    ensure!(done, "{text}");
    for replica in 0..3 {
        restored.spawn(replica)?;
    }
    for replica in 0..3 {
        wait("it to say why it waits", || async {
            let page = restored.page(replica, "/readyz")?;
            ensure!(
                page.status == 503 && restored.log(replica).contains("must all have restored the same file")
            );
            Ok(())
        })
        .await?;
    }
    // With the other two restored as well it begins where the file ends.
    for replica in [1, 2] {
        restored.kill(replica)?;
        std::fs::remove_dir_all(restored.data_dir(replica))?;
        let (done, text) = restore(&restored, replica)?;
        ensure!(done, "{text}");
        restored.spawn(replica)?;
    }
    wait("the cluster to begin", || read(&restored, 1, "k", 0)).await?;
    for replica in 0..3 {
        ensure!(read(&restored, replica, "k", 0).await?.len() == 1, "replica {replica} has lost the key");
    }
    Ok(())
}

/// Clients of the old cluster took revisions that it had given after the backup for those of the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_cluster_can_begin_above_the_revisions_of_the_old_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("saved.snapshot");
    let saved = start(SMALL)?;
    let put =
        |value: &'static str| etcd::PutRequest { key: "k".into(), value: value.into(), ..Default::default() };
    saved.kv(0).await?.put(put("old")).await?;
    let mut save = saved.quoin(&["snapshot", "save"]);
    let (done, text) = said(save.arg(&file).args(["--endpoints", &saved.client_address(0)]))?;
    ensure!(done, "{text}");
    drop(saved);
    let mut restored = Cluster::new(PROGRAM, 3, &["--cluster-token=restored"])?;
    let restore = |replica, flags: &[&str]| {
        let mut command = restored.command_of(&["snapshot", "restore"], replica);
        said(command.arg(&file).args(flags))
    };
    let (done, text) = restore(0, &["--bump-revision=1000"])?;
    ensure!(!done && text.contains("--mark-compacted"), "{text}");
    for replica in 0..3 {
        let (done, text) = restore(replica, &["--bump-revision=1000", "--mark-compacted"])?;
        ensure!(done && text.contains("everything up to revision 1002"), "{text}");
    }
    restored.start_all()?;
    let reply = restored.kv(1).await?.put(put("new")).await?.into_inner();
    ensure!(reply.header.context("a header")?.revision == 1003, "the revision was not raised");
    for replica in 0..3 {
        read(&restored, replica, "k", 0).await?;
        let before = read(&restored, replica, "k", 1002).await?;
        ensure!(before[0].value == "old" && before[0].mod_revision == 2, "{before:?}");
        let refused = read(&restored, replica, "k", 2).await.unwrap_err();
        ensure!(format!("{refused:?}").contains("has been compacted"), "{refused:?}");
    }
    Ok(())
}

/// Passes connections on to `address`, and changes a byte of each long run of `x` that comes from there.
async fn damaging_proxy(address: String) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let own = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&address).await else { return };
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                    if let Some(place) = bytes[..count].windows(100).position(|run| run == [b'x'; 100]) {
                        bytes[place] = b'y';
                    }
                    if to_client.write_all(&bytes[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(own)
}

/// It was said to be saved, and found to be damaged when it was needed.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_damaged_on_the_way_is_not_said_to_be_saved() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("saved.snapshot");
    let cluster = start(SMALL)?;
    let value = "x".repeat(30_000).into();
    let put = etcd::PutRequest { key: "k".into(), value, ..Default::default() };
    cluster.kv(0).await?.put(put).await?;
    let proxy = damaging_proxy(cluster.client_address(0)).await?;
    for (endpoint, sound) in [(proxy, false), (cluster.client_address(0), true)] {
        let mut save = cluster.quoin(&["snapshot", "save"]);
        save.arg(&file).args(["--endpoints", &endpoint]);
        let (saved, text) = tokio::task::spawn_blocking(move || said(&mut save)).await??;
        ensure!(saved == sound && file.exists() == sound, "{text}");
        ensure!(sound || text.contains("what was saved cannot be restored: save it again"), "{text}");
    }
    Ok(())
}

/// Folders that --force-new-cluster has kept.
fn old_folders(cluster: &Cluster, node: usize) -> Result<Vec<PathBuf>> {
    let folder = cluster.data_dir(node);
    let name = format!("{}.before-", folder.file_name().context("a name")?.to_string_lossy());
    let parent = folder.parent().context("a parent")?;
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&name) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// What is left of a cluster that has lost its majority, and how it is not thrown away by mistake.
#[tokio::test(flavor = "multi_thread")]
async fn the_member_that_is_left_becomes_a_cluster_of_its_own() -> Result<()> {
    let mut cluster = start(SMALL)?;
    let put =
        |value: &'static str| etcd::PutRequest { key: "k".into(), value: value.into(), ..Default::default() };
    cluster.kv(0).await?.put(put("kept")).await?;
    // After a linearizable read it has applied everything.
    read(&cluster, 2, "k", 0).await?;
    cluster.stop(2)?;
    cluster.set(["--force-new-cluster".to_string()]);
    cluster.spawn(2)?;
    wait("it to say that there is a majority", || async {
        ensure!(cluster.log(2).contains("a majority of the members answers"), "{}", cluster.log(2));
        Ok(())
    })
    .await?;
    cluster.kill_all()?;
    cluster.restart(2)?;
    let reply = cluster.kv(2).await?.put(put("new")).await?.into_inner();
    ensure!(reply.header.context("a header")?.revision == 3, "revisions do not go on");
    ensure!(read(&cluster, 2, "k", 2).await?[0].value == "kept", "the past is lost");
    let mut members = ClusterClient::new(cluster.channel(2).await?);
    let request = etcd::MemberListRequest { linearizable: true };
    ensure!(members.member_list(request).await?.into_inner().members.len() == 1, "others are members");
    // With the flag left in place it goes on as it is, until others have joined it; and if the process ended before it had
    // given the old folder its name, where a later start would delete it, it has that now.
    cluster.kill(2)?;
    let kept = old_folders(&cluster, 2)?;
    ensure!(kept.len() == 1 && kept[0].join("identity.json").exists(), "the old folder is not kept");
    let unnamed = kept[0].with_extension("forced");
    let copied = kept[0].with_extension("forced.snapshot");
    fs::rename(&kept[0], &unnamed)?;
    fs::write(&copied, "all keys")?;
    cluster.restart(2)?;
    ensure!(old_folders(&cluster, 2)?.len() == 1 && !unnamed.exists(), "it has no name yet");
    ensure!(!copied.exists(), "a copy of all keys is left");
    ensure!(read(&cluster, 2, "k", 0).await?[0].value == "new", "it was made again");
    let mut members = ClusterClient::new(cluster.channel(2).await?);
    let peer_ur_ls = vec![format!("http://{}", cluster.peer_address(0))];
    members.member_add(etcd::MemberAddRequest { peer_ur_ls, is_learner: true }).await?;
    cluster.kill(2)?;
    cluster.spawn(2)?;
    wait("it to refuse", || async {
        ensure!(cluster.log(2).contains("has other members by now"), "{}", cluster.log(2));
        Ok(())
    })
    .await
}
