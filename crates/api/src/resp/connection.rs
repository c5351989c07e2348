//! The loop of a connection: what arrived together is done together, and answered with one write. Here each
//! request is checked against the table of commands, and run.
//!
//! **Invariant: Bounded.** A client that does not take its replies is not read any further, and given up after
//! [`UNTAKEN_MAX`]. Bytes of a request, requests taken at once, commands queued by MULTI, watched keys and
//! subscriptions have bounds in their files, and in total.

use super::commands::{Action, Command, Flag};
use super::keys::{Failed, Keys, Problem, Run, replied};
use super::lookup::Lookup;
use super::notices::Ended;
use super::parse::{is, wrong_count};
use super::record;
use super::reply::Reply;
use super::request::{Arguments, Parser, Requests};
use super::rights;
use super::scripts;
use super::session::Session;
use super::transaction::{Place, abort, atomically, failed, is_long};
use crate::Life;
use crate::accept::Stream;
use crate::commands::{check_key_length, in_place};
use crate::error::{Error, Known};
use crate::stall;
use crate::wrong_port::Port;
use bytes::{Bytes, BytesMut};
use quoin_core::kv::Increment;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

#[cfg(test)]
mod tests;

/// Bytes read at once from a client that sends much.
const READ_BYTES: usize = 64 << 10;
/// Bytes read at once from any other: what an idle connection keeps for its next request.
const READ_BYTES_SMALL: usize = 4 << 10;
/// Memory for replies that a connection keeps from round to round.
const REPLY_BYTES_KEPT: usize = 64 << 10;
/// Replies are sent once they have this many bytes, even if more are to come.
const REPLY_BYTES: usize = 1 << 20;
/// How long a client may take nothing of its replies.
const UNTAKEN_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// How much of an unknown command's name its error quotes.
const QUOTED_BYTES_MAX: usize = 64;

/// Serves until the client leaves or breaks the protocol, or the node stops.
pub(super) async fn serve(mut session: Session, mut stream: Stream, life: Life) -> io::Result<()> {
    let mut parser = Parser::new(session.server.engine.limits().request_bytes_max);
    let (mut buffer, mut requests) = (BytesMut::new(), Requests::default());
    // Bytes to read at once, and what the buffer may have taken for it.
    let (mut room, mut taken) = (READ_BYTES_SMALL, 0);
    let (share, kept) = (session.server.budget.share(), session.server.kept.share());
    let ended = life.ended();
    tokio::pin!(ended);
    let mut is_new = true;
    let mut policy = session.server.engine.watch_policy();
    // What it listens to already was judged by users and roles of before.
    policy.mark_changed();
    while !session.closing {
        if let Err(problem) = parser.read(&mut buffer, &mut requests) {
            session.server.engine.metrics().client_garbage.inc();
            session.reply(&Reply::error(format!("ERR {problem}")));
            return flush(&mut session, &mut stream).await;
        }
        if requests.is_empty() {
            let lacking = parser.lacking();
            let announced = charged(buffer.len() + lacking);
            if !share.hold(announced) {
                // What follows belongs to the request that was refused.
                session.reply(&Reply::Error(Error::from(Known::TooManyRequests).resp()));
                return flush(&mut session, &mut stream).await;
            }
            taken = taken.max(room).max(lacking);
            buffer.reserve(room.max(lacking));
            tokio::select! {
                biased;
                read = stream.read_buf(&mut buffer) => {
                    let read = read?;
                    if read == 0 {
                        return Ok(());
                    }
                    room = room_after(read, room);
                    if std::mem::take(&mut is_new) && Port::is_foreign_to_redis(&buffer) {
                        session.server.engine.metrics().client_garbage.inc();
                        Port::Resp.turn_away(&stream, &buffer);
                        return Ok(());
                    }
                }
                // Before what there is to hear. A client that listens comes again, and is told what it may hear. An error: the
                // replica has stopped.
                Ok(()) = policy.changed() => {
                    if session.may_overhear() {
                        return Ok(());
                    }
                }
                messages = session.notices.next(&session.server.engine) => match messages {
                    Ok(messages) => messages.iter().for_each(|message| session.push(message)),
                    Err(Ended::Watch) => return Ok(()),
                    Err(Ended::Overrun) => {
                        session.server.engine.metrics().subscribers_lost.inc();
                        return Ok(());
                    }
                },
                () = &mut ended => return Ok(()),
                () = stalled(), if announced > 0 => {
                    session.reply(&Reply::Error(format!("ERR {}", stall::reason())));
                    return flush(&mut session, &mut stream).await;
                }
            }
        }
        session.begin_round();
        for request in requests.iter() {
            session.begin_request().await;
            match session.caller() {
                Some(caller) => caller.run(self::request(&mut session, request)).await,
                None => self::request(&mut session, request).await,
            }
            session.end_request().await;
            if session.closing {
                break;
            }
            if session.out.len() >= REPLY_BYTES {
                flush(&mut session, &mut stream).await?;
            }
        }
        requests.clear();
        match session.caller() {
            Some(caller) => caller.run(session.end_round()).await,
            None => session.end_round().await,
        }
        if taken > room && buffer.is_empty() {
            (buffer, taken) = (BytesMut::new(), 0);
        }
        share.hold(charged(buffer.len()));
        if !kept.hold(session.kept_bytes()) {
            session.reply(&Reply::Error(Error::from(Known::TooManyRequests).resp()));
            session.closing = true;
        }
        flush(&mut session, &mut stream).await?;
    }
    Ok(())
}

