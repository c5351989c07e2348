//! Reading folders, by threads of their own: a file system that does not answer, as NFS whose server is away, keeps a
//! thread in the kernel for as long as it likes, and nobody can end it. Whoever waits gives it up after a silence.
//!
//! **Invariant: Bounded.** At most [`READERS_MAX`] threads read, those that were given up among them. Beyond that, reading
//! is refused until one ends.
//!
//! Deliberately absent: writing. A thread that was given up and comes back finds nobody to give its bytes to.

use super::allowed;
use super::source::{Opened, SourceError};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Maximum threads that read.
const READERS_MAX: usize = 16;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Pieces that wait for their receiver; then reading waits.
const PIECES_WAITING: usize = 2;

static READERS: AtomicUsize = AtomicUsize::new(0);

/// A reading thread's place among all.
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let more = |readers| (readers < READERS_MAX).then_some(readers + 1);
        READERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        READERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `read` on a thread of its own, for at most `silence`. `what` is its name in messages.
///
/// # Errors
/// Its own, it took too long, or too many threads read already.
pub(super) async fn run<T: Send + 'static>(
    what: &str,
    silence: Duration,
    read: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    let (answer, answered) = oneshot::channel();
    start(what, move || {
        // This fails if it was given up.
        let _ = answer.send(read());
    })?;
    match tokio::time::timeout(silence, answered).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(failed(what, io::Error::other("the thread that read it panicked"))),
        Err(_) => Err(silent(what, silence)),
    }
}

/// The bytes of a regular file below `sources` from `from` on.
pub(super) async fn stream(
    file: PathBuf,
    sources: Vec<String>,
    from: u64,
    silence: Duration,
) -> Result<Opened, SourceError> {
    let what = file.display().to_string();
    let opened = run(&what, silence, move || open(&file, &sources, from)).await?;
    let (length, from, file) = opened;
    Ok(Opened { length, from, bytes: pieces(what, file, silence)?.boxed() })
}

fn open(file: &Path, sources: &[String], from: u64) -> Result<(u64, u64, File), SourceError> {
    let name = file.display().to_string();
    let at = |source| failed(&name, source);
    // Invariant: Allowed. A link in the folder may lead out of it.
    if !allowed::allows_file(file, sources).map_err(at)? {
        return Err(at(io::Error::new(io::ErrorKind::PermissionDenied, "leads out of table.sources")));
    }
    // A pipe would be waited for, and a device read, without an end.
    if !std::fs::metadata(file).map_err(at)?.is_file() {
        return Err(at(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    let mut handle = File::open(file).map_err(at)?;
    let length = handle.metadata().map_err(at)?.len();
    let from = if from > length { 0 } else { from };
    handle.seek(SeekFrom::Start(from)).map_err(at)?;
    Ok((length, from, handle))
}

/// What `input` has, piece by piece.
fn pieces(
    what: String,
    mut input: impl Read + Send + 'static,
    silence: Duration,
) -> Result<impl stream::Stream<Item = Result<Bytes, SourceError>>, SourceError> {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES_WAITING);
    start(&what, move || {
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let read = (&mut input).take(PIECE as u64).read_to_end(&mut piece).map(|_| Bytes::from(piece));
            let ended = read.as_ref().is_ok_and(Bytes::is_empty);
            let failed = read.is_err();
            if ended || sender.blocking_send(read).is_err() || failed {
                return;
            }
        }
    })?;
    Ok(stream::unfold(Some((what, receiver)), move |state| async move {
        let (what, mut receiver) = state?;
        match tokio::time::timeout(silence, receiver.recv()).await {
            Ok(None) => None,
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some((what, receiver)))),
            Ok(Some(Err(error))) => Some((Err(failed(&what, error)), None)),
            Err(_) => Some((Err(silent(&what, silence)), None)),
        }
    }))
}

fn start(what: &str, work: impl FnOnce() + Send + 'static) -> Result<(), SourceError> {
    let refused = |problem: String| failed(what, io::Error::new(io::ErrorKind::ResourceBusy, problem));
    let Some(place) = Place::take() else {
        return Err(refused(format!("{READERS_MAX} folders are being read, and do not answer")));
    };
    let run = move || {
        let _place = place;
        work();
    };
    let started = std::thread::Builder::new().name("table-read".into()).spawn(run);
    started.map(drop).map_err(|error| refused(format!("starting a thread: {error}")))
}

fn failed(what: &str, source: io::Error) -> SourceError {
    SourceError::Folder { name: what.into(), source }
}

fn silent(what: &str, silence: Duration) -> SourceError {
    failed(what, io::Error::new(io::ErrorKind::TimedOut, format!("no answer for {} s", silence.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::TryStreamExt;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// A folder of a server that was away held both places of fetches for good.
    #[tokio::test]
    async fn a_folder_that_does_not_answer_is_given_up() {
        let (input, mut held) = UnixStream::pair().unwrap();
        held.write_all(b"abc").unwrap();
        let silence = Duration::from_millis(10);
        let read = pieces("/hung".into(), input, silence).unwrap();
        let error = read.try_collect::<Vec<_>>().await.unwrap_err();
        assert!(error.to_string().contains("/hung: no answer"), "{error}");
        assert!(error.is_transient());

        let (_held, waited) = std::sync::mpsc::channel::<()>();
        let hung = move || {
            let _ = waited.recv();
            Ok(())
        };
        let error = run("/hung too", silence, hung).await.unwrap_err();
        assert!(error.to_string().contains("/hung too: no answer"), "{error}");
    }

    #[tokio::test]
    async fn a_file_is_read_from_anywhere_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("values");
        let bytes: Vec<u8> = (0..3 * PIECE as u32 / 2).map(|n| n as u8).collect();
        std::fs::write(&file, &bytes).unwrap();
        for from in [0, 1000, bytes.len() as u64, bytes.len() as u64 + 1] {
            let anywhere = vec![allowed::ANYWHERE.into()];
            let opened = stream(file.clone(), anywhere, from, Duration::from_secs(30)).await.unwrap();
            let begin = if from > bytes.len() as u64 { 0 } else { from };
            assert_eq!((opened.length, opened.from), (bytes.len() as u64, begin));
            let read = opened.bytes.try_collect::<Vec<_>>().await.unwrap().concat();
            assert!(read == bytes[begin as usize..], "from {from}");
        }
    }
}
