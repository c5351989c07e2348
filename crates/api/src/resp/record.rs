//! Which commands are worth an audit record (`crate::audit`), and what it says of them.
//!
//! | command | recorded |
//! |---|---|
//! | those that administer ([`ADMINISTER`]) | always |
//! | those whose arguments are chosen keys, or a chosen part's | by setting |
//! | those that may use any key, where keys are chosen: scripts, SCAN, FLUSHALL | by setting |
//!
//! A recorded command is not gathered with others: what it is answered says what came of it. What MULTI queues has the
//! outcome of EXEC.

use super::commands::{Command, Flag, Group};
use super::parse::is;
use super::request::Arguments;
use super::rights::{Right, of};
use super::session::Session;
use crate::audit::{Act, Audit, Use};
use crate::auth::Need;
use crate::error::Error;
use quoin_audit::{Outcome, Who};
use std::sync::Arc;

/// Commands that administer: with one of these subcommands, or, where there are none, with any.
const ADMINISTER: &[(&str, &[&str])] = &[
    ("acl", &["setuser", "deluser"]),
    ("client", &["kill", "no-evict"]),
    ("flushall", &[]),
    ("flushdb", &[]),
    ("function", &["load", "delete", "flush", "kill", "restore"]),
    ("script", &["flush", "kill"]),
];

/// Maximum keys of a command that a record names.
const NAMED_MAX: usize = 16;

/// The act of a command, if it is worth a record.
///
/// # Errors
/// It is, and cannot be recorded.
pub(super) fn act(
    session: &Session,
    command: &Command,
    args: Arguments<'_>,
) -> Result<Option<Arc<Act>>, Error> {
    let Some(audit) = session.server.gate.audit() else { return Ok(None) };
    let administers = ADMINISTER.iter().any(|(name, subs)| {
        let any = subs.is_empty() || args.len() > 1 && subs.iter().any(|sub| is(args.get(1), sub));
        *name == command.name && any
    });
    let keys = used(audit, command, args);
    let part = match of(command) {
        Some(Right::Call(Need::Part(part, rights))) => audit.has_chosen(part, rights),
        _ => false,
    };
    if !administers && !part && keys.is_none() {
        return Ok(None);
    }
    let mut name = command.name.to_uppercase();
    if administers && args.len() > 1 && !command.has(Flag::Write) {
        name = format!("{name} {}", String::from_utf8_lossy(args.get(1)).to_uppercase());
    }
    let who = Who {
        user: if session.is_known() { session.user() } else { String::new() },
        certificate: session.certificate.clone(),
        address: session.peer.to_string(),
        wire: "resp",
    };
    let act = Act::begin((audit, &session.server.engine), who, name, true, false)?;
    for (how, key) in keys.into_iter().flatten() {
        act.about(how, &key);
    }
    if command.name == "acl" && args.len() > 2 {
        act.about("user", &String::from_utf8_lossy(args.get(2)));
    }
    if part && args.len() > 1 {
        act.about("table", &String::from_utf8_lossy(args.get(1)));
    }
    Ok(Some(act))
}

/// The chosen keys that a command uses, if there are any.
fn used(audit: &Audit, command: &Command, args: Arguments<'_>) -> Option<Vec<(&'static str, String)>> {
    if audit.keys.is_empty() {
        return None;
    }
    let text = |key: &[u8]| key.escape_ascii().to_string();
    let uses: &[(Use, &str)] = match (command.has(Flag::Write), command.has(Flag::ReadOnly)) {
        (true, _) => &[(Use::Writes, "writes")],
        (false, true) => &[(Use::Reads, "reads")],
        _ if command.group == Group::Scripts => &[(Use::Reads, "reads"), (Use::Writes, "writes")],
        _ => return None,
    };
    let of_keys = |keys: &mut dyn Iterator<Item = &[u8]>| {
        let chosen = keys.flat_map(|key| uses.iter().map(move |(how, word)| (*how, *word, key)));
        let chosen = chosen.filter(|(how, _, key)| audit.has_chosen_keys(*how, key, b""));
        let named: Vec<_> = chosen.take(NAMED_MAX).map(|(_, word, key)| (word, text(key))).collect();
        (!named.is_empty()).then_some(named)
    };
    match of(command) {
        Some(Right::Arguments) => of_keys(&mut command.keys_of(args.len()).map(|at| args.get(at))),
        Some(Right::Channel) => of_keys(&mut std::iter::once(args.get(1))),
        Some(Right::Channels) => of_keys(&mut args.iter().skip(1)),
        Some(Right::All | Right::Everything) => {
            let any = uses.iter().filter(|(how, _)| audit.has_chosen_keys(*how, b"\0", b"\0"));
            let any: Vec<_> = any.map(|(_, word)| (*word, "any key".to_owned())).collect();
            (!any.is_empty()).then_some(any)
        }
        _ => None,
    }
}

/// What came of a command, by what it is answered.
pub(super) fn end(act: &Act, answer: &[u8]) {
    match answer.first() {
        Some(b'-') => {
            let line = answer[1..].split(|byte| matches!(byte, b' ' | b'\r')).next().unwrap_or_default();
            let code = String::from_utf8_lossy(line).into_owned();
            let outcome = match &*code {
                "UNKNOWN" | "FAULT" => Outcome::Failed,
                _ => Outcome::Refused,
            };
            act.ended(outcome, code);
        }
        _ => act.ended(Outcome::Done, "OK"),
    }
}

/// What came of the commands that MULTI queued, by what the command that ended it is answered.
pub(super) fn end_queued(acts: Vec<Arc<Act>>, answer: &[u8]) {
    // Of what was not executed, a record that has no place is refused by nobody.
    for act in &acts {
        let _ = act.worth();
    }
    // A number of answers, unless it is that of none.
    let done = answer.first() == Some(&b'*') && !answer.starts_with(b"*-1");
    for act in acts {
        match answer.first() {
            Some(b'-') => end(&act, answer),
            _ if done => act.ended(Outcome::Done, "EXEC"),
            _ => act.ended(Outcome::Refused, "not executed"),
        }
    }
}
