//! Redis's protocol as bytes: requests taken apart, replies written (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).
//!
//! A request is an array of bulk strings, or a line of words. Requests are flat, so nothing here recurses.
//!
//! **Bounds.** Arguments of a request, bytes of one argument and of a line, bytes of a whole request; beyond them the
//! request is a [`ProtocolError`], and the connection is closed.

use bytes::{Buf, Bytes, BytesMut};

/// Arguments of one request at most.
pub(super) const ARGUMENTS_MAX: usize = 1 << 16;
/// Bytes of a line at most: of a request in words, and of each length.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The client does not speak the protocol. The text is what it is told before the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Protocol error: {0}")]
pub(super) struct ProtocolError(pub(super) String);

/// Takes requests off a buffer.
#[derive(Debug)]
pub(super) struct Parser {
    /// Bytes of one request at most.
    request_bytes_max: usize,
    /// Of a request that has not come whole yet: how many arguments remain, and those that are there.
    awaited: usize,
    arguments: Vec<Bytes>,
    bytes: usize,
    /// Length of the argument that is coming.
    length: Option<usize>,
    /// After it nothing can be read any more.
    failed: Option<ProtocolError>,
}

impl Parser {
    /// A parser of requests of up to `request_bytes_max` bytes.
    pub(super) fn new(request_bytes_max: usize) -> Self {
        Self { request_bytes_max, awaited: 0, arguments: Vec::new(), bytes: 0, length: None, failed: None }
    }

    /// The next whole request; `None` until more has come. Never empty.
    ///
    /// # Errors
    /// What came is no request; nor is what follows.
    pub(super) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        if let Some(problem) = &self.failed {
            return Err(problem.clone());
        }
        self.read(buffer).inspect_err(|problem| self.failed = Some(problem.clone()))
    }

    fn read(&mut self, buffer: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        loop {
            if self.awaited == 0 {
                let Some(&first) = buffer.first() else { return Ok(None) };
                if first != b'*' {
                    match line(buffer)? {
                        None => return Ok(None),
                        Some(text) => match words(&text)? {
                            words if words.is_empty() => continue,
                            words => return Ok(Some(words)),
                        },
                    }
                }
                let Some(text) = line(buffer)? else { return Ok(None) };
                let count = number(&text[1..], "invalid multibulk length")?;
                if count > ARGUMENTS_MAX as i64 {
                    return Err(ProtocolError("invalid multibulk length".to_owned()));
                }
                // As in Redis, an empty or null array asks for nothing.
                self.awaited = usize::try_from(count).unwrap_or(0);
                self.bytes = 0;
                continue;
            }
            if !self.argument(buffer)? {
                return Ok(None);
            }
            self.awaited -= 1;
            if self.awaited == 0 {
                return Ok(Some(std::mem::take(&mut self.arguments)));
            }
        }
    }

    /// Takes one argument; false until it has come whole.
    fn argument(&mut self, buffer: &mut BytesMut) -> Result<bool, ProtocolError> {
        let length = match self.length {
            Some(length) => length,
            None => {
                let Some(text) = line(buffer)? else { return Ok(false) };
                if text.first() != Some(&b'$') {
                    let got = text.first().copied().unwrap_or(b' ').escape_ascii().to_string();
                    return Err(ProtocolError(format!("expected '$', got '{got}'")));
                }
                let length = number(&text[1..], "invalid bulk length")?;
                let length =
                    usize::try_from(length).map_err(|_| ProtocolError("invalid bulk length".to_owned()))?;
                self.bytes = self.bytes.saturating_add(length).saturating_add(16);
                if self.bytes > self.request_bytes_max {
                    let max = self.request_bytes_max;
                    return Err(ProtocolError(format!("request larger than {max} bytes")));
                }
                self.length = Some(length);
                length
            }
        };
        if buffer.len() < length + 2 {
            buffer.reserve(length + 2 - buffer.len());
            return Ok(false);
        }
        let argument = buffer.split_to(length).freeze();
        if &buffer[..2] != b"\r\n" {
            return Err(ProtocolError("expected CRLF after an argument".to_owned()));
        }
        buffer.advance(2);
        self.arguments.push(argument);
        self.length = None;
        Ok(true)
    }
}

