//! The transcoding by itself, and the gateway on an engine.

use super::*;
use crate::ledger::Book;
use crate::life::Life;
use crate::testing::alone;
use axum::body::to_bytes;
use axum::http::Version;
use prost::Message;
use quoin_library::{Library, TableConfig};
use quoin_proto::etcdserverpb as pb;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokio_stream::StreamExt;
use tower_service::Service;

fn schema() -> Schema {
    Schema::of(quoin_proto::FILE_DESCRIPTOR_SET, PACKAGES)
}

fn decoded<M: Message + Default>(rpc: &str, text: &str) -> Result<M, String> {
    let schema = schema();
    let of = schema.method(rpc).unwrap().input;
    let message = decode::decode(&schema, of, text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(M::decode(&message[..]).unwrap())
}

fn encoded(rpc: &str, message: &impl Message) -> Value {
    let schema = schema();
    let of = schema.method(rpc).unwrap().output;
    let mut text = Vec::new();
    encode::encode(&schema, of, &message.encode_to_vec(), &mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn every_path_stands_for_an_rpc_and_every_rpc_but_one_has_a_path() {
    let schema = schema();
    let reached: BTreeSet<_> = PATHS.iter().map(|(_, rpc)| *rpc).collect();
    let known: BTreeSet<_> = schema.methods().collect();
    assert!(reached.is_subset(&known), "{:?}", reached.difference(&known));
    // etcd 3.6 has no path for it.
    assert_eq!(known.difference(&reached).collect::<Vec<_>>(), [&"/etcdserverpb.KV/RangeStream"]);
    let paths: BTreeSet<_> = PATHS.iter().map(|(path, _)| *path).collect();
    assert_eq!(paths.len(), PATHS.len());
}

#[test]
fn the_documentation_lists_the_paths() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/etcd.md");
    let page = std::fs::read_to_string(page).unwrap();
    let listed: Vec<_> =
        page.lines().filter(|line| line.starts_with("| `/v3/") && line.contains("pb.")).collect();
    let row = |(path, rpc): &(&str, &str)| format!("| `{path}` | `{}` |", &rpc[1..]);
    assert_eq!(listed, PATHS.iter().map(row).collect::<Vec<_>>());
}

/// Calls that answer otherwise than etcd's where clients may notice, and in what. What all of them have in common is in
/// docs/etcd.md.
const DIFFER: &[(&str, &str)] = &[
    ("KV/Range", "answers within `limits.response_bytes_max`"),
    ("KV/Put", "keys and values have [bounds](kv.md#bounds)"),
    ("KV/Compact", "needs a right of its own while authentication is on"),
    ("Watch/Watch", "a right that is taken away ends it"),
    ("Lease/LeaseGrant", "needs a user while authentication is on"),
    ("Lease/LeaseKeepAlive", "needs a user while authentication is on"),
    ("Lease/LeaseLeases", "needs a user while authentication is on; lists all leases"),
    ("Cluster/MemberAdd", "learners at any time, voters as etcd"),
    ("Cluster/MemberList", "the header is whole"),
    ("Maintenance/Alarm", "the header is whole; needs a right of its own while authentication is on"),
    ("Maintenance/Defragment", "the header is whole; the member goes on serving"),
    ("Maintenance/Hash", "of Quoin's own state: equal on equal replicas, not equal to etcd's"),
    ("Maintenance/HashKV", "of Quoin's own state: equal on equal replicas, not equal to etcd's"),
    ("Maintenance/Snapshot", "keys, leases and history, as etcd's file, without users and roles"),
    ("Maintenance/Downgrade", "there is no version to go back to"),
    ("Auth/Authenticate", "tokens outlive members and leaders, and end after five minutes; no JWT"),
    ("Lock/Lock", "errors have their own codes"),
    ("Lock/Unlock", "errors have their own codes"),
    ("Election/Campaign", "errors have their own codes"),
    ("Election/Proclaim", "errors have their own codes"),
    ("Election/Leader", "errors have their own codes"),
    ("Election/Observe", "errors have their own codes"),
    ("Election/Resign", "errors have their own codes"),
];

/// The calls of etcd 3.7, by service.
const ETCD: &[(&str, &str)] = &[
    ("etcdserverpb.KV", "Range RangeStream Put DeleteRange Txn Compact"),
    ("etcdserverpb.Watch", "Watch"),
    ("etcdserverpb.Lease", "LeaseGrant LeaseRevoke LeaseKeepAlive LeaseTimeToLive LeaseLeases"),
    ("etcdserverpb.Cluster", "MemberAdd MemberRemove MemberUpdate MemberList MemberPromote"),
    ("etcdserverpb.Maintenance", "Alarm Status Defragment Hash HashKV Snapshot MoveLeader Downgrade"),
    (
        "etcdserverpb.Auth",
        "AuthEnable AuthDisable AuthStatus Authenticate UserAdd UserGet UserList UserDelete UserChangePassword \
         UserGrantRole UserRevokeRole RoleAdd RoleGet RoleList RoleDelete RoleGrantPermission RoleRevokePermission",
    ),
    ("v3lockpb.Lock", "Lock Unlock"),
    ("v3electionpb.Election", "Campaign Proclaim Leader Observe Resign"),
];

#[test]
fn the_page_compares_every_call_with_the_services() {
    let schema = schema();
    let mut served: BTreeSet<&str> = schema.methods().collect();
    let mut page = String::from("| service | call | |\n|---|---|---|\n");
    let mut differ: BTreeSet<&str> = DIFFER.iter().map(|(call, _)| *call).collect();
    for (service, calls) in ETCD {
        for call in calls.split_ascii_whitespace() {
            let is_served = served.remove(&*format!("/{service}/{call}"));
            let short = service.rsplit('.').next().unwrap_or_default();
            let known = DIFFER.iter().find(|(name, _)| *name == format!("{short}/{call}"));
            let what = match known {
                _ if !is_served => "absent".to_owned(),
                Some((name, what)) => {
                    differ.remove(name);
                    format!("differs: {what}")
                }
                None => "same".to_owned(),
            };
            page += &format!("| `{service}` | {call} | {what} |\n");
        }
    }
    assert!(served.is_empty() && differ.is_empty(), "not etcd's, or absent: {served:?} {differ:?}");
    crate::testing::check_page("docs/etcd.md", "rpcs", &page);
}

#[test]
fn requests_are_read_as_etcds_gateway_reads_them() {
    const TXN: &str = "/etcdserverpb.KV/Txn";
    let text = r#"{"compare": [{"result": "GREATER", "target": 1, "key": "Zm9v", "createRevision": "0"},
        {"target": "VALUE", "key": "_-8", "value": null, "range_end": "AA"}], "unknown": [{"a": 1}],
        "success": [{"requestPut": {"key": "Zm9v", "value": "", "lease": -3, "prev_kv": true}}], "failure": null}"#;
    let txn: pb::TxnRequest = decoded(TXN, text).unwrap();
    let [first, second] = &txn.compare[..] else { panic!("{txn:?}") };
    assert_eq!((first.result, first.target, &first.key[..]), (1, 1, &b"foo"[..]));
    assert_eq!(first.target_union, Some(pb::compare::TargetUnion::CreateRevision(0)), "zero is a choice too");
    assert_eq!((&second.key[..], &second.range_end[..]), (&b"\xff\xef"[..], &b"\0"[..]));
    assert_eq!(second.target_union, None);
    let Some(pb::request_op::Request::RequestPut(put)) = &txn.success[0].request else { panic!("{txn:?}") };
    assert_eq!((put.lease, put.prev_kv), (-3, true));
    let range: pb::RangeRequest =
        decoded("/etcdserverpb.KV/Range", r#"{"limit":1e3,"revision":"12","sort_order":"DESCEND"}"#).unwrap();
    assert_eq!((range.limit, range.revision, range.sort_order), (1000, 12, 2));
}

/// Each of these names what is wrong.
#[test]
fn what_is_malformed_is_refused() {
    for (text, named) in [
        (r#"{"key": 1}"#, "key"),
        (r#"{"key": "%"}"#, "base64"),
        (r#"{"limit": "many"}"#, "limit"),
        (r#"{"limit": 1.5}"#, "limit"),
        (r#"{"limit": "9223372036854775808"}"#, "limit"),
        (r#"{"serializable": "true"}"#, "serializable"),
        (r#"{"sort_order": "UP"}"#, "sort_order"),
        (r#"{"key": {}}"#, "key"),
        (r#"{"key"}"#, "expected"),
        ("[]", "an object"),
    ] {
        let refused = decoded::<pb::RangeRequest>("/etcdserverpb.KV/Range", text).unwrap_err();
        assert!(refused.contains(named), "{text}: {refused}");
    }
    let nested = format!("{}{}", r#"{"success":[{"request_txn":"#.repeat(200), "}]}".repeat(200));
    assert!(decoded::<pb::TxnRequest>("/etcdserverpb.KV/Txn", &nested).unwrap_err().contains("recursion"));
    let null = r#"{"compare":[null]}"#;
    assert!(decoded::<pb::TxnRequest>("/etcdserverpb.KV/Txn", null).unwrap_err().contains("null"));
}

#[test]
fn answers_are_written_as_etcds_gateway_writes_them() {
    let header = pb::ResponseHeader { cluster_id: u64::MAX, revision: -1, ..Default::default() };
    let kv = |key: &'static [u8], version| quoin_proto::mvccpb::KeyValue {
        key: key.into(),
        version,
        ..Default::default()
    };
    let range = pb::RangeResponse {
        header: Some(header),
        kvs: vec![kv(b"\xff\xfe\xfd", 3), kv(b"", 0)],
        more: true,
        count: 0,
    };
    let expected = json!({
        "header": { "cluster_id": "18446744073709551615", "revision": "-1" },
        "kvs": [{ "key": "//79", "version": "3" }, {}],
        "more": true,
    });
    assert_eq!(encoded("/etcdserverpb.KV/Range", &range), expected);
    let alarms = vec![pb::AlarmMember { member_id: 7, alarm: 1 }, pb::AlarmMember { member_id: 0, alarm: 9 }];
    let alarms = pb::AlarmResponse { header: None, alarms };
    let expected = json!({ "alarms": [{ "memberID": "7", "alarm": "NOSPACE" }, { "alarm": 9 }] });
    assert_eq!(encoded("/etcdserverpb.Maintenance/Alarm", &alarms), expected);
    let members = pb::MemberListResponse {
        header: None,
        members: vec![pb::Member {
            id: 1,
            name: "a\"b".into(),
            peer_ur_ls: vec!["x".into(), "y".into()],
            is_learner: true,
            ..Default::default()
        }],
    };
    let member = json!({ "ID": "1", "name": "a\"b", "peerURLs": ["x", "y"], "isLearner": true });
    assert_eq!(encoded("/etcdserverpb.Cluster/MemberList", &members), json!({ "members": [member] }));
    let hash = pb::HashResponse { header: None, hash: u32::MAX };
    assert_eq!(encoded("/etcdserverpb.Maintenance/Hash", &hash), json!({ "hash": u32::MAX }));
}

/// The gateway over an engine.
struct Served {
    pages: Router,
    _life: tokio::sync::watch::Sender<bool>,
}

impl Served {
    fn new(engine: &Engine, budget: Budget) -> Self {
        let (stop, life) = tokio::sync::watch::channel(false);
        let (library, book) = (Arc::new(Library::new(TableConfig::default())), Book::start(engine.clone()));
        let services = grpc::routes(
            engine,
            &crate::auth::Gate::new(engine.clone(), Default::default(), None),
            &library,
            &book,
            &Life(life),
            &crate::neighbours::Neighbours::default(),
        )
        .unwrap();
        Self { pages: routes(engine, services, budget), _life: stop }
    }

    async fn send(&mut self, request: Request) -> Response {
        self.pages.call(request).await.unwrap()
    }

    async fn post(&mut self, path: &str, body: impl Into<Body>) -> Response {
        self.send(Request::post(path).body(body.into()).unwrap()).await
    }

    async fn ask(&mut self, path: &str, body: impl Into<Body>) -> (u16, Value) {
        let response = self.post(path, body).await;
        let status = response.status().as_u16();
        let text = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&text).unwrap())
    }
}

fn with_gateway<T: Future>(budget: usize, test: impl FnOnce(Engine, Served) -> T) -> T::Output {
    alone(|engine| async move {
        let served = Served::new(&engine, Budget::of_bytes(budget));
        test(engine, served).await
    })
}

#[test]
fn a_call_is_answered_by_the_services_that_grpc_reaches() {
    with_gateway(1 << 20, |_, mut served| async move {
        let (status, put) = served.ask("/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"} ignored"#).await;
        assert_eq!((status, &put["header"]["revision"]), (200, &json!("2")));
        let (_, range) = served.ask("/v3/kv/range", r#"{"key":"Zm9v"}"#).await;
        let kv = json!({ "key": "Zm9v", "value": "YmFy", "create_revision": "2", "mod_revision": "2", "version": "1" });
        assert_eq!((&range["kvs"], &range["count"]), (&json!([kv]), &json!("1")));
        let (status, refused) = served.ask("/v3/kv/range", "").await;
        let text = "etcdserver: key is not provided";
        assert_eq!(status, 400);
        assert_eq!(refused, json!({ "error": text, "code": 3, "message": text, "details": [] }));
        let (status, refused) = served.ask("/v3/lease/revoke", r#"{"ID":"9"}"#).await;
        assert_eq!((status, &refused["code"]), (404, &json!(5)));
        assert_eq!(served.ask("/v3/kv/put", r#"{"key":1}"#).await.0, 400);
        assert_eq!(served.ask("/v3/none", "{}").await.0, 404);
        let get = Request::get("/v3/kv/range").body(Body::empty()).unwrap();
        assert_eq!(served.send(get).await.status().as_u16(), 405);
    });
}

/// With TLS, curl and others choose HTTP/2 by themselves, and were all answered as gRPC's clients are.
#[test]
fn http_2_is_not_grpcs_alone() {
    with_gateway(1 << 20, |_, mut served| async move {
        let body = Body::from(r#"{"key":"Zm9v"}"#);
        let request = Request::post("/v3/kv/range").version(Version::HTTP_2).body(body).unwrap();
        let response = served.send(request).await;
        assert_eq!(response.status().as_u16(), 200);
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        assert!(body.starts_with(b"{\"header\":"), "{body:?}");
    });
}

#[test]
fn a_grpc_call_of_an_unknown_service_is_unimplemented() {
    with_gateway(1 << 20, |_, mut served| async move {
        let request = Request::post("/none.None/Call").version(Version::HTTP_2);
        let request =
            request.header(header::CONTENT_TYPE, "application/grpc+proto").body(Body::empty()).unwrap();
        let response = served.send(request).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["grpc-status"]),
            (200, &"12".parse().unwrap())
        );
    });
}

/// It kept its place in the queue, and got the lock.
#[test]
fn a_client_that_leaves_waits_for_no_lock() {
    with_gateway(1 << 20, |_, mut served| async move {
        for lease in [7, 8] {
            served.ask("/v3/lease/grant", format!("{{\"TTL\":600,\"ID\":{lease}}}")).await;
        }
        assert_eq!(served.ask("/v3/lock/lock", r#"{"name":"bG9jaw==","lease":7}"#).await.0, 200);
        let (pieces, rest) = tokio::sync::mpsc::channel::<Result<&str, axum::BoxError>>(2);
        pieces.send(Ok(r#"{"name":"bG9jaw==","lease":8}"#)).await.unwrap();
        pieces.send(Err("the connection is closed".into())).await.unwrap();
        let body = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(rest));
        assert_eq!(served.ask("/v3/lock/lock", body).await.0, 408);
    });
}

/// A web page could write through the browser of somebody inside the network: no preflight asks about a form's POST.
#[test]
fn pages_of_other_origins_reach_nothing() {
    with_gateway(1 << 20, |_, mut served| async move {
        for (origin, status) in [("http://evil.example", 403), ("null", 403), ("http://here:2379", 200)] {
            let request = Request::post("/v3/kv/put").header("host", "here:2379").header("origin", origin);
            let request = request.body(r#"{"key":"Zm9v"}"#.into()).unwrap();
            assert_eq!(served.send(request).await.status().as_u16(), status, "{origin}");
        }
    });
}

#[test]
fn a_stream_gives_a_line_for_each_answer_and_ends_with_its_client() {
    with_gateway(1 << 20, |engine, mut served| async move {
        let create = r#"{"create_request":{"key":"Zm9v"}}"#;
        let response = served.post("/v3/watch", create).await;
        assert_eq!(response.status().as_u16(), 200);
        let mut lines = response.into_body().into_data_stream();
        let mut line = async || -> Value {
            let line = lines.next().await.unwrap().unwrap();
            assert!(line.ends_with(b"\n"));
            serde_json::from_slice(&line).unwrap()
        };
        assert_eq!(line().await["result"]["created"], true);
        served.ask("/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#).await;
        assert_eq!(line().await["result"]["events"][0]["kv"]["value"], "YmFy");
        served.ask("/v3/kv/deleterange", r#"{"key":"Zm9v"}"#).await;
        assert_eq!(line().await["result"]["events"][0]["type"], "DELETE");
        let watched = engine.hub().watchers();
        drop(lines);
        let ended = async {
            while engine.hub().watchers() >= watched {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), ended).await.expect("the watch has ended");
    });
}

#[test]
fn a_lease_is_kept_alive_by_a_stream_of_any_pieces() {
    with_gateway(1 << 20, |_, mut served| async move {
        served.ask("/v3/lease/grant", r#"{"TTL":60,"ID":7}"#).await;
        let pieces = [r#"{"ID":"#, r#"7}{"ID":"8"}"#, "\n"];
        let body = Body::from_stream(tokio_stream::iter(pieces.map(Ok::<_, axum::BoxError>)));
        let text =
            to_bytes(served.post("/v3/lease/keepalive", body).await.into_body(), 1 << 20).await.unwrap();
        let ttls: Vec<_> = String::from_utf8(text.to_vec())
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["result"]["TTL"].clone())
            .collect();
        assert_eq!(ttls, [json!("60"), Value::Null]);
    });
}

#[test]
fn a_body_is_bounded_and_charged_and_given_up() {
    with_gateway(1000, |engine, mut served| async move {
        let most = grpc::request_bytes_max(&engine) * TEXT_PER_MESSAGE;
        let endless = std::iter::once("{\"key\":\"").chain(std::iter::repeat_n("AAAAAAAA", most / 8));
        let body = Body::from_stream(tokio_stream::iter(endless.map(Ok::<_, axum::BoxError>)));
        let (status, refused) = served.ask("/v3/kv/put", body).await;
        assert_eq!((status, &refused["code"]), (429, &json!(8)));
        // Another holds what there is.
        let (_kept, rest) = tokio::sync::mpsc::channel::<Result<Vec<u8>, axum::BoxError>>(1);
        let begun = tokio_stream::once(Ok(vec![b'{'; 900]));
        let rest = begun.chain(tokio_stream::wrappers::ReceiverStream::new(rest));
        let stalled = served.ask("/v3/kv/put", Body::from_stream(rest)).await;
        assert_eq!(stalled.0, 504, "{stalled:?}");
        // It gave back its share.
        let text = format!("{{\"key\":\"{}\"}}", "A".repeat(800));
        assert_eq!(served.ask("/v3/kv/put", text).await.0, 200);
    });
}
