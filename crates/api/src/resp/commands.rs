//! The table of commands: each with its checks and its function. COMMAND lists it, and tests compare it with
//! docs/redis.md and with the golden scripts. So a new command is a row here, a function, a word on the page,
//! and a script.

use super::keys::Run;
use super::lookup::Lookup;
use super::parse::is;
use super::queue::Queued;
use super::reply::Reply;
use super::scripts::{self, NamedBy, functions};
use super::session::{FieldsAnswer, Session};
use super::{
    acl, administration, expiry, field_expiry, flush, hashes, keyspace, scan, strings, subscribe, table,
    transaction,
};
use crate::error::Error;
use Action::*;
use Flag::*;
use Group::*;
use bytes::Bytes;
use quoin_core::kv::WriteFields;
use std::pin::Pin;

/// A command.
pub(super) struct Command {
    /// In lower case.
    pub(super) name: &'static str,
    pub(super) group: Group,
    /// The number of arguments with the name itself, or minus the smallest number.
    arity: i32,
    pub(super) action: Action,
    flags: &'static [Flag],
    /// Which arguments are keys.
    keys: Keys,
    summary: &'static str,
}

/// Which arguments are keys: the first, the last (negative: from the end) and the step between them, as
/// COMMAND shows them.
#[derive(Clone, Copy)]
struct Keys(i64, i64, i64);

/// How a command is run.
#[derive(Clone, Copy)]
pub(super) enum Action {
    /// It only reads keys. MULTI queues it.
    Reads(Run),
    /// It may write keys. MULTI queues it.
    Writes(Run),
    /// It adds a number. MULTI queues it; otherwise the log adds the number, so that clients who count one
    /// key never conflict. `None` where an argument is not a number: then it is run like `Writes`.
    Counts(Run, fn(&[Bytes]) -> Option<i64>),
    /// It changes fields of a hash. MULTI queues it; otherwise the log says what becomes of them, so that clients who
    /// change one key never conflict. `None` where the arguments are wrong: then it is run like `Writes`.
    Changes(Run, fn(&[Bytes]) -> Option<(WriteFields, FieldsAnswer)>),
    /// It runs a script. MULTI queues it.
    Script(scripts::Kind),
    /// It looks up many keys of a table.
    LooksUp(Lookup),
    /// It works on the connection's state. MULTI queues it, unless it is [`Flag::AtOnce`].
    Answers(fn(&mut Session, &[Bytes]) -> Reply),
    /// It waits for the engine.
    Waits(for<'a> fn(&'a mut Session, &'a [Bytes]) -> Waiting<'a>),
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send + 'a>>;

/// What is special about a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    ReadOnly,
    Write,
    PubSub,
    /// It is refused within MULTI.
    NoMulti,
    /// It is not queued by MULTI. Redis has no name for it.
    AtOnce,
    /// RESP2 allows it while there are subscriptions. Redis has no name for it.
    WhileListening,
}

impl Flag {
    fn name(self) -> Option<&'static str> {
        match self {
            ReadOnly => Some("readonly"),
            Write => Some("write"),
            PubSub => Some("pubsub"),
            NoMulti => Some("no_multi"),
            AtOnce | WhileListening => None,
        }
    }
}

/// The groups of docs/redis.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Strings,
    Numbers,
    Hashes,
    Keyspace,
    TimeToLive,
    Transactions,
    Scripts,
    Notices,
    Tables,
    Connection,
    Node,
}

impl Group {
    pub(super) fn name(self) -> &'static str {
        match self {
            Strings => "strings",
            Numbers => "numbers",
            Hashes => "hashes",
            Keyspace => "keys",
            TimeToLive => "time to live",
            Transactions => "transactions",
            Scripts => "scripts",
            Notices => "notices",
            Tables => "tables",
            Connection => "connection",
            Node => "node",
        }
    }
}

/// A row whose flags and keys are those of most commands of its kind.
const fn row(group: Group, name: &'static str, arity: i32, action: Action, summary: &'static str) -> Command {
    let (flags, keys): (&[Flag], _) = match action {
        Reads(_) => (&[ReadOnly], ONE),
        Writes(_) | Counts(..) | Changes(..) => (&[Write], ONE),
        LooksUp(_) => (&[ReadOnly, NoMulti], NONE),
        Script(kind) if kind.read_only => (&[ReadOnly], NONE),
        Answers(_) | Waits(_) | Script(_) => (&[], NONE),
    };
    Command { name, group, arity, action, flags, keys, summary }
}

