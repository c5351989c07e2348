//! A cluster of `quoin` processes on loopback, and what a test does to it.

use crate::http::{self, Response};
use crate::{Ports, wait_blocking};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Settings for small files, so that purges, flushes and snapshots happen within a test.
pub const SMALL: &[&str] = &[
    "--log-segment-bytes=1048576",
    "--log-keep-bytes=2097152",
    "--log-cache-bytes=65536",
    "--store-memtable-bytes=524288",
];

/// The distance from one replica's first port to the next replica's.
const PORTS_PER_REPLICA: u16 = 10;
/// How many lines of each replica's log a failing test shows.
const LOG_LINES_SHOWN: usize = 200;

/// Processes of `quoin serve`, or one of `quoin dev`, with their data in a temporary folder. Replicas are
/// numbered from 0 and named `r0`, `r1` and so on; those after the founders join through the first one.
///
/// When dropped, it kills its processes, removes their data, and prints the ends of their logs, which the
/// test runner shows if the test failed. Its functions block the thread: see [`wait_blocking`].
#[derive(Debug)]
pub struct Cluster {
    folder: tempfile::TempDir,
    ports: Ports,
    program: PathBuf,
    /// The command that runs a replica: `serve` or `dev`.
    runs: &'static str,
    founders: usize,
    settings: Vec<String>,
    children: Vec<Option<Child>>,
}

/// The binary to test, as named by `QUOIN_BIN`: for tests outside the package that builds it.
///
/// # Errors
/// The variable is not set, or the file does not exist.
pub fn program() -> Result<PathBuf> {
    let program = std::env::var_os("QUOIN_BIN").context("QUOIN_BIN must name the binary to test")?;
    Path::new(&program).canonicalize().with_context(|| format!("QUOIN_BIN={}", program.display()))
}

impl Cluster {
    /// A cluster of `founders` replicas, none of which runs yet. All of them get the flags in `settings`.
    ///
    /// # Errors
    /// There are no free ports, or no temporary folder can be made.
    pub fn new(program: impl Into<PathBuf>, founders: usize, settings: &[&str]) -> Result<Self> {
        let settings = settings.iter().map(|setting| (*setting).to_string()).collect();
        let (folder, ports) = (tempfile::tempdir()?, Ports::reserve()?);
        let (program, children) = (program.into(), Vec::new());
        Ok(Self { folder, ports, program, runs: "serve", founders, settings, children })
    }

    /// Starts three replicas and waits until they are ready.
    ///
    /// # Errors
    /// See [`Self::start_all`].
    pub fn start(program: impl Into<PathBuf>, settings: &[&str]) -> Result<Self> {
        let mut cluster = Self::new(program, 3, settings)?;
        cluster.start_all()?;
        Ok(cluster)
    }

    /// Starts one node as `quoin dev` and waits until it is ready.
    ///
    /// # Errors
    /// See [`Self::start_all`].
    pub fn dev(program: impl Into<PathBuf>, settings: &[&str]) -> Result<Self> {
        let mut cluster = Self::new_dev(program, settings)?;
        cluster.start_all()?;
        Ok(cluster)
    }

