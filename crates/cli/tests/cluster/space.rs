//! What goes on while space is short: whatever frees some, in every face.

use crate::harness::{Clients, Cluster, PROGRAM, wait};
use crate::table::{build_base, path, quoin};
use anyhow::{Context, Result, ensure};
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quoin_proto::quoin::route::v1 as route;
use quoin_proto::quoin::route::v1::route_client::RouteClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

const LARGE: usize = 40;

fn put_of(key: impl Into<bytes::Bytes>, bytes: usize) -> etcd::PutRequest {
    etcd::PutRequest { key: key.into(), value: vec![7; bytes].into(), ..Default::default() }
}

fn delete_of(key: &str, range_end: &str) -> etcd::DeleteRangeRequest {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    etcd::DeleteRangeRequest { key, range_end, ..Default::default() }
}

fn txn_of(request: etcd::request_op::Request) -> etcd::TxnRequest {
    let success = vec![etcd::RequestOp { request: Some(request) }];
    etcd::TxnRequest { success, ..Default::default() }
}

async fn bytes_of(channel: &Channel) -> Result<i64> {
    Ok(MaintenanceClient::new(channel.clone()).status(etcd::StatusRequest {}).await?.into_inner().db_size)
}

/// It did nothing, so what was deleted and compacted came back to the disk when the tree pleased.
#[tokio::test(flavor = "multi_thread")]
async fn defragmenting_gives_the_space_of_what_was_deleted_back() -> Result<()> {
    let mut cluster = Cluster::new(PROGRAM, 1, &[])?;
    cluster.start_all()?;
    let channel = cluster.patient_channel(0).await?;
    let mut kv = KvClient::new(channel.clone());
    for number in 0..LARGE {
        kv.put(put_of(format!("k{number}"), 100_000)).await?;
    }
    let deleted = kv.delete_range(delete_of("k", "l")).await?.into_inner();
    let revision = deleted.header.context("a header")?.revision;
    kv.compact(etcd::CompactionRequest { revision, physical: false }).await?;
    let before = bytes_of(&channel).await?;
    ensure!(before > 2_000_000, "nothing to give back: {before} bytes");
    MaintenanceClient::new(channel.clone()).defragment(etcd::DefragmentRequest {}).await?;
    let after = bytes_of(&channel).await?;
    ensure!(after < 1_000_000, "{before} bytes before, {after} after");
    cluster.stop_all()
}

/// Whatever was written was refused, so the alarm could not be cleared by deleting.
#[tokio::test(flavor = "multi_thread")]
async fn under_the_alarm_every_face_deletes_and_none_grows() -> Result<()> {
    let mut cluster = Cluster::new(PROGRAM, 1, &[])?;
    cluster.start_all()?;
    let (endpoints, folder) = (cluster.endpoints(), tempfile::tempdir()?);
    let built = build_base(folder.path(), 'a')?;
    quoin(&["table", "publish", path(&built)?, "--activate", "--endpoints", &endpoints])?;
    let channel = cluster.patient_channel(0).await?;
    let (mut kv, mut lease) = (KvClient::new(channel.clone()), LeaseClient::new(channel.clone()));
    let mut rules = RouteClient::new(channel.clone());
    for key in ["a", "b", "c", "d", "e"] {
        kv.put(put_of(key, 10)).await?;
    }
    lease.lease_grant(etcd::LeaseGrantRequest { ttl: 600, id: 7 }).await?;
    let rule = |ip: &str| route::Rule { vni: 1, ip: ip.into(), group: "g".into(), ..Default::default() };
    let put_rules =
        || route::PutRequest { rules: vec![rule("10.0.0.1"), rule("10.0.0.2")], each_for_itself: false };
    rules.put(put_rules()).await?;

    let mut maintenance = MaintenanceClient::new(channel.clone());
    let alarm = |action: etcd::alarm_request::AlarmAction| etcd::AlarmRequest {
        action: action.into(),
        member_id: 0,
        alarm: etcd::AlarmType::Nospace.into(),
    };
    maintenance.alarm(alarm(etcd::alarm_request::AlarmAction::Activate)).await?;
    wait("the alarm", || async {
        let refused = kv.clone().put(put_of("a", 10)).await;
        refused.is_err_and(|status| status.code() == Code::ResourceExhausted)
    })
    .await?;
    let refused = |what: &str, answer: Result<(), Status>| {
        let code = answer.err().map(|status| status.code());
        ensure!(code == Some(Code::ResourceExhausted), "{what} under the alarm: {code:?}");
        Ok(())
    };
    let grows = txn_of(etcd::request_op::Request::RequestPut(put_of("a", 10)));
    refused("a transaction that puts", kv.txn(grows).await.map(drop))?;
    refused("a lease", lease.lease_grant(etcd::LeaseGrantRequest { ttl: 1, id: 8 }).await.map(drop))?;
    refused("rules", rules.put(put_rules()).await.map(drop))?;
    // What deletes a key of a table is one more record, until the next base.
    for change in [["table", "set", "t", "7=more"], ["table", "del", "t", "7"]] {
        let written = quoin(&[&change[..], &["--endpoints", &endpoints]].concat());
        let said = written.err().context("a key of a table under the alarm")?.to_string();
        ensure!(said.contains("space exceeded"), "{said}");
    }

    kv.delete_range(delete_of("a", "")).await.context("a key")?;
    kv.delete_range(delete_of("b", "d")).await.context("a range")?;
    let frees = txn_of(etcd::request_op::Request::RequestDeleteRange(delete_of("d", "")));
    kv.txn(frees).await.context("a transaction that deletes")?;
    lease.lease_revoke(etcd::LeaseRevokeRequest { id: 7 }).await.context("a lease")?;
    let key = route::RuleKey { vni: 1, ip: "10.0.0.1".into() };
    rules.delete(route::DeleteRequest { keys: vec![key], all_of: None }).await.context("a rule")?;
    let group = Some(route::delete_request::AllOf::Group("g".into()));
    rules.delete(route::DeleteRequest { keys: Vec::new(), all_of: group }).await.context("a group")?;
    quoin(&["table", "drop", "t", "--all", "--endpoints", &endpoints])?;
    let left = kv.range(etcd::RangeRequest { key: "a".into(), range_end: "z".into(), ..Default::default() });
    let left = left.await?.into_inner();
    ensure!(left.count == 1, "only one key was not deleted: {left:?}");
    let revision = left.header.context("a header")?.revision;
    kv.compact(etcd::CompactionRequest { revision, physical: false }).await.context("compaction")?;
    maintenance.alarm(alarm(etcd::alarm_request::AlarmAction::Deactivate)).await?;
    wait("the end of the alarm", || async { kv.clone().put(put_of("a", 10)).await }).await?;
    cluster.stop_all()
}
