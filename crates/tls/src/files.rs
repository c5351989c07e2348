//! Certificates and keys out of PEM.

use crate::TlsError;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;

/// Far more than a chain or a bundle of authorities needs: another file was named.
const BYTES_MAX: u64 = 4 << 20;

/// All of a file.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::File { file: file.to_owned(), source };
    let length = std::fs::metadata(file).map_err(failed)?.len();
    if length > BYTES_MAX {
        return Err(TlsError::content(file, format!("has {length} bytes: it is no certificate or key")));
    }
    std::fs::read(file).map_err(failed)
}

/// The certificates of a chain, its owner's first.
pub(crate) fn chain(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| TlsError::content(file, format!("is no PEM: {error}")))?;
    if chain.is_empty() {
        return Err(TlsError::content(file, "has no certificate (-----BEGIN CERTIFICATE-----)"));
    }
    Ok(chain)
}

/// The first key.
pub(crate) fn key(file: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem)
        // The parser's words could repeat what it read.
        .map_err(|_| TlsError::content(file, "has no private key in PEM that is not encrypted"))
}

/// The authorities that are trusted.
pub(crate) fn roots(file: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(file, pem)? {
        let added = roots.add(certificate);
        added.map_err(|error| TlsError::content(file, format!("is no authority's certificate: {error}")))?;
    }
    Ok(roots)
}
