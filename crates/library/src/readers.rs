//! Reading folders, by threads of their own: a file system that does not answer, as NFS whose server is away, keeps a
//! thread in the kernel for as long as it likes, and nobody can end it. Whoever waits gives it up after a silence.
//!
//! **Invariant: Bounded.** At most [`READERS_MAX`] threads read, those that were given up among them. Beyond that, reading
//! is refused until one ends. What a thread was given up on is not read again before that thread has ended: so one folder
//! that does not answer, asked for again and again, does not take the places of all others.
//!
//! Deliberately absent: writing. A thread that was given up and comes back finds nobody to give its bytes to.

use super::allowed;
use super::source::{Opened, SourceError};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Maximum threads that read.
const READERS_MAX: usize = 16;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Pieces that wait for their receiver; then reading waits.
const PIECES_WAITING: usize = 2;

/// The threads that read.
static READERS: Mutex<Vec<Reader>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

struct Reader {
    id: u64,
    /// Where it reads.
    what: String,
    /// Nobody waits for it any more.
    given_up: bool,
}

/// A reading thread's place among all.
struct Place(u64);

impl Place {
    fn take(what: &str) -> Result<Self, String> {
        let mut readers = READERS.lock();
        if readers.iter().any(|reader| reader.given_up && reader.what == what) {
            return Err("an earlier read of it has not been answered yet".into());
        }
        if readers.len() >= READERS_MAX {
            return Err(format!("{READERS_MAX} folders are being read, and do not answer"));
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        readers.push(Reader { id, what: what.into(), given_up: false });
        Ok(Self(id))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        READERS.lock().retain(|reader| reader.id != self.0);
    }
}

/// Says that nobody waits for a thread any more, if it has not ended.
fn give_up(id: u64) {
    if let Some(reader) = READERS.lock().iter_mut().find(|reader| reader.id == id) {
        reader.given_up = true;
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
    let reader = start(what, move || {
        // This fails if it was given up.
        let _ = answer.send(read());
    })?;
    match tokio::time::timeout(silence, answered).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(failed(what, io::Error::other("the thread that read it panicked"))),
        Err(_) => {
            give_up(reader);
            Err(silent(what, silence))
        }
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
    let reader = start(&what, move || {
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
            Err(_) => {
                give_up(reader);
                Some((Err(silent(&what, silence)), None))
            }
        }
    }))
}

/// Returns the id of the thread's place.
fn start(what: &str, work: impl FnOnce() + Send + 'static) -> Result<u64, SourceError> {
    let refused = |problem: String| failed(what, io::Error::new(io::ErrorKind::ResourceBusy, problem));
    let place = Place::take(what).map_err(refused)?;
    let id = place.0;
    let run = move || {
        let _place = place;
        work();
    };
    let started = std::thread::Builder::new().name("table-read".into()).spawn(run);
    started.map(|_| id).map_err(|error| refused(format!("starting a thread: {error}")))
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

    /// Each attempt at one folder that did not answer took another of the places that all have.
    #[tokio::test]
    async fn what_does_not_answer_is_not_asked_again_until_it_does() {
        let (go, waited) = std::sync::mpsc::channel::<()>();
        let (ended, has_ended) = oneshot::channel::<()>();
        let hung = move || {
            let _ = (waited.recv(), ended);
            Ok(())
        };
        let silence = Duration::from_millis(10);
        run("/hung again", silence, hung).await.unwrap_err();
        for _ in 0..2 * READERS_MAX {
            let error = run("/hung again", silence, || Ok(())).await.unwrap_err();
            assert!(error.to_string().contains("an earlier read"), "{error}");
            assert!(error.is_transient());
        }
        let patience = Duration::from_secs(30);
        run("/another", patience, || Ok(())).await.unwrap();
        go.send(()).unwrap();
        let _ = has_ended.await;
        // Its place goes a moment after its work.
        while run("/hung again", patience, || Ok(())).await.is_err() {
            tokio::task::yield_now().await;
        }
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
