//! Commands that look at all keys: SCAN, KEYS, DBSIZE, RANDOMKEY. They read in pieces, on threads that may
//! block.
//!
//! A scan returns every key that exists from its beginning to its end, in order, and once.

use super::glob;
use super::keys::reply_too_large;
use super::parse::{NOT_AN_INTEGER, SYNTAX, is};
use super::reply::Reply;
use super::session::Session;
use crate::commands::{self, in_place};
use crate::error::Error;
use bytes::Bytes;
use quoin_core::kv::{self, KeyValue, Kind};
use quoin_core::store::prefix_end;
use quoin_engine::{Engine, ReadView};

pub(super) const UNKNOWN_CURSOR: &str =
    "ERR unknown cursor: go on at the node where the scan began, or begin again at 0";
/// What a key in a reply costs besides its bytes.
const KEY_OVERHEAD_BYTES: usize = 64;
/// Maximum keys of a piece.
pub(super) const PIECE: i64 = 1_000;
/// From how many keys after a random place one is chosen.
const NEAR: i64 = 100;

/// The keys with `prefix` that are larger than `after`, without their values: at most `limit`, and possibly
/// fewer with more to come.
pub(super) async fn piece(
    engine: &Engine,
    view: &ReadView,
    after: Option<&[u8]>,
    prefix: &[u8],
    limit: i64,
) -> Result<kv::RangeReply, Error> {
    if prefix.len() > engine.limits().key_bytes_max {
        // Longer than any key: nor could the store look for it.
        return Ok(kv::RangeReply::default());
    }
    let from = match after {
        Some(after) => [after, b"\0"].concat(),
        None if prefix.is_empty() => vec![0],
        None => prefix.to_vec(),
    };
    let mut end = prefix_end(prefix);
    if end.is_empty() {
        end = vec![0];
    }
    let request =
        kv::Range { key: from.into(), range_end: end.into(), limit, keys_only: true, ..kv::Range::default() };
    commands::page(view.clone(), request, engine.limits().response_bytes_max).await
}

/// Steps of comparing keys with a pattern that are taken without letting others go on.
const STEPS_MAX: usize = 4 << 20;

/// Those of `kvs` that match: a long comparison leaves its thread to others, and goes on in pieces.
async fn matching(kvs: Vec<KeyValue>, pattern: &[u8]) -> Vec<KeyValue> {
    let steps = |kv: &KeyValue| pattern.len() * kv.key.len();
    let fits = |kv: &KeyValue| glob::matches(pattern, &kv.key);
    if kvs.iter().map(steps).sum::<usize>() <= STEPS_MAX {
        return kvs.into_iter().filter(fits).collect();
    }
    let (mut found, mut rest) = (Vec::new(), kvs.into_iter());
    while rest.len() > 0 {
        in_place(true, || {
            let mut taken = 0;
            while taken <= STEPS_MAX
                && let Some(kv) = rest.next()
            {
                taken += steps(&kv);
                found.extend(Some(kv).filter(fits));
            }
        });
        tokio::task::yield_now().await;
    }
    found
}

fn deadline(kv: &KeyValue) -> Option<u64> {
    kv.expires.map(|at| at.0)
}

/// SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]
pub(super) async fn scan(session: &mut Session, args: &[Bytes]) -> Result<Reply, Error> {
    let number = |bytes: &Bytes| std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<u64>().ok());
    let Some(cursor) = number(&args[0]) else { return Ok(Reply::error("ERR invalid cursor")) };
    let (mut pattern, mut count, mut kind) = (None, 10, None);
    for option in args[1..].chunks(2) {
        match option {
            [word, value] if is(word, "match") => pattern = Some(value),
            [word, value] if is(word, "count") => match number(value) {
                Some(number @ 1..) => count = i64::try_from(number).unwrap_or(PIECE).min(PIECE),
                _ => return Ok(Reply::error(NOT_AN_INTEGER)),
            },
            [word, value] if is(word, "type") => kind = Some(value),
            _ => return Ok(Reply::error(SYNTAX)),
        }
    }
    if let Some(problem) = pattern.and_then(|pattern| glob::too_long(pattern)) {
        return Ok(problem);
    }
    let sight = session.sight().await?.clone();
    let server = &session.server;
    let after = match cursor {
        0 => None,
        cursor => match server.cursors.find(cursor) {
            Some(after) => Some(after),
            None => {
                return Ok(Reply::error(UNKNOWN_CURSOR));
            }
        },
    };
    let prefix = pattern.map_or(&b""[..], |pattern| glob::literal_prefix(pattern));
    let piece = piece(&server.engine, &sight.view, after.as_deref(), prefix, count).await?;
    let next = match piece.kvs.last() {
        Some(last) if piece.more => server.cursors.remember(last.key.clone()),
        _ => 0,
    };
    let of_kind = |kv: &KeyValue| {
        let name = if kv.kind == Kind::Hash { "hash" } else { "string" };
        kind.is_none_or(|kind| is(kind, name))
    };
    let wanted = |kv: &KeyValue| of_kind(kv) && sight.is_alive(deadline(kv));
    let kvs = match pattern {
        Some(pattern) => matching(piece.kvs, pattern).await,
        None => piece.kvs,
    };
    let keys = kvs.into_iter().filter(wanted).map(|kv| Reply::Bulk(kv.key)).collect();
    Ok(Reply::Array(vec![Reply::text(next.to_string()), Reply::Array(keys)]))
}

