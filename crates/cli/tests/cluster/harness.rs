//! The cluster under test, and its clients over gRPC.

use anyhow::Result;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

pub(crate) use quoin_testkit::{Cluster, PATIENCE, SMALL, wait};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_quoin");

/// Starts three replicas with these flags, and waits until they are ready.
pub(crate) fn start(settings: &[&str]) -> Result<Cluster> {
    Cluster::start(PROGRAM, settings)
}

/// Clients of one replica.
pub(crate) trait Clients {
    /// For calls that are answered soon.
    async fn channel(&self, replica: usize) -> Result<Channel>;
    /// For streams that last.
    async fn patient_channel(&self, replica: usize) -> Result<Channel>;
    async fn kv(&self, replica: usize) -> Result<KvClient<Channel>>;
}

impl Clients for Cluster {
    async fn channel(&self, replica: usize) -> Result<Channel> {
        let endpoint = endpoint(&self.client_address(replica))?.timeout(Duration::from_secs(5));
        Ok(endpoint.connect().await?)
    }

    async fn patient_channel(&self, replica: usize) -> Result<Channel> {
        Ok(endpoint(&self.client_address(replica))?.connect().await?)
    }

    async fn kv(&self, replica: usize) -> Result<KvClient<Channel>> {
        Ok(KvClient::new(self.channel(replica).await?))
    }
}

/// The endpoint at `address`. Connecting gives up early: the replica may have been killed.
pub(crate) fn endpoint(address: &str) -> Result<Endpoint> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok(endpoint.connect_timeout(Duration::from_secs(1)))
}
