//! Connects gRPC channels over TLS: what they dial with.

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Dials one address, whose certificate must cover its host.
#[derive(Clone)]
pub struct Connector {
    /// How to speak TLS.
    pub config: Arc<ClientConfig>,
    /// Where, `HOST:PORT`.
    pub address: String,
}

/// The name that the certificate at `address`, `HOST:PORT`, must cover.
///
/// # Errors
/// The address has no host.
pub fn server_name(address: &str) -> io::Result<ServerName<'static>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{address:?} has no host")))
}

impl tower_service::Service<http::Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let Self { config, address } = self.clone();
        Box::pin(async move {
            let name = server_name(&address)?;
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(TlsConnector::from(config).connect(name, stream).await?))
        })
    }
}
