//! The bodies and parameters of requests and answers, from which the OpenAPI document is generated.
//!
//! Amounts are decimal strings with all places of their currency, never numbers: many readers take JSON's
//! numbers for floats.

use crate::http::lists;
use crate::time;
use quoin_core::ledger::{
    self, ACCOUNTS_MAX, AccountRecord, Code, Currency, Entry, Kind, LOOKUP_MAX, Options, PendingState,
    Resolution, TRANSFERS_MAX, TransferState, TransferView, format_amount, format_signed,
};
use quoin_core::{Revision, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// How far an account may go below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rule {
    /// Not at all.
    NoOverdraft,
    /// Down to the limit.
    Limit,
    /// Without bound: for system accounts.
    Unlimited,
}

/// The transfers that an account takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AccountStatus {
    /// Takes part in all transfers.
    Active,
    /// Takes part in none, except that pending transfers can be voided, until it is active again.
    Frozen,
    /// Takes part in none, forever, for only an empty account can be closed; or while a pending transfer closes it.
    Closed,
    /// Takes part in none until it is active. Only a new account can be.
    Pending,
}

impl AccountStatus {
    fn of(status: ledger::Status) -> Self {
        match status {
            ledger::Status::Active => Self::Active,
            ledger::Status::Frozen => Self::Frozen,
            ledger::Status::Closed => Self::Closed,
            ledger::Status::Pending => Self::Pending,
        }
    }
}

/// An account to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewAccount {
    /// A UUID of your choice: the same request again creates nothing. Without one, and without an
    /// Idempotency-Key, the ledger chooses.
    #[schema(format = "uuid")]
    pub(super) id: Option<String>,
    /// The number by which people know it; unique. Numbers that begin with @ are reserved.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub(super) number: String,
    /// The code of ISO 4217 or of a custom unit.
    #[schema(example = "EUR", pattern = "^[A-Z0-9]{3,8}$")]
    pub(super) currency: String,
    /// By default `limit` if there is a limit, else `no_overdraft`.
    pub(super) rule: Option<Rule>,
    /// How far it may go below zero, as a decimal string.
    #[schema(example = "500.00")]
    pub(super) limit: Option<String>,
    /// How much it may hold at most, with what pending transfers may add, as a decimal string; by default without bound.
    /// With 0 its credits never exceed its debits.
    #[schema(example = "10000.00")]
    pub(super) maximum_balance: Option<String>,
    /// Its first transfer, done together with its creation or not at all: this much, above zero, from `@world/` and its
    /// currency. The transfer has the account's id.
    #[schema(example = "100.00")]
    pub(super) initial_balance: Option<String>,
    /// `active`, the default, or `pending`.
    pub(super) status: Option<AccountStatus>,
    /// In a batch: created together with the next account, or not at all.
    #[serde(default)]
    pub(super) linked: bool,
    /// Free text, up to 256 bytes.
    #[serde(default)]
    pub(super) user_data: String,
    /// Free text by name, up to 4,096 bytes together.
    #[serde(default, deserialize_with = "lists::texts")]
    pub(super) metadata: BTreeMap<String, String>,
}

/// Changes of an account; absent fields stay.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountPatch {
    pub(super) status: Option<AccountStatus>,
    pub(super) rule: Option<Rule>,
    /// As in a new account; implies the rule `limit`.
    pub(super) limit: Option<String>,
    /// As in a new account; `none` takes it away.
    pub(super) maximum_balance: Option<String>,
    pub(super) user_data: Option<String>,
    /// Replaces all metadata.
    #[serde(default, deserialize_with = "lists::optional_texts")]
    pub(super) metadata: Option<BTreeMap<String, String>>,
    /// Refused (412) if the account was changed after this revision.
    pub(super) unchanged_since: Option<u64>,
}

/// Balances as decimal strings.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Balance {
    /// Credits less debits.
    #[schema(example = "12.50")]
    pub(super) balance: String,
    /// The part of it that pending transfers reserve.
    pub(super) locked: String,
    /// What pending transfers may add.
    pub(super) incoming: String,
    /// Sum of all debits.
    pub(super) debits: String,
    /// Sum of all credits.
    pub(super) credits: String,
}

