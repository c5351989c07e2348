//! What a client is told that came to a port of another protocol, in words that it can show.
//!
//! A client of TLS on a port without it is answered in HTTP: its alerts have no text, and clients name the protocol that
//! they found instead. Deliberately absent: an answer within TLS; there the handshake settles the protocol.

use crate::accept::Stream;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// The ports of a node that clients can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// gRPC, and HTTP/1.
    Client,
    /// The ledger and the operators' pages.
    Http,
    /// Redis's protocol.
    Resp,
}

/// What every HTTP/2 client sends first (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// By so much of it one is known.
const PREFACE_BEGINS: &[u8] = b"PRI * HTTP/2";
/// Types of frames (RFC 9113, section 6).
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GO_AWAY: u8 = 7;
const FRAME_HEADER_BYTES: usize = 9;
/// More than any client sends before its first request.
const UNREQUESTED_BYTES_MAX: usize = 16 << 10;
const HTTP_1: &[u8] = b" HTTP/1.";
/// How long a client may take to read the answer and to leave.
const PARTING: Duration = Duration::from_secs(1);
/// How long a client of HTTP/2 may take until its first request.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

const ONLY_TLS: &str = "this port speaks TLS alone: use https:// (rediss://, redis-cli --tls, etcdctl --cacert), and trust \
                        the node's authority";
const NO_TLS: &str =
    "this port speaks no TLS: use http:// (redis://), or configure certificates (tls.cert_file)";

impl Port {
    fn text(self) -> &'static str {
        match self {
            Self::Client => {
                "this is Quoin's client port (gRPC, etcd's JSON): the setting listen_resp says where Redis's protocol is"
            }
            Self::Http => {
                "this is Quoin's HTTP port (rules, ledger, metrics): listen_client says where gRPC is, listen_resp where Redis's \
                 protocol is"
            }
            Self::Resp => {
                "this is Quoin's port for Redis's protocol: the setting listen_client says where gRPC and etcd's JSON are, \
                 listen_http where rules and the ledger are"
            }
        }
    }

    /// What to answer to a client that began with `bytes`, in its own protocol.
    pub(crate) fn answer(self, bytes: &[u8]) -> Vec<u8> {
        if is_tls(bytes) { bad_request(NO_TLS) } else { answer(self.text(), bytes) }
    }

    /// Whether a client that began with `bytes` speaks HTTP.
    pub(crate) fn is_http(bytes: &[u8]) -> bool {
        bytes.starts_with(PREFACE_BEGINS) || is_http1(bytes)
    }

    /// Whether a client that began with `bytes` speaks another protocol than Redis's.
    pub(crate) fn is_foreign_to_redis(bytes: &[u8]) -> bool {
        Self::is_http(bytes) || is_tls(bytes)
    }

    /// Answers a client that began with `bytes`, whatever becomes of the connection's owner. Call within a runtime.
    pub(crate) fn turn_away(self, stream: &Stream, bytes: &[u8]) {
        // A second handle: the first one ends with its owner.
        match stream {
            Stream::Plain(stream) => self.say(second(stream), bytes, self.answer(bytes)),
            Stream::Unix(stream) => {
                let other = stream.as_fd().try_clone_to_owned().map(std::os::unix::net::UnixStream::from);
                self.say(other.and_then(UnixStream::from_std), bytes, self.answer(bytes));
            }
            Stream::Tls(_) => {}
        }
    }

    /// The same on a port with TLS, to a client that began without.
    pub(crate) fn refuse_plain(self, stream: &TcpStream, bytes: &[u8]) {
        self.say(second(stream), bytes, answer(ONLY_TLS, bytes));
    }

    fn say<S>(self, second: io::Result<S>, bytes: &[u8], answer: Vec<u8>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let http2 = bytes.starts_with(PREFACE_BEGINS).then(|| bytes.to_vec());
        if let Ok(mut second) = second {
            // A client that does not take it learns nothing; the connection ends either way.
            tokio::spawn(async move {
                if let Some(read) = http2 {
                    // The answer comes without a request too.
                    let _ = timeout(FIRST_REQUEST, first_request(&mut second, read)).await;
                }
                timeout(PARTING, part(second, answer)).await
            });
        }
    }
}

fn second(stream: &TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(stream.as_fd().try_clone_to_owned()?.into())
}

/// The words of `text` in the protocol of a client that began with `bytes`.
fn answer(text: &str, bytes: &[u8]) -> Vec<u8> {
    match bytes {
        bytes if bytes.starts_with(PREFACE_BEGINS) => go_away(text),
        bytes if is_http1(bytes) => bad_request(text),
        _ => format!("-ERR {text}\r\n").into_bytes(),
    }
}

/// Whether a handshake of TLS begins here.
fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x16, 3, ..])
}

