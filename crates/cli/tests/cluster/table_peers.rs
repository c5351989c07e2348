//! Tables whose published place is gone: replicas fetch the files from each other.

use crate::harness::{Cluster, PROGRAM, start, wait};
use crate::table::{build_base, loaded, path, quoin, shown};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

/// The folder of a replica's only layer, and its files with values.
fn layer(cluster: &Cluster, replica: usize) -> Result<(PathBuf, Vec<PathBuf>)> {
    let folder = fs::read_dir(cluster.data_dir(replica).join("tables"))?.next().context("a layer")??.path();
    let files = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let mut files: Vec<_> =
        files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "qtb")).collect();
    files.sort();
    Ok((folder, files))
}

/// By the guide the published files may go once all replicas are ready: then a damaged, new or replaced node never
/// answered lookups again, and was called ready.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_and_new_nodes_get_a_tables_files_from_the_others() -> Result<()> {
    let mut cluster = start(&[])?;
    let folder = tempfile::tempdir()?;
    let built = build_base(folder.path(), 'a')?;
    let endpoints = cluster.endpoints();
    quoin(&["table", "publish", path(&built)?, "--activate", "--endpoints", &endpoints])?;
    fs::remove_dir_all(&built)?;

    // One file damaged, and one missing, of which half has been fetched.
    cluster.kill(1)?;
    let (stored, files) = layer(&cluster, 1)?;
    let [damaged, missing] = files.as_slice() else { anyhow::bail!("{files:?}") };
    let mut bytes = fs::read(damaged)?;
    bytes[5000] ^= 1;
    fs::remove_file(damaged)?;
    fs::write(damaged, &bytes)?;
    let half = fs::read(missing)?;
    fs::remove_file(missing)?;
    let partial = stored.with_extension("partial");
    fs::create_dir(&partial)?;
    let part = format!("{}.part", missing.file_name().context("a name")?.display());
    fs::write(partial.join(part), &half[..half.len() / 2])?;
    cluster.restart(1)?;
    ensure!(
        shown(&cluster, 1, &[7, 5000, 999]).await? == (1, vec!["a007".into(), "-".into(), "a999".into()])
    );
    let log = cluster.log(1);
    ensure!(log.matches("fetched a table's file from another replica").count() == 2, "{log}");
    ensure!(log.contains("resuming the fetch of a table's file"), "{log}");
    ensure!(fs::metadata(damaged)?.permissions().mode() & 0o222 == 0 && fs::read(missing)? == half);

    // A member is gone for good, and another one takes its place.
    cluster.kill(2)?;
    let living = cluster.client_addresses()[..2].join(",");
    let remove = ["cluster", "remove", "r2", "--endpoints", &living];
    wait("a leader that removes it", || async { quoin(&remove) }).await?;
    // A voter is added once most of the others have answered the leader for some seconds.
    let add = ["cluster", "add", &cluster.peer_address(3), "--endpoints", &living];
    wait("a leader that adds one", || async { quoin(&add) }).await?;
    cluster.restart(3)?;
    ensure!(shown(&cluster, 3, &[7, 999]).await? == (1, vec!["a007".into(), "a999".into()]));
    Ok(())
}

/// A file that was cut while it was mapped ended the process at the next lookup, and a bad sector at every start.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_mapped_file_is_cut_serves_on_and_gets_it_again() -> Result<()> {
    let cluster = Cluster::dev(PROGRAM, &[])?;
    let folder = tempfile::tempdir()?;
    let built = build_base(folder.path(), 'a')?;
    quoin(&["table", "publish", path(&built)?, "--activate", "--endpoints", &cluster.endpoints()])?;
    let (_, files) = layer(&cluster, 0)?;
    let inode = |file: &PathBuf| fs::metadata(file).map(|metadata| metadata.ino());
    let before = inode(&files[0])?;
    for file in &files {
        fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
        fs::File::options().write(true).open(file)?.set_len(4096)?;
    }
    wait("it to be fetched again", || async {
        let answer = shown(&cluster, 0, &[7, 999]).await?;
        ensure!(answer == (1, vec!["a007".into(), "a999".into()]), "{answer:?}");
        ensure!(inode(&files[0])? != before, "the file that was cut is still there");
        Ok(())
    })
    .await?;
    ensure!(cluster.log(0).contains("nothing of it is answered any more"), "{}", cluster.log(0));
    cluster.stop_all()
}

/// It was ready while it answered no lookup.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_not_ready_while_an_active_table_is_not_loaded() -> Result<()> {
    let mut cluster = start(&["--table-peer-bytes-per-second=0"])?;
    let folder = tempfile::tempdir()?;
    let (built, aside) = (build_base(folder.path(), 'a')?, folder.path().join("aside"));
    quoin(&["table", "publish", path(&built)?, "--activate", "--endpoints", &cluster.endpoints()])?;
    fs::rename(&built, &aside)?;
    cluster.kill(1)?;
    fs::remove_dir_all(layer(&cluster, 1)?.0)?;
    cluster.spawn(1)?;
    wait("it to say what is missing", || async {
        let page = cluster.page(1, "/readyz")?;
        ensure!(page.status == 503 && page.body.contains("is not loaded yet: t 1"), "{}", page.body);
        Ok(())
    })
    .await?;
    ensure!(!loaded(&cluster, 1, 1).await && cluster.page(0, "/readyz")?.status == 200);
    fs::rename(&aside, &built)?;
    cluster.wait_ready(1)?;
    ensure!(shown(&cluster, 1, &[7]).await? == (1, vec!["a007".into()]));
    Ok(())
}

/// A backup has no files: it names them by content, so they may be anywhere when it is restored.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_gets_its_tables_from_wherever_the_same_content_is_published() -> Result<()> {
    let cluster = Cluster::dev(PROGRAM, &[])?;
    let folder = tempfile::tempdir()?;
    let (built, backup) = (build_base(folder.path(), 'a')?, folder.path().join("backup"));
    quoin(&["table", "publish", path(&built)?, "--activate", "--endpoints", &cluster.endpoints()])?;
    quoin(&["table", "set", "t", "8=new8", "--endpoints", &cluster.endpoints()])?;
    quoin(&["snapshot", "save", path(&backup)?, "--endpoints", &cluster.endpoints()])?;
    cluster.stop_all()?;
    let archive = folder.path().join("archive");
    fs::rename(&built, &archive)?;

    let mut restored = Cluster::new_dev(PROGRAM, &[])?;
    let done = restored.command_of(&["snapshot", "restore", path(&backup)?], 0).output()?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    restored.spawn(0)?;
    wait("it to say what is missing", || async {
        let page = restored.page(0, "/readyz")?;
        ensure!(page.status == 503 && page.body.contains("is not loaded yet: t 1"), "{}", page.body);
        Ok(())
    })
    .await?;
    let publish = ["table", "publish", path(&archive)?, "--endpoints", &restored.endpoints()];
    let said = quoin(&publish)?;
    ensure!(said.contains("published version 1 "), "{said}");
    restored.wait_ready(0)?;
    ensure!(shown(&restored, 0, &[7, 8]).await? == (1, vec!["a007".into(), "new8".into()]));
    restored.stop_all()
}
