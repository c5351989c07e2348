//! A Lua state that runs scripts, one after the other.
//!
//! **Invariant: Bounded.** A state has at most [`MEMORY_MAX`] bytes, and a script as many instructions as its time
//! allows: every [`INSTRUCTIONS`] it is asked whether it is to end. No function in C takes long without asking; see
//! `prelude.lua` for those that are replaced. A state whose script was ended is not used again.

use super::cache::Script;
use super::calls::Calls;
use super::convert;
use super::native::{self, Located, MEMORY_MAX, PRELUDE, Shared, error_text};
use super::stop::{Ended, Stop, TIME_MAX};
use crate::resp::keys::{Failed, Problem};
use crate::resp::reply::Reply;
use bytes::Bytes;
use mlua::chunk::ChunkMode;
use mlua::{Function, HookTriggers, Lua, LuaOptions, StdLib, Table, Value, VmState};
use quoin_core::function::{self, Library};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const INSTRUCTIONS: u32 = 1_000;
/// Compiled scripts that a state keeps.
const COMPILED_MAX: usize = 500;
/// A state that holds more than this after a script, its garbage not counted, forgets what it has compiled.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// See the module.
pub(super) struct Machine {
    lua: Lua,
    environment: Table,
    run: Function,
    load_library: Function,
    run_function: Function,
    /// Scripts, by their SHA1.
    compiled: HashMap<String, Function>,
    /// Libraries, by their names.
    loaded: HashMap<String, Loaded>,
    shared: Shared,
    broken: bool,
}

/// A library whose functions can be called.
struct Loaded {
    code: Bytes,
    functions: HashMap<String, Function>,
}

/// What is run.
#[derive(Clone, Copy)]
pub(super) enum Callee<'a> {
    Script(&'a Script),
    /// A function of a library, by its name.
    Function(&'a Library, &'a str),
}

impl Callee<'_> {
    /// As errors call it.
    fn name(&self) -> &str {
        match self {
            Self::Script(script) => &script.sha,
            Self::Function(_, name) => name,
        }
    }
}

