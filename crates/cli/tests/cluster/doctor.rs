//! `quoin doctor` on the folders of stopped nodes.

use crate::harness::{Cluster, PROGRAM, SMALL};
use crate::table::{build_base, path, quoin};
use anyhow::{Context, Result, ensure};
use quoin_testkit::wait_blocking;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Runs the doctor. Returns its exit code and what it printed.
fn doctor(folder: &Path, more: &[&str]) -> Result<(Option<i32>, String)> {
    let output = Command::new(PROGRAM).arg("doctor").arg(folder).args(more).output()?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), said))
}

fn report(folder: &Path, more: &[&str]) -> Result<(Option<i32>, Value)> {
    let output = Command::new(PROGRAM).arg("doctor").arg(folder).args(more).arg("--json").output()?;
    ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), serde_json::from_slice(&output.stdout)?))
}

/// Every file below a folder, with its time of change and bytes.
fn files(folder: &Path) -> Result<BTreeMap<PathBuf, (SystemTime, Vec<u8>)>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            let changed = path.metadata()?.modified()?;
            found.insert(path.clone(), (changed, fs::read(&path)?));
        }
    }
    Ok(found)
}

fn flip(file: &Path, at: usize) -> Result<()> {
    let mut bytes = fs::read(file)?;
    bytes[at] ^= 1;
    fs::remove_file(file)?;
    Ok(fs::write(file, bytes)?)
}

/// The largest file in a folder.
fn largest(folder: &Path) -> Result<PathBuf> {
    let all = files(folder)?;
    let largest = all.into_iter().max_by_key(|(_, (_, bytes))| bytes.len());
    Ok(largest.context("a file")?.0)
}

#[test]
fn a_stopped_folder_is_told_and_every_damage_is_named() -> Result<()> {
    let mut cluster = Cluster::dev(PROGRAM, SMALL)?;
    let (endpoints, folder, value) = (cluster.endpoints(), cluster.data_dir(0), "v".repeat(100_000));
    let base = build_base(cluster.folder(), 'a')?;
    quoin(&["table", "publish", path(&base)?, "--activate", "--endpoints", &endpoints])?;
    for number in 0..30 {
        quoin(&["kv", "put", &format!("k{number}"), &value, "--endpoints", &endpoints])?;
    }
    let (code, said) = doctor(&folder, &[])?;
    ensure!(code == Some(1) && said.contains("is in use: stop the node"), "{code:?}: {said}");
    cluster.stop(0)?;

    let before = files(&folder)?;
    let (code, found) = report(&folder, &["--full"])?;
    ensure!(code == Some(0) && found["healthy"] == true, "{code:?}: {found}");
    ensure!(found["identity"]["name"] == "quoin" && found["identity"]["origin"] == "founder", "{found}");
    ensure!(found["log"]["segments"].as_array().is_some_and(|segments| segments.len() > 1), "{found}");
    ensure!(found["log"]["last"] == found["store"]["applied"] && found["log"]["commit"].is_u64(), "{found}");
    ensure!(found["store"]["revision"].as_u64() > Some(30) && found["tables"][0]["table"] == "t", "{found}");
    let (code, said) = doctor(&folder, &[])?;
    ensure!(code == Some(0) && said.contains("what to do: Nothing"), "{code:?}: {said}");
    ensure!(files(&folder)? == before, "the doctor changed the folder");

    // A table: fetched again by a start.
    let table = largest(&folder.join("tables"))?;
    flip(&table, 5000)?;
    let (code, found) = report(&folder, &["--full"])?;
    let problem = found["damage"][0]["problem"].as_str().unwrap_or_default();
    ensure!(code == Some(2) && problem.contains(path(&table)?), "{code:?}: {found}");
    ensure!(found["advice"].as_str().is_some_and(|text| text.starts_with("Start the node")), "{found}");
    flip(&table, 5000)?;

    // The store: where a start does not look.
    let block = largest(&folder.join("store"))?;
    flip(&block, 1000)?;
    let (code, found) = report(&folder, &["--full"])?;
    ensure!(code == Some(2) && found["damage"].to_string().contains(path(&block)?), "{code:?}: {found}");
    ensure!(
        found["advice"].as_str().is_some_and(|text| text.contains("quoin cluster remove quoin")),
        "{found}"
    );
    flip(&block, 1000)?;

    // The log: the doctor names what a start names.
    let segment = folder.join("log").join(found["log"]["segments"][0]["file"].as_str().context("a file")?);
    flip(&segment, 200)?;
    let (code, found) = report(&folder, &[])?;
    let offset = found["damage"][0]["offset"].as_u64().context("an offset")?;
    ensure!(code == Some(2) && found["damage"][0]["file"] == path(&segment)?, "{code:?}: {found}");
    let started = cluster.command(0).output()?;
    let said = String::from_utf8(started.stderr)?;
    ensure!(said.contains(&format!("is damaged at byte {offset}")), "{said}");
    flip(&segment, 200)?;

    // The identity, whose message was the bare error of the JSON in it.
    fs::write(folder.join("identity.json"), "{")?;
    let started = cluster.command(0).output()?;
    let said = String::from_utf8(started.stderr)?;
    ensure!(said.contains("identity.json: the file is damaged (EOF while parsing"), "{said}");
    let (code, found) = report(&folder, &[])?;
    ensure!(code == Some(2) && found["damage"][0]["part"] == "identity", "{code:?}: {found}");
    fs::remove_file(folder.join("identity.json"))?;
    let (code, said) = doctor(&folder, &[])?;
    ensure!(code == Some(2) && said.contains("it is gone"), "{code:?}: {said}");
    let (code, said) = doctor(cluster.folder(), &[])?;
    ensure!(code == Some(1) && said.contains("is no data folder"), "{code:?}: {said}");
    Ok(())
}

