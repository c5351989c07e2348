//! Every call of every wire, by whoever asks. The calls come from the registries: the texts of the services, the OpenAPI
//! document and the tables of paths, so that a new one without a rule fails here.

use super::rules::{self, CALLS, Need, PAGES};
use crate::gateway::call::Raw;
use crate::testing::{settings, start};
use crate::{Ports, Servers, serve};
use axum::http::uri::PathAndQuery;
use bytes::Bytes;
use prost::Message;
use quoin_core::auth::{AddUser, rights};
use quoin_core::auth::{FaceGrant, Grant, KeyRange, Operation, Part, RoleGrant, Scope, UserRole};
use quoin_engine::{Engine, Running};
use quoin_library::{Library, TableConfig};
use quoin_proto::etcdserverpb as pb;
use quoin_proto::etcdserverpb::auth_client::AuthClient;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// What must appear in nothing that a node says.
const PLANTED: [&str; 3] = ["planted-root-pw", "planted-ann-pw", "planted-new-pw"];

/// A node with the users `root` (who has the role), `ann` (who has the role `r`, which grants nothing at first), `bob`
/// (who has none) and `cert` (who has no password); authentication is off.
struct World {
    runtime: Runtime,
    _folder: tempfile::TempDir,
    running: Option<Running>,
    servers: Option<Servers>,
    engine: Engine,
    grpc: SocketAddr,
    http: SocketAddr,
    redis: SocketAddr,
}

impl World {
    fn new() -> Self {
        // Some tests ask with wrong passwords, for every call.
        Self::with(crate::AuthSettings { failed_passwords_max: 0, ..Default::default() }, None)
    }

    fn with(auth: crate::AuthSettings, audit: Option<crate::Audit>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (folder, running) = start(&runtime, settings());
        let engine = running.engine();
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (clients, operators, redis) = (listen(), listen(), listen());
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        let (grpc, http, resp) = (address(&clients), address(&operators), address(&redis));
        let entered = runtime.enter();
        let library = Arc::new(Library::new(TableConfig::default()));
        let ports = Ports { clients, operators, redis, keys: None, paths: Default::default(), auth, audit };
        let servers = serve(engine.clone(), library, ports).unwrap();
        drop(entered);
        let world = Self {
            runtime,
            _folder: folder,
            running: Some(running),
            servers: Some(servers),
            engine,
            grpc,
            http,
            redis: resp,
        };
        world.runtime.block_on(async {
            let mut client = world.auth().await;
            for (name, password, no_password) in [
                ("root", PLANTED[0], false),
                ("ann", PLANTED[1], false),
                ("bob", "other", false),
                ("cert", "", true),
            ] {
                let (name, password) = (name.to_string(), password.to_string());
                let options = Some(quoin_proto::authpb::UserAddOptions { no_password });
                let add = pb::AuthUserAddRequest { name, password, options, ..Default::default() };
                client.user_add(add).await.unwrap();
            }
            client.role_add(pb::AuthRoleAddRequest { name: "r".into() }).await.unwrap();
        });
        for (user, role) in [("root", "root"), ("ann", "r")] {
            world.apply(Operation::GrantRole(UserRole { user: user.into(), role: role.into() }));
        }
        world
    }