/// The next line without its end; `None` until it has come whole.
fn line(buffer: &mut BytesMut) -> Result<Option<Bytes>, ProtocolError> {
    let searched = &buffer[..buffer.len().min(LINE_BYTES_MAX)];
    let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
        if searched.len() == LINE_BYTES_MAX {
            return Err(ProtocolError("too big inline request".to_owned()));
        }
        return Ok(None);
    };
    let line = buffer.split_to(end + 1).freeze();
    let text = &line[..end];
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    Ok(Some(line.slice(..text.len())))
}

fn number(text: &[u8], problem: &str) -> Result<i64, ProtocolError> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| ProtocolError(problem.to_owned()))
}

/// A request typed by a person: words, in quotes where they have blanks.
fn words(line: &Bytes) -> Result<Vec<Bytes>, ProtocolError> {
    let mut words = Vec::new();
    let mut rest = &line[..];
    loop {
        rest = rest.trim_ascii_start();
        let Some(&first) = rest.first() else { return Ok(words) };
        let word = if matches!(first, b'"' | b'\'') {
            let end = rest[1..].iter().position(|byte| *byte == first);
            let end = end.ok_or_else(|| ProtocolError("unbalanced quotes in request".to_owned()))?;
            let word = &rest[1..=end];
            rest = &rest[end + 2..];
            word
        } else {
            let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
            let word = &rest[..end];
            rest = &rest[end..];
            word
        };
        words.push(Bytes::copy_from_slice(word));
    }
}

/// What a command is answered.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    /// `+OK` and the like.
    Simple(&'static str),
    /// An error, with its code in front.
    Error(String),
    Integer(i64),
    Bulk(Bytes),
    Null,
    Array(Vec<Reply>),
    /// Pairs; in RESP2 an array.
    Map(Vec<(Reply, Reply)>),
    /// Said unasked; in RESP2 an array.
    Push(Vec<Reply>),
    /// No transaction was done.
    NullArray,
}

impl Reply {
    pub(super) const OK: Self = Self::Simple("OK");

    pub(super) fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Bulk(Bytes::from(text.into()))
    }

    /// Appends the reply as the version of the protocol wants it.
    pub(super) fn write(&self, out: &mut Vec<u8>, version: Version) {
        match self {
            Self::Simple(text) => {
                out.push(b'+');
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Self::Error(text) => {
                out.push(b'-');
                // A line is a line, whatever the error quotes.
                out.extend(text.bytes().map(|byte| if byte < b' ' { b' ' } else { byte }));
                out.extend_from_slice(b"\r\n");
            }
            Self::Integer(number) => head(out, b':', *number),
            Self::Bulk(bytes) => bulk(out, bytes),
            Self::Null if version == Version::Resp3 => out.extend_from_slice(b"_\r\n"),
            Self::Null => out.extend_from_slice(b"$-1\r\n"),
            Self::NullArray if version == Version::Resp3 => out.extend_from_slice(b"_\r\n"),
            Self::NullArray => out.extend_from_slice(b"*-1\r\n"),
            Self::Array(items) => list(out, b'*', items, version),
            Self::Push(items) => {
                list(out, if version == Version::Resp3 { b'>' } else { b'*' }, items, version)
            }
            Self::Map(pairs) => {
                match version {
                    Version::Resp3 => head(out, b'%', pairs.len() as i64),
                    Version::Resp2 => head(out, b'*', 2 * pairs.len() as i64),
                }
                for (key, value) in pairs {
                    key.write(out, version);
                    value.write(out, version);
                }
            }
        }
    }
}

/// Which version of the protocol a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Resp2,
    Resp3,
}

