//! Channels to replicas, and which replica leads.

use super::credentials::{Channel, Signed};
use super::tls::Place;
use anyhow::{Context, Result};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quoin_proto::etcdserverpb::watch_client::WatchClient;
use quoin_tls::Connector;
use std::time::Duration;
use tonic::Streaming;
use tonic::transport::Endpoint;

/// Maximum bytes of an answer that clients accept, as in etcd's clients: servers bound their answers
/// (`limits.response_bytes_max`, in bytes of keys and values). tonic's default is 4 MiB.
pub const ANSWER_BYTES_MAX: usize = i32::MAX as usize;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// HTTP/2's default windows of 64 KiB would limit streams and large answers.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Pause between two rounds of [`find_leader`].
const LEADER_POLL: Duration = Duration::from_millis(10);

/// Connects to a replica's client port at `HOST:PORT`, or `http://` or `https://` before it; see [`super::Tls`].
///
/// `timeout` bounds how long every request waits for its answer to begin; `None` sets no bound.
///
/// # Errors
/// The address is malformed, or no server accepts the connection within three seconds.
pub async fn dial(address: &str, timeout: Option<Duration>) -> Result<Channel> {
    let Place { address, tls } = Place::of(address, &["h2"])?;
    let mut endpoint = Endpoint::from_shared(format!("http://{address}"))
        .with_context(|| format!("{address:?} is not HOST:PORT"))?
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    if let Some(timeout) = timeout {
        endpoint = endpoint.timeout(timeout);
    }
    let connected = match tls {
        None => endpoint.connect().await,
        Some(config) => {
            let origin = format!("https://{address}").parse()?;
            let connector = Connector { config, address: address.to_owned() };
            endpoint.origin(origin).connect_with_connector(connector).await
        }
    };
    let channel = connected.map_err(|error| {
        let error = anyhow::Error::new(error);
        // What a TLS library says of a first answer that is no handshake.
        let no_tls = error.chain().any(|cause| cause.to_string().contains("InvalidContentType"));
        if no_tls {
            return anyhow::anyhow!("the server at {address} does not speak TLS: leave https:// out");
        }
        error.context(format!("connecting to {address}; is a node running there?"))
    })?;
    Ok(Channel::new(channel, Signed::given()))
}

/// Opens `count` connections, distributed round-robin over `endpoints`.
///
/// # Errors
/// See [`dial`].
pub async fn connect(endpoints: &[String], count: usize) -> Result<Vec<Channel>> {
    let mut channels = Vec::with_capacity(count);
    for number in 0..count {
        channels.push(dial(&endpoints[number % endpoints.len()], None).await?);
    }
    Ok(channels)
}

/// Whether the replica behind `channel` believes that it leads.
///
/// # Errors
/// It does not answer.
pub async fn leads(channel: Channel) -> Result<bool> {
    let status = MaintenanceClient::new(channel).status(etcd::StatusRequest {}).await?.into_inner();
    Ok(status.leader != 0 && status.header.is_some_and(|header| header.member_id == status.leader))
}

/// Waits until one of `endpoints` leads; returns its index and a channel to it. Callers bound the wait.
pub async fn find_leader(endpoints: &[String]) -> (usize, Channel) {
    loop {
        for (index, endpoint) in endpoints.iter().enumerate() {
            let Ok(channel) = dial(endpoint, None).await else { continue };
            if leads(channel.clone()).await.unwrap_or(false) {
                return (index, channel);
            }
        }
        tokio::time::sleep(LEADER_POLL).await;
    }
}

/// Opens an etcd watch. Its request stream stays open, because a server ends the watch when the requests end.
///
/// # Errors
/// The server does not answer, or refuses the call.
pub async fn watch(
    channel: Channel,
    create: etcd::WatchCreateRequest,
) -> Result<Streaming<etcd::WatchResponse>> {
    let request =
        etcd::WatchRequest { request_union: Some(etcd::watch_request::RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::StreamExt::chain(tokio_stream::iter([request]), tokio_stream::pending());
    let mut client = WatchClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    Ok(client.watch(requests).await?.into_inner())
}
