//! A minimal HTTP client, for the pages of a node.

use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a node may stay silent.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Everything after the headers.
    pub body: String,
}

/// Sends `GET path` to `address` on a connection of its own.
///
/// # Errors
/// The connection fails or stays silent, or the answer is not HTTP.
pub fn get(address: SocketAddr, path: &str) -> Result<Response> {
    let mut stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    parse(&answer).with_context(|| format!("{address}{path} answered {answer:?}"))
}

fn parse(answer: &str) -> Option<Response> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(Response { status, body: body.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::net::TcpListener;

    /// What `get` makes of a server that reads a request and writes `answer`.
    fn answered(answer: &'static str) -> Result<Response> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
            assert_eq!(request.next().unwrap().unwrap(), "GET /readyz HTTP/1.1");
            request.find(|line| line.as_ref().unwrap().is_empty());
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let response = get(address, "/readyz");
        server.join().unwrap();
        response
    }

    #[test]
    fn status_and_body_are_told_apart() {
        let response =
            answered("HTTP/1.1 503 Service Unavailable\r\na: b\r\n\r\nnot ready: no leader\n").unwrap();
        assert_eq!(response, Response { status: 503, body: "not ready: no leader\n".into() });
        assert!(answered("HTTP/1.1 200").unwrap_err().to_string().contains(r#"answered "HTTP/1.1 200""#));
    }
}
