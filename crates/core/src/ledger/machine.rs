//! What a ledger command does to the state: changes of accounts and currencies here, new accounts in `creation.rs`,
//! transfers in `transfers.rs`.
//!
//! A pending transfer with a timeout has an entry in the expiry index. A batch whose stamp has reached the
//! deadline releases the reserved amount before its commands see the state.

use super::command::{
    self, NewAccount, NewCurrency, OPERATION, Operation, Rule, Status, TRANSFERS, UpdateAccount,
};
use super::creation::Creation;
use super::currency::{self, Currency};
use super::extra::TRANSFER_METADATA_BYTES_MAX;
use super::fence::Fences;
use super::hot::Hot;
use super::indexes::Indexes;
use super::journal;
use super::query::{currency_scale, read_account};
use super::record::{self, AccountRecord, IDS, Location};
use super::reply::{AccountCode, Done, Reply, Response};
use super::run::Run;
use super::stretch::Stretch;
use super::transfer::{self, Decoded, Key, Kind, REFERENCE_BYTES_MAX, Transfer};
use super::warming::Warming;
use crate::expiry::{Expiry, ExpiryIndex};
use crate::limits::COMMAND_BYTES_MAX;
use crate::store::{StoreError, View};
use crate::tx::Tx;
use crate::types::{Revision, Stamp};
use bytes::Bytes;
use prost::Message;

/// Maximum pending transfers that expire in one batch; the rest wait for the next.
pub(super) const EXPIRIES_PER_BATCH_MAX: usize = 1000;
/// Maximum accounts created by one command, all of which stay in memory until it ends.
pub const ACCOUNTS_MAX: usize = 1000;
/// Maximum bytes of an account's number.
pub const NUMBER_BYTES_MAX: usize = 64;

/// The ledger's machine: the store holds its state; this holds what is derived from it.
#[derive(Debug)]
pub struct Machine {
    hot: Hot,
    warming: Warming,
    stretch: Stretch,
    /// The store says that nothing is known of ids by their order.
    unordered: bool,
    expiries: ExpiryIndex,
    fences: Fences,
    indexes: Indexes,
}