impl Balance {
    pub(super) fn of(balances: &ledger::Balances, scale: u32) -> Self {
        Self {
            balance: format_signed(balances.credits_posted, balances.debits_posted, scale),
            locked: format_amount(balances.debits_pending, scale),
            incoming: format_amount(balances.credits_pending, scale),
            debits: format_amount(balances.debits_posted, scale),
            credits: format_amount(balances.credits_posted, scale),
        }
    }
}

/// An account.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Account {
    #[schema(format = "uuid")]
    pub(super) id: String,
    pub(super) number: String,
    pub(super) currency: String,
    /// Decimal places of the currency.
    pub(super) scale: u32,
    pub(super) status: AccountStatus,
    pub(super) rule: Rule,
    /// If the rule is `limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<String>,
    /// If there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) maximum_balance: Option<String>,
    pub(super) user_data: String,
    pub(super) metadata: BTreeMap<String, String>,
    /// When it was created (RFC 3339).
    #[schema(format = DateTime)]
    pub(super) created: String,
    pub(super) created_revision: u64,
    /// The revision of its last change, transfers not counted.
    pub(super) changed_revision: u64,
    /// The revision of the last change of its balances; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) balance_revision: Option<u64>,
    /// Absent in events.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) balance: Option<Balance>,
}

impl Account {
    pub(super) fn of(record: &AccountRecord) -> Self {
        let present = record.present();
        let rule = match present.rule() {
            ledger::Rule::NoOverdraft => Rule::NoOverdraft,
            ledger::Rule::Limit => Rule::Limit,
            ledger::Rule::Unlimited => Rule::Unlimited,
        };
        let limit = record.allowance().filter(|_| rule == Rule::Limit);
        Self {
            id: shown(record.id()),
            number: record.origin.number.clone(),
            currency: record.origin.currency.clone(),
            scale: record.scale,
            status: AccountStatus::of(record.status()),
            rule,
            limit: limit.map(|limit| format_amount(limit, record.scale)),
            maximum_balance: record.maximum().map(|most| format_amount(most, record.scale)),
            user_data: present.user_data,
            metadata: present.metadata,
            created: time::format(record.created_ms),
            created_revision: record.created_revision,
            changed_revision: record.changed_revision,
            balance_revision: None,
            balance: None,
        }
    }

    pub(super) fn with_balances(account: &ledger::Account) -> Self {
        Self {
            balance: Some(Balance::of(&account.balances, account.record.scale)),
            balance_revision: Some(account.balance_revision.0),
            status: AccountStatus::of(account.status()),
            ..Self::of(&account.record)
        }
    }
}

/// An id as a UUID.
pub(super) fn shown(id: u128) -> String {
    Uuid::from_u128(id).to_string()
}

/// A page of accounts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountPage {
    pub(super) accounts: Vec<Account>,
    /// Of a list of all accounts: the `after` of the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
    /// Of a list of some accounts: the `cursor` of the next page, with the other parameters unchanged; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cursor: Option<String>,
}

/// What the accounts of one currency hold together.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CurrencySum {
    pub(super) currency: String,
    /// How many accounts there are.
    pub(super) accounts: u64,
    #[serde(flatten)]
    pub(super) total: Balance,
}

/// The sums of a page of accounts, to be added to those of the other pages.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SumPage {
    /// By currency.
    pub(super) sums: Vec<CurrencySum>,
    /// The revision that all pages show.
    pub(super) revision: u64,
    /// The `cursor` of the next page, with the other parameters unchanged; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cursor: Option<String>,
}

/// Accounts to create together, each with its own result, but for linked ones: all of a chain are created, or none is. What
/// is wrong in any state, as an unknown currency, refuses all of them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewAccounts {
    #[serde(deserialize_with = "lists::at_most::<_, _, ACCOUNTS_MAX>")]
    #[schema(min_items = 1, max_items = 1000)]
    pub(super) accounts: Vec<NewAccount>,
}

/// The result of one of several accounts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountResult {
    /// The account, if it was created now, or earlier with the same content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) account: Option<Account>,
    /// Otherwise what is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    /// And the same as one word, that of the problem which a request for this account alone would get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

/// The results of several accounts, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountResults {
    pub(super) results: Vec<AccountResult>,
}

/// What a transfer does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TransferKind {
    /// Moves the amount at once.
    #[default]
    Single,
    /// Reserves the amount until it is posted, is voided, or expires.
    Pending,
    /// Moves the amount that a pending transfer reserves, or a given part of it.
    Post,
    /// Releases the amount that a pending transfer reserves.
    Void,
    /// Moves back what a single transfer or a post has moved.
    Revert,
}

