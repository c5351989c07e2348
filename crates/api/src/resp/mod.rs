//! Redis's protocol, RESP2 and RESP3, on a port of its own: the same keys and revisions as over etcd's API.
//!
//! Reading order, along a request: `connection.rs` reads requests (`request.rs`) from the socket, has `rights.rs` judge them (`record.rs` records some), and finds
//! each in the table of commands (`commands.rs`). Commands about keys (`strings.rs`, `hashes.rs`,
//! `keyspace.rs`, `expiry.rs`, `field_expiry.rs`) are functions of their arguments and of `keys.rs`; `transaction.rs` has their writes done, and those
//! of scripts (`scripts/`).
//! The others work on the connection's state (`session.rs`): `administration.rs`, `scan.rs` (all keys),
//! `subscribe.rs` (with `channels.rs` and `notices.rs`), `lookup.rs` and `table.rs` (lookup tables). `reply.rs` writes the
//! answers.
//!
//! What is deliberately absent: types other than strings and hashes. An absent command is refused
//! with an error that names it.

mod acl;
mod administration;
mod channels;
mod clients;
mod commands;
#[cfg(test)]
mod compared;
mod connection;
mod cursors;
mod decimal;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod exercise;
mod expiry;
mod field_expiry;
mod flush;
mod glob;
mod hashes;
mod keys;
mod keyspace;
mod lookup;
mod notices;
mod number;
mod parse;
mod queue;
mod record;
mod reply;
mod request;
mod rights;
mod scan;
#[cfg(test)]
mod script;
mod scripts;
mod server;
mod session;
mod silence;
mod strings;
mod subscribe;
mod table;
mod transaction;

use crate::Life;
use crate::accept::{Listener, Peer, Stream};
use crate::auth::{Gate, of_certificate};
use crate::budget::Budget;
use clients::Ending;
use quoin_engine::Engine;
use quoin_library::Library;
use server::Server;
use session::Session;
use std::io;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;

/// Serves clients until the node stops.
pub(crate) async fn serve(
    engine: Engine,
    gate: Arc<Gate>,
    library: Arc<Library>,
    budget: Budget,
    mut listener: Listener,
    life: Life,
) {
    let server = Server::new(engine, gate, library, budget);
    let channels = server.channels.run();
    tokio::pin!(channels);
    loop {
        let (stream, address) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut channels => return,
            () = life.ended() => {
                server.scripts.kill();
                return;
            }
        };
        let (server, life) = (Arc::clone(&server), life.clone());
        let abort = Ending::default();
        let ending = Arc::clone(&abort);
        let task = tokio::spawn(async move {
            if let Err(error) = client(server, stream, address.clone(), ending, life).await {
                tracing::debug!(%error, %address, "a RESP connection broke");
            }
        });
        let _ = abort.set(task.abort_handle());
    }
}

async fn client(
    server: Arc<Server>,
    mut stream: Stream,
    peer: Peer,
    abort: Ending,
    life: Life,
) -> io::Result<()> {
    let Some(_place) = server.admit() else {
        stream.write_all(b"-ERR max number of clients reached\r\n").await?;
        return stream.flush().await;
    };
    let name = stream.common_name();
    let identity = of_certificate(name.as_ref());
    let mut session = Session::new(server, peer, identity, abort);
    session.certificate = name.map(|name| name.0.to_string()).unwrap_or_default();
    connection::serve(session, stream, life).await
}
