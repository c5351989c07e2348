//! What may be asked of the ledger face.
//!
//! A command's first byte is the version (1), its second says what follows:
//!
//! ```text
//! 1  transfers: u8 wishes (1 = answer with balances), u16 count, little-endian, then each transfer:
//!      u8    kind in the low 3 bits (0 single, 1 pending, 2 post, 3 void, 4 expired: in the journal only), then
//!            flags: 0x08 linked to the next, 0x10 currency, 0x20 timeout, 0x40 code, 0x80 texts
//!      u128  id
//!      single, pending: u128 debit account, u128 credit account, varint amount
//!      post: u128 id of the pending transfer, varint amount, 0 for all of it;   void, expired: u128 its id
//!      by the flags: 8 bytes currency, varint timeout in ms, varint code, bytes reference, bytes user data
//! 2  Protocol Buffers: an operation on accounts or currencies ([`Operation`])
//! ```
//!
//! Ids are 16 bytes, big-endian, as in a UUID. Varints are LEB128, up to 128 bits. There is one way to encode a
//! transfer, so equal contents are equal bytes.

use super::currency::Currency;
use super::record::{Cursor, Rule, Status, put_u128};
use crate::codec::{self, Malformed};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;

/// Transfers in one command at most.
pub const TRANSFERS_MAX: usize = 8190;
/// Bytes of a reference and of a transfer's user data at most.
pub const REFERENCE_BYTES_MAX: usize = 256;

pub(super) const VERSION: u8 = 1;
pub(super) const TRANSFERS: u8 = 1;
pub(super) const OPERATION: u8 = 2;
const HEADER: usize = 5;
const WISH_BALANCES: u8 = 1;

const LINKED: u8 = 0x08;
const CURRENCY: u8 = 0x10;
const TIMEOUT: u8 = 0x20;
const CODE: u8 = 0x40;
const TEXTS: u8 = 0x80;

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer<'a> {
    /// Chosen by the client, once for each thing that shall happen.
    pub id: u128,
    /// What is to be done.
    pub kind: Kind,
    /// All or none, together with the next transfer of the command.
    pub linked: bool,
    /// What the client believes the currency to be; refused where the accounts have another.
    pub currency: Option<Currency>,
    /// What it is for, as a number of the client's choice.
    pub code: u32,
    /// What it is for, as a text.
    pub reference: &'a str,
    /// Anything.
    pub user_data: &'a str,
}

/// What a transfer does. Amounts are in minor units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the words of double-entry book-keeping")]
pub enum Kind {
    /// Moves an amount at once.
    Single { debit: u128, credit: u128, amount: u128 },
    /// Sets an amount aside until it is posted or voided, or `timeout_ms` after the batch's stamp (0: never) it lapses.
    Pending { debit: u128, credit: u128, amount: u128, timeout_ms: u64 },
    /// Moves what a pending transfer set aside, or the part of it that is given; the rest is free again.
    Post { pending: u128, amount: Option<u128> },
    /// Frees what a pending transfer set aside.
    Void { pending: u128 },
    /// What time did to a pending transfer. In the journal only: nobody can ask for it.
    Expired { pending: u128 },
}

impl<'a> Transfer<'a> {
    /// A transfer with nothing but the necessary.
    pub fn new(id: u128, kind: Kind) -> Self {
        Self { id, kind, linked: false, currency: None, code: 0, reference: "", user_data: "" }
    }

