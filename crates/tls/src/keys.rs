//! What a node proves itself with on some of its ports, and whom it trusts there.
//!
//! The files are looked at every [`RELOAD_PERIOD`]; what is new counts for handshakes from then on, and no connection
//! ends. **Invariant: Good pair.** A pair that cannot be used never replaces one that can.

use crate::{Certificate, TlsError, files, provider};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
};
use rustls::{SupportedProtocolVersion, version};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How often the files are looked at.
pub const RELOAD_PERIOD: Duration = Duration::from_secs(1);

/// Where certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The node's certificate, with those between it and the authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities whose certificates are accepted from the other side.
    pub authority: Option<PathBuf>,
}

/// Whether the other side needs a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// It is not asked for one.
    Off,
    /// It may have one, which must be good.
    Optional,
    /// It must have one.
    Required,
}

/// The oldest version of TLS that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2.
    V12,
    /// TLS 1.3.
    V13,
}

static NEWEST: [&SupportedProtocolVersion; 1] = [&version::TLS13];

impl Version {
    fn supported(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::V12 => rustls::DEFAULT_VERSIONS,
            Self::V13 => &NEWEST,
        }
    }
}

/// How ports are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where certificates are.
    pub files: Files,
    /// Whether the other side needs one.
    pub clients: Clients,
    /// The oldest version that is spoken.
    pub oldest: Version,
}

/// What is spoken on a port, as ALPN names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC, and HTTP/1.
    Client,
    /// HTTP/1.
    Http,
    /// Redis's protocol, which has no name.
    Resp,
    /// Frames between replicas.
    Peer,
}

impl Protocol {
    const ALL: [Self; 4] = [Self::Client, Self::Http, Self::Resp, Self::Peer];

    fn names(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match self {
            Self::Client => &[b"h2", b"http/1.1"],
            Self::Http => &[b"http/1.1"],
            Self::Resp => &[],
            Self::Peer => &[b"quoin-peer"],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

/// What the files hold: certificate, key, authorities.
type Contents = [Vec<u8>; 3];

struct Material {
    /// In the order of [`Protocol::ALL`].
    servers: [Arc<ServerConfig>; 4],
    dialler: Option<Arc<ClientConfig>>,
    caller: Arc<ClientConfig>,
    certificate: Certificate,
}

/// See the module.
pub struct Keys {
    options: Options,
    current: ArcSwap<Material>,
    /// What the files held, or why they could not be read, when they were looked at last.
    seen: Mutex<Result<Contents, String>>,
}

impl Keys {
    /// Reads the files.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub fn load(options: Options) -> Result<Arc<Self>, TlsError> {
        let contents = read(&options.files)?;
        let material = material(&options, &contents)?;
        let current = ArcSwap::from_pointee(material);
        Ok(Arc::new(Self { options, current, seen: Mutex::new(Ok(contents)) }))
    }

    /// How to serve the next connection.
    pub fn server(&self, protocol: Protocol) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().servers[protocol as usize])
    }

    /// How to dial a peer: with the same certificate. Whom the other's certificate names is for the caller to check.
    ///
    /// # Errors
    /// No authorities are configured.
    pub fn dialler(&self) -> io::Result<Arc<ClientConfig>> {
        let dialler = self.current.load().dialler.clone();
        dialler.ok_or_else(|| io::Error::other("no authority is configured for peers"))
    }

    /// How to call another node's client port: with the same certificate, where it asks for one.
    pub fn caller(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current.load().caller)
    }

    /// The node's own certificate.
    pub fn certificate(&self) -> Certificate {
        self.current.load().certificate.clone()
    }

    /// Looks at the files. `None`: nothing has changed since the last look.
    pub fn reload(&self) -> Option<Result<(), TlsError>> {
        let found = read(&self.options.files);
        let mut seen = self.seen.lock();
        let comparable = found.as_ref().map(Clone::clone).map_err(ToString::to_string);
        if *seen == comparable {
            return None;
        }
        *seen = comparable;
        let replaced = found.and_then(|contents| material(&self.options, &contents));
        Some(replaced.map(|material| self.current.store(Arc::new(material))))
    }

    /// Looks at the files until the last handle is gone, on a thread of its own, and calls `told` after each change.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn watch(
        self: &Arc<Self>,
        told: impl Fn(&Self, &Result<(), TlsError>) + Send + 'static,
    ) -> io::Result<()> {
        let keys = Arc::downgrade(self);
        let watch = move || {
            loop {
                std::thread::sleep(RELOAD_PERIOD);
                let Some(keys) = keys.upgrade() else { return };
                let Some(outcome) = keys.reload() else { continue };
                match &outcome {
                    Ok(()) => tracing::info!(
                        certificate = keys.certificate().described(),
                        "certificates were read anew"
                    ),
                    Err(error) => {
                        tracing::error!(%error, "new certificates cannot be used: those from before still count")
                    }
                }
                told(&keys, &outcome);
            }
        };
        std::thread::Builder::new().name("tls-watch".into()).spawn(watch).map(drop)
    }
}

fn read(files: &Files) -> Result<Contents, TlsError> {
    let authority = files.authority.as_deref().map_or(Ok(Vec::new()), files::read)?;
    Ok([files::read(&files.certificate)?, files::read(&files.key)?, authority])
}

