//! A part of the journal with transfers, each decoded when it is asked for: who wants one of 64 reads past the rest.

use super::code::Code;
use super::journal::{self, Entry, Opened, PART_TRANSFERS, decode_entry};
use super::transfer::Transfer;
use crate::codec::{Malformed, Reader};
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use std::ops::Range;

/// The transfers of a part.
pub(super) struct Part {
    revision: Revision,
    /// The position of its first transfer.
    first: u32,
    stamp: Stamp,
    value: Bytes,
    /// Where its transfers begin in `value`.
    starts: Vec<u32>,
}

impl Part {
    /// Opens the part stored under `key`; `None` if it holds accounts or a currency.
    ///
    /// # Errors
    /// It was not written by this version, as far as is seen without decoding each transfer.
    pub(super) fn open(key: &[u8], value: Bytes) -> Result<Option<Self>, Malformed> {
        let Opened { revision, part, kind, stamp, mut reader } = journal::open(key, &value)?;
        if kind != journal::KIND_TRANSFERS {
            return Ok(None);
        }
        let mut starts = Vec::with_capacity(PART_TRANSFERS as usize);
        while !reader.is_empty() {
            let start = value.len() - reader.len();
            starts.push(u32::try_from(start).map_err(|_| reader.malformed())?);
            skip_entry(&mut reader)?;
        }
        let first = u32::from(part) * PART_TRANSFERS;
        Ok(Some(Self { revision, first, stamp, value, starts }))
    }

    /// The positions of its transfers.
    pub(super) fn positions(&self) -> Range<u32> {
        self.first..self.first + self.starts.len() as u32
    }

    /// Whether the transfer at a position of a revision would be in this part.
    pub(super) fn covers(&self, revision: Revision, position: u32) -> bool {
        self.revision == revision && self.first == position / PART_TRANSFERS * PART_TRANSFERS
    }

    /// The transfer at a position; `None` if there is none here.
    ///
    /// # Errors
    /// It was not written by this version.
    pub(super) fn entry(&self, position: u32) -> Result<Option<Entry>, Malformed> {
        let place = position.checked_sub(self.first).and_then(|place| self.starts.get(place as usize));
        let Some(start) = place else { return Ok(None) };
        let mut reader = Reader::new(&self.value[*start as usize..], "journal");
        decode_entry(&mut reader, &self.value, self.revision, position, self.stamp).map(Some)
    }
}

/// Goes past the next transfer of a part.
fn skip_entry(reader: &mut Reader<&[u8]>) -> Result<(), Malformed> {
    let done = reader.byte()? == Code::Ok as u8;
    let raw = reader.bytes()?;
    if done && Transfer::is_resolved_raw(raw)? {
        let _accounts = reader.array::<32>()?;
        let _amounts = (reader.varint_u128()?, reader.varint_u128()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::journal::{append_transfer, begin_transfers, decode_journal, journal_key};
    use super::super::{Journal, Kind, Options, Resolution};
    use super::*;
    use crate::store::contract::Random;

    fn any_transfer(random: &mut Random) -> Transfer<'static> {
        let mut id = || u128::from(random.number()) << 64 | u128::from(random.number());
        let (id, one, two) = (id(), id(), id());
        let amount = random.number().into();
        let kind = match random.below(6) {
            0 => Kind::Single { debit: one, credit: two, amount },
            1 => Kind::Pending { debit: one, credit: two, amount, timeout_ms: random.below(2) },
            2 => Kind::Post { pending: one, amount: Some(amount).filter(|amount| *amount > 0) },
            3 => Kind::Void { pending: one },
            4 => Kind::Expired { pending: one },
            _ => Kind::Revert { reverted: one },
        };
        let moves = matches!(kind, Kind::Single { .. } | Kind::Pending { .. });
        let pending = matches!(kind, Kind::Pending { .. });
        let options = Options {
            balancing_debit: moves && random.once_in(4),
            balancing_credit: moves && random.once_in(4),
            closing_debit: pending && random.once_in(4),
            closing_credit: pending && random.once_in(4),
        };
        let reference = if random.once_in(2) { "rent" } else { "" };
        Transfer { code: random.below(3) as u32, reference, options, ..Transfer::new(id, kind) }
    }

    #[test]
    fn one_transfer_of_a_part_is_what_decoding_all_of_it_gives() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut value = begin_transfers(Stamp(7));
            let count = 1 + random.below(64) as u32;
            for _ in 0..count {
                let transfer = any_transfer(&mut random);
                let code = if random.once_in(3) { Code::Overflow } else { Code::Ok };
                let mut raw = Vec::new();
                transfer.encode_into(&mut raw);
                let (amount, pending_amount) = (random.number().into(), random.below(300).into());
                let resolution = Resolution { debit: 1, credit: 2, amount, pending_amount };
                let resolved = code == Code::Ok && transfer.is_resolved();
                append_transfer(&mut value, code, &raw, resolved.then_some(&resolution));
            }
            let (key, value) = (journal_key(Revision(9), 3), Bytes::from(value));
            let Ok(Journal::Transfers(all)) = decode_journal(&key, &value) else { panic!("seed {seed}") };
            let part = Part::open(&key, value.clone()).unwrap().expect("a part of transfers");
            assert_eq!(part.positions(), 192..192 + count, "seed {seed}");
            assert!(part.covers(Revision(9), 255) && !part.covers(Revision(9), 256));
            let single: Vec<Entry> = part.positions().map(|at| part.entry(at).unwrap().unwrap()).collect();
            assert_eq!(single, all, "seed {seed}");
            assert_eq!((part.entry(191), part.entry(192 + count)), (Ok(None), Ok(None)));
            // A cut is refused by both, or is an end between two transfers for both.
            let cut = value.slice(..2 + random.below(value.len() as u64 - 2) as usize);
            let both = (decode_journal(&key, &cut).is_ok(), Part::open(&key, cut).is_ok());
            assert_eq!(both.0, both.1, "seed {seed}");
        }
    }
}
