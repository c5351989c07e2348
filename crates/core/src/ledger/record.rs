//! The ledger's records in the store, but for the journal's (`journal.rs`). Keys begin with the face's byte,
//! `0x03`, and one for the keyspace:
//!
//! ```text
//! a id              an account: Protocol Buffers, AccountRecord
//! c id revision     nothing: the account was changed in this revision, whose part of the journal has it. Kept forever.
//! n number          the id of the account with this number
//! u code            a custom currency's scale, one byte
//! j revision part   a part of the journal. Kept forever.
//! i id              where a transfer is in the journal: varint revision, varint position; or, for the key of a
//!                   request for several things: 0, 0, and the request's fingerprint, 16 bytes
//! h id revision     an account's balances after a command, and its transfers in the command. Kept forever.
//! p id              a pending transfer's state
//! r id              the id of the transfer that reverted this one
//! f stream          a stream's newest batch: varint number, varint sequence, see `fence.rs`
//! s, q                    which indexes of transfers are on, and their rows: indexes.rs
//! w reference             the id of the transfer that has taken it, where references are unique
//! x deadline id     nothing: look at this pending transfer at the deadline, see crate::expiry
//! t                 the newest client time of imported transfers, varint milliseconds
//! m                 16 bytes 0xff: to earlier versions, a bound of the recorded UUIDs of version 7
//! ```
//!
//! Ids are 16 bytes, revisions and deadlines 8, parts 2, all big-endian. Integers in values are varints.
//!
//! History, version 1: u8 version, varint stamp, debits posted, credits posted, debits pending, credits
//! pending, count, then the positions in the journal, each as its distance from the previous one; then 1, if a pending
//! transfer has closed the account.

use super::command::{Amount, NewAccount, Rule, Status};
use super::currency::Currency;
use crate::codec::{self, Malformed, Reader};
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;

/// The first byte of the face's store keys.
pub(crate) const FACE: u8 = 3;
const VERSION: u8 = 1;
/// The keyspaces.
pub(super) const ACCOUNTS: u8 = b'a';
pub(super) const CHANGES: u8 = b'c';
pub(super) const NUMBERS: u8 = b'n';
pub(super) const CURRENCIES: u8 = b'u';
pub(super) const IDS: u8 = b'i';
pub(super) const HISTORY: u8 = b'h';
pub(super) const PENDING: u8 = b'p';
pub(super) const REVERTS: u8 = b'r';
pub(super) const FENCES: u8 = b'f';
pub(super) const REFERENCES: u8 = b'w';
/// The keyspace of the expiry index, whose subjects are pending transfers' ids.
pub(super) const EXPIRIES: [u8; 2] = [FACE, b'x'];
/// Where earlier versions keep a bound above which they look up no id. It is the largest of all, so that they
/// look up every id in a store of this version.
pub(super) const CEILING_KEY: &[u8] = &[FACE, b'm'];

/// Where the newest client time of imported transfers is.
pub(super) const IMPORTED_KEY: &[u8] = &[FACE, b't'];

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
    text_key(NUMBERS, number)
}

pub(super) fn text_key(space: u8, text: &str) -> Vec<u8> {
    [&[FACE, space], text.as_bytes()].concat()
}

pub(super) fn currency_key(currency: Currency) -> [u8; 10] {
    let mut key = [FACE, CURRENCIES, 0, 0, 0, 0, 0, 0, 0, 0];
    key[2..].copy_from_slice(&currency.to_bytes());
    key
}

pub(super) fn history_key(account: u128, revision: Revision) -> [u8; 26] {
    revision_key(HISTORY, account, revision)
}

pub(super) fn change_key(account: u128, revision: Revision) -> [u8; 26] {
    revision_key(CHANGES, account, revision)
}

fn revision_key(space: u8, account: u128, revision: Revision) -> [u8; 26] {
    let mut key = [0; 26];
    key[..18].copy_from_slice(&id_key(space, account));
    key[18..].copy_from_slice(&revision.0.to_be_bytes());
    key
}