    async fn auth(&self) -> AuthClient<Channel> {
        AuthClient::new(self.channel().await)
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.grpc)).unwrap().connect().await.unwrap()
    }

    /// Changes users and roles past all wires, as whoever may.
    fn apply(&self, operation: Operation) {
        let command = operation.into_command();
        let revision = self.engine.policy().revision();
        let applied = quoin_engine::admission::admitted(revision, self.engine.propose(command));
        match self.runtime.block_on(applied).unwrap() {
            quoin_core::Reply::Auth(reply) => reply.result.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn enable(&self) {
        self.runtime.block_on(async {
            self.auth().await.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
        });
    }

    fn token(&self, name: &str, password: &str) -> Result<String, Status> {
        self.runtime.block_on(async {
            let (name, password) = (name.to_string(), password.to_string());
            let asked = self.auth().await.authenticate(pb::AuthenticateRequest { name, password }).await;
            Ok(asked?.into_inner().token)
        })
    }

    fn grant(&self, scope: Scope) {
        self.apply(Operation::Grant(RoleGrant {
            role: "r".into(),
            grant: Some(Grant { scope: Some(scope) }),
        }));
    }

    fn revoke(&self, scope: Scope) {
        self.apply(Operation::Revoke(RoleGrant {
            role: "r".into(),
            grant: Some(Grant { scope: Some(scope) }),
        }));
    }

    /// Calls a method with one message; returns the code and text of its end, or of its first answer.
    fn call(&self, channel: &Channel, path: &str, token: Option<&str>, message: Bytes) -> (Code, String) {
        self.runtime.block_on(async {
            let mut client = Grpc::new(channel.clone());
            client.ready().await.unwrap();
            let mut request = Request::new(tokio_stream::once(message));
            if let Some(token) = token {
                request.metadata_mut().insert("token", token.parse().unwrap());
            }
            let path = PathAndQuery::try_from(path).unwrap();
            let answered =
                async { client.streaming(request, path, Raw).await?.into_inner().message().await.map(drop) };
            // Some streams say nothing as long as nothing happens: then they were let in.
            match tokio::time::timeout(std::time::Duration::from_secs(2), answered).await {
                Ok(Ok(())) | Err(_) => (Code::Ok, String::new()),
                Ok(Err(status)) => (status.code(), status.message().to_owned()),
            }
        })
    }

    /// Sends a request over HTTP/1; returns the status, and the whole answer.
    fn page(&self, address: SocketAddr, method: &str, path: &str, authorization: &str) -> (u16, String) {
        self.runtime.block_on(async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let credentials = match authorization {
                "" => String::new(),
                word => format!("authorization: {word}\r\n"),
            };
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-type: application/json\r\n\
                 {credentials}content-length: 2\r\n\r\n{{}}"
            );
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = vec![0; 64 << 10];
            // Some answers do not end.
            let read = stream.read(&mut answer).await.unwrap();
            let text = String::from_utf8_lossy(&answer[..read]).into_owned();
            (text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0), text)
        })
    }

    /// Sends lines over RESP on one connection; returns the first line of each answer.
    fn lines(&self, lines: &[&str]) -> Vec<String> {
        self.runtime.block_on(async {
            let mut stream = TcpStream::connect(self.redis).await.unwrap();
            let mut answers = Vec::new();
            for line in lines {
                stream.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
                let mut answer = vec![0; 64 << 10];
                let read = stream.read(&mut answer).await.unwrap();
                let text = String::from_utf8_lossy(&answer[..read]).into_owned();
                answers.push(text.lines().next().unwrap_or_default().to_owned());
            }
            answers
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(servers) = self.servers.take() {
            self.runtime.block_on(servers.stop());
        }
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }
}

fn part(part: Part, rights: u32) -> Scope {
    Scope::Part(FaceGrant { part: part as i32, rights })
}

fn keys(rights: i32, key: &'static str, end: &'static str) -> Scope {
    Scope::Keys(KeyRange { rights, key: key.into(), range_end: end.into() })
}

/// All methods of the services' texts.
fn methods(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            methods(&path, found);
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "proto") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let (mut package, mut service) = ("", "");
        for line in text.lines() {
            let words: Vec<&str> = line.split([' ', '(', ';', '{']).filter(|word| !word.is_empty()).collect();
            match words[..] {
                ["package", name, ..] => package = name,
                ["service", name, ..] => service = name,
                ["rpc", name, ..] => {
                    found.insert(format!("/{package}.{service}/{name}"));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn every_rpc_has_a_rule() {
    let mut found = BTreeSet::new();
    methods(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto"), &mut found);
    let ruled: BTreeSet<String> = CALLS.iter().map(|(path, _)| (*path).to_string()).collect();
    assert_eq!(ruled.len(), CALLS.len(), "a rule stands twice");
    assert_eq!(ruled, found);
}

#[test]
fn every_page_has_a_rule() {
    let document: serde_json::Value = serde_json::to_value(crate::http::openapi()).unwrap();
    let mut found = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let methods = ["get", "put", "post", "delete", "patch"];
            if methods.contains(&method.as_str()) {
                found.insert((method.to_uppercase(), path.clone()));
            }
        }
    }
    let ruled: BTreeSet<_> =
        PAGES.iter().map(|(method, path, ..)| ((*method).to_string(), (*path).to_string())).collect();
    assert_eq!(ruled.len(), PAGES.len(), "a rule stands twice");
    let missing: Vec<_> = found.difference(&ruled).collect();
    assert!(missing.is_empty(), "no rule: {missing:?}");
    // What stands besides is what the document leaves out: the paths of rt-balance, which begin otherwise.
    let more: Vec<_> = ruled.difference(&found).filter(|(_, path)| path.starts_with("/v1/")).collect();
    assert!(more.is_empty(), "no such page: {more:?}");
}

/// For calls that are judged by their keys, a message that names the key `k`, and what it needs of it.
fn message(path: &str) -> Bytes {
    let lease = |id| pb::LeaseRevokeRequest { id }.encode_to_vec();
    match path {
        // `key` or `name` is the first field of all of these.
        "/etcdserverpb.Watch/Watch" => b"\x0a\x03\x0a\x01k".to_vec(),
        "/etcdserverpb.KV/Txn" => {
            let put = pb::PutRequest { key: "k".into(), ..Default::default() };
            let request = Some(pb::request_op::Request::RequestPut(put));
            pb::TxnRequest { success: vec![pb::RequestOp { request }], ..Default::default() }.encode_to_vec()
        }
        "/etcdserverpb.Lease/LeaseRevoke" => lease(7),
        "/etcdserverpb.Lease/LeaseTimeToLive" => {
            pb::LeaseTimeToLiveRequest { id: 7, keys: true }.encode_to_vec()
        }
        "/v3electionpb.Election/Proclaim" | "/v3electionpb.Election/Resign" => b"\x0a\x03\x12\x01k".to_vec(),
        "/quoin.kv.v1.Kv/Batch" => b"\x0a\x05\x0a\x03\x0a\x01k".to_vec(),
        "/quoin.kv.v1.Kv/Stream" => b"\x0a\x09\x08\x01\x12\x05\x0a\x03\x0a\x01k".to_vec(),
        "/quoin.kv.v1.Kv/Floor" => b"\x0a\x01k\x10\x01".to_vec(),
        _ => b"\x0a\x01k".to_vec(),
    }
    .into()
}

#[test]
fn every_rpc_by_nobody_by_a_stranger_by_a_user_and_by_one_who_may() {
    let world = World::new();
    // A lease with a key, for the calls about leases.
    let channel = world.runtime.block_on(world.channel());
    let ok = |answer: (Code, String)| assert_eq!(answer.0, Code::Ok, "{}", answer.1);
    let grant = pb::LeaseGrantRequest { id: 7, ttl: 600 };
    ok(world.call(&channel, "/etcdserverpb.Lease/LeaseGrant", None, grant.encode_to_vec().into()));
    // No call replaces it.
    let put = pb::PutRequest { key: "kz".into(), lease: 7, ..Default::default() };
    ok(world.call(&channel, "/etcdserverpb.KV/Put", None, put.encode_to_vec().into()));
    world.enable();
    let is_denied = |path: &str, (code, text): &(Code, String)| match *code {
        Code::PermissionDenied | Code::Unauthenticated => true,
        Code::InvalidArgument => text == "etcdserver: user name is empty",
        // The refusal of an operation in a batch is an answer.
        _ => path == "/quoin.kv.v1.Kv/Batch" || path == "/quoin.kv.v1.Kv/Stream",
    };
    for (path, need) in CALLS {
        // They are shown by tests of their own: their refusals are answers; and what ends the world.
        let apart = ["/etcdserverpb.Watch/Watch", "/etcdserverpb.Auth/AuthDisable"].contains(path);
        let message = || message(path);
        let nobody = world.call(&channel, path, None, message());
        assert_eq!(is_denied(path, &nobody), *need != Need::Nothing, "{path} by nobody: {nobody:?}");
        for token in ["no token", "quoin1.x.y"] {
            let stranger = world.call(&channel, path, Some(token), message());
            let refused = stranger.0 == Code::Unauthenticated;
            assert_eq!(refused, *need != Need::Nothing, "{path} by a stranger: {stranger:?}");
        }
        let bob = world.token("bob", "other").unwrap();
        let without = world.call(&channel, path, Some(&bob), message());
        let needs = matches!(need, Need::Root | Need::Part(..) | Need::Keys)
            || ["/etcdserverpb.Auth/UserGet", "/etcdserverpb.Auth/RoleGet", "/quoin.auth.v1.Auth/Role"]
                .contains(path);
        if !apart || *need != Need::Keys {
            assert_eq!(is_denied(path, &without), needs, "{path} without a grant: {without:?}");
        }
        // What is granted is enough, and nothing less is.
        let scopes = match need {
            Need::Part(of, rights) => vec![part(*of, *rights)],
            Need::Keys => vec![keys(2, "k", "l")],
            Need::Root | Need::User | Need::Nothing => continue,
        };
        if *path == "/etcdserverpb.Lease/LeaseRevoke" || *path == "/etcdserverpb.Maintenance/MoveLeader" {
            continue;
        }
        scopes.iter().for_each(|scope| world.grant(scope.clone()));
        let ann = world.token("ann", PLANTED[1]).unwrap();
        let with = world.call(&channel, path, Some(&ann), message());
        let batch = path.starts_with("/quoin.kv.v1.Kv/");
        assert!(batch || !is_denied(path, &with), "{path} with a grant: {with:?}");
        scopes.into_iter().for_each(|scope| world.revoke(scope));
    }
}

#[test]
fn every_page_by_nobody_by_a_stranger_by_a_user_and_by_one_who_may() {
    use base64::Engine as _;
    let world = World::new();
    let basic = |pair: String| format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(pair));
    let bob = basic("bob:other".into());
    assert_eq!(world.page(world.http, "GET", "/metrics", "").0, 200, "authentication is off");
    world.enable();
    for path in ["/livez", "/v1/openapi.json"] {
        assert_eq!(world.page(world.http, "GET", path, "").0, 200, "{path}");
    }
    let metrics = [("GET", "/metrics", Part::Metrics, rights::READ)];
    // The paths of rt-balance are served by a setting alone.
    let served = PAGES.iter().filter(|(_, path, ..)| path.starts_with("/v1/"));
    for (method, path, of, rights) in metrics.iter().chain(served) {
        let path = &path.replace("{vni}", "1").replace("{ip}", "10.0.0.1").replace(['{', '}'], "");
        let ask = |who: &str| world.page(world.http, method, path, who);
        let (status, text) = ask("");
        assert_eq!(status, 401, "{method} {path}: {text}");
        assert!(text.to_lowercase().contains("www-authenticate: basic") && text.contains("unauthenticated"));
        for wrong in
            ["Bearer quoin1.x.y", &basic("bob:wrong".into()), &basic("nobody:other".into()), "Basic !"]
        {
            assert_eq!(ask(wrong).0, 401, "{method} {path} by {wrong}");
        }
        let (status, text) = ask(&bob);
        assert_eq!(status, 403, "{method} {path}: {text}");
        assert!(text.contains("urn:quoin:problem:permission_denied"), "{text}");
        world.grant(part(*of, *rights));
        let ann = world.token("ann", PLANTED[1]).unwrap();
        for who in [format!("Bearer {ann}"), basic(format!("ann:{}", PLANTED[1]))] {
            let (status, text) = ask(&who);
            assert!(![401, 403].contains(&status), "{method} {path}: {text}");
        }
        world.revoke(part(*of, *rights));
    }
    let (status, _) = world.page(world.http, "GET", "/no/such/page", &bob);
    assert_eq!(status, 403, "what has no rule needs everything");
    // etcd's gateway, on the other port.
    let range = |who: &str| world.page(world.grpc, "POST", "/v3/kv/range", who).0;
    assert_eq!((range(""), range("no token")), (400, 401));
    let status = |who: &str| world.page(world.grpc, "POST", "/v3/maintenance/status", who).0;
    let root = world.token("root", PLANTED[0]).unwrap();
    assert_eq!((status(&bob), status(&root)), (403, 200));
}

#[test]
fn a_page_needs_rights_on_the_port_of_grpc_too() {
    let world = World::new();
    world.enable();
    assert_eq!(world.page(world.grpc, "GET", "/metrics", "").0, 401);
    assert_eq!(world.page(world.grpc, "GET", "/health", "").0, 200);
}

#[test]
fn commands_of_redis_need_a_user_and_rights_to_their_keys() {
    let world = World::new();
    world.enable();
    world.grant(keys(2, "k", "l"));
    world.grant(keys(0, "r", "s"));
    world.grant(keys(1, "w", "x"));
    let noauth = world.lines(&["PING", "GET k", "SET k v", "HELLO 3", "MULTI", "ACL WHOAMI"]);
    assert!(noauth.iter().all(|line| line.starts_with("-NOAUTH")), "{noauth:?}");
    let wrong = world.lines(&[
        "AUTH ann no",
        "AUTH nobody x",
        "AUTH x",
        "HELLO 3 AUTH ann no",
        "AUTH cert x",
        "GET k",
    ]);
    assert!(wrong[..5].iter().all(|line| line.starts_with("-WRONGPASS")), "{wrong:?}");
    assert!(wrong[5].starts_with("-NOAUTH"), "{wrong:?}");
    let log_in = format!("AUTH ann {}", PLANTED[1]);
    let allowed = [
        &log_in[..],
        "SET k 1",
        "INCR k",
        "GET k",
        "GET r",
        "SET w 1",
        "MGET k r",
        "PING",
        "ECHO x",
        "RENAME k k2",
    ];
    let answers = world.lines(&allowed);
    assert!(answers.iter().all(|line| !line.starts_with('-')), "{answers:?}");
    let forbidden = [
        &log_in[..],
        "GET w",
        "GET x",
        "MGET k x",
        "SET r 1",
        "SET w 1 GET",
        "SET w 1 NX",
        "GETEX w",
        "GETDEL r",
        "RENAME k x",
        "RENAME r k",
        "DEL k x",
        "KEYS *",
        "DBSIZE",
        "FLUSHALL",
        "SCAN 0",
        "EVAL return 0",
        "PUBLISH x m",
        "SUBSCRIBE x",
        "PSUBSCRIBE *",
        "CLIENT LIST",
        "ACL USERS",
        "ACL GETUSER ann",
        "CLIENT KILL x",
        "CONFIG GET *",
        "TABLE.LIST",
        "TABLE.SET t 1 v",
        "WATCH x",
        "HSET r f v",
        "COPY x k",
        "EVAL x 0",
    ];
    let answers = world.lines(&forbidden);
    for (line, answer) in forbidden.iter().zip(&answers).skip(1) {
        assert!(answer.starts_with("-NOPERM") || *line == "EVAL return 0", "{line}: {answer}");
    }
    let root = format!("AUTH root {}", PLANTED[0]);
    let answers =
        world.lines(&[&root, "KEYS *", "DBSIZE", "EVAL \"return 1\" 0", "ACL LIST", "RESET", "GET z"]);
    assert!(answers[..6].iter().all(|line| !line.starts_with('-')), "{answers:?}");
    assert!(answers[6].starts_with("-NOAUTH"), "RESET forgets who it is: {answers:?}");
    // What MULTI has queued counts only if nothing was taken away meanwhile.
    let begun = world.runtime.block_on(async {
        let mut stream = TcpStream::connect(world.redis).await.unwrap();
        let ask = async |stream: &mut TcpStream, line: &str| {
            stream.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
            let mut answer = vec![0; 4096];
            let read = stream.read(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer[..read]).into_owned()
        };
        for line in [&log_in[..], "MULTI", "GET k"] {
            ask(&mut stream, line).await;
        }
        stream
    });
    world.revoke(keys(0, "k", "l"));
    let ended = world.runtime.block_on(async move {
        let mut stream = begun;
        stream.write_all(b"EXEC\r\n").await.unwrap();
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..read]).into_owned()
    });
    assert!(ended.starts_with("-EXECABORT"), "{ended}");
}

