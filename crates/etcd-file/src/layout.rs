//! The bytes of bbolt's pages, version 2 of its format. All numbers are little-endian.
//!
//! ```text
//! page:    u64 number, u16 flags, u16 count, u32 how many pages more it takes; then its content
//! meta:    u32 magic, u32 version, u32 page size, u32 flags, u64 root's page, u64 root's sequence,
//!          u64 free list's page, u64 number of pages, u64 transaction, u64 FNV-1a of what is before
//! leaf:    per element u32 flags, u32 position, u32 key's length, u32 value's length; then keys and values
//! branch:  per element u32 position, u32 key's length, u64 page; then keys
//! bucket:  as a leaf element's value: u64 root's page, u64 sequence; page 0: a leaf page follows right here
//! ```
//!
//! Positions count from the element that has them. Pages 0 and 1 are metas, of which the valid one with the
//! higher transaction counts.

pub(crate) const PAGE_HEAD_BYTES: usize = 16;
/// Of an element of a leaf and of a branch.
pub(crate) const ELEMENT_BYTES: usize = 16;
pub(crate) const BUCKET_BYTES: usize = 16;
const META_BYTES: usize = 64;

pub(crate) const BRANCH: u16 = 1;
pub(crate) const LEAF: u16 = 2;
const META: u16 = 4;
pub(crate) const FREE_LIST: u16 = 0x10;
/// The flag of a leaf element whose value is a bucket.
pub(crate) const IS_BUCKET: u32 = 1;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// Sizes of pages that bbolt has on some system.
pub(crate) const PAGE_BYTES: std::ops::RangeInclusive<usize> = 1024..=65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageHead {
    pub(crate) number: u64,
    pub(crate) flags: u16,
    pub(crate) count: u16,
    pub(crate) overflow: u32,
}

impl PageHead {
    pub(crate) fn encode(self) -> [u8; PAGE_HEAD_BYTES] {
        let mut out = [0; PAGE_HEAD_BYTES];
        out[..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..10].copy_from_slice(&self.flags.to_le_bytes());
        out[10..12].copy_from_slice(&self.count.to_le_bytes());
        out[12..].copy_from_slice(&self.overflow.to_le_bytes());
        out
    }

    /// `None` if the bytes are too few.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, flags @ .., i, j, k, l, m, n] =
            *bytes.first_chunk::<PAGE_HEAD_BYTES>()?;
        Some(Self {
            number: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            flags: u16::from_le_bytes(flags),
            count: u16::from_le_bytes([i, j]),
            overflow: u32::from_le_bytes([k, l, m, n]),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) page_bytes: u32,
    pub(crate) root: u64,
    pub(crate) free_list: u64,
    pub(crate) pages: u64,
    pub(crate) transaction: u64,
}

impl Meta {
    /// The whole page `number`, without what fills it up.
    pub(crate) fn encode(self, number: u64) -> Vec<u8> {
        let mut out = PageHead { number, flags: META, count: 0, overflow: 0 }.encode().to_vec();
        for word in [MAGIC, VERSION, self.page_bytes, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for long in [self.root, 0, self.free_list, self.pages, self.transaction] {
            out.extend_from_slice(&long.to_le_bytes());
        }
        let sum = checksum(&out[PAGE_HEAD_BYTES..]);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Whether a page begins as a meta page does.
    pub(crate) fn begins(page: &[u8]) -> bool {
        word(page, PAGE_HEAD_BYTES) == Some(MAGIC)
    }

    /// `None` if the page is no meta page, is damaged, or of another version.
    pub(crate) fn decode(page: &[u8]) -> Option<Self> {
        let meta = page.get(PAGE_HEAD_BYTES..PAGE_HEAD_BYTES + META_BYTES)?;
        let sound = word(meta, 0) == Some(MAGIC)
            && word(meta, 4) == Some(VERSION)
            && long(meta, 56) == Some(checksum(&meta[..56]));
        sound.then_some(Self {
            page_bytes: word(meta, 8)?,
            root: long(meta, 16)?,
            free_list: long(meta, 32)?,
            pages: long(meta, 40)?,
            transaction: long(meta, 48)?,
        })
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

pub(crate) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

/// FNV-1a of 64 bits: not worth a crate.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_meta_page_are_pinned() {
        let meta = Meta { page_bytes: 4096, root: 3, free_list: 2, pages: 4, transaction: 1 };
        let page = meta.encode(1);
        let golden = b"\x01\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\
            \xed\xda\x0c\xed\x02\0\0\0\0\x10\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
            \x02\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0";
        assert_eq!(page[..72], golden[..]);
        assert_eq!(Meta::decode(&page), Some(meta));
        for place in PAGE_HEAD_BYTES..page.len() {
            let mut damaged = page.clone();
            damaged[place] ^= 1;
            assert_eq!(Meta::decode(&damaged), None, "byte {place}");
            assert_eq!(Meta::decode(&page[..place]), None);
        }
    }
}
