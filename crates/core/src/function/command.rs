//! The function face's commands: Protocol Buffers messages, whose fields are only ever added.

use super::record::{Function, Library};
use crate::charge::{Costs, Part};
use crate::codec::CommandMessage;
use bytes::Bytes;
use prost::Message;

/// One command, as it stands in the log.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Command {
    /// Which operation.
    #[prost(oneof = "Operation", tags = "1, 2")]
    pub(super) operation: Option<Operation>,
}

/// The operations of [`Command`].
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Operation {
    /// Add libraries.
    #[prost(message, tag = "1")]
    Load(Load),
    /// Delete the library of this name.
    #[prost(string, tag = "2")]
    Delete(String),
}

/// See [`Operation::Load`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Load {
    /// All of them are added, or none.
    #[prost(message, repeated, tag = "1")]
    pub libraries: Vec<Library>,
    /// An [`Existing`].
    #[prost(enumeration = "Existing", tag = "2")]
    pub existing: i32,
}

/// What becomes of libraries that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Existing {
    /// They stay: one of the same name is a reason to refuse.
    Stay = 0,
    /// Those of the same names are replaced.
    Replaced = 1,
    /// All are deleted.
    Deleted = 2,
}

static NOTHING: Costs = Costs(&[]);
static LIBRARY: Costs = Costs(&[(3, Part::Message(size_of::<Function>(), &NOTHING))]);
static LOAD: Costs = Costs(&[(1, Part::Message(size_of::<Library>(), &LIBRARY))]);
static COMMAND: Costs = Costs(&[(1, Part::Message(0, &LOAD))]);

impl CommandMessage for Command {
    const COSTS: &'static Costs = &COMMAND;
}

impl Operation {
    pub(crate) fn into_bytes(self) -> Bytes {
        Command { operation: Some(self) }.encode_to_vec().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_pinned() {
        let function = Function { name: "f".into(), description: Some("d".into()), flags: 1 };
        let library = Library { name: "l".into(), code: "c".into(), functions: vec![function] };
        let load = Load { libraries: vec![library], existing: Existing::Replaced.into() };
        for (operation, golden) in [
            (
                Operation::Load(load),
                &b"\x0a\x14\x0a\x10\x0a\x01l\x12\x01c\x1a\x08\x0a\x01f\x12\x01d\x18\x01\x10\x01"[..],
            ),
            (Operation::Delete("l".into()), b"\x12\x01l"),
        ] {
            let bytes = operation.clone().into_bytes();
            assert_eq!(bytes.escape_ascii().to_string(), golden.escape_ascii().to_string());
            assert_eq!(crate::codec::decode_command::<Command>(bytes).unwrap().operation, Some(operation));
        }
    }
}
