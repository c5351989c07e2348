//! The ledger's bytes in the store. Keys begin with the face's byte, `0x03`, and one for the keyspace:
//!
//! ```text
//! a id              an account: Protocol Buffers, AccountRecord
//! n number          the id of the account with this number
//! u code            a custom currency's scale, one byte
//! j revision part   the journal: what a command did, up to 64 transfers in a part. Kept forever.
//! i id              where a transfer is in the journal: varint revision, varint position
//! h id revision     an account's balances after a command that touched them, and its transfers in it. Kept forever.
//! p id              a pending transfer's state
//! x deadline id     the expiry index: "look at this pending transfer then"
//! m                 a bound that no recorded id of UUID version 7 is above
//! ```
//!
//! Ids are 16 bytes, revisions and deadlines 8, parts 2, all big-endian. Integers in values are varints.
//!
//! Journal, version 1: u8 version, u8 kind, varint stamp; then for transfers (kind 1) each: u8 result code, varint
//! length, the transfer as its command had it, and, if a pending transfer was posted, voided or expired, debit
//! account, credit account, amount moved, amount pending; for accounts (kind 2) each: length, AccountRecord; for a
//! currency (kind 3): 8 bytes code, u8 scale.
//!
//! History, version 1: u8 version, varint stamp, debits posted, credits posted, debits pending, credits pending,
//! count, then the positions in the journal, each as its distance to the one before.

use super::command::{Kind, NewAccount, Transfer};
use super::currency::Currency;
use super::transfers::Code;
use crate::codec::{self, Malformed};
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;

const FACE: u8 = 3;
const VERSION: u8 = 1;
/// Transfers in one part of the journal.
pub(super) const PART_TRANSFERS: u32 = 64;
/// The keyspaces.
pub(super) const ACCOUNTS: u8 = b'a';
pub(super) const NUMBERS: u8 = b'n';
pub(super) const CURRENCIES: u8 = b'u';
pub(super) const JOURNAL: u8 = b'j';
pub(super) const IDS: u8 = b'i';
pub(super) const HISTORY: u8 = b'h';
pub(super) const PENDING: u8 = b'p';
pub(super) const EXPIRIES: u8 = b'x';
/// Where the bound of ids that grow with time is.
pub(super) const CEILING_KEY: &[u8] = &[FACE, b'm'];
/// The bound is raised in steps of this much of the ids' own time, so that it is seldom written.
const CEILING_STEP_MS: u128 = 1000;

/// The prefix of a keyspace, and the key above all of its keys.
pub(super) fn keyspace(space: u8) -> ([u8; 2], [u8; 2]) {
    ([FACE, space], [FACE, space + 1])
}

pub(super) fn id_key(space: u8, id: u128) -> [u8; 18] {
    let mut key = [0; 18];
    key[..2].copy_from_slice(&[FACE, space]);
    key[2..].copy_from_slice(&id.to_be_bytes());
    key
}

pub(super) fn number_key(number: &str) -> Vec<u8> {
    [&[FACE, NUMBERS], number.as_bytes()].concat()
}

pub(super) fn currency_key(currency: Currency) -> [u8; 10] {
    let mut key = [FACE, CURRENCIES, 0, 0, 0, 0, 0, 0, 0, 0];
    key[2..].copy_from_slice(&currency.to_bytes());
    key
}

pub(super) fn journal_key(revision: Revision, part: u16) -> [u8; 12] {
    let mut key = [0; 12];
    key[..2].copy_from_slice(&[FACE, JOURNAL]);
    key[2..10].copy_from_slice(&revision.0.to_be_bytes());
    key[10..].copy_from_slice(&part.to_be_bytes());
    key
}

/// The revision in a key of the journal, and the part.
pub fn journal_revision(key: &[u8]) -> Result<(Revision, u16), Malformed> {
    let mut cursor = Cursor::new(key, "journal key");
    if cursor.array()? != [FACE, JOURNAL] {
        return Err(cursor.malformed());
    }
    Ok((Revision(u64::from_be_bytes(cursor.array()?)), u16::from_be_bytes(cursor.array()?)))
}