/// KEYS pattern
pub(super) async fn keys(session: &mut Session, args: &[Bytes]) -> Result<Reply, Error> {
    let pattern = &args[0];
    if let Some(problem) = glob::too_long(pattern) {
        return Ok(problem);
    }
    let sight = session.sight().await?.clone();
    let engine = &session.server.engine;
    let bytes_max = engine.limits().response_bytes_max;
    let wanted = |kv: &KeyValue| sight.is_alive(deadline(kv));
    let (mut found, mut after, mut bytes) = (Vec::new(), None, 0);
    loop {
        let piece =
            piece(engine, &sight.view, after.as_deref(), glob::literal_prefix(pattern), PIECE).await?;
        after = piece.kvs.last().map(|kv| kv.key.clone());
        for kv in matching(piece.kvs, pattern).await.into_iter().filter(wanted) {
            bytes += kv.key.len() + KEY_OVERHEAD_BYTES;
            found.push(Reply::Bulk(kv.key));
        }
        if bytes > bytes_max {
            return Err(reply_too_large(bytes_max));
        }
        if !piece.more {
            return Ok(Reply::Array(found));
        }
    }
}

/// DBSIZE: counts expired keys that are not deleted yet, as Redis does.
pub(super) async fn dbsize(session: &mut Session, _: &[Bytes]) -> Result<Reply, Error> {
    let view = session.view().await?;
    let count = commands::long_read(move || {
        let request = kv::Range {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            count_only: true,
            ..kv::Range::default()
        };
        Ok(kv::range(view.view(), view.progress(), &request)?.map_or(0, |reply| reply.count))
    });
    Ok(Reply::Integer(count.await?))
}

/// RANDOMKEY. Among few keys each is as likely as the others; among many it is one of those after a random place
/// between the smallest and the largest, so keys that stand close together are less likely.
pub(super) async fn randomkey(session: &mut Session, _: &[Bytes]) -> Result<Reply, Error> {
    let sight = session.sight().await?.clone();
    let engine = &session.server.engine;
    let alive = |kv: &KeyValue| sight.is_alive(deadline(kv));
    let mut first = piece(engine, &sight.view, None, b"", PIECE).await?;
    if let (true, Some(smallest)) = (first.more, first.kvs.first()) {
        let view = sight.view.clone();
        let largest = commands::long_read(move || kv::largest(view.view())).await?.unwrap_or_default();
        let place = place_between(&smallest.key, &largest);
        let near = piece(engine, &sight.view, Some(&place), b"", NEAR).await?;
        if let Some(key) = one_of(near.kvs.into_iter().filter(alive).collect()) {
            return Ok(Reply::Bulk(key));
        }
    }
    loop {
        let after = first.kvs.last().map(|kv| kv.key.clone());
        if let Some(key) = one_of(first.kvs.into_iter().filter(alive).collect()) {
            return Ok(Reply::Bulk(key));
        }
        if !first.more {
            return Ok(Reply::Null);
        }
        first = piece(engine, &sight.view, after.as_deref(), b"", PIECE).await?;
    }
}

fn one_of(mut kvs: Vec<KeyValue>) -> Option<Bytes> {
    let at = rand::random_range(0..kvs.len().max(1));
    (!kvs.is_empty()).then(|| kvs.swap_remove(at).key)
}

/// A random place from `low` up to `high`, by the first eight bytes in which they differ.
fn place_between(low: &[u8], high: &[u8]) -> Vec<u8> {
    let common = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        let rest = &key[common..];
        let length = rest.len().min(8);
        bytes[..length].copy_from_slice(&rest[..length]);
        u64::from_be_bytes(bytes)
    };
    let place = rand::random_range(number(low)..=number(high).max(number(low)));
    [&low[..common], &place.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KEYS with a pattern of many stars kept its thread for as long as a thousand long keys took.
    #[test]
    fn a_long_comparison_lets_others_go_on() {
        let key = |number: usize| "a".repeat(3000) + if number.is_multiple_of(2) { "b" } else { "c" };
        let kv = |number| KeyValue { key: key(number).into(), ..KeyValue::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let pattern = "*a".repeat(400) + "*b";
            let mut comparing = std::pin::pin!(matching((0..8).map(kv).collect(), pattern.as_bytes()));
            let mut pieces = 1;
            let found = loop {
                tokio::select! {
                    biased;
                    found = &mut comparing => break found,
                    // The others' turn.
                    () = std::future::ready(()) => pieces += 1,
                }
            };
            assert_eq!((found.len(), pieces), (4, 5));
        });
    }

    #[test]
    fn a_random_place_lies_between_two_keys_and_anywhere_there() {
        let mut tens = [0; 10];
        for _ in 0..1000 {
            let place = place_between(b"user:10", b"user:99");
            assert!((&b"user:10"[..]..=&b"user:99\0\0\0\0\0\0\0"[..]).contains(&&place[..]), "{place:?}");
            tens[usize::from(place[5] - b'0')] += 1;
        }
        assert!(tens[1..].iter().all(|places| *places > 0), "{tens:?}");
        assert_eq!(place_between(b"a", b"a"), b"a\0\0\0\0\0\0\0\0");
        assert!(place_between(b"", b"\xff") <= vec![0xff, 0, 0, 0, 0, 0, 0, 0]);
    }
}