/// A side of a transfer, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sides {
    Debit,
    Credit,
    Both,
}

impl Sides {
    /// Whether the debit side is meant, and whether the credit side is.
    fn flags(wanted: Option<Self>) -> (bool, bool) {
        (matches!(wanted, Some(Self::Debit | Self::Both)), matches!(wanted, Some(Self::Credit | Self::Both)))
    }

    fn of(debit: bool, credit: bool) -> Option<Self> {
        match (debit, credit) {
            (true, false) => Some(Self::Debit),
            (false, true) => Some(Self::Credit),
            (true, true) => Some(Self::Both),
            (false, false) => None,
        }
    }

    pub(super) fn options(balancing: Option<Self>, closing: Option<Self>) -> Options {
        let (balancing_debit, balancing_credit) = Self::flags(balancing);
        let (closing_debit, closing_credit) = Self::flags(closing);
        Options { balancing_debit, balancing_credit, closing_debit, closing_credit }
    }
}

/// A transfer to create. `single` and `pending` need both accounts, currency and, unless they are balancing, amount;
/// `post` and `void` need the pending transfer, and `post` may have an amount with its currency; `revert` needs the
/// transfer to revert.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewTransfer {
    /// A UUID of your choice, a new one for each transfer: the same request again changes nothing and gets
    /// the same answer. UUIDv7 is the fastest.
    #[schema(format = "uuid")]
    pub(super) id: Option<String>,
    pub(super) kind: TransferKind,
    /// The account to debit: its id or number.
    #[schema(example = "@world/EUR")]
    pub(super) debit_account: Option<String>,
    /// The account to credit: its id or number.
    pub(super) credit_account: Option<String>,
    /// A decimal string, above zero. Of a balancing transfer the most to move; then it may be absent.
    #[schema(example = "12.50", pattern = "^[0-9]+(\\.[0-9]+)?$")]
    pub(super) amount: Option<String>,
    #[schema(example = "EUR", pattern = "^[A-Z0-9]{3,8}$")]
    pub(super) currency: Option<String>,
    /// Only with `post` and `void`.
    #[schema(format = "uuid")]
    pub(super) pending_id: Option<String>,
    /// Only with `revert`: the transfer to revert.
    #[schema(format = "uuid")]
    pub(super) reverted_id: Option<String>,
    /// Only with `single` and `pending`: moves no more than this side allows, `debit` by the debit account's rule, `credit` by
    /// the credit account's maximum. An account without a bound is brought to zero, and not past it.
    pub(super) balancing: Option<Sides>,
    /// Only with `pending`: closes the account of this side for as long as the transfer is neither voided nor expired. A closed
    /// account takes part in no transfer, except that pending ones can be voided. The amount may be absent.
    pub(super) closing: Option<Sides>,
    /// When it happened for you (RFC 3339, UTC). It is kept and shown, and nothing else.
    pub(super) client_time: Option<String>,
    /// When it is to be settled (RFC 3339, UTC). It is kept and shown, and nothing else.
    pub(super) settle_time: Option<String>,
    /// It comes from another book: `client_time` must be in the past, and later than that of the last one imported, of all
    /// of the ledger. In a batch all are imported or none is; each is judged by itself, unless it is linked. Not with a timeout.
    pub(super) imported: bool,
    /// Only with `pending`: it expires after this many milliseconds.
    pub(super) timeout_ms: Option<u64>,
    /// In a batch: all or none, together with the next transfer.
    pub(super) linked: bool,
    /// Its purpose, as a number of your choice.
    pub(super) code: u32,
    /// Its purpose, up to 256 bytes.
    pub(super) reference: String,
    /// Free text, up to 256 bytes.
    pub(super) user_data: String,
    /// Free, a number of up to 128 bits in decimal digits: an order.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,39}$")]
    pub(super) user_data_128: Option<String>,
    /// Free, a number of up to 64 bits in decimal digits: a time.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub(super) user_data_64: Option<String>,
    /// Free, a number of up to 32 bits: a shop.
    #[serde(default)]
    pub(super) user_data_32: u32,
    /// Free text by name, up to 1,024 bytes together.
    #[serde(default, deserialize_with = "metadata")]
    #[schema(value_type = BTreeMap<String, String>, default = json!({}))]
    pub(super) metadata: Vec<u8>,
}

