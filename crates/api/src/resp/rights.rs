//! What each command needs while authentication is on, and AUTH.
//!
//! Keys in arguments are judged before a command runs or is queued by MULTI; what it then writes and compares is judged
//! again, as any kv operation (`crate::auth`). A channel counts as a key of its name.

use super::commands::{Command, Flag, Group};
use super::parse::is;
use super::reply::Reply;
use super::request::Arguments;
use super::session::Session;
use crate::auth::{Need, check, check_table};
use crate::error::{Error, Known};
use quoin_core::auth::rights::{ADMIN, READ, WRITE};
use quoin_core::auth::{Access, Part, table_rights};

/// What a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// As calls on other wires do.
    Call(Need),
    /// To read the keys among its arguments, and to write them if it may.
    Arguments,
    /// To read the channels that are its arguments.
    Channels,
    /// To write the channel that is its first argument.
    Channel,
    /// To read all keys, and to write them if it may.
    All,
    /// To read and write all keys: what it does is not said by its arguments.
    Everything,
}

/// What a command needs; `None` if nobody has said.
pub(super) fn of(command: &Command) -> Option<Right> {
    let part = |part, rights| Right::Call(Need::Part(part, rights));
    Some(match (command.group, command.name) {
        (_, "hello" | "auth" | "quit" | "reset") => Right::Call(Need::Nothing),
        (Group::Connection, "client" | "echo" | "ping" | "readonly" | "readwrite" | "select" | "acl") => {
            Right::Call(Need::User)
        }
        (Group::Transactions, "multi" | "exec" | "discard" | "unwatch") => Right::Call(Need::User),
        (Group::Node, "command" | "info" | "time" | "wait") => Right::Call(Need::User),
        (Group::Node, "config" | "latency") => part(Part::Cluster, READ),
        (Group::Keyspace, "scan" | "keys" | "dbsize" | "randomkey" | "flushdb" | "flushall") => Right::All,
        (Group::Scripts, _) => Right::Everything,
        (Group::Notices, "subscribe") => Right::Channels,
        (Group::Notices, "publish") => Right::Channel,
        (Group::Notices, "unsubscribe" | "punsubscribe") => Right::Call(Need::User),
        (Group::Notices, "psubscribe" | "pubsub") => Right::All,
        (Group::Tables, "table.set" | "table.del") => part(Part::Table, WRITE),
        (Group::Tables, _) if command.has(Flag::ReadOnly) => part(Part::Table, READ),
        _ if command.has_keys() => Right::Arguments,
        _ => return None,
    })
}

/// Whether the session's user may run a command.
///
/// # Errors
/// They may not.
pub(super) fn judge(session: &Session, command: &Command, args: Arguments<'_>) -> Result<(), Error> {
    let engine = &session.server.engine;
    let writes = command.has(Flag::Write);
    let all = |access: &Access| access.reads(b"\0", b"\0") && (!writes || access.writes(b"\0", b"\0"));
    match of(command).unwrap_or(Right::Call(Need::Root)) {
        Right::Call(Need::Nothing) => Ok(()),
        // What concerns other connections.
        Right::Call(Need::User) if command.name == "client" && args.len() > 1 => {
            let others = ["list", "kill", "no-evict"].into_iter().any(|sub| is(args.get(1), sub));
            check(engine, |access| !others || access.has(Part::Cluster, ADMIN))
        }
        // Of which table it is, its first argument says; TABLE.LIST leaves out those that may not be seen.
        Right::Call(Need::Part(Part::Table, rights)) if args.len() > 1 => {
            let right = if rights == WRITE { table_rights::CHANGE } else { table_rights::LOOKUP };
            let name = std::str::from_utf8(args.get(1)).map_err(|_| Known::PermissionDenied)?;
            check_table(engine, name, right)
        }
        Right::Call(need) => check(engine, |access| need.is_met_by(access)),
        Right::All => check(engine, all),
        Right::Everything => {
            check(engine, |access| access.reads(b"\0", b"\0") && access.writes(b"\0", b"\0"))
        }
        Right::Channels => check(engine, |access| {
            args.iter().skip(1).all(|channel| !channel.is_empty() && access.reads(channel, b""))
        }),
        Right::Channel => check(engine, |access| access.writes(args.get(1), b"")),
        Right::Arguments => {
            let reads = !writes || !only_writes(command.name, args.len());
            let may = |access: &Access, key: &[u8]| {
                (!reads || access.reads(key, b"")) && (!writes || access.writes(key, b""))
            };
            check(engine, |access| command.keys_of(args.len()).all(|at| may(access, args.get(at))))
        }
    }
}

/// Whether a command that writes says nothing of what was there.
fn only_writes(name: &str, arguments: usize) -> bool {
    matches!((name, arguments), ("set", 3) | ("setex" | "psetex", 4) | ("mset", _))
}

/// AUTH, and HELLO with AUTH: who the client is. Returns the reply, unless HELLO goes on.
pub(super) async fn log_in(session: &mut Session, command: &Command, args: Arguments<'_>) -> Option<Reply> {
    let (name, password) = match (command.name, args.len()) {
        // As in Redis, one word is the password of the user `default`.
        ("auth", 2) => (&b"default"[..], args.get(1)),
        ("auth", 3) => (args.get(1), args.get(2)),
        ("auth", _) => return Some(Reply::error(super::parse::SYNTAX)),
        ("hello", count) => {
            let words: Vec<&[u8]> = (2..count).map(|at| args.get(at)).collect();
            match words.windows(3).find(|words| is(words[0], "auth")) {
                Some(words) => (words[1], words[2]),
                None if session.is_known() => return None,
                None => {
                    return Some(Reply::error(
                        "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
                         AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
                         version at the same time",
                    ));
                }
            }
        }
        _ => return None,
    };
    let pair = std::str::from_utf8(name).ok().zip(std::str::from_utf8(password).ok());
    let outcome = match pair {
        Some((name, password)) => session.server.gate.authenticate(name, password, Some(&session.peer)).await,
        None => Err(Known::AuthFailed.into()),
    };
    match outcome {
        Ok(identity) => {
            session.become_user(identity);
            (command.name == "auth").then_some(Reply::OK)
        }
        Err(error) => Some(Reply::Error(error.resp())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::commands::COMMANDS;
    use super::*;

    /// A new command needs everything until somebody says what it needs.
    #[test]
    fn every_command_has_a_rule() {
        for command in COMMANDS {
            assert!(of(command).is_some(), "say in rights.rs what {} needs", command.name);
        }
    }

    #[test]
    fn only_a_few_commands_need_no_user() {
        let open = COMMANDS.iter().filter(|command| of(command) == Some(Right::Call(Need::Nothing)));
        let names: Vec<_> = open.map(|command| command.name).collect();
        assert_eq!(names, ["hello", "auth", "reset", "quit"]);
    }
}
