//! EVAL, EVALSHA and SCRIPT, FCALL and FUNCTION: scripts in Lua 5.1, run once on the replica that was asked.
//!
//! Reading order: a script is found or read (`cache.rs`), waits for its turn, and runs on a Lua state
//! (`machine.rs`), whose environment `prelude.lua` makes out of `native.rs`. The commands that it calls
//! (`calls.rs`) see one state of the keys, and their writes are gathered as those of MULTI ... EXEC are
//! (`keys.rs`); `convert.rs` takes replies to Lua and back. The log gets the writes, on condition that what the
//! script read has not changed, so no other replica runs it; otherwise it runs again on the newest state.
//!
//! **Nothing half.** A script that fails, is ended or killed has written nothing.
//!
//! **Invariant: Bounded.** As many scripts run at once as there are Lua states; the others wait, one for each
//! connection. A script's memory, time, commands, and the bytes that it reads and writes have bounds.
//!
//! FCALL runs a function of a library in place of a script. Libraries are replicated (`quoin_core::function`); what
//! FUNCTION does with them is in `functions.rs`, and `dump.rs` moves them between Redis and Quoin.
//!
//! What is deliberately absent: `struct`, `cmsgpack`, the debugger, and commands that look at all keys.

mod cache;
mod calls;
mod convert;
mod dump;
pub(super) mod functions;
mod json;
mod machine;
mod native;
mod pattern;
mod stop;

use super::keys::{Keys, Outcome, Problem, replied};
use super::parse::{integer, is, refuse, wrong_count};
use super::reply::Reply;
use super::session::Session;
use super::transaction::{Place, atomically, failed};
use crate::error::Error;
use bytes::Bytes;
use cache::{Cache, Script};
use calls::Calls;
use machine::{Callee, Machine};
use parking_lot::Mutex;
use quoin_core::function::{Library, NO_WRITES};
use quoin_engine::Limits;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use tokio::sync::{MutexGuard, Semaphore, SemaphorePermit};
use tokio::time::timeout_at;

/// Maximum Lua states of a node.
const STATES_MAX: usize = 8;
/// Scripts with a key in common wait for each other on a node; by this many groups of keys.
const QUEUES: usize = 256;
/// How long a script waits for others before it runs beside them.
const QUEUED_MAX: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 500 });
const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// What the scripts of a node share.
pub(super) struct Scripts {
    cache: Mutex<Cache>,
    /// States that nobody uses.
    idle: Mutex<Vec<Machine>>,
    turns: Semaphore,
    queues: [tokio::sync::Mutex<()>; QUEUES],
    running: AtomicUsize,
    /// Counts SCRIPT KILL.
    kills: Arc<AtomicU64>,
}

impl Default for Scripts {
    fn default() -> Self {
        let states = available_parallelism().map_or(2, NonZero::get).clamp(2, STATES_MAX);
        Self {
            cache: Mutex::default(),
            idle: Mutex::default(),
            turns: Semaphore::new(states),
            queues: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            running: AtomicUsize::new(0),
            kills: Arc::default(),
        }
    }
}

impl Scripts {
    /// Waits until a script may run; it may while the permit is held.
    pub(super) async fn turn(&self) -> SemaphorePermit<'_> {
        self.turns.acquire().await.expect("it is never closed")
    }

    /// Waits until no other script of this node has a key in common with `keys`, so that they do not make each
    /// other run again. Says whether it has waited.
    ///
    /// The queues are taken in one order by all, so nobody waits in a circle. Nobody waits for long either: while no
    /// write is done, for want of a leader, each would otherwise wait out all before it.
    async fn queue(&self, keys: &[Bytes]) -> (Vec<MutexGuard<'_, ()>>, bool) {
        let place = |key: &Bytes| {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            hasher.finish() as usize % QUEUES
        };
        let mut places: Vec<usize> = keys.iter().map(place).collect();
        places.sort_unstable();
        places.dedup();
        let (mut held, mut until) = (Vec::with_capacity(places.len()), None);
        for place in places {
            if let Ok(guard) = self.queues[place].try_lock() {
                held.push(guard);
                continue;
            }
            let until = *until.get_or_insert_with(|| tokio::time::Instant::now() + QUEUED_MAX);
            match timeout_at(until, self.queues[place].lock()).await {
                Ok(guard) => held.push(guard),
                Err(_) => return (Vec::new(), true),
            }
        }
        (held, until.is_some())
    }

    /// Runs `run` with a state.
    fn with_machine<T>(&self, run: impl FnOnce(&mut Machine) -> Result<T, Problem>) -> Result<T, Problem> {
        // Not in the condition: the lock must be free again before a state is made.
        let idle = self.idle.lock().pop();
        let mut machine = match idle {
            Some(machine) => machine,
            None => Machine::new(Arc::clone(&self.kills))
                .map_err(|error| Problem::Refused(format!("ERR no Lua state for the script: {error}")))?,
        };
        self.running.fetch_add(1, Ordering::Relaxed);
        let result = run(&mut machine);
        self.running.fetch_sub(1, Ordering::Relaxed);
        if machine.tidy() {
            self.idle.lock().push(machine);
        }
        result
    }

    /// Ends all scripts that run; false where there are none.
    pub(super) fn kill(&self) -> bool {
        self.kills.fetch_add(1, Ordering::Relaxed);
        self.running.load(Ordering::Relaxed) > 0
    }
}

