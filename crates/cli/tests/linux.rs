//! `quoin route agent --apply-linux` in network namespaces of their own, with a node beside it. What the tables
//! hold is read by `ip` and `bridge`.

use anyhow::{Context, Result, ensure};
use quoin_testkit::http::{self, Response};
use quoin_testkit::wait_blocking;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// Where agents serve their status, each in its namespace.
const STATUS: &str = "127.0.0.1:9000";
const QUOIN: &str = env!("CARGO_BIN_EXE_quoin");

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

/// A namespace with a node, whose only client is the host in it.
struct Host {
    /// The namespace lives as long as this process, which waits for its input.
    namespace: Child,
    node: Option<Child>,
    agent: Option<Child>,
    folder: TempDir,
}

/// Entries of a device: neighbours by address, hosts by MAC address.
type Tables = BTreeMap<String, String>;

impl Host {
    /// `None` where namespaces are not permitted.
    fn new() -> Result<Option<Self>> {
        if let Some(reason) = impossible() {
            writeln!(std::io::stderr(), "skipped: no network namespace with a VXLAN device: {reason}")?;
            return Ok(None);
        }
        let mut namespace = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo up && read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(namespace.stdout.take().context("stdout")?).read_line(&mut line)?;
        let mut host = Self { namespace, node: None, agent: None, folder: tempfile::tempdir()? };
        ensure!(line == "up\n", "the namespace: {line:?}");
        host.start_node()?;
        Ok(Some(host))
    }

    /// Runs within the namespace.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.namespace.id().to_string(), "--net", program])
            .current_dir(self.folder.path());
        command
    }

    fn shell(&self, script: &str) -> Result<String> {
        let output = self.command("sh").args(["-ec", script]).output()?;
        ensure!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    fn quoin(&self, arguments: &str) -> Result<Output> {
        Ok(self.command(QUOIN).args(["--log", "warn"]).args(arguments.split_whitespace()).output()?)
    }

    fn route(&self, arguments: &str) -> Result<()> {
        let output = self.quoin(&format!("route {arguments}"))?;
        ensure!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn log(&self, name: &str) -> Result<File> {
        Ok(File::options().create(true).append(true).open(self.folder.path().join(name))?)
    }

    /// A page of the agent, asked for by a thread within the namespace.
    fn page(&self, path: &str) -> Result<Response> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.namespace.id()))?;
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                http::get(STATUS.parse()?, path)
            });
            asked.join().expect("asking does not panic")
        })
    }

    fn wait_for_metrics(&self, lines: &[&str]) -> Result<()> {
        wait_blocking(&format!("the metrics {lines:?}"), || {
            let page = self.page("/metrics")?.body;
            let missing = lines.iter().find(|line| !page.lines().any(|found| found == **line));
            ensure!(missing.is_none(), "{missing:?} is missing in {page}");
            Ok(())
        })
        .with_context(|| self.said())
    }

    /// What the agent has said, in all its lives.
    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("agent.log")).unwrap_or_default()
    }

    fn start_node(&mut self) -> Result<()> {
        let log = self.log("node.log")?;
        let node = self
            .command(QUOIN)
            .args(["--log", "warn", "dev", "--data-dir", "node"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        self.node = Some(node);
        wait_blocking("the node to answer", || self.route("list --group none"))
    }

    fn start_agent(&mut self, arguments: &str) -> Result<()> {
        let log = self.log("agent.log")?;
        let agent = self
            .command(QUOIN)
            .args("route agent --group g --dir copy --apply-linux --listen-http".split(' '))
            .arg(STATUS)
            .args(arguments.split_whitespace())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        self.agent = Some(agent);
        Ok(())
    }

    fn once(&self) -> Result<Output> {
        self.quoin("route agent --group g --dir copy --apply-linux --once")
    }

    fn add_device(&self, vni: u32) -> Result<()> {
        self.shell(&format!(
            "ip link add vxlan{vni} type vxlan id {vni} local 127.0.0.1 dstport 4789 nolearning
             ip link set vxlan{vni} up"
        ))?;
        Ok(())
    }

    fn tables(&self, device: &str) -> Result<Tables> {
        let neighbours: Value =
            serde_json::from_str(&self.shell(&format!("ip -j neigh show dev {device} nud permanent"))?)?;
        let forwarding: Value =
            serde_json::from_str(&self.shell(&format!("bridge -j fdb show dev {device}"))?)?;
        let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let mut tables = Tables::new();
        for entry in neighbours.as_array().context("neighbours")? {
            tables.insert(text(entry, "dst"), text(entry, "lladdr"));
        }
        for entry in forwarding.as_array().context("forwarding entries")? {
            if entry["dst"].is_string() {
                tables.insert(text(entry, "mac"), text(entry, "dst"));
            }
        }
        Ok(tables)
    }

    fn wait_for(&self, device: &str, wanted: &[(&str, &str)]) -> Result<()> {
        let wanted: Tables =
            wanted.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.wait_for_tables(device, &wanted)
    }

    fn wait_for_tables(&self, device: &str, wanted: &Tables) -> Result<()> {
        wait_blocking(&format!("the tables of {device} to be {wanted:?}"), || {
            self.tables(device).and_then(|tables| {
                ensure!(tables == *wanted, "they are {tables:?}");
                Ok(())
            })
        })
        .with_context(|| self.said())
    }
}

fn kill(process: &mut Option<Child>) -> Result<()> {
    if let Some(mut process) = process.take() {
        process.kill()?;
        process.wait()?;
    }
    Ok(())
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = (kill(&mut self.agent), kill(&mut self.node));
        let _ = (self.namespace.kill(), self.namespace.wait());
    }
}

