//! Connections between processes on this machine, each a transport with a handler that takes notes.

use super::*;
use crate::greeting::{Answer, Verdict};
use crate::message::ForwardOutcome;
use bytes::Bytes;
use parking_lot::Condvar;
use quoin_testkit::Ports;
use quoin_tls::{Clients, Files, Folder, Options, Subject, Version};
use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU16;

/// Nothing that a test waits for takes longer, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Notes what the transport says.
#[derive(Default)]
struct Notes {
    removed: Mutex<Vec<u64>>,
    /// Numbers of forward replies in order of arrival. Arrivals block while a test holds the lock.
    received: Mutex<Vec<u64>>,
    cast_out: Mutex<Vec<String>>,
    /// Peers whose connections broke, or could not be made.
    lost: Mutex<Vec<u64>>,
    failed: Mutex<Vec<String>>,
    changed: Condvar,
    /// Members and disks that are not theirs.
    other_disks: Mutex<Vec<(u64, u64)>>,
}

impl Handler for Notes {
    fn received(&self, _: u64, _: GroupId, message: PeerMessage) {
        if let PeerMessage::ForwardReply { request, .. } = message {
            assert_ne!(request, u64::MAX, "no node has sent so much");
            self.received.lock().push(request);
            self.changed.notify_all();
        }
    }
    fn lost(&self, peer: u64) {
        self.lost.lock().push(peer);
        self.changed.notify_all();
    }
    fn snapshot_offered(&self, _: u64, _: PeerStream) {}
    fn file_asked(&self, _: PeerStream) {}
    fn join_asked(&self, _: PeerStream) {}
    fn founding_asked(&self, _: u64, _: u64, _: PeerStream) {}
    fn name_of(&self, peer: u64) -> String {
        format!("n{peer}")
    }
    fn is_removed(&self, peer: u64) -> bool {
        self.removed.lock().contains(&peer)
    }
    fn is_other_disk(&self, peer: u64, disk: u64) -> bool {
        self.other_disks.lock().contains(&(peer, disk))
    }
    fn is_vouched_for(&self, _: u64, _: &str) -> bool {
        false
    }
    fn cast_out(&self, reason: &str) {
        self.cast_out.lock().push(reason.into());
        self.changed.notify_all();
    }
    fn failed(&self, reason: &str) {
        self.failed.lock().push(reason.into());
        self.changed.notify_all();
    }
}

/// Listens on a port that nobody else takes, even after the process of the test has ended.
fn free_port() -> TcpListener {
    static PORTS: LazyLock<Ports> = LazyLock::new(|| Ports::reserve().unwrap());
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let mut addresses =
        std::iter::repeat_with(|| PORTS.address(NEXT.fetch_add(1, Ordering::Relaxed) % Ports::COUNT));
    addresses.find_map(|address| TcpListener::bind(address).ok()).expect("the iterator is endless")
}

struct Process {
    notes: Arc<Notes>,
    transport: Arc<Transport>,
    listening_on: SocketAddr,
}

impl Process {
    fn start(id: u64) -> Self {
        Self::listening(id, free_port())
    }

    /// A process that waits as short as it may for a peer that does not answer.
    fn impatient(id: u64) -> Self {
        Self::with_timeouts(id, free_port(), Duration::from_millis(1))
    }

    fn listening(id: u64, listener: TcpListener) -> Self {
        Self::with_timeouts(id, listener, Duration::from_secs(60))
    }

    fn with_timeouts(id: u64, listener: TcpListener, timeouts: Duration) -> Self {
        Self::with(id, listener, timeouts, None)
    }

    /// A process that speaks TLS.
    fn with_keys(id: u64, keys: Arc<Keys>) -> Self {
        Self::with(id, free_port(), Duration::from_secs(60), Some(keys))
    }

    /// It knows the members 1, 2 and 3, and reaches none of them until it is told where they are.
    fn with(id: u64, listener: TcpListener, timeouts: Duration, keys: Option<Arc<Keys>>) -> Self {
        let listening_on = listener.local_addr().unwrap();
        let (notes, address) = (Arc::new(Notes::default()), listening_on.to_string());
        let handler = Arc::clone(&notes) as _;
        let peers = (1..=3).map(|peer| (peer, "127.0.0.1:1".to_string())).collect();
        let (who, group) = ((7, id, id), GroupId(1));
        let transport =
            Transport::start(Endpoint { listener, address, keys }, who, group, handler, &peers, timeouts)
                .unwrap();
        Self { notes, transport, listening_on }
    }

