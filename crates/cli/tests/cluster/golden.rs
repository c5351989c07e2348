//! Data of earlier versions is read by this one: each archive in `tests/golden` has the data folder of a node, a
//! backup of it, and what the version that wrote them answered.
//!
//! An archive is made once for each version of a format, by `cargo test -p quoin-cli --test cluster golden --
//! --ignored`, named after the version of the folder's layout and what is new, and never changed.

use crate::harness::{Cluster, PROGRAM, SMALL};
use crate::table::{build_base, path};
use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
/// What is written, in this order.
const WRITES: &[&str] = &[
    "kv put greeting hello",
    "kv cas greeting hello world",
    "kv put gone soon",
    "kv del gone",
    "kv txn --if greeting=world --then greeting=moved --then moved=yes",
    "kv put session abc --ttl 1000000h",
    "route put 100/10.0.0.1 --mac 02:00:00:00:00:01 --host-ip 192.168.0.1 --group rack-7",
    "route put 100/10.0.0.2 --mac 02:00:00:00:00:02 --host-ip 192.168.0.2 --group rack-7",
    "route delete 100/10.0.0.2",
    "ledger account create alice --currency EUR --id 0190b5e2-7f2c-7c1e-9d1a-000000000001",
    "ledger account create bob --currency EUR --id 0190b5e2-7f2c-7c1e-9d1a-000000000002 --limit 50.00",
    "ledger transfer @world/EUR alice 100 --id 0190b5e2-7f2c-7c1e-9d1a-000000000011 --reference salary",
    "ledger transfer alice bob 30.50 --pending --id 0190b5e2-7f2c-7c1e-9d1a-000000000014 --reference hotel",
    "ledger post 0190b5e2-7f2c-7c1e-9d1a-000000000014 20 --id 0190b5e2-7f2c-7c1e-9d1a-000000000016",
    "table set t 7=more 8=some",
];
/// What is asked for then. The answers do not depend on when it is asked.
const READS: &[&str] = &[
    "kv get greeting",
    "kv get greeting --revision 4",
    "kv get greeting --prefix --json",
    "kv get moved",
    "kv get session",
    "kv watch greeting --from 2 --count 3",
    "route list --group rack-7",
    "ledger account list",
    "ledger statement alice",
    "ledger verify",
];
/// Needs the table's files, which a backup does not have.
const LOOKUP: &str = "table lookup t 1 7 8 2000";
/// Large values, so that the log has several segments, and the store several files.
const FILLERS: usize = 15;
/// History is kept however old it is.
const KEEP: &[&str] = &["--history-keep-s=1000000000"];

fn settings() -> Vec<&'static str> {
    [SMALL, KEEP].concat()
}

/// What a command prints, and its exit code: refusals are answers.
fn ask(cluster: &Cluster, command: &str) -> Result<String> {
    let words: Vec<&str> = command.split(' ').collect();
    let output = cluster.quoin(&words).args(["--endpoints", &cluster.endpoints()]).output()?;
    let printed = String::from_utf8(output.stdout)?;
    let code = output.status.code().context("an exit code")?;
    ensure!(code != 1, "quoin {command}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(format!("$ quoin {command}\n{printed}exit code {code}\n"))
}

fn answers(cluster: &Cluster, commands: &[&str]) -> Result<String> {
    commands.iter().try_fold(String::new(), |mut all, command| {
        write!(all, "{}", ask(cluster, command)?)?;
        Ok(all)
    })
}

fn tar(arguments: &[&str]) -> Result<()> {
    let status = Command::new("tar").args(arguments).status().context("running tar")?;
    ensure!(status.success(), "tar {arguments:?}: {status}");
    Ok(())
}

#[test]
#[ignore = "writes tests/golden, once for each version of a format"]
fn golden_data_is_made() -> Result<()> {
    let mut cluster = Cluster::new_dev(PROGRAM, &settings())?;
    cluster.start_all()?;
    let base = build_base(cluster.folder(), 'a')?;
    let publish = ["table", "publish", path(&base)?, "--activate", "--endpoints", &cluster.endpoints()];
    ensure!(cluster.quoin(&publish).status()?.success(), "publishing");
    for number in 0..FILLERS {
        ask(&cluster, &format!("kv put filler/{number} {}", "v".repeat(100_000)))?;
    }
    answers(&cluster, WRITES)?;
    let expected = answers(&cluster, READS)? + "---\n" + &answers(&cluster, &[LOOKUP])?;
    let golden = cluster.folder().join("golden");
    fs::create_dir(&golden)?;
    ask(&cluster, &format!("snapshot save {}", path(&golden.join("backup"))?))?;
    cluster.stop(0)?;
    // It holds nothing, and as much of the disk as a segment.
    let _ = fs::remove_file(cluster.data_dir(0).join("reserve"));
    fs::rename(cluster.data_dir(0), golden.join("data"))?;
    fs::create_dir_all(GOLDEN)?;
    fs::write(format!("{GOLDEN}/layout-2.answers"), expected)?;
    let archive = format!("{GOLDEN}/layout-2.tar.gz");
    tar(&["-czf", &archive, "-C", path(&golden)?, "backup", "data"])
}

fn archives() -> Result<Vec<PathBuf>> {
    let mut names = fs::read_dir(GOLDEN)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    names.retain(|name| name.extension().is_some_and(|extension| extension == "gz"));
    ensure!(!names.is_empty(), "there is no golden data in {GOLDEN}");
    Ok(names)
}

/// A node on what an archive holds, and the answers that it must give: with and without tables' files. The answers stand
/// beside the archive, for the words around the data may change; the archive never does.
fn unpack(archive: &Path) -> Result<(Cluster, String, String)> {
    let cluster = Cluster::new_dev(PROGRAM, &settings())?;
    tar(&["-xzf", path(archive)?, "-C", path(cluster.folder())?])?;
    let answers = fs::read_to_string(archive.with_extension("").with_extension("answers"))?;
    let (all, lookup) = answers.split_once("---\n").context("two parts")?;
    Ok((cluster, all.into(), lookup.into()))
}

fn compare(found: &str, expected: &str) -> Result<()> {
    ensure!(found == expected, "{found}\ninstead of\n{expected}");
    Ok(())
}

#[test]
fn golden_folders_are_read_back_whole() -> Result<()> {
    for archive in archives()? {
        let (mut cluster, expected, lookup) = unpack(&archive)?;
        fs::rename(cluster.folder().join("data"), cluster.data_dir(0))?;
        let doctor = |cluster: &Cluster| {
            let output = cluster.quoin(&["doctor", "--full", path(&cluster.data_dir(0))?]).output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            anyhow::Ok(())
        };
        doctor(&cluster)?;
        cluster.start_all()?;
        compare(&answers(&cluster, READS)?, &expected)?;
        compare(&answers(&cluster, &[LOOKUP])?, &lookup)?;
        ask(&cluster, "kv put greeting again")?;
        cluster.stop(0)?;
        doctor(&cluster)?;
    }
    Ok(())
}

#[test]
fn golden_backups_are_restored_whole() -> Result<()> {
    for archive in archives()? {
        let (mut cluster, expected, _) = unpack(&archive)?;
        let backup = cluster.folder().join("backup");
        let restored = cluster.command_of(&["snapshot", "restore", path(&backup)?], 0).output()?;
        ensure!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
        // Without the table's files it is never ready.
        cluster.spawn(0)?;
        cluster.leader()?;
        compare(&answers(&cluster, READS)?, &expected)?;
        cluster.stop(0)?;
    }
    Ok(())
}
