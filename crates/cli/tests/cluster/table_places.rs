//! Tables published from HTTP servers and buckets: fetched in the background, and retried after failures from
//! where they stopped.

use crate::file_server::serve;
use crate::harness::{Cluster, PROGRAM, start, wait};
use crate::table::{build_base, client, loaded, local_list, lookup, quoin, shown};
use anyhow::{Context, Result, ensure};
use quoin_proto::quoin::table::v1 as pb;
use std::sync::atomic::Ordering;
use tonic::Code;

async fn publish(cluster: &Cluster, replica: usize, location: &str) -> Result<u64> {
    let request = pb::PublishRequest { location: location.into(), ..Default::default() };
    Ok(client(cluster, replica).await?.publish(request).await?.into_inner().version)
}

/// What the replicas say about a version: ready, or the reason why not.
async fn versions(cluster: &Cluster, version: u64) -> Option<pb::VersionInfo> {
    let mut client = client(cluster, 0).await.ok()?;
    let list = client.list(local_list()).await.ok()?.into_inner();
    list.tables.into_iter().flat_map(|table| table.versions).find(|info| info.version == version)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_fetched_over_http_though_the_server_fails_meanwhile() -> Result<()> {
    let cluster = start(&[])?;
    let folder = tempfile::tempdir()?;
    build_base(folder.path(), 'a')?;
    let files = serve(folder.path(), None).await?;
    let (url, endpoints) = (format!("{}/table-a", files.url), cluster.endpoints());

    // Every replica's first connection breaks in the middle of a file, and the next one continues there.
    files.breaks.store(3, Ordering::SeqCst);
    quoin(&["table", "publish", &url, "--activate", "--endpoints", &endpoints])?;
    for replica in 0..3 {
        assert_eq!(shown(&cluster, replica, &[7, 5000]).await?, (1, vec!["a007".into(), "-".into()]));
    }
    assert!(files.asked_in_the_middle(), "{:?}", files.asked.lock());

    // A server that is down: the reason is reported, and the fetch continues by itself when the server is
    // back.
    build_base(folder.path(), 'b')?;
    let url = url.replace("table-a", "table-b");
    let second = publish(&cluster, 0, &url).await?;
    wait("the version to be loaded", || loaded(&cluster, 0, second)).await?;
    build_base(folder.path(), 'c')?;
    let (url, held) = (url.replace("table-b", "table-c"), &files.held);
    held.send_replace(true);
    let third = publish(&cluster, 0, &url).await?;
    files.unavailable.store(true, Ordering::SeqCst);
    held.send_replace(false);
    let failed =
        || async { versions(&cluster, third).await.is_some_and(|info| info.failed_members.len() == 3) };
    // They finish the file that they were in the middle of, and cannot get the next one.
    wait("all replicas to say why they are not ready", failed).await?;
    let listed = quoin(&["table", "versions", "t", "--endpoints", &endpoints])?;
    assert!(listed.contains(&format!("t 3: r0 does not have it: fetching {url}/values-0000")), "{listed}");
    assert!(listed.contains("status code: 503 Service Unavailable; it will retry"), "{listed}");
    assert_eq!(shown(&cluster, 1, &[7]).await?, (1, vec!["a007".into()]));
    files.unavailable.store(false, Ordering::SeqCst);
    for replica in 0..3 {
        wait("the version to be loaded", || loaded(&cluster, replica, third)).await?;
    }

    // A location without a table is refused at publication.
    let gone = publish(&cluster, 0, &url.replace("table-c", "table-d")).await.expect_err("there is none");
    assert!(gone.to_string().contains("table-d/manifest.json") && gone.to_string().contains("404"), "{gone}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_fetched_from_a_bucket_with_the_settings_keys() -> Result<()> {
    let mut cluster = Cluster::new(PROGRAM, 3, &[])?;
    let folder = tempfile::tempdir()?;
    std::fs::create_dir_all(folder.path().join("bucket/tables"))?;
    build_base(&folder.path().join("bucket/tables"), 'a')?;
    let files = serve(folder.path(), Some("the-id")).await?;
    cluster.set([
        format!("--table-s3-endpoint={}", files.url),
        "--table-s3-region=eu-central-1".into(),
        "--table-s3-access-key-id=the-id".into(),
        "--table-s3-secret-access-key=the-key".into(),
    ]);
    cluster.start_all()?;
    let place = ["table", "publish", "s3://bucket/tables/table-a", "--activate", "--endpoints"];
    quoin(&[&place[..], &[&cluster.endpoints()]].concat())?;
    for replica in 0..3 {
        assert_eq!(shown(&cluster, replica, &[999]).await?, (1, vec!["a999".into()]));
    }
    assert!(files.asked.lock().iter().all(|(name, _)| name.starts_with("bucket/tables/table-a/")));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_killed_in_the_middle_of_a_fetch_continues_it() -> Result<()> {
    let mut cluster = start(&[])?;
    let folder = tempfile::tempdir()?;
    build_base(folder.path(), 'a')?;
    let files = serve(folder.path(), None).await?;
    let url = format!("{}/table-a", files.url);
    files.held.send_replace(true);
    let version = publish(&cluster, 0, &url).await?;
    let victim = (cluster.leader()? + 1) % 3;
    let half_there = || async {
        let tables = std::fs::read_dir(cluster.data_dir(victim).join("tables")).ok();
        let folders =
            tables.into_iter().flatten().flatten().filter_map(|entry| std::fs::read_dir(entry.path()).ok());
        let mut files =
            folders.flatten().flatten().filter_map(|file| Some((file.file_name(), file.metadata().ok()?)));
        files.any(|(name, metadata)| name.to_string_lossy().ends_with(".part") && metadata.len() > 1000)
    };
    wait("half a file to be there", half_there).await?;
    cluster.kill(victim)?;
    files.asked.lock().clear();
    cluster.restart(victim)?;
    wait("the rest to be asked for", || async { files.asked_in_the_middle() }).await?;
    assert!(!loaded(&cluster, victim, version).await);
    files.held.send_replace(false);
    for replica in 0..3 {
        wait("the version to be loaded", || loaded(&cluster, replica, version)).await?;
    }
    let endpoints = cluster.endpoints();
    let activate = || async { quoin(&["table", "activate", "t", "1", "--endpoints", &endpoints]) };
    wait("all to have said that they are ready", activate).await?;
    assert_eq!(shown(&cluster, victim, &[7]).await?, (1, vec!["a007".into()]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_replica_delays_a_switch_unless_nobody_waits_and_then_never_answers_with_old_values()
-> Result<()> {
    let mut cluster = start(&["--table-peer-bytes-per-second=0"])?;
    let folder = tempfile::tempdir()?;
    build_base(folder.path(), 'a')?;
    build_base(folder.path(), 'b')?;
    let files = serve(folder.path(), None).await?;
    let url = format!("{}/table-a", files.url);
    quoin(&["table", "publish", &url, "--activate", "--endpoints", &cluster.endpoints()])?;
    let away = (cluster.leader()? + 1) % 3;
    let here: Vec<usize> = (0..3).filter(|replica| *replica != away).collect();
    cluster.kill(away)?;
    let living = here.iter().map(|replica| cluster.client_address(*replica)).collect::<Vec<_>>().join(",");
    let second = publish(&cluster, here[0], &url.replace("table-a", "table-b")).await?;
    for replica in &here {
        wait("the version to be loaded", || loaded(&cluster, *replica, second)).await?;
    }
    let refused = quoin(&["table", "activate", "t", "2", "--endpoints", &living]);
    let refused = refused.expect_err("a replica is away").to_string();
    assert!(refused.contains(&format!("missing: r{away} (still fetching, or away)")), "{refused}");
    assert!(refused.contains("--without-waiting"), "{refused}");
    let activate = ["table", "activate", "t", "2", "--without-waiting", "--endpoints", &living];
    wait("a majority to have said that it is ready", || async { quoin(&activate) }).await?;
    for replica in &here {
        assert_eq!(shown(&cluster, *replica, &[7]).await?, (2, vec!["b007".into()]));
    }

    // It is back, but cannot fetch the files: it says so and answers no lookup, though it has the old
    // version's files.
    files.unavailable.store(true, Ordering::SeqCst);
    cluster.spawn(away)?;
    wait("it to refuse lookups for want of the version", || async {
        let refused = lookup(&mut client(&cluster, away).await?, &[7]).await.err().context("an answer")?;
        let missing = "version 2 of table \"t\" is not loaded on this replica yet";
        ensure!(refused.code() == Code::Unavailable && refused.message().contains(missing), "{refused}");
        Ok(())
    })
    .await?;
    let says_why = || async {
        let info = versions(&cluster, 2).await;
        info.is_some_and(|info| info.failed_members.iter().any(|failure| failure.name == format!("r{away}")))
    };
    wait("it to say why", says_why).await?;
    files.unavailable.store(false, Ordering::SeqCst);
    wait("the version to be loaded", || loaded(&cluster, away, second)).await?;
    assert_eq!(shown(&cluster, away, &[7]).await?, (2, vec!["b007".into()]));
    quoin(&["table", "rollback", "t", "--endpoints", &living])?;
    assert_eq!(shown(&cluster, away, &[7]).await?, (1, vec!["a007".into()]));
    let refused =
        quoin(&["table", "drop", "t", "1", "--endpoints", &living]).expect_err("it answers").to_string();
    assert!(refused.contains("version 1 of table \"t\" is in use by version 1"), "{refused}");
    quoin(&["table", "drop", "t", "2", "--endpoints", &living])?;
    quoin(&["table", "drop", "t", "--all", "--endpoints", &living])?;
    assert_eq!(quoin(&["table", "versions", "--endpoints", &living])?.lines().count(), 1);
    Ok(())
}
