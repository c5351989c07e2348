//! The ledger's commands: what they say when nobody knows what was done, how lists go on, what an export holds.

use crate::harness::{Cluster, PROGRAM, start};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::{Command, Output, Stdio};

const PENDING: &str = "0190b5e2-7f2c-7c1e-9d1a-000000000014";
const POST: &str = "0190b5e2-7f2c-7c1e-9d1a-000000000016";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `quoin ledger` with these words, which a space separates.
fn ledger(cluster: &Cluster, words: &str) -> Result<Output> {
    let words: Vec<&str> = ["ledger"].into_iter().chain(words.split(' ')).collect();
    Ok(cluster.quoin(&words).env("QUOIN_ENDPOINTS", cluster.endpoints()).output()?)
}

/// What such a command prints that ends well.
fn done(cluster: &Cluster, words: &str) -> Result<String> {
    let output = ledger(cluster, words)?;
    ensure!(output.status.success(), "{words}: {}{}", text(&output.stdout), text(&output.stderr));
    Ok(text(&output.stdout))
}

/// The JSON that such a command prints, and its exit code.
fn json(cluster: &Cluster, words: &str) -> Result<(Value, Option<i32>)> {
    let output = ledger(cluster, words)?;
    let printed = text(&output.stdout);
    let value = serde_json::from_str(&printed).with_context(|| format!("{words}: {printed}"))?;
    Ok((value, output.status.code()))
}

/// Alice has 100.00, of which she sets 30.50 aside for Bob and then pays 20.00.
fn book() -> Result<Cluster> {
    let cluster = Cluster::dev(PROGRAM, &[])?;
    for words in [
        "account create alice --currency EUR --data blue --meta shop=Ulm --initial-balance 100",
        "account create bob --currency EUR",
    ] {
        done(&cluster, words)?;
    }
    done(&cluster, &format!("transfer alice bob 30.50 --pending --id {PENDING} --reference hotel"))?;
    done(&cluster, &format!("post {PENDING} 20 --id {POST} --code 7 --meta room=12"))?;
    Ok(cluster)
}

