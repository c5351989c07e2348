//! What a function command does. The rules are Redis's.

use super::command::{Command, Existing, Load, Operation};
use super::libraries::Libraries;
use super::record::{BYTES_MAX, CODE_BYTES_MAX, ENTRIES_MAX, FLAGS, Library, is_name, library_key};
use super::reply::{Refusal, Reply};
use crate::codec::decode_command;
use crate::store::{StoreError, View};
use crate::tx::Tx;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The function face's machine: the store holds its state; this holds what is derived from it.
#[derive(Debug)]
pub struct Machine {
    libraries: Arc<Libraries>,
}

impl Machine {
    /// The machine of a store that may hold state already.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(view: View<'_>) -> Result<Self, StoreError> {
        Ok(Self { libraries: Arc::new(Libraries::open(view)?) })
    }

    /// The libraries as readers see them.
    pub fn libraries(&self) -> &Arc<Libraries> {
        &self.libraries
    }

    /// Applies one command.
    pub fn apply(&mut self, tx: &mut Tx<'_>, bytes: Bytes) -> Reply {
        let Some(Command { operation: Some(operation) }) = decode_command(bytes) else {
            return Err(Refusal::Malformed);
        };
        // **Invariant: Nothing half.** What is refused was done to a copy.
        let mut after = (*self.libraries).clone();
        match operation {
            Operation::Load(load) => perform(&mut after, load)?,
            Operation::Delete(name) if after.remove(&name) => {}
            Operation::Delete(_) => return Err(Refusal::LibraryNotFound),
        }
        for name in self.libraries.by_name.keys().filter(|name| !after.by_name.contains_key(*name)) {
            tx.delete(&library_key(name));
        }
        let is_old = |library: &Library| {
            self.libraries.by_name.get(&library.name).is_some_and(|old| **old == *library)
        };
        for library in after.all().filter(|library| !is_old(library)) {
            tx.put(&library_key(&library.name), library.encode_to_vec().into());
        }
        self.libraries = Arc::new(after);
        Ok(())
    }
}

fn perform(libraries: &mut Libraries, Load { libraries: new, existing }: Load) -> Result<(), Refusal> {
    let existing = Existing::try_from(existing).map_err(|_| Refusal::Malformed)?;
    if existing == Existing::Deleted {
        *libraries = Libraries::default();
    }
    let names: BTreeSet<&str> = new.iter().map(|library| &*library.name).collect();
    if names.len() != new.len() {
        return Err(Refusal::Malformed);
    }
    if existing == Existing::Replaced {
        for name in &names {
            libraries.remove(name);
        }
    }
    for library in new {
        check(&library)?;
        if libraries.by_name.contains_key(&library.name) {
            return Err(Refusal::LibraryExists(library.name));
        }
        if let Some(function) =
            library.functions.iter().find(|function| libraries.find(&function.name).is_some())
        {
            return Err(Refusal::FunctionExists(function.name.clone()));
        }
        libraries.add(Arc::new(library));
        let (count, functions) = libraries.count();
        if count + functions > ENTRIES_MAX {
            return Err(Refusal::TooMuch { what: "names", max: ENTRIES_MAX });
        }
        if libraries.bytes > BYTES_MAX {
            return Err(Refusal::TooMuch { what: "bytes", max: BYTES_MAX });
        }
    }
    Ok(())
}

/// Refuses what whoever loads a library has made sure of.
fn check(library: &Library) -> Result<(), Refusal> {
    let names: BTreeSet<String> =
        library.functions.iter().map(|function| function.name.to_ascii_lowercase()).collect();
    let all: u32 = FLAGS.iter().map(|(_, flag)| flag).sum();
    let sound = is_name(&library.name)
        && library.code.len() <= CODE_BYTES_MAX
        && !names.is_empty()
        && names.len() == library.functions.len()
        && library.functions.iter().all(|function| is_name(&function.name) && function.flags & !all == 0);
    if sound { Ok(()) } else { Err(Refusal::Malformed) }
}
