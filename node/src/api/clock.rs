//! This node's clock, only to say how much time is left. What expires, and when, the log decides.

use quoin_core::{Progress, Stamp};
use std::time::{SystemTime, UNIX_EPOCH};

/// Now, and never before the state that is shown.
pub(crate) fn now(progress: &Progress) -> Stamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Stamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)).max(progress.stamp)
}