/// Sends a server's preface and waits for the first request: clients show the text of GOAWAY with a request that is
/// under way, and without one only say that the connection was closed. `read` are the client's first bytes.
async fn first_request(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    mut read: Vec<u8>,
) -> io::Result<()> {
    stream.write_all(&frame(SETTINGS, b"")).await?;
    while read.len() < UNREQUESTED_BYTES_MAX && !has_headers(&read) && stream.read_buf(&mut read).await? > 0 {
    }
    Ok(())
}

/// Whether HEADERS begin in what a client of HTTP/2 sent from its preface on.
fn has_headers(sent: &[u8]) -> bool {
    let mut frames = sent.get(PREFACE.len()..).unwrap_or_default();
    while let [a, b, c, kind, ..] = frames {
        if *kind == HEADERS {
            return true;
        }
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        frames = frames.get(FRAME_HEADER_BYTES + length..).unwrap_or_default();
    }
    false
}

/// Sends the answer, and takes what the client still sends: what is left unread makes the system reset the connection,
/// and the client lose the answer.
async fn part(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: Vec<u8>) -> io::Result<()> {
    stream.write_all(&answer).await?;
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// Whether a request of HTTP/1 begins here. Its method and its path alone may be a command of Redis: `GET /`.
fn is_http1(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.first().is_some_and(u8::is_ascii_uppercase) && line.windows(HTTP_1.len()).any(|part| part == HTTP_1)
}

fn bad_request(text: &str) -> Vec<u8> {
    let length = text.len() + 1;
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}\n"
    )
    .into_bytes()
}

/// GOAWAY with a text that gRPC's clients show.
fn go_away(text: &str) -> Vec<u8> {
    const HTTP_1_1_REQUIRED: u32 = 0xd;
    let last_stream = [0; 4];
    frame(GO_AWAY, &[&last_stream, &HTTP_1_1_REQUIRED.to_be_bytes(), text.as_bytes()].concat())
}

/// A frame of the whole connection, without flags.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, 0, 0, 0, 0, 0], payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_is_answered_in_its_own_protocol() {
        let said = |port: Port, bytes: &[u8]| String::from_utf8(port.answer(bytes)).unwrap();
        let redis = said(Port::Client, b"*1\r\n$4\r\nPING\r\n");
        assert!(redis.starts_with("-ERR this is Quoin's client port") && redis.ends_with("\r\n"), "{redis}");
        assert!(said(Port::Client, b"PING\r\n").starts_with("-ERR "));
        let http = said(Port::Resp, b"GET / HTTP/1.1\r\n");
        let (head, body) = http.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 400 ") && body.starts_with("this is Quoin's port for Redis's"),
            "{http}"
        );
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{http}");
        assert!(!Port::is_http(b"GET /key\r\n") && !Port::is_http(b"*2\r\n$3\r\nGET\r\n"));
        let tls = said(Port::Client, b"\x16\x03\x01\x02");
        assert!(tls.starts_with("HTTP/1.1 400 ") && tls.contains("this port speaks no TLS"), "{tls}");
    }

    /// Turns one connection away as the port for Redis's protocol does.
    async fn turned_away() -> std::net::SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; PREFACE.len()];
            stream.read_exact(&mut bytes).await.unwrap();
            Port::Resp.turn_away(&Stream::Plain(stream), &bytes);
        });
        address
    }

    /// Read by a gRPC client, whose user saw frames that could not be decoded.
    #[tokio::test]
    async fn a_grpc_client_is_told_the_port() {
        let url = format!("http://{}", turned_away().await);
        let channel = tonic::transport::Endpoint::from_shared(url).unwrap().connect_lazy();
        let mut client = quoin_proto::etcdserverpb::kv_client::KvClient::new(channel);
        let status = client.range(quoin_proto::etcdserverpb::RangeRequest::default()).await.unwrap_err();
        assert!(format!("{status:?}").contains("Quoin's port for Redis's protocol"), "{status:?}");
    }

    /// The client whose request began after GOAWAY came only saw a closed connection.
    #[tokio::test]
    async fn a_grpc_client_is_told_when_its_first_request_is_under_way() {
        let mut client = TcpStream::connect(turned_away().await).await.unwrap();
        client.write_all(&[PREFACE, &frame(SETTINGS, b"")[..]].concat()).await.unwrap();
        let mut read = [0; 64];
        let settings = client.read(&mut read).await.unwrap();
        assert_eq!(read[..settings], frame(SETTINGS, b""));
        let early = timeout(FIRST_REQUEST / 4, client.read(&mut read)).await;
        assert!(early.is_err(), "before a request: {early:?}");
        client.write_all(&frame(HEADERS, b"")).await.unwrap();
        let said = client.read(&mut read).await.unwrap();
        assert!(said > FRAME_HEADER_BYTES && read[3] == GO_AWAY, "{:?}", &read[..said]);
    }
}
