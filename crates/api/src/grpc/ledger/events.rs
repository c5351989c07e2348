//! The feed of all that the ledger records.

use super::translate;
use crate::error::Error;
use crate::grpc::outbound::{self, AnswerStream, Answers};
use crate::ledger::{Book, Feed, Piece};
use crate::life::Life;
use quoin_core::Revision;
use quoin_engine::Consistency;
use quoin_proto::quoin::ledger::v1 as pb;

/// Maximum pieces that wait for a slow client.
const PIECES_MAX: usize = 4;

/// Streams events, without end or up to a revision.
///
/// # Errors
/// The last revision is in the future, or the newest revision cannot be confirmed.
pub(super) async fn stream(
    book: &Book,
    life: &Life,
    request: pb::EventsRequest,
) -> Result<AnswerStream<pb::EventsResponse>, Error> {
    let pb::EventsRequest { from_revision, until_revision } = request;
    let until = if until_revision == 0 { u64::MAX } else { until_revision };
    if until != u64::MAX {
        // All events up to the end must be here, and it must not be in the future.
        let newest = book.view(Consistency::Linearizable).await?.progress().revision;
        if until > newest.0 {
            return Err(Error::invalid(format_args!(
                "until_revision: {until} is in the future, the newest is {newest}"
            )));
        }
    }
    let feed = Feed::new(book.engine(), Revision(from_revision));
    Ok(outbound::spawn(life, PIECES_MAX, |pieces| send(feed, Revision(until), pieces)))
}

async fn send(mut feed: Feed, until: Revision, pieces: Answers<pb::EventsResponse>) -> Result<(), Error> {
    let mut piece = feed.read().await?;
    loop {
        let Piece { parts, complete_to } = &piece;
        let mut events: Vec<pb::Event> = parts.iter().flat_map(translate::events).collect();
        events.retain(|event| event.revision <= until.0);
        let ended = *complete_to >= until;
        let revision = (*complete_to).min(until).0;
        if (!events.is_empty() || ended)
            && pieces.send(Ok(pb::EventsResponse { events, revision })).await.is_err()
        {
            return Ok(());
        }
        if ended {
            return Ok(());
        }
        piece = feed.next().await?;
    }
}
