//! Cuts a body into the JSON objects that it consists of, as they come.
//!
//! Each byte is looked at once, whatever pieces the body comes in. Whether an object is well formed is for its decoder
//! to say.

use bytes::{Bytes, BytesMut};

/// The bytes of a body that have come and belong to no object that was taken.
#[derive(Default)]
pub(super) struct Splitter {
    bytes: BytesMut,
    /// How many of them were looked at.
    seen: usize,
    /// Braces and brackets that are open.
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// The body has something else where an object should begin.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a JSON object is expected, not {0:?}")]
pub(super) struct NoObject(char);

impl Splitter {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of the object that has not come wholly.
    pub(super) fn pending(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the next object; `None` if it has not come wholly.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, NoObject> {
        while let Some(byte) = self.bytes.get(self.seen).copied() {
            if self.depth == 0 {
                match byte {
                    b'{' => {}
                    b' ' | b'\t' | b'\r' | b'\n' => {
                        let _ = self.bytes.split_to(1);
                        continue;
                    }
                    other => return Err(NoObject(other.into())),
                }
            }
            self.seen += 1;
            self.step(byte);
            if self.depth == 0 {
                let whole = self.bytes.split_to(std::mem::take(&mut self.seen));
                return Ok(Some(whole.freeze()));
            }
        }
        Ok(None)
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_in_any_pieces() {
        let body = b" {\"a\":\"}{\\\"\\\\\"}\n{}{\"b\":[{\"c\":[]}]}\r\n";
        for size in 1..=body.len() {
            let mut splitter = Splitter::default();
            let mut found = Vec::new();
            for piece in body.chunks(size) {
                splitter.push(piece);
                while let Some(object) = splitter.next().unwrap() {
                    found.push(String::from_utf8(object.to_vec()).unwrap());
                }
            }
            assert_eq!(found, ["{\"a\":\"}{\\\"\\\\\"}", "{}", "{\"b\":[{\"c\":[]}]}"]);
            assert_eq!(splitter.pending(), 0);
        }
    }

    #[test]
    fn what_is_no_object_is_refused_and_what_is_cut_off_is_pending() {
        for text in ["[]", "1", "\"a\"", " null", "}", "{}]"] {
            let mut splitter = Splitter::default();
            splitter.push(text.as_bytes());
            let refused = loop {
                match splitter.next() {
                    Ok(Some(_)) => {}
                    other => break other,
                }
            };
            assert!(refused.is_err(), "{text}");
        }
        let mut splitter = Splitter::default();
        splitter.push(b"{\"a\":{");
        assert_eq!((splitter.next(), splitter.pending()), (Ok(None), 6));
    }
}