#[test]
fn a_password_that_is_replaced_ends_tokens_connections_and_what_is_remembered() {
    let world = World::new();
    world.enable();
    world.grant(keys(2, "k", "l"));
    let channel = world.runtime.block_on(world.channel());
    let range = Bytes::from_static(b"\x0a\x01k");
    let token = world.token("ann", PLANTED[1]).unwrap();
    let path = "/etcdserverpb.KV/Range";
    assert_eq!(world.call(&channel, path, Some(&token), range.clone()).0, Code::Ok);
    let root = world.token("root", PLANTED[0]).unwrap();
    let (name, password) = ("ann".to_string(), PLANTED[2].to_string());
    let change = pb::AuthUserChangePasswordRequest { name, password, ..Default::default() }.encode_to_vec();
    let changed = world.call(&channel, "/etcdserverpb.Auth/UserChangePassword", Some(&root), change.into());
    assert_eq!(changed.0, Code::Ok, "{}", changed.1);
    let (code, text) = world.call(&channel, path, Some(&token), range.clone());
    assert_eq!((code, &text[..]), (Code::Unauthenticated, "etcdserver: invalid auth token"));
    let old = world.token("ann", PLANTED[1]).unwrap_err();
    assert_eq!(old.message(), "etcdserver: authentication failed, invalid user ID or password");
    let token = world.token("ann", PLANTED[2]).unwrap();
    assert_eq!(world.call(&channel, path, Some(&token), range).0, Code::Ok);
    let cert = world.token("cert", "").unwrap_err();
    assert_eq!(cert.message(), "auth: authentication failed, password was given for no password user");
}

