//! The transfers of a run: between which accounts, how many together, with which ids.

use crate::client::Channel;
use crate::client::ledger::{create_accounts, ledger, transfer};
use crate::random::Random;
use anyhow::Result;
use clap::Args;
use quoin_proto::quoin::ledger::v1 as pb;
use std::sync::Arc;
use uuid::Uuid;

/// The deposit to each account, in cents: more than any run can spend.
const FUNDS: u64 = 1 << 50;

/// The shape of a run's transfers.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Number of accounts that money moves between
    #[arg(long, default_value_t = 10_000)]
    pub(super) accounts: u64,
    /// Transfers per batch (cases batch and stream)
    #[arg(long, default_value_t = 8190, value_parser = clap::value_parser!(u32).range(1..=8190))]
    pub(super) batch: u32,
    /// Let all transfers touch one account
    #[arg(long)]
    hot: bool,
    /// Random ids, instead of ids that grow with time
    #[arg(long)]
    random_ids: bool,
}

/// A shape and the accounts made for it.
pub(super) struct Plan {
    shape: Shape,
    /// The first account's id; the others follow it.
    first: u128,
}

impl Plan {
    /// Creates the accounts and deposits money to each.
    pub(super) async fn prepare(shape: Shape, channel: &Channel) -> Result<Arc<Self>> {
        let first = Uuid::now_v7().as_u128();
        create_accounts(&mut ledger(channel.clone()), first, shape.accounts, FUNDS).await?;
        Ok(Arc::new(Self { shape, first }))
    }

    /// A maker of transfers for client number `number`.
    pub(super) fn maker(self: &Arc<Self>, number: usize) -> Maker {
        Maker { plan: Arc::clone(self), random: Random::seeded(number as u64 + 1) }
    }
}

/// Makes transfers.
#[derive(Clone)]
pub(super) struct Maker {
    plan: Arc<Plan>,
    random: Random,
}

impl Maker {
    /// Debit and credit account of the next transfer; one of them is the hot account, if there is one.
    pub(super) fn pair(&mut self) -> (u128, u128) {
        let Shape { accounts, hot, .. } = self.plan.shape;
        let one = self.random.next() % accounts;
        let other = if hot { 0 } else { self.random.next() % accounts };
        let one = if one == other { (one + 1) % accounts } else { one };
        let id = |number| self.plan.first + u128::from(number);
        let (one, other) = (id(one), id(other));
        if self.random.next() & 1 == 0 { (one, other) } else { (other, one) }
    }

    pub(super) fn id(&mut self) -> u128 {
        if self.plan.shape.random_ids {
            u128::from(self.random.next()) << 64 | u128::from(self.random.next())
        } else {
            Uuid::now_v7().as_u128()
        }
    }

    /// An amount of 1 to 99 cents.
    pub(super) fn cents(&mut self) -> u64 {
        1 + self.random.next() % 99
    }

    /// A request with the next `count` transfers.
    fn request(&mut self, tag: u64, count: usize) -> pb::CreateTransfersRequest {
        let one = |maker: &mut Self| {
            let (id, (debit, credit)) = (maker.id(), maker.pair());
            transfer(id, debit, credit, maker.cents())
        };
        let transfers = (0..count).map(|_| one(self)).collect();
        pb::CreateTransfersRequest { tag, transfers, balances: false, dry_run: false }
    }

    pub(super) fn single(&mut self) -> pb::CreateTransfersRequest {
        self.request(0, 1)
    }

    pub(super) fn batch(&mut self, tag: u64) -> pb::CreateTransfersRequest {
        self.request(tag, self.plan.shape.batch as usize)
    }
}
