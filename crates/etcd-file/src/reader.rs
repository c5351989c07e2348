//! Reads a bbolt database that nobody writes to.
//!
//! **Invariant: Bounded.** A walk holds one path of pages. It ends because each leaf must continue the order of the keys:
//! pages that point to each other, or to one page twice, are refused when the second visit begins. What lies in pages or
//! elements that overlap is given as often as the database is long, and no more.

use crate::layout::{
    BRANCH, BUCKET_BYTES, ELEMENT_BYTES, IS_BUCKET, LEAF, Meta, PAGE_BYTES, PAGE_HEAD_BYTES, PageHead, long,
    word,
};
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The longest path from a root to a leaf. With two elements in each branch it leads to 2^32 leaves.
const DEPTH_MAX: usize = 32;
/// Maximum bytes of a page with what it overflows into: it holds one value that is longer than a page, and no value of
/// etcd's is as long.
const OVERFLOWN_BYTES_MAX: u64 = 256 << 20;
/// Maximum bytes of a branch: a walk holds as many as it is deep. bbolt splits one that has more than four keys and does
/// not fit into a page, and has keys of at most 32 KiB.
const BRANCH_BYTES_MAX: u64 = 1 << 20;

/// Why a database cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// The file could not be read.
    #[error("cannot read the database: {0}")]
    Io(#[from] io::Error),
    /// None of the two meta pages is sound.
    #[error("not a database of etcd, or its first two pages are damaged: take the snapshot again")]
    NotADatabase,
    /// A page is not what it should be.
    #[error("the database is damaged at page {page}: {what}; take the snapshot again")]
    Damaged {
        /// The page's number.
        page: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

fn damaged<T>(page: u64, what: &'static str) -> Result<T, DatabaseError> {
    Err(DatabaseError::Damaged { page, what })
}

/// A database in a file.
pub struct Reader {
    file: File,
    page_bytes: usize,
    /// No page has this number or a higher one.
    pages: u64,
    root: u64,
}

impl Reader {
    /// Opens the database in the first `length` bytes of `file`.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn open(file: File, length: u64) -> Result<Self, DatabaseError> {
        let meta = metas(&file, length)?.into_iter().max_by_key(|meta| meta.transaction);
        let meta = meta.ok_or(DatabaseError::NotADatabase)?;
        let page_bytes = meta.page_bytes as usize;
        if meta.pages > length / u64::from(meta.page_bytes) {
            return damaged(0, "the file is shorter than the database in it");
        }
        Ok(Self { file, page_bytes, pages: meta.pages, root: meta.root })
    }

    /// The pairs of the bucket `name`, ascending; none if there is no such bucket.
    ///
    /// # Errors
    /// The database is damaged.
    pub fn bucket(&self, name: &[u8]) -> Result<Pairs<'_>, DatabaseError> {
        for pair in self.pairs(Root::Page(self.root)) {
            let (key, value) = pair?;
            if key == name {
                return Ok(self.pairs(bucket_root(self.root, value)?));
            }
        }
        Ok(self.pairs(Root::Empty))
    }

    fn pairs(&self, root: Root) -> Pairs<'_> {
        let bytes = self.pages * self.page_bytes as u64;
        Pairs {
            reader: self,
            root: Some(root),
            path: Vec::new(),
            last: None,
            unread: bytes,
            ungiven: bytes,
            failed: false,
        }
    }

    fn page(&self, number: u64) -> Result<Page, DatabaseError> {
        if number < 2 || number >= self.pages {
            return damaged(number, "it is outside of the database");
        }
        // Below the file's length divided by the page's, so the product fits.
        let at = number * self.page_bytes as u64;
        let mut bytes = vec![0; self.page_bytes];
        self.file.read_exact_at(&mut bytes, at)?;
        let Some(head) = PageHead::decode(&bytes) else { return damaged(number, "it has no header") };
        if head.number != number {
            return damaged(number, "it has another page's number");
        }
        let more = u64::from(head.overflow);
        if more > 0 {
            if more >= self.pages - number {
                return damaged(number, "it goes on beyond the end of the database");
            }
            let whole = (more + 1) * self.page_bytes as u64;
            if head.flags == BRANCH && whole > BRANCH_BYTES_MAX {
                return damaged(number, "it is longer than any branch of etcd's");
            }
            if whole > OVERFLOWN_BYTES_MAX {
                return damaged(number, "it is longer than any value of etcd's");
            }
            bytes = vec![0; whole as usize];
            self.file.read_exact_at(&mut bytes, at)?;
        }
        Page::new(number, bytes.into())
    }
}

