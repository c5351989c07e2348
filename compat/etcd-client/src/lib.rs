//! A playground of processes for tests that only know what any user knows: the binary, its endpoints file, its ports.
//!
//! The binary is named by `QUOIN_BIN`. A killed replica is started again with the very command line that it had.
//! What this deliberately does not do: speak Quoin's own wire or look into data folders.

use anyhow::{Context, Result, ensure};
use etcd_client::{Client, ConnectOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Nothing that is waited for takes longer, unless it never comes.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Settings for small files, so that purges, flushes and snapshots happen within a test.
pub const SMALL: &[&str] = &[
    "--log-segment-bytes=1048576",
    "--log-keep-bytes=2097152",
    "--log-cache-bytes=65536",
    "--store-memtable-bytes=524288",
];

/// What `quoin playground` writes for those who use it.
#[derive(Debug, Deserialize)]
struct Endpoints {
    grpc: Vec<String>,
    pids: Vec<i32>,
}

/// A running cluster. Ended when dropped, with its data.
pub struct Playground {
    folder: tempfile::TempDir,
    port_base: u16,
    settings: Vec<String>,
    process: Option<Child>,
    endpoints: Endpoints,
    /// Replicas that this test has started itself: killed ones again, and added ones.
    own: Vec<Child>,
}

static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// Fifty ports that nobody has, below those that the system takes for outgoing connections.
fn free_port_base() -> u16 {
    loop {
        let base = 10_000
            + (std::process::id() % 40) as u16 * 500
            + NEXT_PORT.fetch_add(50, Ordering::Relaxed) % 2_500;
        if (0..50).all(|offset| TcpListener::bind(("127.0.0.1", base + offset)).is_ok()) {
            return base;
        }
    }
}

fn program() -> Result<PathBuf> {
    let program = std::env::var_os("QUOIN_BIN").context("QUOIN_BIN must name the binary to test")?;
    Path::new(&program).canonicalize().with_context(|| format!("QUOIN_BIN={}", program.display()))
}

impl Playground {
    /// Starts three replicas and waits until they serve.
    ///
    /// # Errors
    /// There is no binary, or it does not get there; the text has what it wrote.
    pub async fn start(settings: &[&str]) -> Result<Self> {
        let settings = settings.iter().map(|setting| (*setting).to_string()).collect();
        let endpoints = Endpoints { grpc: Vec::new(), pids: Vec::new() };
        let folder = tempfile::tempdir()?;
        let port_base = free_port_base();
        let mut playground = Self { folder, port_base, settings, process: None, endpoints, own: Vec::new() };
        playground.launch().await?;
        Ok(playground)
    }

    async fn launch(&mut self) -> Result<()> {
        let file = self.folder.path().join("endpoints.json");
        let _ = std::fs::remove_file(&file);
        let mut command = Command::new(program()?);
        command.args(["playground", "--replicas", "3", "--port-base", &self.port_base.to_string(), "--dir"]);
        command.arg(self.data()).arg("--endpoints-file").arg(&file).arg("--").args(&self.settings);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let begun = Instant::now();
        while !file.exists() {
            ensure!(begun.elapsed() < PATIENCE, "the playground did not get ready");
            ensure!(child.try_wait()?.is_none(), "the playground ended:\n{}", self.log(0));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.process = Some(child);
        self.endpoints = serde_json::from_slice(&std::fs::read(&file)?)?;
        ensure!(self.endpoints.grpc.len() == 3 && self.endpoints.pids.len() == 3, "{:?}", self.endpoints);
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// What a replica, from 0, wrote so far.
    pub fn log(&self, replica: usize) -> String {
        let file = self.data().join(format!("replica-{}.log", replica + 1));
        std::fs::read_to_string(file).unwrap_or_default()
    }

    /// Where clients reach the replicas, in their order.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints.grpc
    }

    /// A client of one replica.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn client(&self, replica: usize) -> Result<Client> {
        connect(&self.endpoints.grpc[replica..=replica]).await
    }

    /// The place of the leader.
    ///
    /// # Errors
    /// There is none for long.
    pub async fn leader(&self) -> Result<usize> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for replica in 0..self.endpoints.grpc.len() {
                let Ok(mut client) = self.client(replica).await else { continue };
                let Ok(status) = client.status().await else { continue };
                if status.header().is_some_and(|header| header.member_id() == status.leader()) {
                    return Ok(replica);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::bail!("no leader; the first replica wrote:\n{}", self.log(0))
    }

    /// Ends a replica as a crash would, and returns how it was started.
    ///
    /// # Errors
    /// It does not run.
    pub async fn kill(&mut self, replica: usize) -> Result<Killed> {
        let pid = self.endpoints.pids[replica];
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline"))?;
        let arguments = String::from_utf8(arguments)?.split_terminator('\0').map(str::to_string).collect();
        kill_process(Pid::from_raw(pid).context("a process id")?, Signal::KILL)?;
        // Its ports and its folder are free once it is gone, or waits to be noticed by its parent.
        let gone = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            status
                .rsplit(')')
                .next()
                .is_none_or(|rest| rest.trim().is_empty() || rest.trim().starts_with('Z'))
        };
        wait("the killed replica to be gone", || async { gone() }).await?;
        Ok(Killed { replica, arguments })
    }

    /// Starts a killed replica again and waits until it answers.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn restart(&mut self, killed: Killed) -> Result<()> {
        let Killed { replica, arguments } = killed;
        self.spawn(replica, &arguments[1..])?;
        self.wait_serving(replica).await
    }

    /// Starts one more replica, that joins; it must have been added. Returns its place.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start_added(&mut self) -> Result<usize> {
        let replica = self.endpoints.grpc.len();
        let port = |offset| format!("127.0.0.1:{}", self.port_base + replica as u16 * 10 + offset);
        let name = format!("replica-{}", replica + 1);
        let mut arguments = vec!["serve".to_string()];
        let mut give = |flag: &str, value: String| arguments.extend([format!("--{flag}"), value]);
        give("data-dir", self.data().join(&name).display().to_string());
        give("name", name);
        give("listen-client", port(0));
        give("listen-peer", port(1));
        give("listen-http", port(2));
        give("listen-resp", port(3));
        give("join", format!("127.0.0.1:{}", self.port_base + 1));
        arguments.extend(self.settings.iter().cloned());
        self.endpoints.grpc.push(port(0));
        self.endpoints.pids.push(0);
        self.spawn(replica, &arguments)?;
        self.wait_serving(replica).await?;
        Ok(replica)
    }

    /// The URL at which the next replica to be added will be reached by the others.
    pub fn next_peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port_base + self.endpoints.grpc.len() as u16 * 10 + 1)
    }

    fn spawn(&mut self, replica: usize, arguments: &[String]) -> Result<()> {
        let log = self.data().join(format!("replica-{}.log", replica + 1));
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(program()?);
        let child = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        self.endpoints.pids[replica] = child.id() as i32;
        self.own.push(child);
        Ok(())
    }

    async fn wait_serving(&self, replica: usize) -> Result<()> {
        wait(&format!("replica {replica} to serve"), || async {
            let Ok(mut client) = self.client(replica).await else { return false };
            client.get("x", None).await.is_ok()
        })
        .await
    }

    /// Kills all replicas at once, then starts the playground again on the same folder.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn crash_and_start_again(&mut self) -> Result<()> {
        for replica in 0..3 {
            self.kill(replica).await?;
        }
        self.end()?;
        self.launch().await
    }

    fn end(&mut self) -> Result<()> {
        for mut child in self.own.drain(..) {
            // An error: it has ended already.
            let _ = child.kill();
            child.wait()?;
        }
        if let Some(mut process) = self.process.take() {
            // Its replicas end with it.
            let _ = kill_process(Pid::from_child(&process), Signal::TERM);
            process.wait()?;
        }
        Ok(())
    }
}

/// How a killed replica was started.
#[derive(Debug)]
pub struct Killed {
    replica: usize,
    arguments: Vec<String>,
}

impl Drop for Playground {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for replica in 0..self.endpoints.grpc.len() {
                eprintln!("replica {replica}:\n{}", self.log(replica));
            }
        }
        // Nobody is left to be told where this fails.
        let _ = self.end();
    }
}

/// A client of the given endpoints, which spreads its calls over them.
///
/// # Errors
/// They are no addresses.
pub async fn connect(endpoints: &[String]) -> Result<Client> {
    let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(1));
    Ok(Client::connect(endpoints, Some(options)).await?)
}

/// Waits for `condition`.
///
/// # Errors
/// It does not come true in [`PATIENCE`].
pub async fn wait<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) -> Result<()> {
    let begun = Instant::now();
    while !condition().await {
        ensure!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
