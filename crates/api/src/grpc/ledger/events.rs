//! The feed of all that the ledger records.

use super::translate;
use crate::error::Error;
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::ledger::{Book, Feed, Origin, PIECE_BYTES, Piece, Token, check_first, check_past, places};
use crate::life::Life;
use quoin_core::{Revision, Stamp};
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
    let (first, seen) = if resume.is_empty() {
        check_first(book, Revision(from_revision), "from_revision").await?;
        (Revision(from_revision), None)
    } else {
        let token: Token =
            resume.parse().map_err(|problem| Error::invalid(format_args!("resume: {problem}")))?;
        if from_revision != 0 {
            return Err(Error::invalid("resume: give no from_revision with it"));
        }
        token.check(book, "resume").await?;
        (token.revision, Some(token))
    };
    let until = if until_revision == 0 { u64::MAX } else { until_revision };
    if until != u64::MAX {
        // All events up to the end must be here, and it must not be in the future.
        let newest = book.view(Consistency::Linearizable).await?;
        check_past(newest.progress(), Revision(until), "until_revision")?;
    }
    let feed = Feed::new(book.engine(), first, PIECE_BYTES);
    let cluster = book.engine().cluster();
    Ok(outbound::spawn(life, PIECES_MAX, |pieces| send(feed, cluster, seen, Revision(until), pieces)))
}

async fn send(
    mut feed: Feed,
    cluster: u64,
    seen: Option<Token>,
    until: Revision,
    pieces: Answers<pb::EventsResponse>,
) -> Result<(), Error> {
    let mut piece = feed.read().await?;
    loop {
        let Piece { parts, complete_to, recorded } = &piece;
        let (mut events, mut last) = (Vec::new(), None);
        for part in parts {
            for (at, event) in places(part).into_iter().zip(translate::events(part)) {
                if at.0 <= until && !seen.is_some_and(|seen| seen.covers(at)) {
                    last = Some((at, part.stamp()));
                    events.push(event);
                }
            }
        }
        let ended = *complete_to >= until;
        let revision = (*complete_to).min(until).0;
        let token = match last {
            // Some of a revision was sent, and perhaps not all of it.
            Some(((of, place), stamp)) if of > *complete_to => {
                let origin = Origin { cluster, stamp: stamp.unwrap_or(Stamp(0)) };
                Token { revision: of, place: Some(place), origin: Some(origin) }
            }
            // Beyond the end of what was asked for there is nothing to go on with.
            _ => {
                let origin = Some(Origin { cluster, stamp: *recorded }).filter(|_| *complete_to <= until);
                Token { revision: Revision(revision), place: None, origin }
            }
        };
        let token = token.to_string();
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
    use quoin_core::ledger::{Kind, NewAccount, Operation, Transfer, Transfers};
    use tokio_stream::StreamExt;
    use tonic::{Code, Status};

    /// The token of a response that ended within a revision, or with one that was not known to be complete, named the
    /// revision before: whoever went on with it got the last events twice.
    #[test]
    fn whoever_goes_on_after_any_response_gets_each_event_once() {
        alone(|engine| async move {
            // More parts than a piece has: one revision of 99 parts, and many of one.
            let accounts = (1..=20).map(|id| {
                let rule = quoin_core::ledger::Rule::Unlimited.into();
                NewAccount { currency: "EUR".into(), rule, ..NewAccount::default() }.with_id(id)
            });
            engine.propose(Operation::create_accounts(accounts.collect()).into_command()).await.unwrap();
            let mut id = 1000;
            for count in [3, 6300, 1, 1].into_iter().chain([1; 70]) {
                let mut transfers = Transfers::new(false);
                for _ in 0..count {
                    id += 1;
                    let kind = Kind::Single { debit: 1, credit: 2, amount: 1 };
                    transfers.push(&Transfer::new(id, kind));
                }
                engine.propose(transfers.into_command()).await.unwrap();
            }
            let newest = engine.latest().progress().revision.0;
            let (_running, life) = tokio::sync::watch::channel(false);
            let (book, life) = (Book::start(engine), Life(life));
            let ask = async |resume: &str| {
                let request = pb::EventsRequest { resume: resume.into(), ..pb::EventsRequest::default() };
                stream(&book, &life, request).await.unwrap()
            };
            let (mut all, mut responses) = (Vec::new(), Vec::new());
            let mut events = ask("").await;
            while all.last().is_none_or(|last: &pb::Event| last.revision < newest) {
                let response = events.next().await.unwrap().unwrap();
                all.extend(response.events);
                responses.push((all.len(), response.token));
            }
            assert!(responses.len() > 2);
            for (seen, token) in responses {
                let (mut rest, mut events) = (Vec::new(), ask(&token).await);
                while rest.len() < all.len() - seen {
                    rest.extend(events.next().await.unwrap().unwrap().events);
                }
                assert!(rest == all[seen..], "after {seen} events, {token}");
            }
        });
    }

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
            assert_eq!(ask(0, 0, "x").await, Err(Code::InvalidArgument));
            assert_eq!(ask(1, 0, &token).await, Err(Code::InvalidArgument));
        });
    }
}
