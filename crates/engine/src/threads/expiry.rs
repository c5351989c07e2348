//! How a leader lets expire what is due: one entry at a time, of about so many keys as are applied in a while that
//! others do not notice. The replica paces these entries, see [`Replica::propose_paced`].
//!
//! [`Replica::propose_paced`]: quoin_consensus::replica::Replica::propose_paced

use quoin_consensus::replica::{Lost, Proposal};
use quoin_core::limits::EXPIRIES_MAX;
use quoin_core::{Reply, system};
use tokio::sync::oneshot::{self, Receiver, error::TryRecvError};

/// Keys of the first step.
const STEP_BEGIN: u32 = 500;
/// The least: where each has to be read from a slow disk.
const STEP_MIN: u32 = 10;
const STEP_MAX: u32 = EXPIRIES_MAX as u32;
/// How long this replica should take to apply a step, in microseconds.
const STEP_US: u64 = 10_000;

#[derive(Default)]
pub(super) struct Expiry {
    /// Keys of the last step; 0: none came before it.
    step: u32,
    /// Answered when the step that was proposed last is applied here, or lost.
    under_way: Option<Receiver<Result<Reply, Lost>>>,
}

impl Expiry {
    /// Nothing is due any more.
    pub(super) fn rest(&mut self) {
        self.step = 0;
    }

    /// The next step, unless one is under way. It took `apply_us` to apply the one before it.
    pub(super) fn next(&mut self, apply_us: u64) -> Option<Proposal> {
        if let Some(answer) = &mut self.under_way
            && answer.try_recv() == Err(TryRecvError::Empty)
        {
            return None;
        }
        self.step = match apply_us {
            _ if self.step == 0 => STEP_BEGIN,
            us if us > 2 * STEP_US => (self.step / 2).max(STEP_MIN),
            us if us < STEP_US / 2 => (self.step * 2).min(STEP_MAX),
            _ => self.step,
        };
        let (waiter, answer) = oneshot::channel();
        self.under_way = Some(answer);
        Some(Proposal { command: system::Operation::Expire(self.step).into_command(), waiter })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quoin_core::Command;

    fn step(expiry: &mut Expiry, apply_us: u64) -> Command {
        expiry.next(apply_us).expect("none is under way").command
    }

    #[test]
    fn a_step_is_as_large_as_is_applied_unnoticed_and_one_is_under_way_at_a_time() {
        let of = |keys| system::Operation::Expire(keys).into_command();
        let mut expiry = Expiry::default();
        let first = expiry.next(0).unwrap();
        assert_eq!(first.command, of(500));
        assert!(expiry.next(1).is_none());
        drop(first);
        // Nobody waits for what is returned here, so it counts as over at once.
        assert_eq!(step(&mut expiry, 8_000), of(500));
        assert_eq!(step(&mut expiry, 30_000), of(250));
        for _ in 0..9 {
            step(&mut expiry, 90_000);
        }
        assert_eq!(step(&mut expiry, 90_000), of(STEP_MIN));
        for _ in 0..9 {
            step(&mut expiry, 100);
        }
        assert_eq!(step(&mut expiry, 100), of(STEP_MAX));
        expiry.rest();
        assert_eq!(step(&mut expiry, 0), of(500));
    }
}
