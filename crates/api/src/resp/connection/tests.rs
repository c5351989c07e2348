//! Clients that stall, over sockets, against one replica.

use super::super::channels::Kind;
use super::super::server::Server;
use super::*;
use crate::accept::Peer;
use crate::auth::{Gate, Identity};
use crate::budget::Budget;
use crate::testing::{settings, start};
use quoin_core::auth::{AddUser, Enable, Grant, KeyRange, KeyRights, Operation, RoleGrant, Scope, UserRole};
use quoin_engine::{Engine, Limits, Settings, admission};
use quoin_library::{Library, TableConfig};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Nothing that a test waits for takes longer, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `test` against a replica that lets requests have `bytes_max` together.
fn with_server<T: Future>(bytes_max: usize, test: impl FnOnce(Arc<Server>) -> T) {
    let runtime = Runtime::new().unwrap();
    let limits = Limits { command_bytes_in_flight_max: bytes_max, ..Limits::default() };
    let (_folder, running) = start(&runtime, Settings { limits, ..settings() });
    let engine = running.engine();
    let budget = Budget::new(&engine);
    let server = Server::new(
        engine.clone(),
        Gate::new(engine, Default::default(), None),
        Arc::new(Library::new(TableConfig::default())),
        budget,
    );
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test(server)).await.unwrap() });
    running.stop();
}

/// A client, and what serves it.
async fn connect(server: &Arc<Server>) -> (TcpStream, JoinHandle<io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, address) = listener.accept().await.unwrap();
    let session = Session::new(Arc::clone(server), Peer::Tcp(address), Identity::Nobody, Arc::default());
    let serving = tokio::spawn(async move {
        let (_running, life) = watch::channel(false);
        serve(session, Stream::Plain(stream), Life(life)).await
    });
    (client, serving)
}

fn set(bytes: usize) -> Vec<u8> {
    [format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${bytes}\r\n").as_bytes(), &vec![b'v'; bytes], b"\r\n"].concat()
}

async fn expect(client: &mut TcpStream, reply: &str) {
    let mut found = vec![0; reply.len()];
    client.read_exact(&mut found).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&found), reply);
}

async fn expect_end(client: &mut TcpStream, reply: &str) {
    let mut found = String::new();
    client.read_to_string(&mut found).await.unwrap();
    assert!(found.contains(reply), "{found}");
}

/// 5,000 idle connections took 320 MB for what each might send next.
#[test]
fn a_connection_has_much_room_only_for_a_client_that_fills_it() {
    let mut room = READ_BYTES_SMALL;
    for (read, wanted) in [
        (40, READ_BYTES_SMALL),
        (READ_BYTES_SMALL, READ_BYTES),
        (READ_BYTES / 2, READ_BYTES),
        (READ_BYTES, READ_BYTES),
        (READ_BYTES_SMALL - 1, READ_BYTES_SMALL),
    ] {
        room = room_after(read, room);
        assert_eq!(room, wanted, "after {read} bytes");
    }
}

/// A few clients that announced large requests and sent nothing more of them had all others refused, for as long as
/// they liked.
#[test]
fn a_request_whose_rest_does_not_come_keeps_nobody_out() {
    with_server(1 << 20, async |server| {
        let ((mut stalls, _), (mut other, _)) = (connect(&server).await, connect(&server).await);
        stalls.write_all(&set(1_000_000)[..100]).await.unwrap();
        expect_end(&mut stalls, "-ERR nothing more of the request came for 1 s").await;
        other.write_all(&set(1_000_000)).await.unwrap();
        expect(&mut other, "+OK\r\n").await;
    });
}

/// Its replies, and what they were made of, were kept for as long as it liked.
#[test]
fn a_client_that_takes_nothing_of_its_replies_is_given_up() {
    with_server(1 << 20, async |server| {
        let (mut client, serving) = connect(&server).await;
        client.write_all(&set(100_000)).await.unwrap();
        expect(&mut client, "+OK\r\n").await;
        // More than the system keeps for it.
        client.write_all(&b"GET k\r\n".repeat(1000)).await.unwrap();
        let error = serving.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    });
}

