//! Redis's protocol as bytes: requests taken apart, replies written (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).
//!
//! A request is an array of bulk strings, or a line of words. Requests are flat, so nothing here recurses.
//!
//! **Bounds.** Arguments of a request, bytes of one argument and of a line, bytes of a whole request; beyond them the
//! request is a [`ProtocolError`], and the connection is closed.

use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// Arguments of one request at most.
pub(super) const ARGUMENTS_MAX: usize = 1 << 16;
/// Bytes of a line at most: of a request in words, and of each length.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Requests taken off a buffer at once at most.
const REQUESTS_AT_ONCE_MAX: usize = 4096;

/// The client does not speak the protocol. The text is what it is told before the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Protocol error: {0}")]
pub(super) struct ProtocolError(pub(super) String);

fn wrong<T>(what: impl Into<String>) -> Result<T, ProtocolError> {
    Err(ProtocolError(what.into()))
}

/// Requests that came whole, and the bytes in which their arguments lie.
#[derive(Debug, Default)]
pub(super) struct Requests {
    bytes: Bytes,
    /// Of all of them, one after the other.
    arguments: Vec<Range<usize>>,
    /// Behind the last argument of each.
    ends: Vec<usize>,
}

impl Requests {
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// In the order in which they came.
    pub(super) fn iter(&self) -> impl Iterator<Item = Arguments<'_>> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins
            .zip(&self.ends)
            .map(|(from, &to)| Arguments { bytes: &self.bytes, places: &self.arguments[from..to] })
    }

    /// Lets go of the bytes, so that the buffer which they lie in can be used again.
    pub(super) fn clear(&mut self) {
        self.bytes = Bytes::new();
        self.arguments.clear();
        self.ends.clear();
    }
}

/// A request's arguments, its name included; never empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments<'a> {
    bytes: &'a Bytes,
    places: &'a [Range<usize>],
}

impl<'a> Arguments<'a> {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, number: usize) -> &'a [u8] {
        &self.bytes[self.places[number].clone()]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'a [u8]> {
        let bytes = self.bytes;
        self.places.iter().map(move |place| &bytes[place.clone()])
    }

    /// Without copying them: all that came with them stays in memory as long as one of them does.
    pub(super) fn to_bytes(self) -> Vec<Bytes> {
        self.places.iter().map(|place| self.bytes.slice(place.clone())).collect()
    }

    /// Copied: for what is kept for long.
    pub(super) fn copied(self) -> Vec<Bytes> {
        self.iter().map(Bytes::copy_from_slice).collect()
    }
}

/// Takes requests off a buffer. They are parsed where they lie; nothing is copied.
///
/// **Invariant.** The buffer begins where the request begins that has not come whole yet; what is remembered of it are offsets.
#[derive(Debug)]
pub(super) struct Parser {
    /// Bytes of one request at most.
    request_bytes_max: usize,
    /// How far the buffer is read.
    at: usize,
    /// Where the request begins that is being read.
    begin: usize,
    /// How many of its arguments have not come yet, and where the others are.
    awaited: usize,
    begun: Vec<Range<usize>>,
    /// Its bytes, as far as its lengths are known.
    size: usize,
    /// Length of the argument that is coming.
    length: Option<usize>,
    /// Bytes that must come before anything more can be read.
    lacking: usize,
    /// After it nothing can be read any more.
    failed: Option<ProtocolError>,
}

impl Parser {
    /// A parser of requests of up to `request_bytes_max` bytes.
    pub(super) fn new(request_bytes_max: usize) -> Self {
        Self {
            request_bytes_max,
            at: 0,
            begin: 0,
            awaited: 0,
            begun: Vec::new(),
            size: 0,
            length: None,
            lacking: 0,
            failed: None,
        }
    }

    /// For how many bytes the buffer should have room; 0 where it is not known.
    pub(super) fn lacking(&self) -> usize {
        self.lacking
    }

    /// Moves the requests that have come whole from `buffer` to `requests`, which is emptied first.
    ///
    /// # Errors
    /// What came is no request; nor is what follows. Requests before it are handed out first.
    pub(super) fn read(
        &mut self,
        buffer: &mut BytesMut,
        requests: &mut Requests,
    ) -> Result<(), ProtocolError> {
        requests.clear();
        self.lacking = 0;
        if let Some(problem) = &self.failed {
            return Err(problem.clone());
        }
        requests.arguments.append(&mut self.begun);
        while requests.ends.len() < REQUESTS_AT_ONCE_MAX {
            match self.request(buffer, &mut requests.arguments) {
                Ok(true) => requests.ends.push(requests.arguments.len()),
                Ok(false) => break,
                Err(problem) => {
                    self.failed = Some(problem.clone());
                    if requests.is_empty() {
                        return Err(problem);
                    }
                    break;
                }
            }
        }
        let taken = std::mem::take(&mut self.begin);
        self.at -= taken;
        let whole = requests.ends.last().copied().unwrap_or(0);
        let begun = requests.arguments.drain(whole..);
        self.begun.extend(begun.map(|place| place.start - taken..place.end - taken));
        requests.bytes = buffer.split_to(taken).freeze();
        Ok(())
    }

