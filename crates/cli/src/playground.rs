//! `quoin playground`: a cluster of processes on loopback, to try out, to test and to measure.

use crate::ending::Ending;
use crate::settings::Settings;
use anyhow::{Context, Result};
use clap::{Args, Command, FromArgMatches};
use quoin_load::cluster::{Cluster, free_port_base};
use quoin_tls::Folder;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// How often the processes are looked at.
const POLL: Duration = Duration::from_millis(500);

/// A cluster to run.
#[derive(Args, Debug)]
pub(crate) struct Playground {
    /// Number of replicas: 1, 3 or 5
    #[arg(long, default_value_t = 3, value_parser = replicas)]
    replicas: u16,
    /// Folder of the replicas' data and logs; existing data is used again
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// First port, or 0 for free ones; each replica takes ten: clients (gRPC), peers, HTTP, Redis's protocol,
    /// and six spare
    #[arg(long, default_value_t = 23790, value_name = "PORT")]
    port_base: u16,
    /// Write the addresses and process ids to this file, as JSON, once all replicas are ready
    #[arg(long, value_name = "FILE")]
    endpoints_file: Option<PathBuf>,
    /// Speak TLS, with certificates in the folder's certs, made if they are not there
    #[arg(long)]
    tls: bool,
    /// Further flags of `quoin serve`, for every replica
    #[arg(last = true, value_name = "SETTINGS")]
    settings: Vec<String>,
}

fn replicas(text: &str) -> Result<u16, String> {
    match text {
        "1" | "3" | "5" => Ok(text.parse().expect("a digit")),
        _ => Err("must be 1, 3 or 5".into()),
    }
}

/// Checks the replicas' settings here: a replica would say what is wrong in its log alone.
fn check(serve: &[String]) -> Result<()> {
    let command = Settings::augment_args(Command::new("serve"));
    // Replicas do not get this process's settings.
    let matches = command.mut_args(|flag| flag.env(None::<&str>)).try_get_matches_from(serve)?;
    Settings::from_arg_matches(&matches)?.resolve()?;
    Ok(())
}

/// Runs the cluster until Ctrl-C or SIGTERM.
pub(crate) async fn run(playground: Playground) -> Result<()> {
    let Playground { replicas, dir, port_base, endpoints_file, tls, settings } = playground;
    let port_base = if port_base == 0 { free_port_base(replicas)? } else { port_base };
    let mut ending = Ending::listen()?;
    let program = std::env::current_exe().context("finding this program")?;
    let certificates = tls.then(|| Folder::at(dir.join("certs")));
    let trust = certificates.as_ref().map(Folder::authority);
    let cluster = Cluster { program, replicas, dir: dir.clone(), port_base, certificates, settings };
    check(&cluster.arguments(0))?;
    let mut running = cluster.start().await?;
    let endpoints = running.endpoints();
    if let Some(file) = endpoints_file {
        endpoints.write(&file)?;
    }
    let mut out = std::io::stdout();
    let pages = if tls { "https" } else { "http" };
    for (replica, address) in endpoints.grpc.iter().enumerate() {
        let (http, pid) = (&endpoints.http[replica], endpoints.pids[replica]);
        writeln!(out, "replica {}: clients {address}, pages {pages}://{http}, process {pid}", replica + 1)?;
    }
    writeln!(out, "data and logs in {}; stop with Ctrl-C", dir.display())?;
    if let Some(authority) = trust {
        writeln!(out, "clients trust it with --cacert {}", authority.display())?;
    }
    let mut known = BTreeSet::new();
    loop {
        tokio::select! {
            () = ending.asked() => break,
            () = tokio::time::sleep(POLL) => {
                for replica in running.ended()? {
                    if known.insert(replica) {
                        writeln!(std::io::stderr(), "replica {} has ended; the others keep running", replica + 1)?;
                    }
                }
            }
        }
    }
    running.stop().await
}
