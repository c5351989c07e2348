//! What an agent says about itself.

use serde::Serialize;

/// Rules in Linux's tables, and those that are not there.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Tables {
    /// Rules that the tables hold.
    pub(super) in_effect: usize,
    /// Rules of which the kernel has refused an entry.
    pub(super) refused: usize,
    /// Rules without a MAC address: there is nothing to write.
    pub(super) without_mac: usize,
    /// Rules of networks without a device.
    pub(super) without_device: usize,
    /// MAC addresses, or addresses, for which rules want different values.
    pub(super) conflicts: usize,
    /// Devices of the name that the agent was given.
    pub(super) devices: usize,
    /// How often all tables were compared with the rules.
    pub(super) comparisons: u64,
    /// Comparisons that failed; the next one makes up for it.
    pub(super) comparisons_failed: u64,
    /// Entries written or removed because a comparison found a difference.
    pub(super) written: Written,
    /// The first refused entries.
    pub(super) refusals: Vec<Refused>,
}

/// Entries by what made the agent compare.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Written {
    pub(super) start: u64,
    /// A device has changed.
    pub(super) links: u64,
    /// Periodically: another hand had changed the tables.
    pub(super) periodic: u64,
}

/// A refused entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Refused {
    /// The first of the rules that want it.
    pub(super) rules: Vec<String>,
    pub(super) device: String,
    pub(super) entry: String,
    pub(super) error: String,
}
