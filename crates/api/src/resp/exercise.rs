//! The request parser fed with any bytes, at once and in pieces: for the fuzz target `requests`, for the test
//! that runs its corpus, and for the parser's own tests, which stand here because they need [`in_pieces`].

use super::request::{ARGUMENTS_MAX, Parser, ProtocolError, Requests};
use bytes::BytesMut;

/// Maximum bytes of a request, here.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The requests that were parsed, and the error after them.
type Outcome = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Parses `input` as requests; false where it breaks the protocol.
///
/// # Panics
/// The result depends on how the input is cut, or a bound does not hold.
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

/// Parses `input` in pieces of these sizes, the rest at once.
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
    use super::*;
    use crate::resp::reply::{Reply, Version};
    use crate::resp::request::LINE_BYTES_MAX;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::path::Path;

    /// The files' names say what becomes of them: `read-...` or `refused-...`.
    #[test]
    fn the_fuzzer_s_corpus_is_read_or_refused_as_its_names_say() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/requests");
        let mut seen = 0;
        for file in std::fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let read = requests(&std::fs::read(&path).unwrap());
            assert_eq!(read, name.starts_with("read-"), "{name}");
            assert!(read || name.starts_with("refused-"), "{name}");
            seen += 1;
        }
        assert!(seen >= 15, "{seen} files in {}", folder.display());
    }

    fn all(input: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        match in_pieces(input, std::iter::empty()) {
            (requests, None) => Ok(requests),
            (_, Some(problem)) => Err(problem),
        }
    }

    #[test]
    fn requests_of_both_kinds_are_read() {
        let input = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n\r\n*0\r\nset \"a b\" 'c'\n*1\r\n$0\r\n\r\n";
        let wanted: &[&[&[u8]]] = &[&[b"GET", b"k"], &[b"PING"], &[b"set", b"a b", b"c"], &[b""]];
        assert_eq!(all(input).unwrap(), wanted);
    }

    #[test]
    fn what_is_no_request_is_told_and_absurd_lengths_take_no_memory() {
        for (input, problem) in [
            (&b"*x\r\n"[..], "multibulk"),
            (b"*99999999\r\n", "multibulk"),
            (b"*1\r\n:1\r\n", "expected '$'"),
            (b"*1\r\n$-5\r\n", "bulk length"),
            (b"*1\r\n$999999999999\r\n", "larger than"),
            (b"*1\r\n$1\r\nabc", "CRLF"),
            (b"get \"a\r\n", "quotes"),
        ] {
            let error = all(input).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
        assert!(all(&vec![b'a'; LINE_BYTES_MAX]).is_err());
    }

    #[test]
    fn nothing_is_read_after_what_is_no_request() {
        let (mut parser, mut buffer) = (Parser::new(1 << 20), BytesMut::from(&b"PING\r\n*x\r\nPING\r\n"[..]));
        let mut requests = Requests::default();
        parser.read(&mut buffer, &mut requests).unwrap();
        assert_eq!(requests.iter().map(|request| request.get(0)).collect::<Vec<_>>(), [b"PING"]);
        let first = parser.read(&mut buffer, &mut requests).unwrap_err();
        assert_eq!(parser.read(&mut buffer, &mut requests).unwrap_err(), first);
    }

    proptest! {
        #[test]
        fn bytes_in_any_pieces_are_the_same_requests(
            requests in vec(vec(vec(any::<u8>(), 0..20), 1..5), 0..5),
            cuts in vec(1..10usize, 0..50),
        ) {
            let mut whole = Vec::new();
            for request in &requests {
                let items = request.iter().map(|word| Reply::Bulk(word.clone().into())).collect();
                Reply::Array(items).write(&mut whole, Version::Resp2);
            }
            prop_assert_eq!(in_pieces(&whole, cuts.into_iter()), (requests, None));
        }

        #[test]
        fn no_bytes_make_it_panic(
            input in vec(prop_oneof![any::<u8>(), prop::sample::select(b"*$\r\n0123-".to_vec())], 0..200),
        ) {
            let _ = all(&input);
        }
    }
}