fn head(out: &mut Vec<u8>, kind: u8, number: i64) {
    out.push(kind);
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    head(out, b'$', bytes.len() as i64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn list(out: &mut Vec<u8>, kind: u8, items: &[Reply], version: Version) {
    head(out, kind, items.len() as i64);
    items.iter().for_each(|item| item.write(out, version));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(input: &[u8]) -> Result<Vec<Vec<Bytes>>, ProtocolError> {
        let (mut parser, mut buffer) = (Parser::new(1 << 20), BytesMut::from(input));
        let mut requests = Vec::new();
        while let Some(request) = parser.next(&mut buffer)? {
            requests.push(request);
        }
        Ok(requests)
    }

    #[test]
    fn requests_of_both_kinds_are_read() {
        let input = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n\r\n*0\r\nset \"a b\" 'c'\n*1\r\n$0\r\n\r\n";
        let words: Vec<Vec<Vec<u8>>> = all(input)
            .unwrap()
            .iter()
            .map(|request| request.iter().map(|word| word.to_vec()).collect())
            .collect();
        let wanted: &[&[&[u8]]] = &[&[b"GET", b"k"], &[b"PING"], &[b"set", b"a b", b"c"], &[b""]];
        assert_eq!(words, wanted);
    }

    #[test]
    fn what_is_no_request_is_told_and_absurd_lengths_take_no_memory() {
        for (input, problem) in [
            (&b"*x\r\n"[..], "multibulk"),
            (b"*99999999\r\n", "multibulk"),
            (b"*1\r\n:1\r\n", "expected '$'"),
            (b"*1\r\n$-5\r\n", "bulk length"),
            (b"*1\r\n$999999999999\r\n", "larger than"),
            (b"*1\r\n$1\r\nabc", "CRLF"),
            (b"get \"a\r\n", "quotes"),
        ] {
            let error = all(input).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
        assert!(all(&vec![b'a'; LINE_BYTES_MAX]).is_err());
    }

    #[test]
    fn nothing_is_read_after_what_is_no_request() {
        let (mut parser, mut buffer) = (Parser::new(1 << 20), BytesMut::from(&b"PING\r\n*x\r\nPING\r\n"[..]));
        assert!(parser.next(&mut buffer).unwrap().is_some());
        let first = parser.next(&mut buffer).unwrap_err();
        assert_eq!(parser.next(&mut buffer).unwrap_err(), first);
    }

    #[test]
    fn replies_are_written_in_both_versions() {
        let reply = Reply::Map(vec![
            (Reply::text("k"), Reply::Integer(-12)),
            (Reply::Null, Reply::Array(vec![Reply::OK])),
        ]);
        let mut out = Vec::new();
        reply.write(&mut out, Version::Resp2);
        assert_eq!(out, b"*4\r\n$1\r\nk\r\n:-12\r\n$-1\r\n*1\r\n+OK\r\n");
        out.clear();
        reply.write(&mut out, Version::Resp3);
        assert_eq!(out, b"%2\r\n$1\r\nk\r\n:-12\r\n_\r\n*1\r\n+OK\r\n");
        out.clear();
        Reply::error("ERR a\r\nb").write(&mut out, Version::Resp2);
        assert_eq!(out, b"-ERR a  b\r\n");
    }

    proptest! {
        #[test]
        fn bytes_in_any_pieces_are_the_same_requests(
            requests in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5), 0..5),
            cuts in prop::collection::vec(1..10usize, 0..50),
        ) {
            let mut whole = Vec::new();
            for request in &requests {
                let items = request.iter().map(|word| Reply::Bulk(word.clone().into())).collect();
                Reply::Array(items).write(&mut whole, Version::Resp2);
            }
            let (mut parser, mut buffer, mut got, mut rest) = (Parser::new(1 << 20), BytesMut::new(), Vec::new(), &whole[..]);
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (piece, later) = rest.split_at(cut.min(rest.len()));
                rest = later;
                buffer.extend_from_slice(piece);
                while let Some(request) = parser.next(&mut buffer).unwrap() {
                    got.push(request.iter().map(|word| word.to_vec()).collect::<Vec<_>>());
                }
            }
            prop_assert_eq!(got, requests);
        }

        #[test]
        fn no_bytes_make_it_panic(input in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"*$\r\n0123-".to_vec())], 0..200)) {
            let _ = all(&input);
        }
    }
}
