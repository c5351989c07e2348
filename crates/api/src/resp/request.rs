//! Requests, parsed (<https://redis.io/docs/latest/develop/reference/protocol-spec/>): each is an array of
//! bulk strings, or a line of words. Requests are flat, so nothing here recurses.
//!
//! **Invariant: Bounded.** Arguments of a request, bytes of a line and bytes of a whole request have limits.
//! Exceeding one is a
//! [`ProtocolError`], and the connection is closed.

use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// Maximum arguments of one request.
pub(super) const ARGUMENTS_MAX: usize = 1 << 16;
/// Maximum bytes of a line: a request in words, or a length.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum requests taken from a buffer at once; the others wait in it.
const REQUESTS_AT_ONCE_MAX: usize = 4096;

/// The client does not speak the protocol. It is told this text before the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Protocol error: {0}")]
pub(super) struct ProtocolError(pub(super) String);

fn wrong<T>(what: impl Into<String>) -> Result<T, ProtocolError> {
    Err(ProtocolError(what.into()))
}

/// Complete requests, and the bytes that hold their arguments.
#[derive(Debug, Default)]
pub(super) struct Requests {
    bytes: Bytes,
    /// The arguments of all requests, in order.
    arguments: Vec<Range<usize>>,
    /// For each request, the number of arguments up to and including its last.
    ends: Vec<usize>,
}

impl Requests {
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The requests, in the order in which they came.
    pub(super) fn iter(&self) -> impl Iterator<Item = Arguments<'_>> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins
            .zip(&self.ends)
            .map(|(from, &to)| Arguments { bytes: &self.bytes, places: &self.arguments[from..to] })
    }

    /// Releases the bytes, so that their buffer can be reused.
    pub(super) fn clear(&mut self) {
        self.bytes = Bytes::new();
        self.arguments.clear();
        self.ends.clear();
    }
}

/// The arguments of a request, beginning with the command's name; never empty.
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

    /// The arguments without a copy: each keeps the whole read buffer in memory.
    pub(super) fn to_bytes(self) -> Vec<Bytes> {
        self.places.iter().map(|place| self.bytes.slice(place.clone())).collect()
    }

    /// The arguments copied, to be kept for long.
    pub(super) fn copied(self) -> Vec<Bytes> {
        self.iter().map(Bytes::copy_from_slice).collect()
    }
}

/// Takes requests from a buffer, in place and without copying.
///
/// Between calls the buffer begins with the first incomplete request, so what the parser remembers of it are
/// offsets.
#[derive(Debug)]
pub(super) struct Parser {
    /// Maximum bytes of one request.
    request_bytes_max: usize,
    /// How far the buffer has been parsed.
    at: usize,
    /// Where the current request begins.
    begin: usize,
    /// How many arguments of the current request are still to come.
    awaited: usize,
    /// Where its other arguments are.
    begun: Vec<Range<usize>>,
    /// Bytes of the current request, as far as its lengths are known.
    size: usize,
    /// Length of the current argument, once known.
    length: Option<usize>,
    /// Bytes that must come before parsing can go on; 0 where that is not known.
    lacking: usize,
    /// Nothing can be parsed after this.
    failed: Option<ProtocolError>,
}

impl Parser {
    /// A parser for requests of at most `request_bytes_max` bytes.
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

    /// How many more bytes the buffer should have room for; 0 where that is not known.
    pub(super) fn lacking(&self) -> usize {
        self.lacking
    }

    /// Moves the complete requests from `buffer` to `requests`, which is cleared first.
    ///
    /// # Errors
    /// The bytes are not a request; requests before them are returned first. Every later call fails too.
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

    /// Parses on; true once a request is complete.
    fn request(
        &mut self,
        buffer: &mut [u8],
        arguments: &mut Vec<Range<usize>>,
    ) -> Result<bool, ProtocolError> {
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

    /// Parses one argument; false until it is complete.
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

    /// Parses the next line and returns it without its end; `None` until it is complete.
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

/// An integer of at most 18 digits.
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

/// Finds the words of a request that a person typed. Words with blanks stand in quotes; what stands for other
/// bytes there is replaced in place.
fn words(buffer: &mut [u8], line: Range<usize>, places: &mut Vec<Range<usize>>) -> Result<(), ProtocolError> {
    let mut at = line.start;
    loop {
        let rest = &buffer[at..line.end];
        at += rest.len() - rest.trim_ascii_start().len();
        if at == line.end {
            return Ok(());
        }
        let rest = &mut buffer[at..line.end];
        let (bytes, taken) = word(rest)?;
        places.push(at..at + bytes);
        at += taken;
    }
}

/// Reads a word at the beginning of a line and leaves its bytes there. Returns how many these are, and how many
/// the word took.
fn word(line: &mut [u8]) -> Result<(usize, usize), ProtocolError> {
    const UNBALANCED: &str = "unbalanced quotes in request";
    let (mut at, mut bytes, mut quote) = (0, 0, None);
    while let Some(&byte) = line.get(at) {
        let (kept, taken) = match (quote, byte) {
            (None, _) if byte.is_ascii_whitespace() => return Ok((bytes, at)),
            (None, b'"' | b'\'') => {
                quote = Some(byte);
                (None, 1)
            }
            (Some(open), _) if byte == open => {
                // Only a blank may follow.
                let ends = line.get(at + 1).is_none_or(u8::is_ascii_whitespace);
                return if ends { Ok((bytes, at + 1)) } else { wrong(UNBALANCED) };
            }
            (Some(b'"'), b'\\') => escaped(&line[at..]),
            (Some(b'\''), b'\\') if line.get(at + 1) == Some(&b'\'') => (Some(b'\''), 2),
            _ => (Some(byte), 1),
        };
        if let Some(kept) = kept {
            line[bytes] = kept;
            bytes += 1;
        }
        at += taken;
    }
    if quote.is_some() { wrong(UNBALANCED) } else { Ok((bytes, at)) }
}

/// The byte that `\n`, `\xff` and the like stand for, and how many bytes they take.
fn escaped(text: &[u8]) -> (Option<u8>, usize) {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    match text.get(1) {
        Some(b'x') => match (digit(2), digit(3)) {
            (Some(high), Some(low)) => (Some((high * 16 + low) as u8), 4),
            _ => (Some(b'x'), 2),
        },
        Some(b'n') => (Some(b'\n'), 2),
        Some(b'r') => (Some(b'\r'), 2),
        Some(b't') => (Some(b'\t'), 2),
        Some(b'b') => (Some(8), 2),
        Some(b'a') => (Some(7), 2),
        Some(other) => (Some(*other), 2),
        None => (Some(b'\\'), 1),
    }
}
