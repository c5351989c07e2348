//! `/v1/rules/events`: what changes, as server-sent events.
//!
//! An event's id is a [`Place`]: a revision and the cluster. A client that comes back with the last id it saw
//! (`Last-Event-ID`, which browsers send by themselves) misses nothing, on any replica. Of the changes of one revision only the last
//! has an id: a client that was cut off between them gets all of them again, which does no harm.
//!
//! **Invariant: Bounded.** The messages of the watch behind it that wait for a slow client, see `grpc/route/feed.rs`. They are
//! rendered one after the other.

use super::model::{RoutingKey, RoutingRule, signed, unsigned};
use crate::error::{Error, Kind};
use crate::grpc::route::Route;
use crate::grpc::route::translate::quoted;
use crate::http::extract::Params;
use crate::http::problem::Problem;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use futures_util::{StreamExt, stream};
use prost::Message;
use quoin_proto::Encoded;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::event::Change;
use quoin_proto::quoin::route::v1::watch_response::Kind as Of;
use serde::Serialize;
use serde_json::json;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use tonic::Status;

/// How often a client learns its place while nothing changes, in milliseconds. Connections stay open by it too.
const PROGRESS_MS: u32 = 10_000;

/// Follow what changes in groups and networks, as server-sent events
///
/// `put` carries a rule, `delete` the key of one that is gone or has left the group. From 0 on they follow `snapshot` for
/// each rule that is there, and `snapshot_end`: what the client has and does not find among them is gone. `progress` says that all up
/// to its id was sent, `end` why the stream ends. An id says where it is, and in which cluster: 400 if it is in the future, of a
/// cluster that was since restored or made anew, or no longer in history.
#[utoipa::path(get, path = "/v1/rules/events", operation_id = "follow_rules", tag = "rules",
    params(
        ("group" = Option<Vec<String>>, Query, description = "The rules of this group; any number of them"),
        ("vni" = Option<Vec<u32>>, Query, description = "The rules of this network; any number of them"),
        ("from_revision" = Option<u64>, Query, description = "The first revision; 0 for what is there, and then what \
            changes. By default the next one"),
        ("snapshot_if_compacted" = Option<bool>, Query, description = "If history no longer has the first revision, send \
            `compacted` and then what is there"),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen")),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn follow(
    State(route): State<Route>,
    Params(pairs): Params<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let (mut request, mut field) =
        (pb::WatchRequest { progress_ms: PROGRESS_MS, ..Default::default() }, "group");
    let mut from = None;
    for (name, value) in pairs {
        let wrong = |what| Problem::field(&name, format!("{} is not {what}", quoted(&value)));
        match name.as_str() {
            "group" => request.groups.push(value),
            "vni" => request.vnis.push(value.parse().map_err(|_| wrong("a number"))?),
            "from_revision" => from = Some(value.parse().map_err(|_| wrong("a revision"))?),
            "snapshot_if_compacted" => {
                request.snapshot_if_compacted = value.parse().map_err(|_| wrong("true or false"))?;
            }
            _ => return Err(Problem::field(&name, "there is no such parameter; see /docs")),
        }
    }
    if request.groups.is_empty() && request.vnis.is_empty() {
        return Err(Problem::field("group", "nothing to follow: give a group or a vni"));
    }
    // As of a client that has seen no id.
    let seen = headers.get("last-event-id").filter(|id| !id.is_empty());
    let first = match seen {
        Some(id) => {
            field = "Last-Event-ID";
            let place = id.to_str().unwrap_or_default().parse::<Place>();
            let place = place.map_err(|problem| Problem::field(field, problem))?;
            request.cluster_id = place.cluster;
            place.revision.saturating_add(1)
        }
        None if from.is_some() => {
            field = "from_revision";
            from.unwrap_or_default()
        }
        None => route.engine().latest().progress().revision.0 + 1,
    };
    request.from_revision = signed(first, field)?;
    let messages = match route.feed(&request).await {
        Ok(messages) => messages,
        Err(error @ Error::Refused(Kind::OutOfRange, _)) => {
            return Err(Problem::of_request(error).named(field));
        }
        Err(error) => {
            return Err(Problem::of_request(error).renamed("vnis[0]", "vni").renamed("groups[0]", "group"));
        }
    };
    let compacted = route.engine().latest().progress().compacted.0;
    if (1..compacted).contains(&first) && !request.snapshot_if_compacted {
        let text = format!(
            "revision {first} is compacted, history begins at {compacted}; begin from 0, or with snapshot_if_compacted"
        );
        return Err(Problem::from(Error::Refused(Kind::OutOfRange, text)).named(field));
    }
    let cluster = route.engine().cluster();
    let events = messages.flat_map(move |message| stream::iter(shown(message, cluster)));
    Ok(Sse::new(events.map(Ok::<_, Infallible>)))
}