pub(super) fn history_key(account: u128, revision: Revision) -> [u8; 26] {
    let mut key = [0; 26];
    key[..18].copy_from_slice(&id_key(HISTORY, account));
    key[18..].copy_from_slice(&revision.0.to_be_bytes());
    key
}

pub(super) fn expiry_key(deadline: u64, id: u128) -> [u8; 26] {
    let mut key = [0; 26];
    key[..2].copy_from_slice(&[FACE, EXPIRIES]);
    key[2..10].copy_from_slice(&deadline.to_be_bytes());
    key[10..].copy_from_slice(&id.to_be_bytes());
    key
}

pub(super) fn read_expiry(key: &[u8]) -> Result<(u64, u128), Malformed> {
    let mut cursor = Cursor::new(key, "expiry key");
    let _space: [u8; 2] = cursor.array()?;
    Ok((u64::from_be_bytes(cursor.array()?), cursor.id()?))
}

/// The account that money of a currency comes from and goes to: `@world/EUR`. Its id is its number's bytes.
pub fn world_account(currency: Currency) -> (u128, String) {
    let number = format!("@world/{currency}");
    let mut id = [0; 16];
    id[..number.len()].copy_from_slice(number.as_bytes());
    (u128::from_be_bytes(id), number)
}

/// Whether an id is one of those that only the ledger itself gives.
pub(super) fn is_reserved(id: u128) -> bool {
    id == 0 || id.to_be_bytes().starts_with(b"@world/")
}

/// Whether an id grows with time: UUID version 7, whose first 48 bits are milliseconds (RFC 9562).
pub(super) fn is_ordered(id: u128) -> bool {
    id >> 76 & 0xf == 7
}

/// The bound that is stored once `id` is recorded: the end of its second.
pub(super) fn ceiling_above(id: u128) -> u128 {
    let ms = ((id >> 80) / CEILING_STEP_MS + 1) * CEILING_STEP_MS;
    if ms >> 48 == 0 { ms << 80 } else { u128::MAX }
}

/// How far an account may go below zero. The numbers are on disk and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Rule {
    /// Not at all.
    NoOverdraft = 0,
    /// Down to the limit.
    Limit = 1,
    /// Without bound: for system accounts.
    Unlimited = 2,
}

/// What may be done with an account. The numbers are on disk and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Status {
    /// Everything.
    Active = 0,
    /// Nothing but voiding what is pending, until it is active again.
    Frozen = 1,
    /// Nothing, forever.
    Closed = 2,
}

/// An account without its balances, as stored.
#[derive(Clone, PartialEq, Message)]
pub struct AccountRecord {
    /// As it was created.
    #[prost(message, required, tag = "1")]
    pub origin: NewAccount,
    /// The currency's number of decimal places.
    #[prost(uint32, tag = "2")]
    pub scale: u32,
    /// See [`Status`].
    #[prost(enumeration = "Status", tag = "3")]
    pub status: i32,
    /// When it was created.
    #[prost(uint64, tag = "4")]
    pub created_ms: u64,
    /// The revision that created it.
    #[prost(uint64, tag = "5")]
    pub created_revision: u64,
    /// The revision that changed this record last.
    #[prost(uint64, tag = "6")]
    pub changed_revision: u64,
    /// What was changed since it was created, and replaces what `origin` says.
    #[prost(message, optional, tag = "7")]
    pub changed: Option<Changed>,
}

/// The changeable parts of an account.
#[derive(Clone, PartialEq, Message)]
pub struct Changed {
    /// See [`NewAccount::rule`].
    #[prost(enumeration = "Rule", tag = "1")]
    pub rule: i32,
    /// See [`NewAccount::limit_low`].
    #[prost(uint64, tag = "2")]
    pub limit_low: u64,
    /// See `limit_low`.
    #[prost(uint64, tag = "3")]
    pub limit_high: u64,
    /// See [`NewAccount::user_data`].
    #[prost(string, tag = "4")]
    pub user_data: String,
    /// See [`NewAccount::metadata`].
    #[prost(btree_map = "string, string", tag = "5")]
    pub metadata: BTreeMap<String, String>,
}

