//! Commands about the connection and the node: HELLO, CLIENT, CONFIG, INFO and the like. COMMAND is in
//! `commands.rs`.

use super::clients::Victims;
use super::glob;
use super::parse::{NO_OTHER_DATABASE, NOT_AN_INTEGER, SYNTAX, is, no_subcommand, wrong_count};
use super::reply::{Reply, Version};
use super::session::Session;
use crate::error::Error;
use bytes::Bytes;
use quoin_core::kv;
use std::fmt::Write;

const NO_PASSWORD: &str =
    "ERR AUTH <password> called without any password configured. This node has none: leave AUTH out";
const NO_USER: &str = "WRONGPASS invalid username-password pair: there is no user but default";
const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
/// Maximum bytes of a word that a connection says of itself.
const NAME_BYTES_MAX: usize = 1 << 10;
const TOO_LONG: &str = "ERR a word of more than 1024 bytes";
/// Names for all sections of INFO.
const ALL_SECTIONS: &[&str] = &["default", "all", "everything"];
/// The version of Redis whose protocol this is; clients choose by it what they send.
const REDIS_VERSION: &str = "7.0.0";

pub(super) fn ping(session: &mut Session, args: &[Bytes]) -> Reply {
    match args {
        [] if session.only_listens() => Reply::Array(vec![Reply::text("pong"), Reply::text("")]),
        [text] if session.only_listens() => {
            Reply::Array(vec![Reply::text("pong"), Reply::Bulk(text.clone())])
        }
        [] => Reply::Simple("PONG"),
        [text] => Reply::Bulk(text.clone()),
        _ => Reply::Error(wrong_count("ping")),
    }
}

pub(super) fn echo(_: &mut Session, args: &[Bytes]) -> Reply {
    Reply::Bulk(args[0].clone())
}

/// AUTH [user] password: every client is the user default, whose password may be any.
pub(super) fn auth(_: &mut Session, args: &[Bytes]) -> Reply {
    match args {
        [_] => Reply::error(NO_PASSWORD),
        [user, _] => authenticate(user).unwrap_or(Reply::OK),
        _ => Reply::error(SYNTAX),
    }
}

/// The error for a user who does not exist.
fn authenticate(user: &[u8]) -> Option<Reply> {
    (user != b"default").then(|| Reply::error(NO_USER))
}

pub(super) fn select(_: &mut Session, args: &[Bytes]) -> Reply {
    match kv::integer(&args[0]) {
        Some(0) => Reply::OK,
        Some(_) => Reply::error(NO_OTHER_DATABASE),
        None => Reply::error(NOT_AN_INTEGER),
    }
}

pub(super) fn quit(session: &mut Session, _: &[Bytes]) -> Reply {
    session.closing = true;
    Reply::OK
}

pub(super) fn reset(session: &mut Session, _: &[Bytes]) -> Reply {
    session.reset();
    Reply::Simple("RESET")
}

pub(super) fn readonly(session: &mut Session, _: &[Bytes]) -> Reply {
    session.read_local(true);
    Reply::OK
}

pub(super) fn readwrite(session: &mut Session, _: &[Bytes]) -> Reply {
    session.read_local(false);
    Reply::OK
}

/// WAIT replicas ms: a write is on a majority before its own reply, so that many others have it.
pub(super) fn wait(session: &mut Session, _: &[Bytes]) -> Reply {
    Reply::Integer(session.server.engine.raft().voters.len() as i64 / 2)
}

/// HELLO [version [AUTH user password] [SETNAME name] ...]
pub(super) fn hello(session: &mut Session, args: &[Bytes]) -> Reply {
    if args.iter().any(|word| word.len() > NAME_BYTES_MAX) {
        return Reply::error(TOO_LONG);
    }
    if let [version, options @ ..] = args {
        let version = match kv::integer(version) {
            Some(2) => Version::Resp2,
            Some(3) => Version::Resp3,
            Some(_) => return Reply::error("NOPROTO unsupported protocol version: this node speaks 2 and 3"),
            None => return Reply::error("ERR Protocol version is not an integer or out of range"),
        };
        let (mut name, mut options) = (None, options);
        // Nothing is changed before all of it is read.
        loop {
            options = match options {
                [] => break,
                // It was judged before.
                [word, _, _, rest @ ..] if is(word, "auth") && session.is_known() => rest,
                [word, user, _, rest @ ..] if is(word, "auth") => match authenticate(user) {
                    Some(problem) => return problem,
                    None => rest,
                },
                [word, given, rest @ ..] if is(word, "setname") => {
                    if !is_name(given) {
                        return Reply::error(BAD_NAME);
                    }
                    name = Some(given);
                    rest
                }
                [word, ..] => {
                    let text = format!("ERR Syntax error in HELLO option '{}'", word.escape_ascii());
                    return Reply::Error(text);
                }
            }
        }
        if let Some(name) = name {
            session.name = Bytes::copy_from_slice(name);
        }
        session.version = version;
        session.say_who();
    }
    Reply::Map(vec![
        (Reply::text("server"), Reply::text("quoin")),
        (Reply::text("version"), Reply::text(env!("CARGO_PKG_VERSION"))),
        (Reply::text("proto"), Reply::Integer(session.version.number().into())),
        (Reply::text("id"), Reply::Integer(session.id as i64)),
        (Reply::text("mode"), Reply::text("standalone")),
        (Reply::text("role"), Reply::text("master")),
        (Reply::text("modules"), Reply::Array(Vec::new())),
    ])
}