    /// Reads on; true where a request is whole then.
    fn request(&mut self, buffer: &[u8], arguments: &mut Vec<Range<usize>>) -> Result<bool, ProtocolError> {
        loop {
            if self.awaited > 0 {
                if !self.argument(buffer, arguments)? {
                    return Ok(false);
                }
                self.awaited -= 1;
                if self.awaited == 0 {
                    self.begin = self.at;
                    return Ok(true);
                }
                continue;
            }
            let Some(text) = self.line(buffer)? else { return Ok(false) };
            if buffer[text.start..text.end].first() != Some(&b'*') {
                let before = arguments.len();
                words(buffer, text, arguments)?;
                self.begin = self.at;
                if arguments.len() > before {
                    return Ok(true);
                }
                continue;
            }
            match number(&buffer[text.start + 1..text.end]) {
                Some(count) if count <= ARGUMENTS_MAX as i64 => {
                    // As in Redis, an empty or null array asks for nothing.
                    self.awaited = usize::try_from(count).unwrap_or(0);
                    self.size = 0;
                }
                _ => return wrong("invalid multibulk length"),
            }
            if self.awaited == 0 {
                self.begin = self.at;
            }
        }
    }

    /// Reads one argument; false until it has come whole.
    fn argument(&mut self, buffer: &[u8], arguments: &mut Vec<Range<usize>>) -> Result<bool, ProtocolError> {
        let length = match self.length {
            Some(length) => length,
            None => {
                let Some(text) = self.line(buffer)? else { return Ok(false) };
                let length = self.argument_length(&buffer[text])?;
                self.length = Some(length);
                length
            }
        };
        let end = self.at + length;
        let Some(tail) = buffer.get(end..end + 2) else {
            self.lacking = end + 2 - buffer.len();
            return Ok(false);
        };
        if tail != b"\r\n" {
            return wrong("expected CRLF after an argument");
        }
        arguments.push(self.at..end);
        self.at = end + 2;
        self.length = None;
        Ok(true)
    }

    fn argument_length(&mut self, text: &[u8]) -> Result<usize, ProtocolError> {
        let Some((b'$', digits)) = text.split_first() else {
            let got = text.first().copied().unwrap_or(b' ').escape_ascii();
            return wrong(format!("expected '$', got '{got}'"));
        };
        let Some(length) = number(digits).and_then(|length| usize::try_from(length).ok()) else {
            return wrong("invalid bulk length");
        };
        self.size = self.size.saturating_add(length).saturating_add(16);
        if self.size > self.request_bytes_max {
            return wrong(format!("request larger than {} bytes", self.request_bytes_max));
        }
        Ok(length)
    }

    /// Reads the next line, without its end; `None` until it has come whole.
    fn line(&mut self, buffer: &[u8]) -> Result<Option<Range<usize>>, ProtocolError> {
        let rest = &buffer[self.at..];
        let searched = &rest[..rest.len().min(LINE_BYTES_MAX)];
        let Some(length) = searched.iter().position(|byte| *byte == b'\n') else {
            if searched.len() == LINE_BYTES_MAX {
                return wrong("too big inline request");
            }
            return Ok(None);
        };
        let text = searched[..length].strip_suffix(b"\r").unwrap_or(&searched[..length]);
        let place = self.at..self.at + text.len();
        self.at += length + 1;
        Ok(Some(place))
    }
}

/// A whole number of up to 18 digits.
fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut number = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + i64::from(digit - b'0');
    }
    Some(if digits.len() < text.len() { -number } else { number })
}

/// The places of the words of a request typed by a person; in quotes where they have blanks.
fn words(buffer: &[u8], line: Range<usize>, places: &mut Vec<Range<usize>>) -> Result<(), ProtocolError> {
    let mut at = line.start;
    loop {
        let rest = &buffer[at..line.end];
        at += rest.len() - rest.trim_ascii_start().len();
        let rest = &buffer[at..line.end];
        let Some(&first) = rest.first() else { return Ok(()) };
        if matches!(first, b'"' | b'\'') {
            let Some(length) = rest[1..].iter().position(|byte| *byte == first) else {
                return wrong("unbalanced quotes in request");
            };
            places.push(at + 1..at + 1 + length);
            at += length + 2;
        } else {
            let length = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
            places.push(at..at + length);
            at += length;
        }
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

pub(super) fn head(out: &mut Vec<u8>, kind: u8, number: i64) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

pub(super) fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
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
    use super::super::exercise::in_pieces;
    use super::*;
    use proptest::prelude::*;

    fn all(input: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        match in_pieces(input, std::iter::empty()) {
            (requests, None) => Ok(requests),
            (_, Some(problem)) => Err(problem),
        }
    }

    #[test]
    fn requests_of_both_kinds_are_read() {
        let input = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n\r\n*0\r\nset \"a b\" 'c'\n*1\r\n$0\r\n\r\n";
        let wanted: &[&[&[u8]]] = &[&[b"GET", b"k"], &[b"PING"], &[b"set", b"a b", b"c"], &[b""]];
        assert_eq!(all(input).unwrap(), wanted);
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
        let mut requests = Requests::default();
        parser.read(&mut buffer, &mut requests).unwrap();
        assert_eq!(requests.iter().map(|request| request.get(0)).collect::<Vec<_>>(), [b"PING"]);
        let first = parser.read(&mut buffer, &mut requests).unwrap_err();
        assert_eq!(parser.read(&mut buffer, &mut requests).unwrap_err(), first);
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
            prop_assert_eq!(in_pieces(&whole, cuts.into_iter()), (requests, None));
        }

        #[test]
        fn no_bytes_make_it_panic(input in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"*$\r\n0123-".to_vec())], 0..200)) {
            let _ = all(&input);
        }
    }
}
