//! What the adapters of all protocols share: kv and system commands on their way through the engine, and
//! reads that do not hold up others.

use crate::auth;
use crate::error::{Error, Kind, Known};
use quoin_core::history::Unavailable;
use quoin_core::kv::Refusal;
use quoin_core::{Command, Reply, Revision, Sequence, StoreError, history, kv, system};
use quoin_engine::{Consistency, Engine, Limits, ReadView};
use quoin_store::Pin;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Applies a kv operation.
///
/// # Errors
/// A refusal, or see [`Engine::propose`].
pub(crate) async fn kv_operation(
    engine: &Engine,
    operation: kv::Operation,
) -> Result<(Revision, kv::Response), Error> {
    auth::check_operation(engine, &operation).await?;
    if !kv::covers_ranges(&operation) {
        let command = operation.into_command();
        check_size(engine, &command)?;
        return kv_reply(engine.propose(command).await?);
    }
    // It costs a look at the range, up to a bound, that others do not wait behind those that are large.
    let view = engine.latest();
    let looked = long_read(move || Ok((kv::takes_long(view.view(), &operation)?, operation)));
    let (long, operation) = looked.await?;
    let command = operation.into_command();
    check_size(engine, &command)?;
    if !long {
        match engine.propose(command.clone()).await? {
            // It found its log entry crowded, and has done nothing.
            Reply::Kv(kv::Reply { result: Err(Refusal::Crowded), .. }) => {}
            reply => return kv_reply(reply),
        }
    }
    kv_reply(engine.propose_paced(command).await?)
}

/// As [`kv_operation`], for a command that takes long.
///
/// # Errors
/// As [`kv_operation`].
pub(crate) async fn long_kv_operation(
    engine: &Engine,
    operation: kv::Operation,
) -> Result<(Revision, kv::Response), Error> {
    auth::check_operation(engine, &operation).await?;
    kv_reply(engine.propose_paced(operation.into_command()).await?)
}

/// The response to a kv command, with the newest revision after it.
///
/// # Errors
/// A refusal, or another face's reply.
pub(crate) fn kv_reply(reply: Reply) -> Result<(Revision, kv::Response), Error> {
    match reply {
        Reply::Kv(kv::Reply { revision, result }) => Ok((revision, result?)),
        other => Err(Error::unexpected_reply("kv", &other)),
    }
}

/// The only place where refusals of the kv face become errors.
impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::EmptyKey => Known::EmptyKey.into(),
            Refusal::KeyNotFound => Known::KeyNotFound.into(),
            Refusal::DuplicateKey => Known::DuplicateKey.into(),
            Refusal::LeaseNotFound => Known::LeaseNotFound.into(),
            Refusal::LeaseExists => Known::LeaseExists.into(),
            Refusal::LeaseTtlTooLarge => Known::LeaseTtlTooLarge.into(),
            Refusal::Unavailable(unavailable) => unavailable.into(),
            Refusal::WrongType => Self::Refused(Kind::WrongType, refusal.to_string()),
            Refusal::FieldTooLong { .. } => Self::invalid(refusal),
            Refusal::NoInteger | Refusal::FieldNoInteger | Refusal::Overflow => Self::precondition(refusal),
            Refusal::KeyTooLong { .. } | Refusal::TooMuchMetadata { .. } => Self::invalid(refusal),
            Refusal::ResponseTooLarge => Self::response_too_large(kv::REPLY_BYTES_MAX),
            Refusal::RangeTooLarge | Refusal::DeletesTooMuch | Refusal::RewritesTooMuch => {
                Self::Refused(Kind::ResourceExhausted, refusal.to_string())
            }
            Refusal::Crowded => Known::TooManyRequests.into(),
            other => Self::fault(other),
        }
    }
}

/// Applies a system operation.
///
/// # Errors
/// The revision to compact is unavailable, or see [`Engine::propose`].
pub(crate) async fn system_operation(engine: &Engine, operation: system::Operation) -> Result<(), Error> {
    match engine.propose(operation.into_command()).await? {
        Reply::System(system::Reply::Done) => Ok(()),
        Reply::System(system::Reply::Unavailable(unavailable)) => Err(unavailable.into()),
        other => Err(Error::unexpected_reply("system", &other)),
    }
}

