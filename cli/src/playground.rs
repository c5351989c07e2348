//! `quoin playground`: a cluster of processes on loopback, for trying out, testing and measuring.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Ports that belong to one replica.
const PORTS_PER_REPLICA: u16 = 10;
/// How long a replica may take to stop before it is ended.
const STOP_PATIENCE: Duration = Duration::from_secs(15);

/// What a playground is made of.
#[derive(Args, Clone, Debug)]
pub(crate) struct Playground {
    /// Replicas: 1, 3 or 5
    #[arg(long, default_value_t = 3, value_parser = replicas)]
    pub(crate) replicas: u16,
    /// Where the replicas keep their data; used again if it is there
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The first port; each replica takes ten
    #[arg(long, default_value_t = 23790)]
    pub(crate) port_base: u16,
    /// Where the endpoints are written, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) endpoints_file: Option<PathBuf>,
    /// Further settings for every replica, as flags of `quoin serve`
    #[arg(last = true, value_name = "SETTINGS")]
    pub(crate) settings: Vec<String>,
}

fn replicas(text: &str) -> Result<u16, String> {
    match text {
        "1" | "3" | "5" => Ok(text.parse().expect("a digit")),
        _ => Err("must be 1, 3 or 5".into()),
    }
}

/// Where the replicas are reached; lists in replica order.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Endpoints {
    pub(crate) grpc: Vec<String>,
    pub(crate) http: Vec<String>,
    pub(crate) resp: Vec<String>,
    pub(crate) pids: Vec<u32>,
}

/// Replica processes, ended when dropped.
pub(crate) struct Running {
    playground: Playground,
    children: Vec<Child>,
    pub(crate) endpoints: Endpoints,
}

impl Playground {
    fn address(&self, replica: u16, offset: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port_base + replica * PORTS_PER_REPLICA + offset).into()
    }

    /// The arguments of one replica's `quoin serve`.
    fn arguments(&self, replica: u16) -> Vec<String> {
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
        arguments.extend(self.settings.iter().cloned());
        arguments
    }

    /// Starts the replicas and waits until all can serve.
    pub(crate) async fn start(&self) -> Result<Running> {
        let last_port = u32::from(self.port_base) + u32::from(self.replicas * PORTS_PER_REPLICA);
        ensure!(
            last_port <= 65_536,
            "--port-base {} leaves no room for {} replicas",
            self.port_base,
            self.replicas
        );
        std::fs::create_dir_all(&self.dir).with_context(|| format!("making {}", self.dir.display()))?;
        let addresses =
            |offset| (0..self.replicas).map(|replica| self.address(replica, offset).to_string()).collect();
        let mut running = Running {
            playground: self.clone(),
            children: Vec::new(),
            endpoints: Endpoints {
                grpc: addresses(0),
                http: addresses(2),
                resp: addresses(3),
                pids: Vec::new(),
            },
        };
        for replica in 0..self.replicas {
            let child = spawn(&self.arguments(replica), &self.dir, replica)?;
            running.endpoints.pids.push(child.id());
            running.children.push(child);
        }
        running.wait_ready().await?;
        if let Some(file) = &self.endpoints_file {
            write_whole(file, &serde_json::to_vec(&running.endpoints)?)?;
        }
        Ok(running)
    }
}

fn spawn(arguments: &[String], dir: &Path, replica: u16) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program")?;
    let log = dir.join(format!("replica-{}.log", replica + 1));
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&log)
        .with_context(|| log.display().to_string())?;
    let mut command = Command::new(program);
    // Settings from this process's environment would be given to all replicas alike.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("QUOIN_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().context("starting a replica")
}

/// Writes a file so that a reader finds all of it or none.
fn write_whole(file: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = file.with_extension("new");
    let written = std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, file));
    written.with_context(|| format!("writing {}", file.display()))
}

impl Running {
    async fn wait_ready(&mut self) -> Result<()> {
        for place in 0..self.children.len() {
            let address: SocketAddr = self.endpoints.http[place].parse()?;
            while !is_ready(address) {
                if let Some(status) = self.children[place].try_wait()? {
                    bail!("replica {} ended at once ({status}); its log says why", place + 1);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Kills a replica as a crash would.
    pub(crate) fn kill(&mut self, place: usize) -> Result<()> {
        self.children[place]
            .kill()
            .and_then(|()| self.children[place].wait())
            .context("killing a replica")?;
        Ok(())
    }

    /// Starts a replica again that has ended.
    pub(crate) fn restart(&mut self, place: usize) -> Result<()> {
        let replica = place as u16;
        let child = spawn(&self.playground.arguments(replica), &self.playground.dir, replica)?;
        self.endpoints.pids[place] = child.id();
        self.children[place] = child;
        Ok(())
    }

    /// Returns when a replica has ended by itself, with its place from 1.
    pub(crate) async fn ended(&mut self) -> Result<usize> {
        loop {
            for (place, child) in self.children.iter_mut().enumerate() {
                if child.try_wait()?.is_some() {
                    return Ok(place + 1);
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Asks all replicas to stop, and waits.
    pub(crate) async fn stop(mut self) -> Result<()> {
        for child in &mut self.children {
            if child.try_wait()?.is_none() {
                terminate(child);
            }
        }
        let deadline = tokio::time::Instant::now() + STOP_PATIENCE;
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
            // Errors: it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    // An error: it has just ended by itself.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
}

/// Asks `/readyz`.
fn is_ready(address: SocketAddr) -> bool {
    use std::io::Read;
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) else {
        return false;
    };
    let asked = stream.set_read_timeout(Some(Duration::from_secs(1))).and_then(|()| {
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    });
    let mut answer = String::new();
    asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
}

/// Runs the playground until Ctrl-C or SIGTERM.
pub(crate) async fn run(playground: Playground) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut running = playground.start().await?;
    let mut out = std::io::stdout();
    for (place, address) in running.endpoints.grpc.iter().enumerate() {
        let (http, pid) = (&running.endpoints.http[place], running.endpoints.pids[place]);
        writeln!(out, "replica {}: clients {address}, pages http://{http}, process {pid}", place + 1)?;
    }
    writeln!(out, "data and logs in {}; stop with Ctrl-C", playground.dir.display())?;
    let mut ended = std::collections::BTreeSet::new();
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = tokio::signal::ctrl_c() => break,
            place = running.ended(), if ended.len() < running.children.len() => {
                let place = place?;
                if ended.insert(place) {
                    writeln!(std::io::stderr(), "replica {place} has ended; the others go on")?;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
    running.stop().await
}