/// Bytes to read at once after so many came: many where they filled the room there was.
fn room_after(read: usize, room: usize) -> usize {
    match read {
        _ if read >= room => READ_BYTES,
        ..READ_BYTES_SMALL => READ_BYTES_SMALL,
        _ => room,
    }
}

/// What is charged for `bytes` of requests. Each connection has room for one read in any case.
fn charged(bytes: usize) -> usize {
    if bytes > READ_BYTES { bytes } else { 0 }
}

/// Returns when nothing has come for too long. A client that has announced much and sends nothing of it would keep
/// others out.
async fn stalled() {
    sleep(stall::PATIENCE).await;
}

async fn flush(session: &mut Session, stream: &mut Stream) -> io::Result<()> {
    session.take_back();
    if !session.out.is_empty() {
        let mut left = &session.out[..];
        while !left.is_empty() {
            match timeout(UNTAKEN_MAX, stream.write(left)).await.map_err(|_| untaken())?? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                taken => left = &left[taken..],
            }
        }
        // TLS may hold the last of it.
        timeout(UNTAKEN_MAX, stream.flush()).await.map_err(|_| untaken())??;
        session.out.clear();
        session.silence.keep(0);
        // A large reply must not keep its memory for as long as the connection lasts.
        session.out.shrink_to(REPLY_BYTES_KEPT);
    }
    Ok(())
}

