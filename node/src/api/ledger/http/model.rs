//! What goes over HTTP: the shapes of requests and answers, from which the OpenAPI document is made.
//!
//! Amounts are decimal texts with all places of their currency, never numbers: JSON's are floats to many readers.

use super::time;
use quoin_core::ledger::{
    self, AccountRecord, Code, Currency, Entry, Kind, PendingState, Resolution, TransferState, format_amount,
    format_signed,
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

/// What may be done with an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AccountStatus {
    /// Everything.
    Active,
    /// Nothing but voiding what is pending, until it is active again.
    Frozen,
    /// Nothing, forever. Only an empty account can be closed.
    Closed,
}

/// An account to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewAccount {
    /// A UUID of your choice: the same request again makes nothing new. Without one (and without an
    /// Idempotency-Key) the ledger chooses.
    #[schema(format = "uuid")]
    pub(super) id: Option<String>,
    /// What people call it; unique. Numbers that begin with @ are the ledger's.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub(super) number: String,
    /// ISO 4217's code, or a custom unit's.
    #[schema(example = "EUR", pattern = "^[A-Z0-9]{3,8}$")]
    pub(super) currency: String,
    /// Without one: no overdraft, or down to the limit where there is one.
    pub(super) rule: Option<Rule>,
    /// How far it may go below zero, as a decimal text.
    #[schema(example = "500.00")]
    pub(super) limit: Option<String>,
    /// Anything, up to 256 bytes.
    #[serde(default)]
    pub(super) user_data: String,
    /// Anything, by name, up to 4,096 bytes together.
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, String>,
}

/// What to change of an account; what is left out stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountPatch {
    pub(super) status: Option<AccountStatus>,
    pub(super) rule: Option<Rule>,
    /// As in a new account; comes with or implies the rule `limit`.
    pub(super) limit: Option<String>,
    pub(super) user_data: Option<String>,
    /// All of it anew.
    pub(super) metadata: Option<BTreeMap<String, String>>,
    /// Refused (412) if the account was changed after this revision.
    pub(super) unchanged_since: Option<u64>,
}

/// Balances as decimal texts.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Balance {
    /// What the account holds: credits less debits.
    #[schema(example = "12.50")]
    pub(super) balance: String,
    /// What pending transfers have set aside of it.
    pub(super) locked: String,
    /// What pending transfers may bring.
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
    /// Where the rule is `limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<String>,
    pub(super) user_data: String,
    pub(super) metadata: BTreeMap<String, String>,
    /// When it was made (RFC 3339).
    #[schema(format = DateTime)]
    pub(super) created: String,
    pub(super) created_revision: u64,
    /// The revision that changed it last, transfers not counted.
    pub(super) changed_revision: u64,
    /// The revision that changed its balances last; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) balance_revision: Option<u64>,
    /// Left out in events.
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
        let status = match record.status() {
            ledger::Status::Active => AccountStatus::Active,
            ledger::Status::Frozen => AccountStatus::Frozen,
            ledger::Status::Closed => AccountStatus::Closed,
        };
        let limit = record.allowance().filter(|_| rule == Rule::Limit);
        Self {
            id: shown(record.id()),
            number: record.origin.number.clone(),
            currency: record.origin.currency.clone(),
            scale: record.scale,
            status,
            rule,
            limit: limit.map(|limit| format_amount(limit, record.scale)),
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
            ..Self::of(&account.record)
        }
    }
}

/// An id as a UUID.
pub(super) fn shown(id: u128) -> String {
    Uuid::from_u128(id).to_string()
}

/// A page of accounts, by id.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountPage {
    pub(super) accounts: Vec<Account>,
    /// Give it as `after` to get the next page; left out at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// Accounts to be made together, each with its own result.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewAccounts {
    #[schema(min_items = 1, max_items = 1000)]
    pub(super) accounts: Vec<NewAccount>,
}

/// What came of one of several accounts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountResult {
    /// The account, where it was made now or before with the same content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) account: Option<Account>,
    /// Else why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
}

