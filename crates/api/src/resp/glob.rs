//! Redis's patterns: `*` any bytes, `?` one byte, `[a-c]` and `[^a]` one of some, `\` the next one as it is.

use super::reply::Reply;

/// Maximum bytes of a pattern: comparing it with a key takes up to the product of their lengths.
const PATTERN_BYTES_MAX: usize = 1 << 10;

/// The error for a pattern that is too long.
pub(super) fn too_long(pattern: &[u8]) -> Option<Reply> {
    let bytes = pattern.len();
    (bytes > PATTERN_BYTES_MAX).then(|| {
        Reply::Error(format!("ERR a pattern of {bytes} bytes; at most {PATTERN_BYTES_MAX} are allowed"))
    })
}

/// Whether `text` is what `pattern` describes. Time: at most the product of their lengths.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on when what follows the last star does not fit: it then takes one byte more.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, t));
            p += 1;
        } else if let Some(next) = one(pattern, p, text[t]) {
            p = next;
            t += 1;
        } else if let Some((after_star, taken)) = retry {
            p = after_star;
            t = taken + 1;
            retry = Some((after_star, taken + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// The bytes that everything that matches begins with.
pub(super) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    &pattern[..end.unwrap_or(pattern.len())]
}

/// Where the pattern goes on when its part at `p` takes `byte`.
fn one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        b'[' => class(pattern, p + 1, byte),
        literal => (literal == byte).then_some(p + 1),
    }
}

fn class(pattern: &[u8], mut p: usize, byte: u8) -> Option<usize> {
    let negated = pattern.get(p) == Some(&b'^');
    p += usize::from(negated);
    let mut found = false;
    loop {
        // One that does not end reaches to the end of the pattern.
        let Some(&first) = pattern.get(p) else { return (found != negated).then_some(p) };
        match first {
            b']' => return (found != negated).then_some(p + 1),
            b'\\' if p + 1 < pattern.len() => {
                found |= pattern[p + 1] == byte;
                p += 2;
            }
            from if pattern.get(p + 1) == Some(&b'-') && p + 2 < pattern.len() => {
                let to = pattern[p + 2];
                found |= (from.min(to)..=from.max(to)).contains(&byte);
                p += 3;
            }
            literal => {
                found |= literal == byte;
                p += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, wanted) in [
            ("*", "", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
            ("[", "[", false),
            ("[^", "x", true),
            ("[b-", "b", true),
            ("[b-", "-", true),
            ("[b-", "c", false),
            ("[a-]", "_", true),
            ("[]a]", "a", false),
            ("user:*:name", "user:1:2:name", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), wanted, "{pattern} {text}");
        }
        assert_eq!(literal_prefix(b"user:[0-9]"), b"user:");
    }
}
