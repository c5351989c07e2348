//! How a transfer is done, besides its kind. Few transfers have any of it, so a plain one pays for none.
//!
//! In a command and in the journal, a varint whose low 3 bits are the transfer's kind, then a bit for each option:
//!
//! ```text
//! 0x08 balancing debit    0x10 balancing credit
//! ```
//!
//! An unknown bit is refused: a version that does not know an option must not do without it.

use crate::codec::{Malformed, Reader};

const BALANCING_DEBIT: u64 = 0x08;
const BALANCING_CREDIT: u64 = 0x10;
const KNOWN: u64 = BALANCING_DEBIT | BALANCING_CREDIT;

/// How a transfer is done, besides its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Moves at most the amount, and no more than the debit account may give; see `balancing.rs`.
    pub balancing_debit: bool,
    /// Moves at most the amount, and no more than the credit account may take.
    pub balancing_credit: bool,
}

impl Options {
    /// Whether the amount is the most to move, not what is moved; 0 is then no bound.
    pub fn is_balancing(self) -> bool {
        self.balancing_debit || self.balancing_credit
    }

    /// The options' bits; 0 for none.
    pub(super) fn bits(self) -> u64 {
        let bit = |wanted: bool, bit: u64| if wanted { bit } else { 0 };
        bit(self.balancing_debit, BALANCING_DEBIT) | bit(self.balancing_credit, BALANCING_CREDIT)
    }

    /// A transfer's kind and its options.
    ///
    /// # Errors
    /// There are none, or unknown ones.
    pub(super) fn decode_from(from: &mut Reader<&[u8]>) -> Result<(u8, Self), Malformed> {
        let bits = from.varint()?;
        let (tag, options) = (bits & 0x07, bits & !0x07);
        if options == 0 || options & !KNOWN != 0 {
            return Err(from.malformed());
        }
        let has = |bit| options & bit != 0;
        Ok((
            tag as u8,
            Self { balancing_debit: has(BALANCING_DEBIT), balancing_credit: has(BALANCING_CREDIT) },
        ))
    }
}