fn is_name(name: &[u8]) -> bool {
    name.iter().all(u8::is_ascii_graphic)
}

const CLIENT_SUBCOMMANDS: &str =
    "ID, SETNAME, GETNAME, SETINFO, INFO, LIST, KILL, REPLY, NO-EVICT and NO-TOUCH";

/// CLIENT ID | GETNAME | SETNAME name | SETINFO LIB-NAME name | SETINFO LIB-VER version | INFO | LIST [ID id ...] |
/// KILL address | KILL [ID id] [ADDR address] [SKIPME yes|no] | REPLY ON|OFF|SKIP | NO-EVICT ON|OFF | NO-TOUCH ON|OFF
pub(super) fn client(session: &mut Session, args: &[Bytes]) -> Reply {
    if args.iter().any(|word| word.len() > NAME_BYTES_MAX) {
        return Reply::error(TOO_LONG);
    }
    match (&args[0].to_ascii_lowercase()[..], &args[1..]) {
        (b"id", []) => Reply::Integer(session.id as i64),
        (b"getname", []) if session.name.is_empty() => Reply::Null,
        (b"getname", []) => Reply::Bulk(session.name.clone()),
        (b"setname", [name]) if is_name(name) => {
            session.name = Bytes::copy_from_slice(name);
            session.say_who();
            Reply::OK
        }
        (b"setname", [_]) => Reply::error(BAD_NAME),
        (b"setinfo", [what, value]) if is(what, "lib-name") => {
            session.library.0 = Bytes::copy_from_slice(value);
            session.say_who();
            Reply::OK
        }
        (b"setinfo", [what, value]) if is(what, "lib-ver") => {
            session.library.1 = Bytes::copy_from_slice(value);
            session.say_who();
            Reply::OK
        }
        (b"setinfo", [what, _]) => Reply::Error(format!("ERR Unrecognized option '{}'", what.escape_ascii())),
        (b"info", []) => Reply::text(session.listed.line()),
        (b"list", []) => list(session, None),
        (b"list", [word, ids @ ..]) if is(word, "id") && !ids.is_empty() => {
            let id = |id: &Bytes| kv::integer(id).and_then(|id| u64::try_from(id).ok());
            match ids.iter().map(id).collect::<Option<Vec<_>>>() {
                Some(ids) => list(session, Some(&ids)),
                None => Reply::error("ERR Invalid client ID"),
            }
        }
        (b"kill", [address]) => {
            let (killed, own) = kill(session, &Victims { address: Some(address), ..Victims::default() });
            session.closing |= own;
            if killed > 0 { Reply::OK } else { Reply::error("ERR No such client") }
        }
        (b"kill", options @ [_, _, ..]) => match victims(session.id, options) {
            Ok(victims) => {
                let (killed, own) = kill(session, &victims);
                session.closing |= own;
                Reply::Integer(killed as i64)
            }
            Err(problem) => problem,
        },
        // The replies to these are taken back with those that follow.
        (b"reply", [word]) if is(word, "on") => want_replies(session, Some(true)),
        (b"reply", [word]) if is(word, "off") => want_replies(session, Some(false)),
        (b"reply", [word]) if is(word, "skip") => want_replies(session, None),
        (b"reply", [_]) => Reply::error(SYNTAX),
        // Nothing is evicted here, and no key knows when it was last used.
        (b"no-evict" | b"no-touch", [word]) if is(word, "on") || is(word, "off") => Reply::OK,
        (b"no-evict" | b"no-touch", [_]) => Reply::error(SYNTAX),
        (sub, _) => Reply::Error(no_subcommand("client", sub, CLIENT_SUBCOMMANDS)),
    }
}

fn want_replies(session: &mut Session, wanted: Option<bool>) -> Reply {
    session.want_replies(wanted);
    Reply::OK
}

