//! The rules of a run. In etcd each is a key, `rules/GROUP/VNI/IP`, with the rule's message as its value.

use super::options::Api;
use crate::client::ANSWER_BYTES_MAX;
use crate::client::Channel;
use anyhow::Result;
use bytes::Bytes;
use prost::Message;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::route_client::RouteClient;
use std::ops::Range;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// The group of all rules.
pub(super) const GROUP: &str = "bench";
/// Number of networks.
const NETWORKS: u64 = 16;
/// Rules per message while the table is filled.
const FILL_BATCH: u64 = 2_000;
/// Rules per transaction while etcd is filled.
const FILL_TXN: u64 = 100;

/// Network and address of a rule.
pub(super) fn place(number: u64) -> (u32, String) {
    let [.., a, b, c] = number.to_be_bytes();
    ((number % NETWORKS) as u32, format!("10.{a}.{b}.{c}"))
}

pub(super) fn rule(number: u64, user_data: Bytes) -> pb::Rule {
    let [.., a, b, c] = number.to_be_bytes();
    let host = number % 1000;
    let (vni, ip) = place(number);
    pb::Rule {
        vni,
        ip,
        mac: format!("02:00:00:{a:02x}:{b:02x}:{c:02x}"),
        host_ip: format!("192.168.{}.{}", host / 250, host % 250),
        host_mac: format!("02:01:00:00:{:02x}:{:02x}", host / 250, host % 250),
        group: GROUP.to_owned(),
        revision: 0,
        user_data,
    }
}

/// The key of a rule in etcd.
pub(super) fn key(number: u64) -> Bytes {
    let (vni, ip) = place(number);
    Bytes::from(format!("rules/{GROUP}/{vni}/{ip}"))
}

/// The range of all keys in etcd: its first key and its end.
pub(super) fn range() -> (Bytes, Bytes) {
    (Bytes::from(format!("rules/{GROUP}/")), Bytes::from(format!("rules/{GROUP}0")))
}

pub(super) fn etcd_put(number: u64, user_data: Bytes) -> etcd::PutRequest {
    let value = rule(number, user_data).encode_to_vec().into();
    etcd::PutRequest { key: key(number), value, ..etcd::PutRequest::default() }
}

/// One transaction that writes all of `numbers`.
pub(super) fn etcd_txn(numbers: Range<u64>, user_data: &Bytes) -> etcd::TxnRequest {
    let put = |number| etcd::RequestOp {
        request: Some(etcd::request_op::Request::RequestPut(etcd_put(number, user_data.clone()))),
    };
    etcd::TxnRequest { success: numbers.map(put).collect(), ..etcd::TxnRequest::default() }
}

pub(super) fn client(channel: &Channel) -> RouteClient<Channel> {
    RouteClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// Writes `rules` rules.
pub(super) async fn fill(channel: &Channel, api: Api, rules: u64) -> Result<()> {
    if api == Api::Etcd {
        let mut kv = KvClient::new(channel.clone());
        for from in (0..rules).step_by(FILL_TXN as usize) {
            kv.txn(etcd_txn(from..rules.min(from + FILL_TXN), &Bytes::new())).await?;
        }
        return Ok(());
    }
    let (messages, outgoing) = mpsc::channel(4);
    let writing = tokio::spawn(async move {
        for from in (0..rules).step_by(FILL_BATCH as usize) {
            let numbers = from..rules.min(from + FILL_BATCH);
            let batch = numbers.map(|number| rule(number, Bytes::new())).collect();
            if messages.send(pb::PutRequest { rules: batch, each_for_itself: false }).await.is_err() {
                return;
            }
        }
    });
    client(channel).put_stream(ReceiverStream::new(outgoing)).await?;
    writing.await?;
    Ok(())
}
