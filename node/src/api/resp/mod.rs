//! Redis's protocol, RESP2 and RESP3, on a port of its own: the same keys and revisions as over etcd's API.
//!
//! `frame.rs` is the bytes, `connection.rs` a client's connection, `commands.rs` what each command does with `keys.rs`,
//! `scan.rs` those that look at all keys, `notices.rs` the subscriptions, `glob.rs` the patterns,
//! `table.rs` the lookup tables.
//!
//! What is deliberately absent: types other than strings, scripts, and publish. What is not there is answered with an
//! error that names it.

mod commands;
mod connection;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod exercise;
mod frame;
mod glob;
mod keys;
mod notices;
mod scan;
mod table;

use crate::api::Life;
use crate::engine::Engine;
use connection::Connection;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::net::{TcpListener, TcpStream};

/// Connections at most; more are closed at once, with an error.
const CONNECTIONS_MAX: usize = 10_000;

/// What the connections of a node share.
#[derive(Default)]
pub(super) struct Server {
    cursors: scan::Cursors,
    connections: AtomicUsize,
    last_id: AtomicU64,
}

impl Server {
    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Serves clients until the node stops.
pub(crate) async fn serve(engine: Engine, listener: TcpListener, life: Life) {
    let server = Arc::new(Server::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = life.ended() => return,
        };
        match accepted {
            Ok((stream, address)) => {
                let (server, engine, life) = (Arc::clone(&server), engine.clone(), life.clone());
                tokio::spawn(async move {
                    server.connections.fetch_add(1, Ordering::Relaxed);
                    if let Err(error) = client(&server, engine, stream, address.to_string(), life).await {
                        tracing::debug!(%error, %address, "a RESP connection broke");
                    }
                    server.connections.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: those who leave make room.
                tracing::warn!(%error, "a RESP connection was not accepted");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

async fn client(
    server: &Arc<Server>,
    engine: Engine,
    mut stream: TcpStream,
    address: String,
    life: Life,
) -> std::io::Result<()> {
    use tokio::io::AsyncWriteExt;
    stream.set_nodelay(true)?;
    if server.connections() > CONNECTIONS_MAX {
        return stream.write_all(b"-ERR max number of clients reached\r\n").await;
    }
    let id = server.last_id.fetch_add(1, Ordering::Relaxed) + 1;
    Connection::new(Arc::clone(server), engine, id, address).serve(stream, life).await
}
