//! Users and roles, as an operator sets them up, on three replicas.

use crate::harness::PROGRAM;
use crate::playground::{Playground, quoin};
use anyhow::{Context, Result, ensure};
use quoin_proto::etcdserverpb as pb;
use quoin_proto::etcdserverpb::auth_client::AuthClient;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_testkit::{Ports, wait_blocking};
use std::path::Path;
use std::process::{Command, Output};
use tonic::transport::Channel;
use tonic::{Code, Request};

const ROOT: &str = "planted-root-password";
const ANN: &str = "planted-ann-password";

/// `quoin` as a user, whose password is in the environment.
fn by(user: &str, password: &str, words: &[&str]) -> Result<Output> {
    let mut command = Command::new(PROGRAM);
    Ok(command.args(words).env("QUOIN_USER", user).env("QUOIN_PASSWORD", password).output()?)
}

fn done(output: &Output) -> Result<String> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What a command says that is refused.
fn refused(output: &Output) -> Result<String> {
    ensure!(!output.status.success(), "it was done: {}", String::from_utf8_lossy(&output.stdout));
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// All files below `folder` but those of the test's own passwords.
fn files(folder: &Path) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if !["root", "ann"].into_iter().any(|own| path.ends_with(own)) {
            found.push(std::fs::read(&path)?);
        }
    }
    Ok(found)
}

fn has(file: &[u8], secret: &str) -> bool {
    file.windows(secret.len()).any(|window| window == secret.as_bytes())
}

#[test]
fn only_users_are_let_in_and_tokens_outlive_a_leader() -> Result<()> {
    let (folder, ports) = (tempfile::tempdir()?, Ports::reserve()?);
    let mut playground = Playground::start_with(folder.path(), &ports, &["--log", "debug"])?;
    let endpoints = playground.grpc.join(",");
    let everywhere = ["--endpoints", &endpoints];
    let words = |words: &[&'static str]| [words, &everywhere[..]].concat();
    for (name, password) in [("root", ROOT), ("ann", ANN)] {
        let file = folder.path().join(name);
        std::fs::write(&file, format!("{password}\n"))?;
        let file = file.display().to_string();
        quoin(&[&["user", "add", name, "--new-password-file", &file], &everywhere[..]].concat())?;
    }
    quoin(&words(&["user", "grant", "root", "root"]))?;
    quoin(&words(&["role", "add", "app"]))?;
    quoin(&words(&["role", "grant", "app", "readwrite", "app/", "--prefix"]))?;
    quoin(&words(&["role", "grant-part", "app", "ledger", "read,write"]))?;
    quoin(&words(&["user", "grant", "ann", "app"]))?;
    quoin(&words(&["auth", "enable"]))?;
    let shown = done(&by("ann", ANN, &words(&["role", "get", "app", "--json"]))?)?;
    ensure!(shown.contains("app/") && shown.contains("read,write"), "{shown}");
    // Every replica lets in whom the others do, and nobody else.
    for address in &playground.grpc {
        let to = ["--endpoints", address];
        let ask = |words: &[&'static str]| [words, &to[..]].concat();
        wait_blocking("the replica to ask who it is", || {
            let output = Command::new(PROGRAM).args(ask(&["kv", "get", "app/1"])).output()?;
            let said = refused(&output)?;
            ensure!(said.contains("user name is empty") || said.contains("needs a user"), "{said}");
            anyhow::Ok(())
        })?;
        done(&by("ann", ANN, &ask(&["kv", "put", "app/1", "x"]))?)?;
        for forbidden in [&["kv", "put", "other", "x"][..], &["user", "list"], &["cluster", "status"]] {
            let said = refused(&by("ann", ANN, &ask(forbidden))?)?;
            ensure!(said.contains("permission denied"), "{forbidden:?}: {said}");
        }
        let said = refused(&by("ann", "wrong", &ask(&["kv", "get", "app/1"]))?)?;
        ensure!(said.contains("authentication failed"), "{said}");
        // Replicas ask each other on behalf of whoever asks them.
        wait_blocking("every replica to have said where it serves clients", || {
            let status = done(&by("root", ROOT, &ask(&["cluster", "status", "--json"]))?)?;
            let status: serde_json::Value = serde_json::from_str(&status)?;
            let replicas = status["replicas"].as_array().context("replicas")?;
            ensure!(replicas.iter().all(|replica| replica["applied"].is_u64()), "{status}");
            anyhow::Ok(())
        })?;
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let channel = |address: &str| Channel::from_shared(format!("http://{address}"));
    let token = runtime.block_on(async {
        let (name, password) = ("ann".to_string(), ANN.to_string());
        let mut client = AuthClient::new(channel(&playground.grpc[0])?.connect().await?);
        anyhow::Ok(client.authenticate(pb::AuthenticateRequest { name, password }).await?.into_inner().token)
    })?;
    let read = |address: &str| {
        runtime.block_on(async {
            let mut request = Request::new(pb::RangeRequest { key: "app/1".into(), ..Default::default() });
            request.metadata_mut().insert("token", token.parse()?);
            anyhow::Ok(KvClient::new(channel(address)?.connect().await?).range(request).await)
        })
    };
    let status = done(&by("root", ROOT, &words(&["cluster", "status", "--json"]))?)?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let replicas = status["replicas"].as_array().context("replicas")?;
    let follower = replicas.iter().find(|replica| replica["role"] != "leader").context("a follower")?;
    let name = follower["name"].as_str().context("its name")?;
    done(&by("root", ROOT, &[&["cluster", "transfer-leader", name], &everywhere[..]].concat())?)?;
    for address in &playground.grpc {
        wait_blocking("the token to count at every replica", || {
            read(address)?.map_err(|status| anyhow::anyhow!("{status}"))
        })?;
    }
    // What is taken away is away everywhere, at once.
    done(&by("root", ROOT, &words(&["user", "revoke", "ann", "app"]))?)?;
    for address in &playground.grpc {
        let refused = read(address)?.err().context("ann read without a right")?;
        let codes = [Code::PermissionDenied, Code::InvalidArgument];
        ensure!(codes.contains(&refused.code()), "{refused}");
    }
    playground.stop()?;
    // No file has a password or a token, the replicated log neither; and what nodes say has no hash.
    for file in files(folder.path())? {
        for secret in [ROOT, ANN, &token[..]] {
            ensure!(!has(&file, secret), "{secret} stands in a file");
        }
        let text = !file.contains(&0);
        ensure!(!text || !has(&file, "argon2id"), "a hash stands in a log");
    }
    Ok(())
}
