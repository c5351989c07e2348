//! Whose replica it is, and on which disk.

use std::collections::BTreeMap;
use std::io;

/// Whose replica it is, and on which disk.
#[derive(Clone, Debug, Default)]
pub struct Owner {
    /// The cluster's id.
    pub cluster: u64,
    /// The member's id.
    pub id: u64,
    /// A number drawn when the data folder was made.
    pub disk: u64,
    /// The replica has taken part in the cluster from this disk, so its log must be there.
    pub settled: bool,
    /// The disks of other members, as far as they were told at the founding.
    pub disks: BTreeMap<u64, u64>,
}

/// Called when a replica that starts for the first time may take part, with the disks of the other founders.
/// It writes down that the owner is settled, and who has which disk.
pub type Settle = Box<dyn FnOnce(&BTreeMap<u64, u64>) -> io::Result<()> + Send>;