/// Refuses a command above `limits.request_bytes_max`.
pub(crate) fn check_size(engine: &Engine, command: &Command) -> Result<(), Error> {
    if command.bytes.len() > engine.limits().request_bytes_max {
        return Err(Known::RequestTooLarge.into());
    }
    Ok(())
}

/// Refuses a key above `limits.key_bytes_max`, which etcd does not have.
pub(crate) fn check_key_length(bytes: usize, limits: &Limits) -> Result<(), Error> {
    let max = limits.key_bytes_max;
    if bytes > max {
        return Err(Error::invalid(format_args!(
            "a key of {bytes} bytes is too long, at most {max} are allowed (setting limits.key_bytes_max)"
        )));
    }
    Ok(())
}

/// Refuses writes that may grow the store while space is short. Deletions and compaction go on under the
/// alarm; a disk that is full refuses them in [`Engine::propose`].
pub(crate) fn check_space(engine: &Engine) -> Result<(), Error> {
    if engine.no_space() { Err(Known::NoSpace.into()) } else { Ok(()) }
}

/// As [`check_space`], unless the operation frees space.
pub(crate) fn check_space_for(engine: &Engine, operation: &kv::Operation) -> Result<(), Error> {
    if grows(operation) { check_space(engine) } else { Ok(()) }
}

/// Whether a kv operation may make the store grow. Deletions, and deadlines of keys that are there, are ways to
/// free space; a transaction grows if one of its steps may.
fn grows(operation: &kv::Operation) -> bool {
    use kv::Operation::{Delete, Increment, LeaseGrant, LeaseKeepAlive, LeaseRevoke, Put, Txn, WriteFields};
    match operation {
        Put(put) => put_grows(put),
        Txn(txn) => txn_grows(txn),
        WriteFields(write) => fields_grow(write),
        Increment(_) | LeaseGrant(_) => true,
        Delete(_) | LeaseRevoke(_) | LeaseKeepAlive(_) => false,
    }
}

fn put_grows(put: &kv::Put) -> bool {
    !put.ignore_value || put.ttl.is_none()
}

fn fields_grow(write: &kv::WriteFields) -> bool {
    use kv::FieldAction::{Delete, Expire};
    !write.changes.iter().all(|change| match change.action {
        Some(Delete(_)) => true,
        Some(Expire(_)) => change.ttl.is_some(),
        _ => false,
    })
}

fn txn_grows(txn: &kv::Txn) -> bool {
    use kv::txn_operation::Step;
    txn.success.iter().chain(&txn.failure).any(|operation| match &operation.step {
        Some(Step::Put(put)) => put_grows(put),
        Some(Step::Txn(txn)) => txn_grows(txn),
        Some(Step::WriteFields(write)) => fields_grow(write),
        Some(Step::Range(_) | Step::Delete(_) | Step::Publish(_)) | None => false,
    })
}

/// A view of the state, as fresh as asked.
///
/// # Errors
/// See [`quoin_engine::ReadError`].
pub(crate) async fn read(engine: &Engine, consistency: Consistency) -> Result<ReadView, Error> {
    Ok(engine.read(consistency).await?)
}

/// Reads a key at once, and a range on a thread that may block.
///
/// # Errors
/// An unavailable revision, an answer above `limits.response_bytes_max`, a fault of the store.
pub(crate) async fn range(
    engine: &Engine,
    view: ReadView,
    request: kv::Range,
) -> Result<kv::RangeReply, Error> {
    let point = request.range_end.is_empty();
    let bytes_max = engine.limits().response_bytes_max;
    let read = move || read_range(&view, &request, bytes_max);
    if point { read() } else { off_the_hot_path(read).await? }
}

/// Reads on this thread, at most `bytes_max` bytes of keys and values.
///
/// # Errors
/// As [`range`].
pub(crate) fn read_range(
    view: &ReadView,
    request: &kv::Range,
    bytes_max: usize,
) -> Result<kv::RangeReply, Error> {
    read_metered(view, request, &mut kv::at_most(bytes_max))?.map_err(|refusal| match refusal {
        Refusal::ResponseTooLarge => Error::response_too_large(bytes_max),
        refusal => refusal.into(),
    })
}

