//! The ledger's commands.
//!
//! A command's first byte is the version (1), its second says what follows:
//!
//! ```text
//! 1  transfers, see transfer.rs
//! 2  Protocol Buffers: an operation on accounts or currencies ([`Operation`])
//! ```

use super::transfer::Key;
use crate::charge::{Costs, Part};
use crate::codec::{CommandMessage, decode_command};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;

pub(super) const VERSION: u8 = 1;
pub(super) const TRANSFERS: u8 = 1;
pub(super) const OPERATION: u8 = 2;

/// An operation on accounts or currencies.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Operation {
    /// Create accounts; each has its own result.
    #[prost(message, tag = "1")]
    CreateAccounts(NewAccounts),
    /// Change one account.
    #[prost(message, tag = "2")]
    UpdateAccount(UpdateAccount),
    /// Create a custom unit of account.
    #[prost(message, tag = "3")]
    CreateCurrency(NewCurrency),
    /// Switch indexes of transfers on or off.
    #[prost(message, tag = "20")]
    SetIndexes(SetIndexes),
}

impl Operation {
    /// Creates `accounts`.
    pub fn create_accounts(accounts: Vec<NewAccount>) -> Self {
        Self::CreateAccounts(NewAccounts { accounts, ..NewAccounts::default() })
    }

    /// Creates `accounts`, as one request with this key.
    pub fn create_accounts_keyed(accounts: Vec<NewAccount>, key: Key) -> Self {
        let Key { id, fingerprint } = key;
        Self::CreateAccounts(NewAccounts {
            accounts,
            key_high: (id >> 64) as u64,
            key_low: id as u64,
            fingerprint_high: (fingerprint >> 64) as u64,
            fingerprint_low: fingerprint as u64,
        })
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        let message = Envelope { operation: Some(self) };
        let mut out = Vec::with_capacity(2 + message.encoded_len());
        out.extend_from_slice(&[VERSION, OPERATION]);
        message.encode(&mut out).expect("a vector grows");
        out.into()
    }

    pub(super) fn decode(bytes: Bytes) -> Option<Self> {
        decode_command::<Envelope>(bytes.slice(2..))?.operation
    }
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(oneof = "Operation", tags = "1, 2, 3, 20")]
    operation: Option<Operation>,
}

/// A map's entry: two strings, and its share of the map's node.
const ENTRY_BYTES: usize = 4 * size_of::<String>();
static ENTRY: Costs = Costs(&[]);
static NEW_ACCOUNT: Costs = Costs(&[(9, Part::Message(ENTRY_BYTES, &ENTRY))]);
static NEW_ACCOUNTS: Costs = Costs(&[(1, Part::Message(size_of::<NewAccount>(), &NEW_ACCOUNT))]);
static UPDATE_ACCOUNT: Costs = Costs(&[(8, Part::Message(ENTRY_BYTES, &ENTRY))]);
static SET_INDEXES: Costs = Costs(&[(1, Part::Varints(size_of::<u32>()))]);
static ENVELOPE: Costs = Costs(&[
    (1, Part::Message(0, &NEW_ACCOUNTS)),
    (2, Part::Message(0, &UPDATE_ACCOUNT)),
    (20, Part::Message(0, &SET_INDEXES)),
]);
const _: () = assert!(NEW_ACCOUNTS.is_sound());

impl CommandMessage for Envelope {
    const COSTS: &'static Costs = &ENVELOPE;
}

/// Accounts to create.
#[derive(Clone, PartialEq, Message)]
pub struct NewAccounts {
    /// In this order.
    #[prost(message, repeated, tag = "1")]
    pub accounts: Vec<NewAccount>,
    /// The request's key, see [`Key::id`], in two halves; 0 for none.
    #[prost(fixed64, tag = "2")]
    pub key_high: u64,
    /// See `key_high`.
    #[prost(fixed64, tag = "3")]
    pub key_low: u64,
    /// See [`Key::fingerprint`], in two halves.
    #[prost(fixed64, tag = "4")]
    pub fingerprint_high: u64,
    /// See `fingerprint_high`.
    #[prost(fixed64, tag = "5")]
    pub fingerprint_low: u64,
}

impl NewAccounts {
    /// The request's key.
    pub(super) fn key(&self) -> Option<Key> {
        let number = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let id = number(self.key_high, self.key_low);
        (id != 0).then(|| Key { id, fingerprint: number(self.fingerprint_high, self.fingerprint_low) })
    }
}