/// Each connection had a bound of its own for what MULTI queues, and some thousand of them took all memory.
#[test]
fn what_connections_queue_is_bounded_in_total() {
    with_server(1 << 20, async |server| {
        let ((mut first, _), (mut second, _)) = (connect(&server).await, connect(&server).await);
        for client in [&mut first, &mut second] {
            client.write_all(b"MULTI\r\n").await.unwrap();
            client.write_all(&set(700_000)).await.unwrap();
            expect(client, "+OK\r\n+QUEUED\r\n").await;
        }
        expect_end(&mut second, "-BUSY").await;
        first.write_all(b"EXEC\r\n").await.unwrap();
        expect(&mut first, "*1\r\n+OK\r\n").await;
        let (mut third, _) = connect(&server).await;
        third.write_all(b"MULTI\r\n").await.unwrap();
        third.write_all(&set(700_000)).await.unwrap();
        third.write_all(b"EXEC\r\n").await.unwrap();
        expect(&mut third, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n").await;
    });
}

/// Turns authentication on, with a user `ann` who may read the key and the channel `k`; returns what took that away.
async fn with_ann(server: &Server) -> Operation {
    let read = KeyRange { rights: KeyRights::Read as i32, key: "k".into(), range_end: Bytes::new() };
    let grant = RoleGrant { role: "r".into(), grant: Some(Grant { scope: Some(Scope::Keys(read)) }) };
    let with =
        |user: &str, role: &str| Operation::GrantRole(UserRole { user: user.into(), role: role.into() });
    let user = |name: &str| Operation::AddUser(AddUser { name: name.into(), hash: String::new() });
    for operation in [
        user("root"),
        with("root", "root"),
        user("ann"),
        Operation::AddRole("r".into()),
        Operation::Grant(grant.clone()),
        with("ann", "r"),
        Operation::Enable(Enable { secret: "s".into() }),
    ] {
        change(&server.engine, operation).await;
    }
    Operation::Revoke(grant)
}

async fn change(engine: &Engine, operation: Operation) {
    let revision = engine.policy().revision();
    let reply = admission::admitted(revision, engine.propose(operation.into_command())).await.unwrap();
    assert!(matches!(reply, quoin_core::Reply::Auth(reply) if reply.result.is_ok()));
}

fn ann() -> Identity {
    Identity::User { name: "ann".into(), since: None }
}

/// The commands behind a write that came together with it read the newest state by the rights of when they came.
#[test]
fn what_a_round_sees_is_never_newer_than_what_it_was_judged_by() {
    with_server(1 << 20, async |server| {
        let revoke = with_ann(&server).await;
        let mut session = Session::new(Arc::clone(&server), Peer::Unix("a".into()), ann(), Arc::default());
        session.begin_round();
        let caller = session.caller().unwrap();
        caller
            .run(async {
                session.sight().await.map(drop).unwrap();
                session.see_own_writes(true);
                session.sight().await.map(drop).unwrap();
                change(&server.engine, revoke).await;
                session.see_own_writes(true);
                assert!(session.sight().await.is_err());
            })
            .await;
    });
}

/// A listener on a busy channel was told what came after its right to it was gone, for as long as there was something to
/// tell.
#[test]
fn who_listens_hears_nothing_more_once_the_right_is_gone() {
    with_server(1 << 20, async |server| {
        let revoke = with_ann(&server).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, address) = listener.accept().await.unwrap();
        let mut session = Session::new(Arc::clone(&server), Peer::Tcp(address), ann(), Arc::default());
        let channel = "__keyspace@0__:k".into();
        session.notices.subscribe(&server.channels, session.id, Kind::Channel, &channel);
        session.notices.changed(&server.engine);
        session.notices.settle(&server.engine);
        let put = quoin_core::kv::Put { key: "k".into(), ..Default::default() };
        let command = quoin_core::kv::Operation::Put(put).into_command();
        let revision = server.engine.policy().revision();
        admission::admitted(revision, server.engine.propose(command)).await.unwrap();
        change(&server.engine, revoke).await;
        let (_running, life) = watch::channel(false);
        serve(session, Stream::Plain(stream), Life(life)).await.unwrap();
        let mut heard = String::new();
        client.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "");
    });
}