/// Reads on this thread; `meter` is told of each record of a range, and may refuse it.
///
/// # Errors
/// As [`range`].
pub(crate) fn read_metered(
    view: &ReadView,
    request: &kv::Range,
    meter: &mut kv::Meter<'_>,
) -> Result<Result<kv::RangeReply, Refusal>, Error> {
    let _held = hold(view, request.revision)?;
    Ok(kv::range_metered(view.view(), view.progress(), request, meter)?)
}

/// Reads a piece of a range, see [`kv::page`], on a thread that may block.
///
/// # Errors
/// An unavailable revision, a fault of the store.
pub(crate) async fn page(
    view: ReadView,
    request: kv::Range,
    bytes_max: usize,
) -> Result<kv::RangeReply, Error> {
    off_the_hot_path(move || {
        let _held = hold(&view, request.revision)?;
        Ok(kv::page(view.view(), view.progress(), &request, bytes_max)??)
    })
    .await?
}

/// Keeps what is visible at an old revision from being compacted away while it is read.
fn hold(view: &ReadView, revision: i64) -> Result<Option<Pin>, Error> {
    match u64::try_from(revision) {
        Ok(revision) if revision > 0 => Ok(Some(pinned(view, Revision(revision))??.0)),
        _ => Ok(None),
    }
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

/// Runs a long read on a thread that may block.
///
/// # Errors
/// It panicked.
pub(crate) async fn off_the_hot_path<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(read).await.map_err(Error::fault)
}

/// Runs a `long` read on this thread, while the runtime's other tasks go on on another.
pub(crate) fn in_place<T>(long: bool, read: impl FnOnce() -> T) -> T {
    // The runtimes of some tests have one thread, which cannot be replaced.
    if long && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        tokio::task::block_in_place(read)
    } else {
        read()
    }
}

/// As [`off_the_hot_path`], for a read that can meet a fault of the store.
///
/// # Errors
/// It panicked, or the store failed.
pub(crate) async fn long_read<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Error> {
    Ok(off_the_hot_path(read).await??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// A client that read many large values held up all others whose turn was on its thread.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_long_read_leaves_its_thread_to_others() {
        let long = async {
            let (met, others) = mpsc::channel();
            tokio::spawn(async move { met.send(()) });
            // They never meet where there is one thread for both.
            in_place(true, || others.recv_timeout(Duration::from_secs(30)))
        };
        assert_eq!(tokio::spawn(long).await.unwrap(), Ok(()));
    }

    #[test]
    fn refusals_become_etcds_errors_where_etcd_has_one() {
        let compacted = Unavailable::Compacted { compacted: Revision(5) };
        let future = Unavailable::Future { newest: Revision(5) };
        for (refusal, expected) in [
            (Refusal::EmptyKey, Known::EmptyKey),
            (Refusal::KeyNotFound, Known::KeyNotFound),
            (Refusal::DuplicateKey, Known::DuplicateKey),
            (Refusal::LeaseNotFound, Known::LeaseNotFound),
            (Refusal::LeaseExists, Known::LeaseExists),
            (Refusal::LeaseTtlTooLarge, Known::LeaseTtlTooLarge),
            (compacted.into(), Known::Compacted),
            (future.into(), Known::FutureRevision),
        ] {
            let error = Error::from(refusal);
            assert!(matches!(error, Error::Etcd(known) if known == expected), "{refusal:?}: {error:?}");
        }
    }

    /// Large deletions of many clients went into the log one after the other, and a put waited behind all of them.
    #[test]
    fn a_deletion_of_very_many_keys_takes_its_turn_and_one_of_few_does_not() {
        crate::testing::alone(|engine| async move {
            let put = |number: usize| {
                let put = kv::Put { key: format!("k{number:04}").into(), ..kv::Put::default() };
                kv::Operation::Put(put).into_command()
            };
            for reply in engine.propose_many((0..2000).map(put).collect()).await {
                kv_reply(reply.unwrap()).unwrap();
            }
            let paced = &engine.metrics().commands_paced;
            for (key, range_end, many, expected) in [("k0000", "k0100", 100, 0), ("k", "l", 1900, 1)] {
                let delete = kv::Delete { key: key.into(), range_end: range_end.into(), prev_kv: false };
                let (_, done) = kv_operation(&engine, kv::Operation::Delete(delete)).await.unwrap();
                assert_eq!(done, kv::Response::Delete { deleted: many, prev_kvs: Vec::new() });
                assert_eq!(paced.get(), expected);
            }
        });
    }
}