/// Money from or to outside: a transfer between an account and `@world/` and its currency.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Movement {
    /// As in a transfer.
    #[schema(format = "uuid")]
    pub(super) id: Option<String>,
    /// Its id or number.
    pub(super) account: String,
    /// A decimal string, above zero.
    #[schema(example = "12.50", pattern = "^[0-9]+(\\.[0-9]+)?$")]
    pub(super) amount: String,
    #[schema(example = "EUR", pattern = "^[A-Z0-9]{3,8}$")]
    pub(super) currency: String,
    /// Its purpose, as a number of your choice.
    #[serde(default)]
    pub(super) code: u32,
    /// Its purpose, up to 256 bytes.
    #[serde(default)]
    pub(super) reference: String,
    /// Free text, up to 256 bytes.
    #[serde(default)]
    pub(super) user_data: String,
    /// Free, a number of up to 128 bits in decimal digits: an order.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,39}$")]
    pub(super) user_data_128: Option<String>,
    /// Free, a number of up to 64 bits in decimal digits: a time.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub(super) user_data_64: Option<String>,
    /// Free, a number of up to 32 bits: a shop.
    #[serde(default)]
    pub(super) user_data_32: u32,
    /// Free text by name, up to 1,024 bytes together.
    #[serde(default, deserialize_with = "metadata")]
    #[schema(value_type = BTreeMap<String, String>, default = json!({}))]
    pub(super) metadata: Vec<u8>,
}

/// The end of a pending transfer.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ending {
    /// As in a transfer.
    #[schema(format = "uuid")]
    pub(super) id: Option<String>,
    /// Only to post: a part of the amount; the rest is released.
    pub(super) amount: Option<String>,
    /// The amount's currency.
    pub(super) currency: Option<String>,
    /// Its purpose, as a number of your choice.
    pub(super) code: u32,
    /// Its purpose, up to 256 bytes.
    pub(super) reference: String,
    /// Free text, up to 256 bytes.
    pub(super) user_data: String,
    /// Free, a number of up to 128 bits in decimal digits: an order.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,39}$")]
    pub(super) user_data_128: Option<String>,
    /// Free, a number of up to 64 bits in decimal digits: a time.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub(super) user_data_64: Option<String>,
    /// Free, a number of up to 32 bits: a shop.
    #[serde(default)]
    pub(super) user_data_32: u32,
    /// Free text by name, up to 1,024 bytes together.
    #[serde(default, deserialize_with = "metadata")]
    #[schema(value_type = BTreeMap<String, String>, default = json!({}))]
    pub(super) metadata: Vec<u8>,
}

/// Reads texts by name, and encodes them as a transfer has them.
fn metadata<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    lists::texts(deserializer).map(|texts| ledger::Metadata::encode(&texts))
}

/// What to note with a revert.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Reverting {
    /// As in a transfer.
    #[schema(format = "uuid")]
    pub(super) id: Option<String>,
    /// Its purpose, as a number of your choice.
    pub(super) code: u32,
    /// Its purpose, up to 256 bytes.
    pub(super) reference: String,
    /// Free text, up to 256 bytes.
    pub(super) user_data: String,
}

/// The state of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TransferStatus {
    /// It was done.
    Done,
    /// It was refused; see the reason.
    Refused,
    /// The amount is reserved.
    Pending,
    /// It was pending, and was posted.
    Posted,
    /// It was pending, and was voided.
    Voided,
    /// It was pending, and has expired.
    Expired,
}