    /// Whether `other` asks for the same. A currency that is not named is the accounts' own.
    pub fn same_content(&self, other: &Transfer<'_>) -> bool {
        let agree = self.currency.is_none() || other.currency.is_none() || self.currency == other.currency;
        agree && *self == Transfer { currency: self.currency, ..*other }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let (tag, timeout_ms) = match self.kind {
            Kind::Single { .. } => (0, 0),
            Kind::Pending { timeout_ms, .. } => (1, timeout_ms),
            Kind::Post { .. } => (2, 0),
            Kind::Void { .. } => (3, 0),
            Kind::Expired { .. } => (4, 0),
        };
        let flag = |wanted: bool, flag: u8| if wanted { flag } else { 0 };
        let texts = !self.reference.is_empty() || !self.user_data.is_empty();
        out.push(
            tag | flag(self.linked, LINKED)
                | flag(self.currency.is_some(), CURRENCY)
                | flag(timeout_ms > 0, TIMEOUT)
                | flag(self.code > 0, CODE)
                | flag(texts, TEXTS),
        );
        out.extend_from_slice(&self.id.to_be_bytes());
        match self.kind {
            Kind::Single { debit, credit, amount } | Kind::Pending { debit, credit, amount, .. } => {
                out.extend_from_slice(&debit.to_be_bytes());
                out.extend_from_slice(&credit.to_be_bytes());
                put_u128(out, amount);
            }
            Kind::Post { pending, amount } => {
                out.extend_from_slice(&pending.to_be_bytes());
                put_u128(out, amount.unwrap_or(0));
            }
            Kind::Void { pending } | Kind::Expired { pending } => {
                out.extend_from_slice(&pending.to_be_bytes())
            }
        }
        if let Some(currency) = self.currency {
            out.extend_from_slice(&currency.to_bytes());
        }
        if timeout_ms > 0 {
            codec::put_varint(out, timeout_ms);
        }
        if self.code > 0 {
            codec::put_varint(out, self.code.into());
        }
        if texts {
            codec::put_bytes(out, self.reference.as_bytes());
            codec::put_bytes(out, self.user_data.as_bytes());
        }
    }

    pub(super) fn decode(from: &mut Cursor<'a>) -> Result<Self, Malformed> {
        let head = from.byte()?;
        let id = from.id()?;
        let mut kind = match head & 0x07 {
            0 => Kind::Single { debit: from.id()?, credit: from.id()?, amount: from.u128()? },
            1 => Kind::Pending { debit: from.id()?, credit: from.id()?, amount: from.u128()?, timeout_ms: 0 },
            2 => Kind::Post { pending: from.id()?, amount: Some(from.u128()?).filter(|amount| *amount > 0) },
            3 => Kind::Void { pending: from.id()? },
            4 => Kind::Expired { pending: from.id()? },
            _ => return Err(from.malformed()),
        };
        let currency = if head & CURRENCY != 0 {
            Some(Currency::from_bytes(from.array()?).ok_or_else(|| from.malformed())?)
        } else {
            None
        };
        if head & TIMEOUT != 0 {
            let Kind::Pending { timeout_ms, .. } = &mut kind else { return Err(from.malformed()) };
            *timeout_ms = from.varint()?;
        }
        let code = if head & CODE != 0 { from.varint()? } else { 0 };
        let (mut reference, mut user_data) = ("", "");
        if head & TEXTS != 0 {
            reference = from.text()?;
            user_data = from.text()?;
        }
        let code = u32::try_from(code).map_err(|_| from.malformed())?;
        Ok(Self { id, kind, linked: head & LINKED != 0, currency, code, reference, user_data })
    }
}

/// Encodes a command of transfers, one after the other.
#[derive(Debug)]
pub struct Transfers {
    out: Vec<u8>,
    count: u16,
}

impl Transfers {
    /// None yet. With `balances` the answer tells both accounts' balances after each transfer.
    pub fn new(balances: bool) -> Self {
        let wishes = if balances { WISH_BALANCES } else { 0 };
        Self { out: vec![VERSION, TRANSFERS, wishes, 0, 0], count: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// Adds one. There may be [`TRANSFERS_MAX`].
    pub fn push(&mut self, transfer: &Transfer<'_>) {
        assert!(self.len() < TRANSFERS_MAX, "the caller bounds a command's transfers");
        transfer.encode(&mut self.out);
        self.count += 1;
    }

    /// Adds all of another command, after these. There may be [`TRANSFERS_MAX`] together.
    pub fn append(&mut self, other: &Self) {
        assert!(self.len() + other.len() <= TRANSFERS_MAX, "the caller bounds a command's transfers");
        self.out[2] |= other.out[2];
        self.out.extend_from_slice(&other.out[HEADER..]);
        self.count += other.count;
    }

    /// The command.
    pub fn into_command(mut self) -> crate::Command {
        self.out[3..HEADER].copy_from_slice(&self.count.to_le_bytes());
        crate::Command { face: crate::Face::Ledger, bytes: self.out.into() }
    }
}

/// The parts of a command of transfers: whether balances are wanted, how many there are, and the first one's place.
pub(super) fn transfers_header(bytes: &[u8]) -> Result<(bool, usize, Cursor<'_>), Malformed> {
    let mut cursor = Cursor::new(bytes, "ledger command");
    let (_version_and_kind, wishes) = (cursor.array::<2>()?, cursor.byte()?);
    let count = usize::from(u16::from_le_bytes(cursor.array()?));
    if count > TRANSFERS_MAX {
        Err(cursor.malformed())
    } else {
        Ok((wishes & WISH_BALANCES != 0, count, cursor))
    }
}

/// An operation on accounts or currencies.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Operation {
    /// Makes accounts; each has its own result.
    #[prost(message, tag = "1")]
    CreateAccounts(NewAccounts),
    /// Changes one account.
    #[prost(message, tag = "2")]
    UpdateAccount(UpdateAccount),
    /// Makes a custom unit of account.
    #[prost(message, tag = "3")]
    CreateCurrency(NewCurrency),
}

impl Operation {
    /// Makes `accounts`.
    pub fn create_accounts(accounts: Vec<NewAccount>) -> Self {
        Self::CreateAccounts(NewAccounts { accounts })
    }

