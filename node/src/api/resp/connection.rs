//! One connection: what arrived together is done together, and answered with one write.
//!
//! **Order.** Commands take effect in the order in which they came. Writes that read nothing go into the log together; before
//! a command that reads, those before it are done.
//!
//! **Bounds.** Bytes of a request, requests taken at once, commands queued by MULTI, subscriptions. A client that does not
//! take its answers is not read any further.

use super::Server;
use super::commands::{COMMANDS, Command, Problem};
use super::frame::{Arguments, Parser, Reply, Requests, Version};
use super::keys::{Failed, Keys, Sight};
use super::notices::{CHANNELS, Notices, SUBSCRIPTIONS_MAX};
use super::{scan, table};
use crate::api::commands::{check_size, check_space, kv_reply};
use crate::api::{Life, error};
use crate::engine::{Consistency, Engine, ReadView};
use bytes::{Bytes, BytesMut};
use quoin_core::kv;
use quoin_core::kv::{Operation, Response};
use std::fmt::Write;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Status;

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Answers are sent when they have this many bytes, even if more are to come.
const ANSWER_BYTES: usize = 1 << 20;
/// Commands between MULTI and EXEC at most.
const QUEUED_MAX: usize = 10_000;
/// How often a command is run again because what it read has changed.
const TRIES_MAX: usize = 100;