/// EVAL, EVALSHA, FCALL, and each with `_RO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) named_by: NamedBy,
    pub(super) read_only: bool,
}

/// What the first argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedBy {
    /// The script.
    Text,
    /// The SHA1 of one that is known.
    Sha,
    /// The name of a library's function.
    Function,
}

/// What is evaluated.
enum Program {
    Script(Arc<Script>),
    /// A library, and the name of a function of it.
    Function(Arc<Library>, String),
}

impl Program {
    fn callee(&self) -> Callee<'_> {
        match self {
            Self::Script(script) => Callee::Script(script),
            Self::Function(library, name) => Callee::Function(library, name),
        }
    }
}

/// A script with its keys and arguments, ready to be run, again if need be.
struct Evaluation<'a> {
    program: Program,
    keys: &'a [Bytes],
    arguments: &'a [Bytes],
    read_only: bool,
}

impl<'a> Evaluation<'a> {
    /// Of `script numkeys key ... argument ...`; functions are those that `keys` has.
    fn new(scripts: &Scripts, kind: Kind, args: &'a [Bytes], keys: &Keys<'_>) -> Result<Self, Problem> {
        let rest = &args[2..];
        let count = match kind.named_by {
            NamedBy::Text | NamedBy::Sha => integer(&args[1])?,
            NamedBy::Function => integer(&args[1]).or_else(|_| refuse("ERR Bad number of keys provided"))?,
        };
        let Ok(count) = usize::try_from(count) else { return refuse("ERR Number of keys can't be negative") };
        if count > rest.len() {
            return refuse("ERR Number of keys can't be greater than number of args");
        }
        let (program, writes) = match kind.named_by {
            NamedBy::Text => of_script(Arc::new(Script::new(&args[0]).map_err(Problem::Refused)?)),
            NamedBy::Sha => {
                let found = scripts.cache.lock().find(&args[0]);
                of_script(found.ok_or_else(|| Problem::Refused(NO_SCRIPT.into()))?)
            }
            NamedBy::Function => {
                let libraries = keys.libraries()?;
                let found = std::str::from_utf8(&args[0]).ok().and_then(|name| libraries.find(name));
                let Some((library, function)) = found else { return refuse("ERR Function not found") };
                let program = Program::Function(Arc::clone(library), function.name.clone());
                (program, Some(function.flags & NO_WRITES == 0))
            }
        };
        if kind.read_only && writes == Some(true) {
            return refuse("ERR Can not execute a script with write flag using *_ro command.");
        }
        let read_only = kind.read_only || writes == Some(false);
        Ok(Self { program, keys: &rest[..count], arguments: &rest[count..], read_only })
    }
}

/// A script as a program, and what it says of its writes.
fn of_script(script: Arc<Script>) -> (Program, Option<bool>) {
    let writes = script.writes;
    (Program::Script(script), writes)
}

/// How long the scripts of a command have run, over all attempts.
#[derive(Default)]
pub(super) struct Spent(AtomicU64);

impl Spent {
    fn left(&self) -> Duration {
        stop::TIME_MAX.saturating_sub(Duration::from_micros(self.0.load(Ordering::Relaxed)))
    }

    fn add(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Runs a script on `keys`. If it fails, it has written nothing.
pub(super) fn evaluate(
    scripts: &Scripts,
    limits: &Limits,
    kind: Kind,
    args: &[Bytes],
    keys: &mut Keys<'_>,
    spent: &Spent,
) -> Outcome {
    let evaluation = Evaluation::new(scripts, kind, args, keys)?;
    let before = keys.written();
    let reply = scripts.with_machine(|machine| {
        if let Program::Script(script) = &evaluation.program {
            machine.compile(script).map_err(Problem::Refused)?;
            if kind.named_by == NamedBy::Text {
                scripts.cache.lock().insert(script);
            }
        }
        let mut calls = Calls { keys, limits, read_only: evaluation.read_only, made: 0, failed: None };
        let began = Instant::now();
        let given = (evaluation.keys, evaluation.arguments);
        let reply = machine.run(evaluation.program.callee(), given, spent.left(), &mut calls);
        spent.add(began.elapsed());
        reply
    });
    match &reply {
        Ok(reply) => keys.answers(convert::text_bytes(reply))?,
        Err(_) => keys.write_instead(before),
    }
    reply
}

/// The keys that scripts among these commands name.
pub(super) fn keys_named<'a>(commands: impl Iterator<Item = &'a [Bytes]>) -> Vec<Bytes> {
    let named = |args: &'a [Bytes]| {
        let count = integer(&args[1]).ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        args[2..].iter().take(count)
    };
    commands.flat_map(named).cloned().collect()
}

