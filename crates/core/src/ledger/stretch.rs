//! A stretch of ids in which no id is recorded: an id in it is new without a lookup.
//!
//! Ids that grow with time come in the stretch above the newest of them, so transfers with such ids read
//! nothing. An id far ahead of time, or a random one, ends the stretch below it and no more: it must not make
//! the ids of the time until then slow. Once time has come to the end of the stretch, the next one is found by
//! one look at the recorded ids.
//!
//! **Invariant: Derived (memory).** Found in the store when a replica opens; forgetting any of it costs only
//! time.

use super::record::{self, IDS};
use crate::store::{Order, StoreError, View};
use crate::types::Stamp;

/// An id may be this far ahead of its batch's stamp to begin a stretch: as far as clients' clocks may be.
const AHEAD_MS_MAX: u64 = 60_000;

/// The ids above one and below the other, both exclusive. Empty until it is opened again, if both are equal.
#[derive(Debug)]
pub(super) struct Stretch {
    above: u128,
    below: u128,
}

impl Stretch {
    /// The stretch above the newest recorded id that is not ahead of time.
    pub(super) fn open(view: View<'_>, stamp: Stamp) -> Result<Self, StoreError> {
        let ahead = u128::from(stamp.0.saturating_add(AHEAD_MS_MAX)) + 1;
        let ahead = if ahead >> 48 == 0 { ahead << 80 } else { u128::MAX };
        let mut before = view.scan(&record::keyspace(IDS).0, &record::id_key(IDS, ahead), Order::Descending);
        let newest = before.next().transpose()?.map(|(key, _)| record::decode_id(&key[2..])).transpose()?;
        let mut stretch = Self { above: newest.unwrap_or(0), below: 0 };
        stretch.reopen(view)?;
        Ok(stretch)
    }

    /// Whether the id is known to be new. If not, it must be looked up.
    pub(super) fn holds(&self, id: u128) -> bool {
        self.above < id && id < self.below
    }

    /// Notes that an id was recorded at `stamp`.
    pub(super) fn record(&mut self, id: u128, stamp: Stamp) {
        let timely = record::is_ordered(id) && id >> 80 <= u128::from(stamp.0.saturating_add(AHEAD_MS_MAX));
        match (self.holds(id), timely) {
            (true, true) => self.above = id,
            (true, false) => self.below = id,
            (false, true) if id > self.above => (self.above, self.below) = (id, id),
            (false, _) => {}
        }
    }

    /// Finds the end of the stretch again, if time has come to it. All ids recorded so far must be in `view`.
    pub(super) fn reopen(&mut self, view: View<'_>) -> Result<(), StoreError> {
        if self.above < self.below {
            return Ok(());
        }
        let from = self.above.saturating_add(1);
        let mut after = view.scan(&record::id_key(IDS, from), &record::keyspace(IDS).1, Order::Ascending);
        let next = after.next().transpose()?.map(|(key, _)| record::decode_id(&key[2..])).transpose()?;
        self.below = next.unwrap_or(u128::MAX);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Response, Transfer, Transfers};
    use super::*;
    use crate::store::contract::Random;
    use crate::store::spied::{Spied, Spy};
    use crate::{Batch, Machines, Reply, Term};
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Counts lookups of ids.
    #[derive(Default)]
    struct Lookups(AtomicUsize);

    impl Spy for Lookups {
        fn before_get(&self, key: &[u8]) {
            if key.starts_with(&record::keyspace(IDS).0) {
                self.0.fetch_add(1, Relaxed);
            }
        }
    }

    type Counting = Spied<Lookups>;

    /// A UUID of version 7, of this moment.
    fn ordered(ms: u64, rest: u64) -> u128 {
        u128::from(ms) << 80 | 7 << 76 | u128::from(rest)
    }

