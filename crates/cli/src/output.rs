//! How answers are printed: tables and JSON as the benches print them, and bytes as text.

pub(crate) use quoin_load::output::{json, table};

/// Bytes as text if they are printable UTF-8, otherwise with escapes.
pub(crate) fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_string(),
        _ => bytes.escape_ascii().to_string(),
    }
}
