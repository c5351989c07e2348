//! Many transfers or accounts by id, in one answer that is bounded in bytes.

use super::query::{account, transfer};
use super::reply::{Account, TransferView};
use crate::store::{StoreError, View};
use prost::Message;

/// Maximum ids in one lookup.
pub const LOOKUP_MAX: usize = 1000;
/// A lookup ends after about this many bytes: less than what clients of gRPC take by default.
const LOOKUP_BYTES: usize = 2 << 20;
/// What an item takes in an answer besides its texts, about.
const ITEM_BYTES: usize = 256;

/// Transfers by id, `None` for one that does not exist. Fewer than asked for where the answer is large.
///
/// # Errors
/// The store failed.
pub fn lookup_transfers(view: View<'_>, ids: &[u128]) -> Result<Vec<Option<TransferView>>, StoreError> {
    let bytes = |found: &TransferView| found.entry.bytes();
    lookup(ids, LOOKUP_BYTES, bytes, |id| transfer(view, id))
}

/// Accounts by id, as [`lookup_transfers`].
///
/// # Errors
/// The store failed.
pub fn lookup_accounts(view: View<'_>, ids: &[u128]) -> Result<Vec<Option<Account>>, StoreError> {
    let bytes = |found: &Account| found.record.encoded_len();
    lookup(ids, LOOKUP_BYTES, bytes, |id| account(view, id))
}

fn lookup<T>(
    ids: &[u128],
    bytes_max: usize,
    bytes_of: impl Fn(&T) -> usize,
    read: impl Fn(u128) -> Result<Option<T>, StoreError>,
) -> Result<Vec<Option<T>>, StoreError> {
    let (mut found, mut bytes) = (Vec::with_capacity(ids.len()), 0);
    for id in ids {
        if bytes >= bytes_max {
            break;
        }
        let item = read(*id)?;
        bytes += ITEM_BYTES + item.as_ref().map_or(0, &bytes_of);
        found.push(item);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_ends_where_its_answer_is_large_and_always_answers_one() {
        let read = |id: u128| Ok((!id.is_multiple_of(3)).then_some(id as usize));
        let some = lookup(&[4, 3, 700, 5], usize::MAX, |size| *size, read).unwrap();
        assert_eq!(some, [Some(4), None, Some(700), Some(5)]);
        let most = 3 * ITEM_BYTES + 4 + 700;
        assert_eq!(lookup(&[4, 3, 700, 5], most, |size| *size, read).unwrap(), some[..3]);
        assert_eq!(lookup(&[700, 3], 1, |size| *size, read).unwrap(), [Some(700)]);
    }
}
