//! Requests of Redis's protocol: an array of bulk strings.

/// Appends a request.
pub(crate) fn words(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends a number as a word of decimal digits, without allocating.
pub(crate) fn decimal(number: u64, out: &mut Vec<u8>) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number);
    out.push(b'$');
    out.extend_from_slice(itoa::Buffer::new().format(digits.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(digits.as_bytes());
    out.extend_from_slice(b"\r\n");
}