/// A member with a damaged log could only be replaced by four commands in the right order.
#[test]
fn a_damaged_member_is_replaced_by_one_command() -> Result<()> {
    let mut cluster = Cluster::start(PROGRAM, SMALL)?;
    let endpoints = cluster.endpoints();
    let rebuild = |folder: &Path, more: &[&str]| {
        doctor(folder, &[&["--rebuild", "--endpoints", &endpoints][..], more].concat())
    };
    quoin(&["cluster", "add", &cluster.peer_address(3), "--endpoints", &endpoints])?;
    cluster.restart(3)?;
    quoin(&["kv", "put", "k", "v", "--endpoints", &endpoints])?;
    cluster.stop(3)?;
    let folder = cluster.data_dir(3);
    let (code, said) = rebuild(&folder, &[])?;
    ensure!(code == Some(2) && said.contains("is damaged: start the node"), "{code:?}: {said}");
    flip(&folder.join("log/0000000000000001.log"), 70)?;
    let (code, said) = rebuild(&folder, &[])?;
    ensure!(code == Some(0) && !folder.exists(), "{code:?}: {said}");
    let aside = said.split_once("folder is now ").and_then(|(_, rest)| rest.lines().next());
    ensure!(Path::new(aside.context("a folder")?).join("identity.json").exists(), "{said}");
    ensure!(said.contains("--name r3") && said.contains(&cluster.peer_address(0)), "{said}");
    cluster.restart(3)?;
    let value = quoin(&["kv", "get", "k", "--local", "--endpoints", &cluster.client_address(3)])?;
    ensure!(value == "v\n", "{value}");
    wait_blocking("four members, one of them r3", || {
        let said = quoin(&["cluster", "status", "--endpoints", &endpoints]).unwrap_or_default();
        let found = said.matches("r3").count() == 1 && said.lines().count() == 6;
        if found { Ok(()) } else { Err(said) }
    })?;
    cluster.stop_all()
}
