//! The journal: what commands did to the ledger, kept forever.
//!
//! A command's record is split into parts of up to 64 transfers. A part, version 1: u8 version, u8 kind,
//! varint stamp; then for transfers (kind 1) each: u8 result code, varint length, the transfer as its command
//! had it, and, if it was done and is balancing, a revert, or the end of a pending transfer, debit account, credit
//! account, amount moved, amount pending; for accounts (kind 2) each: length, AccountRecord; for a currency (kind 3): 8 bytes
//! code, u8 scale.

use super::code::Code;
use super::currency::Currency;
use super::record::{AccountRecord, Balances, FACE};
use super::transfer::{Kind, Transfer};
use crate::codec::{self, Malformed, Reader};
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use prost::Message;

/// Transfers in one part.
pub(super) const PART_TRANSFERS: u32 = 64;
/// The keyspace of the journal.
pub(super) const JOURNAL: u8 = b'j';

const VERSION: u8 = 1;
pub(super) const KIND_TRANSFERS: u8 = 1;
const KIND_ACCOUNTS: u8 = 2;
const KIND_CURRENCY: u8 = 3;

/// A part of the journal, decoded.
#[derive(Clone, Debug, PartialEq)]
pub enum Journal {
    /// Transfers and their results.
    Transfers(Vec<Entry>),
    /// Accounts that were created or changed, as they are since.
    Accounts(Revision, Stamp, Vec<AccountRecord>),
    /// A custom currency and its scale.
    Currency(Revision, Stamp, Currency, u32),
}

impl Journal {
    /// When it was recorded; `None` if it is empty.
    pub fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::Transfers(entries) => entries.first().map(|entry| entry.stamp),
            Self::Accounts(_, stamp, _) | Self::Currency(_, stamp, ..) => Some(*stamp),
        }
    }

    /// About how much memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        let of_account = |account: &AccountRecord| size_of::<AccountRecord>() + account.encoded_len();
        match self {
            Self::Transfers(entries) => {
                entries.iter().map(|entry| size_of::<Entry>() + entry.raw.len()).sum()
            }
            Self::Accounts(_, _, accounts) => accounts.iter().map(of_account).sum(),
            Self::Currency(..) => size_of::<Self>(),
        }
    }
}

/// One transfer in the journal, with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The revision of its command.
    pub revision: Revision,
    /// Its position among the transfers of that revision.
    pub position: u32,
    /// When it was recorded.
    pub stamp: Stamp,
    /// Its result.
    pub code: Code,
    raw: Bytes,
    resolution: Option<Resolution>,
}

impl Entry {
    /// The transfer as it was asked for.
    pub fn transfer(&self) -> Transfer<'_> {
        let mut reader = Reader::new(&self.raw[..], "transfer");
        Transfer::decode_from(&mut reader).expect("checked when the entry was read")
    }

    /// Bytes of the transfer as it is stored.
    pub fn bytes(&self) -> usize {
        self.raw.len()
    }

    /// What it moved; `None` if it was refused.
    pub fn effect(&self) -> Option<Resolution> {
        if self.code != Code::Ok {
            return None;
        }
        self.resolution.or_else(|| match self.transfer().kind {
            Kind::Single { debit, credit, amount } | Kind::Pending { debit, credit, amount, .. } => {
                Some(Resolution { debit, credit, amount, pending_amount: 0 })
            }
            _ => None,
        })
    }
}

/// What a transfer moved. One that is balancing, reverts another, or ends a pending one does not say so itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The account whose debits changed.
    pub debit: u128,
    /// The account whose credits changed.
    pub credit: u128,
    /// The amount moved or reserved; 0 if none was.
    pub amount: u128,
    /// The amount reserved before and released now.
    pub pending_amount: u128,
}

