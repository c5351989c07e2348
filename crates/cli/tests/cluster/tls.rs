//! A cluster that speaks TLS, as its operators and clients see it.

use crate::harness::PROGRAM;
use crate::playground::{Playground, quoin};
use anyhow::{Context, Result, bail, ensure};
use quoin_testkit::{Ports, wait_blocking};
use quoin_tls::{ClientFiles, Folder, client_config};
use rustls::{ClientConnection, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process that is killed if the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// What `quoin` says that must fail.
fn failure(arguments: &[&str]) -> Result<String> {
    let output = Command::new(PROGRAM).args(arguments).output()?;
    ensure!(!output.status.success(), "{arguments:?} did not fail");
    Ok(String::from_utf8(output.stderr)?)
}

/// A metric on the page of the HTTP port, which speaks TLS and may ask for a certificate.
fn metric(address: &str, certificates: &Folder, name: &str) -> Result<f64> {
    let own = certificates.client("client");
    let files = ClientFiles {
        authority: Some(certificates.authority()),
        certificate: Some(own.certificate),
        key: Some(own.key),
    };
    let address: SocketAddr = address.parse()?;
    let connection = ClientConnection::new(client_config(&files, &["http/1.1"])?, address.ip().into())?;
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.with_context(|| format!("there is no {name}"))?.parse()?)
}

#[test]
fn a_cluster_with_tls_serves_its_clients_and_lets_a_member_join() -> Result<()> {
    let (folder, ports) = (tempfile::tempdir()?, Ports::reserve()?);
    let mut playground = Playground::start_with(folder.path(), &ports, &["--tls"])?;
    let certificates = Folder::at(folder.path().join("data/certs"));
    let (endpoints, trust) = (playground.grpc.join(","), text(&certificates.authority()));
    ensure!(endpoints.starts_with("https://"), "{endpoints}");
    let known = ["--endpoints", &endpoints, "--cacert", &trust];
    let asked = |words: &[&str]| quoin(&[words, &known].concat());
    asked(&["kv", "put", "greeting", "hello"])?;
    for address in &playground.grpc {
        let read = quoin(&["kv", "get", "greeting", "--endpoints", address, "--cacert", &trust])?;
        ensure!(read.contains("hello"), "{read}");
    }
    // Who trusts another authority, or speaks no TLS, is not served.
    let others = Folder::at(folder.path().join("others"));
    others.make(&[], 1)?;
    let (other, address) = (text(&others.authority()), &playground.grpc[0]);
    let wrong = failure(&["kv", "get", "greeting", "--endpoints", address, "--cacert", &other])?;
    ensure!(wrong.contains("certificate"), "{wrong}");
    let plain = failure(&["kv", "get", "greeting", "--endpoints", address.trim_start_matches("https://")])?;
    ensure!(plain.contains("this port speaks TLS alone"), "{plain}");
    // Each replica is asked through another's client port.
    let applied = |count: usize| {
        wait_blocking("all replicas to answer", || {
            let status: serde_json::Value = serde_json::from_str(&asked(&["cluster", "status", "--json"])?)?;
            let replicas = status["replicas"].as_array().context("replicas")?;
            ensure!(replicas.len() == count, "{status}");
            ensure!(replicas.iter().all(|replica| replica["applied"].is_u64()), "{status}");
            anyhow::Ok(())
        })
    };
    applied(3)?;
    // A member joins with a certificate of its own, and not without.
    let (peer, places) = (ports.address(41).to_string(), text(&folder.path().join("data/certs")));
    quoin(&["cert", "init", "--dir", &places, "--nodes", "r4=127.0.0.1"])?;
    asked(&["cluster", "add", &peer])?;
    let founder = ports.address(1).to_string();
    let data = text(&folder.path().join("r4"));
    let [client, http, resp] = [40, 42, 43].map(|port| ports.address(port).to_string());
    let serve =
        ["serve", "--name", "r4", "--data-dir", &data, "--join", &founder, "--listen-client", &client];
    let listen = ["--listen-peer", &peer, "--listen-http", &http, "--listen-resp", &resp];
    let refused = failure(&[&serve[..], &listen].concat())?;
    ensure!(refused.contains("speaks TLS alone"), "{refused}");
    let own = certificates.node("r4");
    let (certificate, key) = (text(&own.certificate), text(&own.key));
    let tls = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-trusted-ca-file", &trust];
    let words = [&serve[..], &listen, &tls].concat();
    let log = fs::File::create(folder.path().join("r4.log"))?;
    let mut joined = Killed(
        Command::new(PROGRAM).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?,
    );
    applied(4).with_context(|| fs::read_to_string(folder.path().join("r4.log")).unwrap_or_default())?;
    if let Some(status) = joined.0.try_wait()? {
        bail!("the fourth ended: {status}");
    }
    drop(joined);
    playground.stop()
}

#[test]
fn certificates_change_under_load_and_bad_ones_do_not_count() -> Result<()> {
    let (folder, ports) = (tempfile::tempdir()?, Ports::reserve()?);
    let flags = ["--tls", "--replicas", "1", "--", "--tls-client-auth=required"];
    let mut playground = Playground::start_with(folder.path(), &ports, &flags)?;
    let places = folder.path().join("data/certs");
    let certificates = Folder::at(&places);
    let (own, http) = (certificates.client("client"), playground.http[0].clone());
    let (certificate, key) = (text(&own.certificate), text(&own.key));
    let trust = text(&certificates.authority());
    let known = ["--endpoints", &playground.grpc[0], "--cacert", &trust];
    let own = ["--cert", &certificate, "--key", &key];
    failure(&[&["kv", "put", "a", "b"], &known[..]].concat())?;
    let put = || quoin(&[&["kv", "put", "a", "b"], &known[..], &own].concat());
    put()?;
    let reloads = |outcome: &str| {
        let name = format!("quoin_tls_reloads_total{{outcome=\"{outcome}\"}}");
        metric(&http, &certificates, &name)
    };
    let load = [
        "bench",
        "kv",
        "put",
        "--json",
        "--seconds",
        "4",
        "--warm-up",
        "0",
        "--clients",
        "8",
        "--keys",
        "100",
    ];
    let load = Command::new(PROGRAM)
        .args([&load[..], &known, &own].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    quoin(&["cert", "renew", "--dir", &text(&places), "--days", "30"])?;
    // Those for clients, and those for peers.
    wait_blocking("the new certificates", || {
        let good = reloads("good")?;
        ensure!(good >= 2.0, "{good} reloads");
        anyhow::Ok(())
    })?;
    put()?;
    fs::write(certificates.node("replica-1").key, "no key")?;
    wait_blocking("the bad key to be noticed", || {
        let bad = reloads("bad")?;
        ensure!(bad >= 2.0, "{bad} reloads");
        anyhow::Ok(())
    })?;
    put()?;
    let output = load.wait_with_output()?;
    ensure!(output.status.success(), "the load ended: {}", output.status);
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(figures[0]["errors"] == 0 && figures[0]["operations"].as_u64() > Some(0), "{figures}");
    playground.stop()
}