impl Machine {
    /// The machine of a store that may hold state already, up to `stamp`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(view: View<'_>, stamp: Stamp) -> Result<Self, StoreError> {
        let expiries = ExpiryIndex::open(view, record::EXPIRIES)?;
        let unordered = view.get(record::CEILING_KEY)?.is_some_and(|ceiling| *ceiling == [0xff; 16]);
        let (stretch, fences) = (Stretch::open(view, stamp)?, Fences::open(view)?);
        let indexes = Indexes::read(view)?;
        let (hot, warming) = (Hot::default(), Warming::default());
        Ok(Self { hot, warming, stretch, unordered, expiries, fences, indexes })
    }

    /// Bounds the memory for accounts, in bytes. To be called before anything is applied.
    pub(crate) fn set_cache_bytes(&mut self, bytes: usize) {
        self.hot.set_bytes_max(bytes);
    }

    /// Reads some accounts into memory; false once there is nothing left to do.
    pub(crate) fn warm(&mut self, view: View<'_>) -> bool {
        self.warming.step(view, &mut self.hot)
    }

    /// When the next pending transfer may expire; never later than it does.
    pub fn next_deadline(&self) -> Option<Stamp> {
        self.expiries.next_deadline()
    }

    /// The first pending transfers, at most `most` and up to a bound, whose deadline `stamp` has reached. The
    /// caller must pass them to [`Self::expire`] before anything else.
    pub(crate) fn due(
        &mut self,
        view: View<'_>,
        stamp: Stamp,
        most: usize,
    ) -> Result<Vec<Expiry>, StoreError> {
        self.expiries.take_due(view, stamp, most.min(EXPIRIES_PER_BATCH_MAX))
    }

    /// Releases what these pending transfers reserved.
    pub(crate) fn expire(&mut self, tx: &mut Tx<'_>, due: Vec<Expiry>) -> Result<(), StoreError> {
        let mut run = self.run(tx, false, due.len());
        release(&mut run, &due)?;
        run.finish();
        Ok(())
    }

    fn run<'m, 's>(&'m mut self, tx: &'m mut Tx<'s>, details: bool, count: usize) -> Run<'m, 's> {
        if !std::mem::replace(&mut self.unordered, true) {
            tx.put(record::CEILING_KEY, Bytes::from_static(&[0xff; 16]));
        }
        Run::new(tx, &mut self.hot, &mut self.stretch, &mut self.expiries, self.indexes, details, count)
    }

    /// Applies one command.
    ///
    /// # Errors
    /// The store failed. What a client may not do is a reply, not an error.
    pub fn apply(&mut self, tx: &mut Tx<'_>, bytes: Bytes) -> Result<Reply, StoreError> {
        let response = match bytes.get(..2) {
            _ if bytes.len() > COMMAND_BYTES_MAX => Response::Malformed,
            Some([command::VERSION, TRANSFERS]) => self.transfers(tx, &bytes)?,
            Some([command::VERSION, OPERATION]) => match Operation::decode(bytes) {
                Some(operation) => self.operation(tx, operation)?,
                None => Response::Malformed,
            },
            _ => Response::Malformed,
        };
        Ok(Reply { revision: tx.revision(), stamp: tx.stamp(), response })
    }

    fn transfers(&mut self, tx: &mut Tx<'_>, bytes: &[u8]) -> Result<Response, StoreError> {
        let Some(Decoded { balances, members, key, fence }) = decode_transfers(bytes) else {
            return Ok(Response::Malformed);
        };
        if fence.is_some_and(|fence| !self.fences.pass(&fence)) {
            return Ok(Response::Fenced);
        }
        if let Some(key) = key
            && !self.take_key(tx, key)?
        {
            return Ok(Response::KeyConflict);
        }
        if let Some(fence) = fence {
            self.fences.advance(tx, &fence);
        }
        let mut run = self.run(tx, balances, members.len());
        for group in members.chunk_by(|(one, _), _| one.linked) {
            run.group(group)?;
        }
        Ok(Response::Transfers(run.finish()))
    }

    fn operation(&mut self, tx: &mut Tx<'_>, operation: Operation) -> Result<Response, StoreError> {
        Ok(match operation {
            Operation::CreateAccounts(new) if new.accounts.len() > ACCOUNTS_MAX => Response::Malformed,
            Operation::CreateAccounts(new) => match new.key() {
                Some(key) if read_account(tx.view(), key.id)?.is_some() || !self.take_key(tx, key)? => {
                    Response::KeyConflict
                }
                _ => self.create_accounts(tx, &new.accounts)?,
            },
            Operation::UpdateAccount(update) => {
                Response::Account(self.update_account(tx, &update)?.map(Box::new))
            }
            Operation::CreateCurrency(new) => Response::Currency(create_currency(tx, &new)?),
            Operation::SetIndexes(wanted) => match self.indexes.set(tx, &wanted) {
                Some(indexes) => {
                    self.indexes = indexes;
                    Response::Indexes(indexes)
                }
                None => Response::Malformed,
            },
        })
    }

    /// Whether a request with this key may be run: the key is new, and then recorded, or was used before for the
    /// same. **Invariant: Idempotence.**
    fn take_key(&mut self, tx: &mut Tx<'_>, key: Key) -> Result<bool, StoreError> {
        if let Some(same) = is_same_request(tx.view(), key)? {
            return Ok(same);
        }
        tx.put(&record::id_key(IDS, key.id), record::encode_key(key.fingerprint));
        self.stretch.record(key.id, tx.stamp());
        Ok(true)
    }

    fn create_accounts(&mut self, tx: &mut Tx<'_>, accounts: &[NewAccount]) -> Result<Response, StoreError> {
        let run = if accounts.iter().any(|account| account.opening.is_some()) {
            self.run(tx, false, accounts.len())
        } else {
            Run::new(tx, &mut self.hot, &mut self.stretch, &mut self.expiries, self.indexes, false, 0)
        };
        let mut creation = Creation::new(run, accounts.len());
        for chain in accounts.chunk_by(|one, _| one.linked) {
            creation.chain(chain)?;
        }
        let (results, new) = creation.finish();
        Ok(Response::Accounts(results, new))
    }

    fn update_account(&mut self, tx: &mut Tx<'_>, update: &UpdateAccount) -> Done<AccountRecord> {
        let id = update.id();
        let Some(place) = self.hot.find(tx.view(), id, tx.sequence().0)? else {
            return Ok(Err(AccountCode::Unknown));
        };
        let known = read_account(tx.view(), id)?.expect("cached accounts are stored");
        if record::is_reserved(id) {
            return Ok(Err(AccountCode::NotAllowed));
        }
        if update.unchanged_since != 0 && known.changed_revision > update.unchanged_since {
            return Ok(Err(AccountCode::Changed));
        }
        let Some(mut account) = updated(&known, update) else { return Ok(Err(AccountCode::NotAllowed)) };
        let closed = self.hot.get(place).closed;
        if account == known {
            return Ok(Ok(known.seen(closed)));
        }
        // An account that was used cannot become one that was not.
        if account.status() == Status::Pending && known.status() != Status::Pending {
            return Ok(Err(AccountCode::NotAllowed));
        }
        if known.status() == Status::Closed {
            return Ok(Err(AccountCode::Closed));
        }
        let balances = self.hot.get(place).balances();
        let pending = balances.debits_pending > 0 || balances.credits_pending > 0;
        if account.status() == Status::Closed
            && (pending || balances.debits_posted != balances.credits_posted)
        {
            return Ok(Err(AccountCode::NotEmpty));
        }
        let spent = balances.debits_posted.saturating_add(balances.debits_pending);
        let stricter = update.rule.is_some();
        if stricter
            && account.allowance().is_some_and(|most| spent > balances.credits_posted.saturating_add(most))
        {
            return Ok(Err(AccountCode::BelowLimit));
        }
        let taken = balances.credits_posted.saturating_add(balances.credits_pending);
        if update.maximum.is_some() && taken > balances.debits_posted.saturating_add(account.ceiling()) {
            return Ok(Err(AccountCode::AboveMaximum));
        }
        if known.indexed_from == 0 {
            account.indexed_from = known.changed_revision;
            note_change(tx, id, Revision(known.changed_revision));
        }
        account.changed_revision = tx.next_revision().0;
        note_change(tx, id, tx.next_revision());
        put_account(tx, &account);
        self.hot.changed(&account);
        let key = journal::journal_key(tx.next_revision(), 0);
        let part = journal::encode_accounts(tx.stamp(), std::slice::from_ref(&account));
        tx.change(Bytes::copy_from_slice(&key), Some(part));
        Ok(Ok(account.seen(closed)))
    }
}