    /// One node for `quoin dev`, which does not run yet.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn new_dev(program: impl Into<PathBuf>, settings: &[&str]) -> Result<Self> {
        let mut cluster = Self::new(program, 1, settings)?;
        cluster.runs = "dev";
        Ok(cluster)
    }

    /// Adds flags for replicas started from now on.
    pub fn set(&mut self, settings: impl IntoIterator<Item = String>) {
        self.settings.extend(settings);
    }

    /// Starts all founders at once and waits until they are ready.
    ///
    /// # Errors
    /// A replica cannot be started, ends, or does not become ready. The text includes its log.
    pub fn start_all(&mut self) -> Result<()> {
        for replica in 0..self.founders {
            self.spawn(replica)?;
        }
        for replica in 0..self.founders {
            self.wait_ready(replica)?;
        }
        Ok(())
    }

    /// Starts a replica, for the first time or after it ended, and does not wait for it.
    ///
    /// # Errors
    /// The process cannot be started.
    ///
    /// # Panics
    /// The replica runs already.
    pub fn spawn(&mut self, replica: usize) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log_file(replica))?;
        let mut command = self.command(replica);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let child = child.with_context(|| format!("starting {}", self.program.display()))?;
        if self.children.len() <= replica {
            self.children.resize_with(replica + 1, || None);
        }
        assert!(self.children[replica].replace(child).is_none(), "replica {replica} runs already");
        Ok(())
    }

    /// Starts a replica, for the first time or after it ended, and waits until it is ready.
    ///
    /// # Errors
    /// See [`Self::spawn`] and [`Self::wait_ready`].
    pub fn restart(&mut self, replica: usize) -> Result<()> {
        self.spawn(replica)?;
        self.wait_ready(replica)
    }

    /// Waits until `/readyz` says that a running replica can serve.
    ///
    /// # Errors
    /// The replica ends, or does not become ready. The text includes its log.
    pub fn wait_ready(&mut self, replica: usize) -> Result<()> {
        let mut child = self.children[replica].take().context("the replica does not run")?;
        let ready = wait_blocking(&format!("replica {replica} to be ready"), || {
            if let Some(status) = child.try_wait()? {
                return Ok(Err(status));
            }
            match self.page(replica, "/readyz")? {
                Response { status: 200, .. } => Ok(Ok(())),
                Response { body, .. } => bail!("{body}"),
            }
        });
        self.children[replica] = Some(child);
        let logged = || format!("replica {replica} logged:\n{}", self.log(replica));
        let ended = ready.with_context(logged)?;
        ended.map_err(|status| anyhow::anyhow!("replica {replica} ended ({status})")).with_context(logged)
    }

    /// Kills a replica (`kill -9`), if it runs.
    ///
    /// # Errors
    /// The system call failed.
    pub fn kill(&mut self, replica: usize) -> Result<()> {
        if let Some(mut child) = self.children[replica].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Kills all replicas.
    ///
    /// # Errors
    /// A system call failed.
    pub fn kill_all(&mut self) -> Result<()> {
        (0..self.children.len()).try_for_each(|replica| self.kill(replica))
    }

    /// Asks a replica to stop (SIGTERM) and waits until it has.
    ///
    /// # Errors
    /// The replica does not run, does not end, or ends with a failure. The text includes its log.
    pub fn stop(&mut self, replica: usize) -> Result<()> {
        let child = self.children[replica].as_mut().context("the replica does not run")?;
        kill_process(Pid::from_child(child), Signal::TERM)?;
        let ended = wait_blocking(&format!("replica {replica} to stop"), || match child.try_wait() {
            Ok(status) => status.ok_or_else(|| "it still runs".into()),
            Err(error) => Err(error.to_string()),
        });
        let status = ended.with_context(|| format!("replica {replica} logged:\n{}", self.log(replica)))?;
        self.children[replica] = None;
        ensure!(status.success(), "replica {replica} ended with {status}; it logged:\n{}", self.log(replica));
        Ok(())
    }

    /// Stops all running replicas (SIGTERM). Prints no logs.
    ///
    /// # Errors
    /// See [`Self::stop`].
    pub fn stop_all(mut self) -> Result<()> {
        for replica in 0..self.children.len() {
            if self.children[replica].is_some() {
                self.stop(replica)?;
            }
        }
        self.children.clear();
        Ok(())
    }

    /// Checks that no replica has ended by itself.
    ///
    /// # Errors
    /// One has. The text includes its log.
    pub fn check_alive(&mut self) -> Result<()> {
        for replica in 0..self.children.len() {
            let Some(child) = &mut self.children[replica] else { continue };
            if let Some(status) = child.try_wait()? {
                bail!("replica {replica} ended ({status}); it logged:\n{}", self.log(replica));
            }
        }
        Ok(())
    }

    /// Waits for a leader: of the replicas that say that they lead, the one in the newest term.
    ///
    /// # Errors
    /// No replica leads. The text says what each of them answers.
    pub fn leader(&self) -> Result<usize> {
        wait_blocking("a leader", || {
            let mut leaders = Vec::new();
            let mut seen = Vec::new();
            for replica in 0..self.children.len() {
                match self.role(replica) {
                    Ok((true, term)) => leaders.push((term, replica)),
                    Ok((false, term)) => seen.push(format!("replica {replica} follows in term {term}")),
                    Err(error) => seen.push(format!("replica {replica}: {error:#}")),
                }
            }
            leaders.into_iter().max().map(|(_, replica)| replica).ok_or_else(|| seen.join("; "))
        })
    }

    /// Whether a replica leads, and its term.
    fn role(&self, replica: usize) -> Result<(bool, u64)> {
        let page = self.page(replica, "/metrics")?.body;
        let metric = |name| metric(&page, name).with_context(|| format!("there is no metric {name}"));
        Ok((metric("quoin_is_leader")? == 1.0, metric("quoin_term")? as u64))
    }

    /// Gets a page from a replica's HTTP port.
    ///
    /// # Errors
    /// The replica does not answer.
    pub fn page(&self, replica: usize, path: &str) -> Result<Response> {
        http::get(self.address(replica, Port::Http), path)
    }

    /// The value of a metric without labels.
    ///
    /// # Errors
    /// The replica does not answer, or has no such metric.
    pub fn metric(&self, replica: usize, name: &str) -> Result<f64> {
        let page = self.page(replica, "/metrics")?.body;
        metric(&page, name).with_context(|| format!("replica {replica} has no metric {name}"))
    }

    fn address(&self, replica: usize, port: Port) -> SocketAddr {
        self.ports.address(replica as u16 * PORTS_PER_REPLICA + port as u16)
    }

    /// Where clients reach a replica over gRPC.
    pub fn client_address(&self, replica: usize) -> String {
        self.address(replica, Port::Client).to_string()
    }

    /// Where the other replicas reach a replica.
    pub fn peer_address(&self, replica: usize) -> String {
        self.address(replica, Port::Peer).to_string()
    }

    /// Where a replica serves HTTP.
    pub fn http_address(&self, replica: usize) -> String {
        self.address(replica, Port::Http).to_string()
    }

    /// Where a replica speaks Redis's protocol.
    pub fn resp_address(&self, replica: usize) -> String {
        self.address(replica, Port::Resp).to_string()
    }

    /// The founders' client addresses, in their order.
    pub fn client_addresses(&self) -> Vec<String> {
        (0..self.founders).map(|replica| self.client_address(replica)).collect()
    }

    /// The founders' client addresses as `--endpoints` takes them.
    pub fn endpoints(&self) -> String {
        self.client_addresses().join(",")
    }

    /// The founders as `--cluster` takes them.
    pub fn founders(&self) -> String {
        let founder = |replica| format!("r{replica}={}", self.peer_address(replica));
        (0..self.founders).map(founder).collect::<Vec<_>>().join(",")
    }

    /// The temporary folder, for other files of a test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where a replica keeps its data.
    pub fn data_dir(&self, replica: usize) -> PathBuf {
        self.folder.path().join(format!("replica-{replica}"))
    }

    fn log_file(&self, replica: usize) -> PathBuf {
        self.folder.path().join(format!("replica-{replica}.log"))
    }

    /// Everything that a replica has logged, over all its starts. Empty before the first.
    pub fn log(&self, replica: usize) -> String {
        fs::read_to_string(self.log_file(replica)).unwrap_or_default()
    }

    /// A replica's process id, `None` unless it runs.
    pub fn pid(&self, replica: usize) -> Option<u32> {
        Some(self.children.get(replica)?.as_ref()?.id())
    }

    /// The command that runs a replica.
    pub fn command(&self, replica: usize) -> Command {
        self.command_of(&[self.runs], replica)
    }

    /// Another command that takes a replica's settings, such as `snapshot restore`.
    pub fn command_of(&self, words: &[&str], replica: usize) -> Command {
        let mut command = self.quoin(words);
        command.arg("--data-dir").arg(self.data_dir(replica));
        command.args(["--listen-client", &self.client_address(replica)]);
        command.args(["--listen-peer", &self.peer_address(replica)]);
        command.args(["--listen-http", &self.http_address(replica)]);
        command.args(["--listen-resp", &self.resp_address(replica)]);
        if self.runs != "dev" {
            command.args(["--name", &format!("r{replica}")]);
            if replica < self.founders {
                command.args(["--cluster", &self.founders()]);
            } else {
                command.args(["--join", &self.peer_address(0)]);
            }
        }
        command.args(&self.settings);
        command
    }

    /// The binary with these arguments, and without settings from this process's environment.
    pub fn quoin(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("QUOIN_"))
        {
            command.env_remove(name);
        }
        command.args(words);
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // An error: it has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        for replica in 0..self.children.len() {
            let log = self.log(replica);
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
            // The test runner captures this, and shows it only if the test fails.
            eprintln!("replica {replica} logged last:\n{}", last.join("\n"));
        }
    }
}

/// A replica's ports, by offset.
#[derive(Clone, Copy)]
enum Port {
    Client,
    Peer,
    Http,
    Resp,
}

/// A metric without labels on a page in Prometheus's text format.
fn metric(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let page = "# HELP quoin_term The term.\nquoin_terms 1\nquoin_term 7\nquoin_lag_seconds 0.5\n";
        assert_eq!(metric(page, "quoin_term"), Some(7.0));
        assert_eq!(metric(page, "quoin_lag_seconds"), Some(0.5));
        assert_eq!(metric(page, "quoin_lag"), None);
    }
}
