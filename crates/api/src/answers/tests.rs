//! Clients that do and do not take their answers, over connections, against one replica.

use super::*;
use crate::testing::{settings, start};
use quoin_engine::{Limits, Settings};
use quoin_library::{Library, TableConfig};
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::{
    PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, request_op::Request as Step,
};
use std::net::TcpListener;
use std::time::Duration;
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// Nothing that a test waits for takes longer, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// All large answers together.
const BYTES_MAX: usize = 1_500_000;

/// Runs `test` against the gRPC port of a replica.
fn with_node<T: Future<Output = ()>>(test: impl FnOnce(Engine, Endpoint) -> T) {
    let runtime = Runtime::new().unwrap();
    let limits = Limits { response_bytes_in_flight_max: BYTES_MAX, ..Limits::default() };
    let (_folder, running) = start(&runtime, Settings { limits, ..settings() });
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (clients, library) = (listener(), Arc::new(Library::new(TableConfig::default())));
    // With a window as small as clients have unless they ask for another.
    let address = format!("http://{}", clients.local_addr().unwrap());
    let endpoint = Endpoint::from_shared(address).unwrap().initial_stream_window_size(65_535);
    runtime.block_on(async {
        let engine = running.engine();
        let (operators, redis) = (listener(), listener());
        let ports = crate::Ports {
            clients,
            operators,
            redis,
            keys: None,
            paths: crate::Paths::default(),
            auth: Default::default(),
            audit: None,
        };
        let servers = crate::serve(engine.clone(), library, ports).unwrap();
        tokio::time::timeout(PATIENCE, test(engine, endpoint)).await.unwrap();
        servers.stop().await;
    });
    running.stop();
}

async fn connect(endpoint: &Endpoint) -> KvClient<Channel> {
    KvClient::new(endpoint.connect().await.unwrap())
}

async fn fill(kv: &mut KvClient<Channel>) {
    for (key, bytes) in [("k1", 300_000), ("k2", 300_000), ("k3", 300_000), ("small", 100)] {
        let put = PutRequest { key: key.into(), value: vec![7; bytes].into(), ..PutRequest::default() };
        kv.put(put).await.unwrap();
    }
}

fn range(key: &'static str, end: &'static str) -> RangeRequest {
    RangeRequest { key: key.into(), range_end: end.into(), ..RangeRequest::default() }
}

fn txn(range: RangeRequest) -> TxnRequest {
    let step = RequestOp { request: Some(Step::RequestRange(range)) };
    TxnRequest { success: vec![step], ..TxnRequest::default() }
}

/// Asks for all large values, and takes nothing but the head of the answer.
async fn ask(endpoint: &Endpoint) -> Streaming<RangeResponse> {
    let mut grpc = Grpc::new(endpoint.connect().await.unwrap());
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<RangeRequest, RangeResponse>::default();
    let path = PathAndQuery::from_static("/etcdserverpb.KV/Range");
    grpc.server_streaming(Request::new(range("k", "l")), path, codec).await.unwrap().into_inner()
}

/// Sixty clients that asked for 56 MB each and read nothing made a node take 2.7 GB.
#[test]
fn answers_that_nobody_takes_leave_no_room_for_more() {
    with_node(async |_, endpoint| {
        let mut kv = connect(&endpoint).await;
        fill(&mut kv).await;
        let untaken = ask(&endpoint).await;
        let refused: [Result<(), Status>; 3] = [
            kv.range(range("k", "l")).await.map(drop),
            kv.txn(txn(range("k", "l"))).await.map(drop),
            kv.range(range("k", "\0")).await.map(drop),
        ];
        for status in refused.map(|refused| refused.expect_err("there is no room")) {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
            assert!(status.message().contains("limits.response_bytes_in_flight_max"), "{status:?}");
        }
        assert_eq!(kv.range(range("small", "")).await.unwrap().into_inner().count, 1);
        assert_eq!(kv.range(range("k1", "")).await.unwrap().into_inner().count, 1);
        assert_eq!(kv.range(range("s", "t")).await.unwrap().into_inner().count, 1);
        drop(untaken);
    });
}

/// They would have kept everybody out for as long as they liked.
#[test]
fn a_client_that_takes_nothing_of_its_answer_is_given_up() {
    with_node(async |_, endpoint| {
        let mut kv = connect(&endpoint).await;
        fill(&mut kv).await;
        let mut untaken = ask(&endpoint).await;
        assert!(kv.range(range("k", "l")).await.is_err());
        // Each is refused as long as there is no room.
        while kv.range(range("k", "l")).await.is_err() {}
        let status = untaken.message().await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    });
}

#[test]
fn a_large_answer_arrives_whole_and_leaves_its_room_to_the_next() {
    with_node(async |_, endpoint| {
        let mut kv = connect(&endpoint).await;
        fill(&mut kv).await;
        for _ in 0..5 {
            let answer = ask(&endpoint).await.message().await.unwrap().unwrap();
            let bytes: Vec<usize> = answer.kvs.iter().map(|kv| kv.value.len()).collect();
            assert_eq!((bytes, answer.count), (vec![300_000; 3], 3));
        }
    });
}

/// Each such transaction was run by every replica, one after the other: while sixty read 56 MB each, another
/// client's put waited for eleven seconds.
#[test]
fn a_transaction_that_only_reads_takes_no_place_in_the_log() {
    with_node(async |engine, endpoint| {
        let mut kv = connect(&endpoint).await;
        fill(&mut kv).await;
        let applied = engine.metrics().commands_applied.get();
        for _ in 0..10 {
            let answer = kv.txn(txn(range("small", ""))).await.unwrap().into_inner();
            assert_eq!((answer.succeeded, answer.header.unwrap().revision), (true, 5));
        }
        assert_eq!(engine.metrics().commands_applied.get(), applied);
    });
}

#[tokio::test]
async fn what_an_answer_holds_is_given_back_with_its_body() {
    let budget = Budget::of_bytes(150_000);
    let share = budget.share();
    assert!(share.hold(140_000));
    let body = holding(tonic::body::Body::empty(), Held::of(share));
    assert!(!budget.share().hold(100_000), "its client has not taken it");
    drop(body);
    assert!(budget.share().hold(100_000));
}
