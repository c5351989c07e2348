//! What is said where a node cannot start: one message, and its cause once.

use crate::harness::PROGRAM;
use anyhow::{Result, ensure};
use quoin_testkit::{Cluster, Ports, wait_blocking};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

/// Runs `quoin`, which must fail at once. Returns what it wrote on standard error, which must be one line.
fn failure(arguments: &[&str]) -> Result<String> {
    let output = Command::new(PROGRAM).args(arguments).output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{arguments:?}: {}: {said}", output.status);
    let (line, more) = said.split_once('\n').unwrap_or((&said, ""));
    ensure!(line.starts_with("quoin: ") && more.is_empty(), "{arguments:?}: {said:?}");
    Ok(line["quoin: ".len()..].into())
}

#[test]
fn whoever_starts_nodes_knows_the_range_of_a_setting() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (data, file) = (folder.path().join("data"), folder.path().join("quoin.toml"));
    fs::write(&file, "[raft]\ntick_ms = 0\n")?;
    let (data, file) = (data.display().to_string(), file.display().to_string());
    for arguments in [
        vec!["serve", "--data-dir", &data, "--raft-tick-ms", "0"],
        vec!["dev", "--data-dir", &data, "--raft-tick-ms", "0"],
        vec!["playground", "--port-base", "0", "--dir", &data, "--", "--raft-tick-ms", "0"],
        vec!["serve", "--data-dir", &data, "--config", &file],
        vec!["config", "check", &file],
    ] {
        let said = failure(&arguments)?;
        let expected = "raft.tick_ms: is 0; it must be at least 1 and at most 1000";
        ensure!(said.ends_with(expected), "{arguments:?}: {said}");
        ensure!(!Path::new(&data).exists(), "{arguments:?} made a folder");
    }
    Ok(())
}

/// They were accepted, and the node could not work: it formed no batch, served no stream, or ran out of numbers.
#[test]
fn serve_and_config_check_refuse_what_can_never_work() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (data, file) = (folder.path().join("data"), folder.path().join("quoin.toml"));
    let data = data.display().to_string();
    for (section, name, value) in [
        ("raft", "batch_commands_max", "0"),
        ("raft", "batch_bytes_max", "0"),
        ("raft", "batches_in_flight_max", "0"),
        ("raft", "heartbeat_ticks", "0"),
        ("raft", "election_ticks", "9223372036854775807"),
        ("limits", "streams_per_connection_max", "0"),
        ("limits", "commands_in_flight_max", "0"),
        ("limits", "reads_in_flight_max", "0"),
        ("limits", "request_bytes_max", "0"),
        ("store", "memtable_bytes", "0"),
    ] {
        let expected = format!("{section}.{name}: is {value}; it must be at least ");
        let flag = format!("--{section}-{}", name.replace('_', "-"));
        let said = failure(&["serve", "--data-dir", &data, &flag, value])?;
        ensure!(said.contains(&expected), "{flag} {value}: {said}");
        fs::write(&file, format!("[{section}]\n{name} = {value}\n"))?;
        let said = failure(&["config", "check", &file.display().to_string()])?;
        ensure!(said.contains(&expected), "{section}.{name} = {value}: {said}");
        ensure!(!Path::new(&data).exists(), "{flag} {value} made a folder");
    }
    Ok(())
}

/// Causes were told two or three times.
#[test]
fn a_node_that_cannot_start_says_why_once() -> Result<()> {
    let (folder, ports) = (tempfile::tempdir()?, Ports::reserve()?);
    let data = folder.path().join("data").display().to_string();
    let listen = ["client", "peer", "http", "resp"];
    let listen: Vec<String> =
        listen.iter().zip(0..).map(|(what, at)| format!("--listen-{what}={}", ports.address(at))).collect();
    let serve = |more: &[&str]| {
        let listen = listen.iter().map(String::as_str);
        failure(
            &["serve", "--data-dir", &data]
                .into_iter()
                .chain(listen)
                .chain(more.iter().copied())
                .collect::<Vec<_>>(),
        )
    };
    let taken = TcpListener::bind(ports.address(2))?;
    let said = serve(&[])?;
    let place = format!("listening on {} (http); is another process using the port?", ports.address(2));
    assert_eq!(said, format!("{place}: Address already in use (os error 98)"));
    drop(taken);

    fs::create_dir(&data)?;
    let identity = Path::new(&data).join("identity.json");
    let text = r#"{"layout": 1, "cluster": "a1", "id": "7", "name": "other", "founder": true}"#;
    fs::write(&identity, text)?;
    let said = serve(&[])?;
    ensure!(said.starts_with(&format!("{data} belongs to the node named \"other\"")), "{said}");
    let founders = format!("--cluster=other={}", ports.address(1));
    let said = serve(&["--name=other", &founders])?;
    ensure!(said.contains("belongs to cluster 00000000000000a1, and"), "{said}");
    fs::write(&identity, "{")?;
    let said = serve(&[])?;
    ensure!(said.matches("EOF while parsing").count() == 1, "{said}");

    fs::remove_dir_all(&data)?;
    fs::write(&data, "a file")?;
    let said = serve(&[])?;
    ensure!(said.contains(&data) && said.matches("os error").count() == 1, "{said}");
    Ok(())
}

/// The signal ended the process: whoever had started it took that for a crash.
#[test]
fn a_node_that_is_asked_to_end_before_it_has_started_ends_well() -> Result<()> {
    let mut cluster = Cluster::new(PROGRAM, 3, &[])?;
    cluster.spawn(0)?;
    // It is asked as soon as it has taken the port, long before it could serve.
    wait_blocking("its port to be taken", || TcpStream::connect(cluster.client_address(0)))?;
    cluster.stop(0)?;
    ensure!(!cluster.log(0).contains("ERROR"), "{}", cluster.log(0));
    Ok(())
}
