//! `quoin serve` and `quoin dev`: one node in this process, until it is told to stop.

use crate::ending::Ending;
use crate::settings::Settings;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use quoin_load::cluster::CLIENT;
use quoin_node::{Config, Node};
use quoin_tls::{Folder, Subject};
use std::io::Write;
use std::time::Duration;

/// Days that certificates of `quoin dev` count.
const DEV_DAYS: u32 = 365;
/// Longer than any stop that is not stuck.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Runs a node until SIGTERM, SIGINT or a fault.
pub(crate) async fn serve(config: Config) -> Result<()> {
    let mut ending = Ending::listen()?;
    let node = start(config, &mut ending).await?;
    run(node, ending).await
}

/// A single node to try things out.
#[derive(Args, Debug)]
pub(crate) struct Dev {
    /// Speak TLS, with certificates in the data folder's certs, made if they are not there
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    settings: Settings,
}

/// Runs a single node and prints how to use it.
pub(crate) async fn dev(dev: &Dev) -> Result<()> {
    let mut config = dev.settings.resolve()?;
    let certificates = Folder::at(config.data_dir.join("certs"));
    if dev.tls {
        ensure!(
            !config.tls.is_on(),
            "--tls makes certificates, and tls.cert_file names one: give one of them"
        );
        let hosts = vec!["localhost".into(), "127.0.0.1".into(), config.listen_client.ip().to_string()];
        let node = Subject::Node { name: config.name.clone(), hosts };
        certificates.make(&[node, Subject::Client { name: CLIENT.into() }], DEV_DAYS)?;
        let place = certificates.node(&config.name);
        config.tls.cert_file = place.certificate;
        config.tls.key_file = place.key;
        config.tls.trusted_ca_file = certificates.authority();
    }
    let (client, http, folder) = (config.listen_client, config.listen_http, config.data_dir.clone());
    let resp = config.listen_resp;
    let mut ending = Ending::listen()?;
    let node = start(config, &mut ending).await?;
    // How to ask it, and with etcd's client.
    let (scheme, trust) = if dev.tls {
        ("https://", format!(" --cacert {}", certificates.authority().display()))
    } else {
        ("", String::new())
    };
    let pages = if dev.tls { "https" } else { "http" };
    let mut out = std::io::stdout();
    writeln!(
        out,
        "One node, data in {folder}. Stop it with Ctrl-C.\n\n  \
         etcd API and quoin.*.v1    {client}\n  Redis's protocol           {resp}\n  \
         metrics, HTTP API, docs    {pages}://{http}\n\n\
         Try, in another terminal:\n  \
         quoin kv put greeting hello --endpoints {scheme}{client}{trust}\n  \
         quoin kv get greeting --endpoints {scheme}{client}{trust}\n  \
         etcdctl --endpoints {scheme}{client}{trust} watch --prefix ''\n",
        folder = folder.display()
    )?;
    run(node, ending).await
}

/// Starts a node. Asked to end before it has started, the process ends at once: there is nobody to tell, and a
/// start that is cut off is one that a crash could have cut off.
async fn start(config: Config, ending: &mut Ending) -> Result<Node> {
    tokio::select! {
        node = Node::start(config) => Ok(node?),
        () = ending.asked() => {
            tracing::info!("stopped before it had started");
            std::process::exit(0);
        }
    }
}

/// Ends the process if it has not ended by itself in [`STOP_PATIENCE`]: a disk that hangs must not keep a node
/// that nobody can use. Nothing is lost by it: every stop is one that a crash could have made.
fn end_in_time() -> Result<()> {
    let end = || {
        std::thread::sleep(STOP_PATIENCE);
        tracing::error!("the node did not stop in {} s: ending the process", STOP_PATIENCE.as_secs());
        std::process::exit(1);
    };
    let spawned = std::thread::Builder::new().name("end".into()).spawn(end);
    spawned.map(drop).context("starting a thread")
}

async fn run(node: Node, mut ending: Ending) -> Result<()> {
    let reason = tokio::select! {
        () = ending.asked() => None,
        reason = node.failed() => Some(reason),
    };
    tracing::info!("stopping");
    end_in_time()?;
    node.stop().await;
    match reason {
        Some(reason) => bail!("the node stopped because of a fault: {reason}"),
        None => Ok(()),
    }
}
