//! MULTI, EXEC, DISCARD, WATCH, UNWATCH; and how a command that reads and writes becomes one transaction of
//! the log.

use super::keys::{Failed, Keys, replied};
use super::queue::{Queue, Queued};
use super::reply::Reply;
use super::scripts::{self, Scripts, Spent, evaluate};
use super::session::Session;
use crate::auth::check;
use crate::commands::in_place;
use crate::error::{Error, Kind};
use bytes::Bytes;
use quoin_core::kv;
use quoin_engine::ReadView;
use std::sync::Arc;

/// Maximum watched keys of a connection.
const WATCHED_MAX: usize = 10_000;
/// Maximum bytes of their names.
const WATCHED_BYTES_MAX: usize = 16 << 20;
/// How often a command is run before it gives up, if what it reads keeps changing.
const ATTEMPTS_MAX: usize = 100;

/// Arguments of commands that are run where they would not hold up other connections: each may be a large value to
/// read.
const ARGUMENTS_IN_PLACE_MAX: usize = 64;

/// Whether so many arguments may take long.
pub(super) fn is_long(args: &[Bytes]) -> bool {
    args.len() > ARGUMENTS_IN_PLACE_MAX
}

/// Where a command is run.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// On this thread.
    Here,
    /// On this thread, whose other connections go on on another.
    Aside,
    /// As [`Self::Aside`], when a script may run.
    Script(&'a Scripts),
}

impl Place<'_> {
    /// For a command that may take long, or not.
    pub(super) fn of(long: bool) -> Self {
        if long { Self::Aside } else { Self::Here }
    }

    pub(super) async fn run<T>(self, run: impl FnOnce() -> T) -> T {
        let _turn = match self {
            Self::Script(scripts) => Some(scripts.turn().await),
            Self::Here | Self::Aside => None,
        };
        in_place(!matches!(self, Self::Here), run)
    }
}

