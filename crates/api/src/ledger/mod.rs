//! What the ledger's two wires share: the way through the engine (`book.rs`), the journal as it grows
//! (`feed.rs`), and bounds on requests (`limits.rs`).

mod book;
mod feed;
mod limits;

pub(crate) use book::{Applied, Book};
pub(crate) use feed::{Feed, Piece};
pub(crate) use limits::{TIMEOUT_MS_MAX, check_texts};
