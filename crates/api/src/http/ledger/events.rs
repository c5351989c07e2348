//! `/v1/events`: everything that happens, as server-sent events.
//!
//! An event's id is a [`Token`]: its revision and position, and what tells this history from another. A client that
//! comes back with the last id it saw (`Last-Event-ID`, which browsers send by themselves) misses nothing and gets
//! nothing twice, on any replica and however long it was away: the journal is never compacted. On a cluster that was
//! restored or made anew it is refused.
//!
//! **Invariant: Bounded.** [`BATCHES_MAX`] batches of about [`BATCH_BYTES`] wait for a slow client, and a piece of the
//! journal of about [`PIECE_BYTES`] behind them.

use super::desk::Desk;
use super::model::{Account, EventsFrom, Transfer};
use super::units::Units;
use crate::error::Error;
use crate::http::extract::Params;
use crate::http::problem::Problem;
use crate::ledger::{Feed, Origin, Piece, Place, Token, check_first, places};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{StreamExt, stream};
use quoin_core::ledger::Journal;
use quoin_core::{Revision, Stamp};
use serde::Serialize;
use std::convert::Infallible;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Bytes of the journal that are read at once.
const PIECE_BYTES: usize = 64 << 10;
/// Maximum batches of events that wait for a slow client.
const BATCHES_MAX: usize = 2;
/// Bytes of events after which a batch is closed. The last one may exceed it.
const BATCH_BYTES: usize = 64 << 10;

/// Follow all that happens, as server-sent events
///
/// The events `transfer`, `account` and `currency` carry what was recorded, as JSON. An event's id says where it is, and in
/// which cluster: 422 if it is of another one, since restored or made anew, 400 if it is in the future.
#[utoipa::path(get, path = "/v1/events", operation_id = "follow_transfers", tag = "events",
    params(EventsFrom, ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen")),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn follow(
    State(desk): State<Desk>,
    Params(from): Params<EventsFrom>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let token = match headers.get("last-event-id") {
        Some(id) => Some(
            id.to_str()
                .unwrap_or_default()
                .parse::<Token>()
                .map_err(|problem| Problem::field("Last-Event-ID", problem))?,
        ),
        None => None,
    };
    let first = match (token, from.from_revision) {
        (Some(token), _) => {
            let checked = token.check(&desk.book, "Last-Event-ID").await;
            checked.map_err(|error| Problem::from(error).named("Last-Event-ID"))?;
            token.revision
        }
        (None, Some(revision)) => {
            let checked = check_first(&desk.book, Revision(revision), "from_revision").await;
            checked.map_err(|error| Problem::from(error).named("from_revision"))?;
            Revision(revision)
        }
        (None, None) => desk.book.engine().latest().progress().revision.next(),
    };
    let feed = Feed::new(desk.book.engine(), first, PIECE_BYTES);
    let (batches, receiver) = mpsc::channel(BATCHES_MAX);
    tokio::spawn(async move {
        tokio::select! {
            () = desk.life.ended() => {}
            () = batches.closed() => {}
            ended = send(&desk, feed, token, &batches) => if let Err(error) = ended {
                tracing::debug!(%error, "an event stream ended");
            },
        }
    });
    let events = ReceiverStream::new(receiver).flat_map(stream::iter).map(Ok::<_, Infallible>);
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// An event, its position, and its bytes.
type Placed = ((Revision, Place), usize, Event);
type Batches = mpsc::Sender<Vec<Event>>;

async fn send(desk: &Desk, mut feed: Feed, seen: Option<Token>, batches: &Batches) -> Result<(), Error> {
    let mut units = Units::default();
    let mut piece = feed.read().await?;
    loop {
        let Piece { parts, .. } = &piece;
        let (mut batch, mut batch_bytes) = (Vec::new(), 0);
        for part in parts {
            for (at, bytes, event) in shown(desk, part, &mut units)? {
                if seen.is_some_and(|seen| seen.covers(at)) {
                    continue;
                }
                batch.push(event);
                batch_bytes += bytes;
                if batch_bytes >= BATCH_BYTES {
                    batch_bytes = 0;
                    if batches.send(std::mem::take(&mut batch)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        if !batch.is_empty() && batches.send(batch).await.is_err() {
            return Ok(());
        }
        piece = feed.next().await?;
    }
}

/// The events of a part of the journal, each with its position.
fn shown(desk: &Desk, part: &Journal, units: &mut Units) -> Result<Vec<Placed>, Error> {
    let cluster = desk.book.engine().cluster();
    let origin = Origin { cluster, stamp: part.stamp().unwrap_or(Stamp(0)) };
    let places = places(part).into_iter();
    match part {
        Journal::Transfers(entries) => {
            let view = desk.book.engine().latest();
            let shown = |(at, entry)| {
                let unit = units.of(view.view(), entry)?;
                event("transfer", at, origin, &Transfer::of_entry(entry, unit))
            };
            places.zip(entries).map(shown).collect()
        }
        Journal::Accounts(_, _, accounts) => {
            let shown = |(at, account)| event("account", at, origin, &Account::of(account));
            places.zip(accounts).map(shown).collect()
        }
        Journal::Currency(_, _, currency, scale) => {
            let unit = serde_json::json!({ "code": currency.to_string(), "scale": scale });
            places.map(|at| event("currency", at, origin, &unit)).collect()
        }
    }
}

fn event(kind: &str, at: (Revision, Place), origin: Origin, data: &impl Serialize) -> Result<Placed, Error> {
    let data = serde_json::to_string(data).map_err(Error::fault)?;
    let bytes = data.len();
    let token = Token { revision: at.0, place: Some(at.1), origin: Some(origin) };
    Ok((at, bytes, Event::default().event(kind).id(token.to_string()).data(data)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Book;
    use crate::life::Life;
    use crate::testing::alone;
    use quoin_core::ledger::{NewAccount, Operation};

    /// 1024 events waited for a slow client, whatever their size: an account can have a MiB of metadata.
    #[test]
    fn a_client_that_reads_nothing_has_a_few_bytes_of_events_waiting() {
        alone(|engine| async move {
            for id in 1..=20 {
                let (currency, user_data) = ("EUR".into(), "x".repeat(BATCH_BYTES));
                let account = NewAccount { currency, user_data, ..NewAccount::default() }.with_id(id);
                engine.propose(Operation::create_accounts(vec![account]).into_command()).await.unwrap();
            }
            let (_running, life) = tokio::sync::watch::channel(false);
            let desk = Desk { book: Book::start(engine.clone()), life: Life(life) };
            let (batches, mut waiting) = mpsc::channel(BATCHES_MAX);
            let feed = Feed::new(&engine, Revision(0), PIECE_BYTES);
            let sending = tokio::spawn(async move { send(&desk, feed, None, &batches).await });
            let mut batches = Vec::new();
            while batches.iter().sum::<usize>() < 21 {
                batches.push(waiting.recv().await.expect("there are 20 accounts").len());
            }
            // The first has the currency's world account besides.
            assert_eq!(batches, [vec![2], vec![1; 19]].concat());
            sending.abort();
        });
    }
}