/// Waits for other scripts with these keys. The session then sees what they have done.
pub(super) async fn queue<'a>(
    scripts: &'a Scripts,
    session: &mut Session,
    keys: &[Bytes],
) -> Vec<MutexGuard<'a, ()>> {
    let (held, waited) = scripts.queue(keys).await;
    if waited {
        session.see_newest();
    }
    held
}

/// EVAL script numkeys [key ...] [argument ...], and its kin.
pub(super) async fn eval(session: &mut Session, kind: Kind, args: &[Bytes]) -> Result<Reply, Error> {
    let server = Arc::clone(&session.server);
    let (scripts, limits, spent) = (&server.scripts, server.engine.limits(), Spent::default());
    let run = |keys: &mut Keys<'_>| replied(evaluate(scripts, limits, kind, args, keys, &spent));
    if kind.read_only {
        let sight = session.sight().await?;
        let place = Place::Script(scripts);
        return place.run(|| run(&mut Keys::only_read(sight))).await.map_err(failed);
    }
    let _held = queue(scripts, session, &keys_named(std::iter::once(args))).await;
    let reply = atomically(session, Place::Script(scripts), &[], run).await?;
    Ok(reply.unwrap_or(Reply::NullArray))
}

/// SCRIPT LOAD script | EXISTS sha1 ... | FLUSH [SYNC | ASYNC] | KILL
pub(super) async fn script(session: &mut Session, args: &[Bytes]) -> Result<Reply, Error> {
    let server = Arc::clone(&session.server);
    let scripts = &server.scripts;
    Ok(match (&args[0].to_ascii_lowercase()[..], &args[1..]) {
        (b"load", [body]) => {
            Place::Script(scripts).run(|| replied(load(scripts, body))).await.map_err(failed)?
        }
        (b"exists", shas @ [_, ..]) => {
            let mut cache = scripts.cache.lock();
            let known = |sha: &Bytes| Reply::Integer(cache.find(sha).is_some().into());
            Reply::Array(shas.iter().map(known).collect())
        }
        (b"flush", [] | [_]) => {
            if args.get(1).is_some_and(|word| !is(word, "sync") && !is(word, "async")) {
                return Ok(Reply::error("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
            }
            scripts.cache.lock().clear();
            Reply::OK
        }
        (b"kill", []) if scripts.kill() => Reply::OK,
        (b"kill", []) => Reply::error("NOTBUSY No scripts in execution right now."),
        (sub @ (b"load" | b"exists" | b"flush" | b"kill"), _) => {
            Reply::Error(wrong_count(&format!("script|{}", sub.escape_ascii())))
        }
        _ => Reply::Error(format!("ERR unknown subcommand '{}'. Try SCRIPT HELP.", args[0].escape_ascii())),
    })
}

fn load(scripts: &Scripts, body: &Bytes) -> Outcome {
    let script = Arc::new(Script::new(body).map_err(Problem::Refused)?);
    scripts.with_machine(|machine| machine.compile(&script).map_err(Problem::Refused))?;
    scripts.cache.lock().insert(&script);
    Ok(Reply::text(script.sha.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While there was no leader, each script on a key waited until all those before it had given up, one by one.
    #[tokio::test]
    async fn a_script_waits_for_others_but_not_for_long() {
        let scripts = Scripts::default();
        let keys =
            |names: &[&'static str]| -> Vec<Bytes> { names.iter().map(|name| Bytes::from(*name)).collect() };
        let (first, waited) = scripts.queue(&keys(&["a", "b"])).await;
        assert!(!waited && !first.is_empty());
        let (other, waited) = scripts.queue(&keys(&["c"])).await;
        assert!(!waited && !other.is_empty());
        let began = tokio::time::Instant::now();
        let (second, waited) = scripts.queue(&keys(&["b", "d"])).await;
        assert!(waited && second.is_empty() && began.elapsed() >= QUEUED_MAX);
        drop(first);
        assert!(!scripts.queue(&keys(&["a", "b", "d"])).await.0.is_empty());
    }
}
