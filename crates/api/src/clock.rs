//! This node's clock, used only to show how much time is left.
//!
//! **Invariant: Time is data.** What expires, and when, is decided by the stamps in the log.

use quoin_core::{Progress, Stamp};
use std::time::{SystemTime, UNIX_EPOCH};

/// Now, but not before the stamp of the state that is shown.
pub(crate) fn now(progress: &Progress) -> Stamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Stamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)).max(progress.stamp)
}
