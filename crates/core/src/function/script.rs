//! Commands of the function face in golden scripts, see [`crate::golden`].
//!
//! ```text
//! load [replace | flush] LIBRARY=FUNCTION,FUNCTION ...   (a text with the names stands for the code)
//! delete LIBRARY
//! big LIBRARY BYTES   (a library with one function, and so much code)
//! reopen
//! show
//! ```

#![allow(clippy::unwrap_used, reason = "test code, which other crates' tests run too")]

use super::{Existing, Function, Library, Load, Operation};
use crate::golden::{Line, Vocabulary, World, number};
use crate::{Event, Reply};

pub(crate) const VOCABULARY: Vocabulary = Vocabulary { face: "function", run, show_event };

fn run(world: &mut World<'_>, line: &Line<'_>) -> bool {
    let Line { name: command, words, .. } = line;
    let operation = match *command {
        "load" => {
            let (existing, words) = match words.first() {
                Some(&"replace") => (Existing::Replaced, &words[1..]),
                Some(&"flush") => (Existing::Deleted, &words[1..]),
                _ => (Existing::Stay, &words[..]),
            };
            let libraries = words.iter().map(|word| library(word)).collect();
            Operation::Load(Load { libraries, existing: existing.into() })
        }
        "delete" => Operation::Delete(words[0].into()),
        "big" => {
            let code = "x".repeat(number(words[1])).into();
            let library = Library { code, ..library(&format!("{0}={0}", words[0])) };
            Operation::Load(Load { libraries: vec![library], existing: 0 })
        }
        "show" => return show(world),
        _ => return false,
    };
    let (reply, _) = world.apply(operation.into_command());
    world.say(match reply {
        Reply::Function(Ok(())) => "done".into(),
        Reply::Function(Err(refusal)) => format!("refused: {refusal}"),
        other => format!("{other:?}"),
    });
    true
}

fn library(word: &str) -> Library {
    let (name, functions) = word.split_once('=').unwrap();
    let function = |name: &str| Function { name: name.into(), ..Function::default() };
    let functions = functions.split(',').filter(|name| !name.is_empty()).map(function).collect();
    Library { name: name.into(), code: word.to_owned().into(), functions }
}

fn show(world: &mut World<'_>) -> bool {
    let libraries = world.machines.memory().functions;
    world.say(format!("{:?} libraries and functions", libraries.count()));
    for library in libraries.all() {
        let functions: Vec<_> = library.functions.iter().map(|function| &function.name).collect();
        world.say(format!("{} {functions:?} {} bytes", library.name, library.code.len()));
        assert!(functions.iter().all(|name| libraries.find(name).unwrap().0 == library));
    }
    true
}

fn show_event(world: &mut World<'_>, event: &Event) {
    world.say(format!("event {}", event.revision));
}
