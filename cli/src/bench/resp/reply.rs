//! Redis's replies, taken apart as far as a load generator needs: where one ends, and what its first line says.
//!
//! What is deliberately absent: values. Who asked knows what the bytes should be, and compares them.

use anyhow::{Result, bail, ensure};

/// Bytes of a line at most.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Where the reply at the beginning of `bytes` ends; `None` until it is there whole.
///
/// # Errors
/// The bytes are no reply.
pub(in crate::bench) fn end(bytes: &[u8]) -> Result<Option<usize>> {
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
            other => bail!("no reply begins with {:?}", other.escape_ascii().to_string()),
        }
        if at > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

/// The first line of `bytes`: its kind, its text, and where the next one begins.
fn line(bytes: &[u8]) -> Result<Option<(u8, &[u8], usize)>> {
    let searched = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
        ensure!(searched.len() < LINE_BYTES_MAX, "a line of more than {LINE_BYTES_MAX} bytes");
        return Ok(None);
    };
    ensure!(end >= 2 && bytes[end - 1] == b'\r', "a line that does not end as lines do");
    Ok(Some((bytes[0], &bytes[1..end - 1], end + 1)))
}

fn number(text: &[u8]) -> Result<i64> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| anyhow::anyhow!("{:?} is no length", text.escape_ascii().to_string()))
}

/// Refuses an error, with its text.
///
/// # Errors
/// It is one.
pub(in crate::bench) fn no_error(reply: &[u8]) -> Result<()> {
    if let [b'-', text @ ..] = reply {
        bail!("{}", String::from_utf8_lossy(text.trim_ascii_end()));
    }
    Ok(())
}

/// The bulk string at the beginning of `bytes`, and what comes after it.
pub(in crate::bench) fn bulk(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (b'$', text, next) = line(bytes).ok()?? else { return None };
    let length = usize::try_from(number(text).ok()?).ok()?;
    Some((bytes.get(next..next + length)?, bytes.get(next + length + 2..)?))
}

/// What comes after the line at the beginning of `bytes`, if it is of this kind.
pub(in crate::bench) fn after_line(bytes: &[u8], kind: u8) -> Option<&[u8]> {
    let (found, _, next) = line(bytes).ok()??;
    (found == kind).then(|| &bytes[next..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_ends_where_it_ends_and_not_before_it_is_whole() {
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
    fn what_is_no_reply_is_told() {
        for bytes in [&b"?\r\n"[..], b"$x\r\n", b"*%\r\n", b"\n"] {
            assert!(end(bytes).is_err(), "{}", bytes.escape_ascii());
        }
        assert!(end(&vec![b'+'; LINE_BYTES_MAX]).is_err());
        assert_eq!(no_error(b"-BUSY again\r\n").unwrap_err().to_string(), "BUSY again");
    }

    #[test]
    fn parts_are_taken_one_after_the_other() {
        let (value, rest) = bulk(after_line(b"*2\r\n$2\r\nab\r\n$1\r\nc\r\n", b'*').unwrap()).unwrap();
        assert_eq!((value, bulk(rest)), (&b"ab"[..], Some((&b"c"[..], &b""[..]))));
        assert_eq!((bulk(b"$-1\r\n"), bulk(b"$3\r\nab"), after_line(b":1\r\n", b'*')), (None, None, None));
    }
}
