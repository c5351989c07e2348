//! Where a table's files come from: a folder, an HTTP server, or a bucket that speaks S3's protocol.
//!
//! A location is part of the log, so every replica reads the same one, and every client can. It never holds
//! secrets: keys to a bucket come from each node's settings or environment.
//!
//! What is deliberately absent: listing, writing, following redirects (a server that may be read could send a node to one
//! that may not), and trust. The manifest says which files there are and what must be in them. What a server says
//! besides its status is not told: whoever names a location might not be who may read it.

use super::allowed;
use super::readers;
use super::settings::TableConfig;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{ClientOptions, GetOptions, GetRange, ObjectStore, RetryConfig};
use quoin_table::manifest::MANIFEST_BYTES_MAX;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server or a folder may give nothing in the middle of a file.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Retries of one request, for short disturbances. After longer ones the next attempt goes on from what was
/// fetched.
const RETRIES: usize = 2;
/// How long the retries of one request may take together.
const RETRY_PATIENCE: Duration = Duration::from_secs(10);

/// Where files come from. Opening it does not connect.
#[derive(Clone, Debug)]
pub enum Source {
    /// A folder on this machine.
    Folder(Folder),
    /// A server or bucket.
    Objects(Objects),
}

/// A folder on this machine.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    /// From where files may be read.
    sources: Vec<String>,
}

/// Objects of a server or bucket.
#[derive(Clone, Debug)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    /// Prefix of their names, perhaps empty.
    prefix: Key,
    /// The location, for messages.
    location: String,
}

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The location is not supported.
    #[error("the location {location:?} {problem}")]
    Location {
        /// The location as given.
        location: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A folder cannot be read.
    #[error("{name}: {source}")]
    Folder {
        /// The file.
        name: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The server or the connection to it failed.
    #[error("fetching {name}: {}", cause(source))]
    Objects {
        /// The object.
        name: String,
        /// The reason.
        #[source]
        source: object_store::Error,
    },
    /// The bytes ended too early.
    #[error("fetching {name}: it ended after {found} of {expected} bytes")]
    Ended {
        /// The object.
        name: String,
        /// Bytes of the object, as the server says.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// The object is longer than it may be.
    #[error("fetching {name}: it has {found} bytes, at most {expected} were expected")]
    TooLong {
        /// The object.
        name: String,
        /// Maximum bytes.
        expected: u64,
        /// Bytes of the object, or those that came.
        found: u64,
    },
}

impl SourceError {
    /// Whether trying again may help although nobody has changed anything.
    pub fn is_transient(&self) -> bool {
        use object_store::Error as E;
        match self {
            Self::Location { .. } | Self::TooLong { .. } => false,
            Self::Ended { .. } => true,
            Self::Folder { source, .. } => !matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
            ),
            Self::Objects { source, .. } => {
                !is_redirect(source)
                    && !matches!(
                        source,
                        E::NotFound { .. }
                            | E::InvalidPath { .. }
                            | E::NotSupported { .. }
                            | E::PermissionDenied { .. }
                            | E::Unauthenticated { .. }
                            | E::UnknownConfigurationKey { .. }
                    )
            }
        }
    }
}

/// How the library tells a status that is no success.
const STATUS: &str = "Server returned non-2xx status code: ";

/// The innermost cause, in one line. The text around it differs between attempts, for example by how long
/// they took, and each new text would be another entry in the log.
fn cause(error: &object_store::Error) -> String {
    let text = innermost(error);
    let line = text.lines().next().unwrap_or_default();
    let Some((_, status)) = line.split_once(STATUS) else { return line.trim_end_matches([' ', ':']).into() };
    let status = status.split(':').next().unwrap_or_default();
    if status.starts_with('3') {
        return format!("{status}: redirects are not followed, name the place itself");
    }
    // A bucket answers in XML, with a code that says more than the HTTP status.
    let code = text.split_once("<Code>").and_then(|(_, rest)| Some(rest.split_once("</Code>")?.0));
    match code.filter(|code| code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric())) {
        Some(code) => format!("{STATUS}{status}: {code}"),
        None => format!("{STATUS}{status}"),
    }
}

