//! `redis.call` and `redis.pcall`: the commands of a script, on the keys of its transaction.

use super::convert;
use super::machine::fatal;
use super::native::{CommandFailed, Shared};
use crate::commands::check_key_length;
use crate::error::{Error, Kind};
use crate::resp::commands::{Action, Command, Flag};
use crate::resp::keys::{Failed, Keys, Run, replied};
use crate::resp::parse::NO_OTHER_DATABASE;
use crate::resp::reply::Reply;
use bytes::Bytes;
use mlua::{Lua, MultiValue, Value};
use quoin_engine::Limits;
use std::sync::atomic::Ordering;

/// Maximum commands of a script, as of a transaction.
const CALLS_MAX: usize = 10_000;

/// The commands of a running script.
pub(super) struct Calls<'a, 'b> {
    pub(super) keys: &'a mut Keys<'b>,
    pub(super) limits: &'a Limits,
    pub(super) read_only: bool,
    /// So many were called.
    pub(super) made: usize,
    /// Why the script cannot go on.
    pub(super) failed: Option<Failed>,
}

impl Calls<'_, '_> {
    /// Runs a command and returns its reply. Where it fails, the script does unless the call is `protected`.
    pub(super) fn call(
        &mut self,
        lua: &Lua,
        args: MultiValue,
        protected: bool,
        shared: &Shared,
    ) -> mlua::Result<Value> {
        shared.stop.check()?;
        self.made += 1;
        let outcome = if self.made > CALLS_MAX {
            let text = format!("more than {CALLS_MAX} commands in a script");
            Err(Failed::Error(Error::Refused(Kind::ResourceExhausted, text)))
        } else {
            let args: Option<Vec<Bytes>> = args.iter().map(convert::argument).collect();
            self.run(args)
        };
        let reply = match outcome {
            Ok(reply) => reply,
            Err(failed) => return Err(fatal(&mut self.failed, failed, &shared.stop)),
        };
        match reply {
            Reply::Error(text) if !protected => Err(mlua::Error::external(CommandFailed(text))),
            reply => convert::to_lua(lua, &reply, shared.version.load(Ordering::Relaxed)),
        }
    }

    fn run(&mut self, args: Option<Vec<Bytes>>) -> Result<Reply, Failed> {
        let refused = |text: &str| Ok(Reply::error(text));
        let Some(args) = args else {
            return refused("ERR Lua redis lib command arguments must be strings or integers");
        };
        let [name, rest @ ..] = &args[..] else {
            return refused("ERR Please specify at least one argument for this redis lib call");
        };
        let Some(command) = Command::find(name) else {
            return refused("ERR Unknown Redis command called from script");
        };
        let Some(run) = of_keys(command) else {
            return refused("ERR This Redis command is not allowed from script");
        };
        if !command.takes(args.len()) {
            return refused("ERR Wrong number of args calling Redis command from script");
        }
        if self.read_only && command.has(Flag::Write) {
            return refused("ERR Write commands are not allowed from read-only scripts.");
        }
        let longest = command.longest_key(args.len(), |at| args[at].len());
        check_key_length(longest, self.limits).map_err(Failed::Error)?;
        // Lua's memory bounds what a script reads; the bound on replies is for what it returns.
        let answered = self.keys.forget_answers();
        let reply = replied(run(rest, self.keys));
        self.keys.remember_answers(answered);
        reply
    }
}

/// What a script may call: commands about keys, and the few others that need no connection.
fn of_keys(command: &Command) -> Option<Run> {
    match (command.name, command.action) {
        (_, Action::Reads(run) | Action::Writes(run) | Action::Counts(run, _) | Action::Changes(run, _)) => {
            Some(run)
        }
        ("ping", _) => {
            Some(|args, _| Ok(args.first().map_or(Reply::Simple("PONG"), |text| Reply::Bulk(text.clone()))))
        }
        ("echo", _) => Some(|args, _| Ok(Reply::Bulk(args[0].clone()))),
        ("select", _) => {
            Some(|args, _| Ok(if args[0] == "0" { Reply::OK } else { Reply::error(NO_OTHER_DATABASE) }))
        }
        _ => None,
    }
}
