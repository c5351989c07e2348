//! SUBSCRIBE, PSUBSCRIBE, UNSUBSCRIBE, PUNSUBSCRIBE, PUBLISH, PUBSUB. What subscribers are told is in `channels.rs` and
//! `notices.rs`.

use super::channels::Kind;
use super::glob;
use super::keys::{Keys, Outcome, Problem, reply_too_large};
use super::notices::{SUBSCRIPTION_BYTES_MAX, SUBSCRIPTIONS_MAX};
use super::parse::is;
use super::reply::Reply;
use super::session::Session;
use bytes::Bytes;
use std::sync::Arc;

/// Maximum bytes of a channel's name in PUBLISH: comparing it with a pattern takes up to the product of their lengths.
const CHANNEL_BYTES_MAX: usize = 4 << 10;

pub(super) fn subscribe(session: &mut Session, channels: &[Bytes]) -> Reply {
    listen(session, Kind::Channel, "subscribe", channels)
}

pub(super) fn psubscribe(session: &mut Session, patterns: &[Bytes]) -> Reply {
    match patterns.iter().find_map(|pattern| glob::too_long(pattern)) {
        Some(problem) => problem,
        None => listen(session, Kind::Pattern, "psubscribe", patterns),
    }
}

fn listen(session: &mut Session, kind: Kind, word: &'static str, names: &[Bytes]) -> Reply {
    if let Some(problem) = refused(session, names) {
        return problem;
    }
    let channels = Arc::clone(&session.server.channels);
    change(session, word, names, |session, name| {
        session.notices.subscribe(&channels, session.id, kind, name);
    })
}

/// Without arguments it ends all subscriptions to channels.
pub(super) fn unsubscribe(session: &mut Session, channels: &[Bytes]) -> Reply {
    end(session, Kind::Channel, "unsubscribe", channels)
}

/// Without arguments it ends all subscriptions to patterns.
pub(super) fn punsubscribe(session: &mut Session, patterns: &[Bytes]) -> Reply {
    end(session, Kind::Pattern, "punsubscribe", patterns)
}

fn end(session: &mut Session, kind: Kind, word: &'static str, names: &[Bytes]) -> Reply {
    let all = session.notices.names(kind);
    let names = if names.is_empty() { &all } else { names };
    change(session, word, names, |session, name| session.notices.unsubscribe(kind, name))
}

/// The error where there would be too many subscriptions, before anything is changed.
fn refused(session: &Session, names: &[Bytes]) -> Option<Reply> {
    if session.notices.count() + names.len() > SUBSCRIPTIONS_MAX {
        return Some(Reply::Error(format!(
            "ERR more than {SUBSCRIPTIONS_MAX} subscriptions on a connection"
        )));
    }
    let bytes = names.iter().fold(session.notices.bytes(), |bytes, name| bytes + name.len());
    (bytes > SUBSCRIPTION_BYTES_MAX).then(|| {
        Reply::Error(format!("ERR more than {SUBSCRIPTION_BYTES_MAX} bytes of subscriptions on a connection"))
    })
}

/// Changes the subscriptions by one name after the other, with a message for each.
fn change(
    session: &mut Session,
    word: &'static str,
    names: &[Bytes],
    mut by: impl FnMut(&mut Session, &Bytes),
) -> Reply {
    let mut messages = Vec::new();
    for name in names {
        by(session, name);
        messages.push(message(session, word, Reply::Bulk(name.clone())));
    }
    if names.is_empty() {
        messages.push(message(session, word, Reply::Null));
    }
    session.notices.changed(&session.server.engine);
    Reply::Several(messages)
}

fn message(session: &Session, word: &'static str, name: Reply) -> Reply {
    let count = Reply::Integer(session.notices.count() as i64);
    Reply::Push(vec![Reply::text(word), name, count])
}

/// PUBLISH channel message: a part of the transaction, as a write is. Returns how many subscriptions of this node it comes
/// to.
pub(super) fn publish(args: &[Bytes], keys: &mut Keys<'_>) -> Outcome {
    let [channel, payload] = args else { unreachable!("the table has the number of arguments") };
    let bytes = channel.len();
    if bytes > CHANNEL_BYTES_MAX {
        let text = format!("ERR a channel's name of {bytes} bytes; at most {CHANNEL_BYTES_MAX} are allowed");
        return Err(Problem::Refused(text));
    }
    Ok(Reply::Integer(keys.publish(channel, payload)? as i64))
}

/// PUBSUB CHANNELS [pattern] | NUMSUB [channel ...] | NUMPAT: of this node.
pub(super) fn pubsub(session: &mut Session, args: &[Bytes]) -> Reply {
    let channels = &session.server.channels;
    match args {
        [sub, pattern @ ..] if is(sub, "channels") && pattern.len() <= 1 => {
            let pattern = pattern.first();
            if let Some(problem) = pattern.and_then(|pattern| glob::too_long(pattern)) {
                return problem;
            }
            let bytes_max = session.server.engine.limits().response_bytes_max;
            match channels.names(pattern.map(|pattern| &pattern[..]), bytes_max) {
                Some(names) => Reply::Array(names.into_iter().map(Reply::Bulk).collect()),
                None => Reply::Error(reply_too_large(bytes_max).resp()),
            }
        }
        [sub, names @ ..] if is(sub, "numsub") => {
            let count = |name: &Bytes| Reply::Integer(channels.subscribers(name) as i64);
            Reply::Array(names.iter().flat_map(|name| [Reply::Bulk(name.clone()), count(name)]).collect())
        }
        [sub] if is(sub, "numpat") => Reply::Integer(channels.patterns() as i64),
        _ => Reply::error("ERR unknown subcommand of PUBSUB: there are CHANNELS, NUMSUB and NUMPAT"),
    }
}
