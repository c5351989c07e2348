//! Damage that is found while a node runs, as its operator sees it.

use crate::harness::{Clients, Cluster, PROGRAM, SMALL, wait};
use crate::table::{KEYS, build_base, path, quoin, shown};
use anyhow::{Context, Result, ensure};
use quoin_proto::etcdserverpb::StatusRequest;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

const EAGER: &[&str] = &["--scrub-every-s=1", "--scrub-bytes-per-second=1073741824"];

/// Changes a byte of a file in its place, as a disk does.
fn flip(file: &Path, at: u64) -> Result<()> {
    fs::set_permissions(file, Permissions::from_mode(0o644))?;
    let file = File::options().read(true).write(true).open(file)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    Ok(file.write_all_at(&[byte[0] ^ 1], at)?)
}

async fn errors(cluster: &Cluster) -> Result<String> {
    let mut client = MaintenanceClient::new(cluster.channel(0).await?);
    Ok(client.status(StatusRequest {}).await?.into_inner().errors.join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_in_the_status_and_its_alarm_is_listed_and_cleared() -> Result<()> {
    let mut cluster = Cluster::new_dev(PROGRAM, &[EAGER, SMALL].concat())?;
    cluster.start_all()?;
    let (endpoints, value) = (cluster.endpoints(), "v".repeat(100_000));
    for number in 0..15 {
        quoin(&["kv", "put", &format!("k{number}"), &value, "--endpoints", &endpoints])?;
    }
    let alarms =
        |more: &[&str]| quoin(&[&["cluster", "alarms", "--endpoints", &endpoints][..], more].concat());
    ensure!(alarms(&[])? == "no alarms\n", "an alarm without damage");
    let segment = cluster.data_dir(0).join("log/0000000000000001.log");
    flip(&segment, 50_000)?;
    wait("the alarm", || async { alarms(&[]).is_ok_and(|said| said.contains("CORRUPT")) }).await?;
    let said = errors(&cluster).await?;
    ensure!(said.contains("log/0000000000000001.log is damaged at byte "), "{said}");
    ensure!(
        cluster.metric(0, "quoin_corrupt")? == 1.0 && cluster.metric(0, "quoin_damage_found_total")? > 0.0
    );
    // The disk is good again: nothing is raised any more.
    flip(&segment, 50_000)?;
    wait("a pass without damage", || async {
        errors(&cluster).await.is_ok_and(|said| !said.contains("is damaged"))
    })
    .await?;
    ensure!(alarms(&["--clear"])?.contains("cleared"), "{}", alarms(&[])?);
    ensure!(alarms(&[])? == "no alarms\n", "{}", alarms(&[])?);
    cluster.stop_all()
}

fn largest(folder: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let largest = files.into_iter().max_by_key(|path| path.metadata().map_or(0, |data| data.len()));
    largest.context("a file")
}

/// It answered from the damaged file until the next start.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_table_is_fetched_again_while_the_node_serves() -> Result<()> {
    let cluster = Cluster::dev(PROGRAM, EAGER)?;
    let base = build_base(cluster.folder(), 'a')?;
    quoin(&["table", "publish", path(&base)?, "--activate", "--endpoints", &cluster.endpoints()])?;
    let tables = cluster.data_dir(0).join("tables");
    let layer = fs::read_dir(&tables)?.next().context("a layer")??.path();
    let file = largest(&layer)?;
    let sound = fs::read(&file)?;
    flip(&file, 5000)?;
    wait("the file to be fetched again", || async { fs::read(&file).is_ok_and(|bytes| bytes == sound) })
        .await?;
    ensure!(cluster.log(0).contains("a table's file is damaged here"), "{}", cluster.log(0));
    wait("lookups", || async {
        shown(&cluster, 0, &[5, KEYS]).await.is_ok_and(|(_, texts)| texts == ["a005", "-"])
    })
    .await?;
    cluster.stop_all()
}