impl AccountRecord {
    /// Its id.
    pub fn id(&self) -> u128 {
        self.origin.id()
    }

    /// Its currency.
    pub fn currency(&self) -> Currency {
        self.origin.currency.parse().expect("currencies are checked before they are stored")
    }

    /// The present changeable parts.
    pub fn present(&self) -> Changed {
        self.changed.clone().unwrap_or_else(|| Changed {
            rule: self.origin.rule,
            limit_low: self.origin.limit_low,
            limit_high: self.origin.limit_high,
            user_data: self.origin.user_data.clone(),
            metadata: self.origin.metadata.clone(),
        })
    }

    /// How far it may go below zero, in minor units; `None` for without bound.
    pub fn allowance(&self) -> Option<u128> {
        let (rule, low, high) = match &self.changed {
            Some(changed) => (changed.rule(), changed.limit_low, changed.limit_high),
            None => (self.origin.rule(), self.origin.limit_low, self.origin.limit_high),
        };
        match rule {
            Rule::NoOverdraft => Some(0),
            Rule::Limit => Some(u128::from(high) << 64 | u128::from(low)),
            Rule::Unlimited => None,
        }
    }
}

/// An account's balances in minor units. What it holds is credits less debits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balances {
    /// Sum of all debits that are done.
    pub debits_posted: u128,
    /// Sum of all credits that are done.
    pub credits_posted: u128,
    /// What pending transfers have set aside: locked.
    pub debits_pending: u128,
    /// What pending transfers may bring.
    pub credits_pending: u128,
}

impl Balances {
    /// What `entry` did to the balances of `account` is taken back.
    ///
    /// # Panics
    /// The entry's transfer was not one of this account's.
    #[must_use]
    pub fn before(mut self, account: u128, entry: &Entry) -> Self {
        let Resolution { debit, amount, pending_amount, .. } =
            entry.effect().expect("only what was done is in histories");
        let (posted, pending) = if account == debit {
            (&mut self.debits_posted, &mut self.debits_pending)
        } else {
            (&mut self.credits_posted, &mut self.credits_pending)
        };
        match entry.transfer().kind {
            Kind::Single { .. } => *posted -= amount,
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

/// What a transfer moved: of a pending one that is posted, voided or expired it is not in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Whose debits grew, or shrank.
    pub debit: u128,
    /// Whose credits did.
    pub credit: u128,
    /// What was moved, or set aside; 0 where nothing was.
    pub amount: u128,
    /// What had been set aside, and is no more.
    pub pending_amount: u128,
}

/// One transfer in the journal, with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of its command.
    pub revision: Revision,
    /// Its place among the transfers of that revision.
    pub position: u32,
    /// When it was done.
    pub stamp: Stamp,
    /// What came of it.
    pub code: Code,
    raw: Bytes,
    resolution: Option<Resolution>,
}

impl Entry {
    /// What was asked.
    pub fn transfer(&self) -> Transfer<'_> {
        let mut cursor = Cursor::new(&self.raw, "transfer");
        Transfer::decode(&mut cursor).expect("checked when the entry was read")
    }

    /// What it moved; `None` where it was refused.
    pub fn effect(&self) -> Option<Resolution> {
        if self.code != Code::Ok {
            return None;
        }
        match self.transfer().kind {
            Kind::Single { debit, credit, amount } | Kind::Pending { debit, credit, amount, .. } => {
                Some(Resolution { debit, credit, amount, pending_amount: 0 })
            }
            _ => self.resolution,
        }
    }
}

/// A part of the journal, decoded.
#[derive(Clone, Debug, PartialEq)]
pub enum Journal {
    /// Transfers and their results.
    Transfers(Vec<Entry>),
    /// Accounts that were made or changed, as they are since.
    Accounts(Revision, Stamp, Vec<AccountRecord>),
    /// A custom currency and its scale.
    Currency(Revision, Stamp, Currency, u32),
}