const M1: &str = "02:00:00:00:00:01";
const M2: &str = "02:00:00:00:00:02";
const M3: &str = "02:00:00:00:00:03";

/// A rule that lost its MAC address or host left its entries behind, and the deletion of one address of an
/// interface took the forwarding entry of the other along.
#[test]
fn the_tables_hold_what_rules_want_and_no_more() -> Result<()> {
    let Some(host) = Host::new()? else { return Ok(()) };
    host.add_device(100)?;
    host.route(&format!("put 100/10.0.0.1 --mac {M1} --host-ip 192.168.0.1 --group g"))?;
    host.route(&format!("put 100/fd00::1 --mac {M1} --host-ip 192.168.0.1 --group g"))?;
    host.route(&format!("put 100/10.0.0.2 --mac {M2} --host-ip 192.168.0.2 --group g"))?;
    host.route(&format!("put 100/10.0.0.3 --mac {M3} --host-ip 192.168.0.3 --group g"))?;
    host.route("put 100/10.0.0.4 --group g")?;
    host.route(&format!("put 999/10.0.0.5 --mac {M1} --group g"))?;
    let output = host.once()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{said}");
    ensure!(said.contains("without_mac=1") && said.contains("without_device=1"), "{said}");
    let both = [("10.0.0.1", M1), ("fd00::1", M1), (M1, "192.168.0.1")];
    let others = [("10.0.0.2", M2), (M2, "192.168.0.2"), ("10.0.0.3", M3), (M3, "192.168.0.3")];
    host.wait_for("vxlan100", &[&both[..], &others].concat())?;
    host.route("put 100/10.0.0.2 --group g")?;
    host.route(&format!("put 100/10.0.0.3 --mac {M3} --group g"))?;
    host.route("delete 100/10.0.0.1")?;
    ensure!(host.once()?.status.success());
    host.wait_for("vxlan100", &[("fd00::1", M1), (M1, "192.168.0.1"), ("10.0.0.3", M3)])?;
    host.route(&format!("put 100/fd00::1 --mac {M2} --host-ip 192.168.0.9 --group g"))?;
    ensure!(host.once()?.status.success());
    host.wait_for("vxlan100", &[("fd00::1", M2), (M2, "192.168.0.9"), ("10.0.0.3", M3)])
}

