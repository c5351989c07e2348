//! TLS of clients: which files it takes, and which endpoints speak it.

use anyhow::Result;
use clap::Args;
use quoin_tls::{ClientFiles, client_config};
use rustls::ClientConfig;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Certificates of a client. With any of them, endpoints without a scheme are `https://`.
#[derive(Args, Clone, Debug, Default)]
pub struct Tls {
    /// Authorities whose servers are trusted, a PEM file [default, for https://: the system's]
    #[arg(id = "tls_cacert", long = "cacert", value_name = "FILE", env = "QUOIN_CACERT")]
    pub authority: Option<PathBuf>,
    /// The client's certificate, a PEM file, for servers that ask for one
    #[arg(id = "tls_cert", long = "cert", value_name = "FILE", env = "QUOIN_CERT", requires = "tls_key")]
    pub certificate: Option<PathBuf>,
    /// The key of the client's certificate
    #[arg(id = "tls_key", long = "key", value_name = "FILE", env = "QUOIN_KEY", requires = "tls_cert")]
    pub key: Option<PathBuf>,
}

/// What this process was given. The benches dial from many places; all of them mean the same servers.
static GIVEN: OnceLock<Tls> = OnceLock::new();

impl Tls {
    /// Makes these count for all that this process dials. The first call decides.
    pub fn install(&self) {
        GIVEN.get_or_init(|| self.clone());
    }

    fn is_given(&self) -> bool {
        self.authority.is_some() || self.certificate.is_some()
    }

    fn config(&self, protocols: &[&str]) -> Result<Arc<ClientConfig>> {
        let files = ClientFiles {
            authority: self.authority.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
        };
        Ok(client_config(&files, protocols)?)
    }
}

/// An endpoint: `HOST:PORT`, and how to speak TLS with it, if so.
pub(crate) struct Place<'a> {
    pub(crate) address: &'a str,
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

impl<'a> Place<'a> {
    /// What `endpoint` means: `HOST:PORT`, `http://HOST:PORT` or `https://HOST:PORT`.
    pub(crate) fn of(endpoint: &'a str, protocols: &[&str]) -> Result<Self> {
        let given = GIVEN.get().cloned().unwrap_or_default();
        if let Some(address) = endpoint.strip_prefix("https://") {
            return Ok(Self { address, tls: Some(given.config(protocols)?) });
        }
        if let Some(address) = endpoint.strip_prefix("http://") {
            return Ok(Self { address, tls: None });
        }
        let tls = if given.is_given() { Some(given.config(protocols)?) } else { None };
        Ok(Self { address: endpoint, tls })
    }
}
