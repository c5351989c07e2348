//! Ids, keys, moments and amounts in the ledger's requests.

use crate::http::problem::Problem;
use crate::ledger::{self, check_past};
use crate::time;
use axum::http::HeaderMap;
use quoin_core::ledger::{AmountError, Currency, Key, parse_amount};
use quoin_core::{Revision, Stamp};
use quoin_engine::ReadView;
use sha2::{Digest, Sha256};
use std::ops::Range;
use uuid::Uuid;

/// Maximum bytes of an `Idempotency-Key`.
const KEY_BYTES_MAX: usize = 256;

/// Whether the client prefers to be answered before the result is known (RFC 7240).
pub(super) fn responds_async(headers: &HeaderMap) -> bool {
    let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split(','));
    preferences.any(|preference| {
        let name = preference.split(';').next().unwrap_or_default().trim();
        name.eq_ignore_ascii_case("respond-async")
    })
}

/// The id of what a request creates: the body's, one derived from the `Idempotency-Key`, or a new one.
pub(super) fn request_id(headers: &HeaderMap, id: Option<&str>) -> Result<u128, Problem> {
    let given = id.map(|id| uuid(id, "id")).transpose()?;
    match (request_key(headers)?, given) {
        (None, given) => Ok(given.unwrap_or_else(|| Uuid::now_v7().as_u128())),
        (Some(key), Some(id)) if id != key => {
            Err(Problem::field("id", "differs from the Idempotency-Key; give one of the two"))
        }
        (Some(key), _) => Ok(key),
    }
}

/// Whether the request has an `Idempotency-Key`.
pub(super) fn has_key(headers: &HeaderMap) -> bool {
    headers.contains_key("idempotency-key")
}

/// The id that the `Idempotency-Key` stands for; `None` if there is none.
pub(super) fn request_key(headers: &HeaderMap) -> Result<Option<u128>, Problem> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else { return Ok(None) };
    if keys.any(|other| other != key) {
        return Err(Problem::field("Idempotency-Key", "the request has two, which differ"));
    }
    // A structured field has the key in quotes, which many clients leave out.
    let key = key.as_bytes();
    let key = key.strip_prefix(b"\"").and_then(|key| key.strip_suffix(b"\"")).unwrap_or(key);
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        let detail = format!("has {} bytes, not between 1 and {KEY_BYTES_MAX}", key.len());
        return Err(Problem::field("Idempotency-Key", detail));
    }
    Ok(Some(match std::str::from_utf8(key).ok().and_then(|key| Uuid::parse_str(key).ok()) {
        Some(id) if !id.is_nil() => id.as_u128(),
        _ => digest_id(&[key]),
    }))
}

/// The id of the item at `place` of a request that creates several: the item's, one derived from the request's
/// `key`, or a new one. `prefix` is the item's field.
pub(super) fn item_id(
    key: Option<u128>,
    id: Option<&str>,
    place: usize,
    prefix: &str,
) -> Result<u128, Problem> {
    let given = id.map(|id| uuid(id, &format!("{prefix}id"))).transpose()?;
    match (key, given) {
        (Some(key), Some(id)) if id == key => {
            let detail = "is the Idempotency-Key, which stands for the whole request; give another, or none";
            Err(Problem::field(format!("{prefix}id"), detail))
        }
        (_, Some(id)) => Ok(id),
        (Some(key), None) => {
            let place = u32::try_from(place).expect("lists are bounded");
            Ok(digest_id(&[b"item", &key.to_be_bytes(), &place.to_be_bytes()]))
        }
        (None, None) => Ok(Uuid::now_v7().as_u128()),
    }
}

/// The key of a request that creates several things of a kind, with what tells it from other requests with the same
/// key: its encoded `content`.
pub(super) fn keyed(id: u128, kind: &str, content: &[u8]) -> Key {
    let digest = Sha256::new_with_prefix(kind).chain_update([0]).chain_update(content).finalize();
    Key { id, fingerprint: u128::from_be_bytes(first_half(&digest.into())) }
}

/// A UUID of version 8, made of a digest.
fn digest_id(parts: &[&[u8]]) -> u128 {
    let digest = parts.iter().fold(Sha256::new(), |digest, part| digest.chain_update(part)).finalize();
    uuid::Builder::from_custom_bytes(first_half(&digest.into())).into_uuid().as_u128()
}

fn first_half(digest: &[u8; 32]) -> [u8; 16] {
    *digest.first_chunk().expect("a digest has 32 bytes")
}

/// An id, which is not nil.
pub(super) fn uuid(text: &str, field: &str) -> Result<u128, Problem> {
    match Uuid::parse_str(text) {
        Ok(id) if !id.is_nil() => Ok(id.as_u128()),
        Ok(_) => Err(Problem::field(field, "an id must not be the nil UUID")),
        Err(_) => {
            let shown: String = text.chars().take(64).collect();
            Err(Problem::field(
                field,
                format!("{shown:?} is not a UUID, as 0190b5e2-7f2c-7c1e-9d1a-3f5b8c2a4e61"),
            ))
        }
    }
}

/// A number in decimal digits.
pub(super) fn decimal<N: std::str::FromStr>(text: &str, field: &str) -> Result<N, Problem> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().ok_or_else(|| {
        let (shown, bits): (String, _) = (text.chars().take(64).collect(), 8 * size_of::<N>());
        Problem::field(field, format!("{shown:?} is not a number of up to {bits} bits in decimal digits"))
    })
}