const READS_ALL: &[Flag] = &[ReadOnly, NoMulti];
const WRITES_ALL: &[Flag] = &[Write, NoMulti];
const LISTENS: &[Flag] = &[PubSub, WhileListening];
const PUBLISHES: &[Flag] = &[Write, PubSub];
const ALWAYS: &[Flag] = &[WhileListening];
const AT_ONCE: &[Flag] = &[AtOnce];
const ALWAYS_AT_ONCE: &[Flag] = &[WhileListening, AtOnce];

const NO_MULTI: &[Flag] = &[NoMulti];

const EVAL: scripts::Kind = scripts::Kind { named_by: NamedBy::Text, read_only: false };
const EVALSHA: scripts::Kind = scripts::Kind { named_by: NamedBy::Sha, read_only: false };
const EVAL_RO: scripts::Kind = scripts::Kind { named_by: NamedBy::Text, read_only: true };
const EVALSHA_RO: scripts::Kind = scripts::Kind { named_by: NamedBy::Sha, read_only: true };
const FCALL: scripts::Kind = scripts::Kind { named_by: NamedBy::Function, read_only: false };
const FCALL_RO: scripts::Kind = scripts::Kind { named_by: NamedBy::Function, read_only: true };

const NONE: Keys = Keys(0, 0, 0);
const ONE: Keys = Keys(1, 1, 1);
const TWO: Keys = Keys(1, 2, 1);
const SECOND: Keys = Keys(2, 2, 1);
const ALL: Keys = Keys(1, -1, 1);
const PAIRS: Keys = Keys(1, -1, 2);

impl Command {
    const fn keys(mut self, keys: Keys) -> Self {
        self.keys = keys;
        self
    }

    const fn flags(mut self, flags: &'static [Flag]) -> Self {
        self.flags = flags;
        self
    }
}

/// A command that waits: a future of its own, off the hot path.
macro_rules! waits {
    ($run:path) => {
        Waits(|session, args| Box::pin($run(session, args)))
    };
}