    /// The command, encoded for a batch.
    pub fn into_command(self) -> crate::Command {
        let message = Envelope { operation: Some(self) };
        let mut out = Vec::with_capacity(2 + message.encoded_len());
        out.extend_from_slice(&[VERSION, OPERATION]);
        message.encode(&mut out).expect("a vector grows");
        crate::Command { face: crate::Face::Ledger, bytes: out.into() }
    }

    pub(super) fn decode(bytes: Bytes) -> Option<Self> {
        Envelope::decode(bytes.slice(2..)).ok()?.operation
    }
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(oneof = "Operation", tags = "1, 2, 3")]
    operation: Option<Operation>,
}

/// Accounts to be made.
#[derive(Clone, PartialEq, Message)]
pub struct NewAccounts {
    /// In this order.
    #[prost(message, repeated, tag = "1")]
    pub accounts: Vec<NewAccount>,
}

/// An account to be made.
#[derive(Clone, PartialEq, Message)]
pub struct NewAccount {
    /// Its id, a UUID, in two halves.
    #[prost(fixed64, tag = "1")]
    pub id_high: u64,
    /// See `id_high`.
    #[prost(fixed64, tag = "2")]
    pub id_low: u64,
    /// What people call it; unique where it is not empty.
    #[prost(string, tag = "3")]
    pub number: String,
    /// Its currency's code.
    #[prost(string, tag = "4")]
    pub currency: String,
    /// How far it may go below zero.
    #[prost(enumeration = "Rule", tag = "5")]
    pub rule: i32,
    /// For [`Rule::Limit`]: how far, in minor units, in two halves.
    #[prost(uint64, tag = "6")]
    pub limit_low: u64,
    /// See `limit_low`.
    #[prost(uint64, tag = "7")]
    pub limit_high: u64,
    /// Anything.
    #[prost(string, tag = "8")]
    pub user_data: String,
    /// Anything, by name.
    #[prost(btree_map = "string, string", tag = "9")]
    pub metadata: BTreeMap<String, String>,
}

impl NewAccount {
    /// The id as one number.
    pub fn id(&self) -> u128 {
        u128::from(self.id_high) << 64 | u128::from(self.id_low)
    }

    /// With this id.
    #[must_use]
    pub fn with_id(mut self, id: u128) -> Self {
        (self.id_high, self.id_low) = ((id >> 64) as u64, id as u64);
        self
    }

    /// With this limit, in minor units.
    #[must_use]
    pub fn with_limit(mut self, limit: u128) -> Self {
        (self.limit_high, self.limit_low) = ((limit >> 64) as u64, limit as u64);
        self
    }
}

