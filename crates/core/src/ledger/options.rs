//! How a transfer is done, besides its kind. Few transfers have any of it, so a plain one pays for none.
//!
//! In a command and in the journal, bits of a transfer's further flags, see transfer.rs:
//!
//! ```text
//! 0x08 balancing debit    0x10 balancing credit
//! ```
//!
//! An unknown bit is refused: a version that does not know an option must not do without it.

const BALANCING_DEBIT: u64 = 0x08;
const BALANCING_CREDIT: u64 = 0x10;
/// The bits of all options.
pub(super) const OPTIONS: u64 = BALANCING_DEBIT | BALANCING_CREDIT;

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

    /// The options whose bits are set.
    pub(super) fn of(bits: u64) -> Self {
        let has = |bit| bits & bit != 0;
        Self { balancing_debit: has(BALANCING_DEBIT), balancing_credit: has(BALANCING_CREDIT) }
    }
}
