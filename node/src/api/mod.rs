//! The faces' adapters: from the wire to commands and back. `etcd/` is etcd's v3 API, `kv/` is `quoin.kv.v1`, `route/` is
//! `quoin.route.v1`;
//! `http.rs` is for operators; `error.rs` is the only place where errors become statuses.
//!
//! An adapter decodes, validates, and turns requests into [`quoin_core`]'s commands and queries; nothing else. What a
//! command means is core's business, how it is replicated the engine's.
//!
//! **Bounds.** Streams per connection and bytes of a request and of an answer are settings (`limits.*`). A connection that
//! does not speak its port's protocol is closed and counted.

mod changes;
mod clock;
mod commands;
mod error;
mod etcd;
mod http;
mod inbound;
mod kv;
mod ledger;
mod preface;
mod resp;
mod route;
mod table;

/// What the fuzz targets drive.
#[cfg(feature = "fuzzing")]
pub mod fuzz {
    pub use super::resp::exercise::requests;
}

use crate::engine::Engine;
use preface::{Checked, CheckedListener, Protocol};
use quoin_proto::etcdserverpb::auth_server::AuthServer;
use quoin_proto::etcdserverpb::cluster_server::ClusterServer;
use quoin_proto::etcdserverpb::kv_server::KvServer;
use quoin_proto::etcdserverpb::lease_server::LeaseServer;
use quoin_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use quoin_proto::etcdserverpb::watch_server::WatchServer;
use quoin_proto::quoin::kv::v1::kv_server::KvServer as QuoinKvServer;
use quoin_proto::quoin::ledger::v1::ledger_server::LedgerServer;
use quoin_proto::quoin::route::encoded::route_server::RouteServer;
use quoin_proto::quoin::table::v1::table_server::TableServer;
use quoin_proto::v3electionpb::election_server::ElectionServer;
use quoin_proto::v3lockpb::lock_server::LockServer;
use std::io;
use std::net::TcpListener;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::server::HealthReporter;

/// What gRPC adds to the largest request, as in etcd.
const REQUEST_OVERHEAD_BYTES: usize = 512 << 10;
/// A batch or a piece of a stream may hold this many of the largest requests.
const REQUESTS_PER_BATCH: usize = 16;
/// Bytes that a client may send ahead on one stream and on a connection.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// A silent connection is asked whether it is still there, and closed if it does not answer in time.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Clients that end many watches and calls at once reset as many streams, which is no attack up to here.
const RESETS_PENDING_MAX: usize = 1024;
/// How long calls under way may take when the node stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How often health is looked at.
const HEALTH_PERIOD: Duration = Duration::from_millis(250);

/// Tells long streams that the node is stopping.
#[derive(Clone)]
pub(crate) struct Life(watch::Receiver<bool>);

impl Life {
    /// Returns when the node stops.
    pub(crate) async fn ended(&self) {
        // An error means that the servers are gone: that is an end too.
        let _ = self.0.clone().wait_for(|ended| *ended).await;
    }
}

/// The servers of a node's client ports.
pub struct Servers {
    stop: watch::Sender<bool>,
    grpc: JoinHandle<Result<(), tonic::transport::Error>>,
    http: JoinHandle<io::Result<()>>,
    redis: JoinHandle<()>,
    health: JoinHandle<()>,
}

