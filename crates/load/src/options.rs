//! Options that the benches share: which servers get the load, how much of it, and for how long.

use crate::cluster::Endpoints;
use crate::{client, report, runner};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// No timer that a user sets is longer: 115 days.
const SECONDS_MAX: f64 = 1e7;

/// How long replicas may take to fetch a table before a run.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(600);

/// Keys and values of a run.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Data {
    /// Number of different keys
    #[arg(long, default_value_t = 100_000)]
    pub(crate) keys: u64,
    /// Size of a value in bytes
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    pub(crate) value_bytes: usize,
}

/// Who asks, whom, and for how long.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// Servers to load [default: 127.0.0.1:2379, or 127.0.0.1:6379 for Redis's protocol]
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,...", conflicts_with = "endpoints_file")]
    pub(crate) endpoints: Vec<String>,
    /// Servers to load, from a file that `quoin playground` wrote; their CPU time is measured too
    #[arg(long, value_name = "FILE")]
    pub(crate) endpoints_file: Option<PathBuf>,
    /// Which of the servers get the load
    #[arg(long, value_enum, default_value_t = Target::Leader)]
    target: Target,
    /// Concurrent clients, each with one request in flight (on streams: total requests in flight)
    #[arg(long, default_value_t = 64)]
    pub(crate) clients: usize,
    /// Connections that the clients share
    #[arg(long, default_value_t = 16)]
    pub(crate) connections: usize,
    /// Length of the measurement in seconds
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// Load before the measurement, in seconds
    #[arg(long, default_value = "2", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) warm_up: Duration,
    /// Open loop: start this many requests a second, answered or not [default: closed loop, as fast as
    /// answers come]
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Processes whose CPU time is measured
    #[arg(long, value_delimiter = ',', value_name = "PID,...")]
    pub(crate) server_pids: Vec<u32>,
    #[command(flatten)]
    tls: client::Tls,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The servers' HTTP addresses, from the endpoints file.
    #[arg(skip)]
    pub(crate) http: Vec<String>,
    /// The servers' addresses for Redis's protocol, from the endpoints file.
    #[arg(skip)]
    resp: Vec<String>,
}

/// Which servers get the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// The leader alone
    Leader,
    /// All but the leader
    Followers,
    /// Every server
    All,
}

/// Reads a number of seconds, at most 10^7.
///
/// # Errors
/// The text is not such a number.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=SECONDS_MAX).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("must be a number of seconds from 0 to {SECONDS_MAX:.0}")),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("must be a number above 0".into()),
    }
}

/// A case's name, as users write it.
pub(crate) fn name_of(case: impl ValueEnum) -> String {
    case.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}

impl Load {
    /// Checks the options, reads the endpoints file, and returns the servers that get the load.
    pub(crate) async fn resolve(&mut self) -> Result<Vec<String>> {
        self.read("127.0.0.1:2379")?;
        self.target.choose(&self.endpoints).await
    }

    /// As [`Self::resolve`], for Redis's protocol. Without an endpoints file all endpoints get the load,
    /// because Redis cannot say who leads.
    pub(crate) async fn resolve_resp(&mut self) -> Result<Vec<String>> {
        self.read("127.0.0.1:6379")?;
        // Each client has its own connection.
        self.connections = self.clients;
        if self.endpoints_file.is_none() {
            return Ok(self.endpoints.clone());
        }
        let chosen = self.target.choose(&self.endpoints).await?;
        let resp = self.of_chosen(&chosen, &self.resp);
        ensure!(!resp.is_empty(), "the endpoints file has no addresses for Redis's protocol");
        Ok(resp)
    }

    fn read(&mut self, default: &str) -> Result<()> {
        if let Some(file) = &self.endpoints_file {
            let endpoints = Endpoints::read(file)?;
            self.tls.authority = self.tls.authority.take().or(endpoints.authority);
            self.endpoints = endpoints.grpc;
            self.http = endpoints.http;
            self.resp = endpoints.resp;
            self.server_pids = endpoints.pids;
        } else if self.endpoints.is_empty() {
            self.endpoints = vec![default.to_string()];
        }
        self.tls.install();
        ensure!(!self.endpoints.is_empty(), "the endpoints file names no servers");
        ensure!(self.clients > 0 && self.connections > 0, "--clients and --connections must be above 0");
        ensure!(!self.seconds.is_zero(), "--seconds must be above 0");
        Ok(())
    }

    /// Of `other`, a list in the order of the endpoints, the elements that belong to the `chosen` endpoints.
    pub(crate) fn of_chosen(&self, chosen: &[String], other: &[String]) -> Vec<String> {
        let both = self.endpoints.iter().zip(other);
        both.filter(|(endpoint, _)| chosen.contains(endpoint)).map(|(_, other)| other.clone()).collect()
    }

    pub(crate) fn plan(&self) -> runner::Run {
        runner::Run {
            clients: self.clients,
            rate: self.rate,
            warm_up: self.warm_up,
            measured: self.seconds,
            server_pids: self.server_pids.clone(),
        }
    }

    pub(crate) fn setting(&self, value_bytes: usize) -> report::Setting {
        report::Setting {
            clients: self.clients,
            connections: self.connections,
            rate: self.rate,
            value_bytes,
            servers: !self.server_pids.is_empty(),
        }
    }
}

impl Target {
    /// Picks from `endpoints` by asking each whether it leads.
    async fn choose(self, endpoints: &[String]) -> Result<Vec<String>> {
        if self == Self::All {
            return Ok(endpoints.to_vec());
        }
        let (mut leaders, mut followers) = (Vec::new(), Vec::new());
        for endpoint in endpoints {
            let leads = client::leads(client::dial(endpoint, None).await?).await;
            let leads = leads.with_context(|| format!("asking {endpoint} whether it leads"))?;
            (if leads { &mut leaders } else { &mut followers }).push(endpoint.clone());
        }
        let (chosen, role) = if self == Self::Leader { (leaders, "leader") } else { (followers, "follower") };
        ensure!(!chosen.is_empty(), "none of {} is a {role}", endpoints.join(", "));
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_finite_and_not_negative() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        for wrong in ["-1", "nan", "inf", "1e10", "5s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "-1", "nan", "inf", "many"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
