//! Watches that change while they run: what their clients hold.

use crate::harness::{Clients, Cluster, PATIENCE, start};
use anyhow::{Context, Result, ensure};
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::list_request::Of;
use quoin_proto::quoin::route::v1::route_client::RouteClient;
use quoin_proto::quoin::route::v1::subscribe_request::Request;
use quoin_proto::quoin::route::v1::watch_response::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

const RULES: u64 = 300;
const GROUPS: [&str; 3] = ["a", "b", "c"];
const CHANGES: u64 = 30;

type Held = BTreeMap<(u32, String), pb::Rule>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    Group(&'static str),
    Vni(u32),
}

const SCOPES: [Scope; 5] =
    [Scope::Group("a"), Scope::Group("b"), Scope::Group("c"), Scope::Vni(0), Scope::Vni(1)];

impl Scope {
    fn has(self, rule: &pb::Rule) -> bool {
        match self {
            Self::Group(group) => rule.group == group,
            Self::Vni(vni) => rule.vni == vni,
        }
    }

    fn of(self) -> Of {
        match self {
            Self::Group(group) => Of::Group(group.into()),
            Self::Vni(vni) => Of::Vni(vni),
        }
    }
}

async fn client(cluster: &Cluster, replica: usize) -> Result<RouteClient<Channel>> {
    Ok(RouteClient::new(cluster.patient_channel(replica).await?).max_decoding_message_size(64 << 20))
}

fn rule(number: u64, write: u64) -> pb::Rule {
    pb::Rule {
        vni: (number % 3) as u32,
        ip: format!("10.0.{}.{}", number / 256, number % 256),
        group: GROUPS[(write % 3) as usize].into(),
        user_data: write.to_string().into(),
        ..pb::Rule::default()
    }
}

/// Puts rules, moves them between groups and deletes them, one or some at a revision.
async fn write_until(stop: Arc<AtomicBool>, mut routes: RouteClient<Channel>) -> Result<()> {
    let mut write = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        write += 1;
        let place = |step: u64| write.wrapping_mul(7919).wrapping_add(step * 101) % RULES;
        let puts = (0..write % 4).map(|step| rule(place(step), write / 2 + step)).collect();
        let gone = rule(place(50), 0);
        let deletes = vec![pb::RuleKey { vni: gone.vni, ip: gone.ip }];
        routes.write(pb::WriteRequest { puts, deletes, conditions: Vec::new() }).await?;
    }
    Ok(())
}

/// A client of `Subscribe`.
struct Subscriber {
    requests: mpsc::Sender<pb::SubscribeRequest>,
    messages: Streaming<pb::WatchResponse>,
    scopes: BTreeSet<Scope>,
    held: Held,
    adding: Held,
    position: i64,
}

impl Subscriber {
    async fn start(mut routes: RouteClient<Channel>, start: pb::WatchRequest) -> Result<Self> {
        let (requests, outgoing) = mpsc::channel(4);
        requests.send(pb::SubscribeRequest { request: Some(Request::Start(start)) }).await?;
        let messages = routes.subscribe(ReceiverStream::new(outgoing)).await?.into_inner();
        let (held, adding) = (Held::new(), Held::new());
        Ok(Self { requests, messages, scopes: BTreeSet::new(), held, adding, position: 0 })
    }

    /// Adds or removes each of `scopes`, and follows until that is in effect.
    async fn toggle(&mut self, request_id: u64, scopes: &[Scope]) -> Result<()> {
        let mut change = pb::WatchChange { request_id, ..pb::WatchChange::default() };
        let mut after = self.scopes.clone();
        for scope in scopes {
            match (scope, after.remove(scope)) {
                (Scope::Group(group), true) => change.remove_groups.push((*group).into()),
                (Scope::Vni(vni), true) => change.remove_vnis.push(*vni),
                (Scope::Group(group), false) => change.add_groups.push((*group).into()),
                (Scope::Vni(vni), false) => change.add_vnis.push(*vni),
            }
            if !self.scopes.contains(scope) {
                after.insert(*scope);
            }
        }
        self.requests.send(pb::SubscribeRequest { request: Some(Request::Change(change)) }).await?;
        loop {
            let message = self.messages.message().await?.context("the watch ended")?;
            if self.take(message, request_id)? {
                break;
            }
        }
        let left: Vec<Scope> = self.scopes.intersection(&after).copied().collect();
        self.held.retain(|_, rule| left.iter().any(|scope| scope.has(rule)));
        self.held.append(&mut self.adding);
        self.scopes = after;
        Ok(())
    }