fn innermost(error: &object_store::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn is_redirect(error: &object_store::Error) -> bool {
    innermost(error).split_once(STATUS).is_some_and(|(_, status)| status.starts_with('3'))
}

/// The bytes of an object from an offset on.
pub(super) struct Opened {
    /// Bytes of the whole object.
    pub(super) length: u64,
    /// The offset at which `bytes` begin.
    pub(super) from: u64,
    /// The stream.
    pub(super) bytes: BoxStream<'static, Result<Bytes, SourceError>>,
}

impl Source {
    /// Opens `location`.
    ///
    /// # Errors
    /// It is neither an absolute path nor a supported URL, may not be read, does not answer, or the settings for it are
    /// wrong.
    pub async fn open(location: &str, settings: &TableConfig) -> Result<Self, SourceError> {
        let (own, settings) = (location.to_owned(), settings.clone());
        // Links are followed, and names resolved.
        readers::run(location, SILENCE_MAX, move || Self::opened(&own, &settings)).await
    }

    /// All bytes of a file that is no longer than a manifest may be.
    ///
    /// # Errors
    /// It cannot be read, or is longer.
    pub async fn small(&self, name: &str) -> Result<Vec<u8>, SourceError> {
        let opened = self.stream(name, 0).await?;
        let expected = MANIFEST_BYTES_MAX;
        let too_long = |found| SourceError::TooLong { name: self.name(name), expected, found };
        if opened.length > expected {
            return Err(too_long(opened.length));
        }
        let (mut bytes, mut text) = (opened.bytes, Vec::new());
        while let Some(more) = bytes.try_next().await? {
            if (text.len() + more.len()) as u64 > expected {
                return Err(too_long((text.len() + more.len()) as u64));
            }
            text.extend_from_slice(&more);
        }
        Ok(text)
    }

    /// The bytes of a file from `from` on, or from its beginning if the server cannot begin elsewhere.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) async fn stream(&self, name: &str, from: u64) -> Result<Opened, SourceError> {
        match self {
            Self::Folder(Folder { path, sources }) => {
                readers::stream(path.join(name), sources.clone(), from, SILENCE_MAX).await
            }
            Self::Objects(objects) => objects.stream(name, from).await,
        }
    }

    /// The name of a file in messages.
    pub(super) fn name(&self, name: &str) -> String {
        match self {
            Self::Folder(folder) => folder.path.join(name).display().to_string(),
            Self::Objects(objects) => objects.name(name),
        }
    }

    fn opened(location: &str, settings: &TableConfig) -> Result<Self, SourceError> {
        let refuse =
            |problem: &str| SourceError::Location { location: location.into(), problem: problem.into() };
        let folder = |path: &str| {
            let (path, sources) = (PathBuf::from(path), settings.sources.clone());
            path.is_absolute().then_some(Self::Folder(Folder { path, sources }))
        };
        // Invariant: Allowed.
        allowed::location(location, &settings.sources)?;
        let Some((scheme, rest)) = location.split_once("://") else {
            return folder(location).ok_or_else(|| {
                refuse(
                    "is neither an absolute path nor a URL: give a folder that every replica can read, or a \
                     file://, http://, https:// or s3:// URL",
                )
            });
        };
        match scheme {
            "file" => folder(rest).ok_or_else(|| refuse("has no absolute path: write file:///folder")),
            "http" | "https" => {
                let host = rest.split('/').next().unwrap_or_default();
                if host.contains('@') {
                    return Err(refuse(
                        "has a name or password in it, which every client could read: use a server that needs \
                         none",
                    ));
                }
                if host.is_empty() || rest.contains(['?', '#']) {
                    return Err(refuse("is not supported: give http://HOST/FOLDER, without a query"));
                }
                http(location.trim_end_matches('/'))
                    .map_err(|error| refuse(&format!("cannot be used: {error}")))
            }
            "s3" => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                if bucket.is_empty() {
                    return Err(refuse("has no bucket: write s3://BUCKET/PREFIX"));
                }
                s3(bucket, prefix, settings).map_err(|error| refuse(&format!("cannot be used: {error}")))
            }
            _ => Err(refuse("has a scheme that is not supported: file, http, https and s3 are")),
        }
    }
}

impl Objects {
    /// The bytes of an object from `from` on, or from its beginning if the server cannot begin elsewhere.
    ///
    /// # Errors
    /// It cannot be fetched.
    async fn stream(&self, name: &str, from: u64) -> Result<Opened, SourceError> {
        let key = self.prefix.clone().join(name);
        let get =
            |range: Option<GetRange>| self.store.get_opts(&key, GetOptions { range, ..Default::default() });
        let got = match from {
            0 => get(None).await,
            _ => match get(Some(GetRange::Offset(from))).await {
                Err(object_store::Error::NotSupported { .. }) => get(None).await,
                got => got,
            },
        };
        let name = self.name(name);
        let got = got.map_err(|source| SourceError::Objects { name: name.clone(), source })?;
        let (length, from) = (got.meta.size, got.range.start);
        let failed = move |source| SourceError::Objects { name: name.clone(), source };
        Ok(Opened { length, from, bytes: got.into_stream().map_err(failed).boxed() })
    }

    /// The name of an object in messages.
    fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.location)
    }
}

fn http(url: &str) -> Result<Source, object_store::Error> {
    let builder = HttpBuilder::new().with_url(url).with_http_connector(Direct).with_retry(retries());
    let location = url.into();
    Ok(Source::Objects(Objects { store: Arc::new(builder.build()?), prefix: Key::default(), location }))
}

