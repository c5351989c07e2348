//! FUNCTION: libraries of functions. One is read and run here once, for what it registers; then the log gets its text with
//! the names, and every replica has it.

use super::machine::Machine;
use super::{Scripts, dump, stop};
use crate::audit::about;
use crate::commands::{check_size, check_space};
use crate::error::Error;
use crate::resp::glob::{matches, too_long};
use crate::resp::keys::{Outcome, Problem, replied};
use crate::resp::parse::{is, refuse, wrong_count};
use crate::resp::reply::Reply;
use crate::resp::session::Session;
use crate::resp::transaction::{Place, failed};
use bytes::Bytes;
use quoin_core::function::{
    CODE_BYTES_MAX, Existing, FLAGS, Function, Libraries, Library, Load, Operation, is_name,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

const WRONG_POLICY: &str = "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.";

const HELP: &[&str] = &[
    "FUNCTION <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "LOAD [REPLACE] <FUNCTION CODE>",
    "    Create a new library with the given library name and code.",
    "DELETE <LIBRARY NAME>",
    "    Delete the given library.",
    "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
    "    Return general information on all the libraries.",
    "DUMP",
    "    Return all the libraries as one payload.",
    "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
    "    Add the libraries of a payload. What exists is deleted first (FLUSH), a reason to refuse (APPEND, the default),",
    "    or replaced (REPLACE).",
    "STATS",
    "    Return how many libraries and functions there are.",
    "KILL",
    "    End the scripts and functions that run on this node.",
    "FLUSH [ASYNC|SYNC]",
    "    Delete all the libraries.",
    "HELP",
    "    Prints this help.",
];

/// FUNCTION LOAD [REPLACE] code | DELETE library | LIST [LIBRARYNAME pattern] [WITHCODE] | DUMP |
/// RESTORE dump [FLUSH | APPEND | REPLACE] | STATS | KILL | FLUSH [SYNC | ASYNC] | HELP
pub(in crate::resp) async fn function(session: &mut Session, args: &[Bytes]) -> Result<Reply, Error> {
    let server = Arc::clone(&session.server);
    let sub = args[0].to_ascii_lowercase();
    match (&sub[..], &args[1..]) {
        (b"load", [options @ .., code]) => {
            let replace = !options.is_empty();
            if let Some(other) = options.iter().find(|option| !is(option, "replace")) {
                return Ok(Reply::Error(format!("ERR Unknown option given: {}", other.escape_ascii())));
            }
            let prepare = || prepare(&server.scripts, code, stop::TIME_MAX);
            let library = match Place::Script(&server.scripts).run(prepare).await {
                Ok(library) => library,
                Err(problem) => return replied(Err(problem)).map_err(failed),
            };
            let name = Bytes::from(library.name.clone());
            let existing = if replace { Existing::Replaced } else { Existing::Stay };
            let load = Load { libraries: vec![library], existing: existing.into() };
            change(session, Operation::Load(load), Reply::Bulk(name)).await
        }
        (b"delete", [name]) => {
            let name = String::from_utf8_lossy(name).into_owned();
            change(session, Operation::Delete(name), Reply::OK).await
        }
        (b"flush", [] | [_]) => {
            if args.get(1).is_some_and(|word| !is(word, "sync") && !is(word, "async")) {
                return Ok(Reply::error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
            }
            let load = Load { libraries: Vec::new(), existing: Existing::Deleted.into() };
            change(session, Operation::Load(load), Reply::OK).await
        }
        (b"list", options) => {
            let libraries = Arc::clone(&session.view().await?.memory().functions);
            replied(list(&libraries, options)).map_err(failed)
        }
        (b"dump", []) => {
            let libraries = Arc::clone(&session.view().await?.memory().functions);
            Ok(Reply::Bulk(dump::dump(libraries.all()).into()))
        }
        (b"restore", [payload, how @ ..]) if how.len() <= 1 => {
            let existing = match how.first() {
                Some(word) if is(word, "flush") => Existing::Deleted,
                Some(word) if is(word, "replace") => Existing::Replaced,
                Some(word) if !is(word, "append") => return Ok(Reply::error(WRONG_POLICY)),
                _ => Existing::Stay,
            };
            let prepare = || prepare_all(&server.scripts, payload);
            let libraries = match Place::Script(&server.scripts).run(prepare).await {
                Ok(libraries) => libraries,
                Err(problem) => return replied(Err(problem)).map_err(failed),
            };
            let load = Load { libraries, existing: existing.into() };
            change(session, Operation::Load(load), Reply::OK).await
        }
        (b"stats", []) => {
            let (libraries, functions) = session.view().await?.memory().functions.count();
            Ok(stats(libraries, functions))
        }
        (b"kill", []) if server.scripts.kill() => Ok(Reply::OK),
        (b"kill", []) => Ok(Reply::error("NOTBUSY No scripts in execution right now.")),
        (b"help", []) => Ok(Reply::Array(HELP.iter().map(|line| Reply::Simple(line)).collect())),
        (b"restore" | b"flush", [_, ..]) => Ok(Reply::Error(format!(
            "ERR unknown subcommand or wrong number of arguments for '{}'. Try FUNCTION HELP.",
            sub.escape_ascii()
        ))),
        (sub @ (b"load" | b"delete" | b"dump" | b"restore" | b"stats" | b"kill" | b"help"), _) => {
            Ok(Reply::Error(wrong_count(&format!("function|{}", sub.escape_ascii()))))
        }
        _ => Ok(Reply::Error(format!(
            "ERR unknown subcommand '{}'. Try FUNCTION HELP.",
            args[0].escape_ascii()
        ))),
    }
}

/// Has libraries changed. Later reads of this connection see it.
async fn change(session: &mut Session, operation: Operation, reply: Reply) -> Result<Reply, Error> {
    let engine = session.server.engine.clone();
    if matches!(&operation, Operation::Load(load) if !load.libraries.is_empty()) {
        check_space(&engine)?;
    }
    match &operation {
        Operation::Load(load) => load.libraries.iter().for_each(|library| about("library", &library.name)),
        Operation::Delete(name) => about("library", name),
    }
    let command = operation.into_command();
    check_size(&engine, &command)?;
    let outcome = match engine.propose(command).await? {
        quoin_core::Reply::Function(outcome) => outcome,
        other => return Err(Error::unexpected_reply("function", &other)),
    };
    session.see_own_writes(true);
    Ok(match outcome {
        Ok(()) => reply,
        Err(refusal) => Reply::Error(format!("ERR {refusal}")),
    })
}

/// The library of this text, with what it registers.
fn prepare(scripts: &Scripts, code: &Bytes, time: Duration) -> Result<Library, Problem> {
    if code.len() > CODE_BYTES_MAX {
        return refuse(format!(
            "ERR a library of {} bytes; at most {CODE_BYTES_MAX} are allowed",
            code.len()
        ));
    }
    let name = name_of(code)?;
    let run = |machine: &mut Machine| machine.load(&name, code, time).map_err(Problem::Refused);
    let functions = scripts.with_machine(run)?;
    Ok(Library { name, code: code.clone(), functions })
}

/// The libraries of a dump. All together may take as long as one.
fn prepare_all(scripts: &Scripts, payload: &[u8]) -> Result<Vec<Library>, Problem> {
    let texts = dump::texts(payload).map_err(|wrong| Problem::Refused(wrong.to_string()))?;
    let began = Instant::now();
    let left = || stop::TIME_MAX.saturating_sub(began.elapsed());
    let libraries: Vec<Library> =
        texts.into_iter().map(|text| prepare(scripts, &text.into(), left())).collect::<Result<_, _>>()?;
    let names: BTreeSet<&str> = libraries.iter().map(|library| &*library.name).collect();
    if names.len() < libraries.len() {
        return refuse("ERR the payload has two libraries of one name");
    }
    Ok(libraries)
}

/// What the first line says: `#!lua name=NAME`.
fn name_of(code: &[u8]) -> Result<String, Problem> {
    let Some(rest) = code.strip_prefix(b"#!") else { return refuse("ERR Missing library metadata") };
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
        return refuse("ERR Invalid library metadata");
    };
    let line = String::from_utf8_lossy(&rest[..end]);
    let (engine, words) = line.split_once(' ').unwrap_or((&line, ""));
    let mut name = None;
    for word in words.split_ascii_whitespace() {
        match word.split_once('=') {
            Some((key, _)) if key.eq_ignore_ascii_case("name") && name.is_some() => {
                return refuse("ERR Invalid metadata value, name argument was given multiple times");
            }
            Some((key, value)) if key.eq_ignore_ascii_case("name") => {
                name = Some(value.trim_matches('"').to_owned());
            }
            _ => return refuse(format!("ERR Invalid metadata value given: {word}")),
        }
    }
    let Some(name) = name else { return refuse("ERR Library name was not given") };
    if !is_name(&name) {
        return refuse(
            "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one \
             character long",
        );
    }
    if !engine.eq_ignore_ascii_case("lua") {
        return refuse(format!("ERR Engine '{engine}' not found"));
    }
    Ok(name)
}

fn list(libraries: &Libraries, options: &[Bytes]) -> Outcome {
    let (mut pattern, mut with_code) = (None, false);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        if is(option, "withcode") && !with_code {
            with_code = true;
        } else if is(option, "libraryname") && pattern.is_none() {
            let Some(given) = options.next() else {
                return refuse("ERR library name argument was not given");
            };
            if let Some(problem) = too_long(given) {
                return Ok(problem);
            }
            pattern = Some(given);
        } else {
            return refuse(format!("ERR Unknown argument {}", option.escape_ascii()));
        }
    }
    let chosen =
        |library: &&Arc<Library>| pattern.is_none_or(|pattern| matches(pattern, library.name.as_bytes()));
    Ok(Reply::Array(libraries.all().filter(chosen).map(|library| describe(library, with_code)).collect()))
}