impl Machine {
    /// # Errors
    /// There is no memory for it.
    pub(super) fn new(kills: Arc<AtomicU64>) -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        lua.set_memory_limit(MEMORY_MAX)?;
        let shared =
            Shared { stop: Arc::new(Stop::new(kills)), failed_at: Arc::default(), version: Arc::default() };
        let native = native::table(&lua, &shared)?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name(PRELUDE).set_mode(ChunkMode::Text);
        let (environment, run, load_library, run_function) = prelude.call(native)?;
        let stop = Arc::clone(&shared.stop);
        let often = HookTriggers::new().every_nth_instruction(INSTRUCTIONS);
        lua.set_global_hook(often, move |_, _| stop.check().map(|()| VmState::Continue))?;
        Ok(Self {
            lua,
            environment,
            run,
            load_library,
            run_function,
            compiled: HashMap::new(),
            loaded: HashMap::new(),
            shared,
            broken: false,
        })
    }

    /// The script as a function, which stays compiled.
    ///
    /// # Errors
    /// It is not Lua, says the text.
    pub(super) fn compile(&mut self, script: &Script) -> Result<Function, String> {
        if let Some(function) = self.compiled.get(&script.sha) {
            return Ok(function.clone());
        }
        if self.compiled.len() >= COMPILED_MAX {
            self.compiled.clear();
        }
        let compiled = self.compile_chunk(&script.chunk, "@user_script");
        let function =
            compiled.map_err(|text| format!("ERR Error compiling script (new function): {text}"))?;
        self.compiled.insert(script.sha.clone(), function.clone());
        Ok(function)
    }

    fn compile_chunk(&self, chunk: &[u8], name: &str) -> Result<Function, String> {
        let chunk = self.lua.load(chunk).set_name(name).set_mode(ChunkMode::Text);
        chunk.set_environment(self.environment.clone()).into_function().map_err(|error| match error {
            mlua::Error::SyntaxError { message, .. } => message,
            other => error_text(&other),
        })
    }

    /// Runs a library's text, without commands, for at most `time`. Returns what it registers, which stays ready to be
    /// called.
    ///
    /// # Errors
    /// It is not Lua, or fails, or registers nothing.
    pub(super) fn load(
        &mut self,
        name: &str,
        code: &Bytes,
        time: Duration,
    ) -> Result<Vec<function::Function>, String> {
        // The first line stays as an empty one, for the numbers of lines.
        let chunk = &code[code.iter().position(|byte| *byte == b'\n').unwrap_or(code.len())..];
        self.shared.stop.begin(time);
        let chunk = self.compile_chunk(chunk, "@user_function");
        let chunk = chunk.map_err(|text| format!("ERR Error compiling function: {text}"))?;
        let registered = self.load_library.call::<(bool, Value)>(chunk);
        if self.shared.stop.has_ended() {
            self.broken = true;
            return Err(match self.shared.stop.why() {
                Ended::Time => {
                    format!("ERR FUNCTION LOAD timeout: it ran for more than {} ms", TIME_MAX.as_millis())
                }
                killed => ended(killed),
            });
        }
        let failed = |text: &str| {
            format!("ERR Error registering functions: {}", text.strip_prefix("ERR ").unwrap_or(text))
        };
        let registered = match registered {
            Ok((true, Value::Table(registered))) => registered,
            Ok((_, error)) => return Err(failed(&error_of_script(&error))),
            Err(error) => {
                self.broken = true;
                return Err(failed(&error_text(&error)));
            }
        };
        let taken = registered.sequence_values::<Table>().map(|entry| taken_apart(&entry?));
        let taken: Vec<_> =
            taken.collect::<mlua::Result<_>>().map_err(|error| failed(&error_text(&error)))?;
        if taken.is_empty() {
            return Err("ERR No functions registered".into());
        }
        let (functions, callbacks): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        let names = functions.iter().map(|function| function.name.clone());
        let loaded = Loaded { code: code.clone(), functions: names.zip(callbacks).collect() };
        self.loaded.insert(name.to_owned(), loaded);
        Ok(functions)
    }

    /// A function of a library, which is loaded if need be.
    fn function(&mut self, library: &Library, name: &str, time: Duration) -> Result<Function, String> {
        let is_loaded = |loaded: &Loaded| loaded.code == library.code;
        if !self.loaded.get(&library.name).is_some_and(is_loaded) {
            self.load(&library.name, &library.code, time)?;
        }
        let function = self.loaded.get(&library.name).and_then(|loaded| loaded.functions.get(name));
        // Its text says by itself what it registers, so it may say something else each time.
        function.cloned().ok_or_else(|| "ERR Function not found".into())
    }

    /// Runs a script or function for at most `time`.
    ///
    /// # Errors
    /// The script's own, or a command's that ends it.
    pub(super) fn run(
        &mut self,
        callee: Callee<'_>,
        (keys, arguments): (&[Bytes], &[Bytes]),
        time: Duration,
        calls: &mut Calls<'_, '_>,
    ) -> Result<Reply, Problem> {
        let (run, function) = match callee {
            Callee::Script(script) => (self.run.clone(), self.compile(script)),
            Callee::Function(library, name) => {
                (self.run_function.clone(), self.function(library, name, time))
            }
        };
        let function = function.map_err(Problem::Refused)?;
        let (lua, shared) = (&self.lua, &self.shared);
        *shared.failed_at.lock() = None;
        shared.version.store(2, Ordering::Relaxed);
        shared.stop.begin(time);
        let calling = &RefCell::new(&mut *calls);
        let ran = lua.scope(|scope| {
            let call = |protected| {
                scope
                    .create_function(move |lua, args| calling.borrow_mut().call(lua, args, protected, shared))
            };
            let texts = |texts: &[Bytes]| {
                let texts =
                    texts.iter().map(|text| lua.create_string(text)).collect::<Result<Vec<_>, _>>()?;
                lua.create_sequence_from(texts)
            };
            let given = (function, texts(keys)?, texts(arguments)?, call(false)?, call(true)?);
            run.call::<(bool, Value)>(given)
        });
        if let Some(failed) = calls.failed.take() {
            self.broken = true;
            return Err(Problem::Failed(failed));
        }
        if self.shared.stop.has_ended() {
            self.broken = true;
            return Err(Problem::Refused(ended(self.shared.stop.why())));
        }
        match ran {
            Ok((true, value)) => {
                let version = self.shared.version.load(Ordering::Relaxed);
                convert::to_reply(&value, version, calls.limits.response_bytes_max)
            }
            Ok((false, error)) => Err(Problem::Refused(self.failed(callee, &error))),
            Err(error) => {
                self.broken = true;
                Err(Problem::Refused(format!("ERR {}", error_text(&error))))
            }
        }
    }

    /// The text of an error that a script did not catch.
    fn failed(&self, callee: Callee<'_>, error: &Value) -> String {
        let text = error_of_script(error);
        match &*self.shared.failed_at.lock() {
            Some(Located { source, line }) => {
                format!("{text} script: {}, on {source}:{line}.", callee.name())
            }
            None => text,
        }
    }

    /// Makes it ready for the next script; false where it must not be used again.
    pub(super) fn tidy(&mut self) -> bool {
        if !self.broken && self.lua.used_memory() > KEPT_BYTES_MAX {
            self.broken = self.lua.gc_collect().is_err();
            if self.lua.used_memory() > KEPT_BYTES_MAX {
                self.compiled.clear();
                self.loaded.clear();
            }
        }
        !self.broken
    }
}

/// What a script's error says, its code first.
fn error_of_script(error: &Value) -> String {
    match error {
        Value::Table(table) => match table.raw_get::<Value>("err") {
            Ok(Value::String(text)) => text.to_string_lossy(),
            _ => "ERR the script failed with a table that has no field `err`".into(),
        },
        Value::String(text) => format!("ERR {}", text.to_string_lossy()),
        Value::Error(error) => format!("ERR {}", error_text(error)),
        other => format!("ERR {}", other.to_string().unwrap_or_default()),
    }
}

/// A function that a library has registered, and what is called for it.
fn taken_apart(entry: &Table) -> mlua::Result<(function::Function, Function)> {
    let description = entry.raw_get::<Option<mlua::LuaString>>("description")?;
    let description = description.map(|text| Bytes::copy_from_slice(&text.as_bytes()));
    let (name, flags) = (entry.raw_get("name")?, entry.raw_get("flags")?);
    Ok((function::Function { name, description, flags }, entry.raw_get("callback")?))
}

fn ended(why: Ended) -> String {
    match why {
        Ended::Time => {
            format!("ERR the script ran for more than {} ms: nothing was done", TIME_MAX.as_millis())
        }
        Ended::Killed => "ERR Script killed by user with SCRIPT KILL: nothing was done".into(),
    }
}

/// A command failed in a way that its script cannot go on from.
pub(super) fn fatal(failed: &mut Option<Failed>, why: Failed, stop: &Stop) -> mlua::Error {
    *failed = Some(why);
    stop.end();
    mlua::Error::runtime("the script cannot go on")
}