/// Nothing that a node says of itself, or answers to whoever may ask everything, has a password, a hash or a token.
#[test]
fn secrets_are_not_told() {
    let world = World::new();
    world.enable();
    let root = world.token("root", PLANTED[0]).unwrap();
    let ann = world.token("ann", PLANTED[1]).unwrap();
    let channel = world.runtime.block_on(world.channel());
    let mut told = String::new();
    for path in ["/metrics", "/readyz", "/v1/accounts", "/no/such"] {
        told += &world.page(world.http, "GET", path, &format!("Bearer {root}")).1;
        told += &world.page(world.http, "GET", path, &format!("Bearer {ann}x")).1;
    }
    for (path, message) in [
        ("/etcdserverpb.Auth/UserList", Bytes::new()),
        ("/etcdserverpb.Auth/UserGet", Bytes::from_static(b"\x0a\x03ann")),
        ("/etcdserverpb.Auth/UserAdd", b"\x0a\x03ann\x12\x0eplanted-new-pw".to_vec().into()),
        ("/etcdserverpb.Auth/Authenticate", b"\x0a\x03ann\x12\x0eplanted-new-pw".to_vec().into()),
    ] {
        told += &world.call(&channel, path, Some(&root), message).1;
    }
    let log_in = format!("AUTH root {}", PLANTED[0]);
    for line in world.lines(&[
        &log_in,
        "INFO",
        "CLIENT LIST",
        "CLIENT INFO",
        "CONFIG GET *",
        "AUTH ann planted-new-pw",
    ]) {
        told += &line;
    }
    let policy = world.engine.policy();
    told += &format!("{policy:?}");
    let add = AddUser { name: "n".into(), hash: policy.user("ann").unwrap().hash.clone() };
    told += &format!(
        "{:?} {:?}",
        Operation::AddUser(add),
        super::Caller::new(super::Identity::Nobody, policy.clone())
    );
    let hash = policy.user("ann").unwrap().hash.clone();
    for secret in PLANTED.iter().copied().chain([&root[..], &ann[..], &hash[..], "argon2id"]) {
        assert!(!told.contains(secret), "{secret} stands in {told}");
    }
    assert!(rules::of_call("/no.Such/Call") == Need::Root);
}

/// A replica that lags let in what was taken away long ago, and it was done.
#[test]
fn what_was_admitted_by_other_users_and_roles_does_nothing() {
    use quoin_engine::{Consistency, ProposeError, ReadError, admission};
    let world = World::new();
    world.enable();
    let now = world.engine.policy().revision();
    let put = || {
        let put = quoin_core::kv::Put { key: "k".into(), ..Default::default() };
        world.engine.propose(quoin_core::kv::Operation::Put(put).into_command())
    };
    let read = || world.engine.read(Consistency::Linearizable);
    world.runtime.block_on(async {
        assert_eq!(put().await, Err(ProposeError::OldRevision), "nobody has judged it");
        assert!(matches!(read().await, Err(ReadError::OldRevision)), "nobody has judged it");
        for other in [0, now - 1, now + 1] {
            assert_eq!(admission::admitted(other, put()).await, Err(ProposeError::OldRevision));
            let refused = admission::admitted(other, read()).await;
            assert!(matches!(refused, Err(ReadError::OldRevision)));
        }
        assert!(admission::admitted(now, put()).await.is_ok());
        assert!(admission::admitted(now, read()).await.is_ok());
        // A task of its own has to take it along.
        let carried =
            admission::admitted(now, async { admission::carried(admission::present(), put()).await });
        assert!(carried.await.is_ok());
    });
}

/// A request whose body came after authentication was turned on was answered, though nobody had judged it.
#[test]
fn what_began_while_nobody_was_asked_reads_nothing_later() {
    let world = World::new();
    let begin = |path: &str, body: &str| {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nexpect: 100-continue\r\n\r\n"
        );
        world.runtime.block_on(async {
            let mut stream = TcpStream::connect(world.http).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            // The handler asks for the body: it is past the guard.
            let mut asked = [0; 25];
            stream.read_exact(&mut asked).await.unwrap();
            assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
            stream
        })
    };
    let body = r#"{"accounts": ["7"]}"#;
    let mut held = begin("/v1/accounts/lookup", body);
    let mut before = begin("/v1/accounts/lookup", body);
    let answer = |stream: &mut TcpStream| {
        world.runtime.block_on(async {
            stream.write_all(body.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        })
    };
    let open = answer(&mut before);
    assert!(open.starts_with("HTTP/1.1 200"), "{open}");
    world.enable();
    let late = answer(&mut held);
    assert!(!late.starts_with("HTTP/1.1 200"), "{late}");
}