/// A currency's code.
pub(super) fn currency(text: &str, field: &str) -> Result<Currency, Problem> {
    let shown: String = text.chars().take(64).collect();
    shown.parse().map_err(|problem: String| Problem::field(field, problem))
}

/// A moment in a query.
pub(super) fn moment(text: &str, field: &str) -> Result<Stamp, Problem> {
    let problem = || Problem::field(field, "not a time in RFC 3339 and UTC, as 2026-11-21T09:45:00Z");
    time::parse(text).map(Stamp).ok_or_else(problem)
}

/// The revision that a request about the past names, by itself or by a time; `None` if it names neither.
pub(super) fn revision_at(
    view: &ReadView,
    at_revision: Option<u64>,
    at_time: Option<&str>,
) -> Result<Option<Revision>, Problem> {
    let out_of_range = |field: &'static str| move |error| Problem::from(error).named(field);
    match (at_revision, at_time) {
        (None, None) => Ok(None),
        (Some(revision), None) => {
            let past = check_past(view.progress(), Revision(revision), "at_revision");
            past.map_err(out_of_range("at_revision"))?;
            Ok(Some(Revision(revision)))
        }
        (None, Some(text)) => {
            let revision = ledger::revision_at(view, moment(text, "at_time")?, "at_time");
            revision.map(Some).map_err(out_of_range("at_time"))
        }
        (Some(_), Some(_)) => Err(Problem::field("at_time", "give either at_revision or at_time")),
    }
}

/// The revisions between two times: from the first one on, before the other. A time that is to come is as none.
pub(super) fn stretch(
    view: &ReadView,
    from_time: Option<&str>,
    to_time: Option<&str>,
) -> Result<Range<Revision>, Problem> {
    // After all that is earlier than the moment.
    let from = |text: Option<&str>, field: &str| match text.map(|text| moment(text, field)).transpose()? {
        None | Some(Stamp(0)) => Ok::<_, Problem>(None),
        Some(Stamp(moment)) => {
            let earlier = quoin_core::ledger::revision_at(view.view(), view.progress(), Stamp(moment - 1))?;
            Ok(Some(earlier.next()))
        }
    };
    let newest = view.progress().revision.next();
    Ok(from(from_time, "from_time")?.unwrap_or(Revision(0))..from(to_time, "to_time")?.unwrap_or(newest))
}

/// An amount above zero.
pub(super) fn amount(text: &str, scale: u32, field: &str) -> Result<u128, Problem> {
    match limit(text, scale, field)? {
        0 => Err(Problem::field(field, "must be above zero")),
        amount => Ok(amount),
    }
}

/// An amount, which may be zero.
pub(super) fn limit(text: &str, scale: u32, field: &str) -> Result<u128, Problem> {
    parse_amount(text, scale).map_err(|error: AmountError| Problem::field(field, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderValue, header};

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), HeaderValue::from_static(value))])
    }

    #[test]
    fn a_key_always_makes_the_same_id_and_must_agree_with_the_body() {
        let id = "0190b5e2-7f2c-7c1e-9d1a-3f5b8c2a4e61";
        let key = headers("idempotency-key", "order-17");
        assert_eq!(request_id(&key, None).unwrap(), request_id(&key, None).unwrap());
        let quoted = headers("idempotency-key", "\"order-17\"");
        assert_eq!(request_id(&key, None).unwrap(), request_id(&quoted, None).unwrap());
        assert!(request_id(&key, Some(id)).is_err());
        let same = headers("idempotency-key", "0190b5e2-7f2c-7c1e-9d1a-3f5b8c2a4e61");
        assert_eq!(request_id(&same, Some(id)).unwrap(), Uuid::parse_str(id).unwrap().as_u128());
        assert!(request_id(&headers("idempotency-key", ""), None).is_err());
        let (one, other) =
            (request_id(&HeaderMap::new(), None).unwrap(), request_id(&HeaderMap::new(), None).unwrap());
        assert_ne!(one, other);
    }

    #[test]
    fn ids_that_come_from_a_key_are_pinned() {
        // They are on disk: another way to derive them would do again what was done.
        let shown = |id: u128| Uuid::from_u128(id).to_string();
        let key = request_key(&headers("idempotency-key", "order-17")).unwrap();
        assert_eq!(key.map(shown).as_deref(), Some("72a90ea3-da8b-8dd0-9bde-2f27314e02e2"));
        assert_eq!(shown(item_id(key, None, 0, "").unwrap()), "f129f608-58c8-81b8-b56f-aadfcf584f5f");
        assert_eq!(shown(item_id(key, None, 1, "").unwrap()), "352ac5b9-a415-85c4-b9d4-c77bc9d50413");
        assert_eq!(shown(keyed(1, "transfers", b"x").fingerprint), "1b9cab33-69bc-23f6-cd65-ce45dffe6dd1");
        assert_ne!(keyed(1, "accounts", b"x").fingerprint, keyed(1, "transfers", b"x").fingerprint);
        let own = "0190b5e2-7f2c-7c1e-9d1a-3f5b8c2a4e61";
        assert_eq!(item_id(key, Some(own), 1, "").map(shown).unwrap(), own);
        let same = request_key(&headers("idempotency-key", own)).unwrap();
        assert!(item_id(same, Some(own), 1, "").is_err());
    }

    #[test]
    fn a_preference_is_found_among_others() {
        for value in ["respond-async", "wait=10, Respond-Async", "respond-async; x=1"] {
            assert!(responds_async(&headers("prefer", value)), "{value}");
        }
        assert!(!responds_async(&headers("prefer", "return=minimal")) && !responds_async(&HeaderMap::new()));
    }
}
