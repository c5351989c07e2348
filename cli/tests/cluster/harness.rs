//! Three processes on loopback, and what tests do to them.

use anyhow::{Result, ensure};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};

/// Nothing that is waited for takes longer, unless it never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_quoin");

/// Small files, so that purges, flushes and snapshots happen within a test.
pub(crate) const SMALL: &[&str] = &[
    "--log-segment-bytes=1048576",
    "--log-keep-bytes=2097152",
    "--log-cache-bytes=65536",
    "--store-memtable-bytes=524288",
];

pub(crate) struct Cluster {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) port_base: u16,
    pub(crate) settings: Vec<String>,
    pub(crate) children: Vec<Option<Child>>,
}

static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// Ports that nobody has: tests of one process take different ones, and ask the system whether others have them.
/// Below the range from which the system takes the ports of outgoing connections: one of those could otherwise sit
/// on the port of a replica that is being restarted.
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

impl Cluster {
    /// Three replicas to be.
    pub(crate) fn new(settings: &[&str]) -> Result<Self> {
        let settings = settings.iter().map(|setting| (*setting).to_string()).collect();
        let (folder, port_base) = (tempfile::tempdir()?, free_port_base());
        Ok(Self { folder, port_base, settings, children: Vec::new() })
    }

    pub(crate) async fn start(settings: &[&str]) -> Result<Self> {
        let mut cluster = Self::new(settings)?;
        cluster.run_all().await?;
        Ok(cluster)
    }

    pub(crate) async fn run_all(&mut self) -> Result<()> {
        for replica in 0..3 {
            self.run(replica)?;
        }
        for replica in 0..3 {
            self.wait_ready(replica).await?;
        }
        Ok(())
    }

    pub(crate) fn port(&self, replica: usize, offset: u16) -> u16 {
        self.port_base + replica as u16 * 10 + offset
    }

    pub(crate) fn address(&self, replica: usize, offset: u16) -> String {
        format!("127.0.0.1:{}", self.port(replica, offset))
    }

    pub(crate) fn data_dir(&self, replica: usize) -> PathBuf {
        self.folder.path().join(format!("replica-{replica}"))
    }

    pub(crate) fn command(&self, replica: usize) -> Command {
        self.command_of(&["serve"], replica)
    }

    /// A command that takes a replica's settings.
    pub(crate) fn command_of(&self, words: &[&str], replica: usize) -> Command {
        let founders: Vec<String> =
            (0..3).map(|other| format!("r{other}={}", self.address(other, 1))).collect();
        let mut command = Command::new(PROGRAM);
        command.args(words).args(["--name", &format!("r{replica}"), "--data-dir"]);
        command.arg(self.data_dir(replica));
        command.args([
            "--listen-client",
            &self.address(replica, 0),
            "--listen-peer",
            &self.address(replica, 1),
        ]);
        command.args(["--listen-http", &self.address(replica, 2)]);
        command.args(["--listen-resp", &self.address(replica, 3)]).args(&self.settings);
        if replica < 3 {
            command.args(["--cluster", &founders.join(",")])
        } else {
            command.args(["--join", &self.address(0, 1)])
        };
        command
    }

    pub(crate) fn run(&mut self, replica: usize) -> Result<()> {
        let log = self.folder.path().join(format!("replica-{replica}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        let child = self.command(replica).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        if self.children.len() <= replica {
            self.children.resize_with(replica + 1, || None);
        }
        self.children[replica] = Some(child);
        Ok(())
    }

    pub(crate) fn kill(&mut self, replica: usize) -> Result<()> {
        if let Some(mut child) = self.children[replica].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    pub(crate) fn log(&self, replica: usize) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("replica-{replica}.log"))).unwrap_or_default()
    }

    pub(crate) async fn wait_ready(&self, replica: usize) -> Result<()> {
        let page = || self.page(replica, "/readyz");
        wait(&format!("replica {replica} to be ready"), || async {
            page().is_some_and(|page| page.contains("200 OK"))
        })
        .await
    }

    pub(crate) fn page(&self, replica: usize, path: &str) -> Option<String> {
        use std::io::Read;
        let mut stream = TcpStream::connect(("127.0.0.1", self.port(replica, 2))).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).ok()?;
        Some(page)
    }

    /// `None` where the page cannot be had or has no such metric.
    pub(crate) fn metric(&self, replica: usize, name: &str) -> Option<f64> {
        let page = self.page(replica, "/metrics")?;
        page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    pub(crate) async fn channel(&self, replica: usize) -> Result<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address(replica, 0)))?;
        Ok(endpoint.timeout(Duration::from_secs(5)).connect_timeout(Duration::from_secs(1)).connect().await?)
    }

    pub(crate) async fn kv(&self, replica: usize) -> Result<KvClient<Channel>> {
        Ok(KvClient::new(self.channel(replica).await?))
    }

    pub(crate) async fn leader(&self) -> Result<usize> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for replica in 0..self.children.len() {
                let Ok(channel) = self.channel(replica).await else { continue };
                let status = MaintenanceClient::new(channel).status(etcd::StatusRequest {}).await;
                let Ok(status) = status.map(tonic::Response::into_inner) else { continue };
                if status.leader != 0 && status.header.is_some_and(|header| header.member_id == status.leader)
                {
                    return Ok(replica);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::bail!("no leader; the first replica says:\n{}", self.log(0))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("QUOIN_TEST_LOGS").is_some() {
            for replica in 0..self.children.len() {
                // Lost with a closed standard error, and then nobody reads it.
                let _ = writeln!(std::io::stderr(), "replica {replica}:\n{}", self.log(replica));
            }
        }
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) async fn wait<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) -> Result<()> {
    let begun = Instant::now();
    while !condition().await {
        ensure!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