const KIND_TRANSFERS: u8 = 1;
const KIND_ACCOUNTS: u8 = 2;
const KIND_CURRENCY: u8 = 3;

/// Begins a part of the journal.
pub(super) fn begin_transfers(stamp: Stamp) -> Vec<u8> {
    begin(KIND_TRANSFERS, stamp)
}

fn begin(kind: u8, stamp: Stamp) -> Vec<u8> {
    let mut out = vec![VERSION, kind];
    codec::put_varint(&mut out, stamp.0);
    out
}

/// Appends a transfer to a part.
pub(super) fn append_transfer(out: &mut Vec<u8>, code: Code, raw: &[u8], resolution: Option<&Resolution>) {
    out.push(code as u8);
    codec::put_bytes(out, raw);
    if let Some(Resolution { debit, credit, amount, pending_amount }) = resolution {
        out.extend_from_slice(&debit.to_be_bytes());
        out.extend_from_slice(&credit.to_be_bytes());
        put_u128(out, *amount);
        put_u128(out, *pending_amount);
    }
}

/// The part of the journal that tells of accounts.
pub(super) fn accounts_part(stamp: Stamp, accounts: &[AccountRecord]) -> Bytes {
    let mut out = begin(KIND_ACCOUNTS, stamp);
    for account in accounts {
        codec::put_bytes(&mut out, &account.encode_to_vec());
    }
    out.into()
}

/// The part of the journal that tells of a currency.
pub(super) fn currency_part(stamp: Stamp, currency: Currency, scale: u8) -> Bytes {
    let mut out = begin(KIND_CURRENCY, stamp);
    out.extend_from_slice(&currency.to_bytes());
    out.push(scale);
    out.into()
}

/// Reads a part of the journal, stored under `key`.
///
/// # Errors
/// The bytes are none that this version writes.
pub fn decode_journal(key: &[u8], value: &Bytes) -> Result<Journal, Malformed> {
    let (revision, part) = journal_revision(key)?;
    let mut cursor = Cursor::new(value, "journal");
    if cursor.byte()? != VERSION {
        return Err(cursor.malformed());
    }
    let kind = cursor.byte()?;
    let stamp = Stamp(cursor.varint()?);
    match kind {
        KIND_TRANSFERS => {
            let mut entries = Vec::with_capacity(PART_TRANSFERS as usize);
            while !cursor.is_empty() {
                let position = u32::from(part) * PART_TRANSFERS + entries.len() as u32;
                entries.push(read_entry(&mut cursor, value, revision, position, stamp)?);
            }
            Ok(Journal::Transfers(entries))
        }
        KIND_ACCOUNTS => {
            let mut accounts = Vec::new();
            while !cursor.is_empty() {
                accounts.push(AccountRecord::decode(cursor.bytes()?).map_err(|_| cursor.malformed())?);
            }
            Ok(Journal::Accounts(revision, stamp, accounts))
        }
        KIND_CURRENCY => {
            let currency = Currency::from_bytes(cursor.array()?).ok_or_else(|| cursor.malformed())?;
            Ok(Journal::Currency(revision, stamp, currency, cursor.byte()?.into()))
        }
        _ => Err(cursor.malformed()),
    }
}

fn read_entry(
    cursor: &mut Cursor<'_>,
    part: &Bytes,
    revision: Revision,
    position: u32,
    stamp: Stamp,
) -> Result<Entry, Malformed> {
    let code = Code::try_from(cursor.byte()?)?;
    let raw = part.slice_ref(cursor.bytes()?);
    let transfer = Transfer::decode(&mut Cursor::new(&raw, "transfer"))?;
    let resolved = matches!(transfer.kind, Kind::Post { .. } | Kind::Void { .. } | Kind::Expired { .. });
    let resolution = if resolved && code == Code::Ok {
        let (debit, credit) = (cursor.id()?, cursor.id()?);
        Some(Resolution { debit, credit, amount: cursor.u128()?, pending_amount: cursor.u128()? })
    } else {
        None
    };
    Ok(Entry { revision, position, stamp, code, raw, resolution })
}

