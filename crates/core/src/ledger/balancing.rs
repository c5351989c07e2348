//! Balancing transfers: they move as much as an account allows, at most their amount.
//!
//! A balancing debit takes no more than the debit account may give by its rule, a balancing credit gives no more than
//! the credit account may take by its maximum. An account without a bound counts as one whose bound is zero: it is
//! brought to zero, and not past it. That is what TigerBeetle's flags of these names do.

use super::code::Code;
use super::hot::Slot;
use super::options::Options;

/// What a balancing transfer moves between these accounts, at most `most`; 0 is no bound.
///
/// # Errors
/// Nothing can be moved, and no account is to be closed.
pub(super) fn amount(options: Options, most: u128, giver: &Slot, taker: &Slot) -> Result<u128, Code> {
    let mut amount = if most == 0 { u128::MAX } else { most };
    if options.balancing_debit {
        amount = amount.min(giver.debits_left());
        if amount == 0 && !options.is_closing() {
            return Err(Code::InsufficientFunds);
        }
    }
    if options.balancing_credit {
        amount = amount.min(taker.credits_left());
        if amount == 0 && !options.is_closing() {
            return Err(Code::MaximumExceeded);
        }
    }
    Ok(amount)
}

impl Slot {
    /// How much it may give.
    fn debits_left(&self) -> u128 {
        let balances = self.balances();
        let spent = balances.debits_posted.saturating_add(balances.debits_pending);
        balances.credits_posted.saturating_add(self.allowance().unwrap_or(0)).saturating_sub(spent)
    }

    /// How much it may take.
    fn credits_left(&self) -> u128 {
        let balances = self.balances();
        let taken = balances.credits_posted.saturating_add(balances.credits_pending);
        let ceiling = Some(self.ceiling()).filter(|ceiling| *ceiling != u128::MAX).unwrap_or(0);
        balances.debits_posted.saturating_add(ceiling).saturating_sub(taken)
    }
}
