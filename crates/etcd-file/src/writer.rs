//! Writes a bbolt database in one go: buckets in the order of their names, each with its keys in order.
//!
//! Pages are written as they fill up. A full leaf is an element of the branch that is being filled above it, and so on up,
//! so memory holds one page of each level. The first three pages, two metas and an empty free list, come last.

use crate::layout::{
    BRANCH, BUCKET_BYTES, ELEMENT_BYTES, FREE_LIST, IS_BUCKET, LEAF, Meta, PAGE_HEAD_BYTES, PageHead,
};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

const PAGE_BYTES: usize = 4096;
/// Metas and free list.
const FIRST_PAGES: u64 = 3;

/// A database being written.
pub(crate) struct Writer {
    out: BufWriter<File>,
    /// The number of the next page.
    next: u64,
    /// The leaf that is the whole root: names of buckets, and where they are.
    root: Elements,
    bucket: Option<Bucket>,
    last_name: Vec<u8>,
}

struct Bucket {
    name: Vec<u8>,
    leaf: Elements,
    /// Level by level from the leaves up.
    branches: Vec<Elements>,
    last: Option<Vec<u8>>,
}

/// The elements of a page to be.
#[derive(Default)]
struct Elements {
    /// Per element, how long its key is and what its header says besides.
    heads: Vec<(usize, Head)>,
    first: Vec<u8>,
    content: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Head {
    Leaf { value: usize, flags: u32 },
    Branch { child: u64 },
}

impl Elements {
    fn bytes(&self) -> usize {
        PAGE_HEAD_BYTES + self.heads.len() * ELEMENT_BYTES + self.content.len()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.heads.is_empty() || self.bytes() + ELEMENT_BYTES + bytes <= PAGE_BYTES
    }

    fn push(&mut self, key: &[u8], head: Head, value: &[&[u8]]) {
        if self.heads.is_empty() {
            self.first = key.to_vec();
        }
        self.heads.push((key.len(), head));
        self.content.extend_from_slice(key);
        value.iter().for_each(|part| self.content.extend_from_slice(part));
    }

