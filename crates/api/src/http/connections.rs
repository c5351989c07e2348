//! The connections of the HTTP port.
//!
//! A client may close its half of a connection once its request is sent, and is answered: what it asked for may be done, and
//! it must hear of that. The price: a client of an event stream that has left is noticed by what is written next, at the
//! latest by the stream's next sign of life.
//!
//! **Invariant: Bounded.** A connection on which no whole head of a request comes in [`HEAD_PATIENCE`] is closed, an idle
//! one too, and [`BUFFER_BYTES_MAX`] bounds what it keeps for a client that takes nothing.

use crate::Life;
use crate::preface::CheckedListener;
use crate::stall;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::time::Duration;

/// How long the next request's head may take, from the end of the request before.
const HEAD_PATIENCE: Duration = stall::PATIENCE;
/// Bytes of a head, and of answers that wait for the client.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// Serves clients until the node stops.
pub(crate) async fn serve(mut listener: CheckedListener, pages: Router, life: Life) {
    let mut http = http1::Builder::new();
    http.half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(BUFFER_BYTES_MAX);
    loop {
        let (stream, address) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = life.ended() => return,
        };
        let pages = pages.clone().layer(Extension(address.clone()));
        let pages = match stream.common_name() {
            Some(name) => pages.layer(Extension(name)),
            None => pages,
        };
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(pages));
        let life = life.clone();
        tokio::spawn(async move {
            tokio::pin!(connection);
            let served = tokio::select! {
                served = connection.as_mut() => served,
                () = life.ended() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = served {
                tracing::debug!(%error, %address, "an HTTP connection broke");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::Listener;
    use crate::wrong_port::Port;
    use axum::body::to_bytes;
    use axum::extract::Request;
    use axum::routing::post;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{mpsc, watch};

    struct Server {
        address: SocketAddr,
        stop: watch::Sender<bool>,
        /// The heads of requests that came.
        heads: mpsc::Receiver<()>,
    }

    /// A server that answers with what it is sent, after a while.
    async fn started() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let refused = prometheus::IntCounter::new("refused", "refused").unwrap();
        let (stop, life) = watch::channel(false);
        let (came, heads) = mpsc::channel(10);
        let echo = |request: Request| async move {
            came.send(()).await.unwrap();
            let body = to_bytes(request.into_body(), 100).await.unwrap();
            // Until the client's end of its half has come too.
            tokio::time::sleep(Duration::from_millis(50)).await;
            body
        };
        let pages = Router::new().route("/", post(echo));
        let failed = prometheus::IntCounter::new("failed", "failed").unwrap();
        let listener =
            CheckedListener::new(Listener::new(listener, Port::Http, None, failed), Port::Http, refused);
        tokio::spawn(serve(listener, pages, Life(life)));
        Server { address, stop, heads }
    }

    /// All that comes until the server closes.
    async fn rest(mut stream: TcpStream) -> String {
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
        // An error: it was closed with bytes that nobody read.
        let _ = read.expect("the connection is closed");
        String::from_utf8(answer).unwrap()
    }

    /// Whoever closed its half got nothing, though the transfer was done.
    #[tokio::test]
    async fn a_client_that_has_said_all_is_answered() {
        let server = started().await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nsaid").await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = rest(stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("said"), "{answer}");
    }

    /// Half a head kept a connection for as long as its client lived.
    #[tokio::test]
    async fn a_connection_without_a_request_is_closed() {
        let server = started().await;
        for begun in ["", "POST / HTTP/1.1\r\nhost: x\r\n"] {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(begun.as_bytes()).await.unwrap();
            assert!(!rest(stream).await.contains("200"));
        }
    }

    /// The connection was closed before the answer was sent.
    #[tokio::test]
    async fn a_client_of_another_protocol_is_told_where_it_is() {
        let server = started().await;
        for begun in ["PING\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"] {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(begun.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
            read.expect("the connection is closed").unwrap();
            let text = String::from_utf8_lossy(&answer);
            assert!(text.contains("this is Quoin's HTTP port"), "{begun:?}: {text:?}");
        }
    }

    #[tokio::test]
    async fn a_stop_lets_requests_under_way_end_and_closes_idle_connections() {
        let mut server = started().await;
        let idle = TcpStream::connect(server.address).await.unwrap();
        let mut busy = TcpStream::connect(server.address).await.unwrap();
        busy.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n").await.unwrap();
        server.heads.recv().await.unwrap();
        server.stop.send_replace(true);
        busy.write_all(b"said").await.unwrap();
        assert!(rest(busy).await.ends_with("said"));
        assert_eq!(rest(idle).await, "");
    }
}
