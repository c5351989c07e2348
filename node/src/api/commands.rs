//! What the adapters of all protocols share: a kv command's way through the engine, and reads off the hot path.

use crate::api::error;
use crate::engine::{Engine, ReadView};
use crate::store::Pin;
use quoin_core::history::Unavailable;
use quoin_core::kv::Refusal;
use quoin_core::{Command, Reply, Revision, Sequence, StoreError, history, kv, system};
use tonic::Status;

/// Has a kv operation done. What it was refused for is a status here.
///
/// # Errors
/// See [`error`].
pub(crate) async fn kv_operation(
    engine: &Engine,
    operation: kv::Operation,
) -> Result<(Revision, kv::Response), Status> {
    let command = operation.into_command();
    check_size(engine, &command)?;
    kv_reply(engine.propose(command).await?)
}

/// What a kv command was answered.
pub(crate) fn kv_reply(reply: Reply) -> Result<(Revision, kv::Response), Status> {
    match reply {
        Reply::Kv(kv::Reply { revision, result }) => {
            result.map(|response| (revision, response)).map_err(error::refused)
        }
        other => Err(error::unexpected_reply("kv", &other)),
    }
}

/// Has a system operation done.
///
/// # Errors
/// See [`error`].
pub(crate) async fn system_operation(engine: &Engine, operation: system::Operation) -> Result<(), Status> {
    match engine.propose(operation.into_command()).await? {
        Reply::System(reply) => error::system_reply(reply),
        other => Err(error::unexpected_reply("system", &other)),
    }
}

/// Refuses a command that is larger than a request may be.
pub(crate) fn check_size(engine: &Engine, command: &Command) -> Result<(), Status> {
    if command.bytes.len() > engine.limits().request_bytes_max {
        return Err(error::REQUEST_TOO_LARGE.into());
    }
    Ok(())
}

/// Refuses what would make the store grow while space is short. Deletions and compaction go on.
pub(crate) fn check_space(engine: &Engine) -> Result<(), Status> {
    if engine.no_space() { Err(error::NO_SPACE.into()) } else { Ok(()) }
}

/// Reads a key at once, and a range on a thread where it holds up nobody else.
///
/// # Errors
/// A revision that is not to be had, an answer that is larger than `limits.response_bytes_max`, a fault of the store.
pub(crate) async fn range(
    engine: &Engine,
    view: ReadView,
    request: kv::Range,
) -> Result<kv::RangeReply, Status> {
    let point = request.range_end.is_empty();
    let bytes_max = engine.limits().response_bytes_max;
    let read = move || read_range(&view, &request, bytes_max);
    if point { read() } else { off_the_hot_path(read).await? }
}

/// Reads here and now, `bytes_max` bytes of keys and values at most.
///
/// # Errors
/// As [`range`].
pub(crate) fn read_range(
    view: &ReadView,
    request: &kv::Range,
    bytes_max: usize,
) -> Result<kv::RangeReply, Status> {
    let _held = hold(view, request.revision)?;
    let reply = kv::range_bounded(view.view(), view.progress(), request, bytes_max).map_err(error::store)?;
    reply.map_err(|refusal| match refusal {
        Refusal::ResponseTooLarge => error::response_too_large(bytes_max),
        refusal => error::refused(refusal),
    })
}

/// Reads a piece of a range, see [`kv::page`], on a thread where it holds up nobody else.
///
/// # Errors
/// A revision that is not to be had, a fault of the store.
pub(crate) async fn page(
    view: ReadView,
    request: kv::Range,
    bytes_max: usize,
) -> Result<kv::RangeReply, Status> {
    let read = move || {
        let _held = hold(&view, request.revision)?;
        kv::page(view.view(), view.progress(), &request, bytes_max).map_err(error::store)
    };
    off_the_hot_path(read).await??.map_err(error::refused)
}

/// Keeps what is visible at an old revision from being compacted away under a reader.
fn hold(view: &ReadView, revision: i64) -> Result<Option<Pin>, Status> {
    let revision = match u64::try_from(revision) {
        Ok(revision) if revision > 0 => Revision(revision),
        _ => return Ok(None),
    };
    let pinned = pinned(view, revision).map_err(error::store)?;
    pinned.map(|(pin, _)| Some(pin)).map_err(error::revision_unavailable)
}

/// The sequence that shows `revision`, kept from being compacted away while the pin lives.
///
/// # Errors
/// The store failed.
pub(crate) fn pinned(
    view: &ReadView,
    revision: Revision,
) -> Result<Result<(Pin, Sequence), Unavailable>, StoreError> {
    let sequence = match history::sequence_at(view.view(), view.progress(), revision)? {
        Ok(sequence) => sequence,
        Err(unavailable) => return Ok(Err(unavailable)),
    };
    let compacted = Unavailable::Compacted { compacted: view.progress().compacted };
    Ok(view.store().pin(sequence).map(|pin| (pin, sequence)).map_err(|_| compacted))
}

/// Runs a long read where it may block.
///
/// # Errors
/// It panicked.
pub(crate) async fn off_the_hot_path<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(read).await.map_err(|error| error::fault(&error))
}

/// As [`off_the_hot_path`], for what may meet a fault of the store.
///
/// # Errors
/// It panicked, or the store failed.
pub(crate) async fn long_read<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Status> {
    off_the_hot_path(read).await?.map_err(error::store)
}