/// A command that waits for EXEC.
type Queued = (&'static Command, Vec<Bytes>);

/// What a write is answered when it is done.
enum Answer {
    Always(Reply),
    /// The number that stands there then.
    Number,
}

/// A connection.
pub(super) struct Connection {
    server: Arc<Server>,
    engine: Engine,
    id: u64,
    name: Bytes,
    library: (Bytes, Bytes),
    address: String,
    version: Version,
    /// Reads need not see the newest state.
    local: bool,
    /// Since MULTI; `Err` when one of them was wrong.
    queued: Option<Result<Vec<Queued>, ()>>,
    /// Keys that WATCH has seen, and their mod revisions then.
    watched: Vec<(Bytes, i64)>,
    notices: Notices,
    /// What reads of this round see.
    sight: Option<Sight>,
    /// Writes of this round that are not proposed yet, with what they are answered.
    writes: Vec<(Operation, Answer)>,
    out: Vec<u8>,
    lookups: table::Lookups,
    closing: bool,
}

impl Connection {
    pub(super) fn new(server: Arc<Server>, engine: Engine, id: u64, address: String) -> Self {
        Self {
            server,
            engine,
            id,
            name: Bytes::new(),
            library: (Bytes::new(), Bytes::new()),
            address,
            version: Version::Resp2,
            local: false,
            queued: None,
            watched: Vec::new(),
            notices: Notices::default(),
            sight: None,
            writes: Vec::new(),
            out: Vec::new(),
            lookups: table::Lookups::default(),
            closing: false,
        }
    }

    /// Serves until the client leaves, breaks the protocol, or the node stops.
    pub(super) async fn serve(mut self, mut stream: TcpStream, life: Life) -> io::Result<()> {
        let mut parser = Parser::new(self.engine.limits().request_bytes_max);
        let (mut buffer, mut requests) = (BytesMut::with_capacity(READ_BYTES), Requests::default());
        let ended = life.ended();
        tokio::pin!(ended);
        while !self.closing {
            if let Err(problem) = parser.read(&mut buffer, &mut requests) {
                self.engine.metrics().client_garbage.inc();
                Reply::error(format!("ERR {problem}")).write(&mut self.out, self.version);
                return stream.write_all(&self.out).await;
            }
            if requests.is_empty() {
                buffer.reserve(READ_BYTES.max(parser.lacking()));
                tokio::select! {
                    biased;
                    read = stream.read_buf(&mut buffer) => {
                        if read? == 0 {
                            return Ok(());
                        }
                    }
                    messages = self.notices.next(&self.engine) => match messages {
                        Ok(messages) => messages.iter().for_each(|message| message.write(&mut self.out, self.version)),
                        Err(_) => return Ok(()),
                    },
                    () = &mut ended => return Ok(()),
                }
            }
            for request in requests.iter() {
                self.request(request).await;
                if self.out.len() >= ANSWER_BYTES {
                    self.flush(&mut stream).await?;
                }
            }
            requests.clear();
            self.write_pending().await;
            self.sight = None;
            self.flush(&mut stream).await?;
            self.lookups.trim();
        }
        Ok(())
    }

    async fn flush(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        if !self.out.is_empty() {
            stream.write_all(&self.out).await?;
            self.out.clear();
            // One large answer must not hold its memory as long as the connection lasts.
            self.out.shrink_to(ANSWER_BYTES);
        }
        Ok(())
    }

    fn reply(&mut self, reply: &Reply) {
        reply.write(&mut self.out, self.version);
    }

    async fn request(&mut self, args: Arguments<'_>) {
        if let Some(command) = Command::find(args.get(0)) {
            if !command.takes(args.len()) {
                return self
                    .refuse(format!("ERR wrong number of arguments for '{}' command", command.name))
                    .await;
            }
            if self.notices.count() > 0 && self.version == Version::Resp2 {
                return self.refuse(only_subscriptions(command.name)).await;
            }
            return match &mut self.queued {
                None => self.key_command(command, &args.to_bytes()).await,
                Some(queued) => {
                    if let Ok(commands) = queued {
                        if commands.len() >= QUEUED_MAX {
                            return self
                                .refuse(format!("ERR more than {QUEUED_MAX} commands in a transaction"))
                                .await;
                        }
                        commands.push((command, args.copied()));
                    }
                    self.reply(&Reply::Simple("QUEUED"));
                }
            };
        }
        // Their answers come after those of the writes before them.
        self.write_pending().await;
        let subscribed = self.notices.count() > 0 && self.version == Version::Resp2;
        let reply = match table::Lookup::of(args) {
            Some(lookup) if self.queued.is_none() && !subscribed => self.lookup(lookup).await.map(|()| None),
            _ => self.other(&args.to_bytes()).await,
        };
        let reply = match reply {
            Ok(reply) => reply,
            Err(status) => Some(Reply::Error(error::resp(&status))),
        };
        if let Some(reply) = reply {
            if matches!(reply, Reply::Error(_))
                && let Some(queued) = &mut self.queued
            {
                *queued = Err(());
            }
            self.reply(&reply);
        }
    }

    /// Answers with an error, which also spoils a transaction.
    async fn refuse(&mut self, text: String) {
        self.write_pending().await;
        if let Some(queued) = &mut self.queued {
            *queued = Err(());
        }
        self.reply(&Reply::Error(text));
    }

    // Commands about keys.

    async fn key_command(&mut self, command: &Command, args: &[Bytes]) {
        if let Some(increment) = command.increment(args) {
            return self.writes.push((Operation::Increment(increment), Answer::Number));
        }
        if command.reads {
            self.write_pending().await;
            let reply = match self.sight().await {
                Ok(sight) => plain(command.run(args, &mut Keys::only_read(sight))),
                Err(status) => Err(status),
            };
            return self.reply(&reply.unwrap_or_else(|status| Reply::Error(error::resp(&status))));
        }
        // One that only writes needs no view, and goes with its neighbours.
        let mut keys = Keys::at(None);
        match command.run(args, &mut keys) {
            Ok(reply) => match keys.into_operation() {
                Some(operation) => self.writes.push((operation, Answer::Always(reply))),
                None => {
                    self.write_pending().await;
                    self.reply(&reply);
                }
            },
            Err(Problem::Said(text)) => {
                self.write_pending().await;
                self.reply(&Reply::Error(text));
            }
            Err(Problem::Failed(_)) => {
                self.write_pending().await;
                let run = |keys: &mut Keys<'_>| said(command.run(args, keys));
                let reply = match self.atomically(&[], run).await {
                    Ok(reply) => reply.unwrap_or(Reply::NullArray),
                    Err(status) => Reply::Error(error::resp(&status)),
                };
                self.reply(&reply);
            }
        }
    }

    /// Has the writes done that were gathered, and answers them.
    async fn write_pending(&mut self) {
        if self.writes.is_empty() {
            return;
        }
        let (mut commands, mut replies) = (Vec::new(), Vec::new());
        let space = check_space(&self.engine);
        for (operation, reply) in std::mem::take(&mut self.writes) {
            let command = operation.into_command();
            match space.clone().and_then(|()| check_size(&self.engine, &command)) {
                Ok(()) => {
                    commands.push(command);
                    replies.push(Ok(reply));
                }
                Err(status) => replies.push(Err(status)),
            }
        }
        let mut done = self.engine.propose_many(commands).await.into_iter();
        for reply in replies {
            let reply = match reply {
                Err(status) => Reply::Error(error::resp(&status)),
                Ok(reply) => match done.next().expect("there is one for each command") {
                    Ok(applied) => match kv_reply(applied).map(|(_, response)| (response, reply)) {
                        Ok((Response::Number(number), Answer::Number)) => Reply::Integer(number),
                        Ok((_, Answer::Always(reply))) => reply,
                        Ok((other, Answer::Number)) => Reply::Error(error::resp(&error::fault(
                            &format_args!("an increment was answered by {other:?}"),
                        ))),
                        Err(status) => Reply::Error(error::resp(&status)),
                    },
                    Err(error) => Reply::Error(error::resp(&error.into())),
                },
            };
            self.reply(&reply);
        }
        self.see_own_writes();
    }

    /// What this replica has now includes what was just answered; and a round to the leader, if one was made, stands.
    fn see_own_writes(&mut self) {
        if self.sight.is_some() {
            self.sight = Some(self.latest());
        }
    }

    fn latest(&self) -> Sight {
        Sight::of(self.engine.latest(), self.engine.limits().response_bytes_max)
    }

    async fn sight(&mut self) -> Result<&Sight, Status> {
        if self.sight.is_none() {
            let consistency = if self.local { Consistency::ANY } else { Consistency::Linearizable };
            let view = self.engine.read(consistency).await?;
            self.sight = Some(Sight::of(view, self.engine.limits().response_bytes_max));
        }
        Ok(self.sight.as_ref().expect("it was looked for just now"))
    }

    async fn view(&mut self) -> Result<ReadView, Status> {
        self.sight().await.map(|sight| sight.view.clone())
    }

    /// Runs `run` and has done what it writes, again if what it read has changed meanwhile. `None` where one of `watched` has.
    async fn atomically<T>(
        &mut self,
        watched: &[(Bytes, i64)],
        run: impl Fn(&mut Keys<'_>) -> Result<T, Failed>,
    ) -> Result<Option<T>, Status> {
        for _ in 0..TRIES_MAX {
            let sight = self.sight().await?;
            let mut keys = Keys::at(Some(sight));
            let reply = match run(&mut keys) {
                Ok(reply) => reply,
                Err(Failed::Status(status)) => return Err(status),
                Err(Failed::NeedsView) => return Err(error::fault(&"a command with a view needs one")),
            };
            if !are_unchanged(watched, &sight.view)? {
                return Ok(None);
            }
            watched.iter().for_each(|(key, revision)| keys.watch(key.clone(), *revision));
            let Some(operation) = keys.into_operation() else { return Ok(Some(reply)) };
            let held = self.done(operation).await?;
            self.sight = Some(self.latest());
            if held {
                return Ok(Some(reply));
            }
        }
        Err(Status::resource_exhausted(format!(
            "quoin: the keys changed {TRIES_MAX} times meanwhile; nothing was done"
        )))
    }

    /// False where a condition of the transaction did not hold.
    async fn done(&self, operation: Operation) -> Result<bool, Status> {
        check_space(&self.engine)?;
        let command = operation.into_command();
        check_size(&self.engine, &command)?;
        let (_, response) = kv_reply(self.engine.propose(command).await?)?;
        Ok(!matches!(response, Response::Txn { succeeded: false, .. }))
    }

    async fn exec(&mut self) -> Result<Reply, Status> {
        let Some(queued) = self.queued.take() else { return Ok(Reply::error("ERR EXEC without MULTI")) };
        let Ok(commands) = queued else {
            self.watched.clear();
            return Ok(Reply::error("EXECABORT Transaction discarded because of previous errors."));
        };
        let watched = std::mem::take(&mut self.watched);
        let run = |keys: &mut Keys<'_>| {
            commands
                .iter()
                .map(|(command, args)| said(command.run(args, keys)))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(self.atomically(&watched, run).await?.map_or(Reply::NullArray, Reply::Array))
    }

    async fn lookup(&mut self, lookup: table::Lookup<'_>) -> Result<(), Status> {
        let view = self.view().await?;
        self.lookups.answer(&self.engine, &view, lookup, self.version, &mut self.out)
    }

    // All others.

    /// `None` where the answer is written already.
    async fn other(&mut self, args: &[Bytes]) -> Result<Option<Reply>, Status> {
        let name = String::from_utf8_lossy(&args[0]).to_ascii_lowercase();
        let subscribing = matches!(
            name.as_str(),
            "subscribe" | "unsubscribe" | "psubscribe" | "punsubscribe" | "ping" | "quit" | "reset"
        );
        if self.notices.count() > 0 && self.version == Version::Resp2 && !subscribing {
            return Ok(Some(Reply::Error(only_subscriptions(&name))));
        }
        let rest = &args[1..];
        let wrong_count =
            || Some(Reply::Error(format!("ERR wrong number of arguments for '{name}' command")));
        Ok(match (name.as_str(), rest) {
            ("ping", []) if self.notices.count() > 0 && self.version == Version::Resp2 => {
                Some(Reply::Array(vec![Reply::text("pong"), Reply::text("")]))
            }
            ("ping", []) => Some(Reply::Simple("PONG")),
            ("ping" | "echo", [text]) => Some(Reply::Bulk(text.clone())),
            ("hello", rest) => Some(self.hello(rest)),
            ("auth", [_] | [_, _]) => Some(Reply::error(
                "ERR AUTH called without any password configured. This node has none: leave AUTH out",
            )),
            ("select", [number]) if number[..] == *b"0" => Some(Reply::OK),
            ("select", [_]) => Some(Reply::error("ERR DB index is out of range: there is one database, 0")),
            ("client", [sub, rest @ ..]) => Some(self.client(&sub.to_ascii_lowercase(), rest)),
            ("command", rest) => Some(command_table(rest)),
            ("config", [sub, rest @ ..]) => Some(self.config(&sub.to_ascii_lowercase(), rest)),
            ("info", _) => Some(self.info()),
            ("quit", _) => {
                self.closing = true;
                Some(Reply::OK)
            }
            ("reset", []) => {
                self.reset();
                Some(Reply::Simple("RESET"))
            }
            ("multi", []) if self.queued.is_some() => Some(Reply::error("ERR MULTI calls can not be nested")),
            ("multi", []) => {
                self.queued = Some(Ok(Vec::new()));
                Some(Reply::OK)
            }
            ("exec", []) => Some(self.exec().await?),
            ("discard", []) if self.queued.is_none() => Some(Reply::error("ERR DISCARD without MULTI")),
            ("discard", []) => {
                self.queued = None;
                self.watched.clear();
                Some(Reply::OK)
            }
            ("watch", [_, ..]) if self.queued.is_some() => {
                Some(Reply::error("ERR WATCH inside MULTI is not allowed"))
            }
            ("watch", [_, ..]) => {
                let view = self.view().await?;
                for key in rest {
                    self.watched.push((Bytes::copy_from_slice(key), mod_revision(&view, key)?));
                }
                Some(Reply::OK)
            }
            ("unwatch", []) => {
                self.watched.clear();
                Some(Reply::OK)
            }
            // Every write is on a majority before it is answered: so many others have it.
            ("wait", [_, _]) => Some(Reply::Integer(self.engine.raft().voters.len() as i64 / 2)),
            ("readonly", []) => {
                self.local = true;
                Some(Reply::OK)
            }
            ("readwrite", []) => {
                self.local = false;
                Some(Reply::OK)
            }
            ("subscribe", [_, ..]) => self.subscribe(rest, false),
            ("psubscribe", [_, ..]) => self.subscribe(rest, true),
            ("unsubscribe", rest) => self.unsubscribe(rest, false),
            ("punsubscribe", rest) => self.unsubscribe(rest, true),
            ("scan" | "keys" | "dbsize" | "randomkey", _) if self.queued.is_some() => Some(Reply::Error(
                format!("ERR '{name}' is not supported within MULTI: it looks at all keys"),
            )),
            ("scan", [_, ..]) => {
                let view = self.view().await?;
                Some(scan::scan(&self.engine, &self.server.cursors, &view, rest).await?)
            }
            ("keys", [pattern]) => {
                let view = self.view().await?;
                Some(scan::keys(&self.engine, &view, pattern).await?)
            }
            ("dbsize", []) => {
                let view = self.view().await?;
                Some(scan::size(view).await?)
            }
            ("randomkey", []) => {
                let view = self.view().await?;
                Some(scan::random(&self.engine, &view).await?)
            }
            (
                "echo" | "auth" | "select" | "client" | "config" | "reset" | "multi" | "exec" | "discard"
                | "watch" | "unwatch" | "wait" | "readonly" | "readwrite" | "subscribe" | "psubscribe"
                | "scan" | "keys" | "dbsize" | "randomkey" | "ping",
                _,
            ) => wrong_count(),
            _ if name.starts_with("table.") && self.queued.is_some() => {
                Some(Reply::Error(format!("ERR '{name}' is not supported within MULTI")))
            }
            _ if name.starts_with("table.") => {
                let name = &name["table.".len()..];
                let reads = matches!(name, "list" | "info");
                let view = if reads { self.view().await? } else { self.engine.latest() };
                match table::run(&self.engine, &view, name, rest).await? {
                    Some(reply) => Some(reply),
                    None => Some(Reply::Error(format!(
                        "ERR '{}' does not exist with so many arguments: TABLE.MGET name key..., TABLE.LOOKUP name keys, TABLE.SET \
                     name key value..., TABLE.DEL name key..., TABLE.LIST, TABLE.INFO name",
                        String::from_utf8_lossy(&args[0][..args[0].len().min(64)]).escape_debug()
                    ))),
                }
            }
            _ => Some(Reply::Error(format!(
                "ERR unknown command '{}': it is none of Redis's that Quoin has; COMMAND lists them",
                args[0][..args[0].len().min(64)].escape_ascii()
            ))),
        })
    }

    fn reset(&mut self) {
        self.version = Version::Resp2;
        self.local = false;
        self.queued = None;
        self.watched.clear();
        self.name = Bytes::new();
        self.notices = Notices::default();
    }

    /// HELLO [version] [AUTH user password] [SETNAME name]
    fn hello(&mut self, args: &[Bytes]) -> Reply {
        let mut rest = args;
        if let [version, others @ ..] = args {
            self.version = match &version[..] {
                b"2" => Version::Resp2,
                b"3" => Version::Resp3,
                _ => return Reply::error("NOPROTO unsupported protocol version: 2 and 3 are spoken"),
            };
            rest = others;
        }
        match rest {
            [] => {}
            [word, name] if word.eq_ignore_ascii_case(b"setname") => self.name = Bytes::copy_from_slice(name),
            [word, ..] if word.eq_ignore_ascii_case(b"auth") => {
                return Reply::error(
                    "ERR AUTH called without any password configured. This node has none: leave AUTH out",
                );
            }
            _ => return Reply::error("ERR syntax error in HELLO"),
        }
        let version = if self.version == Version::Resp3 { 3 } else { 2 };
        Reply::Map(vec![
            (Reply::text("server"), Reply::text("quoin")),
            (Reply::text("version"), Reply::text(env!("CARGO_PKG_VERSION"))),
            (Reply::text("proto"), Reply::Integer(version)),
            (Reply::text("id"), Reply::Integer(self.id as i64)),
            (Reply::text("mode"), Reply::text("standalone")),
            (Reply::text("role"), Reply::text("master")),
            (Reply::text("modules"), Reply::Array(Vec::new())),
        ])
    }

    fn client(&mut self, sub: &[u8], args: &[Bytes]) -> Reply {
        match (sub, args) {
            (b"id", []) => Reply::Integer(self.id as i64),
            (b"getname", []) if self.name.is_empty() => Reply::Null,
            (b"getname", []) => Reply::Bulk(self.name.clone()),
            (b"setname", [name]) if name.iter().any(|byte| !byte.is_ascii_graphic()) => {
                Reply::error("ERR Client names cannot contain spaces, newlines or special characters.")
            }
            (b"setname", [name]) => {
                self.name = Bytes::copy_from_slice(name);
                Reply::OK
            }
            (b"setinfo", [what, value]) => {
                match () {
                    () if what.eq_ignore_ascii_case(b"lib-name") => {
                        self.library.0 = Bytes::copy_from_slice(value)
                    }
                    () if what.eq_ignore_ascii_case(b"lib-ver") => {
                        self.library.1 = Bytes::copy_from_slice(value)
                    }
                    () => return Reply::Error(format!("ERR Unrecognized option '{}'", what.escape_ascii())),
                }
                Reply::OK
            }
            (b"info", []) => Reply::text(format!(
                "id={} addr={} name={} db=0 lib-name={} lib-ver={} resp={}\n",
                self.id,
                self.address,
                self.name.escape_ascii(),
                self.library.0.escape_ascii(),
                self.library.1.escape_ascii(),
                if self.version == Version::Resp3 { 3 } else { 2 },
            )),
            _ => Reply::Error(format!(
                "ERR unknown subcommand or wrong number of arguments for 'client {}': ID, SETNAME, GETNAME, SETINFO and INFO are there",
                sub.escape_ascii()
            )),
        }
    }

    fn config(&self, sub: &[u8], args: &[Bytes]) -> Reply {
        if sub != b"get" || args.is_empty() {
            return Reply::error(
                "ERR only CONFIG GET is there: settings are in quoin.toml, see 'quoin config defaults'",
            );
        }
        let known = [
            ("appendonly", "yes".to_owned()),
            ("databases", "1".to_owned()),
            ("maxmemory", "0".to_owned()),
            ("proto-max-bulk-len", self.engine.limits().request_bytes_max.to_string()),
            ("save", String::new()),
        ];
        let wanted = |name: &str| args.iter().any(|pattern| super::glob::matches(pattern, name.as_bytes()));
        let found = known.into_iter().filter(|(name, _)| wanted(name));
        Reply::Map(found.map(|(name, value)| (Reply::text(name), Reply::text(value))).collect())
    }

    fn info(&self) -> Reply {
        let status = self.engine.status();
        let mut text = String::new();
        let role = if status.raft.is_leader { "master" } else { "slave" };
        let lines = [
            ("# Server\r\nredis_version", "7.0.0".to_owned()),
            ("quoin_version", env!("CARGO_PKG_VERSION").to_owned()),
            ("redis_mode", "standalone".to_owned()),
            ("process_id", std::process::id().to_string()),
            ("\r\n# Clients\r\nconnected_clients", self.server.connections().to_string()),
            ("\r\n# Replication\r\nrole", role.to_owned()),
            ("quoin_leader", format!("{:x}", status.raft.leader)),
            ("quoin_applied_index", status.progress.index.to_string()),
            ("quoin_revision", status.progress.revision.to_string()),
            ("quoin_lag_ms", status.lag_ms.to_string()),
            ("\r\n# Persistence\r\nloading", "0".to_owned()),
            ("quoin_store_bytes", status.store_bytes.to_string()),
            ("quoin_log_bytes", status.log_bytes.to_string()),
        ];
        for (name, value) in lines {
            write!(text, "{name}:{value}\r\n").expect("a String takes everything");
        }
        Reply::text(text)
    }

    // Subscriptions.

    fn subscribe(&mut self, names: &[Bytes], patterns: bool) -> Option<Reply> {
        for name in names {
            let about_keys = name.starts_with(CHANNELS)
                || (patterns && CHANNELS.starts_with(super::glob::literal_prefix(name)));
            if !about_keys {
                return Some(Reply::Error(format!(
                    "ERR channel '{}' is not there: only __keyspace@0__:KEY can be subscribed to",
                    name.escape_ascii()
                )));
            }
            if self.notices.count() >= SUBSCRIPTIONS_MAX {
                return Some(Reply::Error(format!(
                    "ERR more than {SUBSCRIPTIONS_MAX} subscriptions on a connection"
                )));
            }
            let (set, word) = if patterns {
                (&mut self.notices.patterns, "psubscribe")
            } else {
                (&mut self.notices.channels, "subscribe")
            };
            set.insert(Bytes::copy_from_slice(name));
            let count = self.notices.count() as i64;
            self.reply(&Reply::Push(vec![
                Reply::text(word),
                Reply::Bulk(name.clone()),
                Reply::Integer(count),
            ]));
        }
        self.notices.changed(&self.engine);
        None
    }

    fn unsubscribe(&mut self, names: &[Bytes], patterns: bool) -> Option<Reply> {
        let word = if patterns { "punsubscribe" } else { "unsubscribe" };
        let set = if patterns { &self.notices.patterns } else { &self.notices.channels };
        let names: Vec<Bytes> = if names.is_empty() { set.iter().cloned().collect() } else { names.to_vec() };
        if names.is_empty() {
            let count = self.notices.count() as i64;
            return Some(Reply::Push(vec![Reply::text(word), Reply::Null, Reply::Integer(count)]));
        }
        for name in names {
            let set = if patterns { &mut self.notices.patterns } else { &mut self.notices.channels };
            set.remove(&name);
            let count = self.notices.count() as i64;
            self.reply(&Reply::Push(vec![Reply::text(word), Reply::Bulk(name), Reply::Integer(count)]));
        }
        self.notices.changed(&self.engine);
        None
    }
}

fn only_subscriptions(name: &str) -> String {
    format!(
        "ERR Can't execute '{name}': only (P)SUBSCRIBE / (P)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
    )
}

/// An error that a command says is its answer.
fn said(outcome: Result<Reply, Problem>) -> Result<Reply, Failed> {
    match outcome {
        Ok(reply) => Ok(reply),
        Err(Problem::Said(text)) => Ok(Reply::Error(text)),
        Err(Problem::Failed(failed)) => Err(failed),
    }
}

/// As [`said`], where there is a view.
fn plain(outcome: Result<Reply, Problem>) -> Result<Reply, Status> {
    said(outcome).map_err(|failed| match failed {
        Failed::Status(status) => status,
        Failed::NeedsView => error::fault(&"a command with a view needs one"),
    })
}

fn are_unchanged(watched: &[(Bytes, i64)], view: &ReadView) -> Result<bool, Status> {
    for (key, revision) in watched {
        if mod_revision(view, key)? != *revision {
            return Ok(false);
        }
    }
    Ok(true)
}

fn mod_revision(view: &ReadView, key: &Bytes) -> Result<i64, Status> {
    let request = kv::Range { key: key.clone(), keys_only: true, ..kv::Range::default() };
    let reply = kv::range(view.view(), view.progress(), &request).map_err(error::store)?;
    Ok(reply.map_err(error::refused)?.kvs.first().map_or(0, |kv| kv.mod_revision))
}

/// COMMAND, COMMAND COUNT, COMMAND DOCS, COMMAND INFO: names and numbers of arguments.
fn command_table(args: &[Bytes]) -> Reply {
    let entry = |command: &Command| {
        let keys = (
            1,
            if matches!(command.name, "mget" | "del" | "unlink" | "exists" | "touch" | "mset" | "msetnx") {
                -1
            } else {
                1
            },
        );
        Reply::Array(vec![
            Reply::text(command.name),
            Reply::Integer(command.arity.into()),
            Reply::Array(Vec::new()),
            Reply::Integer(keys.0),
            Reply::Integer(keys.1),
            Reply::Integer(if command.name.starts_with("mset") { 2 } else { 1 }),
        ])
    };
    match args {
        [] => Reply::Array(COMMANDS.iter().map(entry).collect()),
        [sub] if sub.eq_ignore_ascii_case(b"count") => Reply::Integer(COMMANDS.len() as i64),
        [sub, ..] if sub.eq_ignore_ascii_case(b"docs") => Reply::Map(Vec::new()),
        [sub, names @ ..] if sub.eq_ignore_ascii_case(b"info") => Reply::Array(
            names.iter().map(|name| Command::find(name).map_or(Reply::NullArray, entry)).collect(),
        ),
        _ => Reply::error("ERR unknown subcommand: COUNT, DOCS and INFO are there"),
    }
}
