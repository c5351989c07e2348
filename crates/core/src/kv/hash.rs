//! The bytes that stand for the keys of one revision, for hashes by which replicas are compared.
//!
//! They hold what clients see of each key, and nothing else: not leases (kept alive without a revision), not
//! the expiry index, not how records are stored. So they are the same for the same revision on every replica,
//! whatever it has compacted, restored or flushed, for as long as the revision can be read.

use super::query::fields;
use super::record::{self, Field, Record};
use crate::mutants;
use crate::store::{Order, StoreError, View};
use crate::types::Sequence;

/// Passes the keys of `view` to `add`, piece by piece, in key order.
///
/// A key is its length, itself, create revision, mod revision, version, lease, stamp of the last write,
/// deadline (0 for none), the number of its metadata, those, the value's length, the value. Numbers have 8
/// bytes, little-endian. Of a hash, whose value says how many fields it has, the fields follow: each is its name and
/// its value, with their lengths, and its deadline.
///
/// # Errors
/// The store failed.
pub fn hash(view: View<'_>, mut add: impl FnMut(&[u8])) -> Result<(), StoreError> {
    let view = if mutants::is("hash-of-newest") { view.at(Sequence(u64::MAX - 1)) } else { view };
    for pair in view.scan(&record::KEYS, &record::KEYS_END, Order::Ascending) {
        let (store_key, stored) = pair?;
        let (key, record) = (&store_key[record::KEYS.len()..], Record::decode(stored)?);
        add(&(key.len() as u64).to_le_bytes());
        add(key);
        let Record {
            create_revision,
            mod_revision,
            version,
            updated,
            lease,
            expires,
            metadata,
            collection,
            value,
        } = record;
        let deadline = expires.map_or(0, |expires| expires.at.0);
        let numbers = [
            create_revision,
            mod_revision,
            version,
            lease as u64,
            updated.0,
            deadline,
            metadata.len() as u64,
        ];
        numbers.iter().for_each(|number| add(&number.to_le_bytes()));
        metadata.iter().for_each(|number| add(&number.to_le_bytes()));
        add(&(value.len() as u64).to_le_bytes());
        add(&value);
        let Some(hash) = collection else { continue };
        for field in fields(view, hash, b"") {
            let (name, Field { value, expires }) = field?;
            for part in [name, value] {
                add(&(part.len() as u64).to_le_bytes());
                add(&part);
            }
            add(&expires.map_or(0, |at| at.0).to_le_bytes());
        }
    }
    Ok(())
}
