//! What a client trusts, and proves itself with.

use crate::{TlsError, files, provider};
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A client's files. Without an authority the system's are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The authorities whose servers are trusted.
    pub authority: Option<PathBuf>,
    /// The client's own certificate, which servers may ask for.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// How a client speaks TLS, with the protocols that it offers.
///
/// # Errors
/// A file cannot be used, or a certificate comes without its key.
pub fn client_config(files: &ClientFiles, protocols: &[&str]) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = match &files.authority {
        Some(file) => files::roots(file, &files::read(file)?)?,
        None => system(),
    };
    let failed = |error: rustls::Error| TlsError::Certificate(error.to_string());
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_root_certificates(roots);
    let mut config = match (&files.certificate, &files.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
            with_certificate(certificate, key, |chain, own| builder.with_client_auth_cert(chain, own))?
        }
        _ => return Err(TlsError::Certificate("a client's certificate goes with its key: give both".into())),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

fn with_certificate(
    certificate: &Path,
    key: &Path,
    build: impl FnOnce(
        Vec<rustls::pki_types::CertificateDer<'static>>,
        rustls::pki_types::PrivateKeyDer<'static>,
    ) -> Result<ClientConfig, rustls::Error>,
) -> Result<ClientConfig, TlsError> {
    let chain = files::chain(certificate, &files::read(certificate)?)?;
    let own = files::key(key, &files::read(key)?)?;
    build(chain, own).map_err(|source| TlsError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })
}

/// The authorities that the system trusts; what it cannot read of them is left out.
pub(crate) fn system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}
