//! Replies as a client sees them: read from a socket, and shown in one line if they fit.
//!
//! ```text
//! +OK   -ERR text   :1   "text"        a simple string, an error, an integer, a bulk string
//! $-1   *-1   _                        RESP2's nulls, RESP3's null
//! [a, b]   {k: v}   push [a, b]        an array, a map, a push
//! set [a]   ,1.5   #t                  RESP3's sets, doubles and booleans
//! ```

use std::io::{self, BufRead};

/// Longer replies are shown with an item on each line.
const LINE_WIDTH: usize = 100;

/// A reply of any type, as it came.
#[derive(Debug)]
pub(super) enum Wire {
    /// What one line says: a simple string, an error, an integer, a null.
    Line(String),
    Bulk(Vec<u8>),
    Array(Vec<Wire>),
    Map(Vec<(Wire, Wire)>),
    Push(Vec<Wire>),
    Set(Vec<Wire>),
}

/// Reads the next reply; `None` where the server has closed the connection.
pub(super) fn read(stream: &mut impl BufRead) -> io::Result<Option<Wire>> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line)?;
    let Some(text) = line.strip_suffix(b"\r\n") else {
        assert!(line.is_empty(), "a reply is cut off: {}", line.escape_ascii());
        return Ok(None);
    };
    let text = String::from_utf8_lossy(text).into_owned();
    let count = || text[1..].parse::<usize>().unwrap_or_else(|_| panic!("{text:?} is not a reply"));
    Ok(Some(match text.as_bytes() {
        b"$-1" | b"*-1" | b"_" => Wire::Line(text),
        [b'+' | b'-' | b':' | b',' | b'#', ..] => Wire::Line(text),
        [b'$', ..] => {
            let mut bytes = vec![0; count() + 2];
            stream.read_exact(&mut bytes)?;
            assert!(bytes.ends_with(b"\r\n"), "a bulk string does not end with its length");
            bytes.truncate(count());
            Wire::Bulk(bytes)
        }
        [b'*', ..] => Wire::Array(items(stream, count())?),
        [b'>', ..] => Wire::Push(items(stream, count())?),
        [b'~', ..] => Wire::Set(items(stream, count())?),
        [b'%', ..] => {
            let mut items = items(stream, 2 * count())?.into_iter();
            Wire::Map(std::iter::from_fn(|| Some((items.next()?, items.next()?))).collect())
        }
        _ => panic!("{text:?} is not a reply"),
    }))
}

fn items(stream: &mut impl BufRead, count: usize) -> io::Result<Vec<Wire>> {
    (0..count).map(|_| read(stream)?.ok_or(io::ErrorKind::UnexpectedEof.into())).collect()
}

impl Wire {
    /// The reply in lines: one if it fits.
    pub(super) fn show(&self) -> Vec<String> {
        if let Some(line) = self.line().filter(|line| line.len() <= LINE_WIDTH) {
            return vec![line];
        }
        match self {
            Self::Line(text) => vec![text.clone()],
            Self::Bulk(bytes) if !is_text(bytes) => vec![quoted(bytes)],
            Self::Bulk(bytes) => {
                let text = String::from_utf8_lossy(bytes);
                let lines = text.lines().filter(|line| !line.is_empty());
                std::iter::once("\"...\"".into()).chain(lines.map(|line| format!("  {line}"))).collect()
            }
            Self::Array(items) => block("[", items.iter().map(Self::show), "]"),
            Self::Push(items) => block("push [", items.iter().map(Self::show), "]"),
            Self::Set(items) => block("set [", items.iter().map(Self::show), "]"),
            Self::Map(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| {
                    let (key, mut value) = (key.show().concat(), value.show());
                    value[0] = format!("{key}: {}", value[0]);
                    value
                });
                block("{", pairs, "}")
            }
        }
    }

    /// The reply in one line; `None` for text of several lines.
    fn line(&self) -> Option<String> {
        let list =
            |items: &[Self]| Some(items.iter().map(Self::line).collect::<Option<Vec<_>>>()?.join(", "));
        match self {
            Self::Line(text) => Some(text.clone()),
            Self::Bulk(bytes) if is_text(bytes) => None,
            Self::Bulk(bytes) => Some(quoted(bytes)),
            Self::Array(items) => Some(format!("[{}]", list(items)?)),
            Self::Push(items) => Some(format!("push [{}]", list(items)?)),
            Self::Set(items) => Some(format!("set [{}]", list(items)?)),
            Self::Map(pairs) => {
                let pair = |(key, value): &(Self, Self)| Some(format!("{}: {}", key.line()?, value.line()?));
                Some(format!("{{{}}}", pairs.iter().map(pair).collect::<Option<Vec<_>>>()?.join(", ")))
            }
        }
    }

    /// Changes every text in the reply.
    pub(super) fn map_text(&mut self, map: &dyn Fn(&str) -> String) {
        match self {
            Self::Line(text) => *text = map(text),
            Self::Bulk(bytes) => {
                if let Ok(text) = std::str::from_utf8(bytes) {
                    *bytes = map(text).into_bytes();
                }
            }
            Self::Array(items) | Self::Push(items) | Self::Set(items) => {
                items.iter_mut().for_each(|item| item.map_text(map))
            }
            Self::Map(pairs) => pairs.iter_mut().for_each(|(_, value)| value.map_text(map)),
        }
    }

    /// Replaces the value named `name`, of a map or of a map that is written as an array.
    pub(super) fn hide(&mut self, name: &str) {
        let hidden = || Self::Line("...".into());
        let named = |key: &Self| matches!(key, Self::Bulk(key) if key == name.as_bytes());
        match self {
            Self::Map(pairs) => {
                pairs.iter_mut().filter(|(key, _)| named(key)).for_each(|(_, value)| *value = hidden());
            }
            Self::Array(items) => {
                if let Some(key) = items.iter().position(named).filter(|key| key + 1 < items.len()) {
                    items[key + 1] = hidden();
                }
            }
            Self::Line(_) | Self::Bulk(_) | Self::Push(_) | Self::Set(_) => {}
        }
    }
}

fn block(open: &str, items: impl Iterator<Item = Vec<String>>, close: &str) -> Vec<String> {
    let mut lines = vec![open.to_owned()];
    lines.extend(items.flatten().map(|line| format!("  {line}")));
    lines.push(close.to_owned());
    lines
}

/// Text that ends with a line's end, as INFO's.
fn is_text(bytes: &[u8]) -> bool {
    bytes.len() > 2 && bytes.ends_with(b"\n") && std::str::from_utf8(bytes).is_ok()
}

/// In quotes; a long run of one byte as a script writes it.
fn quoted(bytes: &[u8]) -> String {
    if bytes.len() > LINE_WIDTH && bytes.iter().all(|byte| *byte == bytes[0]) {
        return format!("{{{}*{}}}", bytes[0].escape_ascii(), bytes.len());
    }
    let escaped = bytes.iter().map(|byte| match byte {
        b'\'' => "'".into(),
        byte => byte.escape_ascii().to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}
