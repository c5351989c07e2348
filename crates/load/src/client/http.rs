//! A small HTTP/1.1 client for the ledger's JSON: one keep-alive connection, one request at a time.
//!
//! It does what the benches and the demo need, at little cost. It deliberately lacks TLS, redirects and
//! chunked bodies: no server of ours needs them.

use anyhow::{Context, Result, bail, ensure};
use std::io::Write;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum bytes of a response's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum bytes of a response's body.
const BODY_BYTES_MAX: usize = 64 << 20;

/// A client of one server. It connects on the first request; a clone opens its own connection.
#[derive(Debug)]
pub struct Http {
    address: String,
    stream: Option<TcpStream>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

/// A response.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The status code.
    pub status: u16,
    /// The body, as it came.
    pub body: &'a [u8],
}

impl Clone for Http {
    fn clone(&self) -> Self {
        Self::new(&self.address)
    }
}

impl Http {
    /// A client of the server at `HOST:PORT`.
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned(), stream: None, outgoing: Vec::new(), incoming: Vec::new() }
    }

    /// Sends a request with a JSON body and waits for the response. Each of `headers` ends with `\r\n`.
    ///
    /// # Errors
    /// The server cannot be reached, or its response is not HTTP that this client reads. The next request
    /// reconnects.
    pub async fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> Result<Answer<'_>> {
        self.outgoing.clear();
        let (address, length) = (&self.address, body.len());
        write!(
            self.outgoing,
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             {headers}\r\n"
        )?;
        self.outgoing.extend_from_slice(body);
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        stream.write_all(&self.outgoing).await?;
        self.incoming.clear();
        let (status, head, length) = loop {
            if let Some(found) = read_head(&self.incoming)? {
                break found;
            }
            ensure!(
                self.incoming.len() < HEAD_BYTES_MAX,
                "the response's head exceeds {HEAD_BYTES_MAX} bytes"
            );
            ensure!(stream.read_buf(&mut self.incoming).await? > 0, "the server closed the connection");
        };
        while self.incoming.len() < head + length {
            ensure!(stream.read_buf(&mut self.incoming).await? > 0, "the server closed the connection");
        }
        self.stream = Some(stream);
        Ok(Answer { status, body: &self.incoming[head..head + length] })
    }

    async fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(&self.address).await;
        let stream = stream.with_context(|| format!("connecting to {}", self.address))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Status, length of the head and length of the body; `None` until the head is complete.
fn read_head(bytes: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..end]).context("the response's head")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
    let Some(status) = status else { bail!("the response has no status") };
    let value = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then_some(value.trim())
    });
    let length: usize = value.context("the response has no content-length")?.parse()?;
    ensure!(length <= BODY_BYTES_MAX, "the response's body has {length} bytes, more than {BODY_BYTES_MAX}");
    Ok(Some((status, end + 4, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_complete() {
        let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\nlocation: /x\r\n\r\nhello";
        for length in 0..answer.len() - 5 {
            assert_eq!(read_head(&answer[..length]).unwrap(), None);
        }
        assert_eq!(read_head(answer).unwrap(), Some((202, answer.len() - 5, 5)));
        assert!(read_head(b"nonsense\r\n\r\n").is_err() && read_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
