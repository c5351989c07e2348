//! An authority of one's own, for people who have none: it signs nodes' and clients' certificates.
//!
//! Keys are ECDSA on P-256, which every client knows. Deliberately absent: revocation lists. What must not count any
//! more runs out, or is signed by an authority that is not trusted any more.

use crate::certificate::{client_uri, node_uri};
use crate::{Certificate, TlsError, files};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Clocks differ: certificates count from this long before they are made.
const SKEW: Duration = Duration::from_secs(3600);

/// Whom a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A node of this name, reached at these hosts: names or addresses.
    Node {
        /// The node's name, as its setting says.
        name: String,
        /// Where it is reached.
        hosts: Vec<String>,
    },
    /// A client, or whoever uses one.
    Client {
        /// Its name, which is the certificate's common name too.
        name: String,
    },
}

/// From when until when a certificate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub from: SystemTime,
    /// The last one.
    pub until: SystemTime,
}

impl Validity {
    /// From about now on, for so many days.
    pub fn days(days: u32) -> Self {
        let now = SystemTime::now();
        let length = Duration::from_secs(u64::from(days) * 86_400);
        Self { from: now.checked_sub(SKEW).unwrap_or(now), until: now.checked_add(length).unwrap_or(now) }
    }
}

/// A certificate and its key, both in PEM.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key: whoever has it is the owner.
    pub key: String,
}

/// See the module.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

fn failed(error: rcgen::Error) -> TlsError {
    TlsError::Certificate(format!("making a certificate: {error}"))
}

fn text(text: &str) -> Result<Ia5String, TlsError> {
    Ia5String::try_from(text).map_err(|_| TlsError::Certificate(format!("{text:?} is not plain ASCII")))
}

fn parameters(common_name: &str, validity: Validity) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, common_name);
    parameters.not_before = validity.from.into();
    parameters.not_after = validity.until.into();
    parameters
}

impl Authority {
    /// A new authority, and its own certificate and key.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn create(name: &str, validity: Validity) -> Result<(Self, Pair), TlsError> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut parameters = parameters(name, validity);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = parameters.self_signed(&key).map_err(failed)?.pem();
        let pair = Pair { certificate, key: key.serialize_pem() };
        Ok((Self { issuer: Issuer::new(parameters, key) }, pair))
    }

    /// The authority with this certificate and key.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |file: &Path| {
            let text = String::from_utf8(files::read(file)?);
            text.map_err(|_| TlsError::content(file, "is no PEM"))
        };
        let pair =
            KeyPair::from_pem(&read(key)?).map_err(|_| TlsError::content(key, "is no private key in PEM"))?;
        let issuer = Issuer::from_ca_cert_pem(&read(certificate)?, pair);
        let issuer = issuer.map_err(|error| TlsError::content(certificate, error.to_string()))?;
        Ok(Self { issuer })
    }

    /// A certificate with a key of its own.
    ///
    /// # Errors
    /// A name or a host cannot stand in a certificate.
    pub fn issue(&self, subject: &Subject, validity: Validity) -> Result<Pair, TlsError> {
        let key = KeyPair::generate().map_err(failed)?;
        Ok(Pair { certificate: self.sign(subject, &key, validity)?, key: key.serialize_pem() })
    }

    /// A certificate for the key in `key`, of the subject that `old` names.
    ///
    /// # Errors
    /// The old certificate names nobody that this authority would sign for, or the key cannot be read.
    pub fn renew(&self, old: &Certificate, key: &Path, validity: Validity) -> Result<String, TlsError> {
        let subject = match (old.node(), old.client()) {
            (Some(name), _) => Subject::Node { name: name.into(), hosts: old.hosts.clone() },
            (None, Some(name)) => Subject::Client { name: name.into() },
            (None, None) => {
                return Err(TlsError::Certificate(format!(
                    "{} names no node or client of Quoin: have it renewed by whoever made it",
                    old.described()
                )));
            }
        };
        let pem = String::from_utf8(files::read(key)?).map_err(|_| TlsError::content(key, "is no PEM"))?;
        let pair = KeyPair::from_pem(&pem).map_err(|_| TlsError::content(key, "is no private key in PEM"))?;
        self.sign(&subject, &pair, validity)
    }

    fn sign(&self, subject: &Subject, key: &KeyPair, validity: Validity) -> Result<String, TlsError> {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let parameters = match subject {
            Subject::Node { name, hosts } => {
                let mut parameters = parameters(name, validity);
                parameters.subject_alt_names.push(SanType::URI(text(&node_uri(name))?));
                for host in hosts {
                    parameters.subject_alt_names.push(match host.parse::<IpAddr>() {
                        Ok(address) => SanType::IpAddress(address),
                        Err(_) => SanType::DnsName(text(host)?),
                    });
                }
                // A node dials its peers as well.
                parameters.extended_key_usages = vec![ServerAuth, ClientAuth];
                parameters
            }
            Subject::Client { name } => {
                let mut parameters = parameters(name, validity);
                parameters.subject_alt_names.push(SanType::URI(text(&client_uri(name))?));
                parameters.extended_key_usages = vec![ClientAuth];
                parameters
            }
        };
        let mut parameters = parameters;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.use_authority_key_identifier_extension = true;
        Ok(parameters.signed_by(key, &self.issuer).map_err(failed)?.pem())
    }
}