impl Balances {
    /// The balances of `account` before `entry`, given those after it.
    ///
    /// # Panics
    /// The transfer of `entry` was refused or did not touch this account.
    #[must_use]
    pub fn before(mut self, account: u128, entry: &Entry) -> Self {
        let Resolution { debit, amount, pending_amount, .. } =
            entry.effect().expect("histories hold only transfers that succeeded");
        let (posted, pending) = if account == debit {
            (&mut self.debits_posted, &mut self.debits_pending)
        } else {
            (&mut self.credits_posted, &mut self.credits_pending)
        };
        match entry.transfer().kind {
            Kind::Single { .. } | Kind::Revert { .. } => *posted -= amount,
            Kind::Pending { .. } => *pending -= amount,
            Kind::Post { .. } => {
                *posted -= amount;
                *pending += pending_amount;
            }
            Kind::Void { .. } | Kind::Expired { .. } => *pending += pending_amount,
        }
        self
    }
}

pub(super) fn journal_key(revision: Revision, part: u16) -> [u8; 12] {
    let mut key = [0; 12];
    key[..2].copy_from_slice(&[FACE, JOURNAL]);
    key[2..10].copy_from_slice(&revision.0.to_be_bytes());
    key[10..].copy_from_slice(&part.to_be_bytes());
    key
}

/// The revision and the part in a store key.
///
/// # Errors
/// It is not a key of the journal.
pub(super) fn decode_journal_key(key: &[u8]) -> Result<(Revision, u16), Malformed> {
    let mut reader = Reader::new(key, "journal key");
    if reader.array()? != [FACE, JOURNAL] {
        return Err(reader.malformed());
    }
    Ok((Revision(reader.u64()?), u16::from_be_bytes(reader.array()?)))
}

/// Begins a part of transfers.
pub(super) fn begin_transfers(stamp: Stamp) -> Vec<u8> {
    begin(KIND_TRANSFERS, stamp)
}

fn begin(kind: u8, stamp: Stamp) -> Vec<u8> {
    let mut out = vec![VERSION, kind];
    codec::put_varint(&mut out, stamp.0);
    out
}

/// Appends a transfer to its part; `resolution` for one that does not say itself what it moved.
pub(super) fn append_transfer(out: &mut Vec<u8>, code: Code, raw: &[u8], resolution: Option<&Resolution>) {
    out.push(code as u8);
    codec::put_bytes(out, raw);
    if let Some(Resolution { debit, credit, amount, pending_amount }) = resolution {
        out.extend_from_slice(&debit.to_be_bytes());
        out.extend_from_slice(&credit.to_be_bytes());
        codec::put_varint_u128(out, *amount);
        codec::put_varint_u128(out, *pending_amount);
    }
}

/// A part that holds accounts.
pub(super) fn encode_accounts(stamp: Stamp, accounts: &[AccountRecord]) -> Bytes {
    let mut out = begin(KIND_ACCOUNTS, stamp);
    for account in accounts {
        codec::put_bytes(&mut out, &account.encode_to_vec());
    }
    out.into()
}

/// A part that holds a currency.
pub(super) fn encode_currency(stamp: Stamp, currency: Currency, scale: u8) -> Bytes {
    let mut out = begin(KIND_CURRENCY, stamp);
    out.extend_from_slice(&currency.to_bytes());
    out.push(scale);
    out.into()
}

/// Whether a part holds accounts.
pub(super) fn holds_accounts(part: &[u8]) -> bool {
    part.get(1) == Some(&KIND_ACCOUNTS)
}

/// A part before its content is decoded.
pub(super) struct Opened<'a> {
    pub(super) revision: Revision,
    pub(super) part: u16,
    pub(super) kind: u8,
    pub(super) stamp: Stamp,
    pub(super) reader: Reader<&'a [u8]>,
}

/// Opens the part stored under `key`.
///
/// # Errors
/// It was not written by this version.
pub(super) fn open<'a>(key: &[u8], value: &'a [u8]) -> Result<Opened<'a>, Malformed> {
    let (revision, part) = decode_journal_key(key)?;
    let mut reader = Reader::new(value, "journal");
    if reader.byte()? != VERSION {
        return Err(reader.malformed());
    }
    let (kind, stamp) = (reader.byte()?, Stamp(reader.varint()?));
    match kind {
        KIND_TRANSFERS | KIND_ACCOUNTS | KIND_CURRENCY => Ok(Opened { revision, part, kind, stamp, reader }),
        _ => Err(reader.malformed()),
    }
}