/// Watches went on after the right to their keys was taken away, as etcd's do.
#[test]
fn a_watch_ends_with_the_right_to_its_keys() {
    use pb::watch_client::WatchClient;
    use pb::watch_request::RequestUnion;
    let world = World::new();
    world.enable();
    world.grant(keys(0, "k", "l"));
    let token = world.token("ann", PLANTED[1]).unwrap();
    let create = |key: &'static str| {
        let create = pb::WatchCreateRequest { key: key.into(), ..Default::default() };
        pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    };
    let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    let mut stream = world.runtime.block_on(async {
        let requests = tokio_stream::iter([create("x"), create("k")]);
        let mut request = Request::new(tokio_stream::StreamExt::chain(requests, tokio_stream::pending()));
        request.metadata_mut().insert("token", token.parse().unwrap());
        let mut stream = WatchClient::new(world.channel().await).watch(request).await.unwrap().into_inner();
        let refused = stream.message().await.unwrap().unwrap();
        assert!(refused.created && refused.canceled && refused.watch_id == -1);
        assert_eq!(refused.cancel_reason, denied);
        let begun = stream.message().await.unwrap().unwrap();
        assert!(begun.created && !begun.canceled);
        stream
    });
    world.revoke(keys(0, "k", "l"));
    let ended = world.runtime.block_on(stream.message()).unwrap().unwrap();
    assert!(ended.canceled);
    assert_eq!(ended.cancel_reason, denied);
}

/// A stream that was told of a change before the users and roles were there judged by the old ones, and went on for
/// ever.
#[test]
fn who_is_told_of_a_change_finds_it() {
    const CHANGES: u64 = 300;
    let world = World::new();
    let (mut changes, engine) = (world.engine.watch_policy(), world.engine.clone());
    let last = engine.policy().revision() + CHANGES;
    let looking = std::thread::spawn(move || {
        let mut early = 0;
        loop {
            let told = changes.borrow_and_update().1;
            early += u64::from(engine.policy().revision() < told);
            if told == last {
                return early;
            }
        }
    });
    (0..CHANGES).for_each(|number| world.apply(Operation::AddRole(format!("r{number}"))));
    assert_eq!(looking.join().unwrap(), 0, "times that the state of before was found");
}