/// What came of several accounts, in their order.
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
    /// Sets the amount aside, until it is posted, voided, or its time runs out.
    Pending,
    /// Moves what a pending transfer set aside, or the amount where one is given.
    Post,
    /// Frees what a pending transfer set aside.
    Void,
}

/// A transfer to be made. Single and pending ones name both accounts, amount and currency; post and void name the
/// pending transfer, and post may name an amount with its currency.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewTransfer {
    /// A UUID of your choice, once for each thing that shall happen: the same request again changes nothing and
    /// gives the same answer. UUIDv7 is taken fastest.
    #[schema(format = "uuid")]
    pub(super) id: Option<String>,
    pub(super) kind: TransferKind,
    /// The account that gives: its id or number.
    #[schema(example = "@world/EUR")]
    pub(super) debit_account: Option<String>,
    /// The account that takes: its id or number.
    pub(super) credit_account: Option<String>,
    /// A decimal text, above zero.
    #[schema(example = "12.50", pattern = "^[0-9]+(\\.[0-9]+)?$")]
    pub(super) amount: Option<String>,
    #[schema(example = "EUR", pattern = "^[A-Z0-9]{3,8}$")]
    pub(super) currency: Option<String>,
    /// Of post and void.
    #[schema(format = "uuid")]
    pub(super) pending_id: Option<String>,
    /// Of pending: after this many milliseconds it lapses.
    pub(super) timeout_ms: Option<u64>,
    /// In a batch: all or none, together with the next one.
    pub(super) linked: bool,
    /// What it is for, as a number.
    pub(super) code: u32,
    /// What it is for, up to 256 bytes.
    pub(super) reference: String,
    /// Anything, up to 256 bytes.
    pub(super) user_data: String,
}

/// Money from or to outside: a transfer between an account and `@world/` of its currency.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Movement {
    /// As in a transfer.
    #[schema(format = "uuid")]
    pub(super) id: Option<String>,
    /// Its id or number.
    pub(super) account: String,
    /// A decimal text, above zero.
    #[schema(example = "12.50", pattern = "^[0-9]+(\\.[0-9]+)?$")]
    pub(super) amount: String,
    #[schema(example = "EUR", pattern = "^[A-Z0-9]{3,8}$")]
    pub(super) currency: String,
    /// What it is for, as a number.
    #[serde(default)]
    pub(super) code: u32,
    /// What it is for, up to 256 bytes.
    #[serde(default)]
    pub(super) reference: String,
    /// Anything, up to 256 bytes.
    #[serde(default)]
    pub(super) user_data: String,
}

/// How a pending transfer is ended.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ending {
    /// As in a transfer.
    #[schema(format = "uuid")]
    pub(super) id: Option<String>,
    /// Only to post: a part of it; the rest is free again.
    pub(super) amount: Option<String>,
    /// With the amount.
    pub(super) currency: Option<String>,
    /// What it is for, as a number.
    pub(super) code: u32,
    /// What it is for, up to 256 bytes.
    pub(super) reference: String,
    /// Anything, up to 256 bytes.
    pub(super) user_data: String,
}

/// What became of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TransferStatus {
    /// It was done.
    Done,
    /// It was refused; the reason says why.
    Refused,
    /// The amount is set aside.
    Pending,
    /// It was pending, and was posted.
    Posted,
    /// It was pending, and was voided.
    Voided,
    /// It was pending, and its time ran out.
    Expired,
}

/// A transfer with its result.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Transfer {
    #[schema(format = "uuid")]
    pub(super) id: String,
    /// single, pending, post, void; in events and statements also expired.
    pub(super) kind: &'static str,
    pub(super) status: TransferStatus,
    /// Why it was refused; stable words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) debit_account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) credit_account: Option<String>,
    /// What it moved or set aside, or should have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) amount: Option<String>,
    /// What it freed of what was set aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) released: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) currency: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pending_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_ms: Option<u64>,
    /// When a pending transfer lapses or lapsed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) linked: bool,
    pub(super) code: u32,
    pub(super) reference: String,
    pub(super) user_data: String,
    /// Where it is recorded.
    pub(super) revision: u64,
    /// Its place in the revision.
    pub(super) position: u32,
    /// When it was recorded (RFC 3339).
    #[schema(format = DateTime)]
    pub(super) time: String,
    /// The debit account right after it. In answers to who made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) debit_balance: Option<Balance>,
    /// The credit account right after it. In answers to who made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) credit_balance: Option<Balance>,
}

