//! Everything that is there of what is watched, as of one revision.

use super::encode::{self, Encoder};
use super::translate;
use crate::error::Error;
use crate::grpc::outbound::{Answers, send_blocking};
use bytes::Bytes;
use quoin_core::route::{self, Members, Rule, Scope, Table};
use quoin_core::{Progress, Store, StoreError, View};
use quoin_engine::Engine;
use quoin_engine::watch::Hub;
use quoin_proto::Encoded;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

/// A message of a snapshot is closed at this size, in bytes.
pub(super) const SNAPSHOT_MESSAGE_BYTES: usize = 256 << 10;

/// Where the newest rules are: in the engine of a node, or in the machines of a test.
pub(super) trait Tables: Send + Sync + 'static {
    /// At least as new as the hub's events.
    fn table(&self) -> Arc<Table>;
}

impl Tables for Engine {
    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.latest().memory().routes)
    }
}

/// What a snapshot will show.
pub(super) struct Taken {
    pub(super) revision: u64,
    scopes: Vec<Scope>,
    state: State,
}

enum State {
    /// Of groups alone, whose newest rules are in memory.
    Members(Vec<Members>),
    /// In the store. What is there of it is not compacted away meanwhile.
    Stored { store: Arc<dyn Store>, progress: Progress, _pin: Box<dyn Any + Send> },
}

impl Taken {
    /// The newest state of `scopes`. About 20 ns for a rule of a group.
    pub(super) fn of(hub: &Hub, tables: &dyn Tables, scopes: Vec<Scope>) -> Self {
        let (store, progress, pin) = hub.latest();
        // Taken later, so it has everything up to that progress.
        let table = tables.table();
        let (revision, state) = match groups(&scopes) {
            Some(groups) => {
                let table = table.look();
                let members = groups.iter().map(|group| table.group(group, None, usize::MAX)).collect();
                (table.revision().max(progress.revision), State::Members(members))
            }
            None => (progress.revision, State::Stored { store, progress, _pin: pin }),
        };
        Self { revision: revision.0, scopes, state }
    }

    /// Sends it, on a thread that may block while it waits for the client.
    ///
    /// # Errors
    /// The client has left or takes nothing, or the store failed.
    pub(super) fn send(self, responses: &Answers<Encoded>, request_id: u64) -> Result<(), Error> {
        let mut snapshot = Snapshot::new(responses, request_id);
        match self.state {
            State::Members(members) => {
                for rule in members.iter().flat_map(Members::rules) {
                    snapshot.encoder.rule(encode::RULES, &rule?);
                    snapshot.send_if_full()?;
                }
            }
            State::Stored { store, progress, _pin } => {
                snapshot.stored(View::new(&*store, progress.sequence), &self.scopes)?;
            }
        }
        snapshot.send()
    }
}

/// The groups, if nothing else is watched: their newest rules are in memory.
fn groups(scopes: &[Scope]) -> Option<Vec<&[u8]>> {
    scopes.iter().map(|scope| if let Scope::Group(group) = scope { Some(&group[..]) } else { None }).collect()
}

/// A snapshot, message by message, on a thread that may block while it waits for the client.
struct Snapshot<'a> {
    encoder: Encoder,
    responses: &'a Answers<Encoded>,
    request_id: u64,
}

impl<'a> Snapshot<'a> {
    fn new(responses: &'a Answers<Encoded>, request_id: u64) -> Self {
        let mut snapshot = Self { encoder: Encoder::default(), responses, request_id };
        snapshot.begin();
        snapshot
    }

    fn begin(&mut self) {
        self.encoder.watch_response(Kind::Snapshot, 0);
        self.encoder.request_id(self.request_id);
    }

    /// The rules and objects of a view.
    fn stored(&mut self, view: View<'_>, scopes: &[Scope]) -> Result<(), Error> {
        let groups = scopes
            .iter()
            .filter_map(|scope| if let Scope::Group(group) = scope { Some(group) } else { None });
        let groups: HashSet<&Bytes> = groups.collect();
        if !groups.is_empty() {
            self.rules(route::all_rules(view, None), |rule| groups.contains(&rule.group))?;
        }
        for scope in scopes {
            match scope {
                Scope::Group(_) => {}
                // A rule of a watched group and a watched network is sent once.
                Scope::Vni(_) => {
                    self.rules(route::rules(view, scope, None), |rule| !groups.contains(&rule.group))?
                }
                Scope::Objects(kind) => {
                    for object in route::objects(view, *kind, None) {
                        self.encoder.message(encode::OBJECTS, &translate::shown_object(object?)?);
                        self.send_if_full()?;
                    }
                }
                Scope::NodeStatus => {
                    for node in route::node_statuses(view)? {
                        self.encoder.message(encode::NODES, &translate::shown_status(&node));
                        self.send_if_full()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn rules(
        &mut self,
        rules: impl Iterator<Item = Result<Rule, StoreError>>,
        wanted: impl Fn(&Rule) -> bool,
    ) -> Result<(), Error> {
        for rule in rules {
            let rule = rule?;
            if wanted(&rule) {
                self.encoder.rule(encode::RULES, &rule.as_ref());
                self.send_if_full()?;
            }
        }
        Ok(())
    }

    fn send_if_full(&mut self) -> Result<(), Error> {
        if self.encoder.out.len() < SNAPSHOT_MESSAGE_BYTES {
            return Ok(());
        }
        self.send()?;
        self.begin();
        Ok(())
    }

    fn send(&mut self) -> Result<(), Error> {
        send_blocking(self.responses, Encoded(self.encoder.take()))
    }
}