/// All commands.
pub(super) static COMMANDS: &[Command] = &[
    row(Strings, "get", 2, Reads(strings::get), "Returns a value."),
    row(Strings, "set", -3, Writes(strings::set), "Sets a value."),
    row(Strings, "setex", 4, Writes(strings::setex), "Sets a value and its seconds to live."),
    row(Strings, "psetex", 4, Writes(strings::psetex), "Sets a value and its milliseconds to live."),
    row(Strings, "setnx", 3, Writes(strings::setnx), "Sets a value if the key is absent."),
    row(Strings, "getset", 3, Writes(strings::getset), "Sets a value and returns the previous one."),
    row(Strings, "getex", -2, Writes(strings::getex), "Returns a value and sets its time to live."),
    row(Strings, "getdel", 2, Writes(strings::getdel), "Returns a value and deletes it."),
    row(Strings, "mget", -2, Reads(strings::mget), "Returns several values.").keys(ALL),
    row(Strings, "mset", -3, Writes(strings::mset), "Sets several values.").keys(PAIRS),
    row(Strings, "msetnx", -3, Writes(strings::msetnx), "Sets values if all keys are absent.").keys(PAIRS),
    row(Strings, "append", 3, Writes(strings::append), "Appends to a value."),
    row(Strings, "strlen", 2, Reads(strings::strlen), "Returns the length of a value."),
    row(Strings, "getrange", 4, Reads(strings::getrange), "Returns a part of a value."),
    row(Strings, "substr", 4, Reads(strings::getrange), "Returns a part of a value, as GETRANGE does."),
    row(Strings, "setrange", 4, Writes(strings::setrange), "Overwrites a part of a value."),
    row(Numbers, "incr", 2, Counts(strings::incr, |_| Some(1)), "Adds one."),
    row(Numbers, "decr", 2, Counts(strings::decr, |_| Some(-1)), "Subtracts one."),
    row(Numbers, "incrby", 3, Counts(strings::incrby, strings::added), "Adds an integer."),
    row(Numbers, "decrby", 3, Counts(strings::decrby, strings::subtracted), "Subtracts an integer."),
    row(Numbers, "incrbyfloat", 3, Writes(strings::incrbyfloat), "Adds a floating-point number."),
    row(Hashes, "hset", -4, Changes(hashes::hset, hashes::set_fields), "Sets fields of a hash."),
    row(Hashes, "hmset", -4, Changes(hashes::hmset, hashes::set_fields_ok), "Sets fields of a hash."),
    row(Hashes, "hsetnx", 4, Changes(hashes::hsetnx, hashes::set_new), "Sets a field that is absent."),
    row(Hashes, "hget", 3, Reads(hashes::hget), "Returns the value of a field."),
    row(Hashes, "hmget", -3, Reads(hashes::hmget), "Returns the values of several fields."),
    row(Hashes, "hgetall", 2, Reads(hashes::hgetall), "Returns all fields with their values."),
    row(Hashes, "hkeys", 2, Reads(hashes::hkeys), "Returns the names of all fields."),
    row(Hashes, "hvals", 2, Reads(hashes::hvals), "Returns the values of all fields."),
    row(Hashes, "hdel", -3, Changes(hashes::hdel, hashes::delete_fields), "Deletes fields."),
    row(Hashes, "hexists", 3, Reads(hashes::hexists), "Says whether a field exists."),
    row(Hashes, "hlen", 2, Reads(hashes::hlen), "Returns the number of fields."),
    row(Hashes, "hstrlen", 3, Reads(hashes::hstrlen), "Returns the length of a field's value."),
    row(Hashes, "hincrby", 4, Changes(hashes::hincrby, hashes::add), "Adds an integer to a field."),
    row(Hashes, "hincrbyfloat", 4, Writes(hashes::hincrbyfloat), "Adds a floating-point number to a field."),
    row(Hashes, "hrandfield", -2, Reads(hashes::hrandfield), "Returns random fields."),
    row(Hashes, "hscan", -3, waits!(hashes::hscan), "Returns some of the fields and a cursor.")
        .keys(ONE)
        .flags(READS_ALL),
    row(Hashes, "hexpire", -6, Writes(field_expiry::hexpire), "Sets fields' seconds to live."),
    row(Hashes, "hpexpire", -6, Writes(field_expiry::hpexpire), "Sets fields' milliseconds to live."),
    row(Hashes, "hexpireat", -6, Writes(field_expiry::hexpireat), "Sets fields' Unix second of expiry."),
    row(
        Hashes,
        "hpexpireat",
        -6,
        Writes(field_expiry::hpexpireat),
        "Sets fields' Unix millisecond of expiry.",
    ),
    row(Hashes, "httl", -5, Reads(field_expiry::httl), "Returns fields' seconds to live."),
    row(Hashes, "hpttl", -5, Reads(field_expiry::hpttl), "Returns fields' milliseconds to live."),
    row(
        Hashes,
        "hexpiretime",
        -5,
        Reads(field_expiry::hexpiretime),
        "Returns fields' Unix second of expiry.",
    ),
    row(
        Hashes,
        "hpexpiretime",
        -5,
        Reads(field_expiry::hpexpiretime),
        "Returns fields' Unix millisecond of expiry.",
    ),
    row(Hashes, "hpersist", -5, Writes(field_expiry::hpersist), "Removes fields' times to live."),
    row(Hashes, "hgetdel", -5, Writes(field_expiry::hgetdel), "Returns values of fields and deletes these."),
    row(
        Hashes,
        "hgetex",
        -5,
        Writes(field_expiry::hgetex),
        "Returns values of fields and sets times to live.",
    ),
    row(Hashes, "hsetex", -6, Writes(field_expiry::hsetex), "Sets fields and their time to live."),
    row(Keyspace, "del", -2, Writes(keyspace::del), "Deletes keys.").keys(ALL),
    row(Keyspace, "unlink", -2, Writes(keyspace::del), "Deletes keys, as DEL does.").keys(ALL),
    row(Keyspace, "exists", -2, Reads(keyspace::exists), "Counts the keys that exist.").keys(ALL),
    row(Keyspace, "touch", -2, Reads(keyspace::exists), "Counts keys, as EXISTS does.").keys(ALL),
    row(Keyspace, "type", 2, Reads(keyspace::type_of), "Returns the type of a value."),
    row(Keyspace, "rename", 3, Writes(keyspace::rename), "Renames a key.").keys(TWO),
    row(Keyspace, "renamenx", 3, Writes(keyspace::renamenx), "Renames a key, not over another.").keys(TWO),
    row(Keyspace, "copy", -3, Writes(keyspace::copy), "Copies a key.").keys(TWO),
    row(Keyspace, "scan", -2, waits!(scan::scan), "Returns some of all keys and a cursor.").flags(READS_ALL),
    row(Keyspace, "keys", 2, waits!(scan::keys), "Returns the keys that match a pattern.").flags(READS_ALL),
    row(Keyspace, "dbsize", 1, waits!(scan::dbsize), "Counts all keys.").flags(READS_ALL),
    row(Keyspace, "flushdb", -1, waits!(flush::flush), "Deletes all keys.").flags(WRITES_ALL),
    row(Keyspace, "flushall", -1, waits!(flush::flush), "Deletes all keys.").flags(WRITES_ALL),
    row(Keyspace, "object", -2, Reads(keyspace::object), "Describes how a value is kept.").keys(SECOND),
    row(Keyspace, "memory", -2, Reads(keyspace::memory), "Returns the bytes of a key.").keys(SECOND),
    row(Keyspace, "randomkey", 1, waits!(scan::randomkey), "Returns a random key.").flags(READS_ALL),
    row(TimeToLive, "expire", -3, Writes(expiry::expire), "Sets a key's seconds to live."),
    row(TimeToLive, "pexpire", -3, Writes(expiry::pexpire), "Sets a key's milliseconds to live."),
    row(TimeToLive, "expireat", -3, Writes(expiry::expireat), "Sets the Unix second of expiry."),
    row(TimeToLive, "pexpireat", -3, Writes(expiry::pexpireat), "Sets the Unix millisecond of expiry."),
    row(TimeToLive, "ttl", 2, Reads(expiry::ttl), "Returns a key's seconds to live."),
    row(TimeToLive, "pttl", 2, Reads(expiry::pttl), "Returns a key's milliseconds to live."),
    row(TimeToLive, "expiretime", 2, Reads(expiry::expiretime), "Returns the Unix second of expiry."),
    row(TimeToLive, "pexpiretime", 2, Reads(expiry::pexpiretime), "Returns the Unix millisecond of expiry."),
    row(TimeToLive, "persist", 2, Writes(expiry::persist), "Removes a key's time to live."),
    row(Transactions, "multi", 1, Answers(transaction::multi), "Begins a transaction.").flags(AT_ONCE),
    row(Transactions, "exec", 1, waits!(transaction::exec), "Runs the queued commands as one transaction."),
    row(Transactions, "discard", 1, Answers(transaction::discard), "Drops the queued commands.")
        .flags(AT_ONCE),
    row(Transactions, "watch", -2, waits!(transaction::watch), "Makes EXEC depend on keys.").keys(ALL),
    row(Transactions, "unwatch", 1, Answers(transaction::unwatch), "Forgets what WATCH named."),
    row(Scripts, "eval", -3, Script(EVAL), "Runs a script."),
    row(Scripts, "evalsha", -3, Script(EVALSHA), "Runs a script that the node knows, by its SHA1."),
    row(Scripts, "eval_ro", -3, Script(EVAL_RO), "Runs a script that only reads."),
    row(Scripts, "evalsha_ro", -3, Script(EVALSHA_RO), "Runs a known script that only reads."),
    row(Scripts, "script", -2, waits!(scripts::script), "Loads, finds, forgets or ends scripts.")
        .flags(NO_MULTI),
    row(Scripts, "fcall", -3, Script(FCALL), "Runs a function of a library."),
    row(Scripts, "fcall_ro", -3, Script(FCALL_RO), "Runs a function that only reads."),
    row(Scripts, "function", -2, waits!(functions::function), "Loads, lists and deletes libraries.")
        .flags(NO_MULTI),
    row(Notices, "subscribe", -2, Answers(subscribe::subscribe), "Listens to channels.").flags(LISTENS),
    row(Notices, "psubscribe", -2, Answers(subscribe::psubscribe), "Listens to patterns.").flags(LISTENS),
    row(Notices, "unsubscribe", -1, Answers(subscribe::unsubscribe), "Ends subscriptions.").flags(LISTENS),
    row(Notices, "punsubscribe", -1, Answers(subscribe::punsubscribe), "Ends subscriptions.").flags(LISTENS),
    row(Notices, "publish", 3, Writes(subscribe::publish), "Says something on a channel.")
        .keys(NONE)
        .flags(PUBLISHES),
    row(Notices, "pubsub", -2, Answers(subscribe::pubsub), "Describes who listens at this node."),
    row(Tables, "table.mget", -3, LooksUp(Lookup::Decimal), "Returns the values of a table's keys."),
    row(Tables, "table.lookup", 3, LooksUp(Lookup::Blob), "Returns the values of a table's keys, in binary."),
    row(Tables, "table.set", -4, waits!(table::set), "Changes values of a table.").flags(WRITES_ALL),
    row(Tables, "table.del", -3, waits!(table::del), "Deletes keys of a table.").flags(WRITES_ALL),
    row(Tables, "table.list", 1, waits!(table::list), "Returns the names of all tables.").flags(READS_ALL),
    row(Tables, "table.info", 2, waits!(table::info), "Returns the versions of a table.").flags(READS_ALL),
    row(Connection, "ping", -1, Answers(administration::ping), "Returns PONG or its argument.").flags(ALWAYS),
    row(Connection, "echo", 2, Answers(administration::echo), "Returns its argument."),
    row(Connection, "hello", -1, Answers(administration::hello), "Chooses the version of the protocol."),
    row(
        Connection,
        "auth",
        -2,
        Answers(administration::auth),
        "Says who the client is; while authentication is off, only the user default.",
    ),
    row(Connection, "acl", -2, Answers(acl::acl), "Tells of users and their keys.").flags(NO_MULTI),
    row(Connection, "select", 2, Answers(administration::select), "Chooses database 0, the only one."),
    row(Connection, "client", -2, Answers(administration::client), "Names the connection, and describes it."),
    row(Connection, "readonly", 1, Answers(administration::readonly), "Lets reads see an older state."),
    row(Connection, "readwrite", 1, Answers(administration::readwrite), "Makes reads see the newest state."),
    row(Connection, "reset", 1, Answers(administration::reset), "Makes the connection as new.")
        .flags(ALWAYS_AT_ONCE),
    row(Connection, "quit", -1, Answers(administration::quit), "Closes the connection.")
        .flags(ALWAYS_AT_ONCE),
    row(Node, "command", -1, Answers(command), "Describes commands."),
    row(Node, "config", -2, Answers(administration::config), "Returns settings."),
    row(Node, "latency", -2, Answers(administration::latency), "Has nothing to tell: metrics do."),
    row(Node, "time", 1, Reads(keyspace::time), "Returns the cluster's time.").keys(NONE),
    row(Node, "info", -1, Answers(administration::info), "Describes the node."),
    row(Node, "wait", 3, Answers(administration::wait), "Returns how many other replicas have each write."),
];