/// The revision that a key ends with.
pub(super) fn key_revision(key: &[u8]) -> Revision {
    let tail = key.last_chunk().expect("keys of histories and of changes end with a revision");
    Revision(u64::from_be_bytes(*tail))
}

/// An id on its own, as the subject of an expiry.
pub(super) fn decode_id(bytes: &[u8]) -> Result<u128, Malformed> {
    bytes.try_into().map(u128::from_be_bytes).map_err(|_| Malformed { what: "id" })
}

/// Id and number of the account that a currency's money comes from and goes to: `@world/EUR`. The id is the
/// number's bytes.
pub fn world_account(currency: Currency) -> (u128, String) {
    let number = format!("@world/{currency}");
    let mut id = [0; 16];
    id[..number.len()].copy_from_slice(number.as_bytes());
    (u128::from_be_bytes(id), number)
}

/// Whether an id is reserved for the ledger itself.
pub(super) fn is_reserved(id: u128) -> bool {
    id == 0 || id.to_be_bytes().starts_with(b"@world/")
}

/// Whether an id grows with time: a UUID of version 7, whose first 48 bits are milliseconds (RFC 9562).
pub(super) fn is_ordered(id: u128) -> bool {
    id >> 76 & 0xf == 7
}

/// An account without its balances, as stored.
#[derive(Clone, PartialEq, Message)]
pub struct AccountRecord {
    /// The account as it was created.
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
    /// The last revision that changed this record.
    #[prost(uint64, tag = "6")]
    pub changed_revision: u64,
    /// The changeable parts, if they were changed; they replace those of `origin`.
    #[prost(message, optional, tag = "7")]
    pub changed: Option<Changed>,
    /// From this revision on, each change of this record is in the index of changes. 0: it is not, for the last change
    /// was made by a version without that index.
    #[prost(uint64, tag = "8")]
    pub indexed_from: u64,
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
    /// See [`NewAccount::maximum`].
    #[prost(message, optional, tag = "6")]
    pub maximum: Option<Amount>,
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
            maximum: self.origin.maximum,
        })
    }

    /// As it was created.
    #[must_use]
    pub(super) fn original(self) -> Self {
        Self { status: self.origin.status, changed_revision: self.created_revision, changed: None, ..self }
    }

    /// As transfers see it: closed, while a pending transfer closes it.
    #[must_use]
    pub(super) fn seen(self, closed: bool) -> Self {
        if closed { Self { status: Status::Closed.into(), ..self } } else { self }
    }

    /// How far it may go below zero, in minor units; `None` if there is no bound.
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

    /// How much it may hold, in minor units; `None` if there is no bound.
    pub fn maximum(&self) -> Option<u128> {
        let maximum = self.changed.as_ref().map_or(self.origin.maximum, |changed| changed.maximum);
        maximum.map(u128::from)
    }

    /// As [`Self::maximum`], with a bound that nothing exceeds for none.
    pub(super) fn ceiling(&self) -> u128 {
        self.maximum().unwrap_or(u128::MAX)
    }
}

/// An account's balances in minor units. The account holds credits minus debits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balances {
    /// Sum of all posted debits.
    pub debits_posted: u128,
    /// Sum of all posted credits.
    pub credits_posted: u128,
    /// Reserved by pending transfers.
    pub debits_pending: u128,
    /// Expected from pending transfers.
    pub credits_pending: u128,
}

/// An account's balances after a command, and its transfers in that command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HistoryRecord {
    pub(super) stamp: Stamp,
    pub(super) balances: Balances,
    pub(super) positions: Vec<u32>,
    /// A pending transfer has closed the account.
    pub(super) closed: bool,
}

pub(super) fn encode_history(stamp: Stamp, balances: &Balances, positions: &[u32], closed: bool) -> Bytes {
    let mut out = Vec::with_capacity(32);
    out.push(VERSION);
    codec::put_varint(&mut out, stamp.0);
    for amount in
        [balances.debits_posted, balances.credits_posted, balances.debits_pending, balances.credits_pending]
    {
        codec::put_varint_u128(&mut out, amount);
    }
    codec::put_varint(&mut out, positions.len() as u64);
    let mut before = 0;
    for position in positions {
        codec::put_varint(&mut out, (position - before).into());
        before = *position;
    }
    if closed {
        out.push(1);
    }
    out.into()
}

