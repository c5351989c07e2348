//! Golden scripts: `src/<face>/testscripts/*.txt` hold commands, each after `> `, and below each command its
//! answer.
//!
//! The scripts of every face run on every store: in this crate's tests on the memory store, and with the
//! feature `testing` on the stores of other crates, see [`run_all`]. Each script runs twice: with the
//! machines kept from command to command, and with machines reopened for each. The answers must agree, so
//! nothing that machines remember besides the store can change an answer.
//!
//! `UPDATE_GOLDEN=1 cargo test -p quoin-core golden` rewrites the answers; read the diff before you keep it.
//!
//! A face's `script.rs` documents its own commands. These belong to all faces:
//!
//! ```text
//! time MS            advance the clock, let what is due expire, and show the events
//! term               elect another leader
//! compact REVISION   compact history
//! events FROM        show the recorded events from a revision on
//! reopen             open the machines from the store again
//! ```

#![allow(clippy::unwrap_used, reason = "test code, which other crates' tests run too")]

use crate::faces::VOCABULARIES;
use crate::{Batch, Command, Event, Index, Machines, Progress, Reply, Revision, Stamp, Store, Term, View};
use crate::{history, system};
use std::fmt::Write;
use std::path::Path;
use std::str::FromStr;

/// Runs every script of every face. For each, `replay` must make an empty store and return what
/// [`Script::replay`] answers on it:
///
/// ```
/// use quoin_core::{golden, store::MemoryStore};
///
/// golden::run_all(|script| script.replay(&MemoryStore::new(), &mut |_| {}));
/// ```
///
/// # Panics
/// A script's answers are not those recorded, or a face has no scripts.
pub fn run_all(mut replay: impl FnMut(&Script<'_>) -> String) {
    let faces = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folder = |face: &str| faces.join(face).join("testscripts");
    for vocabulary in VOCABULARIES {
        check(&folder(vocabulary.face), |text| {
            let [kept, reopened] = [false, true].map(|reopens| replay(&Script { vocabulary, text, reopens }));
            assert_eq!(kept, reopened, "reopened machines answer differently");
            kept
        });
    }
    for entry in std::fs::read_dir(&faces).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let runs = VOCABULARIES.iter().any(|vocabulary| vocabulary.face == name);
        assert!(runs || !folder(&name).exists(), "nothing runs the scripts of {name}");
    }
}

/// Replays every script in `folder` and compares: `replay` gets a script's text and returns it with the
/// answers of now.
///
/// # Panics
/// A script's answers are not those recorded, or there are no scripts.
pub fn check(folder: &Path, mut replay: impl FnMut(&str) -> String) {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no scripts in {}", folder.display());
    for path in paths {
        let recorded = std::fs::read_to_string(&path).unwrap();
        let answered = replay(&recorded);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, answered).unwrap();
        } else {
            compare(&path, &recorded, &answered);
        }
    }
}

fn compare(path: &Path, recorded: &str, answered: &str) {
    assert!(recorded == answered, "{} answers differently now:\n{answered}", path.display());
}

/// The lines of a script without its answers: comments, blank lines, and commands.
pub fn kept_lines(script: &str) -> impl Iterator<Item = &str> {
    script.lines().filter(|line| line.starts_with(['>', '#']) || line.is_empty())
}

/// One script, and how to run it.
pub struct Script<'a> {
    vocabulary: &'static Vocabulary,
    text: &'a str,
    reopens: bool,
}

impl Script<'_> {
    /// Runs the script on the empty `store` and returns it with its answers. Calls `applied` with the index
    /// of each applied entry; there the store may reorganize itself.
    ///
    /// # Panics
    /// The script has an unknown command, or the store fails.
    pub fn replay(&self, store: &dyn Store, applied: &mut dyn FnMut(Index)) -> String {
        let machines = Machines::open(store).unwrap();
        let show_event = self.vocabulary.show_event;
        let out = String::new();
        let mut world = World { store, machines, show_event, stamp: 1000, term: 1, out, applied };
        for line in kept_lines(self.text) {
            world.say(line);
            if let Some(command) = line.strip_prefix("> ") {
                let line = Line::parse(command);
                let known = (self.vocabulary.run)(&mut world, &line) || world.run(&line);
                assert!(known, "unknown command {:?}", line.name);
                if self.reopens {
                    world.reopen();
                }
            }
        }
        world.reopen();
        world.out
    }
}