/// One rule that the kernel refused held up all that followed, on other networks too.
#[test]
fn a_refused_rule_holds_up_no_other_and_is_told_of() -> Result<()> {
    let Some(mut host) = Host::new()? else { return Ok(()) };
    host.add_device(100)?;
    host.add_device(200)?;
    // The tunnels are of IPv4.
    host.route(&format!("put 100/10.0.0.1 --mac {M1} --host-ip fd00::99 --group g"))?;
    host.route(&format!("put 100/10.0.0.2 --mac {M2} --host-ip 192.168.0.2 --group g"))?;
    host.route(&format!("put 200/10.0.0.3 --mac {M3} --host-ip 192.168.0.3 --group g"))?;
    let output = host.once()?;
    let (answer, said) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    ensure!(output.status.code() == Some(2), "{}: {said}", output.status);
    ensure!(answer.contains("refuses 1 of 3 rules") && answer.contains("100/10.0.0.1"), "{answer}");
    ensure!(said.contains("100/10.0.0.1") && said.contains("not supported"), "{said}");
    let right = [("10.0.0.2", M2), (M2, "192.168.0.2")];
    host.wait_for("vxlan100", &[&[("10.0.0.1", M1)][..], &right].concat())?;
    host.wait_for("vxlan200", &[("10.0.0.3", M3), (M3, "192.168.0.3")])?;
    host.start_agent("--resync 0.1")?;
    host.wait_for_metrics(&[
        "quoin_agent_rules 3",
        "quoin_agent_rules_in_effect 2",
        "quoin_agent_rules_refused 1",
        "quoin_agent_up_to_date 1",
        "quoin_agent_devices 2",
    ])?;
    let status: Value = serde_json::from_str(&host.page("/status")?.body)?;
    let refusal = &status["tables"]["refusals"][0];
    ensure!(refusal["rules"] == serde_json::json!(["100/10.0.0.1"]), "{status}");
    ensure!(refusal["error"].as_str().is_some_and(|error| error.contains("not supported")), "{status}");
    ensure!(host.page("/readyz")?.status == 200);
    // An entry that may not become what its rule wants is not left as it was.
    host.route(&format!("put 200/10.0.0.3 --mac {M3} --host-ip fd00::98 --group g"))?;
    host.wait_for("vxlan200", &[("10.0.0.3", M3)])?;
    host.wait_for_metrics(&["quoin_agent_rules_refused 2", "quoin_agent_rules_in_effect 1"])?;
    host.route(&format!("put 200/10.0.0.3 --mac {M3} --host-ip 192.168.0.4 --group g"))?;
    host.wait_for("vxlan200", &[("10.0.0.3", M3), (M3, "192.168.0.4")])?;
    host.route("delete 100/10.0.0.1")?;
    host.wait_for_metrics(&["quoin_agent_rules_refused 0", "quoin_agent_rules_in_effect 2"])?;
    let told = host.said().matches("the kernel refuses an entry").count();
    ensure!(told == 2, "told {told} times: {}", host.said());
    Ok(())
}

/// It was removed before the kernel refused the one that was to replace it.
#[test]
fn a_refused_rule_leaves_the_entry_of_another_hand() -> Result<()> {
    let Some(host) = Host::new()? else { return Ok(()) };
    host.add_device(100)?;
    host.shell(&format!(
        "bridge fdb add {M1} dev vxlan100 dst 192.168.0.9 port 8888 self permanent
         bridge fdb add {M2} dev vxlan100 dst 192.168.0.9 port 8888 self permanent"
    ))?;
    // The tunnels are of IPv4.
    host.route(&format!("put 100/10.0.0.1 --mac {M1} --host-ip fd00::99 --group g"))?;
    host.route(&format!("put 100/10.0.0.2 --mac {M2} --host-ip 192.168.0.2 --group g"))?;
    let output = host.once()?;
    ensure!(output.status.code() == Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let found = host.shell("bridge fdb show dev vxlan100")?;
    for line in [
        format!("{M1} dst 192.168.0.9 port 8888 self permanent"),
        format!("{M2} dst 192.168.0.2 self extern_learn permanent"),
    ] {
        ensure!(found.lines().any(|entry| entry.trim() == line), "{line:?} is not in {found}");
    }
    Ok(())
}

/// It retried for ever.
#[test]
fn an_agent_that_may_not_change_tables_ends_and_says_so() -> Result<()> {
    let Some(host) = Host::new()? else { return Ok(()) };
    let agent = ["route", "agent", "--group", "g", "--dir", "copy", "--apply-linux"];
    let output = host.command("setpriv").args(["--bounding-set=-net_admin", QUOIN]).args(agent).output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1) && said.contains("CAP_NET_ADMIN"), "{}: {said}", output.status);
    Ok(())
}

