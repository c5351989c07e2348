//! How the commands reach a cluster: any of its endpoints, tried in turn.

use crate::output;
use anyhow::{Context, Result, bail};
use clap::Args;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quoin_proto::etcdserverpb::{StatusRequest, StatusResponse};
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Where the cluster is, and how answers look.
#[derive(Args, Clone, Debug)]
pub(crate) struct Connection {
    /// Where the replicas serve clients: HOST:PORT,...
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:2379", env = "QUOIN_ENDPOINTS")]
    pub(crate) endpoints: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds to wait for an answer
    #[arg(long, default_value_t = 5.0)]
    pub(crate) timeout: f64,
}

impl Connection {
    /// A channel to one endpoint.
    pub(crate) async fn dial(&self, endpoint: &str) -> Result<Channel> {
        let address = endpoint.strip_prefix("http://").unwrap_or(endpoint);
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .with_context(|| format!("{endpoint:?} is no HOST:PORT"))?
            .tcp_nodelay(true)
            .timeout(Duration::from_secs_f64(self.timeout))
            .connect_timeout(Duration::from_secs(2));
        endpoint.connect().await.with_context(|| format!("connecting to {address}; is a node running there?"))
    }

    /// A channel to the first endpoint that answers.
    pub(crate) async fn any(&self) -> Result<Channel> {
        let mut failures = Vec::new();
        for endpoint in &self.endpoints {
            match self.dial(endpoint).await {
                Ok(channel) => return Ok(channel),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        bail!("no endpoint answers: {}", failures.join("; "))
    }

    /// A channel to the leader.
    pub(crate) async fn leader(&self) -> Result<Channel> {
        for endpoint in &self.endpoints {
            let Ok(channel) = self.dial(endpoint).await else { continue };
            let Ok(status) = ask_status(channel.clone()).await else { continue };
            if status.header.is_some_and(|header| header.member_id == status.leader) {
                return Ok(channel);
            }
        }
        bail!("none of {} is the leader; name all replicas with --endpoints", self.endpoints.join(", "))
    }

    /// Says what became of a call, to a machine or to people.
    pub(crate) fn say(&self, machine: &Value, people: &str) -> Result<ExitCode> {
        if self.json {
            output::json(machine)?;
        } else {
            writeln!(std::io::stdout(), "{people}")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn ask_status(channel: Channel) -> Result<StatusResponse> {
    Ok(MaintenanceClient::new(channel).status(StatusRequest {}).await?.into_inner())
}
