//! `Subscribe`: a watch whose client adds groups and networks to it, and removes some, while it runs.
//!
//! **Invariant: Bounded.** What a stream watches ([`SCOPES_MAX`]); one change waits while another is made, and then the
//! stream is not read; a client that does not take what it added is given up.

use super::feed::{Feed, Options};
use super::{Route, translate};
use crate::consistency;
use crate::error::{Error, Kind};
use crate::grpc::outbound::{Answers, PATIENCE, untaken};
use quoin_core::route::Scope;
use quoin_engine::Engine;
use quoin_proto::Encoded;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::subscribe_request::Request;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Streaming;

/// Maximum groups, networks and kinds that a stream watches.
const SCOPES_MAX: usize = 10_000;

/// A change of what is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) request_id: u64,
    pub(super) add: BTreeSet<Scope>,
    pub(super) remove: BTreeSet<Scope>,
}

/// Serves a stream until its client leaves or the watch cannot go on.
///
/// # Errors
/// An invalid request; otherwise as every watch.
pub(super) async fn run(
    route: Route,
    mut requests: Streaming<pb::SubscribeRequest>,
    responses: Answers<Encoded>,
) -> Result<(), Error> {
    let Some(Request::Start(start)) = requests.message().await?.and_then(|first| first.request) else {
        return Err(Error::invalid("the first request must have a start"));
    };
    let options = Options::with(&route.engine, &start, translate::any_scopes(&start)?).await?;
    let mut watched = Watched::default();
    watched.add(options.scopes.iter().cloned())?;
    let (sender, changes) = mpsc::channel(1);
    let (hub, tables) = (Arc::clone(route.engine.hub()), Arc::new(route.engine.clone()));
    let feed = Feed::new(hub, tables, route.live.clone(), options, changes, responses).run();
    let read = read(&route.engine, &start, watched, requests, sender);
    let mut feed = std::pin::pin!(feed);
    tokio::select! {
        ended = &mut feed => ended,
        read = read => match read {
            // The client has no more changes.
            Ok(()) => feed.await,
            Err(error) => Err(error),
        },
    }
}

/// Passes the client's changes on, until there are no more.
async fn read(
    engine: &Engine,
    start: &pb::WatchRequest,
    mut watched: Watched,
    mut requests: Streaming<pb::SubscribeRequest>,
    changes: mpsc::Sender<Change>,
) -> Result<(), Error> {
    while let Some(request) = requests.message().await? {
        let change = watched.change(request)?;
        // So that what it adds has everything that was written before.
        consistency::view(engine, start.consistency.as_ref()).await?;
        if !pass(&changes, change).await? {
            break;
        }
    }
    Ok(())
}

/// Passes a change on once the one before it is made; false if nobody takes it any more. While it waits nobody reads the
/// stream, and nobody notices that it stalls.
async fn pass(changes: &mpsc::Sender<Change>, change: Change) -> Result<bool, Error> {
    timeout(PATIENCE, changes.send(change)).await.map(|sent| sent.is_ok()).map_err(|_| untaken())
}

/// What a stream watches once all changes so far are in effect.
#[derive(Default)]
struct Watched(BTreeSet<Scope>);

impl Watched {
    fn change(&mut self, request: pb::SubscribeRequest) -> Result<Change, Error> {
        let Some(Request::Change(change)) = request.request else {
            return Err(Error::invalid("every request after the first must have a change"));
        };
        let pb::WatchChange { request_id, add_groups, add_vnis, remove_groups, remove_vnis } = change;
        let add = scopes("add", add_groups, add_vnis)?;
        let remove = scopes("remove", remove_groups, remove_vnis)?;
        if let Some(scope) = add.intersection(&remove).next() {
            return Err(Error::invalid(format_args!("{} is both added and removed", named(scope))));
        }
        remove.iter().for_each(|scope| {
            self.0.remove(scope);
        });
        self.add(add.iter().cloned())?;
        Ok(Change { request_id, add, remove })
    }

