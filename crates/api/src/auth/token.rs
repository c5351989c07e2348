//! Tokens that say who was authenticated, signed with the secret of the replicated state.
//!
//! So every replica knows the tokens that any of them gave, whoever leads, and none has to be stored. A token counts
//! until its time is over, the user is deleted or gets another password, or authentication is turned off.
//!
//! ```text
//! quoin1.CONTENT.SIGNATURE    both in base64 for URLs, without padding
//! CONTENT    u64 the user's `since`, u64 milliseconds since the epoch until when it counts, the user's name
//! SIGNATURE  HMAC-SHA256 of `quoin1.CONTENT`
//! ```
//!
//! Integers are big-endian.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use quoin_core::Stamp;
use ring::hmac;

const PREFIX: &str = "quoin1.";

/// Whether a text claims to be such a token.
pub(super) fn is_ours(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// A token for a user.
pub(super) fn sign(secret: &[u8], user: (&str, u64), until: Stamp) -> String {
    let (name, since) = user;
    let content = [&since.to_be_bytes()[..], &until.0.to_be_bytes(), name.as_bytes()].concat();
    let signed = format!("{PREFIX}{}", BASE64.encode(content));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", BASE64.encode(signature))
}

/// The user of a token, and its `since`; `None` if it was not signed with `secret`, or is over at `now`.
pub(super) fn verify(secret: &[u8], token: &str, now: Stamp) -> Option<(String, u64)> {
    if secret.is_empty() {
        return None;
    }
    let (signed, signature) = token.rsplit_once('.')?;
    let signature = BASE64.decode(signature).ok()?;
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes(), &signature).ok()?;
    let content = BASE64.decode(signed.strip_prefix(PREFIX)?).ok()?;
    let (since, rest) = content.split_first_chunk()?;
    let (until, name) = rest.split_first_chunk()?;
    let name = String::from_utf8(name.to_vec()).ok()?;
    (now.0 < u64::from_be_bytes(*until)).then_some((name, u64::from_be_bytes(*since)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_that_of_its_user_until_its_time_is_over() {
        let token = sign(b"secret", ("ann", 7), Stamp(1000));
        assert_eq!(token.split('.').next(), Some("quoin1"));
        assert_eq!(verify(b"secret", &token, Stamp(999)), Some(("ann".into(), 7)));
        assert_eq!(verify(b"secret", &token, Stamp(1000)), None);
        assert_eq!(verify(b"other", &token, Stamp(0)), None);
        assert_eq!(verify(b"", &sign(b"", ("ann", 7), Stamp(1000)), Stamp(0)), None, "authentication is off");
    }

    #[test]
    fn no_other_text_is_a_token() {
        let token = sign(b"secret", ("ann", 7), Stamp(1000));
        for length in 0..token.len() {
            assert_eq!(verify(b"secret", &token[..length], Stamp(0)), None, "cut at {length}");
        }
        for place in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            // The last character of base64 has bits that say nothing.
            let same = verify(b"secret", &changed, Stamp(0));
            assert!(same.is_none() || place == token.len() - 1, "changed at {place}");
        }
        for text in ["", ".", "quoin1.", "quoin1..", "a.b.c", "quoin1.é.é"] {
            assert_eq!(verify(b"secret", text, Stamp(0)), None);
        }
    }
}