pub(super) fn decode_history(record: &[u8]) -> Result<HistoryRecord, Malformed> {
    let mut reader = Reader::new(record, "account history");
    if reader.byte()? != VERSION {
        return Err(reader.malformed());
    }
    let stamp = Stamp(reader.varint()?);
    let balances = Balances {
        debits_posted: reader.varint_u128()?,
        credits_posted: reader.varint_u128()?,
        debits_pending: reader.varint_u128()?,
        credits_pending: reader.varint_u128()?,
    };
    let (count, mut position, mut positions) = (reader.varint()?, 0, Vec::new());
    for _ in 0..count {
        position += u32::try_from(reader.varint()?).map_err(|_| reader.malformed())?;
        positions.push(position);
    }
    let closed = match reader.is_empty() {
        true => false,
        false if reader.byte()? == 1 => true,
        false => return Err(reader.malformed()),
    };
    Ok(HistoryRecord { stamp, balances, positions, closed })
}

/// The record of where a transfer is in the journal.
pub(super) fn encode_location(revision: Revision, position: u32) -> Bytes {
    let mut out = Vec::with_capacity(8);
    codec::put_varint(&mut out, revision.0);
    codec::put_varint(&mut out, position.into());
    out.into()
}

/// What an id is recorded as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// A transfer, at this place in the journal.
    At(Revision, u32),
    /// The key of a request for several transfers or accounts.
    Key {
        /// Of what it asked for.
        fingerprint: u128,
    },
}

/// The record of a request's key. No transfer is at revision 0.
pub(super) fn encode_key(fingerprint: u128) -> Bytes {
    [&[0, 0][..], &fingerprint.to_be_bytes()].concat().into()
}

pub(super) fn decode_location(record: &[u8]) -> Result<Location, Malformed> {
    let mut reader = Reader::new(record, "transfer location");
    let revision = Revision(reader.varint()?);
    let position = u32::try_from(reader.varint()?).map_err(|_| reader.malformed())?;
    if revision.0 > 0 {
        return Ok(Location::At(revision, position));
    }
    Ok(Location::Key { fingerprint: reader.u128()? })
}

/// The state of a pending transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PendingState {
    /// Neither posted, voided nor expired.
    Open = 0,
    /// Posted, in full or in part.
    Posted = 1,
    /// Voided.
    Voided = 2,
    /// Expired.
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
    /// Which accounts it has closed while it is open.
    pub(super) closing: Closing,
}

/// The accounts that a pending transfer has closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Closing {
    pub(super) debit: bool,
    pub(super) credit: bool,
}

