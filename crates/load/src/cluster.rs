//! A cluster of `quoin serve` processes on loopback, behind `quoin playground`, `quoin demo` and
//! `quoin bench leases`.
//!
//! It knows what a user knows: the binary, its flags, its ports and `/readyz`.

use anyhow::{Context, Result, bail, ensure};
use quoin_tls::{ClientFiles, Folder, Subject, client_config};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Ports reserved for each replica.
const PORTS_PER_REPLICA: u16 = 10;
/// Ports that each replica listens on.
const PORTS_USED: u16 = 4;
/// How long replicas may take to stop before they are killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// The client that certificates of a cluster are made for.
pub const CLIENT: &str = "client";
/// How long those count.
const CERTIFICATE_DAYS: u32 = 365;

/// A cluster to start.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The `quoin` binary.
    pub program: PathBuf,
    /// Number of replicas.
    pub replicas: u16,
    /// Folder of the replicas' data and logs. Existing data is used again.
    pub dir: PathBuf,
    /// The first port; each replica takes ten.
    pub port_base: u16,
    /// The folder with the replicas' certificates, if they speak TLS.
    pub certificates: Option<Folder>,
    /// Further flags of `quoin serve`, for every replica.
    pub settings: Vec<String>,
}

/// Addresses and processes of the replicas, in replica order: the endpoints file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Endpoints {
    /// `HOST:PORT` of the client ports (gRPC).
    pub grpc: Vec<String>,
    /// `HOST:PORT` of the HTTP ports.
    pub http: Vec<String>,
    /// `HOST:PORT` of the ports for Redis's protocol. Servers without one leave it out.
    #[serde(default)]
    pub resp: Vec<String>,
    /// The authority of the servers' certificates, where they speak TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<PathBuf>,
    /// Process ids.
    pub pids: Vec<u32>,
}

/// Running replicas. Dropped, it kills them.
#[derive(Debug)]
pub struct Running {
    cluster: Cluster,
    children: Vec<Child>,
    endpoints: Endpoints,
}

/// Finds a `port_base` for `replicas`: ports that are free now, below the range from which the system takes
/// the ports of outgoing connections. Processes begin their search at different ports.
///
/// # Errors
/// No such ports are free.
pub fn free_port_base(replicas: u16) -> Result<u16> {
    for base in (20_000..32_000).step_by(100).skip(std::process::id() as usize % 100) {
        let free = |replica: u16, offset| {
            TcpListener::bind((Ipv4Addr::LOCALHOST, base + replica * PORTS_PER_REPLICA + offset)).is_ok()
        };
        if (0..replicas).all(|replica| (0..PORTS_USED).all(|offset| free(replica, offset))) {
            return Ok(base);
        }
    }
    bail!("no free ports from 20000 to 32000 on loopback")
}

impl Endpoints {
    /// Reads an endpoints file.
    ///
    /// # Errors
    /// The file cannot be read or is not an endpoints file.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not an endpoints file", file.display()))
    }

    /// Writes an endpoints file atomically: readers find all of it or nothing.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let (temporary, bytes) = (file.with_extension("new"), serde_json::to_vec(self)?);
        let written = std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, file));
        written.with_context(|| format!("writing {}", file.display()))
    }
}

impl Cluster {
    fn address(&self, replica: u16, offset: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port_base + replica * PORTS_PER_REPLICA + offset).into()
    }

    /// The arguments of one replica's (from 0) `quoin serve`, beginning with `serve`.
    pub fn arguments(&self, replica: u16) -> Vec<String> {
        let founders: Vec<String> = (0..self.replicas)
            .map(|other| format!("replica-{}={}", other + 1, self.address(other, 1)))
            .collect();
        let name = format!("replica-{}", replica + 1);
        let mut arguments = vec!["serve".into()];
        let mut give = |flag: &str, value: String| arguments.extend([format!("--{flag}"), value]);
        give("data-dir", self.dir.join(&name).display().to_string());
        give("name", name);
        give("listen-client", self.address(replica, 0).to_string());
        give("listen-peer", self.address(replica, 1).to_string());
        give("listen-http", self.address(replica, 2).to_string());
        give("listen-resp", self.address(replica, 3).to_string());
        give("cluster", founders.join(","));
        if let Some(folder) = &self.certificates {
            let place = folder.node(&format!("replica-{}", replica + 1));
            give("tls-cert-file", place.certificate.display().to_string());
            give("tls-key-file", place.key.display().to_string());
            give("tls-trusted-ca-file", folder.authority().display().to_string());
        }
        arguments.extend(self.settings.iter().cloned());
        arguments
    }

    /// Starts the replicas and waits until all of them are ready.
    ///
    /// # Errors
    /// A port is out of range, the folder cannot be made, or a replica does not start.
    pub async fn start(self) -> Result<Running> {
        let (base, replicas) = (self.port_base, self.replicas);
        let end = u32::from(base) + u32::from(replicas) * u32::from(PORTS_PER_REPLICA);
        ensure!(end <= 65_536, "the port base {base} leaves no room for {replicas} replicas");
        if let Some(folder) = &self.certificates {
            let hosts = || vec![Ipv4Addr::LOCALHOST.to_string(), "localhost".into()];
            let node = |replica| Subject::Node { name: format!("replica-{}", replica + 1), hosts: hosts() };
            let client = Subject::Client { name: CLIENT.into() };
            let subjects: Vec<_> = (0..replicas).map(node).chain([client]).collect();
            folder.make(&subjects, CERTIFICATE_DAYS)?;
        }
        std::fs::create_dir_all(&self.dir).with_context(|| format!("making {}", self.dir.display()))?;
        let addresses =
            |offset| (0..replicas).map(|replica| self.address(replica, offset).to_string()).collect();
        let scheme = if self.certificates.is_some() { "https://" } else { "" };
        let with_scheme =
            |addresses: Vec<String>| addresses.iter().map(|it| format!("{scheme}{it}")).collect();
        let endpoints = Endpoints {
            grpc: with_scheme(addresses(0)),
            http: addresses(2),
            resp: addresses(3),
            authority: self.certificates.as_ref().map(Folder::authority),
            pids: Vec::with_capacity(replicas.into()),
        };
        let mut running = Running { cluster: self, children: Vec::new(), endpoints };
        for replica in 0..replicas {
            let child = spawn(&running.cluster, replica)?;
            running.endpoints.pids.push(child.id());
            running.children.push(child);
        }
        running.wait_ready().await?;
        Ok(running)
    }
}

