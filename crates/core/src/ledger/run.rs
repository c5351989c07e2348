//! A command of transfers while it runs: its state. What it does is in `transfers.rs` (judging), `known.rs`
//! (answering ids that were used before) and `recording.rs` (writing).

use super::hot::Hot;
use super::indexes::{Indexes, Rows};
use super::journal::{PART_TRANSFERS, Resolution};
use super::record::{Balances, PendingRecord};
use super::reply::{Detail, TransferReply};
use super::stretch::Stretch;
use super::transfer::Transfer;
use crate::expiry::ExpiryIndex;
use crate::store::StoreError;
use crate::tx::Tx;
use crate::types::Revision;
use std::collections::{BTreeMap, HashMap};

/// One member of a group: decoded, and as its bytes in the command.
pub(super) type Member<'c> = (Transfer<'c>, &'c [u8]);

/// A command of transfers while it runs.
pub(super) struct Run<'m, 's> {
    pub(super) tx: &'m mut Tx<'s>,
    pub(super) hot: &'m mut Hot,
    pub(super) stretch: &'m mut Stretch,
    pub(super) expiries: &'m mut ExpiryIndex,
    /// The command's sequence.
    pub(super) now: u64,
    /// Whether to answer with balances.
    pub(super) details: bool,
    /// The parts of the journal so far.
    pub(super) parts: Vec<Vec<u8>>,
    /// How many transfers they hold.
    pub(super) recorded: u32,
    /// The position of the first.
    pub(super) first: u32,
    /// The ids recorded, with their positions.
    pub(super) ids: Vec<(u128, u32)>,
    /// `ids` by id, made once an id comes that is not known to be new.
    pub(super) places: Option<HashMap<u128, u32>>,
    pub(super) links: Vec<Link>,
    /// The accounts touched.
    pub(super) touched: Vec<Touch>,
    /// The pending transfers made or ended.
    pub(super) pendings: BTreeMap<u128, PendingRecord>,
    /// The present group's changes, to undo if one of its transfers is refused.
    pub(super) undo: Vec<(u32, Balances, bool)>,
    pub(super) undo_pendings: Vec<(u128, Option<PendingRecord>)>,
    /// The transfers reverted, with their reverts.
    pub(super) reverts: BTreeMap<u128, u128>,
    pub(super) undo_reverts: Vec<u128>,
    /// The newest client time of imported transfers, once one was looked at.
    pub(super) imported_ms: Option<u64>,
    pub(super) undo_imported_ms: Option<u64>,
    /// The rows of the indexes that are on.
    pub(super) rows: Option<Rows>,
    pub(super) unique_references: bool,
    /// The references taken, with the transfers that have taken them.
    pub(super) references: BTreeMap<String, super::references::Taken>,
    pub(super) undo_references: Vec<String>,
    /// Counts the linked groups and single transfers that were judged.
    pub(super) group: u32,
    /// The balances after each transfer of a revision, newest first, by account, for answers that are given again.
    pub(super) walked: HashMap<(u128, Revision), Vec<(u32, Balances)>>,
    /// How many there are.
    pub(super) walked_lines: usize,
    pub(super) replies: Vec<TransferReply>,
    /// The reply of each recorded position.
    pub(super) reply_of: Vec<u32>,
}

impl<'m, 's> Run<'m, 's> {
    pub(super) fn new(
        tx: &'m mut Tx<'s>,
        hot: &'m mut Hot,
        stretch: &'m mut Stretch,
        expiries: &'m mut ExpiryIndex,
        indexes: Indexes,
        details: bool,
        count: usize,
    ) -> Self {
        let now = tx.sequence().0;
        Self {
            tx,
            hot,
            stretch,
            expiries,
            now,
            details,
            parts: Vec::with_capacity(count.div_ceil(PART_TRANSFERS as usize)),
            recorded: 0,
            first: 0,
            ids: Vec::with_capacity(count),
            places: None,
            links: Vec::with_capacity(2 * count),
            touched: Vec::new(),
            pendings: BTreeMap::new(),
            undo: Vec::new(),
            undo_pendings: Vec::new(),
            reverts: BTreeMap::new(),
            undo_reverts: Vec::new(),
            imported_ms: None,
            undo_imported_ms: None,
            rows: Rows::of(indexes),
            unique_references: indexes.unique_references().is_some(),
            references: BTreeMap::new(),
            group: 0,
            undo_references: Vec::new(),
            walked: HashMap::new(),
            walked_lines: 0,
            replies: Vec::with_capacity(count),
            reply_of: Vec::with_capacity(count),
        }
    }

    /// Leaves the first part of the journal to accounts.
    pub(super) fn begin_after_accounts(&mut self) {
        (self.first, self.recorded) = (PART_TRANSFERS, PART_TRANSFERS);
        self.parts.push(Vec::new());
        self.reply_of.resize(PART_TRANSFERS as usize, 0);
    }

    /// The place of an account among the cached ones; `None` if it does not exist.
    pub(super) fn account(&mut self, id: u128) -> Result<Option<u32>, StoreError> {
        self.hot.find(self.tx.view(), id, self.now)
    }
}

/// No transfer of this command has touched the account.
pub(super) const NO_LINK: u32 = u32::MAX;

/// An account that the command has touched. The slot says which of them is its own; a slot that was not touched says
/// what is not true.
pub(super) struct Touch {
    pub(super) place: u32,
    pub(super) id: u128,
    /// The balances before the command.
    pub(super) before: Balances,
    /// The newest of the command's transfers that touched it.
    pub(super) link: u32,
}

/// A transfer that touched an account, and the previous one: a list per account, newest first.
pub(super) struct Link {
    pub(super) position: u32,
    pub(super) previous: u32,
}

/// The effect of a transfer that is allowed.
pub(super) struct Effect {
    pub(super) debit: u32,
    pub(super) credit: u32,
    pub(super) resolution: Resolution,
    pub(super) detail: Option<Box<Detail>>,
}

/// What a known id is recorded as.
#[derive(Clone, Copy)]
pub(super) enum Known {
    /// In this command, at this position.
    Here(u32),
    /// In the journal.
    Stored(Revision, u32),
    /// The key of a request for several things.
    Key,
}