/// Whether a key was used before for the same request; `None` if it is new.
pub(super) fn is_same_request(view: View<'_>, key: Key) -> Result<Option<bool>, StoreError> {
    let known = view.get(&record::id_key(IDS, key.id))?;
    Ok(known.map(|known| record::decode_location(&known)).transpose()?.map(|known| match known {
        Location::Key { fingerprint } => fingerprint == key.fingerprint,
        Location::At(..) => false,
    }))
}

/// Releases what the pending transfers reserve whose time has come.
pub(super) fn release(run: &mut Run<'_, '_>, due: &[Expiry]) -> Result<(), StoreError> {
    let mut raw = Vec::new();
    for Expiry { subject, .. } in due {
        let id = record::decode_id(subject)?;
        let transfer = Transfer::new(id, Kind::Expired { pending: id });
        raw.clear();
        transfer.encode_into(&mut raw);
        run.expired(&(transfer, &raw))?;
    }
    Ok(())
}

/// Whether a number can be shown, can stand in a path, and is not taken for an id. It may be empty.
pub(super) fn is_clear(number: &str) -> bool {
    let shows = number.is_empty() || !number.trim().is_empty();
    let digits = number.strip_prefix("urn:uuid:").unwrap_or(number);
    let digits = digits.strip_prefix('{').and_then(|digits| digits.strip_suffix('}')).unwrap_or(digits);
    let like_uuid = digits.bytes().filter(|byte| *byte != b'-').count() == 32
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    shows && !like_uuid && !matches!(number, "." | "..") && !number.chars().any(char::is_control)
}

