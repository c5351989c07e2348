//! Commands that look at all keys: SCAN, KEYS, DBSIZE, RANDOMKEY. Read in pieces on threads that may block.
//!
//! SCAN's cursors are numbers that this node remembers, each with the key after which it goes on; the oldest are forgotten
//! when there are [`CURSORS_MAX`]. What is there from the scan's begin to its end is returned, and once.

use super::frame::Reply;
use super::glob;
use crate::api::{clock, commands, error};
use crate::engine::{Engine, ReadView};
use bytes::Bytes;
use parking_lot::Mutex;
use quoin_core::kv::{self, KeyValue};
use std::collections::BTreeMap;
use tonic::Status;

/// Cursors that are remembered at most.
const CURSORS_MAX: usize = 10_000;
/// Keys of a piece.
const PIECE: i64 = 1_000;

/// Where scans go on.
#[derive(Default)]
pub(super) struct Cursors(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    last: u64,
    after: BTreeMap<u64, Bytes>,
}

impl Cursors {
    fn remember(&self, key: Bytes) -> u64 {
        let mut remembered = self.0.lock();
        remembered.last += 1;
        let cursor = remembered.last;
        remembered.after.insert(cursor, key);
        if remembered.after.len() > CURSORS_MAX {
            remembered.after.pop_first();
        }
        cursor
    }

    fn find(&self, cursor: u64) -> Option<Bytes> {
        self.0.lock().after.get(&cursor).cloned()
    }
}

/// The keys from the smallest that is larger than `after` on, `limit` at most, without their values.
async fn piece(
    engine: &Engine,
    view: &ReadView,
    after: Option<&[u8]>,
    prefix: &[u8],
    limit: i64,
) -> Result<kv::RangeReply, Status> {
    let from = match after {
        Some(after) => [after, b"\0"].concat(),
        None if prefix.is_empty() => vec![0],
        None => prefix.to_vec(),
    };
    let mut end = quoin_core::store::prefix_end(prefix);
    if end.is_empty() {
        end = vec![0];
    }
    let request =
        kv::Range { key: from.into(), range_end: end.into(), limit, keys_only: true, ..kv::Range::default() };
    commands::page(view.clone(), request, engine.limits().response_bytes_max).await
}

fn is_alive(kv: &KeyValue, now: u64) -> bool {
    kv.expires.is_none_or(|at| at.0 > now)
}

/// SCAN cursor [MATCH pattern] [COUNT n] [TYPE string]
pub(super) async fn scan(
    engine: &Engine,
    cursors: &Cursors,
    view: &ReadView,
    args: &[Bytes],
) -> Result<Reply, Status> {
    let text = |bytes: &Bytes| std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<u64>().ok());
    let Some(cursor) = text(&args[0]) else { return Ok(Reply::error("ERR invalid cursor")) };
    let (mut pattern, mut count, mut of_other_type) = (None, 10, false);
    for option in args[1..].chunks(2) {
        match option {
            [word, value] if word.eq_ignore_ascii_case(b"match") => pattern = Some(value),
            [word, value] if word.eq_ignore_ascii_case(b"count") => match text(value) {
                Some(number @ 1..) => count = i64::try_from(number).unwrap_or(PIECE).min(PIECE),
                _ => return Ok(Reply::error("ERR value is not an integer or out of range")),
            },
            [word, value] if word.eq_ignore_ascii_case(b"type") => {
                of_other_type = !value.eq_ignore_ascii_case(b"string")
            }
            _ => return Ok(Reply::error("ERR syntax error")),
        }
    }
    let after = match cursor {
        0 => None,
        cursor => match cursors.find(cursor) {
            Some(after) => Some(after),
            None => {
                return Ok(Reply::error(
                    "ERR this node does not know this cursor: scan on the node where the scan began, or begin again at 0",
                ));
            }
        },
    };
    let prefix = pattern.map_or(&b""[..], |pattern| glob::literal_prefix(pattern));
    let piece = piece(engine, view, after.as_deref(), prefix, count).await?;
    let next = match piece.kvs.last() {
        Some(last) if piece.more => cursors.remember(last.key.clone()),
        _ => 0,
    };
    let now = clock::now(view.progress()).0;
    let wanted = |kv: &KeyValue| {
        !of_other_type && is_alive(kv, now) && pattern.is_none_or(|pattern| glob::matches(pattern, &kv.key))
    };
    let keys = piece.kvs.into_iter().filter(|kv| wanted(kv)).map(|kv| Reply::Bulk(kv.key)).collect();
    Ok(Reply::Array(vec![Reply::text(next.to_string()), Reply::Array(keys)]))
}

/// KEYS pattern
pub(super) async fn keys(engine: &Engine, view: &ReadView, pattern: &Bytes) -> Result<Reply, Status> {
    let mut found = Vec::new();
    let (mut after, mut bytes) = (None, 0);
    let now = clock::now(view.progress()).0;
    loop {
        let piece = piece(engine, view, after.as_deref(), glob::literal_prefix(pattern), PIECE).await?;
        after = piece.kvs.last().map(|kv| kv.key.clone());
        for kv in piece.kvs.into_iter().filter(|kv| is_alive(kv, now) && glob::matches(pattern, &kv.key)) {
            bytes += kv.key.len();
            found.push(Reply::Bulk(kv.key));
        }
        if bytes > engine.limits().response_bytes_max {
            return Err(error::response_too_large(engine.limits().response_bytes_max));
        }
        if !piece.more {
            return Ok(Reply::Array(found));
        }
    }
}

/// DBSIZE
pub(super) async fn size(view: ReadView) -> Result<Reply, Status> {
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

/// RANDOMKEY: the first key after a random place. Keys with large gaps before them come more often.
pub(super) async fn random(engine: &Engine, view: &ReadView) -> Result<Reply, Status> {
    let place: [u8; 8] = rand::random();
    for after in [Some(&place[..]), None] {
        if let Some(kv) = piece(engine, view, after, b"", 1).await?.kvs.pop() {
            return Ok(Reply::Bulk(kv.key));
        }
    }
    Ok(Reply::Null)
}
