//! `quoin route agent --apply-linux` in a network namespace of its own, with a node beside it.

use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::process::Command;

/// What happens in the namespace; it ends at the first step that fails. The namespace has its own loopback,
/// so the ports are free.
const SCRIPT: &str = r#"
set -e
ip link set lo up
ip link add vxlan100 type vxlan id 100 local 127.0.0.1 dstport 4789 nolearning
ip link set vxlan100 up
"$QUOIN" --log error dev --data-dir "$FOLDER/node" --listen-client 127.0.0.1:2379 --listen-peer 127.0.0.1:2380 \
    --listen-http 127.0.0.1:2381 > /dev/null &
node=$!
trap 'kill $node' EXIT
first() { "$QUOIN" route put 100/10.0.0.1 --mac 02:00:00:00:00:01 --host-ip 192.168.0.1 --group g; }
for _ in $(seq 1000); do first 2> "$FOLDER/refused" && break || sleep 0.05; done
cat "$FOLDER/refused" >&2
"$QUOIN" route put 100/fd00::2 --mac 02:00:00:00:00:02 --host-ip 192.168.0.2 --group g
"$QUOIN" route put 100/10.0.0.3 --mac 02:00:00:00:00:03 --group g
"$QUOIN" route put 100/10.0.0.4 --group g
"$QUOIN" route put 999/10.0.0.5 --mac 02:00:00:00:00:05 --group g
agent() { "$QUOIN" --log warn route agent --group g --dir "$FOLDER/copy" --apply-linux --once; }
agent
echo "== after the first run"
ip neigh show dev vxlan100 nud permanent | sort
bridge fdb show dev vxlan100 | grep -v 33:33 | sort
"$QUOIN" route delete 100/10.0.0.1
"$QUOIN" route put 100/10.0.0.3 --mac 02:00:00:00:00:33 --host-ip 192.168.0.3 --group g
"$QUOIN" route put 100/fd00::2 --mac 02:00:00:00:00:22 --host-ip 192.168.0.2 --group g
agent
echo "== after the second run"
ip neigh show dev vxlan100 nud permanent | sort
bridge fdb show dev vxlan100 | grep -v 33:33 | sort
"#;

/// Why no namespace with a VXLAN device can be made here; `None` if it can.
fn impossible() -> Option<String> {
    let try_out =
        "ip link add probe type vxlan id 1 local 127.0.0.1 dstport 4789 && bridge fdb show dev probe";
    match Command::new("unshare").args(["--net", "sh", "-c", try_out]).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

#[test]
fn rules_become_neighbours_and_forwarding_entries() -> Result<()> {
    if let Some(reason) = impossible() {
        writeln!(std::io::stderr(), "skipped: no network namespace with a VXLAN device: {reason}")?;
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", SCRIPT])
        .env("QUOIN", env!("CARGO_BIN_EXE_quoin"))
        .env("FOLDER", folder.path())
        .output()?;
    let (text, errors) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    let (_, runs) =
        text.split_once("== after the first run\n").with_context(|| format!("{text}\n{errors}"))?;
    let (first, second) = runs.split_once("== after the second run\n").context("the second run")?;
    let has = |run: &str, start: &str, part: &str| {
        run.lines().any(|line| line.starts_with(start) && line.contains(part))
    };
    for (start, part) in [
        ("10.0.0.1 ", "lladdr 02:00:00:00:00:01"),
        ("fd00::2 ", "lladdr 02:00:00:00:00:02"),
        ("10.0.0.3 ", "lladdr 02:00:00:00:00:03"),
        ("02:00:00:00:00:01 ", "dst 192.168.0.1"),
        ("02:00:00:00:00:02 ", "dst 192.168.0.2"),
    ] {
        ensure!(has(first, start, part), "no {start:?} with {part:?} in\n{first}\n{errors}");
    }
    ensure!(!first.contains("10.0.0.4") && !first.contains("10.0.0.5"), "{first}");
    ensure!(errors.contains("rules=2"), "skipped rules are not logged: {errors}");
    ensure!(!has(second, "10.0.0.1 ", "") && !has(second, "02:00:00:00:00:01 ", ""), "{second}\n{errors}");
    ensure!(has(second, "10.0.0.3 ", "lladdr 02:00:00:00:00:33"), "{second}\n{errors}");
    ensure!(!has(second, "02:00:00:00:00:02 ", ""), "{second}\n{errors}");
    ensure!(has(second, "02:00:00:00:00:22 ", "dst 192.168.0.2"), "{second}\n{errors}");
    ensure!(has(second, "02:00:00:00:00:33 ", "dst 192.168.0.3"), "{second}\n{errors}");
    Ok(())
}
