//! The feed of all that the ledger records.

use super::translate;
use crate::error::Error;
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::ledger::{Book, Feed, Origin, PIECE_BYTES, Piece, Token, check_first, check_past};
use crate::life::Life;
use quoin_core::Revision;
use quoin_engine::Consistency;
use quoin_proto::quoin::ledger::v1 as pb;

/// Maximum pieces that wait for a slow client.
const PIECES_MAX: usize = 4;

/// Streams events, without end or up to a revision.
///
/// # Errors
/// The first or the last revision is in the future, the token is of another history, or the newest revision cannot be
/// confirmed.
pub(super) async fn stream(
    book: &Book,
    life: &Life,
    request: pb::EventsRequest,
) -> Result<AnswerStream<pb::EventsResponse>, Error> {
    let pb::EventsRequest { from_revision, until_revision, resume } = request;
    let first = if resume.is_empty() {
        check_first(book, Revision(from_revision), "from_revision").await?;
        Revision(from_revision)
    } else {
        let token: Token =
            resume.parse().map_err(|problem| Error::invalid(format_args!("resume: {problem}")))?;
        if from_revision != 0 || token.place.is_some() {
            return Err(Error::invalid("resume: give the token of a response, and no from_revision with it"));
        }
        token.check(book, "resume").await?;
        token.revision.next()
    };
    let until = if until_revision == 0 { u64::MAX } else { until_revision };
    if until != u64::MAX {
        // All events up to the end must be here, and it must not be in the future.
        let newest = book.view(Consistency::Linearizable).await?;
        check_past(newest.progress(), Revision(until), "until_revision")?;
    }
    let feed = Feed::new(book.engine(), first, PIECE_BYTES);
    let cluster = book.engine().cluster();
    Ok(outbound::spawn(life, PIECES_MAX, |pieces| send(feed, cluster, Revision(until), pieces)))
}

async fn send(
    mut feed: Feed,
    cluster: u64,
    until: Revision,
    pieces: Answers<pb::EventsResponse>,
) -> Result<(), Error> {
    let mut piece = feed.read().await?;
    loop {
        let Piece { parts, complete_to, recorded } = &piece;
        let mut events: Vec<pb::Event> = parts.iter().flat_map(translate::events).collect();
        events.retain(|event| event.revision <= until.0);
        let ended = *complete_to >= until;
        let revision = (*complete_to).min(until).0;
        // Beyond the end of what was asked for there is nothing to go on with.
        let origin = Some(Origin { cluster, stamp: *recorded }).filter(|_| *complete_to <= until);
        let token = Token { revision: Revision(revision), place: None, origin }.to_string();
        if (!events.is_empty() || ended)
            && pieces.send(Ok(pb::EventsResponse { events, revision, token })).await.is_err()
        {
            return Ok(());
        }
        if ended {
            return Ok(());
        }
        piece = feed.next().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;
    use quoin_core::ledger::{NewAccount, Operation};
    use tokio_stream::StreamExt;
    use tonic::{Code, Status};

    /// A feed from a future revision waited for it without end.
    #[test]
    fn a_feed_goes_on_after_a_token_and_not_in_the_future_or_in_another_history() {
        alone(|engine| async move {
            for id in 1..=3 {
                let account = NewAccount { currency: "EUR".into(), ..NewAccount::default() }.with_id(id);
                engine.propose(Operation::create_accounts(vec![account]).into_command()).await.unwrap();
            }
            let newest = engine.latest().progress().revision.0;
            let (_running, life) = tokio::sync::watch::channel(false);
            let (book, life) = (Book::start(engine), Life(life));
            let ask = async |from_revision, until_revision, resume: &str| {
                let request = pb::EventsRequest { from_revision, until_revision, resume: resume.into() };
                let mut events =
                    stream(&book, &life, request).await.map_err(|error| Status::from(error).code())?;
                let first = events.next().await.unwrap().unwrap();
                let revisions: Vec<u64> = first.events.iter().map(|event| event.revision).collect();
                Ok::<_, Code>((revisions, first.token))
            };
            let (all, token) = ask(0, 0, "").await.unwrap();
            assert_eq!(all.last(), Some(&newest));
            assert_eq!(ask(newest + 2, 0, "").await, Err(Code::OutOfRange));
            assert_eq!(ask(0, newest + 1, "").await, Err(Code::OutOfRange));
            // The next revision is awaited, by number and by token.
            for (from, token) in [(newest + 1, ""), (0, token.as_str())] {
                let account = NewAccount { currency: "EUR".into(), ..NewAccount::default() };
                let account = account.with_id(u128::from(from) + 10);
                let create = book.create_accounts(vec![account]);
                let (next, _) = tokio::join!(ask(from, 0, token), create);
                assert_eq!(next.unwrap().0.first(), Some(&(newest + 1)));
            }
            let (place, origin) = token.split_once('@').unwrap();
            let (cluster, time) = origin.split_once('.').unwrap();
            assert_eq!(ask(0, 0, &format!("{}@{origin}", newest + 9)).await, Err(Code::OutOfRange));
            for other in [format!("{place}@ff.{time}"), format!("{place}@{cluster}.1")] {
                assert_eq!(ask(0, 0, &other).await, Err(Code::FailedPrecondition), "{other}");
            }
            for bad in ["x", "17.1"] {
                assert_eq!(ask(0, 0, bad).await, Err(Code::InvalidArgument));
            }
            assert_eq!(ask(1, 0, &token).await, Err(Code::InvalidArgument));
        });
    }
}
