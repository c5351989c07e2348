//! How commands reach a cluster: through any of its endpoints, tried in turn.

use crate::output;
use anyhow::{Result, bail};
use clap::Args;
use quoin_load::client::Channel;
use quoin_load::{client, seconds};
use quoin_proto::quoin::v1::{Consistency, Local};
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Which state a command reads.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Read {
    /// Read this replica's own state, which may lag, without asking the leader
    #[arg(long)]
    pub(crate) local: bool,
}

impl Read {
    /// As a request says it; without one, reads are linearizable.
    pub(crate) fn consistency(self) -> Option<Consistency> {
        self.local.then(|| Local::default().into())
    }
}

/// Where the cluster is, and how answers are printed.
#[derive(Args, Clone, Debug)]
pub(crate) struct Connection {
    /// Client ports of the replicas, https:// before them for TLS; the first that answers is used
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "HOST:PORT,...",
        default_value = "127.0.0.1:2379",
        env = "QUOIN_ENDPOINTS"
    )]
    pub(crate) endpoints: Vec<String>,
    #[command(flatten)]
    tls: client::Tls,
    #[command(flatten)]
    credentials: client::Credentials,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds to wait for an answer
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
    /// Wait for answers without limit.
    #[arg(skip)]
    unbounded: bool,
}

impl Connection {
    /// The same without a time limit: for watches, uploads, waiting for a lock.
    pub(crate) fn unbounded(&self) -> Self {
        Self { unbounded: true, ..self.clone() }
    }

    /// A channel to one endpoint.
    pub(crate) async fn dial(&self, endpoint: &str) -> Result<Channel> {
        self.tls.install();
        self.credentials.install()?;
        client::dial(endpoint, (!self.unbounded).then_some(self.timeout)).await
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
            if client::leads(channel.clone()).await.unwrap_or(false) {
                return Ok(channel);
            }
        }
        bail!("none of {} is the leader; name all replicas with --endpoints", self.endpoints.join(", "))
    }

    /// Prints the outcome of a call: `json` or `text`.
    pub(crate) fn say(&self, json: &Value, text: &str) -> Result<ExitCode> {
        if self.json {
            output::json(json)?;
        } else {
            writeln!(std::io::stdout(), "{text}")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