/// Whoever listened when authentication was turned on went on listening.
#[test]
fn what_streams_ends_when_authentication_is_turned_on() {
    let world = World::new();
    // Those of one request wait for the end of the client's part.
    let (one, many) = (
        ["/quoin.ledger.v1.Ledger/Events", "/quoin.route.v1.Route/Watch"],
        ["/quoin.route.v1.Route/GetStream", "/quoin.table.v1.Table/LookupStream"],
    );
    let paths = || one.into_iter().chain(many);
    let pages = ["/v1/events", "/v1/rules/events?vni=1"];
    let (streams, connections) = world.runtime.block_on(async {
        let mut streams = Vec::new();
        for path in paths() {
            let mut client = Grpc::new(world.channel().await);
            client.ready().await.unwrap();
            // All nodes, for a watch of the route face; the others have no such field.
            let request = one.contains(&path).then_some(Bytes::from_static(b"\x20\x01"));
            let requests = tokio_stream::iter(request);
            let answer = if one.contains(&path) {
                client.streaming(Request::new(requests), PathAndQuery::from_static(path), Raw).await
            } else {
                let requests = tokio_stream::StreamExt::chain(requests, tokio_stream::pending());
                client.streaming(Request::new(requests), PathAndQuery::from_static(path), Raw).await
            };
            streams.push(answer.unwrap().into_inner());
        }
        let mut connections = Vec::new();
        for page in pages {
            let mut stream = TcpStream::connect(world.http).await.unwrap();
            stream.write_all(format!("GET {page} HTTP/1.1\r\nhost: h\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
            connections.push(stream);
        }
        (streams, connections)
    });
    world.enable();
    world.runtime.block_on(async {
        let patience = std::time::Duration::from_secs(20);
        for (path, mut stream) in paths().zip(streams) {
            let ended = async {
                while stream.message().await?.is_some() {}
                Ok::<_, Status>(())
            };
            let ended = tokio::time::timeout(patience, ended).await.expect(path);
            assert_eq!(ended.unwrap_err().code(), Code::Unauthenticated, "{path}");
        }
        for (page, mut stream) in pages.into_iter().zip(connections) {
            let ended = async {
                let mut answer = String::new();
                // The end of a body in pieces.
                while !answer.ends_with("\r\n0\r\n\r\n") {
                    let mut piece = [0; 4096];
                    let read = stream.read(&mut piece).await.unwrap();
                    assert_ne!(read, 0, "{answer}");
                    answer += &String::from_utf8_lossy(&piece[..read]);
                }
            };
            tokio::time::timeout(patience, ended).await.expect(page);
        }
    });
}

/// What was queued as one user, or under rights that were taken away while the password was compared, was done as the
/// next.
#[test]
fn what_multi_queued_and_watched_is_judged_for_whoever_execs() {
    let world = World::new();
    world.enable();
    world.grant(keys(2, "k", "l"));
    let ann = format!("AUTH ann {}", PLANTED[1]);
    for other in ["AUTH bob other", &ann, "HELLO 3 AUTH bob other"] {
        let answers = world.lines(&[&ann, "SET k secret", "MULTI", "GET k", other, "EXEC"]);
        assert_eq!(answers[3], "+QUEUED");
        assert!(answers[5].starts_with("-EXECABORT"), "{other}: {answers:?}");
    }
    // Whether the key has changed is told to who may read it.
    for (other, told) in [(&ann[..], "*-1"), ("AUTH bob other", "-NOPERM")] {
        let answers = world.lines(&[&ann, "WATCH k", "SET k 2", other, "MULTI", "EXEC"]);
        assert!(answers[5].starts_with(told), "{answers:?}");
    }
}

/// After any change of any role, all that came on a stream was refused, until the client opened another.
#[test]
fn a_stream_of_operations_goes_on_under_changed_roles() {
    use quoin_proto::quoin::kv::v1 as kv;
    let world = World::new();
    world.enable();
    world.grant(keys(2, "k", "l"));
    let token = world.token("ann", PLANTED[1]).unwrap();
    let (sender, requests) = tokio::sync::mpsc::channel(1);
    let mut request = Request::new(tokio_stream::wrappers::ReceiverStream::new(requests));
    request.metadata_mut().insert("token", token.parse().unwrap());
    let mut stream = world.runtime.block_on(async {
        let mut client = kv::kv_client::KvClient::new(world.channel().await);
        client.stream(request).await.unwrap().into_inner()
    });
    let mut put = || {
        world.runtime.block_on(async {
            let put = kv::PutRequest { key: "k".into(), ..Default::default() };
            let operation = Some(kv::Operation { operation: Some(kv::operation::Operation::Put(put)) });
            let operations = vec![kv::TaggedOperation { id: 1, operation }];
            sender.send(kv::StreamRequest { operations }).await.unwrap();
            let mut answer = stream.message().await.unwrap().unwrap();
            answer.results.remove(0).result.unwrap().result.unwrap()
        })
    };
    let is_done = |result: &kv::result::Result| matches!(result, kv::result::Result::Put(_));
    assert!(is_done(&put()));
    world.apply(Operation::AddRole("other".into()));
    let result = put();
    assert!(is_done(&result), "{result:?}");
    world.revoke(keys(2, "k", "l"));
    assert!(!is_done(&put()));
}

/// An audit trail in a folder of its own.
struct Kept {
    folder: tempfile::TempDir,
    writer: Option<quoin_audit::Writer>,
}

impl Kept {
    /// A world whose trail records uses of the keys `k`, and changes of tables.
    fn world(queue_max: usize, when_full: quoin_audit::WhenFull) -> (World, Self) {
        let folder = tempfile::tempdir().unwrap();
        let counter = |name: &str| prometheus::IntCounter::new(name, name).unwrap();
        let counters = quoin_audit::Counters {
            written: counter("written"),
            lost: counter("lost"),
            failing: prometheus::IntGauge::new("failing", "failing").unwrap(),
        };
        let settings = quoin_audit::Settings {
            node: "alone".into(),
            folder: folder.path().join("audit"),
            file_bytes_max: 1 << 30,
            files_max: 1,
            queue_max,
            when_full,
        };
        let (trail, writer) = quoin_audit::Trail::open(settings, counters, Default::default()).unwrap();
        let keys = vec![crate::ChosenKeys { prefix: "k".into(), reads: true, writes: true }];
        let audit = crate::Audit { trail, keys, parts: vec![(Part::Table, rights::WRITE)], log_ins: false };
        (World::with(Default::default(), Some(audit)), Self { folder, writer: Some(writer) })
    }

    /// All records, once the world has stopped.
    fn records(mut self, world: World) -> Vec<quoin_audit::Record> {
        drop(world);
        drop(self.writer.take());
        let files = quoin_audit::files_in(&self.folder.path().join("audit")).unwrap();
        quoin_audit::verify(&files, &[]).unwrap();
        let mut records = Vec::new();
        for file in files {
            quoin_audit::records(&file, |record| records.push(record)).unwrap();
        }
        records
    }
}

/// Every administrative call and page, by whoever asks, from the registries.
#[test]
fn every_administrative_act_is_recorded_whoever_tries_it() {
    use quoin_audit::Outcome;
    let (world, kept) = Kept::world(10_000, quoin_audit::WhenFull::Lose);
    world.enable();
    let root = world.token("root", PLANTED[0]).unwrap();
    let ann = world.token("ann", PLANTED[1]).unwrap();
    let channel = world.runtime.block_on(world.channel());
    let mut expected = BTreeSet::new();
    for (path, need) in CALLS {
        // They would end the test, or the users it asks as.
        let ends = path.ends_with("AuthDisable") || path.ends_with("AuthEnable");
        if !rules::is_administrative(path, *need) || ends {
            continue;
        }
        for (user, token) in [("", None), ("ann", Some(&ann)), ("root", Some(&root))] {
            world.call(&channel, path, token.map(String::as_str), message(path));
            expected.insert(((*path).to_owned(), user));
        }
    }
    for (method, path, _, granted) in PAGES.iter().filter(|page| page.3 & rules::ADMINISTERS != 0) {
        let asked = path.replace("{account}", "7").replace("{code}", "EUR");
        assert_eq!(*granted, rights::ADMIN);
        world.page(world.http, method, &asked, &format!("Bearer {root}"));
        expected.insert((format!("{method} {path}"), "root"));
    }
    let records = kept.records(world);
    let enabled = records.iter().position(|record| record.act.ends_with("/AuthEnable")).unwrap();
    let (before, records) = records.split_at(enabled + 1);
    for (act, user) in &expected {
        let found = records.iter().find(|record| record.act == *act && record.user == *user);
        let found = found.unwrap_or_else(|| panic!("no record of {act} by {user:?}"));
        assert!(found.address.starts_with("127.0.0.1:") && !found.code.is_empty(), "{found:?}");
        assert!(*user == "root" || found.outcome == Outcome::Refused, "{found:?}");
    }
    assert_eq!((before[enabled].outcome, &*before[enabled].code), (Outcome::Done, "Ok"));
}

#[test]
fn uses_of_chosen_keys_are_recorded_on_every_wire_with_what_came_of_them() {
    use quoin_audit::Outcome::{Admitted, Done, Refused};
    let (world, kept) = Kept::world(10_000, quoin_audit::WhenFull::Lose);
    world.enable();
    world.grant(keys(2, "k", "l"));
    let ann = world.token("ann", PLANTED[1]).unwrap();
    let channel = world.runtime.block_on(world.channel());
    let call = |path: &str| world.call(&channel, path, Some(&ann), message(path));
    call("/etcdserverpb.KV/Put");
    call("/etcdserverpb.KV/Range");
    call("/etcdserverpb.KV/Txn");
    call("/quoin.kv.v1.Kv/Stream");
    call("/etcdserverpb.Watch/Watch");
    world.call(&channel, "/etcdserverpb.KV/Put", Some(&ann), Bytes::from_static(b"\x0a\x01j"));
    let bob = world.token("bob", "other").unwrap();
    world.call(&channel, "/etcdserverpb.Watch/Watch", Some(&bob), message("/etcdserverpb.Watch/Watch"));
    world.call(&channel, "/etcdserverpb.KV/Put", None, message("/etcdserverpb.KV/Put"));
    world.page(world.grpc, "POST", "/v3/kv/put", &ann);
    let log_in = format!("AUTH ann {}", PLANTED[1]);
    let mut lines = vec![log_in.as_str(), "SET k1 planted-value", "GET k1", "GET j", "SET j 1", "MGET k1 k2"];
    lines.extend(["MULTI", "SET k3 1", "EXEC", "MULTI", "SET k4 1", "DISCARD", "TABLE.SET t 1 x", "INCR k1"]);
    lines.extend(["AUTH ann planted-wrong-pw", "EVAL return 0"]);
    world.lines(&lines);
    let records = kept.records(world);
    let found: Vec<_> = records
        .iter()
        .map(|record| {
            let about = record.about.iter().map(|(name, value)| format!("{name}={value}"));
            (&*record.act, about.collect::<Vec<_>>().join(" "), record.outcome)
        })
        .collect();
    for expected in [
        ("/etcdserverpb.KV/Put", "writes=k", Done),
        ("/etcdserverpb.KV/Range", "reads=k", Done),
        ("/etcdserverpb.KV/Txn", "writes=k", Done),
        ("/quoin.kv.v1.Kv/Stream", "writes=k", Admitted),
        ("/etcdserverpb.Watch/Watch", "reads=k", Admitted),
        ("/etcdserverpb.Watch/Watch", "reads=k", Refused),
        ("SET", "writes=k1", Done),
        ("GET", "reads=k1", Done),
        ("MGET", "reads=k1 k2", Done),
        ("SET", "writes=k3", Done),
        ("SET", "writes=k4", Refused),
        ("TABLE.SET", "table=t", Refused),
        ("INCR", "writes=k1", Refused),
        ("log-in", "user=ann", Refused),
    ] {
        let expected = (expected.0, expected.1.to_owned(), expected.2);
        assert!(found.contains(&expected), "{expected:?} is not in {found:#?}");
    }
    assert!(!found.iter().any(|(_, about, _)| about.ends_with("=j")), "{found:#?}");
    let of_bob = records.iter().filter(|record| record.user == "bob");
    assert!(of_bob.clone().count() > 0 && of_bob.clone().all(|record| record.outcome == Refused));
    let text = format!("{records:?}");
    assert!(!text.contains("planted") && !text.contains(&ann), "{text}");
    let wires: BTreeSet<_> = records.iter().map(|record| &*record.wire).collect();
    assert_eq!(wires, BTreeSet::from(["", "grpc", "resp"]));
}

/// Without a place for its record, nothing of it was to be done.
#[test]
fn what_cannot_be_recorded_is_refused_where_the_operator_wants_that() {
    let (world, kept) = Kept::world(16, quoin_audit::WhenFull::Refuse);
    let channel = world.runtime.block_on(world.channel());
    let put = || world.call(&channel, "/etcdserverpb.KV/Put", None, message("/etcdserverpb.KV/Put"));
    assert_eq!(put().0, Code::Ok);
    // Others take all places, once the records before are on disk.
    let trail = kept.writer.as_ref().unwrap().trail();
    let mut held = Vec::new();
    while held.len() < 16 {
        held.extend(trail.place());
        std::thread::yield_now();
    }
    let revision = world.engine.latest().progress().revision;
    let (code, text) = put();
    assert!(code == Code::ResourceExhausted && text.contains("audit.when_full"), "{text}");
    let (code, _) =
        world.call(&channel, "/etcdserverpb.Auth/RoleAdd", None, Bytes::from_static(b"\x0a\x01x"));
    assert_eq!(code, Code::ResourceExhausted);
    assert!(world.lines(&["SET k1 1"])[0].contains("audit.when_full"));
    assert_eq!(world.engine.latest().progress().revision, revision);
    assert!(world.engine.policy().role("x").is_none());
    drop(held);
    assert_eq!(put().0, Code::Ok);
    kept.records(world);
}

/// Whoever was refused had a record each time, until the files that told of what was done were deleted for those.
#[test]
fn whoever_is_refused_does_not_fill_the_trail() {
    let (world, kept) = Kept::world(10_000, quoin_audit::WhenFull::Refuse);
    world.enable();
    let ann = world.token("ann", PLANTED[1]).unwrap();
    let channel = world.runtime.block_on(world.channel());
    world.lines(&["FLUSHALL"; 300]);
    for token in [None, Some(&*ann)] {
        for _ in 0..50 {
            world.call(&channel, "/etcdserverpb.Auth/UserAdd", token, message("/etcdserverpb.Auth/UserAdd"));
        }
    }
    let root = world.token("root", PLANTED[0]).unwrap();
    let path = "/etcdserverpb.Auth/RoleAdd";
    assert_eq!(world.call(&channel, path, Some(&root), Bytes::from_static(b"\x0a\x01x")).0, Code::Ok);
    let records = kept.records(world);
    let refused = records.iter().filter(|record| record.outcome == quoin_audit::Outcome::Refused).count();
    assert!((1..=200).contains(&refused), "{refused}");
    let lost = records.iter().filter(|record| record.act == "audit.lost");
    let lost: usize = lost.map(|record| record.about["records"].parse::<usize>().unwrap()).sum();
    assert_eq!(lost + refused, 400);
    let done = |record: &&quoin_audit::Record| record.act == path && record.user == "root";
    assert_eq!(records.iter().find(done).unwrap().outcome, quoin_audit::Outcome::Done);
}

/// Each command that MULTI queued took a place until EXEC, which a client may send never: others had none.
#[test]
fn what_multi_queues_takes_no_place_in_the_trail() {
    let (world, kept) = Kept::world(16, quoin_audit::WhenFull::Refuse);
    let sets: Vec<String> = (0..40).map(|number| format!("SET k{number} 1")).collect();
    let mut lines = vec!["MULTI"];
    lines.extend(sets.iter().map(String::as_str));
    lines.push("EXEC");
    let answers = world.lines(&lines);
    assert!(answers[1..=40].iter().all(|answer| answer.starts_with("+QUEUED")), "{answers:?}");
    assert!(answers[41].starts_with("*40"), "{answers:?}");
    let records = kept.records(world);
    let sets: Vec<_> = records.iter().filter(|record| record.act == "SET").collect();
    assert_eq!((sets.len(), &*sets[0].about["more"]), (1, "24"));
    assert!(sets[0].about["writes"].starts_with("k0 k1 "), "{:?}", sets[0]);
}

/// Half of the processors at most compared passwords, and a client could try any number of them.
#[test]
fn wrong_passwords_are_bounded_on_every_wire() {
    let world = World::with(crate::AuthSettings { failed_passwords_max: 3, ..Default::default() }, None);
    world.enable();
    let wrong = |name: &str| world.token(name, "wrong").unwrap_err();
    for _ in 0..3 {
        assert_eq!(wrong("ann").code(), Code::InvalidArgument);
    }
    let refused = wrong("ann");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("auth.failed_passwords_max"), "{refused}");
    assert!(world.token("ann", PLANTED[1]).is_err(), "a right one is not compared either");
    let basic = |pair: &str| {
        use base64::Engine as _;
        format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(pair))
    };
    assert_eq!(world.page(world.http, "GET", "/v1/accounts", &basic("ann:wrong")).0, 429);
    assert!(world.lines(&["AUTH ann wrong"])[0].contains("auth.failed_passwords_max"));
    // Others are not concerned, nor is who was known before; and many may come at once with the right one.
    let (name, password) = ("root".to_string(), PLANTED[0].to_string());
    world.runtime.block_on(async {
        let asked = (0..12).map(|_| async {
            let (name, password) = (name.clone(), password.clone());
            world.auth().await.authenticate(pb::AuthenticateRequest { name, password }).await.map(drop)
        });
        for answer in futures_util::future::join_all(asked).await {
            answer.unwrap();
        }
    });
    assert_eq!(wrong("bob").code(), Code::InvalidArgument);
    let root = world.token("root", PLANTED[0]).unwrap();
    for _ in 0..4 {
        wrong("root");
    }
    assert!(world.token("root", PLANTED[0]).is_ok() && !root.is_empty());
}