/// Decodes the part stored under `key`.
///
/// # Errors
/// It was not written by this version.
pub(super) fn decode_journal(key: &[u8], value: &Bytes) -> Result<Journal, Malformed> {
    let Opened { revision, part, kind, stamp, mut reader } = open(key, value)?;
    match kind {
        KIND_TRANSFERS => {
            let mut entries = Vec::with_capacity(PART_TRANSFERS as usize);
            while !reader.is_empty() {
                let position = u32::from(part) * PART_TRANSFERS + entries.len() as u32;
                entries.push(decode_entry(&mut reader, value, revision, position, stamp)?);
            }
            Ok(Journal::Transfers(entries))
        }
        KIND_ACCOUNTS => {
            let mut accounts = Vec::new();
            while !reader.is_empty() {
                accounts.push(AccountRecord::decode(reader.bytes()?).map_err(|_| reader.malformed())?);
            }
            Ok(Journal::Accounts(revision, stamp, accounts))
        }
        _ => {
            let currency = Currency::from_bytes(reader.array()?).ok_or_else(|| reader.malformed())?;
            Ok(Journal::Currency(revision, stamp, currency, reader.byte()?.into()))
        }
    }
}

/// Decodes the next transfer of a part.
pub(super) fn decode_entry(
    reader: &mut Reader<&[u8]>,
    part: &Bytes,
    revision: Revision,
    position: u32,
    stamp: Stamp,
) -> Result<Entry, Malformed> {
    let code = Code::try_from(reader.byte()?)?;
    let raw = part.slice_ref(reader.bytes()?);
    let transfer = Transfer::decode_from(&mut Reader::new(&raw[..], "transfer"))?;
    let resolution = if transfer.is_resolved() && code == Code::Ok {
        let (debit, credit) = (reader.u128()?, reader.u128()?);
        let (amount, pending_amount) = (reader.varint_u128()?, reader.varint_u128()?);
        Some(Resolution { debit, credit, amount, pending_amount })
    } else {
        None
    };
    Ok(Entry { revision, position, stamp, code, raw, resolution })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_journal_is_pinned_and_cuts_are_refused() {
        assert_eq!(&journal_key(Revision(258), 3)[..], b"\x03j\0\0\0\0\0\0\x01\x02\0\x03");
        let mut raw = Vec::new();
        Transfer::new(9, Kind::Void { pending: 8 }).encode_into(&mut raw);
        let resolution = Resolution { debit: 1, credit: 2, amount: 0, pending_amount: 7 };
        let mut part = begin_transfers(Stamp(5));
        append_transfer(&mut part, Code::Ok, &raw, Some(&resolution));
        append_transfer(&mut part, Code::PendingUnknown, &raw, None);
        let id = |n: u8| [&[0; 15][..], &[n]].concat();
        let transfer = [&[33, 3][..], &id(9), &id(8)].concat();
        let golden = [
            b"\x01\x01\x05\0",
            &transfer[..],
            &id(1),
            &id(2),
            b"\0\x07",
            &[Code::PendingUnknown as u8],
            &transfer,
        ]
        .concat();
        assert_eq!(part, golden);
        let key = journal_key(Revision(4), 2);
        let Ok(Journal::Transfers(entries)) = decode_journal(&key, &part.into()) else { panic!("transfers") };
        assert_eq!((entries[0].position, entries[1].position), (128, 129));
        assert_eq!((entries[0].effect(), entries[1].effect()), (Some(resolution), None));
        for length in 4..golden.len() - transfer.len() - 1 {
            assert!(
                decode_journal(&key, &Bytes::copy_from_slice(&golden[..length])).is_err(),
                "cut at {length}"
            );
        }
    }
}