/// Slots of [`INDEX`]; a few times as many as commands, so that most are found in the first slot.
const SLOTS: usize = 512;
const EMPTY: u8 = u8::MAX;
/// The row of each command, at the slot of its name's hash or the next free one.
static INDEX: [u8; SLOTS] = {
    let mut index = [EMPTY; SLOTS];
    let mut row = 0;
    while row < COMMANDS.len() {
        let mut slot = slot(COMMANDS[row].name.as_bytes());
        while index[slot] != EMPTY {
            slot = (slot + 1) % SLOTS;
        }
        index[slot] = row as u8;
        row += 1;
    }
    index
};
const _: () = assert!(COMMANDS.len() < SLOTS / 2, "rows fit into a u8, and free slots remain");

/// Length of the longest name.
const NAME_BYTES_MAX: usize = {
    let (mut longest, mut row) = (0, 0);
    while row < COMMANDS.len() {
        if COMMANDS[row].name.len() > longest {
            longest = COMMANDS[row].name.len();
        }
        row += 1;
    }
    longest
};

/// The slot where the search for a name, in any case, begins.
const fn slot(name: &[u8]) -> usize {
    let (mut hash, mut at) = (0_u32, 0);
    while at < name.len() {
        hash = (hash ^ name[at].to_ascii_lowercase() as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    (hash >> 16) as usize % SLOTS
}

impl Command {
    /// The command of this name, in any case.
    pub(super) fn find(name: &[u8]) -> Option<&'static Self> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let mut slot = slot(name);
        loop {
            match INDEX[slot] {
                EMPTY => return None,
                row if is(name, COMMANDS[row as usize].name) => return Some(&COMMANDS[row as usize]),
                _ => slot = (slot + 1) % SLOTS,
            }
        }
    }

    /// Whether the command takes this many arguments, its name included.
    pub(super) fn takes(&self, arguments: usize) -> bool {
        let given = arguments as i64;
        if self.arity < 0 { given >= i64::from(-self.arity) } else { given == i64::from(self.arity) }
    }

    pub(super) fn has_keys(&self) -> bool {
        self.keys.2 != 0
    }

    /// Which of `count` arguments are keys, the name included.
    pub(super) fn keys_of(&self, count: usize) -> impl Iterator<Item = usize> {
        let Keys(first, last, step) = self.keys;
        let end = count as i64;
        let last = if last < 0 { end + last } else { last.min(end - 1) };
        let keys = if step == 0 { None } else { Some(first..=last) };
        keys.into_iter().flatten().step_by(step.max(1) as usize).map(|at| at as usize)
    }

    /// Bytes of the longest key among `count` arguments of these lengths, the name included.
    pub(super) fn longest_key(&self, count: usize, length: impl Fn(usize) -> usize) -> usize {
        self.keys_of(count).map(length).max().unwrap_or(0)
    }

    /// What EXEC does, for a command that MULTI queues.
    pub(super) fn queued(&self) -> Option<Queued> {
        match self.action {
            Reads(run) | Writes(run) | Counts(run, _) | Changes(run, _) => Some(Queued::Keys(run)),
            Script(kind) => Some(Queued::Script(kind)),
            Answers(run) if !self.has(AtOnce) => Some(Queued::Connection(run)),
            LooksUp(_) | Answers(_) | Waits(_) => None,
        }
    }

    pub(super) fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    fn describe(&self) -> Reply {
        let flags = self.flags.iter().filter_map(|flag| flag.name());
        let Keys(first, last, step) = self.keys;
        Reply::Array(vec![
            Reply::text(self.name),
            Reply::Integer(self.arity.into()),
            Reply::Array(flags.map(Reply::Simple).collect()),
            Reply::Integer(first),
            Reply::Integer(last),
            Reply::Integer(step),
            Reply::Array(self.categories().map(Reply::Simple).collect()),
            // Hints for proxies.
            Reply::Array(Vec::new()),
            Reply::Array(self.key_specification().into_iter().collect()),
            // Subcommands.
            Reply::Array(Vec::new()),
        ])
    }

    /// Redis's categories of permissions that fit.
    fn categories(&self) -> impl Iterator<Item = &'static str> {
        let group = match self.group {
            Strings | Numbers => "@string",
            Hashes => "@hash",
            Keyspace | TimeToLive => "@keyspace",
            Transactions => "@transaction",
            Scripts => "@scripting",
            Notices => "@pubsub",
            Tables => "@table",
            Connection => "@connection",
            Node => "@admin",
        };
        let access = [(ReadOnly, "@read"), (Write, "@write")];
        access.into_iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| name).chain([group])
    }

    /// Where its keys are, in the words that Redis has for it since 7.
    fn key_specification(&self) -> Option<Reply> {
        let Keys(first, last, step) = self.keys;
        let map = |pairs: Vec<(&'static str, Reply)>| {
            Reply::Map(pairs.into_iter().map(|(name, value)| (Reply::text(name), value)).collect())
        };
        let access = if self.has(Write) { "RW" } else { "RO" };
        let begin = vec![("index", Reply::Integer(first))];
        let find = vec![
            // Counted from the first key, or from the end.
            ("lastkey", Reply::Integer(if last < 0 { last } else { last - first })),
            ("keystep", Reply::Integer(step)),
            ("limit", Reply::Integer(0)),
        ];
        let search = |kind, spec| map(vec![("type", Reply::text(kind)), ("spec", map(spec))]);
        (step > 0).then(|| {
            map(vec![
                ("flags", Reply::Array(vec![Reply::Simple(access)])),
                ("begin_search", search("index", begin)),
                ("find_keys", search("range", find)),
            ])
        })
    }

    fn document(&self) -> (Reply, Reply) {
        let facts = [("summary", self.summary), ("since", SINCE), ("group", self.group.name())];
        let facts = facts.map(|(name, fact)| (Reply::text(name), Reply::text(fact)));
        (Reply::text(self.name), Reply::Map(facts.into()))
    }
}