/// A transfer with its result.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Transfer {
    #[schema(format = "uuid")]
    pub(super) id: String,
    /// single, pending, post, void, revert; in events, statements and queries also expired, with the pending transfer's id.
    pub(super) kind: &'static str,
    pub(super) status: TransferStatus,
    /// Why it was refused, as a stable word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) debit_account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) credit_account: Option<String>,
    /// The amount that it moved or reserved, or should have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) amount: Option<String>,
    /// The amount that it released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) released: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) currency: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pending_id: Option<String>,
    /// Of a revert: the transfer that it reverts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reverted_id: Option<String>,
    /// The transfer that reverted it. Only in answers to reads of transfers, as `GET /v1/transfers/{id}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reverted_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) balancing: Option<Sides>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) closing: Option<Sides>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) settle_time: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) imported: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_ms: Option<u64>,
    /// When a pending transfer expires or expired. Only in answers to reads of transfers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) linked: bool,
    pub(super) code: u32,
    pub(super) reference: String,
    pub(super) user_data: String,
    /// A number in decimal digits; absent if it is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user_data_128: Option<String>,
    /// A number in decimal digits; absent if it is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user_data_64: Option<String>,
    /// Absent if it is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user_data_32: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) metadata: BTreeMap<String, String>,
    /// Nothing was recorded: it would be so. Then revision and position are 0, unless it was done before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) dry_run: bool,
    /// The revision that recorded it.
    pub(super) revision: u64,
    /// Its position in the revision.
    pub(super) position: u32,
    /// When it was recorded (RFC 3339).
    #[schema(format = DateTime)]
    pub(super) time: String,
    /// The debit account right after it. Only in the answer to its request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) debit_balance: Option<Balance>,
    /// The credit account right after it. Only in the answer to its request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) credit_balance: Option<Balance>,
}

/// A recorded transfer, from its reply or from the journal.
pub(super) struct Known<'a> {
    pub(super) transfer: &'a ledger::Transfer<'a>,
    pub(super) code: Code,
    pub(super) revision: Revision,
    pub(super) position: u32,
    pub(super) stamp: Stamp,
    pub(super) effect: Option<Resolution>,
    /// The currency with its scale, if known.
    pub(super) unit: Option<(Currency, u32)>,
}

impl Transfer {
    pub(super) fn of(known: &Known<'_>) -> Self {
        let Known { transfer, code, effect, unit, .. } = known;
        let amount = |units: u128| unit.map(|(_, scale)| format_amount(units, scale));
        let (mut debit, mut credit) = (None, None);
        let (mut asked, mut pending_id, mut reverted_id, mut timeout_ms) = (None, None, None, None);
        let kind = match transfer.kind {
            Kind::Single { debit: from, credit: to, amount } => {
                (debit, credit, asked) = (Some(from), Some(to), Some(amount));
                "single"
            }
            Kind::Pending { debit: from, credit: to, amount, timeout_ms: timeout } => {
                (debit, credit, asked) = (Some(from), Some(to), Some(amount));
                timeout_ms = Some(timeout).filter(|timeout| *timeout > 0);
                "pending"
            }
            Kind::Post { pending, amount } => {
                (pending_id, asked) = (Some(pending), amount);
                "post"
            }
            Kind::Void { pending } => {
                pending_id = Some(pending);
                "void"
            }
            Kind::Revert { reverted } => {
                reverted_id = Some(reverted);
                "revert"
            }
            Kind::Expired { pending } => {
                pending_id = Some(pending);
                "expired"
            }
        };
        if let Some(effect) = effect {
            (debit, credit) = (Some(effect.debit), Some(effect.credit));
            asked = Some(effect.amount);
        }
        // A balancing transfer without a bound that was refused.
        let asked = asked.filter(|amount| *amount > 0 || !transfer.options.is_balancing());
        let at = |time: u64| (time > 0).then(|| time::format(time));
        let extra = &transfer.extra;
        let released = effect.map_or(0, |effect| effect.pending_amount);
        let status = match code {
            Code::Ok if kind == "pending" => TransferStatus::Pending,
            Code::Ok => TransferStatus::Done,
            _ => TransferStatus::Refused,
        };
        Self {
            id: shown(transfer.id),
            kind,
            status,
            reason: (*code != Code::Ok).then(|| code.name()),
            debit_account: debit.map(shown),
            credit_account: credit.map(shown),
            amount: asked.and_then(amount),
            released: Some(released).filter(|released| *released > 0).and_then(amount),
            currency: unit.map(|(currency, _)| currency.to_string()),
            pending_id: pending_id.map(shown),
            reverted_id: reverted_id.map(shown),
            reverted_by: None,
            balancing: Sides::of(transfer.options.balancing_debit, transfer.options.balancing_credit),
            closing: Sides::of(transfer.options.closing_debit, transfer.options.closing_credit),
            client_time: at(transfer.times.client_ms),
            settle_time: at(transfer.times.settle_ms),
            imported: transfer.times.imported,
            timeout_ms,
            expires: None,
            linked: transfer.linked,
            code: transfer.code,
            reference: transfer.reference.to_owned(),
            user_data: transfer.user_data.to_owned(),
            user_data_128: Some(extra.user_data_128)
                .filter(|number| *number > 0)
                .map(|number| number.to_string()),
            user_data_64: Some(extra.user_data_64)
                .filter(|number| *number > 0)
                .map(|number| number.to_string()),
            user_data_32: Some(extra.user_data_32).filter(|number| *number > 0),
            metadata: extra.metadata.iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect(),
            dry_run: false,
            revision: known.revision.0,
            position: known.position,
            time: time::format(known.stamp.0),
            debit_balance: None,
            credit_balance: None,
        }
    }

