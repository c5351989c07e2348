//! `quoin playground`, as its users start and stop it.

use crate::harness::PROGRAM;
use anyhow::{Result, ensure};
use quoin_testkit::{Ports, wait_blocking};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A playground that is killed with its replicas if the test fails.
pub(crate) struct Playground {
    process: Child,
    pub(crate) grpc: Vec<String>,
    pub(crate) http: Vec<String>,
    pids: Vec<i32>,
}

impl Playground {
    /// Starts one on `folder`, and waits until it has written its endpoints file.
    fn start(folder: &Path, ports: &Ports) -> Result<Self> {
        Self::start_with(folder, ports, &["--", "--log-segment-bytes=1048576"])
    }

    /// The same, with these flags.
    pub(crate) fn start_with(folder: &Path, ports: &Ports, flags: &[&str]) -> Result<Self> {
        let file = folder.join("endpoints.json");
        let mut command = Command::new(PROGRAM);
        command.args(["playground", "--port-base", &ports.address(0).port().to_string()]);
        command.arg("--dir").arg(folder.join("data")).arg("--endpoints-file").arg(&file);
        // What follows the dashes goes to the replicas.
        command.args(flags);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut playground = Self { process, grpc: Vec::new(), http: Vec::new(), pids: Vec::new() };
        let endpoints = wait_blocking("the endpoints file", || match playground.process.try_wait() {
            Ok(None) => std::fs::read(&file).map_err(|error| error.to_string()),
            ended => Err(format!("the playground ended: {ended:?}")),
        })?;
        let endpoints: serde_json::Value = serde_json::from_slice(&endpoints)?;
        playground.grpc = serde_json::from_value(endpoints["grpc"].clone())?;
        playground.http = serde_json::from_value(endpoints["http"].clone())?;
        playground.pids = serde_json::from_value(endpoints["pids"].clone())?;
        std::fs::rename(&file, folder.join("endpoints"))?;
        Ok(playground)
    }

    /// Stops it as Ctrl-C or a service manager would.
    pub(crate) fn stop(&mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.process), Signal::TERM)?;
        let status = wait_blocking("the playground to stop", || self.process.try_wait().transpose())??;
        ensure!(status.success(), "{status}");
        for pid in std::mem::take(&mut self.pids) {
            ensure!(!Path::new(&format!("/proc/{pid}")).exists(), "replica {pid} outlived its playground");
        }
        Ok(())
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        // Errors: it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        for pid in self.pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

pub(crate) fn quoin(arguments: &[&str]) -> Result<String> {
    let output = Command::new(PROGRAM).args(arguments).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn a_playground_stops_with_its_replicas_and_starts_again_with_its_data() -> Result<()> {
    let (folder, ports) = (tempfile::tempdir()?, Ports::reserve()?);
    let mut playground = Playground::start(folder.path(), &ports)?;
    ensure!(playground.grpc.len() == 3 && playground.pids.len() == 3, "{:?}", playground.grpc);
    quoin(&["kv", "put", "greeting", "hello", "--endpoints", &playground.grpc[0]])?;
    playground.stop()?;
    let mut playground = Playground::start(folder.path(), &ports)?;
    let read = quoin(&["kv", "get", "greeting", "--endpoints", &playground.grpc[2]])?;
    ensure!(read.contains("hello"), "{read}");
    playground.stop()
}
