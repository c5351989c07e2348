//! The state of one connection, and what its commands read and write in the present round.
//!
//! A round is what arrived together. **Order.** Commands take effect in the order in which they came: writes
//! that read nothing are gathered and go into the log together, and any other command waits until they are
//! done.
//!
//! **Invariant: Bounded.** The requests of one read bound the writes that are gathered (`request.rs`).

use super::clients::{Ending, Listed, Words};
use super::keys::Sight;
use super::lookup::{Lookup, Lookups};
use super::notices::Notices;
use super::queue::Queue;
use super::reply::{Reply, Version};
use super::request::Arguments;
use super::server::Server;
use super::silence::Silence;
use crate::accept::Peer;
use crate::audit::Act;
use crate::auth::{Caller, Identity, check_here};
use crate::commands::{check_size, check_space_for, kv_reply};
use crate::error::Error;
use bytes::Bytes;
use quoin_core::kv::{FieldsReply, Increment, Operation, Response, WriteFields};
use quoin_engine::{Consistency, ProposeError, ReadView};
use std::sync::Arc;

/// The state of one connection.
pub(super) struct Session {
    pub(super) server: Arc<Server>,
    /// Who the client is.
    identity: Identity,
    /// Where the client is.
    pub(super) peer: Peer,
    /// The common name of its certificate; empty without one.
    pub(super) certificate: String,
    /// Who asks in this round, and the users and roles by which they are judged; `None` while authentication is off.
    caller: Option<Caller>,
    /// Unique while the node runs.
    pub(super) id: u64,
    pub(super) listed: Listed,
    /// What CLIENT SETNAME said.
    pub(super) name: Bytes,
    /// Name and version of the client's library, as CLIENT SETINFO said.
    pub(super) library: (Bytes, Bytes),
    pub(super) version: Version,
    /// The commands since MULTI.
    pub(super) queue: Option<Queue>,
    /// The audit records of some of them.
    pub(super) acts: Vec<Arc<Act>>,
    /// Keys that WATCH named, and their mod revisions then; 0 for an absent key.
    pub(super) watched: Vec<(Bytes, i64)>,
    pub(super) notices: Notices,
    /// The connection closes once its replies are sent.
    pub(super) closing: bool,
    /// Replies that are not sent yet.
    pub(super) out: Vec<u8>,
    /// Which of them the client wants.
    pub(super) silence: Silence,
    /// Reads may see an older state of this replica.
    local: bool,
    /// What the reads of this round see.
    sight: Option<Sight>,
    /// The writes of this round that are not proposed yet, each with its reply.
    writes: Vec<(Operation, Answer)>,
    lookups: Lookups,
}

/// What a write is answered once it is done.
enum Answer {
    Always(Reply),
    /// The number that the key has then.
    Number,
    /// What becomes of a hash's fields.
    Fields(FieldsAnswer),
}

/// What a client is told of changed fields.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldsAnswer {
    /// How many are new.
    Added,
    /// How many are gone.
    Removed,
    /// The number that one has then.
    Number,
    /// That it is done.
    Done,
}

impl Session {
    /// Of a client at `peer`.
    pub(super) fn new(server: Arc<Server>, peer: Peer, identity: Identity, abort: Ending) -> Self {
        let id = server.next_id();
        Self {
            id,
            listed: server.clients.list(id, &peer.to_string(), abort),
            server,
            identity,
            peer,
            certificate: String::new(),
            acts: Vec::new(),
            caller: None,
            name: Bytes::new(),
            library: (Bytes::new(), Bytes::new()),
            version: Version::Resp2,
            queue: None,
            watched: Vec::new(),
            notices: Notices::default(),
            closing: false,
            out: Vec::new(),
            silence: Silence::default(),
            local: false,
            sight: None,
            writes: Vec::new(),
            lookups: Lookups::default(),
        }
    }

    /// Makes it what a new connection's is, but for the id and the library.
    pub(super) fn reset(&mut self) {
        if self.server.engine.auth_on() {
            self.become_user(Identity::Nobody);
        }
        self.version = Version::Resp2;
        self.queue = None;
        self.watched.clear();
        self.name = Bytes::new();
        self.notices = Notices::default();
        self.read_local(false);
        self.want_replies(Some(true));
        self.say_who();
    }

