//! The client ports of other replicas, which this one asks on behalf of its clients: over TLS where they speak it, with this node's
//! own certificate.

use quoin_tls::{Connector, Keys};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// How a replica reaches others' client ports.
#[derive(Clone, Default)]
pub(crate) struct Neighbours(Option<Arc<Keys>>);

impl Neighbours {
    pub(crate) fn new(keys: Option<Arc<Keys>>) -> Self {
        Self(keys)
    }

    /// A channel to `url`; connecting takes at most `connect`, and each answer `answer`.
    ///
    /// # Errors
    /// Nobody answers there, or not with a certificate that is trusted.
    pub(crate) async fn dial(&self, url: &str, connect: Duration, answer: Duration) -> io::Result<Channel> {
        let timed = |endpoint: Endpoint| endpoint.connect_timeout(connect).timeout(answer);
        let Some(address) = url.strip_prefix("https://") else {
            let endpoint = Endpoint::from_shared(url.to_owned()).map_err(io::Error::other)?;
            return timed(endpoint).connect().await.map_err(io::Error::other);
        };
        let Some(keys) = &self.0 else {
            return Err(io::Error::other("it speaks TLS, and this node has no certificates (tls.cert_file)"));
        };
        let address = address.trim_end_matches('/').to_owned();
        // The connector does what the scheme says.
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(io::Error::other)?;
        let connector = Connector { config: keys.caller(), address };
        timed(endpoint).connect_with_connector(connector).await.map_err(io::Error::other)
    }
}