/// `quoin: Timeout expired (Cancelled): transport error` was all: no id, and not that it may have been done. Whoever sent
/// it again moved the money twice.
#[test]
fn a_write_whose_outcome_nobody_knows_says_so_and_how_to_do_it_once() -> Result<()> {
    let mut cluster = start(&[])?;
    done(&cluster, "account create alice --currency EUR")?;
    let writes = [
        "ledger account create bob --currency EUR --meta who=it's",
        "ledger void 0190b5e2-7f2c-7c1e-9d1a-000000000014",
        "ledger revert 0190b5e2-7f2c-7c1e-9d1a-000000000014 --json",
        "ledger currency GOLD 3",
        "ledger account create carol --currency EUR --id 0190b5e2-7f2c-7c1e-9d1a-000000000003",
        "kv put a b",
        "kv del a --prefix",
        "kv cas a b c",
        "route put 100/10.0.0.1 --mac 02:00:00:00:00:01 --host-ip 192.0.2.1 --host-mac 02:00:00:00:00:02 --group g",
        "route delete 100/10.0.0.1",
        "table rollback t",
    ];
    let answers = loop {
        let leader = cluster.leader()?;
        let others: Vec<usize> = (0..3).filter(|replica| *replica != leader).collect();
        for replica in &others {
            cluster.kill(*replica)?;
        }
        let endpoint = cluster.client_address(leader);
        let spawn = |words: &&str| {
            let mut command = Command::new(PROGRAM);
            command.args(words.split(' ')).args(["--timeout", "2", "--endpoints", &endpoint]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let children = writes.iter().map(spawn).collect::<std::io::Result<Vec<_>>>()?;
        let answers = children.into_iter().map(|child| child.wait_with_output());
        let answers = answers.collect::<std::io::Result<Vec<_>>>()?;
        for replica in others {
            cluster.restart(replica)?;
        }
        // The leader may have noticed before a write came: then nothing was done, and it says that.
        if !answers.iter().any(|answer| text(&answer.stderr).contains("no leader")) {
            break answers;
        }
    };
    for (words, answer) in writes.iter().zip(&answers) {
        let said = text(&answer.stderr);
        ensure!(answer.status.code() == Some(1), "{words}: {}: {said}", answer.status);
        ensure!(said.starts_with("quoin: it may have been done, or may still be: "), "{words}: {said}");
    }

    let again = text(&answers[0].stderr);
    let (_, again) = again.trim_end().split_once("\n  ").context("no command to repeat")?;
    let (_, id) = again.split_once("--id ").context("no id")?;
    ensure!(again.contains(r"--meta 'who=it'\''s'"), "{again}");
    for _ in 0..2 {
        let output = Command::new("sh").args(["-c", again]).output()?;
        ensure!(text(&output.stdout).trim_end() == id, "{again}: {}", text(&output.stderr));
    }
    ensure!(text(&answers[4].stderr).matches("--id").count() == 1, "{}", text(&answers[4].stderr));
    let said: Value = serde_json::from_slice(&answers[2].stdout)?;
    ensure!(said["outcome"] == "unknown" && said["ids"][0].is_string(), "{said}");
    ensure!(said["again"].as_str().is_some_and(|again| again.contains("--id")), "{said}");
    Ok(())
}

/// Setting an index switched the uniqueness of references off without a word.
#[test]
fn a_flag_of_the_indexes_changes_only_what_it_names() -> Result<()> {
    let cluster = book()?;
    let kept = |words: &str| -> Result<Vec<String>> {
        let printed = done(&cluster, &format!("indexes {words}"))?;
        let row = |line: &str| line.split("  ").next().unwrap_or_default().to_owned();
        let rows = printed.lines().skip(1).filter(|line| !line.ends_with("off")).map(row);
        Ok(rows.skip(1).collect())
    };
    assert_eq!(kept("--unique-references true")?, ["unique references"]);
    assert_eq!(kept("--set reference,code")?, ["reference", "code", "unique references"]);
    assert_eq!(kept("--unique-references false")?, ["reference", "code"]);
    assert_eq!(kept("--unique-references")?, ["reference", "code", "unique references"]);
    assert_eq!(kept("--set none")?, ["unique references"]);
    ensure!(done(&cluster, "indexes --unique-references false")?.contains("unique references  off"));
    Ok(())
}

/// They ended after 20 or 100 entries as if there were no more.
#[test]
fn a_list_that_is_cut_says_how_to_go_on() -> Result<()> {
    let cluster = book()?;
    for (words, name, flag) in [
        ("statement alice", "lines", "--before"),
        ("transfers", "transfers", "--cursor"),
        ("account list", "accounts", "--after"),
    ] {
        let (all, _) = json(&cluster, &format!("{words} --json --all"))?;
        ensure!(all["next"].is_null(), "{all}");
        let all = all[name].as_array().context("no list")?.clone();
        ensure!(all.len() >= 3, "{all:?}");
        let (mut pieces, mut from) = (Vec::new(), String::new());
        loop {
            let (page, _) = json(&cluster, &format!("{words} --json --limit 1{from}"))?;
            pieces.extend(page[name].as_array().context("no list")?.clone());
            let Some(next) = page["next"].as_str() else { break };
            let output = ledger(&cluster, &format!("{words} --limit 1{from}"))?;
            let said = text(&output.stderr);
            ensure!(said == format!("more follow: {flag} {next}, or --all\n"), "{words}: {said}");
            from = format!(" {flag} {next}");
        }
        assert_eq!(pieces, all, "{words}");
        ensure!(ledger(&cluster, &format!("{words} --limit 100000"))?.stderr.is_empty(), "{words}");
        for wrong in ["--limit 0", "--limit -1"] {
            let said = text(&ledger(&cluster, &format!("{words} {wrong}"))?.stderr);
            ensure!(said.contains("whole number from 1 on; --all shows all"), "{words} {wrong}: {said}");
        }
    }
    Ok(())
}

/// A pending credit looked like a payment, and its post like a second one.
#[test]
fn the_amounts_of_a_statement_add_up_to_the_balance() -> Result<()> {
    let cluster = book()?;
    let (page, _) = json(&cluster, "statement bob --json")?;
    let lines = page["lines"].as_array().context("no lines")?;
    let column = |name: &str| lines.iter().map(|line| line[name].as_str().unwrap_or("?")).collect::<Vec<_>>();
    assert_eq!(column("kind"), ["post", "pending"]);
    assert_eq!(column("amount"), ["+20.00", ""]);
    assert_eq!(column("pending"), ["-30.50", "+30.50"]);
    assert_eq!(column("balance"), ["20.00", "0.00"]);
    assert_eq!(column("incoming"), ["0.00", "30.50"]);
    assert_eq!(column("account"), ["alice", "alice"]);
    assert_eq!(column("id"), [POST, PENDING]);
    ensure!(column("time").iter().all(|time| time.ends_with('Z') && time.starts_with("20")), "{lines:?}");
    Ok(())
}

/// There was no way to see a transfer alone, nor an account's data.
#[test]
fn a_transfer_and_an_account_are_shown_with_all_that_is_kept() -> Result<()> {
    let cluster = book()?;
    let (shown, _) = json(&cluster, &format!("show {PENDING} --json"))?;
    for (field, value) in [
        ("status", "posted"),
        ("ended_by", POST),
        ("debit_account", "alice"),
        ("credit_account", "bob"),
        ("amount", "30.50"),
        ("currency", "EUR"),
        ("reference", "hotel"),
    ] {
        ensure!(shown[field] == value, "{field}: {shown}");
    }
    done(&cluster, &format!("revert {POST} --id 0190b5e2-7f2c-7c1e-9d1a-000000000018"))?;
    let (shown, _) = json(&cluster, &format!("show {POST} --json"))?;
    ensure!(shown["reverted_by"] == "0190b5e2-7f2c-7c1e-9d1a-000000000018", "{shown}");
    ensure!(shown["pending_id"] == PENDING && shown["code"] == 7 && shown["metadata"]["room"] == "12");
    let refused = "0190b5e2-7f2c-7c1e-9d1a-000000000019";
    ledger(&cluster, &format!("transfer alice bob 500 --id {refused}"))?;
    let people = done(&cluster, &format!("show {refused}"))?;
    ensure!(people.contains("the debit account has too little, by its rule"), "{people}");

    let (account, _) = json(&cluster, "account show alice --json")?;
    ensure!(account["data"] == "blue" && account["metadata"]["shop"] == "Ulm", "{account}");
    ensure!(done(&cluster, "account show alice")?.ends_with("data: blue\nshop=Ulm\n"));
    Ok(())
}

/// A post could not be joined to its pending transfer, and a refused void named nothing.
#[test]
fn an_export_names_what_was_asked_for() -> Result<()> {
    let cluster = book()?;
    let void = ledger(&cluster, &format!("void {PENDING}"))?;
    ensure!(void.status.code() == Some(2));
    let printed = done(&cluster, "export")?;
    let mut lines = printed.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().context("no header")?;
    ensure!(head[..5] == ["revision", "position", "time_ms", "id", "kind"], "{head:?}");
    let rows: Vec<_> = lines.collect();
    let cell = |row: usize, name: &str| -> Result<&str> {
        let column = head.iter().position(|title| *title == name).with_context(|| name.to_owned())?;
        Ok(rows[row][column])
    };
    assert_eq!((cell(2, "kind")?, cell(2, "pending_id")?), ("post", PENDING));
    assert_eq!((cell(2, "code")?, cell(2, "metadata")?), ("7", r#""{""room"":""12""}""#));
    assert_eq!((cell(2, "debit_number")?, cell(2, "credit_number")?), ("alice", "bob"));
    assert_eq!((cell(1, "requested_amount")?, cell(1, "requested_currency")?), ("30.50", "EUR"));
    assert_eq!((cell(3, "kind")?, cell(3, "pending_id")?), ("void", PENDING));
    assert_eq!(cell(3, "result")?, "already_posted");
    Ok(())
}

/// `refused: insufficient_funds` did not say what, and programs did not learn the id of the refused transfer.
#[test]
fn a_refusal_says_why_and_what_was_refused() -> Result<()> {
    let cluster = book()?;
    let id = "0190b5e2-7f2c-7c1e-9d1a-000000000021";
    let refused = ledger(&cluster, &format!("transfer alice bob 500 --id {id}"))?;
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        text(&refused.stdout),
        format!(
            "refused: insufficient_funds\n  the debit account has too little, by its rule: 500 EUR from alice to bob, id {id}\n"
        )
    );
    let (refused, code) = json(&cluster, "transfer alice bob 500 --json")?;
    let id = refused["id"].as_str().context("no id")?;
    ensure!(code == Some(2) && refused["reason"] == "insufficient_funds", "{refused}");
    ensure!(refused["recorded"] == true && refused["debit_account"] == "alice", "{refused}");
    ensure!(done(&cluster, &format!("show {id}"))?.contains("insufficient_funds"));
    let unknown = text(&ledger(&cluster, "transfer alice nobody 1")?.stdout);
    ensure!(unknown.starts_with("refused: nothing was done: reading the account \"nobody\": "), "{unknown}");
    let (failed, code) = json(&cluster, "transfer alice bob 1.234 --json")?;
    ensure!(code == Some(1) && failed["outcome"] == "failed" && failed["reason"].is_string(), "{failed}");
    Ok(())
}

/// A variable that was not set made an account without a name.
#[test]
fn an_account_without_a_number_is_made_on_purpose() -> Result<()> {
    let cluster = book()?;
    let mut create = cluster.quoin(&["ledger", "account", "create", "", "--currency", "EUR"]);
    let empty = create.env("QUOIN_ENDPOINTS", cluster.endpoints()).output()?;
    let said = text(&empty.stderr);
    ensure!(empty.status.code() == Some(1) && said.contains("the number is empty"), "{said}");
    let id = done(&cluster, "account create --currency EUR")?;
    let (account, _) = json(&cluster, &format!("account show {} --json", id.trim_end()))?;
    ensure!(account["number"] == "", "{account}");
    Ok(())
}

/// `quoin: Broken pipe (os error 32)`.
#[test]
fn nothing_is_said_when_nobody_reads_on() -> Result<()> {
    let cluster = book()?;
    let endpoints = cluster.endpoints();
    for words in ["export", "statement alice", "account list --json", "verify --json"] {
        let mut command = Command::new(PROGRAM);
        command.arg("ledger").args(words.split(' ')).args(["--endpoints", &endpoints]);
        let (read, write) = std::io::pipe()?;
        drop(read);
        let output = command.stdout(write).stderr(Stdio::piped()).output()?;
        ensure!(output.stderr.is_empty(), "{words}: {}", text(&output.stderr));
        ensure!(output.status.success(), "{words}: {}", output.status);
    }
    Ok(())
}

/// `received corrupt message of type InvalidContentType`.
#[test]
fn https_to_a_plain_port_is_told_as_that() -> Result<()> {
    let (cluster, folder) = (Cluster::dev(PROGRAM, &[])?, tempfile::tempdir()?);
    let folder = folder.path().display().to_string();
    let made =
        Command::new(PROGRAM).args(["cert", "init", "--dir", &folder, "--nodes", "n=127.0.0.1"]).output()?;
    ensure!(made.status.success(), "{}", text(&made.stderr));
    let output = Command::new(PROGRAM)
        .args(["ledger", "account", "list", "--cacert", &format!("{folder}/ca.crt")])
        .args(["--endpoints", &format!("https://{}", cluster.client_address(0))])
        .output()?;
    let said = text(&output.stderr);
    ensure!(said.contains("does not speak TLS: leave https:// out"), "{said}");
    Ok(())
}
