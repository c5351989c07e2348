//! `quoin auth`, `quoin user` and `quoin role`: who may do what.

use crate::connection::Connection;
use crate::outcome::Write as _;
use crate::output::{self, text};
use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use quoin_core::store;
use quoin_load::client::Channel;
use quoin_load::client::credentials;
use quoin_proto::authpb::{Permission, UserAddOptions};
use quoin_proto::etcdserverpb as pb;
use quoin_proto::etcdserverpb::auth_client::AuthClient;
use quoin_proto::quoin::auth::v1 as parts;
use quoin_proto::quoin::auth::v1::auth_client::AuthClient as PartsClient;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Whether requests need rights.
#[derive(Subcommand)]
pub(crate) enum Auth {
    /// Show whether authentication is on, and the auth revision
    Status {
        #[command(flatten)]
        connection: Connection,
    },
    /// Let only users in, who may do what their roles grant; there must be a user root with the role root
    Enable {
        #[command(flatten)]
        connection: Connection,
    },
    /// Let everybody do everything; all tokens end
    Disable {
        #[command(flatten)]
        connection: Connection,
    },
}

/// Commands on users.
#[derive(Subcommand)]
pub(crate) enum User {
    /// Show all users
    List {
        #[command(flatten)]
        connection: Connection,
    },
    /// Show a user's roles
    Get {
        /// The user
        name: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Add a user, who has no role at first
    Add {
        /// The user
        name: String,
        #[command(flatten)]
        password: NewPassword,
        /// Without a password: known by the common name of a client's certificate
        #[arg(long, conflicts_with = "new_password_file")]
        no_password: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// Delete a user
    Delete {
        /// The user
        name: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Replace a user's password; tokens and connections of the user end
    Passwd {
        /// The user
        name: String,
        #[command(flatten)]
        password: NewPassword,
        #[command(flatten)]
        connection: Connection,
    },
    /// Give a user a role
    Grant {
        /// The user
        name: String,
        /// The role
        role: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Take a role from a user
    Revoke {
        /// The user
        name: String,
        /// The role
        role: String,
        #[command(flatten)]
        connection: Connection,
    },
}

/// Where a new password comes from; without a file it is asked for twice.
#[derive(Args)]
pub(crate) struct NewPassword {
    /// A file with the new password on its first line; - is standard input
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
}

impl NewPassword {
    fn read(&self) -> Result<String> {
        if let Some(file) = &self.new_password_file {
            return credentials::read(file);
        }
        let password = credentials::ask("New password: ")?;
        ensure!(password == credentials::ask("Again: ")?, "the two differ; nothing was done");
        Ok(password)
    }
}

/// Commands on roles.
#[derive(Subcommand)]
pub(crate) enum Role {
    /// Show all roles
    List {
        #[command(flatten)]
        connection: Connection,
    },
    /// Show what a role grants
    Get {
        /// The role
        name: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Add a role, which grants nothing at first
    Add {
        /// The role
        name: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Delete a role, and take it from all users
    Delete {
        /// The role
        name: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Let a role read or write keys
    Grant {
        /// The role
        name: String,
        /// What may be done
        rights: KeyRights,
        #[command(flatten)]
        keys: Keys,
        #[command(flatten)]
        connection: Connection,
    },
    /// Take the right to keys from a role; key and end as they were granted
    Revoke {
        /// The role
        name: String,
        #[command(flatten)]
        keys: Keys,
        #[command(flatten)]
        connection: Connection,
    },
    /// Give a role rights in another part of the node, in place of those that it has there
    GrantPart {
        /// The role
        name: String,
        /// The part
        part: Part,
        /// table, ledger: read, write, admin; route: read, write, heartbeat; cluster: read, admin; metrics: read
        #[arg(value_delimiter = ',', required = true)]
        rights: Vec<PartRight>,
        #[command(flatten)]
        connection: Connection,
    },
    /// Take all its rights in a part from a role
    RevokePart {
        /// The role
        name: String,
        /// The part
        part: Part,
        #[command(flatten)]
        connection: Connection,
    },
    /// Give a role rights in some lookup tables, in place of those that it has for the same pattern
    GrantTables {
        /// The role
        name: String,
        /// The name of a table; or how names begin, and '*'
        pattern: String,
        /// lookup (list and export too), change (keys), publish (and drop), activate (and roll back)
        #[arg(value_delimiter = ',', required = true)]
        rights: Vec<TableRight>,
        #[command(flatten)]
        connection: Connection,
    },
    /// Take all its rights for a pattern of tables from a role
    RevokeTables {
        /// The role
        name: String,
        /// The pattern, as it was granted
        pattern: String,
        #[command(flatten)]
        connection: Connection,
    },
}

/// What may be done with keys. The numbers are etcd's.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum KeyRights {
    Read = 0,
    Write = 1,
    Readwrite = 2,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Part {
    Table = 1,
    Ledger = 2,
    Route = 3,
    Cluster = 4,
    Metrics = 5,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum PartRight {
    Read = 1,
    Write = 2,
    Admin = 4,
    Heartbeat = 8,
}

/// Rights in lookup tables, as `quoin.auth.v1` has them.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum TableRight {
    Lookup = 1,
    Change = 2,
    Publish = 4,
    Activate = 8,
}

/// Which keys.
#[derive(Args)]
pub(crate) struct Keys {
    /// The key, or the first of a range
    key: String,
    /// The first key behind the range
    end: Option<String>,
    /// All keys that begin with KEY
    #[arg(long, conflicts_with_all = ["end", "from_key"])]
    prefix: bool,
    /// KEY and all keys behind it
    #[arg(long, conflicts_with = "end")]
    from_key: bool,
}

impl Keys {
    fn range(&self) -> (Vec<u8>, Vec<u8>) {
        let key = self.key.clone().into_bytes();
        let end = match &self.end {
            Some(end) => end.clone().into_bytes(),
            None if self.from_key || self.prefix && key.is_empty() => vec![0],
            None if self.prefix => prefix_end(&key),
            None => Vec::new(),
        };
        (if key.is_empty() { vec![0] } else { key }, end)
    }
}

/// Where the keys with a prefix end, as etcd's clients say it: a zero byte where no key is behind them.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let end = store::prefix_end(prefix);
    if end.is_empty() { vec![0] } else { end }
}

/// What to do about a change without an answer.
fn look() -> String {
    "see what there is before you send it again (`get` or `status`)".into()
}

async fn client(connection: &Connection) -> Result<AuthClient<Channel>> {
    Ok(AuthClient::new(connection.any().await?))
}

/// Runs a command on authentication.
pub(crate) async fn auth(auth: Auth) -> Result<ExitCode> {
    match auth {
        Auth::Status { connection } => {
            let status = client(&connection).await?.auth_status(pb::AuthStatusRequest {}).await?.into_inner();
            let (enabled, revision) = (status.enabled, status.auth_revision);
            let on = if enabled { "on" } else { "off" };
            let told = format!("authentication is {on}, auth revision {revision}");
            connection.say(&json!({ "enabled": enabled, "auth_revision": revision }), &told)
        }
        Auth::Enable { connection } => {
            client(&connection).await?.auth_enable(pb::AuthEnableRequest {}).await.or_look(look)?;
            connection.say(&json!({ "enabled": true }), "authentication is on")
        }
        Auth::Disable { connection } => {
            client(&connection).await?.auth_disable(pb::AuthDisableRequest {}).await.or_look(look)?;
            connection.say(&json!({ "enabled": false }), "authentication is off")
        }
    }
}

/// Runs a command on users.
pub(crate) async fn user(user: User) -> Result<ExitCode> {
    match user {
        User::List { connection } => {
            let users = client(&connection).await?.user_list(pb::AuthUserListRequest {}).await?;
            list(&connection, "user", users.into_inner().users)
        }
        User::Get { name, connection } => {
            let asked = pb::AuthUserGetRequest { name };
            list(&connection, "role", client(&connection).await?.user_get(asked).await?.into_inner().roles)
        }
        User::Add { name, password, no_password, connection } => {
            let password = if no_password { String::new() } else { password.read()? };
            let options = Some(UserAddOptions { no_password });
            let told = format!("user {name} added");
            let add = pb::AuthUserAddRequest { name, password, options, ..Default::default() };
            client(&connection).await?.user_add(add).await.or_look(look)?;
            done(&connection, &told)
        }
        User::Delete { name, connection } => {
            let told = format!("user {name} deleted");
            client(&connection).await?.user_delete(pb::AuthUserDeleteRequest { name }).await.or_look(look)?;
            done(&connection, &told)
        }
        User::Passwd { name, password, connection } => {
            let (told, password) = (format!("user {name} has another password"), password.read()?);
            let change = pb::AuthUserChangePasswordRequest { name, password, ..Default::default() };
            client(&connection).await?.user_change_password(change).await.or_look(look)?;
            done(&connection, &told)
        }
        User::Grant { name: user, role, connection } => {
            let told = format!("user {user} has the role {role}");
            client(&connection)
                .await?
                .user_grant_role(pb::AuthUserGrantRoleRequest { user, role })
                .await
                .or_look(look)?;
            done(&connection, &told)
        }
        User::Revoke { name, role, connection } => {
            let told = format!("user {name} has the role {role} no more");
            client(&connection)
                .await?
                .user_revoke_role(pb::AuthUserRevokeRoleRequest { name, role })
                .await
                .or_look(look)?;
            done(&connection, &told)
        }
    }
}

/// Runs a command on roles.
pub(crate) async fn role(role: Role) -> Result<ExitCode> {
    match role {
        Role::List { connection } => {
            let roles = client(&connection).await?.role_list(pb::AuthRoleListRequest {}).await?;
            list(&connection, "role", roles.into_inner().roles)
        }
        Role::Get { name, connection } => show(&connection, name).await,
        Role::Add { name, connection } => {
            let told = format!("role {name} added");
            client(&connection).await?.role_add(pb::AuthRoleAddRequest { name }).await.or_look(look)?;
            done(&connection, &told)
        }
        Role::Delete { name: role, connection } => {
            let told = format!("role {role} deleted");
            client(&connection).await?.role_delete(pb::AuthRoleDeleteRequest { role }).await.or_look(look)?;
            done(&connection, &told)
        }
        Role::Grant { name, rights, keys, connection } => {
            let (told, (key, end)) = (format!("role {name} grants it"), keys.range());
            let perm = Permission { perm_type: rights as i32, key: key.into(), range_end: end.into() };
            let grant = pb::AuthRoleGrantPermissionRequest { name, perm: Some(perm) };
            client(&connection).await?.role_grant_permission(grant).await.or_look(look)?;
            done(&connection, &told)
        }
        Role::Revoke { name: role, keys, connection } => {
            let (told, (key, end)) = (format!("role {role} grants it no more"), keys.range());
            let (key, range_end) = (key.into(), end.into());
            let revoke = pb::AuthRoleRevokePermissionRequest { role, key, range_end };
            client(&connection).await?.role_revoke_permission(revoke).await.or_look(look)?;
            done(&connection, &told)
        }
        Role::GrantPart { name: role, part, rights, connection } => {
            let told = format!("role {role} grants it");
            let rights = rights.into_iter().fold(0, |sum, right| sum | right as u32);
            let grant = Some(parts::PartRights { part: part as i32, rights });
            let grant = parts::GrantRequest { role, grant, tables: None };
            PartsClient::new(connection.any().await?).grant(grant).await.or_look(look)?;
            done(&connection, &told)
        }
        Role::RevokePart { name: role, part, connection } => {
            let told = format!("role {role} grants it no more");
            let revoke = parts::RevokeRequest { role, part: part as i32, tables: String::new() };
            PartsClient::new(connection.any().await?).revoke(revoke).await.or_look(look)?;
            done(&connection, &told)
        }
        Role::GrantTables { name: role, pattern, rights, connection } => {
            let told = format!("role {role} grants it");
            let rights = rights.into_iter().fold(0, |sum, right| sum | right as u32);
            let tables = Some(parts::TableRights { pattern, rights });
            let grant = parts::GrantRequest { role, grant: None, tables };
            PartsClient::new(connection.any().await?).grant(grant).await.or_look(look)?;
            done(&connection, &told)
        }
        Role::RevokeTables { name: role, pattern, connection } => {
            let told = format!("role {role} grants it no more");
            ensure!(!pattern.is_empty(), "the pattern is empty");
            let revoke = parts::RevokeRequest { role, part: 0, tables: pattern };
            PartsClient::new(connection.any().await?).revoke(revoke).await.or_look(look)?;
            done(&connection, &told)
        }
    }
}

/// Shows what a role grants.
async fn show(connection: &Connection, role: String) -> Result<ExitCode> {
    let channel = connection.any().await?;
    let asked = pb::AuthRoleGetRequest { role: role.clone() };
    let keys = AuthClient::new(channel.clone()).role_get(asked).await?.into_inner().perm;
    let granted = PartsClient::new(channel).role(parts::RoleRequest { role }).await?.into_inner();
    let parts::RoleResponse { grants: parts, tables } = granted;
    let rights = |rights: u32| {
        let all = PartRight::value_variants().iter().filter(|right| rights & **right as u32 != 0);
        all.map(|right| name(*right)).collect::<Vec<_>>().join(",")
    };
    let of_tables = |rights: u32| {
        let all = TableRight::value_variants().iter().filter(|right| rights & **right as u32 != 0);
        all.map(|right| name(*right)).collect::<Vec<_>>().join(",")
    };
    if connection.json {
        let keys: Vec<Value> = keys
            .iter()
            .map(|key| json!({ "rights": key_rights(key), "key": text(&key.key), "end": text(&key.range_end) }))
            .collect();
        let parts: Vec<Value> = parts
            .iter()
            .map(|grant| json!({ "part": part(grant.part), "rights": rights(grant.rights) }))
            .collect();
        let tables: Vec<Value> = tables
            .iter()
            .map(|grant| json!({ "pattern": grant.pattern, "rights": of_tables(grant.rights) }))
            .collect();
        output::json(&json!({ "keys": keys, "parts": parts, "tables": tables }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    for key in &keys {
        let end = match &key.range_end[..] {
            b"" => "the one key".into(),
            b"\0" => "no end".into(),
            end => format!("before {}", text(end)),
        };
        rows.push(vec![key_rights(key).into(), "keys".into(), text(&key.key), end]);
    }
    for grant in &parts {
        rows.push(vec![rights(grant.rights), part(grant.part), String::new(), String::new()]);
    }
    for grant in tables {
        rows.push(vec![of_tables(grant.rights), "tables".into(), grant.pattern, String::new()]);
    }
    output::table(&["rights", "part", "from", "to"], &rows)?;
    Ok(ExitCode::SUCCESS)
}

fn key_rights(permission: &Permission) -> &'static str {
    match permission.perm_type {
        0 => "read",
        1 => "write",
        _ => "readwrite",
    }
}

fn part(number: i32) -> String {
    let known = Part::value_variants().iter().find(|part| **part as i32 == number);
    known.map_or_else(|| number.to_string(), |part| name(*part))
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn list(connection: &Connection, what: &str, names: Vec<String>) -> Result<ExitCode> {
    if connection.json {
        output::json(&json!(names))?;
    } else {
        let rows: Vec<_> = names.into_iter().map(|name| vec![name]).collect();
        output::table(&[what], &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn done(connection: &Connection, told: &str) -> Result<ExitCode> {
    connection.say(&json!({ "outcome": "done" }), told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_etcds_clients() {
        let keys = |key: &str, end: Option<&str>, prefix, from_key| {
            Keys { key: key.into(), end: end.map(Into::into), prefix, from_key }.range()
        };
        assert_eq!(keys("a", None, false, false), (b"a".to_vec(), Vec::new()));
        assert_eq!(keys("a", Some("c"), false, false), (b"a".to_vec(), b"c".to_vec()));
        assert_eq!(keys("a/", None, true, false), (b"a/".to_vec(), b"a0".to_vec()));
        assert_eq!(keys("", None, true, false), (vec![0], vec![0]));
        assert_eq!(keys("a", None, false, true), (b"a".to_vec(), vec![0]));
        assert_eq!(prefix_end(&[b'a', 0xff]), b"b");
        assert_eq!(prefix_end(&[0xff]), [0]);
    }
}
