//! FLUSHDB and FLUSHALL: there is one database, so both delete all keys, those of other faces excepted.

use super::parse::{SYNTAX, is};
use super::reply::Reply;
use super::scan;
use super::session::Session;
use crate::commands::long_kv_operation;
use crate::error::Error;
use bytes::Bytes;
use quoin_core::kv::{Delete, Operation};

/// FLUSHDB | FLUSHALL [ASYNC | SYNC]. It deletes a thousand keys at a time, in order, up to the one that was the
/// largest when it began. So it is not atomic, and others are not held up by it. It returns when all are deleted.
pub(super) async fn flush(session: &mut Session, args: &[Bytes]) -> Result<Reply, Error> {
    match args {
        [] => {}
        [word] if is(word, "async") || is(word, "sync") => {}
        _ => return Ok(Reply::error(SYNTAX)),
    }
    let view = session.view().await?;
    let mut after = None;
    loop {
        let piece = scan::piece(&session.server.engine, &view, after.as_deref(), b"", scan::PIECE).await?;
        if let (Some(first), Some(last)) = (piece.kvs.first(), piece.kvs.last()) {
            let range_end = [&last.key[..], b"\0"].concat();
            let delete = Delete { key: first.key.clone(), range_end: range_end.into(), prev_kv: false };
            long_kv_operation(&session.server.engine, Operation::Delete(delete)).await?;
            session.see_own_writes(true);
            after = Some(last.key.clone());
        }
        if !piece.more {
            return Ok(Reply::OK);
        }
    }
}
