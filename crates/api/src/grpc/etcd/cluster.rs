//! etcd's `Cluster`: the members.
//!
//! Only the leader can change them. Another replica forwards the request to the leader's client port, once.

use super::header::header_at;
use crate::audit::about;
use crate::auth;
use crate::commands::{long_read, read};
use crate::consistency;
use crate::error::{Error, Known};
use crate::neighbours::Neighbours;
use quoin_core::system;
use quoin_engine::{Engine, MemberChange};
use quoin_proto::etcdserverpb as pb;
use quoin_proto::etcdserverpb::cluster_client::ClusterClient;
use quoin_proto::etcdserverpb::cluster_server;
use std::time::Duration;
use tokio::time::timeout;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// Marks a forwarded request, so that two replicas that take each other for the leader do not forward it
/// forever.
const FORWARDED: &str = "quoin-passed-on";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it is looked whether the leader has said where it is.
const URL_PERIOD: Duration = Duration::from_millis(20);
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The service.
pub(crate) struct Cluster {
    engine: Engine,
    neighbours: Neighbours,
}

impl Cluster {
    pub(crate) fn new(engine: Engine, neighbours: Neighbours) -> Self {
        Self { engine, neighbours }
    }

    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(header_at(&self.engine, self.engine.latest().progress()))
    }

    async fn change(&self, change: MemberChange) -> Result<Vec<pb::Member>, Error> {
        if let MemberChange::Add(added) = &change {
            about("member", format_args!("{:x}", added.id));
        }
        let members = self.engine.change_members(change).await?;
        Ok(members.into_iter().map(member).collect())
    }

    /// The leader's `Cluster` service; `None` if this replica is the leader.
    async fn leader<T>(&self, request: &Request<T>) -> Result<Option<ClusterClient<Channel>>, Error> {
        let raft = self.engine.raft();
        if raft.is_leader {
            return Ok(None);
        }
        if raft.leader == 0 || request.metadata().contains_key(FORWARDED) {
            return Err(Known::NoLeader.into());
        }
        let found = timeout(CONNECT_TIMEOUT, self.url_of(raft.leader)).await;
        let unknown = |_| Error::unavailable("the leader's client address is not known yet; try again");
        let url = &*found.map_err(unknown)??;
        let channel = self.neighbours.dial(url, CONNECT_TIMEOUT, CHANGE_TIMEOUT).await;
        let channel =
            channel.map_err(|failure| Error::unavailable(format_args!("the leader at {url}: {failure}")))?;
        Ok(Some(ClusterClient::new(channel)))
    }
}

impl Cluster {
    /// Where clients reach a member, which says so soon after it has started.
    async fn url_of(&self, member: u64) -> Result<String, Error> {
        loop {
            let members = self.engine.members()?;
            let found = members.into_iter().find(|other| other.id == member);
            if let Some(url) = found.and_then(|member| member.client_urls.into_iter().next()) {
                return Ok(url);
            }
            tokio::time::sleep(URL_PERIOD).await;
        }
    }
}

/// The request as this replica passes it on, on behalf of the same user.
fn forwarded<T>(engine: &Engine, request: T) -> Request<T> {
    let mut request = auth::with_token(auth::passed_on(engine), request);
    request.metadata_mut().insert(FORWARDED, MetadataValue::from_static("1"));
    request
}

/// The leader's own status; where there is none because the connection broke or was too slow, the outcome is
/// unknown.
fn outcome(status: Status) -> Status {
    // Only a status that did not come over the wire has a source.
    if std::error::Error::source(&status).is_some() { Known::LeaderLost.into() } else { status }
}

