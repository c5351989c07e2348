//! Connections that do not speak their port's protocol, found by their first bytes: they are told so, closed at once,
//! and counted.
//!
//! Deliberately absent: any check of what follows, which is up to the protocol itself.

use crate::accept::{Listener, Peer, Stream};
use crate::auth::CommonName;
use crate::wrong_port::{PREFACE, Port};
use prometheus::IntCounter;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Longer than any method of HTTP/1.
const METHOD_BYTES_MAX: usize = 24;

/// A connection whose first bytes are checked as they are read.
pub(super) struct Checked {
    stream: Stream,
    peer: Option<Peer>,
    port: Port,
    /// What is left to check.
    check: Check,
    refused: IntCounter,
}

/// What a connection has shown of its protocol, by how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// All of them are those of [`PREFACE`].
    Preface(usize),
    /// They are those of a method.
    Method(usize),
    Passed,
    /// It was turned away: what is still said to it is not for the port's protocol to send, or to cut short.
    Refused,
}

impl Checked {
    /// A new connection; `refused` counts it if it does not speak the port's protocol.
    pub(super) fn new(stream: Stream, port: Port, refused: IntCounter) -> Self {
        let check = match port {
            Port::Client => Check::Preface(0),
            Port::Http | Port::Resp => Check::Method(0),
        };
        Self { stream, peer: None, port, check, refused }
    }

    fn check(&mut self, bytes: &[u8]) -> io::Result<()> {
        // PRI is no method: on the HTTP port it is HTTP/2 that came to the wrong one.
        let misplaced =
            self.port == Port::Http && self.check == Check::Method(0) && bytes.starts_with(b"PRI ");
        let passed = match self.check {
            _ if misplaced => None,
            Check::Preface(seen) => check_preface(seen, bytes),
            Check::Method(seen) => check_method(seen, bytes),
            Check::Passed => return Ok(()),
            Check::Refused => return Err(self.foreign()),
        };
        let Some(check) = passed else {
            self.check = Check::Refused;
            self.refused.inc();
            self.port.turn_away(&self.stream, bytes);
            return Err(self.foreign());
        };
        self.check = check;
        Ok(())
    }

    fn foreign(&self) -> io::Error {
        let text = format!("not of the port's protocol ({:?})", self.port);
        io::Error::new(io::ErrorKind::InvalidData, text)
    }
}

/// The first bytes of HTTP/2, or of HTTP/1. `None` if they are of another protocol.
fn check_preface(seen: usize, bytes: &[u8]) -> Option<Check> {
    let expected = &PREFACE[seen..];
    let same = expected.iter().zip(bytes).take_while(|(expected, byte)| expected == byte).count();
    match seen + same {
        now if now == PREFACE.len() => Some(Check::Passed),
        now if same == bytes.len() => Some(Check::Preface(now)),
        // Its first letters may be a method's, as of POST.
        now if now < PREFACE_METHOD_BYTES => check_method(now, &bytes[same..]),
        _ => None,
    }
}

/// `PRI`, which is no method of HTTP/1.
const PREFACE_METHOD_BYTES: usize = 3;

/// A request begins with its method: capital letters up to a space. Empty lines before it are allowed (RFC
/// 9112, 2.2).
fn check_method(mut seen: usize, bytes: &[u8]) -> Option<Check> {
    for byte in bytes {
        match byte {
            b' ' if seen > 0 => return Some(Check::Passed),
            b'A'..=b'Z' | b'-' if seen < METHOD_BYTES_MAX => seen += 1,
            b'\r' | b'\n' if seen == 0 => {}
            _ => return None,
        }
    }
    Some(Check::Method(seen))
}

/// Accepts connections and checks them.
pub(super) struct CheckedListener {
    listener: Listener,
    port: Port,
    refused: IntCounter,
}

impl CheckedListener {
    /// `refused` counts connections that speak another protocol than `port`'s.
    pub(super) fn new(listener: Listener, port: Port, refused: IntCounter) -> Self {
        Self { listener, port, refused }
    }

    /// The next connection.
    pub(super) async fn accept(&mut self) -> (Checked, Peer) {
        let (stream, address) = self.listener.accept().await;
        let checked = Checked::new(stream, self.port, self.refused.clone());
        (Checked { peer: Some(address.clone()), ..checked }, address)
    }
}

/// What is known of a connection before its first request.
#[derive(Clone)]
pub(super) struct Arrived {
    /// Whom the client's certificate names.
    pub(super) name: Option<CommonName>,
    /// Where it came from.
    pub(super) peer: Option<Peer>,
}

impl Checked {
    /// Whom the client's certificate names.
    pub(super) fn common_name(&self) -> Option<CommonName> {
        self.stream.common_name()
    }
}

impl Connected for Checked {
    type ConnectInfo = Arrived;

    fn connect_info(&self) -> Arrived {
        Arrived { name: self.common_name(), peer: self.peer.clone() }
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
        if self.check != Check::Passed {
            let fresh = &buffer.filled()[before..];
            self.check(fresh)?;
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
        if self.check == Check::Refused {
            // Whoever turns it away ends it.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// Sends the pieces one by one and returns what the other side could read.
    async fn received(port: Port, pieces: &[&[u8]], refused: &IntCounter) -> io::Result<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut client = TcpStream::connect(listener.local_addr()?).await?;
        let mut server = Checked::new(Stream::Plain(listener.accept().await?.0), port, refused.clone());
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
        assert_eq!(received(Port::Client, &[&whole], &refused).await.expect("HTTP/2"), whole);
        let pieces = [&whole[..5], &whole[5..30], &whole[30..]];
        assert_eq!(received(Port::Client, &pieces, &refused).await.expect("HTTP/2"), whole);
        assert_eq!(refused.get(), 0);
    }

    #[tokio::test]
    async fn http1_passes_on_the_client_port_too() {
        let refused = counter();
        for good in
            [&[&b"POST /v3/kv/range HTTP/1.1\r\n\r\n"[..]][..], &[b"P", b"RO", b"P / "], &[b"\r\nG", b"ET "]]
        {
            assert_eq!(received(Port::Client, good, &refused).await.expect("HTTP/1"), good.concat());
        }
        assert_eq!(refused.get(), 0);
    }

    #[tokio::test]
    async fn all_else_is_refused_and_counted() {
        let refused = counter();
        for garbage in
            [&b"*1\r\n$4\r\nPING\r\n"[..], b"\x16\x03\x01\0", b"PRI * HTTP/2.0\r\n\r\nXX", b"PING\r\n"]
        {
            let error = received(Port::Client, &[garbage], &refused).await.expect_err("neither HTTP");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(refused.get(), 4);
    }

    #[tokio::test]
    async fn a_page_is_asked_for_with_a_method() {
        let refused = counter();
        for good in [&[&b"GET / HTTP/1.1\r\n\r\n\xff"[..]][..], &[b"\r\nPO", b"S", b"T /x", b"\0"]] {
            assert_eq!(received(Port::Http, good, &refused).await.expect("HTTP/1"), good.concat());
        }
        for garbage in
            [&b"\x16\x03\x01\0"[..], b" GET", b"get /", b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", b"GE\0", PREFACE]
        {
            let error = received(Port::Http, &[garbage], &refused).await.expect_err("not HTTP/1");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(refused.get(), 6);
    }
}
