//! Commands of the auth face in golden scripts, see [`crate::golden`].
//!
//! ```text
//! add-user NAME [HASH]   set-password NAME HASH   delete-user NAME
//! add-role NAME   delete-role NAME   grant-role USER ROLE   revoke-role USER ROLE
//! grant ROLE read|write|readwrite KEY [END]   revoke ROLE KEY [END]
//! grant-part ROLE PART RIGHTS   revoke-part ROLE PART (both numbers)
//! grant-tables ROLE PATTERN RIGHTS   revoke-tables ROLE PATTERN (rights are a number)
//! enable SECRET   disable
//! put KEY [at=REVISION] (of the kv face, admitted at that auth revision, or without asking)
//! expire, compact-all (of the system face)
//! may USER KEY [END]
//! show
//! ```

#![allow(clippy::unwrap_used, reason = "test code, which other crates' tests run too")]

use super::{
    AddUser, Enable, FaceGrant, Grant, KeyRange, KeyRights, Operation, Part, RoleGrant, Scope, SetPassword,
    TableGrant, UserRole,
};
use crate::golden::{Line, Vocabulary, World, number};
use crate::{Command, Event, Reply, kv, system};
use bytes::Bytes;

pub(crate) const VOCABULARY: Vocabulary = Vocabulary { face: "auth", run, show_event };

fn run(world: &mut World<'_>, line: &Line<'_>) -> bool {
    let Line { name: command, words, .. } = line;
    let word = |place: usize| words.get(place).copied().unwrap_or_default().to_string();
    let pair = || UserRole { user: word(0), role: word(1) };
    let keys = |rights: KeyRights, key: usize| {
        let (key, range_end) = (bytes(&word(key)), bytes(&word(key + 1)));
        scope(word(0), Scope::Keys(KeyRange { rights: rights as i32, key, range_end }))
    };
    let part = |rights| scope(word(0), Scope::Part(FaceGrant { part: number(words[1]), rights }));
    let tables = |rights| scope(word(0), Scope::Tables(TableGrant { pattern: word(1), rights }));
    let operation = match *command {
        "add-user" => Operation::AddUser(AddUser { name: word(0), hash: word(1) }),
        "set-password" => Operation::SetPassword(SetPassword { name: word(0), hash: word(1) }),
        "delete-user" => Operation::DeleteUser(word(0)),
        "add-role" => Operation::AddRole(word(0)),
        "delete-role" => Operation::DeleteRole(word(0)),
        "grant-role" => Operation::GrantRole(pair()),
        "revoke-role" => Operation::RevokeRole(pair()),
        "grant" => {
            let rights = match words[1] {
                "read" => KeyRights::Read,
                "write" => KeyRights::Write,
                _ => KeyRights::ReadWrite,
            };
            Operation::Grant(keys(rights, 2))
        }
        "revoke" => Operation::Revoke(keys(KeyRights::Read, 1)),
        "grant-part" => Operation::Grant(part(number(words[2]))),
        "revoke-part" => Operation::Revoke(part(0)),
        "grant-tables" => Operation::Grant(tables(number(words[2]))),
        "revoke-tables" => Operation::Revoke(tables(0)),
        "grant-nothing" => Operation::Grant(RoleGrant { role: word(0), grant: None }),
        "enable" => Operation::Enable(Enable { secret: bytes(&word(0)) }),
        "disable" => Operation::Disable(true),
        "put" => {
            let put = kv::Put { key: bytes(words[0]), ..kv::Put::default() };
            return propose(world, line, kv::Operation::Put(put).into_command());
        }
        "expire" => return propose(world, line, system::Operation::Expire(1).into_command()),
        "compact-all" => return propose(world, line, system::Operation::Compact(1).into_command()),
        "may" => return may(world, &word(0), &bytes(&word(1)), &bytes(&word(2))),
        "show" => return show(world),
        _ => return false,
    };
    // Changes of users and roles are admitted at the present revision.
    let revision = world.machines.memory().auth.revision();
    let command = operation.into_command().admitted(line.option("at").map_or(revision, number));
    propose(world, line, command)
}

fn scope(role: String, scope: Scope) -> RoleGrant {
    RoleGrant { role, grant: Some(Grant { scope: Some(scope) }) }
}

/// `\0` stands for a zero byte.
fn bytes(word: &str) -> Bytes {
    word.replace("\\0", "\0").into()
}

fn propose(world: &mut World<'_>, line: &Line<'_>, command: Command) -> bool {
    let at = line.option("at").filter(|_| command.face != crate::Face::Admitted);
    let command = match at {
        Some(at) => command.admitted(number(at)),
        None => command,
    };
    let (reply, _) = world.apply(command);
    world.say(match reply {
        Reply::Auth(reply) => match reply.result {
            Ok(()) => format!("done at auth revision {}", reply.revision),
            Err(refusal) => format!("refused at auth revision {}: {refusal}", reply.revision),
        },
        Reply::Kv(reply) => format!("{:?}", reply.result.map(|_| "done")),
        other => format!("{other:?}"),
    });
    true
}

fn may(world: &mut World<'_>, user: &str, key: &[u8], end: &[u8]) -> bool {
    let policy = world.machines.memory().auth;
    world.say(match policy.access(user) {
        None => "no such user".into(),
        Some(access) => {
            let parts = [Part::Table, Part::Ledger, Part::Route, Part::Cluster, Part::Metrics];
            let parts: Vec<_> = parts.into_iter().filter(|part| access.has(*part, 1)).collect();
            let (reads, writes) = (access.reads(key, end), access.writes(key, end));
            format!("root {} reads {reads} writes {writes} reads of parts {parts:?}", access.is_root())
        }
    });
    true
}

fn show(world: &mut World<'_>) -> bool {
    let policy = world.machines.memory().auth;
    world.say(format!("enabled {} at auth revision {}", policy.enabled(), policy.revision()));
    for name in policy.users() {
        let user = policy.user(name).unwrap();
        world.say(format!("user {name} {:?} since {} hash {:?}", user.roles, user.since, user.hash));
    }
    for name in policy.roles() {
        world.say(format!("role {name}"));
        for Grant { scope } in policy.role(name).unwrap() {
            world.say(match scope.as_ref().unwrap() {
                Scope::Keys(range) => {
                    let (key, end) = (range.key.escape_ascii(), range.range_end.escape_ascii());
                    format!("  {:?} {key} {end}", range.rights())
                }
                Scope::Part(grant) => format!("  {:?} {}", grant.part(), grant.rights),
                Scope::Tables(grant) => format!("  tables {} {}", grant.pattern, grant.rights),
            });
        }
    }
    true
}

fn show_event(world: &mut World<'_>, event: &Event) {
    world.say(format!("event {}", event.revision));
}
