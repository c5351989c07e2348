//! Whom a certificate names, and until when it counts. Whether its signature counts is for the handshake to say.
//!
//! A certificate of [`crate::Authority`] names its owner in a URI: `quoin://node/NAME` or `quoin://client/NAME`. One
//! of another authority names a node by its hosts alone.

use crate::TlsError;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

const SCHEME: &str = "quoin://";
const NODE: &str = "quoin://node/";
const CLIENT: &str = "quoin://client/";

/// What a certificate says of its owner.
#[derive(Clone, Debug)]
pub struct Certificate {
    der: CertificateDer<'static>,
    /// The common name of its subject; empty if it has none.
    pub common_name: String,
    /// Who signed it.
    pub issuer: String,
    /// Host names and addresses that it covers.
    pub hosts: Vec<String>,
    /// The URIs that it names.
    pub uris: Vec<String>,
    /// It counts from then on.
    pub not_before: SystemTime,
    /// It counts until then.
    pub not_after: SystemTime,
    /// It may stand for a server, as a node's must.
    serves: bool,
}

/// The URI that names a node.
pub(crate) fn node_uri(name: &str) -> String {
    format!("{NODE}{name}")
}

/// The URI that names a client.
pub(crate) fn client_uri(name: &str) -> String {
    format!("{CLIENT}{name}")
}

fn moment(seconds: i64) -> SystemTime {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let moment =
        if seconds < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    moment.unwrap_or(UNIX_EPOCH)
}

fn host(bytes: &[u8]) -> Option<String> {
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
    };
    Some(address.to_string())
}

impl Certificate {
    /// Reads a certificate.
    ///
    /// # Errors
    /// It is none.
    pub fn of(der: &CertificateDer<'_>) -> Result<Self, TlsError> {
        let malformed =
            |error: &dyn std::fmt::Display| TlsError::Certificate(format!("no certificate: {error}"));
        let (_, parsed) = X509Certificate::from_der(der).map_err(|error| malformed(&error))?;
        let (mut hosts, mut uris) = (Vec::new(), Vec::new());
        let names = parsed.subject_alternative_name().map_err(|error| malformed(&error))?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => hosts.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => hosts.extend(host(bytes)),
                GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                _ => {}
            }
        }
        let usage = parsed.extended_key_usage().map_err(|error| malformed(&error))?;
        let serves = usage.is_none_or(|usage| usage.value.any || usage.value.server_auth);
        let common_name = parsed.subject().iter_common_name().next();
        Ok(Self {
            common_name: common_name.and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned(),
            issuer: parsed.issuer().to_string(),
            not_before: moment(parsed.validity().not_before.timestamp()),
            not_after: moment(parsed.validity().not_after.timestamp()),
            der: der.clone().into_owned(),
            hosts,
            uris,
            serves,
        })
    }

    /// The node that it names, if it names one.
    pub fn node(&self) -> Option<&str> {
        self.uris.iter().find_map(|uri| uri.strip_prefix(NODE))
    }

    /// The client that it names, if it names one.
    pub fn client(&self) -> Option<&str> {
        self.uris.iter().find_map(|uri| uri.strip_prefix(CLIENT))
    }

    /// Whether it names one of Quoin's own kinds of owner.
    fn is_ours(&self) -> bool {
        self.uris.iter().any(|uri| uri.starts_with(SCHEME))
    }

    /// Whether it covers a host: a name or an address.
    pub fn covers(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let Ok(name) = ServerName::try_from(host) else { return false };
        ParsedCertificate::try_from(&self.der).is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
    }

    /// Whether it is of a node, whichever it may be.
    pub fn is_a_nodes(&self) -> bool {
        self.node().is_some() || (!self.is_ours() && self.serves)
    }

    /// Whether it is of the member of this name (empty: not known yet) that peers reach at `address`, `HOST:PORT`.
    ///
    /// Members may share a host, so a certificate that names a node must name this one.
    pub fn is_of(&self, name: &str, address: &str) -> bool {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        match self.node() {
            Some(node) if !name.is_empty() => node == name,
            _ => self.is_a_nodes() && self.covers(host),
        }
    }

    /// Whom it names, for a log.
    pub fn described(&self) -> String {
        let mut names: Vec<&str> = self.uris.iter().chain(&self.hosts).map(String::as_str).collect();
        if names.is_empty() {
            names.push(&self.common_name);
        }
        names.join(", ")
    }
}