/// A grant of tables was one of all of them.
#[test]
fn tables_are_told_apart_by_their_names_on_every_wire() {
    use quoin_core::auth::{TableGrant, table_rights};
    let world = World::new();
    world.enable();
    let ann = world.token("ann", PLANTED[1]).unwrap();
    let channel = world.runtime.block_on(world.channel());
    let tables = |rights| Scope::Tables(TableGrant { pattern: "ads_*".into(), rights });
    let named = |name: &str| {
        let mut message = vec![0x0a, name.len() as u8];
        message.extend_from_slice(name.as_bytes());
        Bytes::from(message)
    };
    let lookup = |name: &str| {
        let mut message = vec![0x0a, name.len() as u8 + 2, 0x0a, name.len() as u8];
        message.extend_from_slice(name.as_bytes());
        Bytes::from(message)
    };
    let ask = |path: &str, message: Bytes| world.call(&channel, path, Some(&ann), message).0;
    let log_in = format!("AUTH ann {}", PLANTED[1]);
    let calls = |name: &str| {
        [
            ("/quoin.table.v1.Table/Lookup", lookup(name), table_rights::LOOKUP),
            ("/quoin.table.v1.Table/LookupStream", lookup(name), table_rights::LOOKUP),
            ("/quoin.table.v1.Table/Changes", named(name), table_rights::LOOKUP),
            ("/quoin.table.v1.Table/Write", named(name), table_rights::CHANGE),
            ("/quoin.table.v1.Table/Publish", named(name), table_rights::PUBLISH),
            ("/quoin.table.v1.Table/Drop", named(name), table_rights::PUBLISH),
            ("/quoin.table.v1.Table/Activate", named(name), table_rights::ACTIVATE),
            ("/quoin.table.v1.Table/Rollback", named(name), table_rights::ACTIVATE),
        ]
    };
    for rights in [table_rights::LOOKUP, table_rights::CHANGE, table_rights::PUBLISH, table_rights::ACTIVATE]
    {
        world.grant(tables(rights));
        for (name, about) in [("ads_1", true), ("users", false)] {
            for (path, message, needed) in calls(name) {
                let let_in = ask(path, message) != Code::PermissionDenied;
                assert_eq!(let_in, about && needed == rights, "{path} of {name} with {rights}");
            }
            let lines = [
                &log_in,
                &format!("TABLE.MGET {name} 1"),
                &format!("TABLE.INFO {name}"),
                &format!("TABLE.SET {name} 1 x"),
                &format!("TABLE.DEL {name} 1"),
            ];
            let answers = world.lines(&lines.map(String::as_str));
            for (place, needed) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
                let let_in = !answers[place].starts_with("-NOPERM");
                assert_eq!(let_in, about && needed == rights, "{} with {rights}", lines[place]);
            }
        }
    }
    assert_eq!(ask("/quoin.ledger.v1.Ledger/GetAccount", Bytes::new()), Code::PermissionDenied);
    world.revoke(tables(0));
    assert_eq!(ask("/quoin.table.v1.Table/List", Bytes::new()), Code::PermissionDenied);
}

