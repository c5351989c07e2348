//! Whose log it is, and its sizes.

/// The owner of a log, and its sizes.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster.
    pub cluster: u64,
    /// The node.
    pub node: u64,
    /// The disk: a number drawn when the data folder was made. It keeps apart logs of one node on different
    /// disks, and blocks from bytes that look like blocks.
    pub disk: u64,
    /// Bytes of a segment. A larger append gets a segment of its own size.
    pub segment_bytes: u64,
    /// Maximum bytes of the newest entries that are kept in memory.
    pub cache_bytes: usize,
}