/// What the settings leave empty comes from the environment (`AWS_*`), then from the machine's role.
fn s3(bucket: &str, prefix: &str, settings: &TableConfig) -> Result<Source, object_store::Error> {
    let mut builder = AmazonS3Builder::from_env()
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_http_connector(Direct)
        .with_retry(retries())
        .with_bucket_name(bucket);
    if !settings.s3_endpoint.is_empty() {
        builder = builder.with_endpoint(&settings.s3_endpoint);
    }
    if !settings.s3_region.is_empty() {
        builder = builder.with_region(&settings.s3_region);
    }
    if !settings.s3_access_key_id.is_empty() {
        builder = builder
            .with_access_key_id(&settings.s3_access_key_id)
            .with_secret_access_key(settings.s3_secret_access_key.reveal());
    }
    let prefix = Key::parse(prefix)?;
    let location = format!("s3://{bucket}/{prefix}");
    Ok(Source::Objects(Objects { store: Arc::new(builder.build()?), prefix, location }))
}

/// Makes clients that go where they are sent and nowhere else.
#[derive(Debug)]
struct Direct;

impl HttpConnector for Direct {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        // The TLS library must be given its cryptography once per process.
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            // An error: it was given one already.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let client = reqwest::Client::builder()
            .user_agent(concat!("quoin/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .http1_only()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(SILENCE_MAX)
            .build();
        let failed = |error| object_store::Error::Generic { store: "HTTP", source: Box::new(error) };
        Ok(HttpClient::new(client.map_err(failed)?))
    }
}

fn retries() -> RetryConfig {
    RetryConfig { max_retries: RETRIES, retry_timeout: RETRY_PATIENCE, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anywhere() -> TableConfig {
        TableConfig { sources: vec![allowed::ANYWHERE.into()], ..TableConfig::default() }
    }

    #[test]
    fn unsupported_locations_are_refused_with_what_to_write() {
        let refused =
            |location: &str| Source::opened(location, &anywhere()).map(|_| ()).unwrap_err().to_string();
        assert!(refused("relative/folder").contains("is neither an absolute path nor a URL"));
        assert!(refused("file://relative").contains("write file:///folder"));
        assert!(refused("ftp://host/a").contains("file, http, https and s3 are"));
        assert!(refused("http://").contains("give http://HOST/FOLDER"));
        assert!(refused("http://host/a?token=1").contains("without a query"));
        assert!(refused("https://name:password@host/a").contains("every client could read"));
        assert!(refused("s3:///prefix").contains("write s3://BUCKET/PREFIX"));
        assert!(refused("s3://bucket/a//b").contains("cannot be used"));
    }

    #[test]
    fn folders_urls_and_buckets_are_opened() {
        let settings = TableConfig {
            sources: vec![allowed::ANYWHERE.into()],
            s3_endpoint: "http://127.0.0.1:9000".into(),
            s3_region: "eu-central-1".into(),
            s3_access_key_id: "id".into(),
            s3_secret_access_key: "secret".to_string().into(),
            ..Default::default()
        };
        let open = |location: &str| Source::opened(location, &settings).unwrap();
        assert!(
            matches!(open("/a/b"), Source::Folder(folder) if folder.path == std::path::Path::new("/a/b"))
        );
        assert!(
            matches!(open("file:///a/b"), Source::Folder(folder) if folder.path == std::path::Path::new("/a/b"))
        );
        assert!(
            matches!(open("https://host/a/b/"), Source::Objects(objects) if objects.prefix.as_ref().is_empty())
        );
        assert!(
            matches!(open("s3://bucket/a/b/"), Source::Objects(objects) if objects.name("x") == "s3://bucket/a/b/x")
        );
        assert!(
            matches!(open("s3://bucket"), Source::Objects(objects) if objects.prefix.as_ref().is_empty())
        );
        assert!(!format!("{settings:?}").contains("secret\""), "{settings:?}");
    }

    /// A server that answers each request on it with `answer`.
    async fn server(answer: String) -> std::net::SocketAddr {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = connection.read(&mut request).await;
                let _ = connection.write_all(answer.as_bytes()).await;
            }
        });
        address
    }

    fn answer(head: &str, body: &str) -> String {
        format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    /// A server that may be read sent the node to one that may not, whose answer was then told to whoever published.
    #[tokio::test]
    async fn redirects_are_not_followed_and_answers_not_told() {
        let secret = server(answer("200 OK", "secret")).await;
        let redirect = answer(&format!("302 Found\r\nlocation: http://{secret}/manifest.json"), "");
        for (head, expected) in [
            (redirect, "302 Found: redirects are not followed"),
            (answer("404 Not Found", "secret\n"), "404 Not Found"),
            (answer("403 Forbidden", "<Code>AccessDenied</Code>secret"), "403 Forbidden: AccessDenied"),
        ] {
            let location = format!("http://{}/a", server(head).await);
            let source = Source::open(&location, &anywhere()).await.unwrap();
            let error = source.small("manifest.json").await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(expected) && !text.contains("secret"), "{text}");
            assert!(!error.is_transient(), "{text}");
        }
    }
}