fn untaken() -> io::Error {
    let text = format!("the client took nothing of its replies for {} s", UNTAKEN_MAX.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// Has a request done, and recorded if it is worth that.
async fn request(session: &mut Session, args: Arguments<'_>) {
    if session.server.gate.audit().is_none() {
        return run(session, args).await;
    }
    let found = Command::find(args.get(0)).filter(|command| command.takes(args.len()));
    let act = match found.map(|command| record::act(session, command, args)).transpose() {
        Ok(act) => act.flatten(),
        Err(full) => return refuse(session, full.resp()).await,
    };
    let queues = session.queue.is_some();
    if queues
        && is(args.get(0), "exec")
        && let Some(full) = session.acts.iter().find_map(|act| act.worth().err())
    {
        session.acts.clear();
        let text = abort(session, &Error::from(full).resp());
        return refuse(session, text).await;
    }
    if act.is_none() && !queues {
        return run(session, args).await;
    }
    session.write_pending().await;
    let before = session.out.len();
    match &act {
        Some(act) => {
            act.run(async {
                run(session, args).await;
                session.write_pending().await
            })
            .await
        }
        None => run(session, args).await,
    }
    let answer = session.out.get(before..).unwrap_or_default();
    match act {
        Some(act) if answer.starts_with(b"+QUEUED") => act.waits_with(&mut session.acts),
        Some(act) => record::end(&act, answer),
        None => {}
    }
    if queues && session.queue.is_none() {
        record::end_queued(std::mem::take(&mut session.acts), session.out.get(before..).unwrap_or_default());
    }
}

async fn run(session: &mut Session, args: Arguments<'_>) {
    let Some(command) = Command::find(args.get(0)) else {
        if is_http(args.get(0)) {
            session.server.engine.metrics().client_garbage.inc();
            session.closing = true;
            return refuse(session, "ERR this port speaks Redis's protocol, not HTTP".into()).await;
        }
        let name = &args.get(0)[..args.get(0).len().min(QUOTED_BYTES_MAX)];
        let text = format!("ERR unknown command '{}': COMMAND lists those that exist", name.escape_ascii());
        return refuse(session, text).await;
    };
    if !command.takes(args.len()) {
        let text = wrong_count(command.name);
        let text = if command.name == "exec" { abort(session, &text) } else { text };
        return refuse(session, text).await;
    }
    if let Err(error) = check_key_length(
        command.longest_key(args.len(), |at| args.get(at).len()),
        session.server.engine.limits(),
    ) {
        return refuse(session, error.resp()).await;
    }
    if session.only_listens() && !command.has(Flag::WhileListening) {
        return refuse(session, only_subscriptions(command.name)).await;
    }
    if session.queue.is_some() && command.has(Flag::NoMulti) {
        return refuse(session, format!("ERR '{}' is not supported within MULTI", command.name)).await;
    }
    if session.server.engine.auth_on() {
        if matches!(command.name, "auth" | "hello") {
            // What was gathered is the former user's.
            session.write_pending().await;
            if let Some(reply) = rights::log_in(session, command, args).await {
                return session.reply(&reply);
            }
        }
        if let Err(error) = rights::judge(session, command, args) {
            return refuse(session, error.resp()).await;
        }
    }
    if let (Some(queue), Some(queued)) = (&mut session.queue, command.queued()) {
        return match queue.push(queued, args) {
            Ok(()) => session.reply(&Reply::Simple("QUEUED")),
            Err(text) => refuse(session, text).await,
        };
    }
    match command.action {
        Action::Reads(run) => read(session, run, &args.to_bytes()[1..]).await,
        Action::Writes(run) => write(session, run, &args.to_bytes()[1..]).await,
        Action::Counts(run, amount) => {
            let args = &args.to_bytes()[1..];
            match amount(args) {
                Some(by) => session.count(Increment { key: args[0].clone(), by }),
                None => write(session, run, args).await,
            }
        }
        Action::Changes(run, change) => {
            let args = &args.to_bytes()[1..];
            match change(args) {
                Some((fields, answer)) => session.write_fields(fields, answer),
                None => write(session, run, args).await,
            }
        }
        Action::LooksUp(lookup) => look_up(session, lookup, args).await,
        Action::Script(kind) => {
            session.write_pending().await;
            let reply = scripts::eval(session, kind, &args.to_bytes()[1..]).await;
            session.reply(&reply.unwrap_or_else(|error| Reply::Error(error.resp())));
        }
        Action::Answers(run) => {
            session.write_pending().await;
            let reply = run(session, &args.to_bytes()[1..]);
            session.reply(&reply);
        }
        Action::Waits(run) => {
            session.write_pending().await;
            let reply = run(session, &args.to_bytes()[1..]).await;
            session.reply(&reply.unwrap_or_else(|error| Reply::Error(error.resp())));
        }
    }
}

/// Replies with an error, which also spoils a transaction.
async fn refuse(session: &mut Session, text: String) {
    session.write_pending().await;
    if let Some(queue) = &mut session.queue {
        queue.spoil();
    }
    session.reply(&Reply::Error(text));
}

/// Whether a line is one of HTTP's: a page in a browser could otherwise have a node on its machine run the lines
/// of a form as commands.
fn is_http(name: &[u8]) -> bool {
    is(name, "post") || is(name, "host:")
}

async fn read(session: &mut Session, run: Run, args: &[Bytes]) {
    session.write_pending().await;
    let reply = match session.sight().await {
        Ok(sight) => {
            in_place(is_long(args), || replied(run(args, &mut Keys::only_read(sight)))).map_err(failed)
        }
        Err(error) => Err(error),
    };
    session.reply(&reply.unwrap_or_else(|error| Reply::Error(error.resp())));
}

async fn write(session: &mut Session, run: Run, args: &[Bytes]) {
    // A command that only writes needs no view, and goes into the log with its neighbours.
    let mut keys = Keys::at(None).with(&session.server.channels);
    let reply = match run(args, &mut keys) {
        Ok(reply) => match keys.into_operation() {
            Some(operation) => return session.write(operation, reply),
            None => reply,
        },
        Err(Problem::Refused(text)) => Reply::Error(text),
        Err(Problem::Failed(Failed::Error(error))) => Reply::Error(error.resp()),
        Err(Problem::Failed(Failed::NeedsView)) => {
            session.write_pending().await;
            let run_alone = |keys: &mut Keys<'_>| {
                keys.is_alone();
                replied(run(args, keys))
            };
            match atomically(session, Place::of(is_long(args)), &[], run_alone).await {
                Ok(reply) => reply.unwrap_or(Reply::NullArray),
                Err(error) => Reply::Error(error.resp()),
            }
        }
    };
    session.write_pending().await;
    session.reply(&reply);
}

async fn look_up(session: &mut Session, lookup: Lookup, args: Arguments<'_>) {
    session.write_pending().await;
    if let Err(error) = session.look_up(lookup, args).await {
        session.reply(&Reply::Error(error.resp()));
    }
}

fn only_subscriptions(name: &str) -> String {
    format!(
        "ERR Can't execute '{name}': only (P)SUBSCRIBE / (P)UNSUBSCRIBE / PING / QUIT / RESET \
         are allowed in this context"
    )
}
