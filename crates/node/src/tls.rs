//! The settings of TLS, and what is made of them. etcd's flags have the same names.

use crate::config::ConfigError;
use quoin_engine::Metrics;
use quoin_tls::{Clients, Files, Keys, Options, TlsError, Version};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// Whether clients need a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// They are not asked for one.
    #[default]
    Off,
    /// They may have one, which must be good.
    Optional,
    /// They must have one.
    Required,
}

/// The oldest version of TLS that is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MinVersion {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    V12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V13,
}

quoin_engine::settings! {
    /// Certificates. The files are read again when they change.
    pub struct TlsConfig in "tls." {
        /// The node's certificate, and those between it and its authority, a PEM file: with it, all ports of clients
        /// speak TLS. Default empty: no TLS.
        pub cert_file: PathBuf = PathBuf::new(),
        /// The key of tls.cert_file, a PEM file that only the node may read. Default empty.
        pub key_file: PathBuf = PathBuf::new(),
        /// The authorities whose clients' certificates are accepted, a PEM file. Default empty.
        pub trusted_ca_file: PathBuf = PathBuf::new(),
        /// Whether clients need a certificate: off, optional or required. Default off.
        pub client_auth: ClientAuth = ClientAuth::Off,
        /// The node's certificate for its peers, a PEM file; it must name quoin://node/NAME, as quoin cert init makes it, or
        /// the host of the node's peer address. Default empty: tls.cert_file.
        pub peer_cert_file: PathBuf = PathBuf::new(),
        /// The key of tls.peer_cert_file, a PEM file. Default empty: tls.key_file.
        pub peer_key_file: PathBuf = PathBuf::new(),
        /// The authorities whose nodes are peers, a PEM file. Default empty: tls.trusted_ca_file.
        pub peer_trusted_ca_file: PathBuf = PathBuf::new(),
        /// The oldest version of TLS that is spoken: 1.2 or 1.3. Default 1.2.
        pub min_version: MinVersion = MinVersion::V12,
    }
}

impl TlsConfig {
    /// Whether clients' ports speak TLS.
    pub fn is_on(&self) -> bool {
        !self.cert_file.as_os_str().is_empty()
    }

    /// What clients' ports are served with, if they speak TLS.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn for_clients(&self) -> Result<Option<Arc<Keys>>, TlsError> {
        if !self.is_on() {
            return Ok(None);
        }
        let clients = match self.client_auth {
            ClientAuth::Off => Clients::Off,
            ClientAuth::Optional => Clients::Optional,
            ClientAuth::Required => Clients::Required,
        };
        Keys::load(self.options(&self.cert_file, &self.key_file, &self.trusted_ca_file, clients)).map(Some)
    }

    /// What the peer port is served with, and peers are dialled with: mutual TLS as soon as there are certificates.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn for_peers(&self) -> Result<Option<Arc<Keys>>, TlsError> {
        let Some([certificate, key, authority]) = self.peer_files() else { return Ok(None) };
        Keys::load(self.options(certificate, key, authority, Clients::Required)).map(Some)
    }

    /// Certificate, key and authorities for peers, if there are any; each may be empty.
    fn peer_files(&self) -> Option<[&Path; 3]> {
        let own = given(&self.peer_cert_file).is_some() || given(&self.peer_key_file).is_some();
        if !own && !self.is_on() {
            return None;
        }
        let authority = given(&self.peer_trusted_ca_file).unwrap_or(&self.trusted_ca_file);
        let (certificate, key) =
            if own { (&self.peer_cert_file, &self.peer_key_file) } else { (&self.cert_file, &self.key_file) };
        Some([certificate, key, authority])
    }

    /// Whether peers speak TLS.
    pub fn is_on_for_peers(&self) -> bool {
        self.peer_files().is_some()
    }

    fn options(&self, certificate: &Path, key: &Path, authority: &Path, clients: Clients) -> Options {
        let authority = given(authority).map(Path::to_owned);
        let oldest = match self.min_version {
            MinVersion::V12 => Version::V12,
            MinVersion::V13 => Version::V13,
        };
        Options {
            files: Files { certificate: certificate.into(), key: key.into(), authority },
            clients,
            oldest,
        }
    }
}