/// The account with the changes; `None` if a rule or status is unknown, or a maximum is both set and taken away.
fn updated(known: &AccountRecord, update: &UpdateAccount) -> Option<AccountRecord> {
    let mut account = known.clone();
    if let Some(status) = update.status {
        account.status = Status::try_from(status).ok()?.into();
    }
    let mut present = known.present();
    if let Some(rule) = update.rule {
        present.rule = Rule::try_from(rule).ok()?.into();
        (present.limit_low, present.limit_high) = (update.limit_low, update.limit_high);
    }
    match (update.maximum, update.no_maximum) {
        (Some(_), true) => return None,
        (None, false) => {}
        (maximum, _) => present.maximum = maximum,
    }
    if let Some(user_data) = &update.user_data {
        present.user_data.clone_from(user_data);
    }
    if update.replace_metadata {
        present.metadata.clone_from(&update.metadata);
    }
    if present != known.present() {
        account.changed = Some(present);
    }
    Some(account)
}

/// Writes a new account, with its number.
pub(super) fn put_new_account(tx: &mut Tx<'_>, account: &AccountRecord) {
    if !account.origin.number.is_empty() {
        let id = Bytes::copy_from_slice(&account.id().to_be_bytes());
        tx.put(&record::number_key(&account.origin.number), id);
    }
    put_account(tx, account);
}

fn put_account(tx: &mut Tx<'_>, account: &AccountRecord) {
    tx.put(&record::id_key(record::ACCOUNTS, account.id()), account.encode_to_vec().into());
}

/// Adds to the index of changes.
fn note_change(tx: &mut Tx<'_>, id: u128, revision: Revision) {
    tx.put(&record::change_key(id, revision), Bytes::new());
}

fn create_currency(tx: &mut Tx<'_>, new: &NewCurrency) -> Done<()> {
    let Ok(currency) = new.code.parse::<Currency>() else { return Ok(Err(AccountCode::CurrencyMalformed)) };
    if new.scale > currency::SCALE_MAX {
        return Ok(Err(AccountCode::CurrencyMalformed));
    }
    if let Some(scale) = currency_scale(tx.view(), currency)? {
        return Ok(if scale == new.scale { Ok(()) } else { Err(AccountCode::CurrencyExists) });
    }
    let scale = new.scale as u8;
    tx.put(&record::currency_key(currency), Bytes::copy_from_slice(&[scale]));
    let key = journal::journal_key(tx.next_revision(), 0);
    tx.change(Bytes::copy_from_slice(&key), Some(journal::encode_currency(tx.stamp(), currency, scale)));
    Ok(Ok(()))
}

/// A command of transfers; `None` if it is malformed, or asks for what nobody may.
pub(super) fn decode_transfers(bytes: &[u8]) -> Option<Decoded<'_>> {
    let decoded = transfer::decode(bytes).ok()?;
    let allowed = |transfer: &Transfer<'_>| {
        // Only the log's time expires transfers, not a client.
        let asked = !matches!(transfer.kind, Kind::Expired { .. }) && transfer.id != 0;
        let import =
            !transfer.times.imported || !matches!(transfer.kind, Kind::Pending { timeout_ms: 1.., .. });
        asked
            && import
            && transfer.reference.len().max(transfer.user_data.len()) <= REFERENCE_BYTES_MAX
            && transfer.extra.metadata.bytes() <= TRANSFER_METADATA_BYTES_MAX
    };
    let imports = decoded.members.iter().filter(|(transfer, _)| transfer.times.imported).count();
    let mixed = imports > 0 && imports < decoded.members.len();
    let allowed = !mixed && decoded.members.iter().all(|(transfer, _)| allowed(transfer));
    allowed.then_some(decoded)
}