fn material(options: &Options, [certificate, key, authority]: &Contents) -> Result<Material, TlsError> {
    let Options { files, clients, oldest } = options;
    let chain = files::chain(&files.certificate, certificate)?;
    let own = chain.first().map(Certificate::of).unwrap_or_else(|| Err(TlsError::Certificate("none".into())));
    let own = own.map_err(|error| TlsError::content(&files.certificate, error.to_string()))?;
    if own.not_after <= SystemTime::now() {
        return Err(TlsError::content(
            &files.certificate,
            "has expired: put a new one there (quoin cert renew)",
        ));
    }
    let key = files::key(&files.key, key)?;
    let roots = match &files.authority {
        Some(file) => Some(Arc::new(files::roots(file, authority)?)),
        None => None,
    };
    let pair =
        |source| TlsError::Pair { certificate: files.certificate.clone(), key: files.key.clone(), source };
    let unusable = |error: &dyn std::fmt::Display| {
        TlsError::content(files.authority.clone().unwrap_or_default(), error.to_string())
    };
    let verifier = match (clients, &roots) {
        (Clients::Off, _) => Arc::new(NoClientAuth) as Arc<_>,
        (_, None) => return Err(TlsError::Certificate("clients' certificates need an authority".into())),
        (clients, Some(roots)) => {
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider());
            let builder =
                if *clients == Clients::Optional { builder.allow_unauthenticated() } else { builder };
            builder.build().map_err(|error| unusable(&error))?
        }
    };
    let server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(oldest.supported())
        .map_err(pair)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(pair)?;
    let served = |protocol: Protocol| {
        let mut server = server.clone();
        server.alpn_protocols = protocol.names();
        if protocol == Protocol::Peer {
            // Who accepts says nothing on a connection for frames, so that its end is seen.
            server.send_tls13_tickets = 0;
        }
        Arc::new(server)
    };
    let trusted = roots.as_deref().cloned().unwrap_or_else(crate::client::system);
    let mut caller = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(oldest.supported())
        .map_err(pair)?
        .with_root_certificates(trusted)
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .map_err(pair)?;
    caller.alpn_protocols = vec![b"h2".to_vec()];
    let dialler = match roots {
        Some(roots) => {
            let mut dialler = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(oldest.supported())
                .map_err(pair)?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(
                    ByAnyName::of(roots).map_err(|error| unusable(&error))?,
                ))
                .with_client_auth_cert(chain, key)
                .map_err(pair)?;
            dialler.alpn_protocols = Protocol::Peer.names();
            Some(Arc::new(dialler))
        }
        None => None,
    };
    Ok(Material { servers: Protocol::ALL.map(served), dialler, caller: Arc::new(caller), certificate: own })
}

/// Accepts a server's certificate of a trusted authority, whatever host it names: a peer is known by its member
/// (see [`Certificate::is_of`]), and moves.
#[derive(Debug)]
struct ByAnyName(Arc<WebPkiServerVerifier>);

impl ByAnyName {
    fn of(roots: Arc<RootCertStore>) -> Result<Self, rustls::server::VerifierBuilderError> {
        WebPkiServerVerifier::builder_with_provider(roots, provider()).build().map(Self)
    }
}

impl ServerCertVerifier for ByAnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::Error::InvalidCertificate;
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is looked at last, after signatures and dates.
            Err(InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Folder, Subject, Validity};
    use std::fs;
    use std::path::Path;

    fn node(dir: &Path) -> Options {
        let folder = Folder::at(dir);
        let subject = Subject::Node { name: "a".into(), hosts: vec!["127.0.0.1".into()] };
        folder.make(&[subject], 1).unwrap();
        let place = folder.node("a");
        let files =
            Files { certificate: place.certificate, key: place.key, authority: Some(folder.authority()) };
        Options { files, clients: Clients::Required, oldest: Version::V12 }
    }

    #[test]
    fn a_bad_pair_keeps_the_old_one_until_a_good_one_comes() {
        let dir = tempfile::tempdir().unwrap();
        let options = node(dir.path());
        let keys = Keys::load(options.clone()).unwrap();
        assert!(keys.reload().is_none(), "nothing has changed");
        let before = Arc::as_ptr(&keys.server(Protocol::Client));
        let good = fs::read(&options.files.key).unwrap();
        let other = tempfile::tempdir().unwrap();
        let foreign = fs::read(node(other.path()).files.key).unwrap();
        for bad in [&b"no key"[..], b"", &foreign] {
            fs::write(&options.files.key, bad).unwrap();
            let error = keys.reload().unwrap().unwrap_err().to_string();
            assert!(error.contains("node-a.key") && !error.contains("no key"), "{error}");
            assert!(keys.reload().is_none(), "said once");
        }
        fs::remove_file(&options.files.key).unwrap();
        assert!(keys.reload().unwrap().is_err());
        assert_eq!(Arc::as_ptr(&keys.server(Protocol::Client)), before);
        fs::write(&options.files.key, good).unwrap();
        assert!(keys.reload().unwrap().is_ok());
        assert_ne!(Arc::as_ptr(&keys.server(Protocol::Client)), before);
    }

    #[test]
    fn an_expired_certificate_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let options = node(dir.path());
        let authority = Authority::open(&dir.path().join("ca.crt"), &dir.path().join("ca.key")).unwrap();
        let now = SystemTime::now();
        let validity = Validity { from: now - 2 * RELOAD_PERIOD, until: now - RELOAD_PERIOD };
        let old = crate::found(options.files.certificate.clone()).unwrap().certificate;
        let pem = authority.renew(&old, &options.files.key, validity).unwrap();
        fs::write(&options.files.certificate, pem).unwrap();
        let error = Keys::load(options).err().unwrap().to_string();
        assert!(error.contains("has expired") && error.contains("quoin cert renew"), "{error}");
    }
}
