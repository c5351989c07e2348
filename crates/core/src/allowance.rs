//! How much a log entry lets expire before its commands.
//!
//! **Invariant: Bounded.** An entry that others wait for lets little expire; very much at once goes in entries of its
//! own, whose size and pace the leader chooses. It says so in the log, so that replicas agree.

use crate::faces::{Command, Face};
use crate::limits::EXPIRIES_MAX;
use crate::system;

/// What an entry lets expire that does not say how much, and one more for each of its commands: so what expires
/// keeps up with what is written, however busy the cluster is.
const EXPIRIES_BESIDE: usize = 100;
/// What [`system::Operation::Tick`] lets expire.
const EXPIRIES_OF_TICK: usize = 1000;

/// How much an entry lets expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Leases, keys, nodes and transfers that are judged.
    pub(crate) most: usize,
    /// The entry is there for that: others do not wait for it.
    pub(crate) apart: bool,
}

impl Allowance {
    /// That of an entry with these commands.
    pub(crate) fn of(commands: &[Command]) -> Self {
        let system = commands.iter().filter(|command| command.face == Face::System);
        let said = system.filter_map(said).next();
        let most = said.unwrap_or(EXPIRIES_BESIDE + commands.len()).min(EXPIRIES_MAX);
        Self { most, apart: said.is_some() }
    }
}

fn said(command: &Command) -> Option<usize> {
    match system::decode(command.bytes.clone())? {
        system::Operation::Tick(_) => Some(EXPIRIES_OF_TICK),
        system::Operation::Expire(most) => Some(most as usize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use system::Operation;

    #[test]
    fn what_the_log_says_about_expiry_is_pinned() {
        for (operation, golden, most) in [
            (Operation::Tick(true), &b"\x30\x01"[..], 1000),
            (Operation::Expire(700), b"\x48\xbc\x05", 700),
            (Operation::Expire(u32::MAX), b"\x48\xff\xff\xff\xff\x0f", EXPIRIES_MAX),
        ] {
            let command = operation.into_command();
            assert_eq!(&command.bytes[..], golden);
            let allowed = Allowance::of(&[command]);
            assert_eq!((allowed.most, allowed.apart), (most, true));
        }
        assert_eq!(Allowance::of(&[]), Allowance { most: EXPIRIES_BESIDE, apart: false });
    }
}