/// Runs `run` on a state and has its writes done; runs it again if what it read has changed meanwhile. `None`
/// where one of `watched` has changed.
///
/// Invariant: Optimistic (transactions).
pub(super) async fn atomically<T>(
    session: &mut Session,
    place: Place<'_>,
    watched: &[(Bytes, i64)],
    run: impl Fn(&mut Keys<'_>) -> Result<T, Failed>,
) -> Result<Option<T>, Error> {
    let server = Arc::clone(&session.server);
    for _ in 0..ATTEMPTS_MAX {
        let sight = session.sight().await?;
        let mut keys = Keys::at(Some(sight)).with(&server.channels);
        let reply = place.run(|| run(&mut keys)).await.map_err(failed)?;
        if !are_unchanged(watched, &sight.view)? {
            return Ok(None);
        }
        watched.iter().for_each(|(key, revision)| keys.watch(key.clone(), *revision));
        let Some(operation) = keys.into_operation() else { return Ok(Some(reply)) };
        if session.commit(operation).await? {
            return Ok(Some(reply));
        }
    }
    let text = format!("the keys changed during each of {ATTEMPTS_MAX} attempts; nothing was done");
    Err(Error::Refused(Kind::Aborted, text))
}

/// The error of a command that was run on a view.
pub(super) fn failed(failed: Failed) -> Error {
    match failed {
        Failed::Error(error) => error,
        Failed::NeedsView => Error::fault("a command asked for a view that it has"),
    }
}

fn are_unchanged(watched: &[(Bytes, i64)], view: &ReadView) -> Result<bool, Error> {
    for (key, revision) in watched {
        if mod_revision(view, key)? != *revision {
            return Ok(false);
        }
    }
    Ok(true)
}

fn mod_revision(view: &ReadView, key: &Bytes) -> Result<i64, Error> {
    if key.is_empty() {
        return Ok(0);
    }
    Ok(kv::get(view.view(), key)?.map_or(0, |kv| kv.mod_revision))
}

pub(super) fn multi(session: &mut Session, _: &[Bytes]) -> Reply {
    if session.queue.is_some() {
        return Reply::error("ERR MULTI calls can not be nested");
    }
    session.queue = Some(Queue::default());
    Reply::OK
}

pub(super) async fn exec(session: &mut Session, _: &[Bytes]) -> Result<Reply, Error> {
    let Some(queue) = session.queue.take() else { return Ok(Reply::error("ERR EXEC without MULTI")) };
    let watched = std::mem::take(&mut session.watched);
    let Some(commands) = queue.into_commands() else {
        return Ok(Reply::error("EXECABORT Transaction discarded because of previous errors."));
    };
    let server = Arc::clone(&session.server);
    // Whether they have changed is told, and WATCH may have been allowed long ago, or to somebody else.
    check(&server.engine, |access| watched.iter().all(|(key, _)| access.reads(key, b"")))?;
    let (scripts, limits, spent) = (&server.scripts, server.engine.limits(), Spent::default());
    let run_all = |keys: &mut Keys<'_>| -> Result<Vec<Reply>, Failed> {
        let run = |(queued, args): &(Queued, Vec<Bytes>)| match queued {
            Queued::Keys(run) => replied(run(&args[1..], keys)),
            Queued::Script(kind) => replied(evaluate(scripts, limits, *kind, &args[1..], keys, &spent)),
            Queued::Connection(_) => Ok(Reply::Null),
        };
        commands.iter().map(run).collect()
    };
    let arguments: usize = commands.iter().map(|(_, args)| args.len()).sum();
    let evaluations = commands.iter().filter(|(queued, _)| matches!(queued, Queued::Script(_)));
    let named = scripts::keys_named(evaluations.clone().map(|(_, args)| &args[1..]));
    let place = match evaluations.count() {
        0 => Place::of(arguments > ARGUMENTS_IN_PLACE_MAX),
        _ => Place::Script(scripts),
    };
    let _held = scripts::queue(scripts, session, &named).await;
    let Some(mut replies) = atomically(session, place, &watched, run_all).await? else {
        return Ok(Reply::NullArray);
    };
    for (reply, (queued, args)) in replies.iter_mut().zip(&commands) {
        if let Queued::Connection(run) = queued {
            *reply = run(session, &args[1..]);
        }
    }
    Ok(Reply::Array(replies))
}

/// Drops the transaction of an EXEC that cannot be run; returns its error.
pub(super) fn abort(session: &mut Session, why: &str) -> String {
    session.queue = None;
    session.watched.clear();
    format!("EXECABORT Transaction discarded because of: {}", why.trim_start_matches("ERR "))
}

pub(super) fn discard(session: &mut Session, _: &[Bytes]) -> Reply {
    if session.queue.take().is_none() {
        return Reply::error("ERR DISCARD without MULTI");
    }
    session.watched.clear();
    Reply::OK
}

pub(super) async fn watch(session: &mut Session, keys: &[Bytes]) -> Result<Reply, Error> {
    if session.queue.is_some() {
        return Ok(Reply::error("ERR WATCH inside MULTI is not allowed"));
    }
    if session.watched.len() + keys.len() > WATCHED_MAX {
        return Ok(Reply::Error(format!("ERR more than {WATCHED_MAX} watched keys")));
    }
    let watched = session.watched.iter().map(|(key, _)| key).chain(keys);
    if watched.map(Bytes::len).sum::<usize>() > WATCHED_BYTES_MAX {
        return Ok(Reply::Error(format!("ERR more than {WATCHED_BYTES_MAX} bytes of watched keys")));
    }
    let view = session.view().await?;
    for key in keys {
        session.watched.push((Bytes::copy_from_slice(key), mod_revision(&view, key)?));
    }
    Ok(Reply::OK)
}

pub(super) fn unwatch(session: &mut Session, _: &[Bytes]) -> Reply {
    session.watched.clear();
    Reply::OK
}
