//! FUNCTION DUMP and RESTORE: libraries' texts as Redis 7 and later write them, so that they can be moved both ways.
//!
//! ```text
//! for each library   0xf5, then its text as a string of Redis's database files: length and bytes, or LZF
//! 2 bytes            the version of these files, little-endian
//! 8 bytes            CRC-64 (Jones) of all before, little-endian
//! ```
//!
//! Deliberately absent: writing LZF. Redis reads strings that are not compressed, too.

use quoin_core::function::Library;
use std::sync::Arc;

/// Before each library.
const LIBRARY: u8 = 0xf5;
/// The version of Redis 7.0's files. Later ones differ in other things than libraries.
const VERSION: u16 = 10;
/// Bytes behind the libraries.
const FOOTER_BYTES: usize = 10;
/// Maximum bytes of all texts together.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Why bytes are no dump. The texts are Redis's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    #[error("ERR DUMP payload version or checksum are wrong")]
    Footer,
    #[error("ERR given type is not a function")]
    Type,
    #[error("ERR failed loading functions from the payload: it is malformed or too large")]
    Malformed,
}

/// The dump of libraries.
pub(super) fn dump<'a>(libraries: impl Iterator<Item = &'a Arc<Library>>) -> Vec<u8> {
    let mut out = Vec::new();
    for library in libraries {
        out.push(LIBRARY);
        put_length(&mut out, library.code.len());
        out.extend_from_slice(&library.code);
    }
    out.extend_from_slice(&VERSION.to_le_bytes());
    let sum = crc64(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// The texts in a dump.
///
/// # Errors
/// It is none, or too large.
pub(super) fn texts(dump: &[u8]) -> Result<Vec<Vec<u8>>, Wrong> {
    let (mut rest, footer) =
        dump.len().checked_sub(FOOTER_BYTES).map(|end| dump.split_at(end)).ok_or(Wrong::Footer)?;
    let (summed, sum) = dump.split_at(dump.len() - 8);
    if crc64(summed).to_le_bytes() != *sum || u16::from_le_bytes([footer[0], footer[1]]) < VERSION {
        return Err(Wrong::Footer);
    }
    let (mut texts, mut left) = (Vec::new(), TEXT_BYTES_MAX);
    while let Some((kind, after)) = rest.split_first() {
        if *kind != LIBRARY {
            return Err(Wrong::Type);
        }
        rest = after;
        let text = string(&mut rest, left).ok_or(Wrong::Malformed)?;
        // Each takes a place in a list, besides its bytes.
        left = left.checked_sub(text.len() + size_of::<Vec<u8>>()).ok_or(Wrong::Malformed)?;
        texts.push(text);
    }
    Ok(texts)
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    match u32::try_from(length) {
        Ok(length @ 0..0x40) => out.push(length as u8),
        Ok(length @ 0x40..0x4000) => out.extend_from_slice(&(0x4000 | length as u16).to_be_bytes()),
        Ok(length) => {
            out.push(0x80);
            out.extend_from_slice(&length.to_be_bytes());
        }
        Err(_) => {
            out.push(0x81);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

/// A string of at most `max` bytes.
fn string(rest: &mut &[u8], max: usize) -> Option<Vec<u8>> {
    const LZF: u8 = 0xc3;
    if rest.first() == Some(&LZF) {
        *rest = &rest[1..];
        let (packed, length) = (length(rest)?, length(rest)?);
        let packed = take(rest, packed)?;
        return (length <= max).then(|| unpacked(packed, length))?;
    }
    let length = length(rest)?;
    let text = take(rest, length)?;
    (length <= max).then(|| text.to_vec())
}

fn length(rest: &mut &[u8]) -> Option<usize> {
    let first = *take(rest, 1)?.first()?;
    let length = match first {
        0..0x40 => u64::from(first),
        0x40..0x80 => u64::from(first & 0x3f) << 8 | u64::from(*take(rest, 1)?.first()?),
        0x80 => u64::from(u32::from_be_bytes(take(rest, 4)?.try_into().ok()?)),
        0x81 => u64::from_be_bytes(take(rest, 8)?.try_into().ok()?),
        _ => return None,
    };
    usize::try_from(length).ok()
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

/// What LZF has packed: runs of up to 32 bytes as they are, and copies of up to 264 bytes from at most 8 KiB before.
fn unpacked(mut packed: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while let [control, ..] = *packed {
        packed = &packed[1..];
        if control < 0x20 {
            out.extend_from_slice(take(&mut packed, usize::from(control) + 1)?);
        } else {
            let more = if control >> 5 == 7 { take(&mut packed, 1)?[0] } else { 0 };
            let count = usize::from(control >> 5) + usize::from(more) + 2;
            let back = usize::from(control & 0x1f) << 8 | usize::from(take(&mut packed, 1)?[0]);
            let from = out.len().checked_sub(back + 1)?;
            // It may reach into what it makes.
            for at in from..from + count {
                out.push(out[at]);
            }
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}

/// The polynomial of Jones, with its bits in reverse.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// What each value of a byte adds to a sum.
static TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u64, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| TABLE[usize::from(sum as u8 ^ byte)] ^ sum >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(code: &[u8]) -> Arc<Library> {
        Arc::new(Library { name: "l".into(), code: code.to_vec().into(), functions: Vec::new() })
    }

    #[test]
    fn the_sum_is_redis_s() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn what_is_dumped_is_read_back() {
        let codes: Vec<Vec<u8>> =
            [0, 1, 63, 64, 16_383, 16_384, 70_000].map(|length| vec![b'x'; length]).to_vec();
        let libraries: Vec<_> = codes.iter().map(|code| library(code)).collect();
        assert_eq!(texts(&dump(libraries.iter())), Ok(codes));
        assert_eq!(texts(&dump([].into_iter())), Ok(Vec::new()));
    }

    /// Redis 7.0.15 made it, of a library whose second half repeats the first.
    #[test]
    fn a_dump_of_redis_is_read() {
        const DUMP: &[u8] = b"\xf5\xc3@e@\xb3\x1f#!lua name=l\nredis.register_func\x09tion('a', \xe0\x00\x0d\x0bkeys) return \x06@2\x08call('GET '@\x1e\x08[1]) end)\xe0\x11R\x00b *\xe0+R\x01)\n\n\x00T>\xd5\xff\x01\xc43>";
        const CODE: &[u8] = b"#!lua name=l\nredis.register_function('a', function(keys) return redis.call('GET', keys[1]) end)\nredis.register_function('b', function(keys) return redis.call('GET', keys[1]) end)\n";
        assert_eq!(texts(DUMP), Ok(vec![CODE.to_vec()]));
    }

    #[test]
    fn damage_is_found_and_sizes_are_bounded() {
        let whole = dump([library(b"text")].iter());
        for at in 0..whole.len() {
            assert_eq!(texts(&whole[..at]), Err(Wrong::Footer), "{at}");
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert_eq!(texts(&damaged), Err(Wrong::Footer), "{at}");
        }
        let summed = |body: &[u8]| {
            let mut dump = [body, &VERSION.to_le_bytes()].concat();
            dump.extend_from_slice(&crc64(&dump).to_le_bytes());
            texts(&dump)
        };
        assert_eq!(summed(b"\x00\x01x"), Err(Wrong::Type));
        // A text that ends too early; a copy from before the beginning; one that is longer than it says; an endless one.
        for body in [
            &b"\xf5\x05x"[..],
            b"\xf5\xc3\x02\x03\x20\x00",
            b"\xf5\xc3\x05\x03\x00x\xe0\xff\x00",
            b"\xf5\xff",
        ] {
            assert_eq!(summed(body), Err(Wrong::Malformed), "{body:?}");
        }
        assert_eq!(summed(b"\xf5\xc3\x00\x81\x7f\xff\xff\xff\xff\xff\xff\xff"), Err(Wrong::Malformed));
    }
}