fn describe(library: &Library, with_code: bool) -> Reply {
    let functions = library.functions.iter().map(describe_function).collect();
    let mut about = vec![
        (Reply::text("library_name"), Reply::text(library.name.clone())),
        (Reply::text("engine"), Reply::text("LUA")),
        (Reply::text("functions"), Reply::Array(functions)),
    ];
    if with_code {
        about.push((Reply::text("library_code"), Reply::Bulk(library.code.clone())));
    }
    Reply::Map(about)
}

fn describe_function(function: &Function) -> Reply {
    let flags = FLAGS.iter().filter(|(_, flag)| function.flags & flag != 0);
    Reply::Map(vec![
        (Reply::text("name"), Reply::text(function.name.clone())),
        (Reply::text("description"), function.description.clone().map_or(Reply::Null, Reply::Bulk)),
        (Reply::text("flags"), Reply::Set(flags.map(|(name, _)| Reply::Simple(name)).collect())),
    ])
}

fn stats(libraries: usize, functions: usize) -> Reply {
    let count = |count| Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX));
    let lua = vec![
        (Reply::text("libraries_count"), count(libraries)),
        (Reply::text("functions_count"), count(functions)),
    ];
    Reply::Map(vec![
        // What runs is never in the way of other clients.
        (Reply::text("running_script"), Reply::Null),
        (Reply::text("engines"), Reply::Map(vec![(Reply::text("LUA"), Reply::Map(lua))])),
    ])
}