    /// Whether the change is in effect.
    fn take(&mut self, message: pb::WatchResponse, request_id: u64) -> Result<bool> {
        let kind = message.kind();
        match kind {
            Kind::Snapshot => {
                ensure!(message.request_id == request_id, "a snapshot for {}", message.request_id);
                for rule in message.rules {
                    let twice = self.adding.insert((rule.vni, rule.ip.clone()), rule);
                    ensure!(twice.is_none(), "{twice:?} came twice in a snapshot");
                }
                return Ok(false);
            }
            Kind::Events => {
                ensure!(self.adding.is_empty(), "events behind a snapshot");
                for event in message.events {
                    ensure!(event.revision > self.position, "revision {} came again", event.revision);
                    match event.change.context("a change")? {
                        pb::event::Change::Put(rule) => self.held.insert((rule.vni, rule.ip.clone()), rule),
                        pb::event::Change::Deleted(key) => self.held.remove(&(key.vni, key.ip)),
                        other => anyhow::bail!("{other:?} was not asked for"),
                    };
                }
            }
            Kind::Progress => {}
            Kind::Changed => ensure!(message.request_id == request_id, "{} is in effect", message.request_id),
            other => anyhow::bail!("{other:?} was not asked for"),
        }
        ensure!(message.revision >= self.position, "back to revision {}", message.revision);
        self.position = message.revision;
        Ok(kind == Kind::Changed)
    }

    /// What the scopes list at the subscriber's revision.
    async fn listed(&self, routes: &mut RouteClient<Channel>) -> Result<Held> {
        let mut held = Held::new();
        for scope in &self.scopes {
            let (of, revision) = (Some(scope.of()), self.position);
            let request = pb::ListRequest { of, revision, limit: 10_000, ..pb::ListRequest::default() };
            let page = routes.list(request).await?.into_inner();
            ensure!(!page.more && page.group_revision <= revision, "{page:?}");
            held.extend(page.rules.into_iter().map(|rule| ((rule.vni, rule.ip.clone()), rule)));
        }
        Ok(held)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_holds_at_each_change_what_is_listed_at_its_revision() -> Result<()> {
    let cluster = start(&[])?;
    let leader = cluster.leader()?;
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(write_until(Arc::clone(&stop), client(&cluster, leader).await?));
    let rules = Arc::new(AtomicU64::new(0));
    let mut subscribers = Vec::new();
    for replica in 0..3 {
        let (routes, mut lister) = (client(&cluster, replica).await?, client(&cluster, replica).await?);
        let rules = Arc::clone(&rules);
        subscribers.push(tokio::spawn(async move {
            // It begins with nothing.
            let start = pb::WatchRequest { progress_ms: 100, from_revision: 1, ..Default::default() };
            let mut subscriber = Subscriber::start(routes, start).await?;
            for change in 1..=CHANGES {
                let first = (change * 7 + replica as u64) as usize;
                let scopes = [SCOPES[first % 5], SCOPES[(first + 2) % 5]];
                subscriber.toggle(change, &scopes[..1 + change as usize % 2]).await?;
                let listed = subscriber.listed(&mut lister).await?;
                let (scopes, position) = (&subscriber.scopes, subscriber.position);
                ensure!(subscriber.held == listed, "{scopes:?} at {position}, change {change}");
                rules.fetch_add(listed.len() as u64, Ordering::Relaxed);
            }
            Ok::<_, anyhow::Error>(())
        }));
    }
    for subscriber in subscribers {
        tokio::time::timeout(PATIENCE, subscriber).await.context("a subscriber waits in vain")???;
    }
    stop.store(true, Ordering::Relaxed);
    writing.await??;
    ensure!(rules.load(Ordering::Relaxed) > 1_000, "hardly anything was watched");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_is_wrong_ends_with_the_reason() -> Result<()> {
    let cluster = start(&[])?;
    let wrong = pb::WatchChange { add_vnis: vec![1 << 24], ..pb::WatchChange::default() };
    let change = pb::SubscribeRequest { request: Some(Request::Change(wrong)) };
    let start = pb::SubscribeRequest { request: Some(Request::Start(pb::WatchRequest::default())) };
    for requests in [vec![change.clone()], vec![start, change]] {
        let mut routes = client(&cluster, 0).await?;
        let mut messages = routes.subscribe(tokio_stream::iter(requests)).await?.into_inner();
        let status = loop {
            match messages.message().await {
                Ok(message) => ensure!(message.is_some(), "it ended well"),
                Err(status) => break status,
            }
        };
        ensure!(status.code() == Code::InvalidArgument, "{status:?}");
    }
    Ok(())
}