/// LATENCY: how long commands take is in the node's metrics, and nothing is recorded here.
pub(super) fn latency(_: &mut Session, args: &[Bytes]) -> Reply {
    match (&args[0].to_ascii_lowercase()[..], &args[1..]) {
        (b"latest", []) | (b"history", [_]) => Reply::Array(Vec::new()),
        (b"reset", _) => Reply::Integer(0),
        (b"doctor", []) => Reply::text("Nothing is recorded here: see the node's metrics for latencies."),
        (sub, _) => Reply::Error(no_subcommand("latency", sub, "LATEST, HISTORY, RESET and DOCTOR")),
    }
}

fn list(session: &Session, ids: Option<&[u64]>) -> Reply {
    let bytes_max = session.server.engine.limits().response_bytes_max;
    let lines = session.server.clients.lines(ids, bytes_max);
    lines.map_or_else(|| Reply::Error(Error::response_too_large(bytes_max).resp()), Reply::text)
}

fn kill(session: &Session, victims: &Victims<'_>) -> (usize, bool) {
    session.server.clients.kill(victims, session.id)
}

/// The options of CLIENT KILL; without SKIPME it spares who asks.
fn victims(own: u64, options: &[Bytes]) -> Result<Victims<'_>, Reply> {
    let mut victims = Victims { spared: Some(own), ..Victims::default() };
    for option in options.chunks(2) {
        match option {
            [word, id] if is(word, "id") => match kv::integer(id).and_then(|id| u64::try_from(id).ok()) {
                Some(id @ 1..) => victims.id = Some(id),
                _ => return Err(Reply::error("ERR client-id should be greater than 0")),
            },
            [word, address] if is(word, "addr") => victims.address = Some(address),
            [word, answer] if is(word, "skipme") && is(answer, "yes") => victims.spared = Some(own),
            [word, answer] if is(word, "skipme") && is(answer, "no") => victims.spared = None,
            _ => return Err(Reply::error(SYNTAX)),
        }
    }
    Ok(victims)
}

/// CONFIG GET pattern [pattern ...]: the few settings that Redis's tools ask for.
pub(super) fn config(session: &mut Session, args: &[Bytes]) -> Reply {
    let [sub, patterns @ ..] = args else { return Reply::Error(wrong_count("config")) };
    if !is(sub, "get") || patterns.is_empty() {
        return Reply::error(
            "ERR CONFIG has only GET: settings are in quoin.toml, see 'quoin config defaults'",
        );
    }
    let known = [
        ("appendonly", "yes".to_owned()),
        ("databases", "1".to_owned()),
        ("maxmemory", "0".to_owned()),
        ("proto-max-bulk-len", session.server.engine.limits().request_bytes_max.to_string()),
        ("save", String::new()),
    ];
    if let Some(problem) = patterns.iter().find_map(|pattern| glob::too_long(pattern)) {
        return problem;
    }
    let wanted = |name: &str| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes()));
    let found = known.into_iter().filter(|(name, _)| wanted(name));
    Reply::Map(found.map(|(name, value)| (Reply::text(name), Reply::text(value))).collect())
}

/// INFO [section ...]: those asked for; all without a name, and by the names `default`, `all` and `everything`.
pub(super) fn info(session: &mut Session, asked: &[Bytes]) -> Reply {
    let server = &session.server;
    let status = server.engine.status();
    let role = if status.raft.is_leader { "master" } else { "slave" };
    let sections = [
        (
            "Server",
            vec![
                ("redis_version", REDIS_VERSION.to_owned()),
                ("quoin_version", env!("CARGO_PKG_VERSION").to_owned()),
                ("redis_mode", "standalone".to_owned()),
                ("process_id", std::process::id().to_string()),
            ],
        ),
        ("Clients", vec![("connected_clients", server.connections().to_string())]),
        (
            "Replication",
            vec![
                ("role", role.to_owned()),
                ("quoin_leader", format!("{:016x}", status.raft.leader)),
                ("quoin_applied_index", status.progress.index.to_string()),
                ("quoin_revision", status.progress.revision.to_string()),
                ("quoin_lag_ms", status.lag_ms.map_or_else(|| "unknown".into(), |ms| ms.to_string())),
            ],
        ),
        (
            "Persistence",
            vec![
                ("loading", "0".to_owned()),
                ("quoin_store_bytes", status.store_bytes.to_string()),
                ("quoin_log_bytes", status.log_bytes.to_string()),
            ],
        ),
    ];
    let all = asked.is_empty() || asked.iter().any(|name| ALL_SECTIONS.iter().any(|all| is(name, all)));
    let mut text = String::new();
    for (title, lines) in sections {
        if !all && !asked.iter().any(|name| is(name, title)) {
            continue;
        }
        let blank = if text.is_empty() { "" } else { "\r\n" };
        write!(text, "{blank}# {title}\r\n").expect("a String takes everything");
        for (name, value) in lines {
            write!(text, "{name}:{value}\r\n").expect("a String takes everything");
        }
    }
    Reply::text(text)
}