/// Balances after a command that touched them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HistoryRecord {
    pub(super) stamp: Stamp,
    pub(super) balances: Balances,
    pub(super) positions: Vec<u32>,
}

pub(super) fn encode_history(stamp: Stamp, balances: &Balances, positions: &[u32]) -> Bytes {
    let mut out = Vec::with_capacity(32);
    out.push(VERSION);
    codec::put_varint(&mut out, stamp.0);
    for amount in
        [balances.debits_posted, balances.credits_posted, balances.debits_pending, balances.credits_pending]
    {
        put_u128(&mut out, amount);
    }
    codec::put_varint(&mut out, positions.len() as u64);
    let mut before = 0;
    for position in positions {
        codec::put_varint(&mut out, (position - before).into());
        before = *position;
    }
    out.into()
}

pub(super) fn decode_history(record: &[u8]) -> Result<HistoryRecord, Malformed> {
    let mut cursor = Cursor::new(record, "account history");
    if cursor.byte()? != VERSION {
        return Err(cursor.malformed());
    }
    let stamp = Stamp(cursor.varint()?);
    let balances = Balances {
        debits_posted: cursor.u128()?,
        credits_posted: cursor.u128()?,
        debits_pending: cursor.u128()?,
        credits_pending: cursor.u128()?,
    };
    let (count, mut position, mut positions) = (cursor.varint()?, 0, Vec::new());
    for _ in 0..count {
        position += u32::try_from(cursor.varint()?).map_err(|_| cursor.malformed())?;
        positions.push(position);
    }
    Ok(HistoryRecord { stamp, balances, positions })
}

/// Where a transfer is in the journal.
pub(super) fn encode_location(revision: Revision, position: u32) -> Bytes {
    let mut out = Vec::with_capacity(8);
    codec::put_varint(&mut out, revision.0);
    codec::put_varint(&mut out, position.into());
    out.into()
}

pub(super) fn decode_location(record: &[u8]) -> Result<(Revision, u32), Malformed> {
    let mut cursor = Cursor::new(record, "transfer location");
    let revision = Revision(cursor.varint()?);
    Ok((revision, u32::try_from(cursor.varint()?).map_err(|_| cursor.malformed())?))
}

/// What became of a pending transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PendingState {
    /// Nothing yet.
    Open = 0,
    /// It was posted, in full or in part.
    Posted = 1,
    /// It was voided.
    Voided = 2,
    /// Its time ran out.
    Expired = 3,
}

/// A pending transfer's state, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingRecord {
    pub(super) state: PendingState,
    pub(super) debit: u128,
    pub(super) credit: u128,
    pub(super) amount: u128,
    /// 0 for never.
    pub(super) deadline: u64,
    /// The revision that ended it, 0 while it is open.
    pub(super) ended: Revision,
}

impl PendingRecord {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = vec![VERSION, self.state as u8];
        out.extend_from_slice(&self.debit.to_be_bytes());
        out.extend_from_slice(&self.credit.to_be_bytes());
        put_u128(&mut out, self.amount);
        codec::put_varint(&mut out, self.deadline);
        codec::put_varint(&mut out, self.ended.0);
        out.into()
    }

    pub(super) fn decode(record: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(record, "pending transfer");
        if cursor.byte()? != VERSION {
            return Err(cursor.malformed());
        }
        let state = match cursor.byte()? {
            0 => PendingState::Open,
            1 => PendingState::Posted,
            2 => PendingState::Voided,
            3 => PendingState::Expired,
            _ => return Err(cursor.malformed()),
        };
        Ok(Self {
            state,
            debit: cursor.id()?,
            credit: cursor.id()?,
            amount: cursor.u128()?,
            deadline: cursor.varint()?,
            ended: Revision(cursor.varint()?),
        })
    }
}