    pub(super) fn of_entry(entry: &Entry, unit: Option<(Currency, u32)>) -> Self {
        let Entry { code, revision, position, stamp, .. } = *entry;
        let (transfer, effect) = (entry.transfer(), entry.effect());
        Self::of(&Known { transfer: &transfer, code, revision, position, stamp, effect, unit })
    }

    pub(super) fn of_view(view: &TransferView, unit: Option<(Currency, u32)>) -> Self {
        let mut transfer = Self::of_entry(&view.entry, unit).with_state(view.state);
        transfer.reverted_by = view.reverted_by.map(shown);
        transfer
    }

    fn with_state(mut self, state: TransferState) -> Self {
        if let TransferState::Pending(state, deadline, _) = state {
            self.status = match state {
                PendingState::Open => TransferStatus::Pending,
                PendingState::Posted => TransferStatus::Posted,
                PendingState::Voided => TransferStatus::Voided,
                PendingState::Expired => TransferStatus::Expired,
            };
            self.expires = (deadline.0 > 0).then(|| time::format(deadline.0));
        }
        self
    }
}

/// A page of transfers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TransferPage {
    pub(super) transfers: Vec<Transfer>,
    /// Of a list of all transfers, oldest first: the `after` of the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
    /// The `cursor` of the next page, with the other parameters unchanged; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cursor: Option<String>,
}

/// Transfers to create in order, in one step, each with its own result.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTransfers {
    #[serde(deserialize_with = "lists::at_most::<_, _, TRANSFERS_MAX>")]
    #[schema(min_items = 1, max_items = 8190)]
    pub(super) transfers: Vec<NewTransfer>,
}

/// Legs that are done together or not at all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTransaction {
    /// A UUID of your choice: the same request again changes nothing and gets the same answer. An Idempotency-Key does
    /// the same.
    #[schema(format = "uuid")]
    pub(super) id: Option<String>,
    /// In this order; each is a transfer of any kind, without `id` and `linked`.
    #[serde(deserialize_with = "lists::at_most::<_, _, TRANSFERS_MAX>")]
    #[schema(min_items = 1, max_items = 8190)]
    pub(super) legs: Vec<NewTransfer>,
    /// The code of legs that have none.
    #[serde(default)]
    pub(super) code: u32,
    /// The reference of legs that have none, up to 256 bytes.
    #[serde(default)]
    pub(super) reference: String,
    /// The user data of legs that have none, up to 256 bytes.
    #[serde(default)]
    pub(super) user_data: String,
}

/// Legs that were done together.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Transaction {
    #[schema(format = "uuid")]
    pub(super) id: String,
    /// Nothing was recorded: it would be so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) dry_run: bool,
    /// One per leg, in their order.
    pub(super) transfers: Vec<Transfer>,
}

/// The results of several transfers, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TransferResults {
    /// Nothing was recorded: these are the results that there would be.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) dry_run: bool,
    pub(super) results: Vec<TransferResult>,
}

/// The result of one of several transfers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TransferResult {
    /// The recorded transfer; absent if the id was used before with other content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transfer: Option<Transfer>,
    /// The id was used before with the same content: this is its first result.
    pub(super) duplicate: bool,
    /// `id_conflict`, if the id was used before with other content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) conflict: Option<&'static str>,
}

/// The request is on the disks of a majority; its result is at the location.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Accepted {
    #[schema(format = "uuid")]
    pub(super) id: String,
    /// `accepted`.
    pub(super) status: &'static str,
    /// The path of the result.
    pub(super) location: String,
}

/// Several accepted requests.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AcceptedAll {
    pub(super) accepted: Vec<Accepted>,
}

