//! What the ledger's two wires share: the way through the engine (`book.rs`), the journal as it grows
//! (`feed.rs`), bounds on requests (`limits.rs`), on revisions (`past.rs`), queries (`query.rs`, `directory.rs`), and where a
//! client is in the journal (`token.rs`) or in the answer to a query (`cursor.rs`).

mod book;
mod cursor;
mod directory;
mod feed;
mod limits;
mod past;
mod query;
mod token;

pub(crate) use book::{Applied, Book};
pub(crate) use directory::{query_accounts, sum_balances};
pub(crate) use feed::{Feed, PIECE_BYTES, Piece, places};
pub(crate) use limits::{TIMEOUT_MS_MAX, check_metadata_bytes, check_texts, check_transfer_metadata};
pub(crate) use past::{account_at, check_past, revision_at};
pub(crate) use query::{TransferQuery, index_rows, query_transfers};
pub(crate) use token::{Origin, Place, Token, check_first};