/// A device that appeared later, was remade, or went down and up stayed empty.
#[test]
fn devices_are_programmed_whenever_they_appear() -> Result<()> {
    let Some(mut host) = Host::new()? else { return Ok(()) };
    host.route(&format!("put 100/10.0.0.1 --mac {M1} --host-ip 192.168.0.1 --group g"))?;
    host.route(&format!("put 100/fd00::2 --mac {M2} --host-ip 192.168.0.2 --group g"))?;
    // Only a change of the device can be what makes the agent write.
    host.start_agent("--resync 3600")?;
    let wanted = [("10.0.0.1", M1), (M1, "192.168.0.1"), ("fd00::2", M2), (M2, "192.168.0.2")];
    host.wait_for_metrics(&["quoin_agent_rules_without_device 2", "quoin_agent_rules_in_effect 0"])?;
    host.add_device(100)?;
    host.wait_for("vxlan100", &wanted)?;
    host.shell("ip link del vxlan100")?;
    host.add_device(100)?;
    host.wait_for("vxlan100", &wanted)?;
    for _ in 0..5 {
        host.shell("ip link set vxlan100 down; ip link set vxlan100 up")?;
        host.wait_for("vxlan100", &wanted)?;
    }
    host.shell("ip link set vxlan100 address 02:00:00:00:aa:aa")?;
    host.wait_for("vxlan100", &wanted)?;
    host.shell("ip link set vxlan100 down; ip link set vxlan100 name other")?;
    host.add_device(101)?;
    host.shell("ip link set vxlan101 down; ip link set vxlan101 name vxlan100; ip link set vxlan100 up")?;
    host.wait_for("vxlan100", &wanted)?;
    // Many at once.
    let mut script = String::new();
    for vni in 400..420 {
        host.route(&format!("put {vni}/10.0.0.4 --mac {M1} --host-ip 192.168.0.4 --group g"))?;
        script += &format!("ip link add vxlan{vni} type vxlan id {vni} local 127.0.0.1 dstport 4789\n");
    }
    host.shell(&script)?;
    for vni in 400..420 {
        host.wait_for(&format!("vxlan{vni}"), &[("10.0.0.4", M1), (M1, "192.168.0.4")])?;
    }
    // Of the name, but not a tunnel: left alone.
    host.route(&format!("put 300/10.0.0.3 --mac {M3} --host-ip 192.168.0.3 --group g"))?;
    host.shell("ip link add vxlan300 type bridge; ip link set vxlan300 up")?;
    host.add_device(301)?;
    host.route(&format!("put 301/10.0.0.3 --mac {M3} --group g"))?;
    host.wait_for("vxlan301", &[("10.0.0.3", M3)])?;
    host.wait_for("vxlan300", &[])
}