/// The sound ones of the two meta pages. The second is where the size of a page, which only they tell, says: the first
/// one's, if that is sound. Elsewhere clients' values may look like a meta page. So the smallest size counts otherwise.
fn metas(file: &File, length: u64) -> Result<Vec<Meta>, DatabaseError> {
    let first = meta_at(file, length, 0)?;
    if let Some(first) = first {
        let second = meta_at(file, length, first.page_bytes.into())?;
        let second = second.filter(|second| second.page_bytes == first.page_bytes);
        return Ok([Some(first), second].into_iter().flatten().collect());
    }
    let sizes = std::iter::successors(Some(*PAGE_BYTES.start()), |size| Some(size * 2));
    for size in sizes.take_while(|size| PAGE_BYTES.contains(size)) {
        let second = meta_at(file, length, size as u64)?;
        if let Some(second) = second.filter(|second| second.page_bytes as usize == size) {
            return Ok(vec![second]);
        }
    }
    Ok(Vec::new())
}

/// The meta page there, if there is a sound one.
fn meta_at(file: &File, length: u64, at: u64) -> Result<Option<Meta>, DatabaseError> {
    let mut page = [0; 128];
    if at + page.len() as u64 > length {
        return Ok(None);
    }
    file.read_exact_at(&mut page, at)?;
    let sized = |meta: &Meta| {
        let size = meta.page_bytes as usize;
        size.is_power_of_two() && PAGE_BYTES.contains(&size)
    };
    Ok(Meta::decode(&page).filter(sized))
}

enum Root {
    Empty,
    Page(u64),
    Inline(Page),
}

/// Where the bucket that is the value of an element begins; `page` is for errors.
fn bucket_root(page: u64, value: Bytes) -> Result<Root, DatabaseError> {
    match long(&value, 0) {
        _ if value.len() < BUCKET_BYTES => damaged(page, "a bucket is too short"),
        Some(0) => Page::new(page, value.slice(BUCKET_BYTES..)).map(Root::Inline),
        Some(number) => Ok(Root::Page(number)),
        None => damaged(page, "a bucket is too short"),
    }
}

/// A page of keys, each element checked when it is looked at.
struct Page {
    number: u64,
    is_leaf: bool,
    count: usize,
    /// The next element.
    next: usize,
    bytes: Bytes,
}

impl Page {
    fn new(number: u64, bytes: Bytes) -> Result<Self, DatabaseError> {
        let Some(head) = PageHead::decode(&bytes) else { return damaged(number, "it has no header") };
        let is_leaf = match head.flags {
            LEAF => true,
            BRANCH => false,
            _ => return damaged(number, "it has no keys"),
        };
        let count = usize::from(head.count);
        if PAGE_HEAD_BYTES + count * ELEMENT_BYTES > bytes.len() {
            return damaged(number, "it is too short for its elements");
        }
        Ok(Self { number, is_leaf, count, next: 0, bytes })
    }

    /// Where the next element is; `None` at the end.
    fn advance(&mut self) -> Option<usize> {
        let at = PAGE_HEAD_BYTES + self.next * ELEMENT_BYTES;
        let found = self.next < self.count;
        self.next += usize::from(found);
        found.then_some(at)
    }

    fn word(&self, at: usize) -> usize {
        word(&self.bytes, at).map_or(usize::MAX, |word| word as usize)
    }

    fn slice(&self, from: usize, length: usize) -> Result<Bytes, DatabaseError> {
        match from.checked_add(length) {
            Some(end) if end <= self.bytes.len() => Ok(self.bytes.slice(from..end)),
            _ => damaged(self.number, "an element lies outside of it"),
        }
    }