#[tonic::async_trait]
impl cluster_server::Cluster for Cluster {
    async fn member_add(
        &self,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        about("peers", request.get_ref().peer_ur_ls.join(","));
        if let Some(mut leader) = self.leader(&request).await? {
            return leader.member_add(forwarded(&self.engine, request.into_inner())).await.map_err(outcome);
        }
        let request = request.into_inner();
        let added = system::Member {
            id: rand::random_range(1..=u64::MAX),
            name: String::new(),
            peer_addresses: peer_addresses(&request.peer_ur_ls)?,
            client_urls: Vec::new(),
            learner: request.is_learner,
            disk: 0,
        };
        let members = self.change(MemberChange::Add(added.clone())).await?;
        let header = self.header();
        Ok(Response::new(pb::MemberAddResponse { header, member: Some(member(added)), members }))
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        about("member", format_args!("{:x}", request.get_ref().id));
        if let Some(mut leader) = self.leader(&request).await? {
            return leader
                .member_remove(forwarded(&self.engine, request.into_inner()))
                .await
                .map_err(outcome);
        }
        let members = self.change(MemberChange::Remove(request.into_inner().id)).await?;
        Ok(Response::new(pb::MemberRemoveResponse { header: self.header(), members }))
    }

    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        about("member", format_args!("{:x}", request.get_ref().id));
        about("peers", request.get_ref().peer_ur_ls.join(","));
        if let Some(mut leader) = self.leader(&request).await? {
            return leader
                .member_update(forwarded(&self.engine, request.into_inner()))
                .await
                .map_err(outcome);
        }
        let request = request.into_inner();
        let change = MemberChange::UpdatePeers(request.id, peer_addresses(&request.peer_ur_ls)?);
        let members = self.change(change).await?;
        Ok(Response::new(pb::MemberUpdateResponse { header: self.header(), members }))
    }

    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        let consistency = consistency::of_flag(!request.into_inner().linearizable);
        let view = read(&self.engine, consistency).await?;
        let header = Some(header_at(&self.engine, view.progress()));
        let members = long_read(move || system::members(view.view())).await?;
        let members = members.into_iter().map(member).collect();
        Ok(Response::new(pb::MemberListResponse { header, members }))
    }

    async fn member_promote(
        &self,
        request: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        about("member", format_args!("{:x}", request.get_ref().id));
        if let Some(mut leader) = self.leader(&request).await? {
            return leader
                .member_promote(forwarded(&self.engine, request.into_inner()))
                .await
                .map_err(outcome);
        }
        let members = self.change(MemberChange::Promote(request.into_inner().id)).await?;
        Ok(Response::new(pb::MemberPromoteResponse { header: self.header(), members }))
    }
}

/// A member as etcd's clients see it: with URLs of peers, where Quoin has addresses.
fn member(member: system::Member) -> pb::Member {
    pb::Member {
        id: member.id,
        name: member.name,
        peer_ur_ls: member.peer_addresses.iter().map(|address| format!("http://{address}")).collect(),
        client_ur_ls: member.client_urls,
        is_learner: member.learner,
    }
}

/// The `host:port` of each URL. As in etcd there must be a URL, and each has a scheme (`http` or `https`), a
/// host, a port and no path.
fn peer_addresses(urls: &[String]) -> Result<Vec<String>, Error> {
    let addresses: Option<Vec<_>> = urls.iter().map(|url| peer_address(url)).collect();
    match addresses {
        Some(addresses) if !addresses.is_empty() => Ok(addresses),
        _ => Err(Known::BadMemberUrls.into()),
    }
}

fn peer_address(url: &str) -> Option<String> {
    let address = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    let address = address.strip_suffix('/').unwrap_or(address);
    let (host, port) = address.rsplit_once(':')?;
    let plain = !host.is_empty() && !host.contains(['/', '@', '?', '#']);
    (plain && port.parse::<u16>().is_ok_and(|port| port > 0)).then(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_forwarded_request_whose_connection_broke_has_an_unknown_outcome() {
        let broken = Status::from_error(Box::new(io::Error::from(io::ErrorKind::ConnectionReset)));
        assert_eq!(outcome(broken).message(), Known::LeaderLost.text());
        let refused = Status::from(Known::MemberNotFound);
        assert_eq!(outcome(refused).message(), Known::MemberNotFound.text());
    }

    #[test]
    fn peer_urls_are_urls_with_a_port_and_no_path() {
        let one = |url: &str| peer_addresses(&[url.to_owned()]).map_err(|error| error.to_string());
        let bad = Err("etcdserver: given member URLs are invalid".to_owned());
        assert_eq!(one("http://10.0.0.1:2380"), Ok(vec!["10.0.0.1:2380".to_owned()]));
        assert_eq!(one("https://[::1]:2380/"), Ok(vec!["[::1]:2380".to_owned()]));
        for url in [
            "10.0.0.1:2380",
            "http://10.0.0.1",
            "http://:2380",
            "http://a:b",
            "http://a/b:1",
            "",
            "http://a:0",
        ] {
            assert_eq!(one(url), bad, "{url}");
        }
        assert!(peer_addresses(&[]).is_err());
    }
}