    /// Has others see what the connection says of itself now.
    pub(super) fn say_who(&self) {
        let (name, library) = (self.name.clone(), self.library.clone());
        self.listed.say(Words { name, library, version: self.version.number() });
    }

    /// Whether there are subscriptions and RESP2, which has no other way to tell a message from a reply: only
    /// some commands may be used then.
    pub(super) fn only_listens(&self) -> bool {
        self.version == Version::Resp2 && self.notices.count() > 0
    }

    /// Bytes that the connection keeps from round to round.
    pub(super) fn kept_bytes(&self) -> usize {
        let queued = self.queue.as_ref().map_or(0, Queue::bytes);
        let watched = self.watched.iter().map(|(key, _)| key.len()).sum::<usize>();
        queued + watched + self.notices.bytes()
    }

    pub(super) fn reply(&mut self, reply: &Reply) {
        reply.write(&mut self.out, self.version);
    }

    /// Sends a message that is no reply: CLIENT REPLY does not concern it.
    pub(super) fn push(&mut self, message: &Reply) {
        self.take_back();
        self.reply(message);
        self.silence.keep(self.out.len());
    }

    /// Ends the round: its writes are done, and later reads look again.
    pub(super) async fn end_round(&mut self) {
        self.write_pending().await;
        self.sight = None;
        self.lookups.trim();
        self.notices.settle(&self.server.engine);
    }

    // Who asks.

    /// The users and roles of now count in the round that begins. What MULTI has queued was judged by those of then: if
    /// they are others, EXEC will refuse.
    pub(super) fn begin_round(&mut self) {
        if !self.server.engine.auth_on() {
            self.caller = None;
            return;
        }
        let policy = self.server.engine.policy();
        let before = self.caller.as_ref().map(|caller| caller.policy().revision());
        if let Some(queue) = self.queue.as_mut().filter(|_| before != Some(policy.revision())) {
            queue.spoil();
        }
        self.caller = Caller::new(self.identity.clone(), Arc::clone(&policy)).ok();
        if self.caller.is_none() {
            // The user is gone, or has another password.
            self.become_user(Identity::Nobody);
        }
    }

    /// From now on the client is this user. What MULTI has queued was judged for who it was before, and by the users and
    /// roles of then.
    pub(super) fn become_user(&mut self, identity: Identity) {
        if let Some(queue) = &mut self.queue {
            queue.spoil();
        }
        self.identity = identity;
        self.caller = Caller::new(self.identity.clone(), self.server.engine.policy()).ok();
    }

    /// Whether it is known who the client is.
    pub(super) fn is_known(&self) -> bool {
        self.identity != Identity::Nobody
    }

    /// The client's name as a user; `default` while authentication is off.
    pub(super) fn user(&self) -> String {
        match &self.caller {
            Some(caller) if !caller.name().is_empty() => caller.name().to_owned(),
            _ => "default".into(),
        }
    }

    /// On whose behalf the round's commands run.
    pub(super) fn caller(&self) -> Option<Caller> {
        self.caller.clone()
    }

    /// Whether what it listens to may be more than its user may read by now.
    pub(super) fn may_overhear(&self) -> bool {
        let engine = &self.server.engine;
        if !engine.auth_on() || self.notices.count() == 0 {
            return false;
        }
        let caller = Caller::new(self.identity.clone(), engine.policy());
        caller.and_then(|caller| caller.check(|access| access.reads(b"\0", b"\0"))).is_err()
    }

    // Reads.

    /// Whether later reads may see an older state of this replica.
    pub(super) fn read_local(&mut self, local: bool) {
        self.local = local;
        self.sight = None;
    }

    /// What the reads of this round see.
    pub(super) async fn sight(&mut self) -> Result<&Sight, Error> {
        if self.sight.is_none() {
            let consistency = if self.local { Consistency::ANY } else { Consistency::Linearizable };
            let view = self.server.engine.read(consistency).await?;
            self.sight = Some(Sight::of(view, self.server.engine.limits().response_bytes_max));
        }
        Ok(self.sight.as_ref().expect("it was set just now"))
    }

    pub(super) async fn view(&mut self) -> Result<ReadView, Error> {
        self.sight().await.map(|sight| sight.view.clone())
    }