    fn leaf_element(&self, at: usize) -> Result<(Bytes, Bytes, bool), DatabaseError> {
        let [flags, place, key, value] = [0, 4, 8, 12].map(|field| self.word(at + field));
        let from = at.saturating_add(place);
        let key = self.slice(from, key)?;
        let value = self.slice(from + key.len(), value)?;
        Ok((key, value, flags & IS_BUCKET as usize != 0))
    }

    fn child(&self, at: usize) -> Result<u64, DatabaseError> {
        let page = long(&self.bytes, at + 8);
        page.map_or_else(|| damaged(self.number, "an element lies outside of it"), Ok)
    }
}

/// The pairs of a bucket, lazily. After an error it ends. The values of nested buckets are their headers.
pub struct Pairs<'a> {
    reader: &'a Reader,
    /// Until the walk begins.
    root: Option<Root>,
    path: Vec<Page>,
    last: Option<Bytes>,
    /// Bytes of pages that may still be read, and of pairs that may be given: in a sound database no two overlap.
    unread: u64,
    ungiven: u64,
    failed: bool,
}

impl Pairs<'_> {
    fn page(&mut self, number: u64) -> Result<Page, DatabaseError> {
        let page = self.reader.page(number)?;
        match self.unread.checked_sub(page.bytes.len() as u64) {
            Some(unread) => self.unread = unread,
            None => return damaged(number, "it overlaps with others"),
        }
        Ok(page)
    }

    fn step(&mut self) -> Result<Option<(Bytes, Bytes)>, DatabaseError> {
        match self.root.take() {
            Some(Root::Page(number)) => {
                let page = self.page(number)?;
                self.path.push(page);
            }
            Some(Root::Inline(page)) if !page.is_leaf => {
                return damaged(page.number, "a bucket in it has no keys");
            }
            Some(Root::Inline(page)) => self.path.push(page),
            Some(Root::Empty) | None => {}
        }
        while let Some(page) = self.path.last_mut() {
            let number = page.number;
            let Some(at) = page.advance() else {
                self.path.pop();
                continue;
            };
            if page.is_leaf {
                let (key, value, _) = page.leaf_element(at)?;
                if self.last.as_ref().is_some_and(|last| *last >= key) {
                    return damaged(number, "its keys are not in order");
                }
                match self.ungiven.checked_sub((key.len() + value.len()) as u64) {
                    Some(ungiven) => self.ungiven = ungiven,
                    None => return damaged(number, "its elements overlap"),
                }
                // A copy: the slice would keep its page.
                self.last = Some(Bytes::copy_from_slice(&key));
                return Ok(Some((key, value)));
            }
            let child = page.child(at)?;
            if self.path.len() == DEPTH_MAX {
                return damaged(number, "the tree is too deep: its pages may point to each other");
            }
            let child = self.page(child)?;
            // Many visits of pages without keys would end only after an eternity.
            if child.count == 0 {
                return damaged(child.number, "it is empty");
            }
            self.path.push(child);
        }
        Ok(None)
    }
}

