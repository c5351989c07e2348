//! The adapters: from the wire to commands and queries, and back.
//!
//! | face | gRPC | other wires |
//! |---|---|---|
//! | kv | `grpc/etcd/` (etcd's v3 API), `grpc/kv/` (`quoin.kv.v1`) | `resp/` (Redis's protocol), `gateway/` (etcd's API as JSON) |
//! | table | `grpc/table/` (`quoin.table.v1`) | `resp/` (`TABLE.*`) |
//! | ledger | `grpc/ledger/` (`quoin.ledger.v1`) | `http/ledger/` (JSON) |
//! | route | `grpc/route/` (`quoin.route.v1`) | `http/route/` (JSON, CSV) |
//!
//! Shared by them: `commands.rs` (the way through the engine), `consistency.rs` (how fresh a read is),
//! `page.rs` (page sizes), `ledger/` (what its two wires share), `error/` (one type, rendered once per wire).
//! `accept.rs` takes connections in, with or without TLS; `neighbours.rs` dials other replicas. `budget.rs` bounds the bytes of all requests together, `stall.rs` gives up those whose rest does not come.
//! `unix_socket.rs` is a port at a path; `preface.rs` turns away connections that do not speak their port's protocol, and `wrong_port.rs` tells them so.
//! `http/mod.rs` also has the pages for operators. `auth/` judges who may do what, for all of them, and `audit.rs` records it.
//!
//! An adapter decodes, validates, and turns requests into [`quoin_core`]'s commands and queries; nothing
//! else. What a command means is core's business, how it is replicated the engine's.
//!
//! **Invariant: Once (encoding).** An adapter encodes a client's command; those bytes go into the log, to
//! followers and into apply.
//!
//! **Invariant: Bounded.** Streams per connection, and bytes of a request and of an answer, are settings
//! (`limits.*`); each queue of an adapter has its bound beside it.

mod accept;
mod answers;
mod audit;
mod auth;
mod budget;
mod changes;
mod commands;
mod consistency;
mod error;
mod gateway;
mod grpc;
mod http;
mod ledger;
mod life;
mod neighbours;
mod page;
mod preface;
mod resp;
mod stall;
#[cfg(test)]
mod testing;
mod time;
mod unix_socket;
mod wrong_port;

/// What the fuzz targets drive.
#[cfg(feature = "fuzzing")]
pub mod fuzz {
    pub use super::resp::exercise::requests;
}

use accept::Listener;
use auth::{Gate, Guard, guard_pages};
use budget::{Budget, Charging};
use life::Life;
use neighbours::Neighbours;
use preface::CheckedListener;
use prometheus::IntCounter;
use quoin_engine::Engine;
use quoin_library::Library;
use quoin_tls::Keys;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::server::HealthReporter;
use wrong_port::Port;

pub use audit::{Audit, ChosenKeys};
pub use auth::Settings as AuthSettings;
pub use unix_socket::UnixSocket;

/// HTTP/2 flow-control windows: bytes that a client may send ahead on a stream and on a connection.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// A silent connection is pinged this often, and closed if it does not answer in time.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How often the kernel asks within that time.
const KEEP_ALIVE_QUESTIONS: u32 = 4;
/// Maximum streams that a client has reset and the server has not yet noticed. Ending many watches at once is
/// no attack.
const RESETS_PENDING_MAX: usize = 1024;
/// How long calls in flight may take when the node stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How often health is checked.
const HEALTH_PERIOD: Duration = Duration::from_millis(250);

/// The servers of a node's client ports.
pub struct Servers {
    stop: watch::Sender<bool>,
    grpc: JoinHandle<Result<(), tonic::transport::Error>>,
    http: JoinHandle<()>,
    redis: JoinHandle<()>,
    health: JoinHandle<()>,
}

/// Where clients come in.
pub struct Ports {
    /// gRPC and etcd's JSON.
    pub clients: TcpListener,
    /// HTTP: the ledger, the rules and the operators' pages.
    pub operators: TcpListener,
    /// Redis's protocol.
    pub redis: TcpListener,
    /// With these, all of them speak TLS alone.
    pub keys: Option<Arc<Keys>>,
    /// The same at paths of the file system, without TLS.
    pub paths: Paths,
    /// How users log in.
    pub auth: AuthSettings,
    /// What is recorded of what clients do; `None`: nothing.
    pub audit: Option<Audit>,
}

/// Where clients of the same machine come in. Each is optional.
#[derive(Default)]
pub struct Paths {
    /// As [`Ports::clients`].
    pub clients: Option<UnixSocket>,
    /// As [`Ports::operators`].
    pub operators: Option<UnixSocket>,
    /// As [`Ports::redis`].
    pub redis: Option<UnixSocket>,
}

