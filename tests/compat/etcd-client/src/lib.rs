//! Clients of the cluster under test: three `quoin` processes, driven with the crate etcd-client. `QUOIN_BIN`
//! names the binary.

use anyhow::Result;
use etcd_client::{Client, ConnectOptions};
use std::time::Duration;

pub use quoin_testkit::{Cluster, PATIENCE, SMALL, wait};

/// Starts three replicas with these flags, and waits until they are ready.
///
/// # Errors
/// There is no binary, or the replicas do not get ready.
pub fn start(settings: &[&str]) -> Result<Cluster> {
    Cluster::start(quoin_testkit::program()?, settings)
}

/// A client of one replica.
///
/// # Errors
/// The replica does not answer.
pub async fn client_of(cluster: &Cluster, replica: usize) -> Result<Client> {
    connect(&[cluster.client_address(replica)]).await
}

/// A client that spreads its calls over the endpoints.
///
/// # Errors
/// They are not addresses, or none answers.
pub async fn connect(endpoints: &[String]) -> Result<Client> {
    let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(1));
    Ok(Client::connect(endpoints, Some(options)).await?)
}
