//! The results of transfers.

use crate::codec::Malformed;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal, $text:literal;)*) => {
        /// The result of a transfer. The numbers are on disk and on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Code {
            $($(#[$doc])* $name = $number,)*
        }

        impl Code {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its stable name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// What it means.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }

        impl TryFrom<u8> for Code {
            type Error = Malformed;

            fn try_from(number: u8) -> Result<Self, Malformed> {
                match number {
                    $($number => Ok(Self::$name),)*
                    _ => Err(Malformed { what: "result code" }),
                }
            }
        }
    };
}

codes! {
    /// Done.
    Ok = 0, "ok", "done";
    /// The debit account's rule forbids it.
    InsufficientFunds = 1, "insufficient_funds", "the debit account has too little, by its rule";
    /// No such debit account.
    DebitUnknown = 2, "debit_account_unknown", "the debit account does not exist";
    /// No such credit account.
    CreditUnknown = 3, "credit_account_unknown", "the credit account does not exist";
    /// The debit account is frozen.
    DebitFrozen = 4, "debit_account_frozen", "the debit account is frozen";
    /// The credit account is frozen.
    CreditFrozen = 5, "credit_account_frozen", "the credit account is frozen";
    /// The debit account is closed.
    DebitClosed = 6, "debit_account_closed", "the debit account is closed";
    /// The credit account is closed.
    CreditClosed = 7, "credit_account_closed", "the credit account is closed";
    /// The accounts' currencies differ, or the transfer expects another.
    CurrencyMismatch = 8, "currency_mismatch",
        "the accounts and the transfer are not of one currency; exchange with two linked transfers";
    /// Debit and credit account are the same.
    SameAccount = 9, "same_account", "debit and credit account are the same";
    /// Nothing to move.
    ZeroAmount = 10, "zero_amount", "the amount is zero";
    /// No such pending transfer.
    PendingUnknown = 11, "pending_unknown", "the pending transfer does not exist or was refused";
    /// The named transfer is not a pending one.
    NotPending = 12, "not_pending", "the transfer is not a pending one";
    /// Posted already.
    AlreadyPosted = 13, "already_posted", "the pending transfer was posted already";
    /// Voided already.
    AlreadyVoided = 14, "already_voided", "the pending transfer was voided already";
    /// It has expired.
    PendingExpired = 15, "pending_expired", "the pending transfer has expired";
    /// More than was reserved.
    ExceedsPending = 16, "exceeds_pending", "the amount is larger than the pending transfer's";
    /// Another transfer of the group was refused.
    LinkedFailed = 17, "linked_failed", "another transfer of the linked group was refused";
    /// A sum would exceed 128 bits.
    Overflow = 18, "overflow", "an account's sum would exceed 2^128 minor units";
    /// The id was used before with other content. Not recorded.
    IdConflict = 19, "id_conflict", "the id was used before with other content";
    /// The credit account's maximum balance forbids it.
    MaximumExceeded = 20, "maximum_exceeded",
        "the credit account would hold more than its maximum balance, with what is pending";
    /// No such transfer to revert.
    RevertedUnknown = 21, "reverted_unknown", "the transfer to revert does not exist, was refused, or is of the same linked group";
    /// The named transfer has moved nothing, or is a revert.
    NotRevertible = 22, "not_revertible",
        "only a single transfer and a post can be reverted: void a pending one, and repeat a reverted one";
    /// Reverted already.
    AlreadyReverted = 23, "already_reverted", "the transfer was reverted already";
    /// The debit account is not yet active.
    DebitPending = 24, "debit_account_pending", "the debit account is pending: activate it first";
    /// The credit account is not yet active.
    CreditPending = 25, "credit_account_pending", "the credit account is pending: activate it first";
    /// The client time of an imported transfer is out of order.
    ImportedTime = 26, "imported_time",
        "the client time of an imported transfer must be in the past, and later than that of the last one imported";
    /// An account of the ledger's own was to be closed.
    ClosingReserved = 27, "closing_reserved", "the ledger's own accounts cannot be closed";
    /// References are unique, and another transfer has this one.
    ReferenceTaken = 40, "reference_taken", "another transfer has the reference, and references are unique";
}
