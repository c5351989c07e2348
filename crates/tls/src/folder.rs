//! A folder of certificates: `ca.crt` and `ca.key`, `node-NAME.crt` and `.key` for each node, `client-NAME.crt` and `.key`
//! for each client.
//!
//! **Invariant: Secret.** A key's file can be read by its owner alone, from its first byte on.

use crate::{Authority, Certificate, Pair, Subject, TlsError, Validity, files};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;
/// Days that an authority counts.
const AUTHORITY_DAYS: u32 = 3650;

/// See the module.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// Where a certificate and its key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The certificate's file.
    pub certificate: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

/// A certificate of the folder.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its file.
    pub file: PathBuf,
    /// What it says.
    pub certificate: Certificate,
}

impl Folder {
    /// The folder at `path`, which need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The authority's certificate.
    pub fn authority(&self) -> PathBuf {
        self.0.join("ca.crt")
    }

    fn authority_key(&self) -> PathBuf {
        self.0.join("ca.key")
    }

    /// A node's files.
    pub fn node(&self, name: &str) -> Place {
        self.place(&format!("node-{name}"))
    }

    /// A client's files.
    pub fn client(&self, name: &str) -> Place {
        self.place(&format!("client-{name}"))
    }

    fn place(&self, stem: &str) -> Place {
        Place { certificate: self.0.join(format!("{stem}.crt")), key: self.0.join(format!("{stem}.key")) }
    }

    /// Makes a certificate for each of `subjects` that has none yet, and the authority if there is none. Returns the new
    /// ones' files.
    ///
    /// # Errors
    /// A name cannot be a file's or stand in a certificate, or a file cannot be read or written.
    pub fn make(&self, subjects: &[Subject], days: u32) -> Result<Vec<Place>, TlsError> {
        for subject in subjects {
            check(subject)?;
        }
        fs::create_dir_all(&self.0).map_err(|source| TlsError::File { file: self.0.clone(), source })?;
        let authority = self.open_or_create()?;
        let mut made = Vec::new();
        for subject in subjects {
            let place = match subject {
                Subject::Node { name, .. } => self.node(name),
                Subject::Client { name } => self.client(name),
            };
            if place.certificate.exists() {
                continue;
            }
            write(&place, &authority.issue(subject, Validity::days(days))?)?;
            made.push(place);
        }
        Ok(made)
    }

    fn open_or_create(&self) -> Result<Authority, TlsError> {
        let place = Place { certificate: self.authority(), key: self.authority_key() };
        if place.certificate.exists() {
            return Authority::open(&place.certificate, &place.key);
        }
        let (authority, pair) = Authority::create("Quoin authority", Validity::days(AUTHORITY_DAYS))?;
        write(&place, &pair)?;
        Ok(authority)
    }

    /// Signs every node's and client's certificate anew, for the key that it has. Each is replaced in one step, so a
    /// node that watches it finds the old one or the new one.
    ///
    /// # Errors
    /// The authority's key is not here, or a file cannot be read or written.
    pub fn renew(&self, days: u32) -> Result<Vec<Found>, TlsError> {
        let authority = Authority::open(&self.authority(), &self.authority_key())?;
        let mut renewed = Vec::new();
        for Found { file, certificate } in self.list()? {
            let key = file.with_extension("key");
            if file == self.authority() || !key.exists() {
                continue;
            }
            let pem = authority.renew(&certificate, &key, Validity::days(days))?;
            replace(&file, pem.as_bytes(), PUBLIC)?;
            renewed.push(found(file)?);
        }
        Ok(renewed)
    }

    /// The certificates of the folder, by name.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn list(&self) -> Result<Vec<Found>, TlsError> {
        let failed = |source| TlsError::File { file: self.0.clone(), source };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|extension| extension == "crt") {
                files.push(file);
            }
        }
        files.sort();
        files.into_iter().map(found).collect()
    }
}

