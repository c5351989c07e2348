//! Bounds on requests, the same on both wires.

use quoin_core::ledger::TRANSFER_METADATA_BYTES_MAX;
use std::collections::BTreeMap;

/// Maximum bytes of an account's user data.
const USER_DATA_BYTES_MAX: usize = 256;
/// Maximum bytes of all keys and values of an account's metadata.
const METADATA_BYTES_MAX: usize = 4096;
/// Maximum timeout of a pending transfer: ten years.
pub(crate) const TIMEOUT_MS_MAX: u64 = 10 * 366 * 86_400_000;

/// Checks the size of a transfer's metadata.
///
/// # Errors
/// It is too large.
pub(crate) fn check_transfer_metadata(metadata: &BTreeMap<String, String>) -> Result<(), String> {
    check_metadata_bytes(metadata.iter().map(|(name, text)| name.len() + text.len()).sum())
}

/// As [`check_transfer_metadata`], of so many bytes of names and values.
///
/// # Errors
/// They are too many.
pub(crate) fn check_metadata_bytes(bytes: usize) -> Result<(), String> {
    if bytes > TRANSFER_METADATA_BYTES_MAX {
        return Err(format!("has {bytes} bytes, at most {TRANSFER_METADATA_BYTES_MAX}"));
    }
    Ok(())
}

/// Checks the sizes of user data and metadata.
///
/// # Errors
/// The field that is too large, and what is wrong with it.
pub(crate) fn check_texts(
    user_data: &str,
    metadata: &BTreeMap<String, String>,
) -> Result<(), (&'static str, String)> {
    if user_data.len() > USER_DATA_BYTES_MAX {
        return Err(("user_data", format!("has {} bytes, at most {USER_DATA_BYTES_MAX}", user_data.len())));
    }
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > METADATA_BYTES_MAX {
        return Err(("metadata", format!("has {bytes} bytes, at most {METADATA_BYTES_MAX}")));
    }
    Ok(())
}
