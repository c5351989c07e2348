//! How a transfer is done, besides its kind. Few transfers have any of it, so a plain one pays for none.
//!
//! In a command and in the journal, bits of a transfer's further flags, see transfer.rs:
//!
//! ```text
//! 0x08 balancing debit    0x10 balancing credit    0x20 closing debit    0x40 closing credit
//! ```
//!
//! An unknown bit is refused: a version that does not know an option must not do without it.

const BALANCING_DEBIT: u64 = 0x08;
const BALANCING_CREDIT: u64 = 0x10;
const CLOSING_DEBIT: u64 = 0x20;
const CLOSING_CREDIT: u64 = 0x40;
/// The bits of all options.
pub(super) const OPTIONS: u64 = BALANCING_DEBIT | BALANCING_CREDIT | CLOSING_DEBIT | CLOSING_CREDIT;

/// How a transfer is done, besides its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Moves at most the amount, and no more than the debit account may give; see `balancing.rs`.
    pub balancing_debit: bool,
    /// Moves at most the amount, and no more than the credit account may take.
    pub balancing_credit: bool,
    /// Closes the debit account for as long as this pending transfer is open.
    pub closing_debit: bool,
    /// Closes the credit account for as long as this pending transfer is open.
    pub closing_credit: bool,
}

impl Options {
    /// Whether the amount is the most to move, not what is moved; 0 is then no bound.
    pub fn is_balancing(self) -> bool {
        self.balancing_debit || self.balancing_credit
    }

    /// Whether it closes an account.
    pub fn is_closing(self) -> bool {
        self.closing_debit || self.closing_credit
    }

    /// The options' bits; 0 for none.
    pub(super) fn bits(self) -> u64 {
        let bit = |wanted: bool, bit: u64| if wanted { bit } else { 0 };
        bit(self.balancing_debit, BALANCING_DEBIT)
            | bit(self.balancing_credit, BALANCING_CREDIT)
            | bit(self.closing_debit, CLOSING_DEBIT)
            | bit(self.closing_credit, CLOSING_CREDIT)
    }

    /// The options whose bits are set.
    pub(super) fn of(bits: u64) -> Self {
        let has = |bit| bits & bit != 0;
        Self {
            balancing_debit: has(BALANCING_DEBIT),
            balancing_credit: has(BALANCING_CREDIT),
            closing_debit: has(CLOSING_DEBIT),
            closing_credit: has(CLOSING_CREDIT),
        }
    }
}
