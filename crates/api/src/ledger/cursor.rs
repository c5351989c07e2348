//! Where a query goes on: a text with which the next page begins, and which only the same query takes.
//!
//! It holds a key and a digest of the key, the cluster, and the query, all in hexadecimal. So a cursor of another query, of
//! another cluster, or one that was changed is refused, where it would leave something out without a word. It need not
//! outlive a version.

use crate::error::Error;
use sha2::{Digest, Sha256};
use std::fmt::{Debug, Write};

/// Bytes of the digest.
const DIGEST_BYTES: usize = 8;

/// What a cursor belongs to: the cluster and the query, without its page size.
#[derive(Clone)]
pub(crate) struct Query(Sha256);

impl Query {
    pub(crate) fn new(cluster: u64, query: &impl Debug) -> Self {
        Self(Sha256::new_with_prefix(cluster.to_be_bytes()).chain_update(format!("{query:?}")))
    }

    /// The cursor that goes on after `key`.
    pub(crate) fn cursor(&self, key: &[u8]) -> String {
        let mut text = String::with_capacity(2 * (DIGEST_BYTES + key.len()));
        for byte in self.digest(key).iter().chain(key) {
            write!(text, "{byte:02x}").expect("a string grows");
        }
        text
    }

    /// The key in a cursor of this query; `None` for an empty one.
    ///
    /// # Errors
    /// It is not a cursor of this query.
    pub(crate) fn key(&self, cursor: &str) -> Result<Option<Vec<u8>>, Error> {
        if cursor.is_empty() {
            return Ok(None);
        }
        let key = decode(cursor).and_then(|bytes| {
            let (digest, key) = bytes.split_first_chunk::<DIGEST_BYTES>()?;
            (*digest == self.digest(key)).then(|| key.to_vec())
        });
        let shown: String = cursor.chars().take(64).collect();
        key.map(Some).ok_or_else(|| {
            Error::invalid(format_args!(
                "cursor: {shown:?} is not of an earlier page of this query; begin again without one"
            ))
        })
    }

    fn digest(&self, key: &[u8]) -> [u8; DIGEST_BYTES] {
        let digest: [u8; 32] = self.0.clone().chain_update(key).finalize().into();
        *digest.first_chunk().expect("a digest has 32 bytes")
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.bytes().map(|byte| char::from(byte).to_digit(16).map(|digit| digit as u8));
    let digits: Vec<u8> = digits.collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_taken_by_its_own_query_and_by_no_other() {
        let query = Query::new(1, &"a");
        let cursor = query.cursor(b"key");
        assert_eq!(query.key(&cursor).unwrap().as_deref(), Some(&b"key"[..]));
        assert_eq!(query.key("").unwrap(), None);
        let changed = format!("{}7a", &cursor[..cursor.len() - 2]);
        for (query, cursor) in [
            (Query::new(2, &"a"), cursor.as_str()),
            (Query::new(1, &"b"), cursor.as_str()),
            (query.clone(), &changed),
            (query.clone(), &cursor[..cursor.len() - 1]),
            (query.clone(), "x"),
            (query.clone(), "ab"),
            (query.clone(), "é"),
        ] {
            let error = query.key(cursor).unwrap_err().to_string();
            assert!(error.contains("cursor: ") && error.contains(cursor), "{error}");
        }
    }
}
