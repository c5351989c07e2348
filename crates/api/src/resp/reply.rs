//! Replies as bytes, in RESP2 and RESP3 (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).

use super::number;
use bytes::Bytes;

/// Which version of the protocol a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Resp2,
    Resp3,
}

impl Version {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// The reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    /// `+OK` and the like.
    Simple(&'static str),
    /// As [`Self::Simple`], for what a script says.
    Status(Bytes),
    /// An error, beginning with its code.
    Error(String),
    Integer(i64),
    /// In RESP2 the text of the number.
    Double(f64),
    /// In RESP2 1 or 0.
    Boolean(bool),
    Bulk(Bytes),
    Null,
    /// In RESP2 another kind of null: EXEC did nothing, or COMMAND INFO does not know a name.
    NullArray,
    Array(Vec<Reply>),
    /// In RESP2 an array.
    Set(Vec<Reply>),
    /// Pairs; in RESP2 an array.
    Map(Vec<(Reply, Reply)>),
    /// Pairs; in RESP2 an array of all of it, in RESP3 an array of arrays.
    Pairs(Vec<(Reply, Reply)>),
    /// A message that answers no request; in RESP2 an array.
    Push(Vec<Reply>),
    /// Several replies to one command: SUBSCRIBE has one per channel.
    Several(Vec<Reply>),
}

impl Reply {
    pub(super) const OK: Self = Self::Simple("OK");

    pub(super) fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Bulk(Bytes::from(text.into()))
    }

    /// Appends the reply to `out` as this version of the protocol writes it.
    pub(super) fn write(&self, out: &mut Vec<u8>, version: Version) {
        match self {
            Self::Simple(text) => {
                out.push(b'+');
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Self::Status(text) => line(out, b'+', text),
            Self::Error(text) => line(out, b'-', text.as_bytes()),
            Self::Integer(number) => head(out, b':', *number),
            Self::Double(number) if version == Version::Resp3 => {
                line(out, b',', number::text(*number).as_bytes());
            }
            Self::Double(number) => bulk(out, number::text(*number).as_bytes()),
            Self::Boolean(value) if version == Version::Resp3 => {
                line(out, b'#', if *value { b"t" } else { b"f" });
            }
            Self::Boolean(value) => head(out, b':', (*value).into()),
            Self::Bulk(bytes) => bulk(out, bytes),
            Self::Null | Self::NullArray if version == Version::Resp3 => out.extend_from_slice(b"_\r\n"),
            Self::Null => out.extend_from_slice(b"$-1\r\n"),
            Self::NullArray => out.extend_from_slice(b"*-1\r\n"),
            Self::Array(items) => list(out, b'*', items, version),
            Self::Set(items) => {
                list(out, if version == Version::Resp3 { b'~' } else { b'*' }, items, version)
            }
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
            Self::Pairs(pairs) => {
                let both = if version == Version::Resp3 { 1 } else { 2 };
                head(out, b'*', both * pairs.len() as i64);
                for (first, second) in pairs {
                    if version == Version::Resp3 {
                        head(out, b'*', 2);
                    }
                    first.write(out, version);
                    second.write(out, version);
                }
            }
            Self::Several(replies) => replies.iter().for_each(|reply| reply.write(out, version)),
        }
    }
}

/// Appends a type byte and a number: an integer, or how many items or bytes follow.
pub(super) fn head(out: &mut Vec<u8>, kind: u8, number: i64) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a bulk string.
pub(super) fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    head(out, b'$', bytes.len() as i64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a line, whatever its text quotes.
fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend(text.iter().map(|byte| if *byte < b' ' { b' ' } else { *byte }));
    out.extend_from_slice(b"\r\n");
}

fn list(out: &mut Vec<u8>, kind: u8, items: &[Reply], version: Version) {
    head(out, kind, items.len() as i64);
    items.iter().for_each(|item| item.write(out, version));
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
