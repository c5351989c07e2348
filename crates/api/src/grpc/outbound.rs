//! Streams of answers, each produced by a task or a thread of its own.

use crate::error::{Error, Known};
use crate::life::Life;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

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
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = work => ended,
            () = life.ended() => Err(Known::Stopped.into()),
            () = answers.closed() => Ok(()),
        };
        if let Err(error) = ended {
            // This fails if the client has left.
            let _ = answers.send(Err(error.into())).await;
        }
    });
    ReceiverStream::new(receiver)
}

/// As [`spawn`], for work that blocks: on a thread of its own, until it ends or cannot send.
pub(crate) fn spawn_blocking<T: Send + 'static>(
    waiting_max: usize,
    work: impl FnOnce(&Answers<T>) -> Result<(), Error> + Send + 'static,
) -> AnswerStream<T> {
    let (answers, receiver) = mpsc::channel(waiting_max);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = work(&answers) {
            // This fails if the client has left.
            let _ = answers.blocking_send(Err(error.into()));
        }
    });
    ReceiverStream::new(receiver)
}

/// Sends an answer from a thread that may block.
///
/// # Errors
/// The client has left.
pub(crate) fn send_blocking<T>(answers: &Answers<T>, answer: T) -> Result<(), Error> {
    answers.blocking_send(Ok(answer)).map_err(|_| Error::disconnected())
}

#[cfg(test)]
mod tests {
    use super::*;
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
