//! A file's bytes in memory: mapped, or read into huge pages. Unsafe code is here and in [`crate::cut`] alone.
//!
//! The bytes do not change while a [`Memory`] lives, so they can be lent as a slice. This requires that
//! nobody cuts or overwrites a mapped file: the node keeps files under its own names, read-only, and removes
//! them by unlinking, which leaves mappings intact. Where somebody cuts one all the same, or the disk fails,
//! [`crate::cut`] puts zeros there, and [`Memory::is_broken`] says so.
//!
//! Deliberately absent: a second copy. A file is read into huge pages piece by piece, and the kernel drops
//! each piece from its page cache.
#![allow(unsafe_code, reason = "mapping files and prefetching have no safe form")]

use crate::cut::Watched;
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes per read into huge pages, and the size of a huge page on the supported platforms.
const PIECE: usize = 2 << 20;

/// Where a file's bytes are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Mapped: the kernel loads pages on demand and may drop them.
    #[default]
    Mapped,
    /// Read into anonymous memory, on huge pages as far as the kernel has any: fewer TLB misses.
    Huge,
}

/// A file's bytes.
pub(crate) struct Memory(Kind);

enum Kind {
    /// Fields are dropped in order: the mapping is no longer watched when it goes.
    Mapped {
        watched: Watched,
        map: Mmap,
    },
    Huge {
        bytes: MmapMut,
        length: usize,
    },
}

impl Memory {
    /// The first `length` bytes of `file`, which is at least that long; `path` is its name in messages.
    pub(crate) fn load(file: &File, path: &Path, length: usize, place: Place) -> io::Result<Self> {
        match place {
            Place::Mapped => {
                // SAFETY: nobody changes a mapped file, see the module's head.
                let map = unsafe { MmapOptions::new().len(length).map(file)? };
                map.advise(Advice::Random)?;
                Ok(Self(Kind::Mapped { watched: Watched::new(&map, path), map }))
            }
            Place::Huge => Ok(Self(Kind::Huge { bytes: read_huge(file, length)?, length })),
        }
    }

    /// Whether some of the bytes could not be read: then any of them may be zero instead.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(&self.0, Kind::Mapped { watched, .. } if watched.is_broken())
    }

    /// Locks the bytes in memory (mlock).
    pub(crate) fn lock(&self) -> io::Result<()> {
        match &self.0 {
            Kind::Mapped { map, .. } => map.lock(),
            Kind::Huge { bytes, .. } => bytes.lock(),
        }
    }

    /// Tells the kernel whether the next reads are sequential or random.
    pub(crate) fn expect_scan(&self, scan: bool) {
        if let Kind::Mapped { map, .. } = &self.0 {
            // Only advice: without it, reading is slower.
            let _ = map.advise(if scan { Advice::Sequential } else { Advice::Random });
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Kind::Mapped { map, .. } => map,
            Kind::Huge { bytes, length } => &bytes[..*length],
        }
    }
}

fn read_huge(mut file: &File, length: usize) -> io::Result<MmapMut> {
    let mut bytes = MmapMut::map_anon(length.next_multiple_of(PIECE).max(PIECE))?;
    // Not an error: without huge pages, reading is slower.
    #[cfg(target_os = "linux")]
    let _ = bytes.advise(Advice::HugePage);
    let mut done = 0;
    while done < length {
        let piece = PIECE.min(length - done);
        file.read_exact(&mut bytes[done..done + piece])?;
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(
            file,
            done as u64,
            std::num::NonZero::new(piece as u64),
            rustix::fs::Advice::DontNeed,
        );
        done += piece;
    }
    Ok(bytes)
}

/// Prefetches the cache line at `position`; does nothing beyond the end of `bytes`.
#[inline]
pub(crate) fn prefetch(bytes: &[u8], position: usize) {
    #[cfg(target_arch = "x86_64")]
    if position < bytes.len() {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is within `bytes`, and a prefetch has no visible effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().add(position).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, position);
}
