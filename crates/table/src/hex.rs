//! Bytes as hexadecimal text, for manifests.

/// Encodes `bytes` as two lowercase digits each.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes hexadecimal digits of either case; `None` for any other text.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len() / 2).map(|byte| u8::from_str_radix(text.get(2 * byte..2 * byte + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_and_back_and_nothing_else() {
        assert_eq!(super::decode("00fF10"), Some(vec![0, 255, 16]));
        assert_eq!(super::encode(&[0, 255, 16]), "00ff10");
        for bad in ["0", "0g", "+1", "é"] {
            assert_eq!(super::decode(bad), None, "{bad}");
        }
    }
}