    fn address(&self) -> String {
        self.listening_on.to_string()
    }

    fn dial(&self, other: &Self) -> Result<PeerStream, String> {
        let greeting = self.transport.greeting(Purpose::Frames, other.transport.who.id);
        dial(
            &other.address(),
            &greeting,
            Dialling { keys: self.transport.keys(), name: &format!("n{}", other.transport.who.id) },
        )
        .map(|(stream, _)| stream)
        .map_err(|error| error.to_string())
    }

    fn wait_cast_out(&self) -> String {
        let mut reasons = self.notes.cast_out.lock();
        while reasons.is_empty() {
            let timeout = self.notes.changed.wait_for(&mut reasons, Duration::from_secs(30));
            assert!(!timeout.timed_out(), "it was not cast out");
        }
        reasons[0].clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.transport.stop(self.listening_on);
    }
}

#[test]
fn the_second_process_with_an_id_is_told_who_holds_it() {
    let (peer, first, second) = (Process::start(1), Process::start(2), Process::start(2));
    let held = first.dial(&peer).unwrap();
    let refused = second.dial(&peer).unwrap_err();
    assert!(
        refused.contains(&format!("as member 0000000000000002, reached at {}", first.address())),
        "{refused}"
    );
    // The first may dial as often as it likes.
    first.dial(&peer).unwrap();
    // A process at the member's address counts even without a connection.
    drop(held);
    peer.transport.set_peers(&BTreeMap::from([(2, first.address())]));
    second.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
    assert!(second.wait_cast_out().contains("stop the wrong one"));
    // A process that dials its own id is told by the holder itself.
    assert!(second.dial(&first).unwrap_err().contains(&first.address()));
}

/// A member that came back with an empty disk was welcome.
#[test]
fn a_member_on_another_disk_than_the_known_one_is_told_and_ends() {
    let (peer, member) = (Process::start(1), Process::start(2));
    member.dial(&peer).unwrap();
    // A process's disk is here its id.
    peer.notes.other_disks.lock().push((2, 2));
    assert!(
        member
            .dial(&peer)
            .unwrap_err()
            .contains("is already bootstrapped on another disk than 0000000000000002")
    );
    member.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
    assert!(member.wait_cast_out().contains("remove the member and add it anew"));
}

/// Where all other founders had been replaced, one that had lost its disk was only told that an address was wrong, and
/// waited for the founders for good.
#[test]
fn a_member_on_another_disk_is_told_so_though_it_wants_another_member() {
    let (replacement, member) = (Process::start(3), Process::start(2));
    replacement.notes.other_disks.lock().push((2, 2));
    let greeting = member.transport.greeting(Purpose::Found, 1);
    let Err(DialError::Refused { text, forever: true }) =
        dial(&replacement.address(), &greeting, Dialling::default())
    else {
        panic!("it is not refused for good");
    };
    assert!(text.contains("is already bootstrapped on another disk"), "{text}");
    replacement.notes.removed.lock().push(2);
    let text = dial(&replacement.address(), &greeting, Dialling::default()).unwrap_err().to_string();
    assert!(text.contains("was removed from cluster"), "{text}");
}

#[test]
fn a_process_that_replaces_a_dead_one_is_welcome() {
    let (peer, first) = (Process::start(1), Process::start(2));
    // The connection outlives the process, like one to a machine that lost power.
    let _lingering = first.dial(&peer).unwrap();
    let address = first.listening_on;
    drop(first);
    let second = loop {
        // The port is free once the first one's accepting thread has ended.
        if let Ok(listener) = TcpListener::bind(address) {
            break Process::listening(2, listener);
        }
    };
    let _held = second.dial(&peer).unwrap();
    let elsewhere = Process::start(2);
    assert!(elsewhere.dial(&peer).unwrap_err().contains(&second.address()));
}

/// A member that had not heard of its removal when all others had applied it stayed connected, and waited for
/// ever.
#[test]
fn a_member_that_is_connected_when_it_is_removed_is_told_so() {
    let (peer, other) = (Process::start(1), Process::start(2));
    other.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
    while !other.transport.send(1, frame(0)) {
        std::thread::yield_now();
    }
    peer.notes.removed.lock().push(2);
    peer.transport.part_with(&BTreeSet::from([2]));
    let end = Instant::now() + PATIENCE;
    while other.notes.cast_out.lock().is_empty() {
        assert!(Instant::now() < end, "it was not told");
        // Sending fails, and it dials again.
        other.transport.send(1, frame(0));
        std::thread::yield_now();
    }
    assert!(other.wait_cast_out().contains("member 0000000000000002 was removed"));
}