/// What was changed by another hand, or by an agent that died before it had recorded it, stayed so.
#[test]
fn what_other_hands_change_is_undone_and_what_they_own_is_kept() -> Result<()> {
    let Some(mut host) = Host::new()? else { return Ok(()) };
    host.add_device(100)?;
    host.add_device(7)?;
    host.shell(
        "ip neigh add 10.0.0.77 lladdr 02:00:00:00:00:77 dev vxlan100 nud permanent
         ip neigh add 10.0.0.78 lladdr 02:00:00:00:00:78 dev vxlan100 nud stale
         bridge fdb add 02:00:00:00:00:77 dev vxlan100 dst 192.168.0.77 self permanent
         bridge fdb append 00:00:00:00:00:00 dev vxlan100 dst 192.168.0.70 self permanent
         bridge fdb append 00:00:00:00:00:00 dev vxlan100 dst 192.168.0.71 self permanent
         ip link set vxlan7 down; ip link set vxlan7 name other; ip link set other up
         ip neigh add 10.0.0.1 lladdr 02:00:00:00:00:07 dev other nud permanent protocol 81
         bridge fdb add 02:00:00:00:00:01 dev vxlan100 dst 192.168.0.9 self permanent
         ip neigh add 10.0.0.1 lladdr 02:00:00:00:00:07 dev vxlan100 nud permanent
         ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev vxlan100 nud permanent protocol 81
         bridge fdb add 02:00:00:00:00:09 dev vxlan100 dst 192.168.0.9 self permanent extern_learn",
    )?;
    host.route(&format!("put 100/10.0.0.1 --mac {M1} --host-ip 192.168.0.1 --group g"))?;
    host.route(&format!("put 100/fd00::2 --mac {M2} --host-ip 192.168.0.2 --group g"))?;
    host.start_agent("--resync 0.2")?;
    let foreign = [
        ("10.0.0.77", "02:00:00:00:00:77"),
        ("02:00:00:00:00:77", "192.168.0.77"),
        ("00:00:00:00:00:00", "192.168.0.71"),
    ];
    let ours = [("10.0.0.1", M1), (M1, "192.168.0.1"), ("fd00::2", M2), (M2, "192.168.0.2")];
    let wanted = [&foreign[..], &ours].concat();
    host.wait_for("vxlan100", &wanted)?;
    // What stood there before is ours now.
    let taken_over = format!("{M1} dst 192.168.0.1 self extern_learn permanent");
    wait_blocking("the mark", || {
        let found = host.shell("bridge fdb show dev vxlan100")?;
        ensure!(found.contains(&taken_over), "{found}");
        Ok(())
    })?;
    for by_hand in [
        "ip neigh del 10.0.0.1 dev vxlan100; bridge fdb del 02:00:00:00:00:02 dev vxlan100 self",
        "ip neigh replace fd00::2 lladdr 02:00:00:00:00:33 dev vxlan100 nud permanent
         bridge fdb replace 02:00:00:00:00:01 dev vxlan100 dst 192.168.0.33 self permanent",
        "bridge fdb replace 02:00:00:00:00:01 dev vxlan100 dst 192.168.0.1 port 8888 self permanent extern_learn
         ip neigh flush dev vxlan100 nud permanent
         ip neigh add 10.0.0.77 lladdr 02:00:00:00:00:77 dev vxlan100 nud permanent",
    ] {
        host.shell(by_hand)?;
        host.wait_for("vxlan100", &wanted)?;
    }
    wait_blocking("the port to be the device's", || {
        let found = host.shell("bridge fdb show dev vxlan100")?;
        ensure!(!found.contains("8888"), "{found}");
        Ok(())
    })?;
    host.wait_for("other", &[("10.0.0.1", "02:00:00:00:00:07")])?;
    ensure!(host.shell("ip neigh show dev vxlan100 nud stale")?.contains("10.0.0.78"));
    ensure!(host.shell("bridge fdb show dev vxlan100")?.contains("192.168.0.70"));
    host.route("delete 100/10.0.0.1 100/fd00::2")?;
    host.wait_for("vxlan100", &foreign)?;
    // Two agents would undo each other's work.
    let page = host.page("/metrics")?.body;
    let repaired = page
        .lines()
        .find_map(|line| line.strip_prefix("quoin_agent_entries_repaired_total{when=\"periodic\"} "));
    // 2 deleted, 2 replaced, a port and two flushed; an entry of another hand is removed before ours comes.
    ensure!(repaired.is_some_and(|count| count.parse().is_ok_and(|count: u64| count >= 7)), "{page}");
    let second = host.quoin("route agent --group h --dir other --apply-linux --once")?;
    let said = String::from_utf8(second.stderr)?;
    ensure!(!second.status.success() && said.contains("another agent"), "{said}");
    Ok(())
}