/// Transfers to look up.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TransferIds {
    #[serde(deserialize_with = "lists::values::<_, _, LOOKUP_MAX>")]
    #[schema(min_items = 1, max_items = 1000)]
    pub(super) ids: Vec<String>,
}

/// Transfers that were looked up.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FoundTransfers {
    /// Those that exist, in the order of the request.
    pub(super) transfers: Vec<Transfer>,
    /// Those that do not exist.
    pub(super) absent: Vec<String>,
    /// How many, from the first on, are answered: all, but where the answer would be larger than about 2 MiB. Ask again
    /// for the rest.
    pub(super) answered: usize,
}

/// Accounts to look up.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountNames {
    /// Ids or numbers.
    #[serde(deserialize_with = "lists::values::<_, _, LOOKUP_MAX>")]
    #[schema(min_items = 1, max_items = 1000)]
    pub(super) accounts: Vec<String>,
}

/// Accounts that were looked up.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FoundAccounts {
    /// Those that exist, in the order of the request.
    pub(super) accounts: Vec<Account>,
    /// Those that do not exist.
    pub(super) absent: Vec<String>,
    /// How many, from the first on, are answered: all, but where the answer would be larger than about 2 MiB. Ask again
    /// for the rest.
    pub(super) answered: usize,
}

/// A line of a statement.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Line {
    /// `debit` or `credit`: this account's side of the transfer.
    pub(super) side: &'static str,
    pub(super) transfer: Transfer,
    /// The account after it.
    pub(super) after: Balance,
}

/// A page of a statement, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatementPage {
    pub(super) account: String,
    pub(super) currency: String,
    pub(super) lines: Vec<Line>,
    /// The `before` of the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// A custom unit of account to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewCurrency {
    /// Decimal places.
    #[schema(maximum = 18)]
    pub(super) scale: u32,
}

/// A unit of account.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Unit {
    pub(super) code: String,
    /// Decimal places.
    pub(super) scale: u32,
    /// The account from which its money comes and to which it goes.
    pub(super) world_account: String,
}

/// Which state of an account to read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct At {
    /// As of this revision, which must not be in the future: the account's balances, status, rule, limit and texts. 404 if
    /// it did not exist yet.
    pub(super) at_revision: Option<u64>,
    /// As of this time, in RFC 3339 and UTC: 2026-11-21T09:45:00Z.
    pub(super) at_time: Option<String>,
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
    /// Only with `local`: answer 503 if the replica is more log entries behind.
    pub(super) lag_entries_max: Option<u64>,
    /// Only with `local`: answer 503 if the replica was last up to date more milliseconds ago.
    pub(super) lag_ms_max: Option<u64>,
}

/// Whether a request is only a trial.
#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Trial {
    /// Answer as the request would be answered now, and record nothing: 200 instead of 201 or 202, with `dry_run`.
    pub(super) dry_run: bool,
}

/// How fresh a read must be.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Fresh {
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
    /// Only with `local`: answer 503 if the replica is more log entries behind.
    pub(super) lag_entries_max: Option<u64>,
    /// Only with `local`: answer 503 if the replica was last up to date more milliseconds ago.
    pub(super) lag_ms_max: Option<u64>,
}

/// Which accounts to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct AccountQuery {
    /// Whose numbers begin like this.
    pub(super) prefix: Option<String>,
    /// In this currency.
    pub(super) currency: Option<String>,
    /// With this user data.
    pub(super) user_data: Option<String>,
    /// The page size, by default 100.
    #[param(minimum = 1, maximum = 1000)]
    pub(super) limit: Option<u32>,
    /// The `cursor` of the previous page.
    pub(super) cursor: Option<String>,
    /// Instead, for all accounts: the `next` of the previous page.
    pub(super) after: Option<String>,
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
    /// Only with `local`: answer 503 if the replica is more log entries behind.
    pub(super) lag_entries_max: Option<u64>,
    /// Only with `local`: answer 503 if the replica was last up to date more milliseconds ago.
    pub(super) lag_ms_max: Option<u64>,
}