    /// The view after a write of this connection: this replica applied it before it was answered. If a condition
    /// did not hold, that may have been one on the stamp, so the stamp is gone by.
    pub(super) fn see_own_writes(&mut self, held: bool) {
        let (view, bytes_max) = (self.server.engine.latest(), self.server.engine.limits().response_bytes_max);
        // **Invariant: Newest rights.** Under other users and roles than those by which the round is judged, it sees
        // nothing more.
        let auth = &view.memory().auth;
        let judged_by = self.caller.as_ref().map(|caller| caller.policy().revision());
        if auth.enabled() && judged_by != Some(auth.revision()) {
            self.sight = None;
            return;
        }
        let sight = if held { Sight::of } else { Sight::of_stamp };
        self.sight = Some(sight(view, bytes_max));
    }

    /// What this replica has applied by now, if the round sees a state already: this one is newer.
    pub(super) fn see_newest(&mut self) {
        if self.sight.is_some() {
            self.see_own_writes(true);
        }
    }

    /// Replies to a lookup in a table.
    pub(super) async fn look_up(&mut self, lookup: Lookup, args: Arguments<'_>) -> Result<(), Error> {
        let view = self.view().await?;
        self.lookups.answer(&self.server, &view, (lookup, args), self.version, &mut self.out)
    }

    // Writes.

    /// Gathers a write that reads nothing, and its reply.
    pub(super) fn write(&mut self, operation: Operation, reply: Reply) {
        self.writes.push((operation, Answer::Always(reply)));
    }

    /// Gathers a write that is answered with the number that it makes.
    pub(super) fn count(&mut self, increment: Increment) {
        self.writes.push((Operation::Increment(increment), Answer::Number));
    }

    /// Gathers a write of fields.
    pub(super) fn write_fields(&mut self, write: WriteFields, answer: FieldsAnswer) {
        self.writes.push((Operation::WriteFields(write), Answer::Fields(answer)));
    }

    /// Has the gathered writes done, and replies to them.
    pub(super) async fn write_pending(&mut self) {
        if self.writes.is_empty() {
            return;
        }
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        for (operation, answer) in std::mem::take(&mut self.writes) {
            answers.push(self.admitted(operation).map(|command| {
                commands.push(command);
                answer
            }));
        }
        let mut results = self.server.engine.propose_many(commands).await.into_iter();
        for answer in answers {
            let reply = answer.and_then(|answer| {
                let result = results.next().expect("each command has a result");
                answered(answer, result)
            });
            self.reply(&reply.unwrap_or_else(|error| Reply::Error(error.resp())));
        }
        if self.sight.is_some() {
            self.see_own_writes(true);
        }
    }

    /// Has a transaction done; false where one of its conditions did not hold. Later reads see it.
    pub(super) async fn commit(&mut self, operation: Operation) -> Result<bool, Error> {
        let command = self.admitted(operation)?;
        let held = succeeded(kv_reply(self.server.engine.propose(command).await?)?.1)?;
        self.see_own_writes(held);
        Ok(held)
    }

    /// The command, if its size and the space left allow it.
    fn admitted(&self, operation: Operation) -> Result<quoin_core::Command, Error> {
        check_here(&self.server.engine, &operation)?;
        check_space_for(&self.server.engine, &operation)?;
        let command = operation.into_command();
        check_size(&self.server.engine, &command)?;
        Ok(command)
    }
}

/// The reply to a gathered write.
fn answered(answer: Answer, result: Result<quoin_core::Reply, ProposeError>) -> Result<Reply, Error> {
    let (_, response) = kv_reply(result?)?;
    match answer {
        Answer::Number => match response {
            Response::Number(number) => Ok(Reply::Integer(number)),
            other => Err(Error::unexpected_reply("kv", &other)),
        },
        Answer::Fields(answer) => match response {
            Response::Fields(FieldsReply { added, removed, number }) => Ok(match answer {
                FieldsAnswer::Added => Reply::Integer(added),
                FieldsAnswer::Removed => Reply::Integer(removed),
                FieldsAnswer::Number => Reply::Integer(number),
                FieldsAnswer::Done => Reply::OK,
            }),
            other => Err(Error::unexpected_reply("kv", &other)),
        },
        Answer::Always(reply) => succeeded(response).map(|_| reply),
    }
}

/// Whether a write's conditions held; a write without conditions always succeeds.
fn succeeded(response: Response) -> Result<bool, Error> {
    match response {
        Response::Put(_) => Ok(true),
        Response::Txn { succeeded, .. } => Ok(succeeded),
        other => Err(Error::unexpected_reply("kv", &other)),
    }
}