/// What a face adds to scripts.
pub(crate) struct Vocabulary {
    /// The face's folder in `src`.
    pub(crate) face: &'static str,
    /// Runs a command; returns false if the face has no command of this name.
    pub(crate) run: fn(&mut World<'_>, &Line<'_>) -> bool,
    /// Says what an event changed.
    pub(crate) show_event: fn(&mut World<'_>, &Event),
}

/// A store, its machines, and what a script has been answered so far.
pub(crate) struct World<'a> {
    store: &'a dyn Store,
    pub(crate) machines: Machines,
    show_event: fn(&mut World<'_>, &Event),
    pub(crate) stamp: u64,
    term: u64,
    out: String,
    applied: &'a mut dyn FnMut(Index),
}

impl World<'_> {
    pub(crate) fn progress(&self) -> Progress {
        self.machines.progress()
    }

    pub(crate) fn view(&self) -> View<'_> {
        View::new(self.store, self.progress().sequence)
    }

    /// The state as of a revision that can be read, or the newest.
    pub(crate) fn view_at(&self, revision: Option<Revision>) -> View<'_> {
        let Some(revision) = revision else { return self.view() };
        let sequence = history::sequence_at(self.view(), &self.progress(), revision).unwrap().unwrap();
        self.view().at(sequence)
    }

    /// Answers a line.
    pub(crate) fn say(&mut self, text: impl AsRef<str>) {
        writeln!(self.out, "{}", text.as_ref()).unwrap();
    }

    /// Applies one command as an entry of its own.
    pub(crate) fn apply(&mut self, command: Command) -> (Reply, Vec<Event>) {
        let index = self.progress().index.next();
        let payload = Batch::encode(Stamp(self.stamp), &[command]);
        let outcome = self.machines.apply(self.store, index, Term(self.term), payload).unwrap();
        (self.applied)(index);
        (outcome.replies.into_iter().next().unwrap(), outcome.events)
    }

    pub(crate) fn compact(&mut self, revision: u64) -> system::Reply {
        match self.apply(system::Operation::Compact(revision).into_command()) {
            (Reply::System(reply), _) => reply,
            (other, _) => panic!("a system command answered {other:?}"),
        }
    }

    /// Shows the recorded events from a revision on, without the changes whose keys are not `wanted`.
    pub(crate) fn events(&mut self, from: Revision, wanted: impl Fn(&[u8]) -> bool) {
        let newest = self.progress().revision;
        let events: Vec<Event> =
            history::events(self.view(), from, newest, wanted).map(Result::unwrap).collect();
        events.iter().for_each(|event| (self.show_event)(self, event));
    }

    fn run(&mut self, line: &Line<'_>) -> bool {
        match line.name {
            "time" => self.time(line.number(0)),
            "term" => self.term += 1,
            "compact" => {
                let reply = Reply::System(self.compact(line.number(0)));
                self.say(format!("{reply:?}"));
            }
            "events" => self.events(Revision(line.number(0)), |_| true),
            "reopen" => self.reopen(),
            _ => return false,
        }
        true
    }

    /// Ticks while something is due, as an idle leader does.
    fn time(&mut self, ms: u64) {
        self.stamp += ms;
        while self.machines.next_deadline().is_some_and(|deadline| deadline.0 <= self.stamp) {
            let (_, events) = self.apply(system::Operation::Expire(1000).into_command());
            events.iter().for_each(|event| (self.show_event)(self, event));
        }
    }

    fn reopen(&mut self) {
        let fresh = Machines::open(self.store).unwrap();
        assert_eq!(fresh.progress(), self.progress());
        let late = |machines: &Machines| machines.next_deadline().map_or(u64::MAX, |deadline| deadline.0);
        assert!(late(&self.machines) <= late(&fresh), "machines expect the next deadline late");
        self.machines = fresh;
    }
}

/// A command, taken apart at its spaces.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    /// All behind the name.
    pub(crate) rest: &'a str,
    pub(crate) words: Vec<&'a str>,
}

impl<'a> Line<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        Self { name, rest, words: rest.split_whitespace().collect() }
    }

    /// The word at `place`, as a number.
    pub(crate) fn number<T: FromStr>(&self, place: usize) -> T {
        number(self.words[place])
    }

    /// The value of the option `name=value`.
    pub(crate) fn option(&self, name: &str) -> Option<&'a str> {
        self.words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    pub(crate) fn has(&self, flag: &str) -> bool {
        self.words.contains(&flag)
    }
}

pub(crate) fn number<T: FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv;
    use crate::store::MemoryStore;

    #[test]
    fn golden_scripts_answer_as_recorded() {
        run_all(|script| script.replay(&MemoryStore::new(), &mut |_| {}));
    }

    #[test]
    #[should_panic(expected = "answers differently now")]
    fn a_script_that_answers_differently_is_found() {
        let (vocabulary, recorded) = (&kv::script::VOCABULARY, "> put a 1\nrevision 3\n");
        let script = Script { vocabulary, text: recorded, reopens: false };
        compare(Path::new("a script"), recorded, &script.replay(&MemoryStore::new(), &mut |_| {}));
    }
}