/// What is known of a recorded transfer, from its answer or from the journal.
pub(super) struct Known<'a> {
    pub(super) transfer: &'a ledger::Transfer<'a>,
    pub(super) code: Code,
    pub(super) revision: Revision,
    pub(super) position: u32,
    pub(super) stamp: Stamp,
    pub(super) effect: Option<Resolution>,
    /// Where it could be found out.
    pub(super) unit: Option<(Currency, u32)>,
}

impl Transfer {
    pub(super) fn of(known: &Known<'_>) -> Self {
        let Known { transfer, code, effect, unit, .. } = known;
        let amount = |units: u128| unit.map(|(_, scale)| format_amount(units, scale));
        let (mut debit, mut credit) = (None, None);
        let (mut asked, mut pending_id, mut timeout_ms) = (None, None, None);
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
            Kind::Expired { pending } => {
                pending_id = Some(pending);
                "expired"
            }
        };
        if let Some(effect) = effect {
            (debit, credit) = (Some(effect.debit), Some(effect.credit));
            asked = Some(effect.amount);
        }
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
            timeout_ms,
            expires: None,
            linked: transfer.linked,
            code: transfer.code,
            reference: transfer.reference.to_owned(),
            user_data: transfer.user_data.to_owned(),
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

    pub(super) fn with_state(mut self, state: TransferState) -> Self {
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

/// A page of transfers, in the order in which they were recorded.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TransferPage {
    pub(super) transfers: Vec<Transfer>,
    /// Give it as `after` to get the next page; left out at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// Transfers to be made in order, in one step, each with its own result.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTransfers {
    #[schema(min_items = 1, max_items = 8190)]
    pub(super) transfers: Vec<NewTransfer>,
}

/// The results of several transfers, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TransferResults {
    pub(super) results: Vec<TransferResult>,
}

/// The result of one of several transfers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TransferResult {
    /// The transfer as it is recorded; left out for an id that was used before with other content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transfer: Option<Transfer>,
    /// The id was known with the same content: this is its first result.
    pub(super) duplicate: bool,
    /// `id_conflict`, where it is that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) conflict: Option<&'static str>,
}

/// The request is on the disks of a majority, and its result at the location.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Accepted {
    #[schema(format = "uuid")]
    pub(super) id: String,
    /// `accepted`.
    pub(super) status: &'static str,
    /// Where the result is.
    pub(super) location: String,
}

/// Several requests that were accepted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AcceptedAll {
    pub(super) accepted: Vec<Accepted>,
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
    /// Give it as `before` to get the next page; left out at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// A custom unit of account to be made.
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
    /// The account that its money comes from and goes to.
    pub(super) world_account: String,
}

/// Which state of an account is wanted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct At {
    /// As of this revision.
    pub(super) at_revision: Option<u64>,
    /// As of this moment, RFC 3339 in UTC: 2026-11-21T09:45:00Z.
    pub(super) at_time: Option<String>,
    /// This replica's state, however old.
    pub(super) local: bool,
}

/// A page of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct After {
    /// What `next` of the page before says.
    pub(super) after: Option<String>,
    /// Items of the page, 100 if not given.
    #[param(minimum = 1, maximum = 1000)]
    pub(super) limit: Option<u32>,
}

/// A page of a statement.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Before {
    /// What `next` of the page before says.
    pub(super) before: Option<String>,
    /// Nothing older than this revision.
    pub(super) since_revision: Option<u64>,
    /// Lines of the page, 100 if not given.
    #[param(minimum = 1, maximum = 1000)]
    pub(super) limit: Option<u32>,
}

/// From where events are wanted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsFrom {
    /// The first revision; without it (and without Last-Event-ID), what comes from now on. 0: all.
    pub(super) from_revision: Option<u64>,
}
