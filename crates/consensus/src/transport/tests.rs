//! Connections between processes on this machine, each a transport with a handler that takes notes.

use super::*;
use crate::message::ForwardOutcome;
use parking_lot::Condvar;
use quoin_testkit::Ports;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU16;

/// Notes what the transport says.
#[derive(Default)]
struct Notes {
    removed: Mutex<Vec<u64>>,
    /// Numbers of forward replies in order of arrival. Arrivals block while a test holds the lock.
    received: Mutex<Vec<u64>>,
    cast_out: Mutex<Vec<String>>,
    changed: Condvar,
    /// Members and disks that are not theirs.
    other_disks: Mutex<Vec<(u64, u64)>>,
}

impl Handler for Notes {
    fn received(&self, _: u64, _: GroupId, message: PeerMessage) {
        if let PeerMessage::ForwardReply { request, .. } = message {
            self.received.lock().push(request);
            self.changed.notify_all();
        }
    }
    fn lost(&self, _: u64) {}
    fn snapshot_offered(&self, _: u64, _: TcpStream) {}
    fn join_asked(&self, _: TcpStream) {}
    fn founding_asked(&self, _: u64, _: u64, _: TcpStream) {}
    fn is_removed(&self, peer: u64) -> bool {
        self.removed.lock().contains(&peer)
    }
    fn is_other_disk(&self, peer: u64, disk: u64) -> bool {
        self.other_disks.lock().contains(&(peer, disk))
    }
    fn cast_out(&self, reason: &str) {
        self.cast_out.lock().push(reason.into());
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

    fn listening(id: u64, listener: TcpListener) -> Self {
        let listening_on = listener.local_addr().unwrap();
        let (notes, address) = (Arc::new(Notes::default()), listening_on.to_string());
        let handler = Arc::clone(&notes) as _;
        let transport = Transport::start(listener, address, (7, id, id), GroupId(1), handler).unwrap();
        Self { notes, transport, listening_on }
    }

    fn address(&self) -> String {
        self.listening_on.to_string()
    }

    fn dial(&self, other: &Self) -> Result<TcpStream, String> {
        let greeting = self.transport.greeting(Purpose::Frames, other.transport.who.id);
        dial(&other.address(), &greeting).map(|(stream, _)| stream).map_err(|error| error.to_string())
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
    assert!(member.dial(&peer).unwrap_err().contains("is already bootstrapped on another disk than 2"));
    member.transport.set_peers(&BTreeMap::from([(1, peer.address())]));
    assert!(member.wait_cast_out().contains("remove the member and add it anew"));
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
    while other.notes.cast_out.lock().is_empty() {
        // Sending fails, and it dials again.
        other.transport.send(1, frame(0));
        std::thread::yield_now();
    }
    assert!(other.wait_cast_out().contains("member 0000000000000002 was removed"));
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
    let refused = dial(&peer.address(), &greeting).unwrap_err().to_string();
    assert!(refused.contains("is member 0000000000000001, not 0000000000000009"), "{refused}");
    let greeting = Greeting { cluster: 8, ..third.transport.greeting(Purpose::Frames, 1) };
    let refused = dial(&peer.address(), &greeting).unwrap_err().to_string();
    assert!(
        refused.contains("belongs to cluster 0000000000000007, this node to 0000000000000008"),
        "{refused}"
    );
}
