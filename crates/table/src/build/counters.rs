//! What all threads of a build count together: progress, and the widths of the values.

use super::rows::Rows;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far a build is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Rows are being read and divided over the parts.
    Reading {
        /// Rows read.
        rows: u64,
        /// Bytes of the inputs read, approximately.
        bytes: u64,
        /// Bytes of all inputs.
        bytes_total: u64,
    },
    /// Parts are being laid out and written.
    Writing {
        /// Parts written.
        parts: u64,
        /// All parts.
        parts_total: u64,
        /// Rows read.
        rows: u64,
    },
}

/// Widths up to this are counted one by one, to choose the inline capacity.
const WIDTHS: usize = 256;

/// The rows read so far, by all threads.
pub(super) struct Counters {
    rows: AtomicU64,
    bytes: AtomicU64,
    bytes_total: u64,
    /// The number of values of each width; the last entry counts all longer ones.
    widths: Vec<AtomicU64>,
    /// The common width of all values, plus 1; 0: no value yet; `u64::MAX`: they differ.
    width: AtomicU64,
}

impl Counters {
    pub(super) fn new(bytes_total: u64) -> Self {
        Self {
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            bytes_total,
            widths: (0..=WIDTHS + 1).map(|_| AtomicU64::new(0)).collect(),
            width: AtomicU64::new(0),
        }
    }

    pub(super) fn add(&self, rows: &Rows) {
        self.rows.fetch_add(rows.keys.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(rows.source_bytes, Ordering::Relaxed);
        let (mut begin, mut same, mut run) = (0, usize::MAX, 0u64);
        for (row, &end) in rows.ends.iter().enumerate() {
            let width = (end - begin) as usize;
            begin = end;
            if rows.deletes.get(row) == Some(&true) {
                continue;
            }
            if width == same {
                run += 1;
                continue;
            }
            self.count(same, run);
            (same, run) = (width, 1);
        }
        self.count(same, run);
    }

    fn count(&self, width: usize, run: u64) {
        if run == 0 {
            return;
        }
        self.widths[width.min(WIDTHS + 1)].fetch_add(run, Ordering::Relaxed);
        let width = width as u64 + 1;
        let met = self.width.compare_exchange(0, width, Ordering::Relaxed, Ordering::Relaxed);
        if met.is_err_and(|seen| seen != width) {
            self.width.store(u64::MAX, Ordering::Relaxed);
        }
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    pub(super) fn progress(&self) -> Progress {
        let bytes = self.bytes.load(Ordering::Relaxed);
        Progress::Reading { rows: self.rows(), bytes, bytes_total: self.bytes_total }
    }

    /// The width of all values, if they have the same.
    pub(super) fn single_width(&self) -> Option<u32> {
        match self.width.load(Ordering::Relaxed) {
            0 | u64::MAX => None,
            width => u32::try_from(width - 1).ok(),
        }
    }

    /// The inline capacity, in bytes, that minimizes entries plus heap. A value in the heap costs one more
    /// cache line.
    pub(super) fn inline(&self) -> u32 {
        let count = |width: usize| self.widths[width].load(Ordering::Relaxed);
        let all: u64 = (0..=WIDTHS + 1).map(count).sum();
        let cost = |capacity: usize| {
            let beyond: u64 = (capacity + 1..=WIDTHS).map(|width| count(width) * (width as u64 + 64)).sum();
            all * capacity as u64 + beyond
        };
        (8..=WIDTHS).step_by(4).min_by_key(|&capacity| cost(capacity)).unwrap_or(8) as u32
    }
}