/// An agent that has lost its copy must not empty the tables while it asks for the rules.
#[test]
fn an_agent_without_its_copy_keeps_the_tables_until_it_knows_the_rules() -> Result<()> {
    let Some(mut host) = Host::new()? else { return Ok(()) };
    host.add_device(100)?;
    host.route(&format!("put 100/10.0.0.1 --mac {M1} --host-ip 192.168.0.1 --group g"))?;
    ensure!(host.once()?.status.success());
    host.route("delete 100/10.0.0.1")?;
    kill(&mut host.node)?;
    std::fs::remove_dir_all(host.folder.path().join("copy"))?;
    host.start_agent("--resync 0.1")?;
    wait_blocking("the agent to ask", || host.said().contains("the watch broke"))?;
    ensure!(host.page("/readyz")?.status == 503);
    host.shell("ip link set vxlan100 mtu 1400")?;
    host.wait_for("vxlan100", &[("10.0.0.1", M1), (M1, "192.168.0.1")])?;
    host.start_node()?;
    host.wait_for("vxlan100", &[])
}

/// Two addresses of an interface have one MAC address.
fn address_and_mac(address: u64) -> (String, String) {
    let ip =
        if address.is_multiple_of(2) { format!("10.0.0.{address}") } else { format!("fd00::{address:x}") };
    (ip, format!("02:00:00:00:01:{:02x}", address / 2))
}

/// Kills of the agent and of the node, at any moment, leave nothing out and nothing behind.
#[test]
fn kills_of_both_sides_leave_no_difference() -> Result<()> {
    let Some(mut host) = Host::new()? else { return Ok(()) };
    host.add_device(1)?;
    host.add_device(2)?;
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    // From network and address to host.
    let mut rules = BTreeMap::<(u64, u64), u64>::new();
    host.start_agent("")?;
    for _ in 0..8 {
        for _ in 0..40 {
            let (vni, interface, host_of) = (1 + next(2), next(30), 1 + next(9));
            rules.insert((vni, 2 * interface), host_of);
            rules.insert((vni, 2 * interface + 1), host_of);
        }
        let mut lines = String::new();
        for ((vni, address), host_of) in &rules {
            let (ip, mac) = address_and_mac(*address);
            lines += &format!(
                "{{\"vni\":{vni},\"ip\":\"{ip}\",\"mac\":\"{mac}\",\"host_ip\":\"192.168.0.{host_of}\",\"group\":\"g\"}}\n"
            );
        }
        std::fs::write(host.folder.path().join("rules.jsonl"), lines)?;
        host.route("load rules.jsonl")?;
        let gone: Vec<(u64, u64)> = rules.keys().copied().filter(|_| next(4) == 0).collect();
        let mut keys = String::new();
        for (vni, address) in gone {
            rules.remove(&(vni, address));
            keys += &format!(" {vni}/{}", address_and_mac(address).0);
        }
        match next(3) {
            0 => {
                kill(&mut host.agent)?;
                host.route(&format!("delete{keys}"))?;
                host.start_agent("")?;
            }
            1 => {
                host.route(&format!("delete{keys}"))?;
                kill(&mut host.node)?;
                host.start_node()?;
            }
            _ => {
                host.route(&format!("delete{keys}"))?;
                kill(&mut host.agent)?;
                host.start_agent("")?;
            }
        }
    }
    for vni in [1, 2] {
        let mut wanted = Tables::new();
        for ((_, address), host_of) in rules.iter().filter(|((of, _), _)| *of == vni) {
            let (ip, mac) = address_and_mac(*address);
            wanted.insert(ip, mac.clone());
            wanted.insert(mac, format!("192.168.0.{host_of}"));
        }
        host.wait_for_tables(&format!("vxlan{vni}"), &wanted)?;
    }
    ensure!(Path::new(host.folder.path()).join("copy/rules.jsonl").exists());
    Ok(())
}