/// A place among the changes: all up to the revision were seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    revision: u64,
    /// The cluster whose revision it is.
    cluster: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:016x}", self.revision, self.cluster)
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = text.split_once('@').and_then(|(revision, cluster)| {
            Some(Self { revision: revision.parse().ok()?, cluster: u64::from_str_radix(cluster, 16).ok()? })
        });
        place.ok_or_else(|| {
            let shown = quoted(text);
            format!("{shown} is not the id of an event, as 17@6f1d2c3b4a596877")
        })
    }
}

type Shown = Box<dyn Iterator<Item = Event> + Send>;

/// The events of a message, one by one.
fn shown(message: Result<Encoded, Status>, cluster: u64) -> Shown {
    let message = message.and_then(|Encoded(bytes)| {
        pb::WatchResponse::decode(bytes).map_err(|error| Status::internal(error.to_string()))
    });
    let message = match message {
        Ok(message) => message,
        Err(status) => {
            return Box::new(std::iter::once(event("end", &json!({ "detail": status.message() }))));
        }
    };
    let place = move |revision| Place { revision: unsigned(revision), cluster };
    let revision = message.revision;
    let whole = |name| event(name, &json!({ "revision": revision }));
    match message.kind() {
        Of::Snapshot => {
            Box::new(message.rules.into_iter().map(|rule| event("snapshot", &RoutingRule::of(rule))))
        }
        Of::Events => {
            let lasts: Vec<bool> = lasts(&message.events).collect();
            Box::new(message.events.into_iter().zip(lasts).filter_map(move |(changed, last)| {
                let at = place(changed.revision);
                let shown = change(changed)?;
                Some(if last { shown.id(at.to_string()) } else { shown })
            }))
        }
        Of::SnapshotEnd => Box::new(std::iter::once(whole("snapshot_end").id(place(revision).to_string()))),
        Of::Progress => Box::new(std::iter::once(whole("progress").id(place(revision).to_string()))),
        Of::Compacted => Box::new(std::iter::once(whole("compacted"))),
        // Nobody changes what is watched.
        Of::Changed | Of::Unspecified => Box::new(std::iter::empty()),
    }
}

/// Whether each event is the last of its revision. A message has whole revisions.
fn lasts(events: &[pb::Event]) -> impl Iterator<Item = bool> + '_ {
    let next = events.iter().skip(1).map(|event| Some(event.revision)).chain([None]);
    events.iter().zip(next).map(|(event, next)| next != Some(event.revision))
}

fn change(changed: pb::Event) -> Option<Event> {
    match changed.change? {
        Change::Put(rule) => Some(event("put", &RoutingRule::of(rule))),
        Change::Deleted(key) => Some(event("delete", &RoutingKey { vni: key.vni, ip: key.ip })),
        // Only rules are watched.
        _ => None,
    }
}

fn event(name: &str, data: &impl Serialize) -> Event {
    let data = serde_json::to_string(data).expect("texts and numbers are JSON");
    Event::default().event(name).data(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_they_are_read() {
        let place = Place { revision: 17, cluster: 0x6f1d };
        assert_eq!(place.to_string(), "17@0000000000006f1d");
        assert_eq!("17@0000000000006f1d".parse(), Ok(place));
        for bad in ["", "17", "17@", "@6f1d", "x@6f1d", "17@g", "-1@6f1d", "17.0@6f1d.1"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }
}
