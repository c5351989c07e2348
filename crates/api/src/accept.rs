//! How connections come in, on every port: with TLS, those whose handshake is done; else all of them. Those that come by a
//! socket of the file system (`unix_socket.rs`) never speak TLS.
//!
//! A port speaks TLS or it does not. Who comes the other way is told so, as far as that can be said
//! (`wrong_port.rs`).
//!
//! **Invariant: Bounded.** At most [`HANDSHAKES_MAX`] handshakes of a port are under way; further connections wait in
//! the kernel until one ends, at the latest after [`HANDSHAKE_PATIENCE`].

use crate::auth::CommonName;
use crate::unix_socket::UnixSocket;
use crate::wrong_port::Port;
use prometheus::IntCounter;
use quoin_tls::{Certificate, Keys, Protocol};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Maximum handshakes of a port that are under way.
const HANDSHAKES_MAX: usize = if cfg!(test) { 4 } else { 1024 };
/// How long a client may take for its handshake.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// How long accepting pauses after it failed: most likely the process is out of descriptors until a client leaves.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The first byte of a handshake of TLS.
const HANDSHAKE: u8 = 0x16;
/// Bytes by which another protocol is known.
const FIRST_BYTES: usize = 64;

/// A connection, with or without TLS.
pub(crate) enum Stream {
    Plain(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Who has connected.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    Tcp(SocketAddr),
    /// By the socket with this path; as Redis shows it.
    Unix(Arc<str>),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{path}:0"),
        }
    }
}

impl Stream {
    /// Whom the client's certificate names, if it has one. A node's names nobody: it speaks for its clients with their
    /// tokens.
    pub(crate) fn common_name(&self) -> Option<CommonName> {
        let Self::Tls(stream) = self else { return None };
        let (_, connection) = stream.get_ref();
        let certificate = Certificate::of(connection.peer_certificates()?.first()?).ok()?;
        let named = certificate.node().is_none() && !certificate.common_name.is_empty();
        named.then(|| CommonName(certificate.common_name.as_str().into()))
    }
}

/// A port's connections.
pub(crate) struct Listener {
    listener: TcpListener,
    unix: Option<UnixSocket>,
    port: Port,
    keys: Option<Arc<Keys>>,
    handshakes: JoinSet<Option<(Stream, Peer)>>,
    /// Handshakes that failed, and clients without TLS.
    failed: IntCounter,
}

impl Listener {
    /// The connections of `listener`; with `keys`, over TLS alone. `failed` counts those that did not come about.
    pub(crate) fn new(
        listener: TcpListener,
        port: Port,
        keys: Option<Arc<Keys>>,
        failed: IntCounter,
    ) -> Self {
        Self { listener, unix: None, port, keys, handshakes: JoinSet::new(), failed }
    }

    /// The same port at a path too.
    pub(crate) fn and_at(self, unix: Option<UnixSocket>) -> Self {
        Self { unix, ..self }
    }

    /// The next connection, ready for its protocol.
    pub(crate) async fn accept(&mut self) -> (Stream, Peer) {
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if self.handshakes.len() < HANDSHAKES_MAX => match accepted {
                    Ok((stream, address)) => {
                        // If this fails the connection is only slower.
                        let _ = stream.set_nodelay(true);
                        let Some(keys) = &self.keys else { return (Stream::Plain(stream), Peer::Tcp(address)) };
                        let acceptor = TlsAcceptor::from(keys.server(self.port.protocol()));
                        self.handshakes.spawn(shaken(acceptor, stream, address, self.port, self.failed.clone()));
                    }
                    Err(error) => self.pause(&error).await,
                },
                accepted = next(self.unix.as_ref()) => match accepted {
                    Ok((stream, path)) => return (Stream::Unix(stream), Peer::Unix(path)),
                    Err(error) => self.pause(&error).await,
                },
                Some(shaken) = self.handshakes.join_next() => {
                    if let Ok(Some(ready)) = shaken {
                        return ready;
                    }
                }
            }
        }
    }

    async fn pause(&self, error: &io::Error) {
        tracing::warn!(%error, port = ?self.port, "accepting a connection failed");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// The next connection by the socket, if there is one.
async fn next(unix: Option<&UnixSocket>) -> io::Result<(UnixStream, Arc<str>)> {
    match unix {
        Some(unix) => unix.accept().await,
        None => std::future::pending().await,
    }
}

impl Port {
    fn protocol(self) -> Protocol {
        match self {
            Self::Client => Protocol::Client,
            Self::Http => Protocol::Http,
            Self::Resp => Protocol::Resp,
        }
    }
}

/// The connection once its handshake is done; `None` if that came to nothing.
async fn shaken(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
    port: Port,
    failed: IntCounter,
) -> Option<(Stream, Peer)> {
    let outcome = match timeout(HANDSHAKE_PATIENCE, handshake(acceptor, stream, port)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no handshake within {HANDSHAKE_PATIENCE:?}"),
        )),
    };
    match outcome {
        Ok(stream) => Some((Stream::Tls(Box::new(stream)), Peer::Tcp(address))),
        Err(error) => {
            failed.inc();
            tracing::debug!(%error, %address, ?port, "a TLS handshake failed");
            None
        }
    }
}