/// A stream of a table's changes, as the layer sees it: a table of this name, and an answer that goes on.
#[derive(Clone)]
struct ChangesOf(&'static str);

impl tower_service::Service<axum::http::Request<tonic::body::Body>> for ChangesOf {
    type Response = axum::http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: axum::http::Request<tonic::body::Body>) -> Self::Future {
        let endless = tokio_stream::pending::<Result<Bytes, std::io::Error>>();
        let body = tonic::body::Body::new(axum::body::Body::from_stream(endless));
        let mut response = axum::http::Response::new(body);
        response.extensions_mut().insert(super::OfTable(self.0.into()));
        std::future::ready(Ok(response))
    }
}

/// It went on for as long as there was a right to some other table.
#[test]
fn the_changes_of_a_table_end_with_the_right_to_that_table() {
    use http_body::Body;
    use quoin_core::auth::{TableGrant, table_rights::LOOKUP};
    use std::future::poll_fn;
    use std::pin::Pin;
    use tower_layer::Layer;
    use tower_service::Service;
    let world = World::new();
    world.enable();
    let table = |name: &str| Scope::Tables(TableGrant { pattern: name.into(), rights: LOOKUP });
    world.grant(table("gone"));
    world.grant(table("stays"));
    let ann = world.token("ann", PLANTED[1]).unwrap();
    let gate = super::Gate::new(world.engine.clone(), Default::default(), None);
    let listen = |name: &'static str| {
        let request = axum::http::Request::post("/quoin.table.v1.Table/Changes").header("token", &ann);
        let request = request.body(tonic::body::Body::empty()).unwrap();
        let mut guarded = super::Guard(Arc::clone(&gate)).layer(ChangesOf(name));
        world.runtime.block_on(guarded.call(request)).unwrap().into_body()
    };
    let (mut gone, mut stays) = (listen("gone"), listen("stays"));
    world.revoke(table("gone"));
    world.runtime.block_on(async {
        let patience = std::time::Duration::from_secs(20);
        let end = poll_fn(|context| Pin::new(&mut gone).poll_frame(context));
        let ended = tokio::time::timeout(patience, end).await.expect("it goes on").unwrap().unwrap();
        let status = ended.into_trailers().unwrap();
        assert_eq!(status["grpc-status"], (Code::PermissionDenied as i32).to_string().as_str());
        let goes_on = poll_fn(|context| Pin::new(&mut stays).poll_frame(context));
        assert!(futures_util::poll!(goes_on).is_pending());
    });
}