    /// The page's bytes, not filled up.
    fn encode(&self, number: u64) -> io::Result<Vec<u8>> {
        let too_large =
            |_| io::Error::new(io::ErrorKind::InvalidInput, "a value is too long for a database of etcd");
        let is_branch = matches!(self.heads.first(), Some((_, Head::Branch { .. })));
        let overflow = self.bytes().div_ceil(PAGE_BYTES) - 1;
        let head = PageHead {
            number,
            flags: if is_branch { BRANCH } else { LEAF },
            count: u16::try_from(self.heads.len()).map_err(too_large)?,
            overflow: u32::try_from(overflow).map_err(too_large)?,
        };
        let mut out = Vec::with_capacity(self.bytes());
        out.extend_from_slice(&head.encode());
        let (count, mut at) = (self.heads.len(), 0);
        for (place, (key, head)) in self.heads.iter().enumerate() {
            let position = u32::try_from((count - place) * ELEMENT_BYTES + at).map_err(too_large)?;
            let key_bytes = u32::try_from(*key).map_err(too_large)?.to_le_bytes();
            match head {
                Head::Leaf { value, flags } => {
                    out.extend_from_slice(&flags.to_le_bytes());
                    out.extend_from_slice(&position.to_le_bytes());
                    out.extend_from_slice(&key_bytes);
                    out.extend_from_slice(&u32::try_from(*value).map_err(too_large)?.to_le_bytes());
                    at += value;
                }
                Head::Branch { child } => {
                    out.extend_from_slice(&position.to_le_bytes());
                    out.extend_from_slice(&key_bytes);
                    out.extend_from_slice(&child.to_le_bytes());
                }
            }
            at += key;
        }
        out.extend_from_slice(&self.content);
        Ok(out)
    }
}

impl Writer {
    /// A database in `file`, which is empty.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(256 << 10, file);
        out.write_all(&[0; FIRST_PAGES as usize * PAGE_BYTES])?;
        let root = Elements::default();
        Ok(Self { out, next: FIRST_PAGES, root, bucket: None, last_name: Vec::new() })
    }

    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.next * PAGE_BYTES as u64
    }

    /// Ends the bucket before it, and begins the next one.
    ///
    /// # Panics
    /// The names are not ascending: ours are constants.
    pub(crate) fn begin_bucket(&mut self, name: &[u8]) -> io::Result<()> {
        self.end_bucket()?;
        assert!(self.last_name[..] < *name, "names of buckets ascend");
        self.last_name = name.to_vec();
        self.bucket =
            Some(Bucket { name: name.to_vec(), leaf: Elements::default(), branches: Vec::new(), last: None });
        Ok(())
    }

    /// Adds a pair to the bucket; the value is in parts. Keys must ascend.
    ///
    /// # Panics
    /// No bucket has begun.
    pub(crate) fn put(&mut self, key: &[u8], value: &[&[u8]]) -> io::Result<()> {
        let mut bucket = self.bucket.take().expect("a bucket has begun");
        if bucket.last.as_ref().is_some_and(|last| last[..] >= *key) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "keys of a bucket are not in order"));
        }
        let length = value.iter().map(|part| part.len()).sum();
        if !bucket.leaf.has_room(key.len() + length) {
            self.write_leaf(&mut bucket)?;
        }
        bucket.leaf.push(key, Head::Leaf { value: length, flags: 0 }, value);
        bucket.last = Some(key.to_vec());
        self.bucket = Some(bucket);
        Ok(())
    }

    /// Ends the database and returns its file, at its end.
    pub(crate) fn finish(mut self) -> io::Result<File> {
        self.end_bucket()?;
        let root = std::mem::take(&mut self.root);
        let root = self.write_page(&root)?;
        let pages = self.next;
        self.out.flush()?;
        self.out.seek(SeekFrom::Start(0))?;
        for number in [0, 1] {
            let page_bytes = PAGE_BYTES as u32;
            let meta = Meta { page_bytes, root, free_list: 2, pages, transaction: number };
            self.write_filled(&meta.encode(number))?;
        }
        let free = PageHead { number: 2, flags: FREE_LIST, count: 0, overflow: 0 };
        self.write_filled(&free.encode())?;
        self.out.seek(SeekFrom::End(0))?;
        self.out.into_inner().map_err(io::IntoInnerError::into_error)
    }

    fn end_bucket(&mut self) -> io::Result<()> {
        let Some(mut bucket) = self.bucket.take() else { return Ok(()) };
        let (root, inline) = if bucket.last.is_none() {
            // As bbolt keeps an empty bucket.
            (0, bucket.leaf.encode(0)?)
        } else if bucket.branches.is_empty() {
            (self.write_page(&bucket.leaf)?, Vec::new())
        } else {
            self.write_leaf(&mut bucket)?;
            (self.write_branches(bucket.branches)?, Vec::new())
        };
        let mut header = [0; BUCKET_BYTES];
        header[..8].copy_from_slice(&root.to_le_bytes());
        let head = Head::Leaf { value: BUCKET_BYTES + inline.len(), flags: IS_BUCKET };
        self.root.push(&bucket.name, head, &[&header, &inline]);
        Ok(())
    }

    /// Writes what the branches hold, from the lowest up, and returns the page of the highest.
    fn write_branches(&mut self, mut branches: Vec<Elements>) -> io::Result<u64> {
        let mut level = 0;
        loop {
            let branch = std::mem::take(&mut branches[level]);
            let is_last = level + 1 == branches.len();
            if let ([(_, Head::Branch { child })], true) = (&branch.heads[..], is_last) {
                return Ok(*child);
            }
            let page = self.write_page(&branch)?;
            if is_last {
                return Ok(page);
            }
            level += 1;
            self.add_child(&mut branches, level, &branch.first, page)?;
        }
    }

    fn write_leaf(&mut self, bucket: &mut Bucket) -> io::Result<()> {
        let leaf = std::mem::take(&mut bucket.leaf);
        let page = self.write_page(&leaf)?;
        self.add_child(&mut bucket.branches, 0, &leaf.first, page)
    }

    /// Makes a page an element of the branch of `level`, which is written first if it is full.
    fn add_child(
        &mut self,
        branches: &mut Vec<Elements>,
        level: usize,
        first: &[u8],
        child: u64,
    ) -> io::Result<()> {
        if level == branches.len() {
            branches.push(Elements::default());
        }
        if !branches[level].has_room(first.len()) {
            let full = std::mem::take(&mut branches[level]);
            let page = self.write_page(&full)?;
            self.add_child(branches, level + 1, &full.first, page)?;
        }
        branches[level].push(first, Head::Branch { child }, &[]);
        Ok(())
    }

    fn write_page(&mut self, elements: &Elements) -> io::Result<u64> {
        let number = self.next;
        let page = elements.encode(number)?;
        self.next += page.len().div_ceil(PAGE_BYTES) as u64;
        self.write_filled(&page)?;
        Ok(number)
    }

    /// Writes a page and fills it up with zeros.
    fn write_filled(&mut self, page: &[u8]) -> io::Result<()> {
        const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        self.out.write_all(page)?;
        self.out.write_all(&ZEROS[..page.len().next_multiple_of(PAGE_BYTES) - page.len()])
    }
}
