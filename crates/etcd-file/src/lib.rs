//! etcd's snapshot files: what `etcdctl snapshot save` writes and `etcdutl snapshot restore` reads.
//!
//! Such a file is a bbolt database, a B+ tree of pages, and behind it perhaps the SHA-256 of the whole. `layout.rs` has the
//! bytes of the pages, `reader.rs` and `writer.rs` read and write whole files, `records.rs` has what etcd keeps in them,
//! `import.rs` and `export.rs` carry it into and out of Quoin's state, `sort.rs` sorts what memory cannot hold.
//!
//! **Invariant: Bounded.** Reading takes the memory of the pages from a tree's root to a leaf, writing that of a page of
//! each level and of [`SORT_BYTES`]. No bytes of a file make the reader panic, go on for ever or read outside of them.
//!
//! Deliberately absent: transactions, the free list, changing a file that exists; and the checksum behind the database,
//! which is whoever sends or opens the file's.

mod export;
mod import;
mod layout;
mod reader;
mod records;
mod sort;
mod writer;

pub use export::{ExportError, Left, export};
pub use import::{ImportError, Imported, import};
pub use reader::{DatabaseError, Reader};
pub use sort::SORT_BYTES;

/// Whether a file that begins with these bytes, at least [`HEAD_BYTES`], is a bbolt database.
pub fn is_database(head: &[u8]) -> bool {
    layout::Meta::begins(head)
}

/// How much of a file [`is_database`] looks at.
pub const HEAD_BYTES: usize = layout::PAGE_HEAD_BYTES + 4;
