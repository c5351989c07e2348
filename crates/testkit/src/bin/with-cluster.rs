//! Runs a command next to a cluster, for tests that are scripts. `QUOIN_BIN` names the binary to test.
//!
//! ```text
//! with-cluster dev|1|3|5 COMMAND [ARGUMENTS...]
//! ```
//!
//! The command gets the replicas' addresses in its environment: the client addresses in `QUOIN_ENDPOINTS`,
//! separated by commas as `quoin` expects, the others in `CLUSTER_HTTP` and `CLUSTER_RESP`, separated by
//! spaces. The program fails if the command fails, or if a replica ends early or does not stop cleanly.

use anyhow::{Context, Result, bail, ensure};
use quoin_testkit::{Cluster, program};
use std::process::Command;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().context("usage: with-cluster dev|1|3|5 COMMAND [ARGUMENTS...]")?;
    let command = arguments.next().context("the command to run is missing")?;
    let (mut cluster, replicas) = match kind.as_str() {
        "dev" => (Cluster::dev(program()?, &[])?, 1),
        "1" | "3" | "5" => {
            let replicas = kind.parse()?;
            let mut cluster = Cluster::new(program()?, replicas, &[])?;
            cluster.start_all()?;
            (cluster, replicas)
        }
        _ => bail!("unknown cluster {kind:?}: give dev, 1, 3 or 5"),
    };
    let addresses = |of: fn(&Cluster, usize) -> String| {
        (0..replicas).map(|replica| of(&cluster, replica)).collect::<Vec<_>>().join(" ")
    };
    let status = Command::new(&command)
        .args(arguments)
        .env("QUOIN_ENDPOINTS", cluster.endpoints())
        .env("CLUSTER_HTTP", addresses(Cluster::http_address))
        .env("CLUSTER_RESP", addresses(Cluster::resp_address))
        .status()
        .with_context(|| format!("running {command}"))?;
    cluster.check_alive()?;
    ensure!(status.success(), "{command}: {status}");
    cluster.stop_all()
}