/// The node went on without the thread, deaf to a peer.
#[test]
fn a_thread_of_the_transport_that_panics_ends_the_node() {
    let (peer, other) = (Process::start(1), Process::start(2));
    other.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
    while !other.transport.send(1, frame(u64::MAX)) {
        std::thread::yield_now();
    }
    let mut reasons = peer.notes.failed.lock();
    while reasons.is_empty() {
        let timeout = peer.notes.changed.wait_for(&mut reasons, Duration::from_secs(30));
        assert!(!timeout.timed_out(), "nobody was told");
    }
    assert!(reasons[0].contains("peer-read") && reasons[0].contains("no node has sent"), "{reasons:?}");
}

fn frame(request: u64) -> PeerMessage {
    PeerMessage::ForwardReply { request, outcome: ForwardOutcome::NotLeader }
}

/// Messages are written at once while the connection takes them, then in part, then queued.
#[test]
fn messages_to_a_peer_that_pauses_reading_arrive_whole_and_in_order() {
    const COUNT: u64 = 400_000;
    let (peer, other) = (Process::start(1), Process::start(2));
    other.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
    while !other.transport.send(1, frame(0)) {
        std::thread::yield_now();
    }
    {
        let _blocked = peer.notes.received.lock();
        for number in 1..COUNT {
            assert!(other.transport.send(1, frame(number)), "message {number} was dropped");
        }
    }
    let mut received = peer.notes.received.lock();
    while received.len() < COUNT as usize {
        let timeout = peer.notes.changed.wait_for(&mut received, Duration::from_secs(30));
        assert!(!timeout.timed_out(), "{} of {COUNT} arrived", received.len());
    }
    assert!(received.iter().copied().eq(0..COUNT));
}

#[test]
fn removed_members_and_strangers_are_told_why_they_are_refused() {
    let (peer, other) = (Process::start(1), Process::start(2));
    peer.notes.removed.lock().push(2);
    assert!(
        other
            .dial(&peer)
            .unwrap_err()
            .contains("member 0000000000000002 was removed from cluster 0000000000000007")
    );
    other.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
    assert!(other.wait_cast_out().contains("delete its data folder"));
    let third = Process::start(3);
    let greeting = third.transport.greeting(Purpose::Frames, 9);
    let refused = dial(&peer.address(), &greeting, Dialling::default()).unwrap_err().to_string();
    assert!(refused.contains("is member 0000000000000001, not 0000000000000009"), "{refused}");
    // Anybody could connect, and send what it liked.
    let unknown = Process::start(4);
    assert!(
        unknown
            .dial(&peer)
            .unwrap_err()
            .contains("does not know member 0000000000000004 of cluster 0000000000000007 yet")
    );
    peer.transport.set_peers(&BTreeMap::from([(4, unknown.address())]));
    unknown.dial(&peer).unwrap();
    let greeting = Greeting { cluster: 8, ..third.transport.greeting(Purpose::Frames, 1) };
    let refused = dial(&peer.address(), &greeting, Dialling::default()).unwrap_err().to_string();
    assert!(
        refused.contains("belongs to cluster 0000000000000007, this node to 0000000000000008"),
        "{refused}"
    );
}

/// Reads until the other side closes the connection.
fn wait_closed(stream: &PeerStream) {
    let mut stream = stream.clone();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "nothing is said on a connection for frames");
}

