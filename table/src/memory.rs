//! A file's bytes in memory: mapped, or read into huge pages. The only module with unsafe code.
//!
//! **Invariant.** The bytes do not change while a [`Memory`] lives, so they can be lent as a slice. A mapped file must not be
//! cut or overwritten in place by others: the node keeps files under names of its own, read-only, and removes them by unlinking,
//! which leaves mappings intact.
//!
//! What is deliberately absent: a second copy. In huge pages the file is read in pieces, and the kernel is told to forget each.
#![allow(unsafe_code, reason = "mapping files and prefetching have no safe form")]

use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use std::fs::File;
use std::io::{self, Read};

/// Bytes read at once into huge pages, and the size of a huge page on the platforms that we know.
const PIECE: usize = 2 << 20;

/// Where a file's bytes are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Mapped: the kernel loads pages as they are needed and may drop them.
    #[default]
    Mapped,
    /// Read into anonymous memory on huge pages, as far as the kernel has any: fewer misses in the address cache.
    Huge,
}

/// A file's bytes.
pub(crate) struct Memory(Kind);

enum Kind {
    Mapped(Mmap),
    Huge { bytes: MmapMut, length: usize },
}

impl Memory {
    /// The first `length` bytes of `file`, which has as many.
    pub(crate) fn load(file: &File, length: usize, place: Place) -> io::Result<Self> {
        match place {
            Place::Mapped => {
                // SAFETY: by the module's invariant nobody changes the file.
                let map = unsafe { MmapOptions::new().len(length).map(file)? };
                map.advise(Advice::Random)?;
                Ok(Self(Kind::Mapped(map)))
            }
            Place::Huge => Ok(Self(Kind::Huge { bytes: read_huge(file, length)?, length })),
        }
    }

    /// Keeps the bytes in memory, whatever else needs room.
    pub(crate) fn lock(&self) -> io::Result<()> {
        match &self.0 {
            Kind::Mapped(map) => map.lock(),
            Kind::Huge { bytes, .. } => bytes.lock(),
        }
    }

    /// Says that the whole is about to be read from front to back, or (again) in no order.
    pub(crate) fn expect_scan(&self, scan: bool) {
        if let Kind::Mapped(map) = &self.0 {
            // Only advice: if the kernel does not take it, reading is slower.
            let _ = map.advise(if scan { Advice::Sequential } else { Advice::Random });
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Kind::Mapped(map) => map,
            Kind::Huge { bytes, length } => &bytes[..*length],
        }
    }
}

fn read_huge(mut file: &File, length: usize) -> io::Result<MmapMut> {
    let mut bytes = MmapMut::map_anon(length.next_multiple_of(PIECE).max(PIECE))?;
    // Without huge pages the same memory serves, slower: not an error.
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

/// Starts loading the cache line at `position`, if there is one.
#[inline]
pub(crate) fn prefetch(bytes: &[u8], position: usize) {
    #[cfg(target_arch = "x86_64")]
    if position < bytes.len() {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is within `bytes`; a prefetch reads nothing that the program sees.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().add(position).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, position);
}
