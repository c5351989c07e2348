//! Replies of Redis's protocol, parsed as far as a load generator needs: where a reply ends, and what its
//! first line says.
//!
//! It deliberately parses no values: the caller knows which bytes to expect, and compares them.

use anyhow::{Result, bail, ensure};

/// Maximum bytes of a line.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Where the reply at the start of `bytes` ends; `None` until it is complete.
///
/// # Errors
/// The bytes are not a reply.
pub(crate) fn end(bytes: &[u8]) -> Result<Option<usize>> {
    let (mut at, mut parts) = (0, 1_usize);
    while parts > 0 {
        let Some((kind, text, next)) = line(&bytes[at..])? else { return Ok(None) };
        at += next;
        parts -= 1;
        match kind {
            b'$' => {
                let length = number(text)?;
                if length >= 0 {
                    at += usize::try_from(length)? + 2;
                }
            }
            b'*' | b'>' | b'~' => parts += usize::try_from(number(text)?.max(0))?,
            b'%' => parts += 2 * usize::try_from(number(text)?)?,
            b'+' | b'-' | b':' | b'_' | b'#' | b',' => {}
            other => bail!("a reply cannot begin with {:?}", other.escape_ascii().to_string()),
        }
        if at > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

/// The first line of `bytes`: its kind, its text, and where the next line begins.
fn line(bytes: &[u8]) -> Result<Option<(u8, &[u8], usize)>> {
    let searched = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
        ensure!(searched.len() < LINE_BYTES_MAX, "a line has more than {LINE_BYTES_MAX} bytes");
        return Ok(None);
    };
    ensure!(end >= 2 && bytes[end - 1] == b'\r', "a line does not end with CR LF");
    Ok(Some((bytes[0], &bytes[1..end - 1], end + 1)))
}

fn number(text: &[u8]) -> Result<i64> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| anyhow::anyhow!("{:?} is not a length", text.escape_ascii().to_string()))
}

/// Turns an error reply into an error.
///
/// # Errors
/// The reply is one; the error has its text.
pub(crate) fn no_error(reply: &[u8]) -> Result<()> {
    if let [b'-', text @ ..] = reply {
        bail!("{}", String::from_utf8_lossy(text.trim_ascii_end()));
    }
    Ok(())
}

/// The bulk string at the start of `bytes`, and the bytes after it.
pub(crate) fn bulk(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (b'$', text, next) = line(bytes).ok()?? else { return None };
    let length = usize::try_from(number(text).ok()?).ok()?;
    Some((bytes.get(next..next + length)?, bytes.get(next + length + 2..)?))
}

/// The bytes after the first line, if the line is of this kind.
pub(crate) fn after_line(bytes: &[u8], kind: u8) -> Option<&[u8]> {
    let (found, _, next) = line(bytes).ok()??;
    (found == kind).then(|| &bytes[next..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_ends_only_when_it_is_complete() {
        let replies: [&[u8]; 9] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-12\r\n",
            b"$5\r\nab\r\nc\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*3\r\n:1\r\n$0\r\n\r\n*1\r\n$-1\r\n",
            b"%1\r\n+k\r\n_\r\n",
            b"*0\r\n",
        ];
        for reply in replies {
            let more = [reply, b"+next\r\n"].concat();
            assert_eq!(end(&more).unwrap(), Some(reply.len()), "{}", reply.escape_ascii());
            for cut in 0..reply.len() {
                assert_eq!(end(&reply[..cut]).unwrap(), None, "{} cut at {cut}", reply.escape_ascii());
            }
        }
    }

    #[test]
    fn bytes_that_are_no_reply_are_refused() {
        for bytes in [&b"?\r\n"[..], b"$x\r\n", b"*%\r\n", b"\n"] {
            assert!(end(bytes).is_err(), "{}", bytes.escape_ascii());
        }
        assert!(end(&vec![b'+'; LINE_BYTES_MAX]).is_err());
        assert_eq!(no_error(b"-BUSY again\r\n").unwrap_err().to_string(), "BUSY again");
    }

    #[test]
    fn bulk_strings_are_taken_in_turn() {
        let (value, rest) = bulk(after_line(b"*2\r\n$2\r\nab\r\n$1\r\nc\r\n", b'*').unwrap()).unwrap();
        assert_eq!((value, bulk(rest)), (&b"ab"[..], Some((&b"c"[..], &b""[..]))));
        assert_eq!((bulk(b"$-1\r\n"), bulk(b"$3\r\nab"), after_line(b":1\r\n", b'*')), (None, None, None));
    }
}
