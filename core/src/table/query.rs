//! The changes over a table's active version, as a state of the store has them: to be exported and folded into files.
//!
//! **Invariant.** What is given is exactly what lookups at this state see over the files; a later version built from the files and from
//! these may say that it folds changes up to the state's revision.
//!
//! What is deliberately absent: the memory that lookups read ([`super::Live`]): reading it for long would hold up the apply thread.

use super::record::{self, Table, Version};
use crate::store::{Order, StoreError, View};
use bytes::Bytes;
use prost::Message;

/// The version that answers; `None` if there is no such table or nothing is active.
///
/// # Errors
/// The store cannot be read.
pub fn active(view: View<'_>, name: &str) -> Result<Option<Version>, StoreError> {
    let malformed = |error| StoreError::new("decode a table's record", error);
    let Some(table) = view.get(&record::table(name))? else { return Ok(None) };
    let table = Table::decode(table).map_err(malformed)?;
    let version = view.get(&record::version(name, table.active))?;
    version.map(Version::decode).transpose().map_err(malformed)
}

/// The keys that lie over `version`, which is active, in their order: with a value, or without one where they were deleted.
pub fn changes<'a>(
    view: View<'a>,
    name: &str,
    version: &Version,
) -> impl Iterator<Item = Result<(u64, Option<Bytes>), StoreError>> + 'a {
    let folds = version.folds;
    let width = version.shape.as_ref().and_then(|shape| (shape.width_plus_1 as usize).checked_sub(1));
    view.scan_prefix(&record::changes(name), Order::Ascending).filter_map(move |pair| {
        let change = pair.and_then(|(key, value)| {
            let (_, key) = record::name_and_number(&key)?;
            let (revision, value) = record::decode_change(value)?;
            let fits = value.as_ref().is_none_or(|value| width.is_none_or(|width| value.len() == width));
            Ok((fits && revision.0 > folds).then_some((key, value)))
        });
        change.transpose()
    })
}