/// Serves gRPC clients on one listener, operators' pages on the second, and clients of Redis on the third. Call within a runtime.
///
/// # Errors
/// A listener cannot be used, or the reflection service not be made.
pub fn serve(
    engine: Engine,
    clients: TcpListener,
    operators: TcpListener,
    redis: TcpListener,
) -> io::Result<Servers> {
    let (stop, stopping) = watch::channel(false);
    let life = Life(stopping);
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let streams_max = engine.limits().streams_per_connection_max;
    let book = ledger::Book::start(engine.clone());
    let routes = routes(&engine, &book, &life)?.add_service(health_service);
    let garbage = engine.metrics().client_garbage.clone();
    let incoming = TcpIncoming::from(into_tokio(clients)?).with_nodelay(Some(true));
    let connections = incoming
        .map(move |accepted| accepted.map(|stream| Checked::new(stream, Protocol::Http2, garbage.clone())));
    let http = http::routes(engine.clone()).merge(ledger::http_routes(book, life.clone()));
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(streams_max)
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .http2_max_pending_accept_reset_streams(Some(RESETS_PENDING_MAX))
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, async move { life.ended().await });
    let operators = CheckedListener::new(into_tokio(operators)?, engine.metrics().http_garbage.clone());
    let pages = axum::serve(operators, http);
    let redis = resp::serve(engine.clone(), into_tokio(redis)?, Life(stop.subscribe()));
    Ok(Servers {
        stop,
        grpc: tokio::spawn(server),
        http: tokio::spawn(pages.into_future()),
        redis: tokio::spawn(redis),
        health: tokio::spawn(report_health(engine, reporter)),
    })
}

fn into_tokio(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

impl Servers {
    /// Takes no more calls, ends streams, and waits for calls under way, up to two seconds.
    pub async fn stop(self) {
        self.health.abort();
        self.http.abort();
        self.redis.abort();
        self.stop.send_replace(true);
        match tokio::time::timeout(STOP_PATIENCE, self.grpc).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the gRPC server ended with an error"),
            Ok(Err(error)) => tracing::error!(%error, "the gRPC server panicked"),
            Err(_) => tracing::warn!("calls were under way when the node stopped; they are cut off"),
        }
    }
}

/// All services, except health.
fn routes(engine: &Engine, book: &ledger::Book, life: &Life) -> io::Result<Routes> {
    let engine = || engine.clone();
    let request_max = engine().limits().request_bytes_max + REQUEST_OVERHEAD_BYTES;
    let batch_max = request_max * REQUESTS_PER_BATCH;
    let mut routes = Routes::builder();
    routes
        .add_service(KvServer::new(etcd::Kv::new(engine())).max_decoding_message_size(request_max))
        .add_service(WatchServer::new(etcd::Watch::new(engine(), life.clone())))
        .add_service(LockServer::new(etcd::Lock::new(engine())))
        .add_service(ElectionServer::new(etcd::Election::new(engine(), life.clone())))
        .add_service(LeaseServer::new(etcd::Lease::new(engine(), life.clone())))
        .add_service(ClusterServer::new(etcd::Cluster::new(engine())))
        .add_service(MaintenanceServer::new(etcd::Maintenance::new(engine())))
        .add_service(AuthServer::new(etcd::Auth))
        .add_service(
            QuoinKvServer::new(kv::Kv::new(engine(), life.clone())).max_decoding_message_size(batch_max),
        )
        .add_service(
            RouteServer::new(route::Route::new(engine(), life.clone())).max_decoding_message_size(batch_max),
        )
        .add_service(
            LedgerServer::new(ledger::Ledger::new(book.clone(), life.clone()))
                .max_decoding_message_size(batch_max),
        )
        .add_service(
            TableServer::new(table::Table::new(engine(), life.clone())).max_decoding_message_size(batch_max),
        )
        .add_service(reflection().build_v1().map_err(io::Error::other)?)
        .add_service(reflection().build_v1alpha().map_err(io::Error::other)?);
    Ok(routes.routes())
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(quoin_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// Serving means: this node knows a leader, so that it can answer everything.
async fn report_health(engine: Engine, reporter: HealthReporter) {
    let mut reported = None;
    let mut period = tokio::time::interval(HEALTH_PERIOD);
    loop {
        period.tick().await;
        let serving = engine.raft().leader != 0;
        if reported != Some(serving) {
            reported = Some(serving);
            let status = if serving {
                tonic_health::ServingStatus::Serving
            } else {
                tonic_health::ServingStatus::NotServing
            };
            reporter.set_service_status("", status).await;
        }
    }
}
