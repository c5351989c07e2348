//! The audit trail of a node, kept, checked and shown as an operator does it; and that nothing anywhere says a secret.

use crate::harness::PROGRAM;
use anyhow::{Context, Result, ensure};
use quoin_testkit::Cluster;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const ROOT: &str = "planted-root-password";
const ANN: &str = "planted-ann-password";
const WRONG: &str = "planted-wrong-password";
const VALUE: &str = "planted-value";
const KEY: &str = "planted-key-of-a-cloud";

fn run(words: &[&str], user: Option<(&str, &str)>) -> Result<Output> {
    let mut command = Command::new(PROGRAM);
    command.args(words);
    if let Some((name, password)) = user {
        command.env("QUOIN_USER", name).env("QUOIN_PASSWORD", password);
    }
    Ok(command.output()?)
}

fn done(output: &Output) -> Result<String> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Sends lines over Redis's protocol, and returns all that is answered.
fn redis(address: &str, lines: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(format!("{lines}QUIT\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn page(address: &str, path: &str, authorization: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\nauthorization: {authorization}\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The text files below a folder.
fn texts(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(texts(&path)?);
        } else if let Ok(text) = String::from_utf8(std::fs::read(&path)?) {
            found.push((path, text));
        }
    }
    Ok(found)
}

#[test]
fn who_did_what_is_kept_and_checked_and_no_secret_is_told() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let trail = folder.path().join("audit");
    let place = trail.display().to_string();
    let mut cluster = Cluster::new(
        PROGRAM,
        1,
        &[
            "--log",
            "debug",
            "--audit-folder",
            &place,
            "--audit-keys",
            "all:secret/",
            "--audit-log-ins",
            "true",
        ],
    )?;
    cluster.start_all()?;
    let (grpc, resp, http) = (cluster.client_address(0), cluster.resp_address(0), cluster.http_address(0));
    let to = ["--endpoints", &grpc];
    let ask = |user: Option<(&str, &str)>, words: &[&str]| run(&[words, &to[..]].concat(), user);
    for (name, password) in [("root", ROOT), ("ann", ANN)] {
        let mut command = Command::new(PROGRAM);
        command.args(["user", "add", name, "--new-password-file", "-"]).args(to);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        child.stdin.take().context("its input")?.write_all(format!("{password}\n").as_bytes())?;
        ensure!(child.wait()?.success());
    }
    done(&ask(None, &["user", "grant", "root", "root"])?)?;
    done(&ask(None, &["auth", "enable"])?)?;
    let mut told = String::new();
    let root = Some(("root", ROOT));
    for (user, words) in [
        (root, &["role", "add", "r"][..]),
        (root, &["role", "grant", "r", "readwrite", "secret/", "--prefix"]),
        (root, &["role", "grant-part", "r", "ledger", "read,write"]),
        (root, &["user", "grant", "ann", "r"]),
        (Some(("ann", ANN)), &["kv", "put", "secret/1", VALUE]),
        (Some(("ann", ANN)), &["kv", "put", "open/1", VALUE]),
        (Some(("ann", ANN)), &["user", "add", "eve", "--no-password"]),
        (Some(("ann", WRONG)), &["kv", "get", "secret/1"]),
        (root, &["kv", "put", "open/1", VALUE]),
    ] {
        told += &said(&ask(user, words)?);
    }
    ask(root, &["snapshot", "save", &folder.path().join("backup").display().to_string()])?;
    told += &redis(
        &resp,
        &format!("AUTH ann {WRONG}\r\nAUTH ann {ANN}\r\nSET secret/2 {VALUE}\r\nSET x\r\nCLIENT LIST\r\n"),
    )?;
    told += &redis(
        &resp,
        &format!("HELLO 3 AUTH ann {ANN}\r\nINFO\r\nCONFIG GET *\r\nACL LIST\r\nCLIENT KILL ID 7\r\n"),
    )?;
    for authorization in [format!("Basic {ROOT}"), format!("Bearer {ANN}"), format!("{ANN} {ROOT}")] {
        told += &page(&http, "/v1/accounts", &authorization)?;
        told += &page(&http, "/metrics", &authorization)?;
    }
    // Whole, and found by anybody who has the files.
    cluster.stop(0)?;
    let checked: Value = serde_json::from_str(&done(&run(&["audit", "verify", &place, "--json"], None)?)?)?;
    ensure!(checked["lost"] == 0 && checked["first"] == 1, "{checked}");
    let known = format!("{}:{}", checked["last"], checked["hash"].as_str().context("a hash")?);
    let shown = done(&run(&["audit", "show", &place, "--json"], None)?)?;
    let records = shown.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    for (act, user, about, outcome) in [
        ("/etcdserverpb.Auth/UserAdd", "", "ann", "done"),
        ("/etcdserverpb.Auth/AuthEnable", "", "", "done"),
        ("/etcdserverpb.Auth/RoleGrantPermission", "root", "[secret/..secret0]", "done"),
        ("/quoin.auth.v1.Auth/Grant", "root", "read,write", "done"),
        ("/etcdserverpb.Auth/UserAdd", "ann", "", "refused"),
        ("/quoin.kv.v1.Kv/Put", "ann", "secret/1", "done"),
        ("/etcdserverpb.Maintenance/Snapshot", "root", "", "done"),
        ("SET", "ann", "secret/2", "done"),
        ("log-in", "", "ann", "refused"),
        ("log-in", "ann", "", "done"),
        ("CLIENT KILL", "ann", "", "refused"),
        ("audit.stop", "", "", "done"),
    ] {
        let fits = |record: &&Value| {
            record["act"] == act
                && record["user"].as_str().unwrap_or_default() == user
                && record["about"].to_string().contains(about)
                && record["outcome"] == outcome
        };
        ensure!(records.iter().any(|record| fits(&record)), "{act} by {user:?}: {shown}");
    }
    ensure!(!shown.contains("open/1"), "nobody chose it: {shown}");
    let table = done(&run(&["audit", "show", &place, "--user", "root"], None)?)?;
    ensure!(table.contains("RoleAdd") && !table.contains("kv"), "{table}");
    told += &shown;
    told += &table;
    // The next start goes on with the chain, and a changed record is found.
    cluster.restart(0)?;
    cluster.stop(0)?;
    done(&run(&["audit", "verify", &place, "--known", &known], None)?)?;
    let file = std::fs::read_dir(&trail)?.next().context("a file")??.path();
    let whole = std::fs::read_to_string(&file)?;
    std::fs::write(&file, whole.replacen("\"user\":\"ann\"", "\"user\":\"bob\"", 1))?;
    let broken = run(&["audit", "verify", &place], None)?;
    let line = whole.lines().position(|line| line.contains("\"user\":\"ann\"")).context("ann")? + 1;
    let text = said(&broken);
    ensure!(broken.status.code() == Some(2) && text.contains(&format!("line {line}: was changed")), "{text}");
    // A settings file that is wrong in any way shows no secret of it.
    let settings = folder.path().join("quoin.toml");
    for text in [
        format!("[table]\ns3_secret_access_kay = \"{KEY}\"\n"),
        format!("[table]\ns3_secret_access_key = [\"{KEY}\"]\n"),
        format!("[table]\ns3_secret_access_key = \"{KEY}\n"),
        format!("[table]\ns3_secret_access_key = \"{KEY}\"\n"),
    ] {
        std::fs::write(&settings, text)?;
        let checked = run(&["config", "check", &settings.display().to_string()], None)?;
        ensure!(!checked.status.success());
        told += &said(&checked);
        told += &said(&run(&["serve", "--config", &settings.display().to_string()], None)?);
    }
    std::fs::remove_file(&settings)?;
    for (file, text) in texts(folder.path())?.into_iter().chain(texts(cluster.folder())?) {
        if file.extension().is_some_and(|kind| kind == "jsonl" || kind == "log") {
            told += &text;
        }
    }
    for secret in [ROOT, ANN, WRONG, VALUE, KEY, "argon2id", "quoin1."] {
        let line = told.lines().find(|line| line.contains(secret));
        ensure!(line.is_none(), "{secret} stands in {line:?}");
    }
    Ok(())
}
