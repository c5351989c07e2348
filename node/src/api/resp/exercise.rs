//! Any bytes as requests, whole and in pieces: for the fuzz target `requests` and for the tests that run its corpus.

use super::frame::{ARGUMENTS_MAX, Parser, ProtocolError, Requests};
use bytes::BytesMut;

/// Bytes of a request at most, here.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// What came of some bytes: the requests, and what was wrong behind them.
type Outcome = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Reads `input` as requests. True where it is nothing but requests, as far as it goes.
///
/// # Panics
/// What is read depends on the pieces in which it comes, or a bound does not hold.
#[allow(unreachable_pub, reason = "public with the feature `fuzzing`")]
pub fn requests(input: &[u8]) -> bool {
    let whole = in_pieces(input, std::iter::empty());
    for size in [1, 2, 7, 64] {
        let pieces = in_pieces(input, std::iter::repeat_n(size, input.len().div_ceil(size)));
        assert_eq!(pieces, whole, "in pieces of {size} bytes");
    }
    for request in &whole.0 {
        assert!((1..=ARGUMENTS_MAX.max(input.len())).contains(&request.len()));
    }
    let bytes: usize = whole.0.iter().flatten().map(Vec::len).sum();
    assert!(bytes <= input.len());
    whole.1.is_none()
}

/// What comes of `input` when it comes in pieces of these sizes, the rest at once.
pub(super) fn in_pieces(input: &[u8], sizes: impl Iterator<Item = usize>) -> Outcome {
    let (mut parser, mut buffer) = (Parser::new(REQUEST_BYTES_MAX), BytesMut::new());
    let (mut requests, mut found, mut rest) = (Requests::default(), Vec::new(), input);
    for size in sizes.chain([usize::MAX]) {
        let (piece, later) = rest.split_at(size.min(rest.len()));
        rest = later;
        buffer.extend_from_slice(piece);
        loop {
            if let Err(problem) = parser.read(&mut buffer, &mut requests) {
                return (found, Some(problem));
            }
            if requests.is_empty() {
                break;
            }
            let words = requests.iter().map(|request| request.iter().map(<[u8]>::to_vec).collect());
            found.extend(words);
        }
        assert!(parser.lacking() <= REQUEST_BYTES_MAX + 2, "room for {} bytes", parser.lacking());
    }
    (found, None)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Files are named for what becomes of them: `read-...` or `refused-...`.
    #[test]
    fn the_fuzzer_s_corpus_is_read_or_refused_as_its_names_say() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/requests");
        let mut seen = 0;
        for file in std::fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let read = super::requests(&std::fs::read(&path).unwrap());
            assert_eq!(read, name.starts_with("read-"), "{name}");
            assert!(read || name.starts_with("refused-"), "{name}");
            seen += 1;
        }
        assert!(seen >= 15, "{seen} files in {}", folder.display());
    }
}
