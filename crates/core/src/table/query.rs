//! The changes over a table's active version, as of a state of the store: to be exported and folded into
//! files.
//!
//! **Invariant: Whole exports.** The changes are exactly those that lookups at this state see over the files,
//! so a version built from the files and these changes folds all changes up to the state's revision.
//!
//! What is deliberately absent: the memory that lookups read ([`super::Live`]). Reading it for long would
//! block the apply thread.

use super::record::{self, Table, Version};
use crate::store::{Order, StoreError, View};
use bytes::Bytes;
use prost::Message;

/// The active version; `None` if there is no such table or no version is active.
///
/// # Errors
/// The store cannot be read.
pub fn active(view: View<'_>, name: &str) -> Result<Option<Version>, StoreError> {
    let malformed = |error| StoreError::new("decode a table's record", error);
    let Some(table) = view.get(&record::table_key(name))? else { return Ok(None) };
    let table = Table::decode(table).map_err(malformed)?;
    let Some(version) = view.get(&record::version_key(name, table.active))? else { return Ok(None) };
    let mut version = Version::decode(version).map_err(malformed)?;
    if let Some(manifest) = view.get(&record::manifest_key(name, table.active))? {
        version.manifest = manifest;
    }
    Ok(Some(version))
}

fn table(view: View<'_>, name: &str) -> Result<Table, StoreError> {
    let Some(table) = view.get(&record::table_key(name))? else { return Ok(Table::default()) };
    Table::decode(table).map_err(|error| StoreError::new("decode a table's record", error))
}

/// The changed keys over `version`, which is the active one, in order; without a value if they were deleted.
pub fn changes<'a>(
    view: View<'a>,
    name: &str,
    version: &Version,
) -> impl Iterator<Item = Result<(u64, Option<Bytes>), StoreError>> + 'a {
    let version = Version { manifest: Bytes::new(), ..version.clone() };
    let (table, failed) = match table(view, name) {
        Ok(table) => (table, None),
        Err(error) => (Table::default(), Some(Err(error))),
    };
    let changes = view.scan_prefix(&record::changes_prefix(name), Order::Ascending).filter_map(move |pair| {
        let change = pair.and_then(|(key, value)| {
            let (_, key) = record::decode_numbered_key(&key)?;
            let (revision, value) = record::decode_change(value)?;
            Ok(table.shows(&version, revision, value.as_deref()).then_some((key, value)))
        });
        change.transpose()
    });
    failed.into_iter().chain(changes)
}