async fn handshake(
    acceptor: TlsAcceptor,
    mut stream: TcpStream,
    port: Port,
) -> io::Result<TlsStream<TcpStream>> {
    let mut first = [0];
    if stream.peek(&mut first).await? > 0 && first[0] != HANDSHAKE {
        let mut begun = [0; FIRST_BYTES];
        let length = stream.read(&mut begun).await?;
        port.refuse_plain(&stream, &begun[..length]);
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a client without TLS"));
    }
    acceptor.accept(stream).await
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quoin_tls::{
        Authority, ClientFiles, Clients, Files, Folder, Options, Subject, Validity, Version, client_config,
    };
    use std::time::SystemTime;
    use tokio::io::AsyncWriteExt;
    use tokio_rustls::TlsConnector;

    struct Server {
        folder: tempfile::TempDir,
        address: SocketAddr,
        failed: IntCounter,
    }

    /// A port that answers every connection with `hello`.
    async fn started(port: Port, clients: Clients) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let certificates = Folder::at(folder.path());
        let hosts = vec!["127.0.0.1".into()];
        let node = Subject::Node { name: "n".into(), hosts };
        certificates.make(&[node, Subject::Client { name: "c".into() }], 1).unwrap();
        let place = certificates.node("n");
        let authority = Some(certificates.authority());
        let files = Files { certificate: place.certificate, key: place.key, authority };
        let keys = Keys::load(Options { files, clients, oldest: Version::V12 }).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let failed = IntCounter::new("failed", "failed").unwrap();
        let mut listener = Listener::new(listener, port, Some(keys), failed.clone());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await;
                stream.write_all(b"hello").await.unwrap();
                let _ = stream.shutdown().await;
            }
        });
        Server { folder, address, failed }
    }

    impl Server {
        /// What a client of TLS is answered, with or without a certificate.
        async fn asked(&self, with_certificate: bool, protocols: &[&str]) -> io::Result<String> {
            let certificates = Folder::at(self.folder.path());
            let own = with_certificate.then(|| certificates.client("c"));
            let files = ClientFiles {
                authority: Some(certificates.authority()),
                certificate: own.as_ref().map(|own| own.certificate.clone()),
                key: own.map(|own| own.key),
            };
            let connector = TlsConnector::from(client_config(&files, protocols).unwrap());
            let stream = TcpStream::connect(self.address).await?;
            let mut stream = connector.connect(self.address.ip().into(), stream).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok(answer)
        }
    }

    /// Handshakes that were begun and never ended would have kept everybody else out.
    #[tokio::test]
    async fn handshakes_that_never_end_give_way() {
        let server = started(Port::Resp, Clients::Off).await;
        let mut idle = Vec::new();
        for _ in 0..HANDSHAKES_MAX {
            idle.push(TcpStream::connect(server.address).await.unwrap());
        }
        let asked = timeout(60 * HANDSHAKE_PATIENCE, server.asked(false, &[])).await;
        assert_eq!(asked.expect("it is served").unwrap(), "hello");
        assert!(server.failed.get() > 0, "some were given up");
    }

    #[tokio::test]
    async fn a_certificate_is_wanted_as_the_setting_says() {
        for (clients, without, with) in
            [(Clients::Off, true, true), (Clients::Optional, true, true), (Clients::Required, false, true)]
        {
            let server = started(Port::Http, clients).await;
            assert_eq!(server.asked(false, &[]).await.is_ok(), without, "{clients:?}");
            assert_eq!(server.asked(true, &[]).await.is_ok(), with, "{clients:?}");
        }
    }

    #[tokio::test]
    async fn a_certificate_that_ran_out_or_is_of_others_is_not_taken() {
        for clients in [Clients::Optional, Clients::Required] {
            let (server, others) = (started(Port::Http, clients).await, started(Port::Http, clients).await);
            let (ours, theirs) = (Folder::at(server.folder.path()), Folder::at(others.folder.path()));
            let place = ours.client("c");
            let old = quoin_tls::found(place.certificate.clone()).unwrap().certificate;
            let authority = Authority::open(&ours.authority(), &server.folder.path().join("ca.key")).unwrap();
            let now = SystemTime::now();
            let validity = Validity { from: now - 2 * HANDSHAKE_PATIENCE, until: now - HANDSHAKE_PATIENCE };
            let expired = authority.renew(&old, &place.key, validity).unwrap();
            std::fs::write(&place.certificate, expired).unwrap();
            assert!(server.asked(true, &[]).await.is_err(), "it ran out");
            for (from, to) in
                [(theirs.client("c").certificate, &place.certificate), (theirs.client("c").key, &place.key)]
            {
                std::fs::copy(from, to).unwrap();
            }
            assert!(server.asked(true, &[]).await.is_err(), "it is of others");
        }
    }

    #[tokio::test]
    async fn a_protocol_of_another_port_is_refused_in_the_handshake() {
        let server = started(Port::Http, Clients::Off).await;
        assert!(server.asked(false, &["h2"]).await.is_err());
        assert_eq!(server.asked(false, &["http/1.1"]).await.unwrap(), "hello");
    }

    #[tokio::test]
    async fn a_client_without_tls_is_told_so_in_its_protocol() {
        for (port, said, words) in [
            (Port::Resp, "PING\r\n", "-ERR this port speaks TLS alone"),
            (Port::Http, "GET / HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ] {
            let server = started(port, Clients::Off).await;
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(said.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.contains(words), "{answer}");
            assert_eq!(server.failed.get(), 1);
        }
    }
}