fn given(file: &Path) -> Option<&Path> {
    (!file.as_os_str().is_empty()).then_some(file)
}

/// Checks what can be checked without reading a file.
///
/// # Errors
/// The first setting that lacks another one.
pub(crate) fn check(config: &TlsConfig) -> Result<(), ConfigError> {
    let fail = |setting, problem: &str| Err(ConfigError { setting, problem: problem.into() });
    let [certificate, key, authority] =
        [&config.cert_file, &config.key_file, &config.trusted_ca_file].map(|file| given(file));
    if certificate.is_some() != key.is_some() {
        return fail(
            "tls.cert_file",
            "goes with tls.key_file: set both or none (quoin cert init makes them)",
        );
    }
    if config.client_auth != ClientAuth::Off && authority.is_none() {
        return fail("tls.client_auth", "needs tls.trusted_ca_file: whose certificates are accepted");
    }
    match config.peer_files().map(|files| files.map(|file| given(file))) {
        Some([None, ..] | [_, None, _]) => {
            return fail("tls.peer_cert_file", "goes with tls.peer_key_file: set both or none");
        }
        Some([.., None]) => {
            return fail(
                "tls.peer_trusted_ca_file",
                "is empty, as is tls.trusted_ca_file: with certificates, peers authenticate each other; name the authority \
                 of the nodes' certificates (quoin cert init makes one)",
            );
        }
        None if given(&config.peer_trusted_ca_file).is_some() => {
            return fail("tls.peer_trusted_ca_file", "needs tls.peer_cert_file, or tls.cert_file");
        }
        _ => {}
    }
    if certificate.is_none() && (authority.is_some() || config.client_auth != ClientAuth::Off) {
        return fail("tls.cert_file", "is empty: without a certificate of its own a node speaks no TLS");
    }
    Ok(())
}

/// Reads the files again when they change, and shows it in the metrics of `ports`.
pub(crate) fn watch(keys: &Arc<Keys>, metrics: &Metrics, ports: &'static str) -> io::Result<()> {
    let (reloads, expires) = (metrics.tls_reloads.clone(), metrics.tls_expires.with_label_values(&[ports]));
    let show = move |keys: &Keys| {
        let moment = keys.certificate().not_after.duration_since(UNIX_EPOCH).unwrap_or_default();
        expires.set(moment.as_secs_f64());
    };
    show(keys);
    keys.watch(move |keys, outcome| {
        reloads.with_label_values(&[if outcome.is_ok() { "good" } else { "bad" }]).inc();
        show(keys);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lacks_its_other_half_is_refused() {
        let half = TlsConfig { cert_file: "c".into(), key_file: "k".into(), ..TlsConfig::default() };
        assert_eq!(check(&half).unwrap_err().setting, "tls.peer_trusted_ca_file");
        let good = TlsConfig { trusted_ca_file: "a".into(), ..half.clone() };
        assert_eq!(check(&good), Ok(()));
        let apart = TlsConfig { peer_trusted_ca_file: "p".into(), ..half };
        assert_eq!(check(&apart), Ok(()));
        let peers = TlsConfig { peer_cert_file: "c".into(), ..TlsConfig::default() };
        assert_eq!(check(&peers).unwrap_err().setting, "tls.peer_cert_file");
        assert_eq!(check(&TlsConfig::default()), Ok(()));
        let refused = |config: TlsConfig| check(&config).unwrap_err().setting;
        assert_eq!(refused(TlsConfig { key_file: "".into(), ..good }), "tls.cert_file");
        assert_eq!(refused(TlsConfig { client_auth: ClientAuth::Required, ..apart }), "tls.client_auth");
        let alone = TlsConfig { trusted_ca_file: "a".into(), ..TlsConfig::default() };
        assert_eq!(refused(alone), "tls.cert_file");
    }
}
