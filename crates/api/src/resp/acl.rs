//! ACL: users and roles in Redis's words, as far as they map.
//!
//! Deliberately absent: ACL SETUSER and DELUSER. Users are changed where roles can be said: `quoin user`, `quoin role`,
//! etcd's API.

use super::commands::categories;
use super::parse::{is, no_subcommand};
use super::reply::Reply;
use super::session::Session;
use crate::auth::check;
use bytes::Bytes;
use quoin_core::auth::{Access, Grant, KeyRange, KeyRights, Policy, Scope};
use quoin_core::store::prefix_end;

const SUBCOMMANDS: &str = "WHOAMI, USERS, LIST, GETUSER and CAT";

/// ACL WHOAMI | USERS | LIST | GETUSER name | CAT
pub(super) fn acl(session: &mut Session, args: &[Bytes]) -> Reply {
    let engine = &session.server.engine;
    let policy = engine.policy();
    match args {
        [sub] if is(sub, "whoami") => Reply::text(session.user()),
        [sub] if is(sub, "cat") => Reply::Array(categories().into_iter().map(Reply::text).collect()),
        [sub, ..] if ["users", "list", "getuser"].into_iter().any(|name| is(sub, name)) => {
            if let Err(error) = check(engine, Access::is_root) {
                return Reply::Error(error.resp());
            }
            match args {
                [sub] if is(sub, "users") => Reply::Array(policy.users().map(Reply::text).collect()),
                [sub] if is(sub, "list") => {
                    Reply::Array(policy.users().map(|name| Reply::text(line(&policy, name))).collect())
                }
                [sub, name] if is(sub, "getuser") => {
                    std::str::from_utf8(name).map_or(Reply::Null, |name| user(&policy, name))
                }
                _ => Reply::Error(no_subcommand("ACL", &args[0], SUBCOMMANDS)),
            }
        }
        [sub, ..] => Reply::Error(no_subcommand("ACL", sub, SUBCOMMANDS)),
        [] => Reply::error(super::parse::SYNTAX),
    }
}

fn line(policy: &Policy, name: &str) -> String {
    let passwords = if has_password(policy, name) { "#(hidden)" } else { "resetpass" };
    [&format!("user {name} on {passwords}"), &keys(policy, name)[..]].join(" ").trim_end().to_owned()
}

fn user(policy: &Policy, name: &str) -> Reply {
    if policy.user(name).is_none() {
        return Reply::Null;
    }
    let words = |words: &[&str]| Reply::Array(words.iter().map(|word| Reply::text(*word)).collect());
    let passwords: &[&str] = if has_password(policy, name) { &["(hidden)"] } else { &[] };
    let root = policy.access(name).is_some_and(Access::is_root);
    Reply::Map(vec![
        (Reply::text("flags"), words(&["on"])),
        (Reply::text("passwords"), words(passwords)),
        (Reply::text("commands"), Reply::text(if root { "+@all" } else { "+@read +@write +@connection" })),
        (Reply::text("keys"), Reply::text(keys(policy, name))),
        (Reply::text("channels"), Reply::text(if root { "&*" } else { "" })),
        (Reply::text("selectors"), words(&[])),
    ])
}

fn has_password(policy: &Policy, name: &str) -> bool {
    policy.user(name).is_some_and(|user| !user.hash.is_empty())
}

/// The keys of a user's roles: patterns where a range is one, else its ends.
fn keys(policy: &Policy, name: &str) -> String {
    if policy.access(name).is_some_and(Access::is_root) {
        return "~*".into();
    }
    let roles = policy.user(name).map(|user| &user.roles[..]).unwrap_or_default();
    let grants = roles.iter().filter_map(|role| policy.role(role)).flatten();
    let ranges = grants.filter_map(|Grant { scope }| match scope {
        Some(Scope::Keys(range)) => Some(pattern(range)),
        _ => None,
    });
    ranges.collect::<Vec<_>>().join(" ")
}

fn pattern(range: &KeyRange) -> String {
    let rights = match range.rights() {
        KeyRights::Read => "%R~",
        KeyRights::Write => "%W~",
        KeyRights::ReadWrite => "~",
    };
    let key = range.key.escape_ascii();
    match &range.range_end[..] {
        b"" => format!("{rights}{key}"),
        b"\0" if &range.key[..] == b"\0" => format!("{rights}*"),
        end if *end == *prefix_end(&range.key) => format!("{rights}{key}*"),
        b"\0" => format!("{rights}[{key}..]"),
        end => format!("{rights}[{key}..{}]", end.escape_ascii()),
    }
}