/// An account to create.
#[derive(Clone, PartialEq, Message)]
pub struct NewAccount {
    /// Its id, a UUID, in two halves.
    #[prost(fixed64, tag = "1")]
    pub id_high: u64,
    /// See `id_high`.
    #[prost(fixed64, tag = "2")]
    pub id_low: u64,
    /// The name that people use; unique unless it is empty.
    #[prost(string, tag = "3")]
    pub number: String,
    /// Its currency's code.
    #[prost(string, tag = "4")]
    pub currency: String,
    /// How far it may go below zero.
    #[prost(enumeration = "Rule", tag = "5")]
    pub rule: i32,
    /// For [`Rule::Limit`]: how far below zero, in minor units, in two halves.
    #[prost(uint64, tag = "6")]
    pub limit_low: u64,
    /// See `limit_low`.
    #[prost(uint64, tag = "7")]
    pub limit_high: u64,
    /// Any text.
    #[prost(string, tag = "8")]
    pub user_data: String,
    /// Any texts, by name.
    #[prost(btree_map = "string, string", tag = "9")]
    pub metadata: BTreeMap<String, String>,
    /// How much it may hold at most, in minor units, with what pending transfers may add; none for no bound. With 0 its
    /// credits never exceed its debits.
    #[prost(message, optional, tag = "10")]
    pub maximum: Option<Amount>,
    /// Created together with the next account of the command, or not at all.
    #[prost(bool, tag = "11")]
    pub linked: bool,
    /// The amount of its first transfer, from its currency's world account, which has this account's id; none for no
    /// such transfer.
    #[prost(message, optional, tag = "12")]
    pub opening: Option<Amount>,
    /// With which it begins: active or pending.
    #[prost(enumeration = "Status", tag = "13")]
    pub status: i32,
}

/// An amount in minor units, in two halves.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Amount {
    /// The low 64 bits.
    #[prost(uint64, tag = "1")]
    pub low: u64,
    /// The high 64 bits.
    #[prost(uint64, tag = "2")]
    pub high: u64,
}

impl From<u128> for Amount {
    fn from(amount: u128) -> Self {
        Self { low: amount as u64, high: (amount >> 64) as u64 }
    }
}

impl From<Amount> for u128 {
    fn from(Amount { low, high }: Amount) -> Self {
        Self::from(high) << 64 | Self::from(low)
    }
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

/// Changes to an account; absent fields stay.
#[derive(Clone, PartialEq, Message)]
pub struct UpdateAccount {
    /// Its id, in two halves.
    #[prost(fixed64, tag = "1")]
    pub id_high: u64,
    /// See `id_high`.
    #[prost(fixed64, tag = "2")]
    pub id_low: u64,
    /// See [`Status`].
    #[prost(enumeration = "Status", optional, tag = "3")]
    pub status: Option<i32>,
    /// How far it may go below zero; replaces the limit too.
    #[prost(enumeration = "Rule", optional, tag = "4")]
    pub rule: Option<i32>,
    /// See [`NewAccount::limit_low`].
    #[prost(uint64, tag = "5")]
    pub limit_low: u64,
    /// See `limit_low`.
    #[prost(uint64, tag = "6")]
    pub limit_high: u64,
    /// Any text.
    #[prost(string, optional, tag = "7")]
    pub user_data: Option<String>,
    /// Replaces all metadata if `replace_metadata` is set.
    #[prost(btree_map = "string, string", tag = "8")]
    pub metadata: BTreeMap<String, String>,
    /// See `metadata`.
    #[prost(bool, tag = "9")]
    pub replace_metadata: bool,
    /// Refused if the account was changed after this revision; 0 skips the check.
    #[prost(uint64, tag = "10")]
    pub unchanged_since: u64,
    /// See [`NewAccount::maximum`].
    #[prost(message, optional, tag = "11")]
    pub maximum: Option<Amount>,
    /// Takes the maximum away.
    #[prost(bool, tag = "12")]
    pub no_maximum: bool,
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

/// Which indexes of transfers to keep from now on.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SetIndexes {
    /// The numbers of those to keep, see [`super::Index`]; all others are switched off.
    #[prost(uint32, repeated, tag = "1")]
    pub on: Vec<u32>,
    /// Whether references must be unique, see `references.rs`.
    #[prost(bool, tag = "2")]
    pub unique_references: bool,
}

/// A custom unit of account to create.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NewCurrency {
    /// Its code.
    #[prost(string, tag = "1")]
    pub code: String,
    /// Its number of decimal places.
    #[prost(uint32, tag = "2")]
    pub scale: u32,
}

/// How far an account may go below zero. The numbers are on disk and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Rule {
    /// Not at all.
    NoOverdraft = 0,
    /// Down to the limit.
    Limit = 1,
    /// Without a bound: for system accounts.
    Unlimited = 2,
}

/// What may be done with an account. The numbers are on disk and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Status {
    /// Everything.
    Active = 0,
    /// Only void pending transfers, until it is active again.
    Frozen = 1,
    /// Nothing, for good.
    Closed = 2,
    /// Nothing yet, until it is active.
    Pending = 3,
}
