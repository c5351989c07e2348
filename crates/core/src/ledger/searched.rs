//! Queries compared with a plain filter over the whole journal, for the tests in `property.rs`.

use super::query::view_of;
use super::*;
use crate::store::Order;
use crate::store::contract::Random;
use crate::{Progress, Revision, Stamp, View};

const REFERENCES: [&str; 4] = ["", "r", "rent", "s"];

/// Gives a transfer what queries ask for, by its id: the same whenever it is sent.
pub(super) fn label(transfer: Transfer<'static>) -> Transfer<'static> {
    let number = (transfer.id ^ transfer.id >> 80) as u32;
    let extra = Extra {
        user_data_128: u128::from(number % 3) << 100,
        user_data_64: u64::from(number % 5) << 40,
        user_data_32: number % 7,
        metadata: Metadata::default(),
    };
    Transfer { code: number % 4, reference: REFERENCES[number as usize % 4], extra, ..transfer }
}

/// Any indexes.
pub(super) fn some_indexes(random: &mut Random) -> Operation {
    let on = Index::ALL.into_iter().filter(|_| random.once_in(2)).map(|index| index as u32).collect();
    Operation::SetIndexes(SetIndexes { on, unique_references: false })
}

type ValueOf = fn(&Transfer<'_>) -> Vec<u8>;

/// Every index has just the transfers that it should have.
fn check_indexes(view: View<'_>, all: &[TransferView], seed: u64) {
    let indexes = Indexes::read(view).unwrap();
    let values: [(Index, ValueOf); 5] = [
        (Index::Reference, |transfer| {
            let text = transfer.reference.as_bytes();
            if text.is_empty() { Vec::new() } else { [&[0, text.len() as u8], text].concat() }
        }),
        (Index::UserData128, |transfer| transfer.extra.user_data_128.to_be_bytes().to_vec()),
        (Index::UserData64, |transfer| transfer.extra.user_data_64.to_be_bytes().to_vec()),
        (Index::UserData32, |transfer| transfer.extra.user_data_32.to_be_bytes().to_vec()),
        (Index::Code, |transfer| transfer.code.to_be_bytes().to_vec()),
    ];
    for (index, value_of) in values {
        let Some(since) = indexes.since(index) else { continue };
        let mut expected = Vec::new();
        for entry in all.iter().map(|found| &found.entry).filter(|entry| entry.revision >= since) {
            let (transfer, value) = (entry.transfer(), value_of(&entry.transfer()));
            if value.iter().any(|byte| *byte > 0) && !matches!(transfer.kind, Kind::Expired { .. }) {
                expected.push((value, entry.revision, entry.position));
            }
        }
        expected.sort_unstable();
        let (mut held, mut after) = (Vec::new(), None);
        loop {
            let page = index_rows(view, Some(index), after.as_deref(), 7).unwrap();
            for row in page.rows.iter().filter(|row| row.revision >= since) {
                held.extend(
                    row.positions.iter().map(|position| (row.value.to_vec(), row.revision, *position)),
                );
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(held, expected, "seed {seed}: {index:?}");
    }
}

/// Some queries, each in pages that are bounded by what is found and by what is read.
pub(super) fn check(view: View<'_>, progress: &Progress, seed: u64) {
    let mut all = Vec::new();
    for part in entries(view, (Revision(0), 0)) {
        if let Journal::Transfers(entries) = part.unwrap().2 {
            all.extend(entries.into_iter().map(|entry| view_of(view, entry).unwrap()));
        }
    }
    check_indexes(view, &all, seed);
    let mut random = Random::new(seed);
    for _ in 0..40 {
        let filter = filter(&mut random, &all);
        let order = if random.once_in(2) { Order::Ascending } else { Order::Descending };
        let mut expected: Vec<Place> =
            all.iter().filter(|found| wanted(&filter, found)).map(place_of).collect();
        if order == Order::Descending {
            expected.reverse();
        }
        let (limit, reads_max) = (1 + random.below(9) as usize, 1 + random.below(20) as usize);
        let mut asked = Search { filter, order, after: None, limit, reads_max };
        let mut places = Vec::new();
        loop {
            let page = search(view, progress, &asked).unwrap();
            assert!(page.transfers.len() <= limit, "seed {seed}: {asked:?}");
            places.extend(page.transfers.iter().map(place_of));
            assert!(page.next.is_none() || page.next != asked.after, "seed {seed}: no way on: {asked:?}");
            asked.after = page.next;
            if asked.after.is_none() {
                break;
            }
        }
        assert_eq!(places, expected, "seed {seed}: {asked:?}");
    }
}

fn place_of(found: &TransferView) -> Place {
    (found.entry.revision, found.entry.position)
}

fn filter(random: &mut Random, all: &[TransferView]) -> Filter {
    let stamps = |random: &mut Random| {
        let some = all.get(random.below(all.len().max(1) as u64) as usize);
        Some(some.map_or(Stamp(0), |some| some.entry.stamp))
    };
    let mut filter = Filter::default();
    for _ in 0..1 + random.below(3) {
        match random.below(9) {
            0 | 1 => {
                filter.account = Some(1 + u128::from(random.below(8)));
                filter.side = [None, Some(Side::Debit), Some(Side::Credit)][random.below(3) as usize];
            }
            2 => filter.code = Some(random.below(5) as u32),
            3 => filter.reference = Some(REFERENCES[random.below(4) as usize].into()),
            4 => filter.user_data_128 = Some(u128::from(random.below(3)) << 100),
            5 => filter.user_data_64 = Some(random.below(5) << 40),
            6 => filter.user_data_32 = Some(random.below(7) as u32),
            7 => {
                let pending =
                    [PendingState::Open, PendingState::Posted, PendingState::Voided, PendingState::Expired];
                filter.outcome = Some(match random.below(6) {
                    0 => Outcome::Done,
                    1 => Outcome::Refused,
                    state => Outcome::Pending(pending[state as usize - 2]),
                });
            }
            _ => {
                filter.from = if random.once_in(3) { None } else { stamps(random) };
                filter.before = if random.once_in(3) { None } else { stamps(random) };
            }
        }
    }
    filter
}

/// The filter in plain words.
fn wanted(filter: &Filter, found: &TransferView) -> bool {
    let (entry, transfer) = (&found.entry, found.entry.transfer());
    let changed = match (filter.account, entry.effect()) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(account), Some(effect)) => {
            (effect.debit == account && filter.side != Some(Side::Credit))
                || (effect.credit == account && filter.side != Some(Side::Debit))
        }
    };
    let outcome = match found.state {
        TransferState::Done => Outcome::Done,
        TransferState::Refused(_) => Outcome::Refused,
        TransferState::Pending(state, ..) => Outcome::Pending(state),
    };
    changed
        && filter.outcome.is_none_or(|wanted| wanted == outcome)
        && filter.code.is_none_or(|code| code == transfer.code)
        && filter.reference.as_ref().is_none_or(|reference| reference == transfer.reference)
        && filter.user_data_128.is_none_or(|number| number == transfer.extra.user_data_128)
        && filter.user_data_64.is_none_or(|number| number == transfer.extra.user_data_64)
        && filter.user_data_32.is_none_or(|number| number == transfer.extra.user_data_32)
        && filter.from.is_none_or(|from| entry.stamp >= from)
        && filter.before.is_none_or(|before| entry.stamp < before)
}

/// A revision that made an account had its transfers behind the account; a page that ended between them lost them.
#[test]
fn a_transfer_that_opened_an_account_is_found_in_pages_of_one_read() {
    let store = crate::store::MemoryStore::new();
    let mut machines = crate::Machines::open(&store).unwrap();
    for id in 1..=3 {
        let opening = Some(Amount::from(id));
        let new = NewAccount { currency: "EUR".into(), opening, ..NewAccount::default() }.with_id(id);
        let command = Operation::create_accounts(vec![new]).into_command();
        let payload = crate::Batch::encode(Stamp(1), &[command]);
        let index = machines.progress().index.next();
        machines.apply(&store, index, crate::Term(1), payload).unwrap();
    }
    let (view, progress) = (View::new(&store, machines.progress().sequence), machines.progress());
    for (order, expected) in [(Order::Ascending, [1, 2, 3]), (Order::Descending, [3, 2, 1])] {
        let mut asked = Search { filter: Filter::default(), order, after: None, limit: 9, reads_max: 1 };
        let mut ids = Vec::new();
        loop {
            let page = search(view, &progress, &asked).unwrap();
            ids.extend(page.transfers.iter().map(|found| found.entry.transfer().id));
            asked.after = page.next;
            if asked.after.is_none() {
                break;
            }
        }
        assert_eq!(ids, expected);
    }
}