/// Serves clients. Call within a runtime.
///
/// # Errors
/// A listener cannot be used, or the reflection service cannot be built.
pub fn serve(engine: Engine, library: Arc<Library>, ports: Ports) -> io::Result<Servers> {
    let Ports { clients, operators, redis, keys, paths, auth, audit } = ports;
    let (stop, stopping) = watch::channel(false);
    let life = Life(stopping);
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let streams_max = engine.limits().streams_per_connection_max;
    let budget = Budget::new(&engine);
    let book = ledger::Book::start(engine.clone());
    let neighbours = Neighbours::new(keys.clone());
    let gate = Gate::new(engine.clone(), auth, audit.map(Arc::new));
    let services =
        grpc::routes(&engine, &gate, &library, &book, &life, &neighbours)?.add_service(health_service);
    let accepting = |listener: TcpListener, port, path| {
        let failed = engine.metrics().tls_failed.clone();
        Ok::<_, io::Error>(Listener::new(into_tokio(listener)?, port, keys.clone(), failed).and_at(path))
    };
    let checked = |listener: TcpListener, port, path, refused: &IntCounter| {
        Ok::<_, io::Error>(CheckedListener::new(accepting(listener, port, path)?, port, refused.clone()))
    };
    let clients = checked(clients, Port::Client, paths.clients, &engine.metrics().client_garbage)?;
    let operators = checked(operators, Port::Http, paths.operators, &engine.metrics().http_garbage)?;
    let redis = accepting(redis, Port::Resp, paths.redis)?;
    let connections = futures_util::stream::unfold(clients, |mut clients| async {
        let (stream, _) = clients.accept().await;
        Some((Ok::<_, io::Error>(stream), clients))
    });
    let pages = http::routes(engine.clone(), Arc::clone(&library));
    let message_bytes_max = grpc::message_bytes_max(&engine);
    // One router for both versions of HTTP: a gRPC call passes no more of them than on a port of its own.
    let beside = pages.clone().merge(gateway::pages::routes(engine.clone()));
    let gateway = gateway::routes(&engine, services.clone(), budget.clone());
    let routes = services.into_axum_router().merge(beside).fallback_service(gateway);
    let route = grpc::route::Route::new(engine.clone(), life.clone());
    let http = pages.merge(http::charged(budget.clone(), http::api(book, route, life.clone())));
    let http = guard_pages(Arc::clone(&gate), http);
    let server = Server::builder()
        .accept_http1(true)
        .layer(Guard(Arc::clone(&gate)))
        .layer(Charging { budget: budget.clone(), message_bytes_max })
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(streams_max)
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .http2_max_pending_accept_reset_streams(Some(RESETS_PENDING_MAX))
        .add_routes(Routes::from(routes))
        .serve_with_incoming_shutdown(connections, async move { life.ended().await });
    let operators = http::serve(operators, http, Life(stop.subscribe()));
    let redis = resp::serve(engine.clone(), gate, library, budget, redis, Life(stop.subscribe()));
    Ok(Servers {
        stop,
        grpc: tokio::spawn(server),
        http: tokio::spawn(operators),
        redis: tokio::spawn(redis),
        health: tokio::spawn(report_health(engine, reporter)),
    })
}

/// The kernel asks after silent connections: one whose client has vanished without a word would keep its place, and
/// what it is charged, for ever.
fn into_tokio(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    use rustix::net::sockopt;
    // Connections inherit these.
    sockopt::set_socket_keepalive(&listener, true)?;
    sockopt::set_tcp_keepidle(&listener, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(&listener, KEEP_ALIVE_TIMEOUT / KEEP_ALIVE_QUESTIONS)?;
    sockopt::set_tcp_keepcnt(&listener, KEEP_ALIVE_QUESTIONS)?;
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

impl Servers {
    /// Accepts no more calls, ends streams, and waits up to two seconds for calls in flight.
    pub async fn stop(self) {
        self.health.abort();
        self.http.abort();
        self.redis.abort();
        self.stop.send_replace(true);
        match tokio::time::timeout(STOP_PATIENCE, self.grpc).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the gRPC server ended with an error"),
            Ok(Err(error)) => tracing::error!(%error, "the gRPC server panicked"),
            Err(_) => tracing::warn!("calls still in flight were cut off when the node stopped"),
        }
    }
}

/// Reports gRPC health: serving while this node knows a leader.
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;

    /// Connections of Redis clients whose machines had died kept their places until nobody was let in any more.
    #[tokio::test]
    async fn silent_connections_are_asked_after() {
        let listener = into_tokio(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let (idle, pause) = (sockopt::tcp_keepidle(&stream), sockopt::tcp_keepintvl(&stream));
        let questions = sockopt::tcp_keepcnt(&stream).unwrap();
        assert_eq!(idle.unwrap(), KEEP_ALIVE_INTERVAL);
        assert_eq!(pause.unwrap() * questions, KEEP_ALIVE_TIMEOUT);
    }
}
