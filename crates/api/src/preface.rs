//! Connections that do not speak their port's protocol, found by their first bytes: they are closed at once,
//! and counted.
//!
//! Deliberately absent: any check of what follows, which is up to the protocol itself.

use prometheus::IntCounter;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// What every HTTP/2 client sends first (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Longer than any method of HTTP/1.
const METHOD_BYTES_MAX: usize = 24;

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP/1.0 and 1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
}

/// A connection whose first bytes are checked as they are read.
pub(super) struct Checked {
    stream: TcpStream,
    protocol: Protocol,
    /// How many bytes were checked; `None` once that is enough.
    seen: Option<usize>,
    refused: IntCounter,
}

impl Checked {
    /// A new connection; `refused` counts it if it does not speak `protocol`.
    pub(super) fn new(stream: TcpStream, protocol: Protocol, refused: IntCounter) -> Self {
        Self { stream, protocol, seen: Some(0), refused }
    }

    fn check(&mut self, seen: usize, bytes: &[u8]) -> io::Result<()> {
        let checked = match self.protocol {
            Protocol::Http1 => check_method(seen, bytes),
            Protocol::Http2 => check_preface(seen, bytes),
        };
        match checked {
            Some(seen) => self.seen = seen,
            None => {
                self.refused.inc();
                let text = format!("not {:?}", self.protocol);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
        Ok(())
    }
}

/// How many bytes are checked after these, `Some(None)` if that is enough; `None` if they are of another
/// protocol.
fn check_preface(seen: usize, bytes: &[u8]) -> Option<Option<usize>> {
    let expected = &PREFACE[seen..];
    let length = expected.len().min(bytes.len());
    let now = seen + length;
    (bytes[..length] == expected[..length]).then_some((now < PREFACE.len()).then_some(now))
}

/// A request begins with its method: capital letters up to a space. Empty lines before it are allowed (RFC
/// 9112, 2.2).
fn check_method(mut seen: usize, bytes: &[u8]) -> Option<Option<usize>> {
    for byte in bytes {
        match byte {
            b' ' if seen > 0 => return Some(None),
            b'A'..=b'Z' | b'-' if seen < METHOD_BYTES_MAX => seen += 1,
            b'\r' | b'\n' if seen == 0 => {}
            _ => return None,
        }
    }
    Some(Some(seen))
}

/// Accepts HTTP/1 connections and checks them.
pub(super) struct CheckedListener {
    listener: TcpListener,
    refused: IntCounter,
}

impl CheckedListener {
    /// `refused` counts connections that speak another protocol.
    pub(super) fn new(listener: TcpListener, refused: IntCounter) -> Self {
        Self { listener, refused }
    }
}

impl axum::serve::Listener for CheckedListener {
    type Io = Checked;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // axum's listener knows which errors of accept are temporary, and waits for them to pass.
        let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
        // If this fails the connection is only slower.
        let _ = stream.set_nodelay(true);
        (Checked::new(stream, Protocol::Http1, self.refused.clone()), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

impl Connected for Checked {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Checked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if let Some(seen) = self.seen {
            let fresh = &buffer.filled()[before..];
            self.check(seen, fresh)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Checked {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Sends the pieces one by one and returns what the other side could read.
    async fn received(protocol: Protocol, pieces: &[&[u8]], refused: &IntCounter) -> io::Result<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut client = TcpStream::connect(listener.local_addr()?).await?;
        let mut server = Checked::new(listener.accept().await?.0, protocol, refused.clone());
        let mut read = Vec::new();
        for piece in pieces {
            client.write_all(piece).await?;
            let before = read.len();
            while read.len() < before + piece.len() {
                server.read_buf(&mut read).await?;
            }
        }
        Ok(read)
    }

    fn counter() -> IntCounter {
        IntCounter::new("refused", "refused").expect("well formed")
    }

    #[tokio::test]
    async fn http2_passes_in_any_pieces_with_all_that_follows() {
        let follows = b"\0\0\0\x04\0\0\0\0\0garbage from here on is not this file's";
        let whole = [PREFACE, follows].concat();
        let refused = counter();
        assert_eq!(received(Protocol::Http2, &[&whole], &refused).await.expect("HTTP/2"), whole);
        let pieces = [&whole[..5], &whole[5..30], &whole[30..]];
        assert_eq!(received(Protocol::Http2, &pieces, &refused).await.expect("HTTP/2"), whole);
        assert_eq!(refused.get(), 0);
    }

    #[tokio::test]
    async fn all_else_is_refused_and_counted() {
        let refused = counter();
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\0", b"PRI * HTTP/2.0\r\n\r\nXX"] {
            let error = received(Protocol::Http2, &[garbage], &refused).await.expect_err("not HTTP/2");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(refused.get(), 3);
    }

    #[tokio::test]
    async fn a_page_is_asked_for_with_a_method() {
        let refused = counter();
        for good in [&[&b"GET / HTTP/1.1\r\n\r\n\xff"[..]][..], &[b"\r\nPO", b"S", b"T /x", b"\0"]] {
            assert_eq!(received(Protocol::Http1, good, &refused).await.expect("HTTP/1"), good.concat());
        }
        for garbage in
            [&b"\x16\x03\x01\0"[..], b" GET", b"get /", b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", b"GE\0"]
        {
            let error = received(Protocol::Http1, &[garbage], &refused).await.expect_err("not HTTP/1");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(refused.get(), 5);
    }
}