/// All categories of permissions.
pub(super) fn categories() -> Vec<&'static str> {
    let all: std::collections::BTreeSet<_> = COMMANDS.iter().flat_map(Command::categories).collect();
    all.into_iter().map(|name| name.trim_start_matches('@')).collect()
}

/// Quoin's version since which a command exists: all came with the first.
const SINCE: &str = "0.1.0";

/// COMMAND [COUNT | DOCS [name ...] | INFO [name ...]]
fn command(_: &mut Session, args: &[Bytes]) -> Reply {
    let all = || COMMANDS.iter();
    match args {
        [] => Reply::Array(all().map(Command::describe).collect()),
        [sub] if is(sub, "info") => Reply::Array(all().map(Command::describe).collect()),
        [sub, names @ ..] if is(sub, "info") => {
            let describe = |name: &Bytes| Command::find(name).map_or(Reply::NullArray, Command::describe);
            Reply::Array(names.iter().map(describe).collect())
        }
        [sub] if is(sub, "count") => Reply::Integer(COMMANDS.len() as i64),
        [sub] if is(sub, "docs") => Reply::Map(all().map(Command::document).collect()),
        [sub, names @ ..] if is(sub, "docs") => {
            let found = names.iter().filter_map(|name| Command::find(name));
            Reply::Map(found.map(Command::document).collect())
        }
        _ => Reply::error("ERR unknown subcommand of COMMAND: there are COUNT, DOCS and INFO"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_command_is_found_by_its_name_in_any_case() {
        for command in COMMANDS {
            assert_eq!(command.name, command.name.to_ascii_lowercase());
            for name in [command.name.to_owned(), command.name.to_ascii_uppercase()] {
                let found = Command::find(name.as_bytes()).expect("it is in the table");
                assert!(std::ptr::eq(found, command), "another row is called {name}");
            }
        }
        for name in ["", "ge", "gets", "lpush", "table.", "abcdefghijklmnopqrstuvwxyz"] {
            assert!(Command::find(name.as_bytes()).is_none(), "{name}");
        }
    }

    #[test]
    fn the_page_lists_the_commands_of_the_table() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/redis.md");
        let page = std::fs::read_to_string(&file).unwrap();
        let rows = page.lines().filter(|line| line.starts_with("| "));
        let mut listed: Vec<(String, String)> = Vec::new();
        for row in rows.skip_while(|row| !row.starts_with("| what ")).skip(1) {
            let [_, group, commands, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
                break;
            };
            // Options stand in parentheses.
            let outside =
                commands.split('(').map(|part| part.split_once(')').map_or(part, |(_, after)| after));
            let words =
                outside.flat_map(|part| part.split([' ', ',']).map(str::to_owned).collect::<Vec<_>>());
            let is_command =
                |word: &String| !word.is_empty() && word.chars().all(|c| matches!(c, '.' | '_' | 'A'..='Z'));
            listed.extend(words.filter(is_command).map(|word| (group.into(), word.to_ascii_lowercase())));
        }
        let of_table =
            COMMANDS.iter().map(|command| (command.group.name().to_owned(), command.name.to_owned()));
        assert_eq!(listed, of_table.collect::<Vec<_>>(), "{}", file.display());
    }
}
