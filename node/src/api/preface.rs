//! Whoever does not speak HTTP/2 is sent away at once, and counted. The first bytes of a connection say so.

use prometheus::IntCounter;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// What every HTTP/2 client sends first (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose first bytes are checked as they are read.
pub(super) struct Checked {
    stream: TcpStream,
    seen: usize,
    refused: IntCounter,
}

impl Checked {
    /// A fresh connection; `refused` counts it if it turns out to speak something else.
    pub(super) fn new(stream: TcpStream, refused: IntCounter) -> Self {
        Self { stream, seen: 0, refused }
    }

    fn check(&mut self, bytes: &[u8]) -> io::Result<()> {
        let expected = &PREFACE[self.seen..];
        let length = expected.len().min(bytes.len());
        if bytes[..length] != expected[..length] {
            self.refused.inc();
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2"));
        }
        self.seen += length;
        Ok(())
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
        if self.seen < PREFACE.len() {
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
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Sends the pieces one by one and returns what the other side could read.
    async fn received(pieces: &[&[u8]], refused: &IntCounter) -> io::Result<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut client = TcpStream::connect(listener.local_addr()?).await?;
        let mut server = Checked::new(listener.accept().await?.0, refused.clone());
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
        assert_eq!(received(&[&whole], &refused).await.expect("HTTP/2"), whole);
        let pieces = [&whole[..5], &whole[5..30], &whole[30..]];
        assert_eq!(received(&pieces, &refused).await.expect("HTTP/2"), whole);
        assert_eq!(refused.get(), 0);
    }

    #[tokio::test]
    async fn all_else_is_refused_and_counted() {
        let refused = counter();
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\0", b"PRI * HTTP/2.0\r\n\r\nXX"] {
            let error = received(&[garbage], &refused).await.expect_err("not HTTP/2");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(refused.get(), 3);
    }
}