/// The certificate in `file`.
///
/// # Errors
/// There is none.
pub fn found(file: PathBuf) -> Result<Found, TlsError> {
    let chain = files::chain(&file, &files::read(&file)?)?;
    let certificate = chain.first().map(Certificate::of);
    let certificate = certificate.unwrap_or_else(|| Err(TlsError::Certificate("none".into())));
    let certificate = certificate.map_err(|error| TlsError::content(&file, error.to_string()))?;
    Ok(Found { file, certificate })
}

fn check(subject: &Subject) -> Result<(), TlsError> {
    let (Subject::Node { name, .. } | Subject::Client { name }) = subject;
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !name.is_empty() && name.bytes().all(good) && !name.starts_with('.') {
        return Ok(());
    }
    Err(TlsError::Certificate(format!("{name:?} names files: letters, digits, '-', '_' and '.' alone")))
}

/// The key first: a certificate that is there has one.
fn write(place: &Place, pair: &Pair) -> Result<(), TlsError> {
    replace(&place.key, pair.key.as_bytes(), SECRET)?;
    replace(&place.certificate, pair.certificate.as_bytes(), PUBLIC)
}

/// Puts a file with these rights in place of what was there, in one step.
fn replace(file: &Path, bytes: &[u8], mode: u32) -> Result<(), TlsError> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = file.with_file_name(name);
    let written = || -> io::Result<()> {
        // What an earlier attempt left may have other rights.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut new = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        new.write_all(bytes)?;
        new.sync_all()?;
        fs::rename(&temporary, file)?;
        file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    written().map_err(|source| TlsError::File { file: file.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn subjects() -> [Subject; 2] {
        let hosts = vec!["127.0.0.1".into(), "db.example".into()];
        [Subject::Node { name: "a".into(), hosts }, Subject::Client { name: "app".into() }]
    }

    #[test]
    fn what_is_made_says_whom_it_is_for_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::at(dir.path().join("certs"));
        assert_eq!(folder.make(&subjects(), 30).unwrap(), [folder.node("a"), folder.client("app")]);
        let mode = |file: &Path| fs::metadata(file).unwrap().permissions().mode() & 0o777;
        for key in [folder.authority_key(), folder.node("a").key, folder.client("app").key] {
            assert_eq!(mode(&key), 0o600, "{}", key.display());
        }
        let node = found(folder.node("a").certificate).unwrap().certificate;
        assert!(node.is_of("a", "elsewhere:1") && !node.is_of("b", "127.0.0.1:1"));
        assert!(
            node.is_of("", "db.example:1") && node.is_of("", "127.0.0.1:1") && !node.is_of("", "other:1")
        );
        let client = found(folder.client("app").certificate).unwrap().certificate;
        assert_eq!((client.client(), client.common_name.as_str()), (Some("app"), "app"));
        assert!(!client.is_a_nodes() && !client.is_of("app", "127.0.0.1:1"));
        assert_eq!(folder.make(&subjects(), 30).unwrap(), [], "they are there");
    }

    #[test]
    fn a_renewed_certificate_has_its_key_and_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::at(dir.path());
        folder.make(&subjects(), 1).unwrap();
        let (before, key) = (found(folder.node("a").certificate).unwrap(), folder.node("a").key);
        let secret = fs::read(&key).unwrap();
        assert_eq!(folder.renew(30).unwrap().len(), 2);
        let after = found(folder.node("a").certificate).unwrap();
        assert_eq!(fs::read(&key).unwrap(), secret);
        assert_eq!(after.certificate.described(), before.certificate.described());
        assert!(after.certificate.not_after > before.certificate.not_after);
    }

    #[test]
    fn a_name_that_leaves_the_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["../x", "", "a b", ".x", "a/b"] {
            let subject = Subject::Client { name: name.into() };
            assert!(Folder::at(dir.path()).make(&[subject], 1).is_err(), "{name:?}");
        }
    }
}
