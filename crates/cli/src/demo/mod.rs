//! `quoin demo`: three replicas on loopback, a real job on every face, and what it took.

mod kv;
mod ledger;
mod route;
mod row;
mod table;

use crate::ending::Ending;
use anyhow::{Context, Result};
use quoin_load::cluster::{Cluster, Running, free_port_base};
use std::io::Write;
use std::time::Duration;

const REPLICAS: u16 = 3;
/// How long the job may take. It takes longer only if something is wrong.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Runs the demo. With `once` it ends after the job, otherwise it serves until Ctrl-C.
pub(crate) async fn run(once: bool) -> Result<()> {
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    let mut out = std::io::stdout();
    writeln!(out, "Starting three replicas on loopback, data in {} ...", folder.path().display())?;
    let cluster = Cluster {
        program: std::env::current_exe().context("finding this program")?,
        replicas: REPLICAS,
        dir: folder.path().to_path_buf(),
        port_base: free_port_base(REPLICAS)?,
        certificates: None,
        settings: Vec::new(),
    };
    let mut ending = Ending::listen()?;
    let mut running = cluster.start().await?;
    let jobs = tokio::select! {
        jobs = tokio::time::timeout(TIMEOUT, all_jobs(&mut running)) => jobs,
        () = ending.asked() => return running.stop().await,
    };
    jobs.context("the job took too long")?.context("the job failed")?;
    if !once {
        writeln!(
            out,
            "\nStill serving. Try:  etcdctl --endpoints {} get --prefix demo/ --limit 3",
            running.endpoints().grpc.join(",")
        )?;
        writeln!(out, "Stop with Ctrl-C.")?;
        ending.asked().await;
    }
    running.stop().await
}

/// Runs every face's job. The one that kills the leader comes last.
async fn all_jobs(running: &mut Running) -> Result<()> {
    let endpoints = running.endpoints().clone();
    let route = route::job(&endpoints.grpc).await.context("route")?;
    let ledger = ledger::job(&endpoints).await.context("ledger")?;
    let table = table::job(&endpoints.grpc).await.context("table")?;
    let kv = kv::job(running).await.context("kv")?;
    row::print("kv: versioned keys", &kv)?;
    row::print("route: rules by network and address", &route)?;
    row::print("ledger: accounts and transfers", &ledger)?;
    row::print("table: lookup tables", &table)
}