/// Which accounts to add up.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct SumQuery {
    /// Those whose numbers begin like this.
    #[param(required = true)]
    pub(super) prefix: String,
    /// As of this revision, which must not be in the future.
    pub(super) at_revision: Option<u64>,
    /// As of this time, which must not be in the future, in RFC 3339 and UTC: 2026-11-21T00:00:00Z.
    pub(super) at_time: Option<String>,
    /// The `cursor` of the previous page.
    pub(super) cursor: Option<String>,
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
    /// Only with `local`: answer 503 if the replica is more log entries behind.
    pub(super) lag_entries_max: Option<u64>,
    /// Only with `local`: answer 503 if the replica was last up to date more milliseconds ago.
    pub(super) lag_ms_max: Option<u64>,
}

/// An index of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IndexName {
    Reference,
    #[serde(rename = "user_data_128")]
    UserData128,
    #[serde(rename = "user_data_64")]
    UserData64,
    #[serde(rename = "user_data_32")]
    UserData32,
    Code,
}

/// Indexes to keep from now on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewIndexes {
    /// All others are switched off.
    #[serde(deserialize_with = "lists::values::<_, _, 5>")]
    pub(super) on: Vec<IndexName>,
    /// Refuse a single or pending transfer (`reference_taken`) if another one has taken its reference while references were unique.
    #[serde(default)]
    pub(super) unique_references: bool,
}

/// An index that is kept.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IndexSince {
    pub(super) index: IndexName,
    /// The first revision in it. Earlier transfers are found by reading the journal.
    pub(super) since_revision: u64,
}

/// The indexes that are kept.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IndexStates {
    pub(super) on: Vec<IndexSince>,
    /// From this revision on references are unique; absent if they need not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unique_references_since: Option<u64>,
    /// The newest revision.
    pub(super) revision: u64,
}

/// An account's side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SideName {
    /// It gave.
    Debit,
    /// It received.
    Credit,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Direction {
    /// As they were recorded.
    #[default]
    Oldest,
    /// The reverse.
    Newest,
}

/// Which transfers to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct TransferFilter {
    /// That changed this account, by its id or number. A refused transfer changes none.
    pub(super) account: Option<String>,
    /// That debited, or that credited, the account.
    #[param(inline)]
    pub(super) side: Option<SideName>,
    pub(super) code: Option<u32>,
    pub(super) reference: Option<String>,
    #[param(pattern = "^[0-9]{1,39}$")]
    pub(super) user_data_128: Option<String>,
    pub(super) user_data_64: Option<u64>,
    pub(super) user_data_32: Option<u32>,
    /// In this state now. `done` leaves out those that were pending.
    #[param(inline)]
    pub(super) status: Option<TransferStatus>,
    /// Recorded at this time or later, in RFC 3339 and UTC: 2026-11-21T09:45:00Z.
    pub(super) from_time: Option<String>,
    /// Recorded before this time.
    pub(super) to_time: Option<String>,
    #[param(inline)]
    pub(super) order: Direction,
    /// The page size, by default 100.
    #[param(minimum = 1, maximum = 1000)]
    pub(super) limit: Option<u32>,
    /// The `cursor` of the previous page.
    pub(super) cursor: Option<String>,
    /// Instead, for all transfers, oldest first: the `next` of the previous page.
    pub(super) after: Option<String>,
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
    /// Only with `local`: answer 503 if the replica is more log entries behind.
    pub(super) lag_entries_max: Option<u64>,
    /// Only with `local`: answer 503 if the replica was last up to date more milliseconds ago.
    pub(super) lag_ms_max: Option<u64>,
}

/// A page of a statement.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Before {
    /// The `next` of the previous page.
    pub(super) before: Option<String>,
    /// The oldest revision to include.
    pub(super) since_revision: Option<u64>,
    /// Only what was recorded at this time or later, in RFC 3339 and UTC: 2026-11-21T00:00:00Z.
    pub(super) from_time: Option<String>,
    /// Only what was recorded before this time.
    pub(super) to_time: Option<String>,
    /// The page size, by default 100.
    #[param(minimum = 1, maximum = 1000)]
    pub(super) limit: Option<u32>,
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
    /// Only with `local`: answer 503 if the replica is more log entries behind.
    pub(super) lag_entries_max: Option<u64>,
    /// Only with `local`: answer 503 if the replica was last up to date more milliseconds ago.
    pub(super) lag_ms_max: Option<u64>,
}

/// Where to begin with events.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsFrom {
    /// The first revision; 0 for all events. By default, and without Last-Event-ID, only new events.
    pub(super) from_revision: Option<u64>,
}
