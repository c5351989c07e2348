//! The function face's records in the store. All keys begin with the face's byte `0x06`.
//!
//! ```text
//! 0x06 'l' name  -> a library
//! ```
//!
//! The values are Protocol Buffers messages.

use bytes::Bytes;
use prost::Message;

/// The first byte of the face's store keys.
pub(crate) const FACE: u8 = 6;
/// The prefix of all libraries.
pub(super) const LIBRARIES: &[u8] = &[FACE, b'l'];
/// Maximum bytes of the name of a library or function.
pub(super) const NAME_BYTES_MAX: usize = 1024;
/// Maximum bytes of a library's text.
pub const CODE_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of all libraries together: replicas keep them in memory.
pub(super) const BYTES_MAX: usize = 16 << 20;
/// Maximum libraries and functions: a change costs a little for each.
pub(super) const ENTRIES_MAX: usize = 10_000;

/// The function writes nothing.
pub const NO_WRITES: u32 = 1;
/// The function may run where there is too little memory. It is kept, and means nothing here, as those below.
pub const ALLOW_OOM: u32 = 2;
/// The function may run on a replica that has lost its leader.
pub const ALLOW_STALE: u32 = 4;
/// The function does not run in a Redis Cluster.
pub const NO_CLUSTER: u32 = 8;
/// The function's keys may be in several slots of a Redis Cluster.
pub const ALLOW_CROSS_SLOT_KEYS: u32 = 16;
/// All flags, with Redis's names.
pub const FLAGS: &[(&str, u32)] = &[
    ("no-writes", NO_WRITES),
    ("allow-oom", ALLOW_OOM),
    ("allow-stale", ALLOW_STALE),
    ("no-cluster", NO_CLUSTER),
    ("allow-cross-slot-keys", ALLOW_CROSS_SLOT_KEYS),
];

/// A library.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Library {
    /// See [`is_name`].
    #[prost(string, tag = "1")]
    pub name: String,
    /// The whole text, with its first line.
    #[prost(bytes = "bytes", tag = "2")]
    pub code: Bytes,
    /// What it has registered, in this order. Not empty.
    #[prost(message, repeated, tag = "3")]
    pub functions: Vec<Function>,
}

/// A function of a library.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Function {
    /// See [`is_name`]. No two functions have one, in whatever case and of whatever libraries.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What the library says of it.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub description: Option<Bytes>,
    /// A sum of [`FLAGS`].
    #[prost(uint32, tag = "3")]
    pub flags: u32,
}

/// Whether it can be the name of a library or function: letters, digits and `_`, at least one, at most 1024.
pub fn is_name(name: &str) -> bool {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

pub(super) fn library_key(name: &str) -> Vec<u8> {
    [LIBRARIES, name.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_pinned() {
        let functions = vec![Function { name: "f".into(), description: None, flags: 3 }];
        let library = Library { name: "l".into(), code: "c".into(), functions };
        assert_eq!(library.encode_to_vec(), b"\x0a\x01l\x12\x01c\x1a\x05\x0a\x01f\x18\x03");
        assert_eq!(library_key("l"), b"\x06ll");
    }

    #[test]
    fn names_are_words() {
        assert!(is_name("a_B9") && is_name(&"x".repeat(NAME_BYTES_MAX)));
        for name in ["", "a-b", "a b", "é", "a\0", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