/// What to change of an account; what is absent stays.
#[derive(Clone, PartialEq, Message)]
pub struct UpdateAccount {
    /// Its id, in two halves.
    #[prost(fixed64, tag = "1")]
    pub id_high: u64,
    /// See `id_high`.
    #[prost(fixed64, tag = "2")]
    pub id_low: u64,
    /// Active, frozen, closed.
    #[prost(enumeration = "Status", optional, tag = "3")]
    pub status: Option<i32>,
    /// How far it may go below zero, with the limit.
    #[prost(enumeration = "Rule", optional, tag = "4")]
    pub rule: Option<i32>,
    /// See [`NewAccount::limit_low`].
    #[prost(uint64, tag = "5")]
    pub limit_low: u64,
    /// See `limit_low`.
    #[prost(uint64, tag = "6")]
    pub limit_high: u64,
    /// Anything.
    #[prost(string, optional, tag = "7")]
    pub user_data: Option<String>,
    /// All of it anew, where `replace_metadata` is set.
    #[prost(btree_map = "string, string", tag = "8")]
    pub metadata: BTreeMap<String, String>,
    /// See `metadata`.
    #[prost(bool, tag = "9")]
    pub replace_metadata: bool,
    /// Refused if the account was changed after this revision; 0 for whatever it is.
    #[prost(uint64, tag = "10")]
    pub unchanged_since: u64,
}

impl UpdateAccount {
    /// The id as one number.
    pub fn id(&self) -> u128 {
        u128::from(self.id_high) << 64 | u128::from(self.id_low)
    }

    /// For this id.
    pub fn of(id: u128) -> Self {
        Self { id_high: (id >> 64) as u64, id_low: id as u64, ..Self::default() }
    }
}

/// A custom unit of account to be made.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NewCurrency {
    /// Its code.
    #[prost(string, tag = "1")]
    pub code: String,
    /// Its number of decimal places.
    #[prost(uint32, tag = "2")]
    pub scale: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_pinned() {
        let mut transfers = Transfers::new(true);
        let eur = "EUR".parse().unwrap();
        transfers.push(&Transfer {
            linked: true,
            currency: Some(eur),
            ..Transfer::new(1, Kind::Single { debit: 2, credit: 3, amount: 300 })
        });
        let pending = Kind::Pending { debit: 2, credit: 3, amount: 1 << 70, timeout_ms: 1000 };
        transfers.push(&Transfer { code: 7, reference: "r", user_data: "u", ..Transfer::new(4, pending) });
        transfers.push(&Transfer::new(5, Kind::Post { pending: 4, amount: None }));
        transfers.push(&Transfer::new(6, Kind::Void { pending: 4 }));
        let command = transfers.into_command();
        let mut golden = vec![1, 1, 1, 4, 0];
        let id = |out: &mut Vec<u8>, ids: &[u8]| {
            ids.iter().for_each(|n| out.extend([&[0; 15][..], &[*n]].concat()))
        };
        golden.push(0x18);
        id(&mut golden, &[1, 2, 3]);
        golden.extend(b"\xac\x02EUR\0\0\0\0\0");
        golden.push(0xe1);
        id(&mut golden, &[4, 2, 3]);
        golden.extend(b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\xe8\x07\x07\x01r\x01u");
        golden.push(2);
        id(&mut golden, &[5, 4]);
        golden.push(0);
        golden.push(3);
        id(&mut golden, &[6, 4]);
        assert_eq!(&command.bytes[..], &golden[..]);
        let (balances, count, mut cursor) = transfers_header(&command.bytes).unwrap();
        assert!(balances);
        let decoded: Vec<_> = (0..count).map(|_| Transfer::decode(&mut cursor).unwrap()).collect();
        assert!(cursor.is_empty());
        assert_eq!((decoded[0].currency, decoded[1].kind, decoded[1].reference), (Some(eur), pending, "r"));
        for length in HEADER..golden.len() {
            let (_, _, mut cut) = transfers_header(&golden[..length]).unwrap();
            assert!((0..count).any(|_| Transfer::decode(&mut cut).is_err()), "cut at {length}");
        }
    }

    #[test]
    fn a_currency_that_is_not_named_agrees_with_any() {
        let kind = Kind::Void { pending: 1 };
        let named = Transfer { currency: "EUR".parse().ok(), ..Transfer::new(1, kind) };
        let other = Transfer { currency: "USD".parse().ok(), ..named };
        assert!(named.same_content(&Transfer::new(1, kind)) && Transfer::new(1, kind).same_content(&named));
        assert!(!named.same_content(&other));
        assert!(!named.same_content(&Transfer { code: 1, ..named }));
    }
}