impl Iterator for Pairs<'_> {
    type Item = Result<(Bytes, Bytes), DatabaseError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.step();
        self.failed = next.is_err();
        next.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::Writer;
    use std::io::Write;

    type Owned = Vec<(Vec<u8>, Vec<u8>)>;

    /// Buckets of every shape: inline and empty, of one page, of three levels, with values longer than a page.
    fn buckets() -> Vec<(&'static str, Owned)> {
        let key = |number: u32| number.to_be_bytes().to_vec();
        let many = (0..40_000).map(|number| (key(number), vec![b'v'; number as usize % 50])).collect();
        let long = (0..5).map(|number| (key(number), vec![b'l'; 3000 * number as usize])).collect();
        vec![("empty", vec![]), ("few", vec![(b"k".to_vec(), b"v".to_vec())]), ("long", long), ("many", many)]
    }

    fn written() -> (File, u64) {
        let mut writer = Writer::new(tempfile::tempfile().unwrap()).unwrap();
        for (name, pairs) in buckets() {
            writer.begin_bucket(name.as_bytes()).unwrap();
            for (key, value) in pairs {
                writer.put(&key, &[&value]).unwrap();
            }
        }
        let file = writer.finish().unwrap();
        let length = file.metadata().unwrap().len();
        (file, length)
    }

    #[test]
    fn what_was_written_is_read_back() {
        let (file, length) = written();
        let reader = Reader::open(file, length).unwrap();
        for (name, pairs) in buckets() {
            let found: Result<Vec<_>, _> = reader.bucket(name.as_bytes()).unwrap().collect();
            let found: Vec<_> = found.unwrap().into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            assert_eq!(found, pairs, "{name}");
        }
        assert!(reader.bucket(b"absent").unwrap().next().is_none());
    }

    /// How many pairs a database has, as far as it goes, and whether it ended with an error.
    fn walk(file: &File, length: u64) -> (usize, bool) {
        let Ok(reader) = Reader::open(file.try_clone().unwrap(), length) else { return (0, true) };
        let (mut count, mut failed) = (0, false);
        for name in ["empty", "few", "long", "many"] {
            let Ok(pairs) = reader.bucket(name.as_bytes()) else { return (count, true) };
            for pair in pairs {
                match pair {
                    Ok(_) => count += 1,
                    Err(_) => failed = true,
                }
            }
        }
        (count, failed)
    }

    /// Damaged files must neither be read outside of their bytes nor for ever.
    #[test]
    fn no_flipped_byte_makes_reading_panic_or_go_on_for_ever() {
        let mut writer = Writer::new(tempfile::tempfile().unwrap()).unwrap();
        writer.begin_bucket(b"few").unwrap();
        writer.put(b"k", &[b"v"]).unwrap();
        writer.begin_bucket(b"many").unwrap();
        for number in 0..200_u32 {
            writer.put(&number.to_be_bytes(), &[&[b'v'; 40]]).unwrap();
        }
        let file = writer.finish().unwrap();
        let length = file.metadata().unwrap().len();
        assert_eq!(walk(&file, length), (201, false));
        // Every byte of headers and the first elements, and some of the rest.
        for place in (0..length).filter(|place| place % 4096 < 200 || place % 97 == 0) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, place).unwrap();
            for flip in [1, 0x80, 0xff] {
                file.write_all_at(&[byte[0] ^ flip], place).unwrap();
                assert!(walk(&file, length).0 <= 201);
            }
            file.write_all_at(&byte, place).unwrap();
        }
        for length in (0..length).step_by(509) {
            walk(&file, length);
        }
    }

    /// What a client of etcd's had written as a value was taken for the database, if it looked like a newer meta page where
    /// that of a database with larger pages would be.
    #[test]
    fn a_value_that_looks_like_a_meta_page_is_none() {
        let mut writer = Writer::new(tempfile::tempfile().unwrap()).unwrap();
        writer.begin_bucket(b"few").unwrap();
        writer.put(b"k", &[&[0; 200_000]]).unwrap();
        let file = writer.finish().unwrap();
        let length = file.metadata().unwrap().len();
        let sound = Reader::open(file.try_clone().unwrap(), length).unwrap();
        for page_bytes in [16_384_u32, 32_768, 65_536] {
            let meta = Meta { page_bytes, root: 3, free_list: 2, pages: 2, transaction: 99 };
            file.write_all_at(&meta.encode(1), page_bytes.into()).unwrap();
        }
        let found = |file: &File| {
            let reader = Reader::open(file.try_clone().unwrap(), length).unwrap();
            (reader.page_bytes, reader.pages, reader.root)
        };
        assert_eq!(found(&file), (sound.page_bytes, sound.pages, sound.root));
        file.write_all_at(&[0; 4096], 0).unwrap();
        assert_eq!(found(&file), (sound.page_bytes, sound.pages, sound.root), "without the first meta page");
    }

    /// A file of 256 MiB became a store of terabytes.
    #[test]
    fn elements_and_pages_that_overlap_are_given_no_longer_than_the_database_is() {
        const PAGES: u64 = 24;
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGES * 4096).unwrap();
        let meta = Meta { page_bytes: 4096, root: 3, free_list: 2, pages: PAGES, transaction: 1 };
        file.write_all_at(&meta.encode(0), 0).unwrap();
        let words = |words: [u32; 4]| words.map(u32::to_le_bytes).concat();
        // The root has the bucket "b", whose root is the branch 4. Its leaves are all pages from 5 on, each of which takes
        // all pages behind it, and has so many elements, of three pages each: the keys are the numbers at its end.
        let put = |number: u64, head: PageHead, rest: &[u8]| {
            let page = [&head.encode()[..], rest].concat();
            file.write_all_at(&page, number * 4096).unwrap();
        };
        let bucket = [&words([IS_BUCKET, 16, 1, 16])[..], b"b", &4_u64.to_le_bytes(), &[0; 8]].concat();
        put(3, PageHead { number: 3, flags: LEAF, count: 1, overflow: 0 }, &bucket);
        for (leaves, elements, problem) in
            [(1, 30, "its elements overlap"), (12, 1, "it overlaps with others")]
        {
            let mut branch = Vec::new();
            for number in 5..5 + leaves {
                branch.extend_from_slice(&[[0; 8], u64::to_le_bytes(number)].concat());
                let mut leaf = Vec::new();
                for element in 0..elements {
                    // A key of two bytes each, behind the elements.
                    let place = 16 * (elements - element) + 2 * element;
                    leaf.extend_from_slice(&words([0, place, 2, 3 * 4096]));
                }
                (0..elements).for_each(|element| leaf.extend_from_slice(&[number as u8, element as u8]));
                let overflow = (PAGES - number - 1) as u32;
                put(number, PageHead { number, flags: LEAF, count: elements as u16, overflow }, &leaf);
            }
            put(4, PageHead { number: 4, flags: BRANCH, count: leaves as u16, overflow: 0 }, &branch);
            let reader = Reader::open(file.try_clone().unwrap(), PAGES * 4096).unwrap();
            let found: Result<Vec<_>, _> = reader.bucket(b"b").unwrap().collect();
            let error = found.map(|pairs| pairs.len()).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    /// A walk held 32 pages of 256 MiB, from a file of that size.
    #[test]
    fn a_branch_that_is_longer_than_any_is_refused() {
        let more = (BRANCH_BYTES_MAX / 4096) as u32;
        let pages = u64::from(more) + 4;
        let file = tempfile::tempfile().unwrap();
        file.set_len(pages * 4096).unwrap();
        let meta = Meta { page_bytes: 4096, root: 3, free_list: 2, pages, transaction: 1 };
        file.write_all_at(&meta.encode(0), 0).unwrap();
        for (overflow, words) in [(more, "longer than any branch"), (more - 1, "it overlaps with others")] {
            let head = PageHead { number: 3, flags: BRANCH, count: 1, overflow };
            file.write_all_at(&head.encode(), 3 * 4096).unwrap();
            file.write_all_at(&3_u64.to_le_bytes(), 3 * 4096 + 24).unwrap();
            let reader = Reader::open(file.try_clone().unwrap(), pages * 4096).unwrap();
            let error = reader.bucket(b"k").err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn pages_that_point_to_each_other_are_refused() {
        // Page 3 is a branch whose two elements are page 3 itself, or page 4, an empty leaf.
        for child in [3_u64, 4] {
            let mut bytes = vec![0; 5 * 4096];
            for number in [0, 1] {
                let meta = Meta { page_bytes: 4096, root: 3, free_list: 2, pages: 5, transaction: number };
                let page = meta.encode(number);
                bytes[number as usize * 4096..][..page.len()].copy_from_slice(&page);
            }
            let head = PageHead { number: 3, flags: BRANCH, count: 2, overflow: 0 };
            bytes[3 * 4096..][..16].copy_from_slice(&head.encode());
            for element in [1, 2] {
                bytes[3 * 4096 + element * 16 + 8..][..8].copy_from_slice(&child.to_le_bytes());
            }
            let head = PageHead { number: 4, flags: LEAF, count: 0, overflow: 0 };
            bytes[4 * 4096..][..16].copy_from_slice(&head.encode());
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            assert_eq!(walk(&file, bytes.len() as u64), (0, true));
        }
    }
}