#[test]
fn a_member_s_new_connection_replaces_its_former_one() {
    let (peer, other) = (Process::start(1), Process::start(2));
    let former = other.dial(&peer).unwrap();
    let new = other.dial(&peer).unwrap();
    wait_closed(&former);
    // The new one is not touched.
    new.socket().set_nonblocking(true).unwrap();
    assert_eq!(new.socket().read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

/// A peer was dialled again only when TCP gave the connection up: a minute after the network had cut it off, and
/// a minute after the network was whole again.
#[test]
fn a_peer_that_takes_messages_and_says_nothing_is_dialled_again() {
    let listener = free_port();
    let address = listener.local_addr().unwrap().to_string();
    listener.set_nonblocking(true).unwrap();
    let welcome = || {
        let end = Instant::now() + PATIENCE;
        let (mut stream, _) = loop {
            match listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                accepted => break accepted.unwrap(),
            }
            assert!(Instant::now() < end, "it was not dialled");
        };
        Greeting::read(&mut stream).unwrap();
        let who = Who { cluster: 7, id: 1, incarnation: 1 };
        stream
            .write_all(&Answer { verdict: Verdict::Welcome as u64, who, rival: String::new() }.encode())
            .unwrap();
        stream
    };
    let other = Process::impatient(2);
    other.transport.set_peers(&BTreeMap::from([(1, address)]));
    let first = welcome();
    while !other.transport.send(1, frame(0)) {
        std::thread::yield_now();
    }
    // It takes what it is sent: for TCP all is well.
    let reading = std::thread::spawn(move || io::copy(&mut &first, &mut io::sink()).unwrap());
    let _second = welcome();
    assert!(reading.join().unwrap() > 0);
}

/// The writing thread sleeps while there is nothing to send, and did not see that the peer had gone: the next
/// message was lost.
#[test]
fn a_peer_that_closed_its_connection_is_dialled_again_before_anything_is_sent() {
    let (peer, other) = (Process::impatient(1), Process::impatient(2));
    other.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
    while !other.transport.send(1, frame(0)) {
        std::thread::yield_now();
    }
    peer.transport.set_peers(&BTreeMap::from([(2, other.address())]));
    let lost = || other.notes.lost.lock().iter().filter(|peer| **peer == 1).count();
    let before = lost();
    peer.transport.acceptor.close(&BTreeSet::from([2]));
    let end = Instant::now() + PATIENCE;
    while lost() == before {
        assert!(Instant::now() < end, "it was not noticed");
        // It is heard all the time, so that nobody waits for a word of it.
        peer.transport.send(2, frame(1));
        std::thread::yield_now();
    }
}

fn loopback(state: &str) -> bool {
    let ip = Command::new("ip").args(["link", "set", "lo", state]).status();
    ip.is_ok_and(|status| status.success())
}

fn wait<T>(lock: &Mutex<T>, changed: &Condvar, what: &str, mut condition: impl FnMut(&T) -> bool) {
    let mut value = lock.lock();
    while !condition(&value) {
        assert!(
            !changed.wait_for(&mut value, Duration::from_secs(30)).timed_out(),
            "waited in vain for {what}"
        );
    }
}

#[test]
#[ignore = "it cuts the network off: the next test runs it in a namespace of its own"]
fn inside_a_network_of_its_own() {
    assert!(loopback("up"));
    let (peer, other) = (Process::impatient(1), Process::impatient(2));
    other.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
    while !other.transport.send(1, frame(0)) {
        std::thread::yield_now();
    }
    wait(&peer.notes.received, &peer.notes.changed, "the first message", |received| *received == [0]);
    let lost_before = other.notes.lost.lock().len();
    assert!(loopback("down"));
    assert!(other.transport.send(1, frame(1)), "nobody has noticed yet");
    let lost = |lost: &Vec<u64>| lost.len() > lost_before;
    wait(&other.notes.lost, &other.notes.changed, "the end of the dead connection", lost);
    assert!(loopback("up"));
    while !other.transport.send(1, frame(2)) {
        std::thread::yield_now();
    }
    let arrived = |received: &Vec<u64>| received.contains(&2);
    wait(&peer.notes.received, &peer.notes.changed, "a message after the cut", arrived);
}

/// An attempt to connect lasted a second and was followed by a pause of half a second, so a node that had been cut off served no
/// writes for up to two seconds after the network was whole again.
#[test]
fn a_peer_that_nothing_reaches_is_dialled_as_often_as_one_that_refuses() {
    let election_timeout = Duration::from_millis(400);
    let attempt = Patience::of(election_timeout * 2).to_connect();
    assert_eq!(attempt, election_timeout);
    assert_eq!(attempt + pause_left(RECONNECT_PAUSE_MAX, attempt), RECONNECT_PAUSE_MAX);
    let longer = RECONNECT_PAUSE_MAX * 2;
    assert_eq!(pause_left(RECONNECT_PAUSE_MAX, longer), Duration::ZERO);
    assert_eq!(pause_left(RECONNECT_PAUSE_MAX, Duration::ZERO), RECONNECT_PAUSE_MAX);
}

/// A connection that the network had cut off for 45 s was used for 10 s more when the network was whole again: TCP
/// tries ever more rarely, and nobody had made a new one meanwhile.
#[test]
fn a_connection_that_the_network_cut_off_is_given_up_and_made_anew() {
    let isolated = |command: &[&str]| Command::new("unshare").arg("--net").args(command).output();
    if !isolated(&["ip", "link", "set", "lo", "up"]).is_ok_and(|output| output.status.success()) {
        let _ = writeln!(io::stderr(), "skipped: no network namespace can be made here");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let inside = "transport::tests::inside_a_network_of_its_own";
    let output = isolated(&[program.to_str().unwrap(), "--ignored", "--exact", inside]).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// An authority, and what it signs for.
struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = |name: &str| Subject::Node { name: name.into(), hosts: vec!["127.0.0.1".into()] };
        let client = Subject::Client { name: "n1".into() };
        Folder::at(folder.path()).make(&[node("n1"), node("n2"), client], 1).unwrap();
        Self { folder }
    }

    /// The keys of a node of this authority, which trusts `other`.
    fn node(&self, name: &str, other: &Self) -> Arc<Keys> {
        self.keys(Folder::at(self.folder.path()).node(name), other)
    }

    fn keys(&self, place: quoin_tls::Place, other: &Self) -> Arc<Keys> {
        let authority = Some(Folder::at(other.folder.path()).authority());
        let files = Files { certificate: place.certificate, key: place.key, authority };
        Keys::load(Options { files, clients: Clients::Required, oldest: Version::V12 }).unwrap()
    }
}

#[test]
fn frames_of_all_sizes_arrive_in_order_over_tls() {
    let ours = Certificates::new();
    let (peer, sender) =
        (Process::with_keys(1, ours.node("n1", &ours)), Process::with_keys(2, ours.node("n2", &ours)));
    sender.transport.set_peers(&[(1, peer.address())].into());
    // Written by the writing thread, between those that are written at once.
    let large = |request| {
        let command =
            quoin_core::Command { face: quoin_core::Face::Kv, bytes: Bytes::from(vec![7; 300_000]) };
        PeerMessage::Forward { request, commands: vec![command; request as usize % 9], paced: false }
    };
    let mut request = 0;
    // Those before there is a connection are dropped.
    while request < 60 {
        let sent = sender.transport.send(1, large(request)) && sender.transport.send(1, frame(request));
        request += u64::from(sent);
    }
    let mut received = peer.notes.received.lock();
    while received.len() < 60 {
        assert!(!peer.notes.changed.wait_for(&mut received, PATIENCE).timed_out(), "{} came", received.len());
    }
    assert_eq!(*received, (0..60).collect::<Vec<_>>());
}

#[test]
fn who_has_no_certificate_of_the_member_is_refused() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let peer = Process::with_keys(1, ours.node("n1", &ours));
    Process::with_keys(2, ours.node("n2", &ours)).dial(&peer).unwrap();
    let wrong_member = Process::with_keys(3, ours.node("n2", &ours)).dial(&peer).unwrap_err();
    assert!(wrong_member.contains("does not take this node's certificate"), "{wrong_member}");
    // A client's certificate of the same authority is none of a node.
    let client = ours.keys(Folder::at(ours.folder.path()).client("n1"), &ours);
    assert!(Process::with_keys(2, client).dial(&peer).is_err());
    // Another authority, which trusts ours.
    assert!(Process::with_keys(2, theirs.node("n2", &ours)).dial(&peer).is_err());
    let plain = Process::start(2).dial(&peer).unwrap_err();
    assert!(plain.contains("speaks TLS alone") && plain.contains("tls.peer_cert_file"), "{plain}");
    assert!(peer.notes.received.lock().is_empty());
}

/// A dialler that believed whoever answers could be told to end.
#[test]
fn who_answers_must_be_the_member_that_is_dialled() {
    let ours = Certificates::new();
    let (first, second) =
        (Process::with_keys(1, ours.node("n1", &ours)), Process::with_keys(2, ours.node("n2", &ours)));
    let wrong = Process::with_keys(3, ours.node("n2", &ours));
    let refused = first.dial(&wrong).unwrap_err();
    assert!(
        refused.contains("is that of quoin://node/n2") && refused.contains("not of node n3"),
        "{refused}"
    );
    first.dial(&second).unwrap();
    let plain = first.dial(&Process::start(2)).unwrap_err();
    assert!(plain.contains("TLS with 127.0.0.1"), "{plain}");
}

/// A handshake that is begun and never ended is given up like a greeting.
#[test]
fn a_handshake_that_never_ends_is_given_up() {
    let ours = Certificates::new();
    let peer = Process::with_keys(1, ours.node("n1", &ours));
    let mut stream = TcpStream::connect(peer.address()).unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00").unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // An error: it was reset.
    assert!(!matches!(stream.read(&mut [0; 16]), Err(error) if error.kind() == io::ErrorKind::WouldBlock));
}
