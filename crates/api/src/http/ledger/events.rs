//! `/v1/events`: everything that happens, as server-sent events.
//!
//! An event's id is its revision and position, `REVISION.POSITION`. A client that comes back with the last id
//! it saw (`Last-Event-ID`, which browsers send by themselves) misses nothing and gets nothing twice, on any
//! replica and however long it was away: the journal is never compacted.

use super::desk::{Desk, place};
use super::extract::Params;
use super::model::{Account, EventsFrom, Transfer};
use super::problem::Problem;
use super::units::Units;
use crate::error::Error;
use crate::ledger::{Feed, Piece};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use quoin_core::Revision;
use quoin_core::ledger::Journal;
use serde::Serialize;
use std::convert::Infallible;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Maximum events that wait for a slow client.
const EVENTS_MAX: usize = 1024;

/// Follow all that happens, as server-sent events
///
/// The events `transfer`, `account` and `currency` carry what was recorded, as JSON.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventsFrom, ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen")),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn follow(
    State(desk): State<Desk>,
    Params(from): Params<EventsFrom>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let seen = match headers.get("last-event-id").map(|id| id.to_str()) {
        None => None,
        Some(Ok(id)) if id.contains('.') => Some(place(id, "Last-Event-ID")?),
        Some(id) => {
            let revision = id.ok().and_then(|id| id.parse().ok());
            let problem = || {
                Problem::field("Last-Event-ID", "neither the id of an event, as 17.0, nor a revision, as 17")
            };
            Some((Revision(revision.ok_or_else(problem)?), u32::MAX))
        }
    };
    let first = match (seen, from.from_revision) {
        (Some((revision, _)), _) => revision,
        (None, Some(revision)) => Revision(revision),
        (None, None) => desk.book.engine().latest().progress().revision.next(),
    };
    let feed = Feed::new(desk.book.engine(), first);
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    tokio::spawn(async move {
        tokio::select! {
            () = desk.life.ended() => {}
            () = events.closed() => {}
            ended = send(&desk, feed, seen, &events) => if let Err(error) = ended {
                tracing::debug!(%error, "an event stream ended");
            },
        }
    });
    Ok(Sse::new(ReceiverStream::new(receiver)).keep_alive(KeepAlive::default()))
}

/// An event and its position.
type Placed = ((Revision, u32), Event);
type Events = mpsc::Sender<Result<Event, Infallible>>;

async fn send(
    desk: &Desk,
    mut feed: Feed,
    seen: Option<(Revision, u32)>,
    events: &Events,
) -> Result<(), Error> {
    let mut units = Units::default();
    let mut piece = feed.read().await?;
    loop {
        let Piece { parts, .. } = &piece;
        for part in parts {
            for (at, event) in shown(desk, part, &mut units)? {
                if seen.is_none_or(|seen| at > seen) && events.send(Ok(event)).await.is_err() {
                    return Ok(());
                }
            }
        }
        piece = feed.next().await?;
    }
}

/// The events of a part of the journal, each with its position.
fn shown(desk: &Desk, part: &Journal, units: &mut Units) -> Result<Vec<Placed>, Error> {
    match part {
        Journal::Transfers(entries) => {
            let view = desk.book.engine().latest();
            let shown = |entry| {
                let unit = units.of(view.view(), entry)?;
                event("transfer", (entry.revision, entry.position), &Transfer::of_entry(entry, unit))
            };
            entries.iter().map(shown).collect()
        }
        Journal::Accounts(revision, _, accounts) => {
            let places = (0..).map(|place| (*revision, place));
            places.zip(accounts).map(|(at, account)| event("account", at, &Account::of(account))).collect()
        }
        Journal::Currency(revision, _, currency, scale) => {
            let unit = serde_json::json!({ "code": currency.to_string(), "scale": scale });
            Ok(vec![event("currency", (*revision, 0), &unit)?])
        }
    }
}

fn event(kind: &str, at: (Revision, u32), data: &impl Serialize) -> Result<Placed, Error> {
    let event = Event::default().event(kind).id(format!("{}.{}", at.0, at.1));
    let event = event.json_data(data).map_err(Error::fault)?;
    Ok((at, event))
}
