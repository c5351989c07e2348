//! Snapshot files: saved from a running cluster, restored as another one.

use crate::harness::{Clients, Cluster, PROGRAM, SMALL, start};
use anyhow::{Context, Result, ensure};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::cluster_client::ClusterClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use quoin_proto::mvccpb::KeyValue;
use std::process::{Command, Stdio};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_file_becomes_a_new_cluster_with_the_same_past() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("saved.snapshot");
    let cluster = start(SMALL)?;
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
    kv.put(put("later", "v".into())).await?;

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
