//! SUBSCRIBE, PSUBSCRIBE, UNSUBSCRIBE, PUNSUBSCRIBE. What subscribers are told is in `notices.rs`.

use super::glob;
use super::notices::{CHANNELS, SUBSCRIPTION_BYTES_MAX, SUBSCRIPTIONS_MAX};
use super::reply::Reply;
use super::session::Session;
use bytes::Bytes;

pub(super) fn subscribe(session: &mut Session, channels: &[Bytes]) -> Reply {
    if let Some(problem) = refused(session, channels, |channel| channel.starts_with(CHANNELS)) {
        return problem;
    }
    change(session, "subscribe", channels, |session, channel| {
        session.notices.channels.insert(Bytes::copy_from_slice(channel));
    })
}

pub(super) fn psubscribe(session: &mut Session, patterns: &[Bytes]) -> Reply {
    let may_match = |pattern: &[u8]| {
        let prefix = glob::literal_prefix(pattern);
        prefix.starts_with(CHANNELS) || CHANNELS.starts_with(prefix)
    };
    let too_long = || patterns.iter().find_map(|pattern| glob::too_long(pattern));
    if let Some(problem) = too_long().or_else(|| refused(session, patterns, may_match)) {
        return problem;
    }
    change(session, "psubscribe", patterns, |session, pattern| {
        session.notices.patterns.insert(Bytes::copy_from_slice(pattern));
    })
}

/// Without arguments it ends all subscriptions to channels.
pub(super) fn unsubscribe(session: &mut Session, channels: &[Bytes]) -> Reply {
    let all: Vec<Bytes> = session.notices.channels.iter().cloned().collect();
    let channels = if channels.is_empty() { &all } else { channels };
    change(session, "unsubscribe", channels, |session, channel| {
        session.notices.channels.remove(channel);
    })
}

/// Without arguments it ends all subscriptions to patterns.
pub(super) fn punsubscribe(session: &mut Session, patterns: &[Bytes]) -> Reply {
    let all: Vec<Bytes> = session.notices.patterns.iter().cloned().collect();
    let patterns = if patterns.is_empty() { &all } else { patterns };
    change(session, "punsubscribe", patterns, |session, pattern| {
        session.notices.patterns.remove(pattern);
    })
}

/// The error for names that cannot be subscribed to, before anything is changed.
fn refused(session: &Session, names: &[Bytes], exists: impl Fn(&[u8]) -> bool) -> Option<Reply> {
    if let Some(name) = names.iter().find(|name| !exists(name)) {
        return Some(Reply::Error(format!(
            "ERR no such channel '{}': there are only __keyspace@0__:KEY",
            name.escape_ascii()
        )));
    }
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