    /// Whether each of the ids was recorded before.
    fn apply(store: &Counting, machines: &mut Machines, stamp: u64, ids: &[u128]) -> Vec<bool> {
        let mut transfers = Transfers::new(false);
        for id in ids {
            // Refused, for there are no accounts; recorded nevertheless.
            transfers.push(&Transfer::new(*id, Kind::Single { debit: 1, credit: 2, amount: 3 }));
        }
        let index = machines.progress().index.next();
        let payload = Batch::encode(Stamp(stamp), &[transfers.into_command()]);
        let outcome = machines.apply(store, index, Term(1), payload).unwrap();
        match &outcome.replies[..] {
            [Reply::Ledger(reply)] => match &reply.response {
                Response::Transfers(replies) => replies.iter().map(|reply| reply.duplicate).collect(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// One id of the year 10,000 had all later ids looked up, forever.
    #[test]
    fn an_id_far_ahead_of_time_does_not_make_later_ones_slow() {
        let store = Counting::default();
        let mut machines = Machines::open(&store).unwrap();
        let now = 1_800_000_000_000;
        assert_eq!(apply(&store, &mut machines, now, &[ordered(now, 1)]), [false]);
        let far = [ordered((1 << 48) - 1, 1), ordered(now + 3_600_000, 1), u128::MAX / 3 * 2];
        assert_eq!(apply(&store, &mut machines, now, &far), [false; 3]);
        store.spy.0.store(0, Relaxed);
        for number in 1..=100 {
            let ids = [ordered(now + number, 2), ordered(now + number, 3)];
            assert_eq!(apply(&store, &mut machines, now + number, &ids), [false; 2]);
            if number == 50 {
                machines = Machines::open(&store).unwrap();
            }
        }
        assert_eq!(store.spy.0.load(Relaxed), 0);
        // Known ones are found, those far ahead too; when time has come to one of them it is passed.
        let known = [ordered(now + 7, 2), far[0], far[1], far[2]];
        assert_eq!(apply(&store, &mut machines, now + 200, &known), [true; 4]);
        assert_eq!(apply(&store, &mut machines, now + 3_600_001, &[ordered(now + 3_600_001, 5)]), [false]);
        assert_eq!(apply(&store, &mut machines, now + 3_600_002, &[ordered(now + 3_600_002, 5)]), [false]);
        store.spy.0.store(0, Relaxed);
        assert_eq!(apply(&store, &mut machines, now + 3_600_003, &[ordered(now + 3_600_003, 5)]), [false]);
        assert_eq!(store.spy.0.load(Relaxed), 0);
        assert_eq!(apply(&store, &mut machines, now + 3_600_004, &far), [true; 3]);
    }

    /// Clients' clocks need not agree with a cluster's time that began far ahead.
    #[test]
    fn a_stamp_far_ahead_of_the_ids_does_not_make_them_slow() {
        let store = Counting::default();
        let mut machines = Machines::open(&store).unwrap();
        let (now, stamp) = (1_800_000_000_000, 4_000_000_000_000);
        assert_eq!(apply(&store, &mut machines, stamp, &[ordered(now, 1)]), [false]);
        store.spy.0.store(0, Relaxed);
        for number in 1..=100 {
            let ids = [ordered(now + number, 2), ordered(now + number, 3)];
            assert_eq!(apply(&store, &mut machines, stamp + number, &ids), [false; 2]);
            if number == 50 {
                machines = Machines::open(&store).unwrap();
            }
        }
        assert_eq!(store.spy.0.load(Relaxed), 0);
        assert_eq!(apply(&store, &mut machines, stamp + 200, &[ordered(now + 7, 2)]), [true]);
    }

    #[test]
    fn whatever_ids_come_a_known_one_is_known() {
        for seed in 0..6 {
            let store = Counting::default();
            let (mut machines, mut random) = (Machines::open(&store).unwrap(), Random::new(seed));
            let (mut now, mut known) = (1_800_000_000_000, BTreeSet::new());
            for step in 0..400 {
                now += random.below(20_000);
                let mut ids = Vec::new();
                for _ in 0..1 + random.below(6) {
                    ids.push(match random.below(8) {
                        0 => u128::from(random.number()) << 64 | u128::from(random.number()),
                        1 => ordered(now + random.below(4_000_000), random.below(2)),
                        2 => ordered(now - random.below(90_000), random.below(2)),
                        3 => known
                            .iter()
                            .nth(random.below(known.len() as u64 + 1) as usize)
                            .copied()
                            .unwrap_or(9),
                        _ => ordered(now + random.below(3), random.below(3)),
                    });
                }
                let expected: Vec<bool> = ids.iter().map(|id| !known.insert(*id)).collect();
                let found = apply(&store, &mut machines, now, &ids);
                assert_eq!(found, expected, "seed {seed}, step {step}: {ids:x?}");
                if random.once_in(30) {
                    machines = Machines::open(&store).unwrap();
                }
            }
        }
    }
}