/// Appends a number of up to 128 bits, 7 bits a byte, lowest first (LEB128).
pub(super) fn put_u128(out: &mut Vec<u8>, mut value: u128) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes bytes apart from their front without copying them.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    pub(super) fn malformed(&self) -> Malformed {
        Malformed { what: self.what }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// What is left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.rest.split_first().ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(*first)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.rest.split_first_chunk().ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(*first)
    }

    pub(super) fn id(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_be_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, Malformed> {
        let mut value = 0;
        for shift in (0..128).step_by(7) {
            let byte = self.byte()?;
            if shift == 126 && byte > 3 {
                return Err(self.malformed());
            }
            value |= u128::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.malformed())
    }

    pub(super) fn varint(&mut self) -> Result<u64, Malformed> {
        u64::try_from(self.u128()?).map_err(|_| self.malformed())
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| self.malformed())?;
        let (first, rest) = self.rest.split_at_checked(length).ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(first)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| self.malformed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_pinned() {
        let balances =
            Balances { debits_posted: 1, credits_posted: 300, debits_pending: 0, credits_pending: u128::MAX };
        let history = encode_history(Stamp(5), &balances, &[3, 70]);
        let max = [&[0xff; 18][..], &[3]].concat();
        assert_eq!(&history[..], [b"\x01\x05\x01\xac\x02\0", &max[..], b"\x02\x03\x43"].concat());
        assert_eq!(
            decode_history(&history),
            Ok(HistoryRecord { stamp: Stamp(5), balances, positions: vec![3, 70] })
        );
        assert_eq!(&encode_location(Revision(300), 9)[..], b"\xac\x02\x09");
        let pending = PendingRecord {
            state: PendingState::Voided,
            debit: 1,
            credit: 2,
            amount: 3,
            deadline: 4,
            ended: Revision(5),
        };
        let golden = [b"\x01\x02", &[0; 15][..], &[1], &[0; 15], &[2], b"\x03\x04\x05"].concat();
        assert_eq!(&pending.encode()[..], golden);
        assert_eq!(PendingRecord::decode(&golden), Ok(pending));
        assert_eq!(&journal_key(Revision(258), 3)[..], b"\x03j\0\0\0\0\0\0\x01\x02\0\x03");
    }

    #[test]
    fn a_part_of_the_journal_is_pinned_and_cuts_are_refused() {
        let mut raw = Vec::new();
        Transfer::new(9, Kind::Void { pending: 8 }).encode(&mut raw);
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

    #[test]
    fn numbers_of_128_bits_round_trip_and_longer_ones_are_refused() {
        for value in [0, 1, 127, 128, u128::from(u64::MAX), u128::MAX] {
            let mut out = Vec::new();
            put_u128(&mut out, value);
            assert_eq!(Cursor::new(&out, "n").u128(), Ok(value));
        }
        let beyond = [&[0xff; 18][..], &[4]].concat();
        assert!(Cursor::new(&beyond, "n").u128().is_err());
    }

    #[test]
    fn the_bound_of_ordered_ids_is_above_them_and_does_not_overflow() {
        let id = 0x0190_b5e2_7f2c_7c1e_9d1a_3f5b_8c2a_4e61;
        assert!(is_ordered(id) && !is_ordered(id ^ 1 << 76));
        let ceiling = ceiling_above(id);
        assert!(
            ceiling > id && (ceiling >> 80) - (id >> 80) <= 1000 && ceiling_above(ceiling - 1) == ceiling
        );
        assert_eq!(ceiling_above(u128::MAX), u128::MAX);
    }

    #[test]
    fn the_world_has_one_account_per_currency() {
        let (id, number) = world_account("EUR".parse().unwrap());
        assert_eq!((number.as_str(), &id.to_be_bytes()), ("@world/EUR", b"@world/EUR\0\0\0\0\0\0"));
        assert!(is_reserved(id) && is_reserved(0) && !is_reserved(1));
    }
}
