//! Streams of answers, each produced by a task or a thread of its own.
//!
//! **Invariant: Bounded.** The threads that may block are few, and reads of ranges need them too. Streams that wait
//! for their clients there hold at most [`BLOCKED_MAX`] of them, the others wait; and a client that takes
//! nothing for [`PATIENCE`] is given up.

use crate::auth;
use crate::commands::off_the_hot_path;
use crate::error::{Error, Known};
use crate::life::Life;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Maximum threads of streams that wait for their clients, of all that may block in the process (tokio has 512).
const BLOCKED_MAX: usize = 64;
static BLOCKED: Semaphore = Semaphore::const_new(BLOCKED_MAX);
/// How long a client may take nothing while a thread waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 60 });

/// Where the answers of a stream go.
pub(crate) type Answers<T> = mpsc::Sender<Result<T, Status>>;
/// The answers on their way to the client.
pub(crate) type AnswerStream<T> = ReceiverStream<Result<T, Status>>;

/// Runs `work`, which sends the answers, until it ends, the client leaves, or the node stops. An error
/// becomes the stream's last message. At most `waiting_max` answers wait for a slow client; then `work`
/// waits.
pub(crate) fn spawn<T, W>(
    life: &Life,
    waiting_max: usize,
    work: impl FnOnce(Answers<T>) -> W,
) -> AnswerStream<T>
where
    T: Send + 'static,
    W: Future<Output = Result<(), Error>> + Send + 'static,
{
    let (answers, receiver) = mpsc::channel(waiting_max);
    let (life, work) = (life.clone(), work(answers.clone()));
    tokio::spawn(auth::carried(async move {
        let ended = tokio::select! {
            ended = work => ended,
            () = life.ended() => Err(Known::Stopped.into()),
            () = answers.closed() => Ok(()),
        };
        if let Err(error) = ended {
            // This fails if the client has left.
            let _ = answers.send(Err(error.into())).await;
        }
    }));
    ReceiverStream::new(receiver)
}

/// As [`spawn`], for work that blocks: on a thread of its own, until it ends or cannot send.
pub(crate) fn spawn_blocking<T: Send + 'static>(
    life: &Life,
    waiting_max: usize,
    work: impl FnOnce(&Answers<T>) -> Result<(), Error> + Send + 'static,
) -> AnswerStream<T> {
    spawn(life, waiting_max, |answers| blocking(move || work(&answers)))
}

/// Runs work that waits for a client, by [`send_blocking`], on a thread that may block.
///
/// # Errors
/// The work's, or it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let place = BLOCKED.acquire().await.expect("nobody closes the semaphore");
    off_the_hot_path(move || {
        let _place = place;
        work()
    })
    .await?
}

/// Sends an answer.
///
/// # Errors
/// The client has left, or does not take its answers.
pub(crate) async fn send<T>(answers: &Answers<T>, answer: T) -> Result<(), Error> {
    match timeout(PATIENCE, answers.send(Ok(answer))).await {
        Ok(sent) => sent.map_err(|_| Error::disconnected()),
        Err(_) => Err(untaken()),
    }
}

/// The error for a client that does not take its answers.
pub(crate) fn untaken() -> Error {
    Error::unavailable(format_args!("the client took no answer for {} s", PATIENCE.as_secs()))
}

/// Sends an answer from a thread that may block.
///
/// # Errors
/// As [`send`].
pub(crate) fn send_blocking<T>(answers: &Answers<T>, answer: T) -> Result<(), Error> {
    match answers.try_send(Ok(answer)) {
        Ok(()) => Ok(()),
        Err(TrySendError::Closed(_)) => Err(Error::disconnected()),
        Err(TrySendError::Full(Ok(answer))) => Handle::current().block_on(send(answers, answer)),
        Err(TrySendError::Full(Err(status))) => Err(status.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use tokio::sync::watch;
    use tokio_stream::StreamExt;
    use tonic::Code;

    #[tokio::test]
    async fn a_stream_ends_with_the_error_of_its_work() {
        let (_running, life) = watch::channel(false);
        let mut stream = spawn(&Life(life), 1, |answers| async move {
            let _ = answers.send(Ok(1)).await;
            Err(Error::invalid("no more"))
        });
        assert_eq!(stream.next().await.unwrap().unwrap(), 1);
        assert_eq!(stream.next().await.unwrap().unwrap_err().code(), Code::InvalidArgument);
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn a_stream_ends_when_the_node_stops() {
        let (running, life) = watch::channel(false);
        let mut stream = spawn::<u8, _>(&Life(life), 1, |_| std::future::pending());
        running.send_replace(true);
        assert_eq!(stream.next().await.unwrap().unwrap_err().message(), "etcdserver: server stopped");
        assert!(stream.next().await.is_none());
    }

    /// Work that sends without end.
    fn endless(answers: &Answers<u8>) -> Result<(), Error> {
        loop {
            send_blocking(answers, 1)?;
        }
    }

    /// Some hundred clients that did not take their snapshots held all threads that may block, and no range was
    /// read any more.
    #[tokio::test]
    async fn clients_that_take_nothing_leave_threads_for_reads() {
        let (_running, life) = watch::channel(false);
        static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);
        let work = |answers: &Answers<u8>| {
            let outcome = endless(answers);
            GIVEN_UP.fetch_add(1, Relaxed);
            outcome
        };
        // More than tokio's threads.
        const STREAMS: usize = 600;
        let streams: Vec<_> = (0..STREAMS).map(|_| spawn_blocking(&Life(life.clone()), 1, work)).collect();
        // Each time at least one of them asks for its thread.
        for _ in 0..STREAMS {
            tokio::task::yield_now().await;
        }
        off_the_hot_path(|| ()).await.unwrap();
        assert_eq!(GIVEN_UP.load(Relaxed), 0, "the read waited for a client to be given up");
        drop(streams);
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (_running, life) = watch::channel(false);
        let (ended, has_ended) = tokio::sync::oneshot::channel();
        let mut stream = spawn_blocking(&Life(life), 1, move |answers| {
            let outcome = endless(answers);
            let _ = ended.send(());
            outcome
        });
        timeout(PATIENCE * 6, has_ended).await.expect("it is given up").unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), 1);
        let status = stream.next().await.unwrap().unwrap_err();
        assert_eq!(
            (status.code(), status.message().contains("10 s")),
            (Code::Unavailable, true),
            "{status:?}"
        );
    }

    /// A client that took nothing of a range kept it in memory for as long as it liked.
    #[tokio::test]
    async fn a_client_that_takes_no_more_of_a_stream_is_given_up() {
        let (answers, _untaken) = mpsc::channel(1);
        let endless = async { while send(&answers, 1).await.is_ok() {} };
        timeout(PATIENCE * 6, endless).await.expect("it is given up");
    }

    #[tokio::test]
    async fn work_ends_when_the_client_has_left() {
        let (_running, life) = watch::channel(false);
        let (held, released) = tokio::sync::oneshot::channel::<()>();
        drop(spawn::<u8, _>(&Life(life), 1, |_| async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok(())
        }));
        assert!(released.await.is_err(), "the work was dropped, and what it held with it");
    }
}