    fn add(&mut self, scopes: impl Iterator<Item = Scope>) -> Result<(), Error> {
        self.0.extend(scopes);
        let count = self.0.len();
        if count > SCOPES_MAX {
            let text = format!(
                "{count} groups, networks and kinds on one stream are too many, at most {SCOPES_MAX}"
            );
            return Err(Error::Refused(Kind::ResourceExhausted, text));
        }
        Ok(())
    }
}

fn scopes(field: &str, groups: Vec<String>, vnis: Vec<u32>) -> Result<BTreeSet<Scope>, Error> {
    translate::check_groups(&format!("{field}_groups"), &groups)?;
    translate::check_vnis(&format!("{field}_vnis"), &vnis)?;
    let groups = groups.into_iter().map(|group| Scope::Group(group.into()));
    Ok(groups.chain(vnis.into_iter().map(Scope::Vni)).collect())
}

fn named(scope: &Scope) -> String {
    match scope {
        Scope::Group(group) => format!("group {:?}", translate::lossy(group)),
        Scope::Vni(vni) => format!("network {vni}"),
        Scope::Objects(_) | Scope::NodeStatus => format!("{scope:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(add: &[&str], remove: &[&str], vnis: &[u32]) -> pb::SubscribeRequest {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let change = pb::WatchChange {
            request_id: 7,
            add_groups: texts(add),
            remove_groups: texts(remove),
            add_vnis: vnis.to_vec(),
            remove_vnis: Vec::new(),
        };
        pb::SubscribeRequest { request: Some(Request::Change(change)) }
    }

    /// Streams that were not read held the bytes of their requests for ever, and then the node refused everybody.
    #[tokio::test]
    async fn a_change_that_waits_too_long_for_the_one_before_it_ends_the_stream() {
        let (sender, untaken) = mpsc::channel(1);
        let change = || Change { request_id: 1, add: BTreeSet::new(), remove: BTreeSet::new() };
        assert!(pass(&sender, change()).await.unwrap());
        let given_up = timeout(PATIENCE * 6, pass(&sender, change())).await.expect("it is given up");
        assert!(given_up.unwrap_err().to_string().contains("10 s"));
        drop(untaken);
        assert!(!pass(&sender, change()).await.unwrap());
    }

    #[test]
    fn changes_are_checked_before_they_are_made() {
        let mut watched = Watched::default();
        let made = watched.change(change(&["a", "b", "a"], &["c"], &[5])).unwrap();
        assert_eq!((made.request_id, made.add.len(), made.remove.len()), (7, 3, 1));
        let long = "g".repeat(256);
        for (wrong, problem) in [
            (change(&["a"], &["a"], &[]), "group \"a\" is both"),
            (change(&["x", &long], &[], &[]), "add_groups[1]: 256 bytes"),
            (change(&[], &[&long], &[]), "remove_groups[0]"),
            (change(&[], &[], &[1, 1 << 24]), "add_vnis[1]: 16777216"),
            (pb::SubscribeRequest::default(), "must have a change"),
            (
                pb::SubscribeRequest { request: Some(Request::Start(pb::WatchRequest::default())) },
                "must have a change",
            ),
        ] {
            let told = watched.change(wrong).unwrap_err().to_string();
            assert!(told.contains(problem), "{told}");
        }
        assert_eq!(watched.0.len(), 3, "none of them was made");
        let vnis: Vec<u32> = (100..100 + SCOPES_MAX as u32 - 3).collect();
        watched.change(change(&[], &[], &vnis)).unwrap();
        watched.change(change(&["a"], &[], &[])).expect("it is watched already");
        watched.change(change(&["c"], &["b"], &[])).expect("one for another");
        assert!(watched.change(change(&["d"], &[], &[])).unwrap_err().to_string().contains("10001"));
    }
}