impl PendingRecord {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = vec![VERSION, self.state as u8];
        out.extend_from_slice(&self.debit.to_be_bytes());
        out.extend_from_slice(&self.credit.to_be_bytes());
        codec::put_varint_u128(&mut out, self.amount);
        codec::put_varint(&mut out, self.deadline);
        codec::put_varint(&mut out, self.ended.0);
        let closing = u8::from(self.closing.debit) | u8::from(self.closing.credit) << 1;
        if closing > 0 {
            out.push(closing);
        }
        out.into()
    }

    pub(super) fn decode(record: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(record, "pending transfer");
        if reader.byte()? != VERSION {
            return Err(reader.malformed());
        }
        let state = match reader.byte()? {
            0 => PendingState::Open,
            1 => PendingState::Posted,
            2 => PendingState::Voided,
            3 => PendingState::Expired,
            _ => return Err(reader.malformed()),
        };
        let mut pending = Self {
            state,
            debit: reader.u128()?,
            credit: reader.u128()?,
            amount: reader.varint_u128()?,
            deadline: reader.varint()?,
            ended: Revision(reader.varint()?),
            closing: Closing::default(),
        };
        if !reader.is_empty() {
            let closing = reader.byte()?;
            pending.closing = Closing { debit: closing & 1 != 0, credit: closing & 2 != 0 };
        }
        Ok(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_pinned() {
        let balances =
            Balances { debits_posted: 1, credits_posted: 300, debits_pending: 0, credits_pending: u128::MAX };
        let history = encode_history(Stamp(5), &balances, &[3, 70], false);
        let max = [&[0xff; 18][..], &[3]].concat();
        assert_eq!(&history[..], [b"\x01\x05\x01\xac\x02\0", &max[..], b"\x02\x03\x43"].concat());
        assert_eq!(
            decode_history(&history),
            Ok(HistoryRecord { stamp: Stamp(5), balances, positions: vec![3, 70], closed: false })
        );
        let closed = encode_history(Stamp(5), &balances, &[3, 70], true);
        assert_eq!(closed, [&history[..], b"\x01"].concat());
        assert!(decode_history(&closed).unwrap().closed);
        assert!(decode_history(&[&history[..], b"\x02"].concat()).is_err());
        assert_eq!(&encode_location(Revision(300), 9)[..], b"\xac\x02\x09");
        assert_eq!(decode_location(b"\xac\x02\x09"), Ok(Location::At(Revision(300), 9)));
        let key = [b"\0\0", &[0; 15][..], &[7]].concat();
        assert_eq!(&encode_key(7)[..], key);
        assert_eq!(decode_location(&key), Ok(Location::Key { fingerprint: 7 }));
        assert!(decode_location(b"\0\0").is_err());
        let pending = PendingRecord {
            state: PendingState::Voided,
            debit: 1,
            credit: 2,
            amount: 3,
            deadline: 4,
            ended: Revision(5),
            closing: Closing::default(),
        };
        let golden = [b"\x01\x02", &[0; 15][..], &[1], &[0; 15], &[2], b"\x03\x04\x05"].concat();
        assert_eq!(&pending.encode()[..], golden);
        assert_eq!(PendingRecord::decode(&golden), Ok(pending));
        let closing = PendingRecord { closing: Closing { debit: false, credit: true }, ..pending };
        let golden = [&golden[..], b"\x02"].concat();
        assert_eq!(&closing.encode()[..], golden);
        assert_eq!(PendingRecord::decode(&golden), Ok(closing));
    }

    #[test]
    fn an_account_is_pinned_and_one_of_the_version_before_is_read() {
        let origin = NewAccount { currency: "EUR".into(), ..NewAccount::default() }.with_id(1);
        let (created_revision, changed_revision) = (2, 9);
        let account = AccountRecord {
            origin,
            scale: 2,
            status: Status::Frozen.into(),
            created_ms: 5,
            created_revision,
            changed_revision,
            changed: None,
            indexed_from: 2,
        };
        let before =
            [b"\x0a\x0e\x11\x01", &[0; 7][..], b"\x22\x03EUR\x10\x02\x18\x01\x20\x05\x28\x02\x30\x09"]
                .concat();
        assert_eq!(account.encode_to_vec(), [&before[..], b"\x40\x02"].concat());
        assert_eq!(AccountRecord::decode(&before[..]), Ok(AccountRecord { indexed_from: 0, ..account }));
        assert_eq!(
            &change_key(1, Revision(9))[..],
            [b"\x03c", &[0; 15][..], &[1, 0, 0, 0, 0, 0, 0, 0, 9]].concat()
        );
    }

    #[test]
    fn uuids_of_version_7_grow_with_time() {
        let id = 0x0190_b5e2_7f2c_7c1e_9d1a_3f5b_8c2a_4e61;
        assert!(is_ordered(id) && !is_ordered(id ^ 1 << 76));
    }

    #[test]
    fn the_world_has_one_account_per_currency() {
        let (id, number) = world_account("EUR".parse().unwrap());
        assert_eq!((number.as_str(), &id.to_be_bytes()), ("@world/EUR", b"@world/EUR\0\0\0\0\0\0"));
        assert!(is_reserved(id) && is_reserved(0) && !is_reserved(1));
    }
}