fn spawn(cluster: &Cluster, replica: u16) -> Result<Child> {
    let log = cluster.dir.join(format!("replica-{}.log", replica + 1));
    let file = std::fs::File::options().create(true).append(true).open(&log);
    let file = file.with_context(|| format!("opening {}", log.display()))?;
    let mut command = Command::new(&cluster.program);
    // Settings in this process's environment would apply to all replicas alike.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("QUOIN_")) {
        command.env_remove(name);
    }
    command.args(cluster.arguments(replica)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    command.spawn().with_context(|| format!("starting {}", cluster.program.display()))
}

impl Running {
    /// The replicas' addresses and process ids.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    async fn wait_ready(&mut self) -> Result<()> {
        for replica in 0..self.children.len() {
            let address: SocketAddr = self.endpoints.http[replica].parse()?;
            let tls = match &self.cluster.certificates {
                Some(folder) => {
                    let own = folder.client(CLIENT);
                    let files = ClientFiles {
                        authority: Some(folder.authority()),
                        certificate: Some(own.certificate),
                        key: Some(own.key),
                    };
                    Some(client_config(&files, &[])?)
                }
                None => None,
            };
            while !is_ready(address, tls.as_ref()) {
                if let Some(status) = self.children[replica].try_wait()? {
                    let dir = self.cluster.dir.display();
                    let number = replica + 1;
                    bail!("replica {number} ended ({status}); {dir}/replica-{number}.log says why");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Kills a replica (from 0) with SIGKILL, as a crash would.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&mut self, replica: usize) -> Result<()> {
        let child = &mut self.children[replica];
        child.kill().and_then(|()| child.wait()).context("killing a replica")?;
        Ok(())
    }

    /// Starts a replica (from 0) that has ended; does not wait until it is ready.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn restart(&mut self, replica: usize) -> Result<()> {
        let child = spawn(&self.cluster, replica as u16)?;
        self.endpoints.pids[replica] = child.id();
        self.children[replica] = child;
        Ok(())
    }

    /// The replicas (from 0) that have ended.
    ///
    /// # Errors
    /// The system does not say.
    pub fn ended(&mut self) -> Result<Vec<usize>> {
        let mut ended = Vec::new();
        for (replica, child) in self.children.iter_mut().enumerate() {
            if child.try_wait()?.is_some() {
                ended.push(replica);
            }
        }
        Ok(ended)
    }

    /// Sends all replicas SIGTERM and waits until they have stopped. Those that take longer than 15 seconds
    /// are killed.
    ///
    /// # Errors
    /// The system does not say whether they have ended.
    pub async fn stop(mut self) -> Result<()> {
        for child in &mut self.children {
            if child.try_wait()?.is_none() {
                terminate(child);
            }
        }
        let deadline = tokio::time::Instant::now() + STOP_TIMEOUT;
        for child in &mut self.children {
            while child.try_wait()?.is_none() && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.children {
            // An error means that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    // An error means that it has just ended.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
}

/// Whether `/readyz` answers 200.
fn is_ready(address: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> bool {
    let asked = || -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        match tls {
            None => ask_ready(&mut stream),
            Some(config) => {
                let connection = ClientConnection::new(Arc::clone(config), address.ip().into())?;
                ask_ready(&mut StreamOwned::new(connection, stream))
            }
        }
    };
    asked().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn ask_ready(stream: &mut (impl Read + Write)) -> Result<String> {
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    stream.flush()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
