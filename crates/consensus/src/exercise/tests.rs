//! What a peer may send: the places where the library panics, each with a message that led there, and arbitrary
//! and mutated messages.

use super::*;
use crate::frame::{FRAME_HEADER, FrameBuffer, PEER_TYPES};
use crate::message::RaftMessage;
use proptest::collection::vec;
use proptest::prelude::*;
use raft::StateRole;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// The term in which [`follower`] follows 2, and for which [`candidate`] asks for votes and [`leader`] won them.
const TERM: u64 = 5;

/// One of the types that peers send each other, or of two that no frame holds.
fn kind(draw: usize) -> MessageType {
    let others = [MessageType::MsgSnapshot, MessageType::MsgPropose];
    let number = draw % (PEER_TYPES.len() + others.len());
    *PEER_TYPES.iter().chain(&others).nth(number).expect("there are as many")
}

fn message(kind: MessageType, change: impl FnOnce(&mut Message)) -> Message {
    let mut message = Message::default();
    message.set_msg_type(kind);
    (message.from, message.to, message.term) = (2, 1, TERM);
    change(&mut message);
    message
}

fn entry(index: u64, term: u64) -> Entry {
    let mut entry = Entry::default();
    (entry.index, entry.term) = (index, term);
    entry
}

fn context(bytes: &[u8]) -> Entry {
    let mut entry = Entry::default();
    entry.data = Bytes::copy_from_slice(bytes);
    entry
}

fn append(log_term: u64, index: u64, entries: Vec<Entry>, commit: u64) -> Message {
    message(MessageType::MsgAppend, |message| {
        (message.log_term, message.index, message.commit) = (log_term, index, commit);
        message.entries = entries.into();
    })
}

fn receive(victim: &mut Victim, from: u64, message: Message) {
    victim.receive(from, PeerMessage::Raft(RaftMessage(Box::new(message))));
    victim.work();
}

/// 1 follows 2. Its log ends at 4, and is committed up to 3.
fn follower() -> Victim {
    let mut victim = Victim::start(1, &[1, 2, 3]);
    receive(&mut victim, 2, append(1, 1, (2..=4).map(|index| entry(index, TERM)).collect(), 3));
    victim.write();
    assert_eq!((victim.replica.role(), victim.replica.committed()), (StateRole::Follower, 3));
    victim
}

/// As [`follower`], with a log that ends at 2, before the term in which it asks for votes.
fn candidate() -> Victim {
    let mut victim = Victim::start(1, &[1, 2, 3]);
    let before = |message: &mut Message| message.term = TERM - 1;
    receive(&mut victim, 2, append(1, 1, vec![entry(2, TERM - 1)], 2).tap(before));
    victim.write();
    while victim.replica.role() == StateRole::Follower {
        victim.tick();
    }
    victim
}

/// The only voter, which follows 2. The end of its log is not on disk yet.
fn slow() -> Victim {
    let mut victim = Victim::start(1, &[1]);
    receive(&mut victim, 2, append(1, 1, vec![entry(2, TERM)], 1));
    victim
}

/// 1 leads, and has committed an entry of its term.
fn leader() -> Victim {
    let mut victim = candidate();
    for kind in [MessageType::MsgRequestPreVoteResponse, MessageType::MsgRequestVoteResponse] {
        receive(&mut victim, 2, message(kind, |_| ()));
        victim.write();
    }
    receive(&mut victim, 2, message(MessageType::MsgAppendResponse, |message| message.index = 3));
    assert_eq!((victim.replica.role(), victim.replica.committed()), (StateRole::Leader, 3));
    victim
}

trait Tap: Sized {
    fn tap(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
impl Tap for Message {}

/// A place, a replica in the state that it takes, and the message.
type Place = (&'static str, fn() -> Victim, Message);

/// Where the library, or this crate behind it, panics, in which state of a replica, and the message. These are all
/// places of raft 0.7 that a message reaches: `fatal!`, `panic!`, `unwrap`, `expect`, assertions, indexing, and
/// arithmetic, which panics in builds that check it. Two more are reached by kinds that no frame holds (see
/// `frame.rs`): a proposal without entries (raft.rs, `stepped empty MsgProp`), and the mark of a snapshot that
/// nobody has offered.
fn places() -> Vec<Place> {
    use MessageType::*;
    vec![
        ("raft_log.rs commit_to: out of range", follower, message(MsgHeartbeat, |m| m.commit = 5)),
        ("raft_log.rs commit_to, by an append", follower, append(0, 9, vec![], 9)),
        (
            "raft_log.rs commit_to, by the answer to a read",
            follower,
            message(MsgReadIndexResp, |m| {
                (m.term, m.index) = (0, 9);
                m.entries = vec![context(b"c")].into();
            }),
        ),
        ("log_unstable.rs must_check_outofbounds", follower, append(0, 9, vec![entry(10, TERM)], 0)),
        (
            "raft_log.rs maybe_append: conflict with committed",
            follower,
            append(TERM, 3, vec![entry(3, 4)], 3),
        ),
        (
            "raft_log.rs maybe_append: the place of the conflict",
            follower,
            append(TERM, 4, vec![entry(9, TERM)], 3),
        ),
        ("raft_log.rs maybe_append: the last index", follower, append(0, u64::MAX, vec![entry(1, 1)], 3)),
        (
            "raft.rs send: term should be set",
            candidate,
            message(MsgRequestVote, |m| (m.term, m.log_term, m.index) = (0, TERM, 9)),
        ),
        ("raft.rs send: term should not be set", follower, message(MsgTransferLeader, |m| m.from = 3)),
        (
            "raft.rs send: term should not be set, of a read",
            follower,
            message(MsgReadIndex, |m| m.entries = vec![context(b"c")].into()),
        ),
        ("raft.rs become_candidate: the next term", follower, message(MsgHeartbeat, |m| m.term = u64::MAX)),
        (
            "changes.rs: the context of a configuration entry",
            follower,
            append(TERM, 4, vec![entry(5, TERM).configuration(b"\xff")], 5),
        ),
        (
            "raft.rs step_candidate: the term of an append",
            candidate,
            append(4, 2, vec![], 0).tap(|m| m.term = 0),
        ),
        ("raft.rs become_leader: the last entry is persisted", slow, message(MsgTimeoutNow, |_| ())),
        ("raft.rs step_leader: a read without a context", leader, message(MsgReadIndex, |m| m.term = 0)),
        (
            "progress.rs maybe_update: the next index",
            leader,
            message(MsgAppendResponse, |m| m.index = u64::MAX),
        ),
        (
            "progress.rs maybe_decr_to: the next index",
            leader,
            message(MsgAppendResponse, |m| {
                (m.reject, m.index, m.reject_hint) = (true, 2, u64::MAX);
                m.from = 3;
            }),
        ),
        (
            "progress.rs become_probe: the next index",
            leader,
            message(MsgAppendResponse, |m| {
                (m.reject, m.index, m.request_snapshot) = (true, 3, u64::MAX);
            }),
        ),
    ]
}

trait Configure {
    fn configuration(self, context: &'static [u8]) -> Entry;
    fn placed(self, index: u64) -> Entry;
}
impl Configure for Entry {
    fn configuration(mut self, context: &'static [u8]) -> Entry {
        self.set_entry_type(EntryType::EntryConfChangeV2);
        self.context = Bytes::from_static(context);
        self
    }

    fn placed(mut self, index: u64) -> Entry {
        (self.index, self.term) = (index, TERM);
        self
    }
}

/// What follows a message: appends complete, time passes, a snapshot ends.
fn go_on(victim: &mut Victim) {
    victim.work();
    victim.write();
    victim.replica.snapshot_sent(2, true);
    for _ in 0..100 {
        victim.tick();
        victim.write();
    }
}

/// Any peer could kill a node: the raft crate panics on messages that no replica sends.
#[test]
fn no_message_reaches_a_place_where_the_library_panics() {
    for (place, start, message) in places() {
        let mut unchecked = start();
        let panics = catch_unwind(AssertUnwindSafe(|| {
            unchecked.replica.step_unchecked(message.clone());
            go_on(&mut unchecked);
        }));
        assert!(panics.is_err(), "{place}: the message does not lead there");
        let mut victim = start();
        let from = if message.get_msg_type() == MessageType::MsgTransferLeader { 2 } else { message.from };
        receive(&mut victim, from, message);
        go_on(&mut victim);
    }
}

/// The only voter left campaigned while the end of its log was being written, and panicked.
#[test]
fn a_replica_does_not_campaign_before_its_log_is_on_disk() {
    let mut victim = slow();
    (0..100).for_each(|_| victim.tick());
    assert_eq!(victim.replica.role(), StateRole::Follower);
    victim.write();
    (0..100).for_each(|_| victim.tick());
    assert_eq!(victim.replica.role(), StateRole::Leader);
}

#[test]
fn a_message_in_another_member_s_name_is_not_stepped() {
    let vote = message(MessageType::MsgHeartbeat, |message| (message.from, message.term) = (3, TERM + 1));
    let mut victim = follower();
    for from in [0, 1, 2] {
        receive(&mut victim, from, vote.clone());
        assert_eq!(victim.replica.leader(), 2);
    }
    receive(&mut victim, 3, vote.clone().tap(|message| message.to = 2));
    assert_eq!(victim.replica.leader(), 2);
    receive(&mut victim, 3, vote);
    assert_eq!(victim.replica.leader(), 3);
}

/// Several checks stand between most messages and the library: without one of them another one may still refuse what
/// it is for. So each is asked for by its reason.
#[test]
fn every_check_refuses_what_it_is_for() {
    use MessageType::*;
    let read = |data: &[u8]| {
        message(MsgReadIndex, |m| {
            m.term = 0;
            m.entries = vec![context(data)].into();
        })
    };
    let (large, long) = (1 << 62, Bytes::from_static(&[0; 65]));
    let refused = [
        ("a message for another member", 2, message(MsgHeartbeat, |m| m.to = 3)),
        ("a message from nobody, or from this replica", 1, message(MsgHeartbeat, |m| m.from = 1)),
        ("a message from nobody, or from this replica", 0, message(MsgHeartbeat, |m| m.from = 0)),
        ("a message in another member's name", 3, message(MsgHeartbeat, |_| ())),
        ("untimely", 2, read(b"c").tap(|m| m.from = 1)),
        ("untimely", 2, read(b"c").tap(|m| m.from = 0)),
        ("a transfer to nobody", 2, message(MsgTransferLeader, |m| m.from = 0)),
        ("a number that is too large", 2, message(MsgAppend, |m| m.index = large)),
        ("a number that is too large", 2, message(MsgHeartbeat, |m| m.commit = large)),
        ("a number that is too large", 2, message(MsgAppendResponse, |m| m.reject_hint = large)),
        ("a number that is too large", 2, message(MsgHeartbeat, |m| m.log_term = large)),
        ("a number that is too large", 2, message(MsgHeartbeat, |m| m.commit_term = large)),
        ("a context that is too long", 2, message(MsgHeartbeat, |m| m.context = long.clone())),
        ("a request for a snapshot", 2, message(MsgAppendResponse, |m| m.request_snapshot = 1)),
        (
            "a snapshot's mark in a message",
            2,
            message(MsgAppend, |m| m.mut_snapshot().mut_metadata().index = 9),
        ),
        ("a read round's context that is too long", 2, read(&[0; 65])),
        (
            "a read round's context that is too long",
            2,
            read(b"c").tap(|m| m.mut_entries()[0].context = long.clone().slice(..1)),
        ),
        ("a read round without a context, or with several", 2, message(MsgReadIndex, |m| m.term = 0)),
        (
            "a read round without a context, or with several",
            2,
            read(b"c").tap(|m| m.mut_entries().push(context(b"d"))),
        ),
        ("entries outside an append", 2, message(MsgHeartbeat, |m| m.entries = vec![entry(5, TERM)].into())),
        ("a kind that no replica sends", 2, message(MsgSnapshot, |_| ())),
        ("a kind that no replica sends", 2, message(MsgPropose, |_| ())),
        ("a kind that no replica sends", 2, message(MsgHup, |_| ())),
        ("a kind that no replica sends", 2, message(MsgBeat, |_| ())),
        ("a kind that no replica sends", 2, message(MsgUnreachable, |_| ())),
        ("a kind that no replica sends", 2, message(MsgSnapStatus, |_| ())),
        ("a kind that no replica sends", 2, message(MsgCheckQuorum, |_| ())),
        ("a read round with a term", 2, read(b"c").tap(|m| m.term = TERM)),
        ("a message without a term", 2, message(MsgHeartbeat, |m| m.term = 0)),
        ("a term that is too far ahead", 2, message(MsgHeartbeat, |m| m.term = TERM + (1 << 32) + 1)),
        ("an entry of a later term than its sender's", 2, append(TERM + 1, 4, vec![], 3)),
        ("a second leader in one term", 3, message(MsgHeartbeat, |m| m.from = 3)),
        ("a second leader in one term", 3, append(TERM, 4, vec![], 3).tap(|m| m.from = 3)),
        (
            "a heartbeat that commits what this replica has not got",
            2,
            message(MsgHeartbeat, |m| m.commit = 5),
        ),
        ("an append after an entry without a term", 2, append(0, 4, vec![], 3)),
        ("an entry out of order", 2, append(TERM, 4, vec![entry(6, TERM)], 3)),
        ("an entry of a term that does not follow", 2, append(TERM, 4, vec![entry(5, TERM - 1)], 3)),
        ("an entry of a term that does not follow", 2, append(TERM, 4, vec![entry(5, TERM + 1)], 3)),
        ("an entry that cannot be decoded", 2, append(TERM, 4, vec![context(b"no batch").placed(5)], 3)),
        ("untimely", 2, message(MsgTransferLeader, |_| ())),
        ("untimely", 2, message(MsgTimeoutNow, |m| m.term = TERM + 1)),
        ("untimely", 3, message(MsgTimeoutNow, |m| m.from = 3)),
    ];
    let victim = follower();
    for (reason, from, message) in refused {
        assert_eq!(victim.replica.refusal(from, &message), Some(reason), "{message:?}");
    }
    let admitted =
        [message(MsgHeartbeat, |m| m.commit = 4), append(TERM, 4, vec![entry(5, TERM)], 5), read(&[0; 64])];
    for message in admitted {
        assert_eq!(victim.replica.refusal(2, &message), None, "{message:?}");
    }
    let mut victim = leader();
    for (reason, change) in [
        ("an answer to an append beyond this leader's log", (4, 0)),
        ("a hint beyond this leader's log", (3, 4)),
    ] {
        let answer = message(MsgAppendResponse, |m| (m.index, m.reject_hint) = change);
        assert_eq!(victim.replica.refusal(2, &answer), Some(reason));
    }
    for number in 0..1024u32 {
        assert_eq!(victim.replica.refusal(2, &read(&number.to_le_bytes())), None, "{number}");
        receive(&mut victim, 2, read(&number.to_le_bytes()));
    }
    assert_eq!(victim.replica.refusal(2, &read(b"one more")), Some("untimely"));
}

/// A snapshot with an empty or impossible configuration.
#[test]
fn a_snapshot_that_no_leader_made_is_not_offered_to_the_library() {
    let of = |voters: &[u64], learners: &[u64], outgoing: &[u64], next: &[u64], auto_leave| Configuration {
        voters: voters.to_vec(),
        learners: learners.to_vec(),
        voters_outgoing: outgoing.to_vec(),
        learners_next: next.to_vec(),
        auto_leave,
    };
    let impossible = [
        of(&[1, 1], &[], &[], &[], false),
        of(&[1, 0], &[], &[], &[], false),
        of(&[1], &[1], &[], &[], false),
        of(&[], &[1], &[], &[], false),
        of(&[1, 2], &[], &[], &[2], false),
        of(&[1, 2], &[], &[], &[], true),
        of(&[1, 2], &[], &[1, 3], &[2], false),
        of(&[1, 2], &[3], &[1, 3], &[], false),
        of(&[1, 2], &[], &[3, 3], &[], false),
        of(&[1, 2], &[], &[1, 3], &[1], false),
    ];
    for configuration in impossible {
        let mut victim = follower();
        victim.replica.offer_snapshot(2, 9, TERM, &configuration);
        victim.work();
        assert_eq!(victim.replica.committed(), 3, "{configuration:?}");
    }
    let possible = of(&[1, 2], &[4], &[1, 3], &[3], true);
    for (index, term) in [(0, TERM), (9, 0), (9, u64::MAX), (u64::MAX, TERM)] {
        let mut victim = follower();
        victim.replica.offer_snapshot(2, index, term, &possible);
        victim.work();
        assert_eq!(victim.replica.committed(), 3, "{term} at {index}");
    }
    let mut victim = follower();
    victim.replica.offer_snapshot(2, 9, TERM, &possible);
    assert_eq!(victim.replica.effects(0).install, Some((9, TERM)));
    assert_eq!(victim.replica.configuration(), possible);
}

/// The files' names say what becomes of them: `read-...` or `refused-...`.
#[test]
fn the_fuzzer_s_corpus_is_read_or_refused_as_its_names_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/frames");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        write_corpus(&folder);
    }
    let mut seen = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let read = frames(&std::fs::read(&path).unwrap());
        assert_eq!(read, name.starts_with("read-"), "{name}");
        assert!(read || name.starts_with("refused-"), "{name}");
        seen += 1;
    }
    assert!(seen >= 15, "{seen} files in {}", folder.display());
}

fn body(message: Message) -> Vec<u8> {
    let mut buffer = FrameBuffer::default();
    buffer.push(GROUP, &PeerMessage::Raft(RaftMessage(Box::new(message))));
    buffer.take().concat().split_off(FRAME_HEADER)
}

fn step(from: u8, body: &[u8]) -> Vec<u8> {
    [&[4 + from][..], &(body.len() as u16).to_le_bytes(), body].concat()
}

/// A corpus to begin with: each of [`places`], after what brings the fuzzer's replica near there.
fn write_corpus(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let entries: Vec<Entry> = (2..=4).map(|index| entry(index, TERM)).collect();
    let follow = [step(2, &body(append(1, 1, entries, 3))), vec![1]].concat();
    let ask = |kind| step(2, &body(message(kind, |message| message.term = 2)));
    let won = [MessageType::MsgRequestPreVoteResponse, MessageType::MsgRequestVoteResponse].map(ask);
    let lead = [&[0, 20][..], &won[0], &[1], &won[1], &[1, 2, 3]].concat();
    let mut files = vec![("read-nothing".to_string(), Vec::new()), ("read-leads".into(), lead.clone())];
    for (number, (_, _, message)) in places().into_iter().enumerate() {
        let term = message.term;
        files.push((
            format!("read-follower-{number:02}"),
            [&follow[..], &step(2, &body(message.clone())), &[1, 0, 50]].concat(),
        ));
        let message = message.tap(|message| message.term = if term == TERM { 2 } else { term });
        files.push((
            format!("read-leader-{number:02}"),
            [&lead[..], &step(2, &body(message)), &[1, 0, 50]].concat(),
        ));
    }
    let whole = body(message(MessageType::MsgHeartbeat, |_| ()));
    for (name, place, byte) in
        [("kind", 0, 9), ("hup", 5, 0), ("proposal", 5, 2), ("snapshot", 5, 7), ("status", 5, 11)]
    {
        let mut body = whole.clone();
        body[place] = byte;
        files.push((format!("refused-{name}"), step(2, &body)));
    }
    files.push(("refused-cut".into(), step(2, &whole[..whole.len() - 1])));
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

/// What happens next in a cluster of three, drawn by number.
#[derive(Clone, Debug)]
enum Step {
    Tick(usize, u8),
    Write(usize),
    Propose(usize),
    Read(usize),
    Lost(usize, u64),
    /// Deliver a message that is on its way.
    Deliver(usize),
    /// Deliver a copy of one with one field changed.
    Mutated(usize, u8, u64),
    /// Deliver a message that nobody has sent.
    Forged {
        at: usize,
        from: u64,
        kind: usize,
        fields: [u64; 9],
        entries: Vec<(u64, u64, bool)>,
    },
}

fn steps() -> impl Strategy<Value = Step> {
    let at = 0..3usize;
    prop_oneof![
        3 => (at.clone(), 1..12u8).prop_map(|(at, ticks)| Step::Tick(at, ticks)),
        4 => at.clone().prop_map(Step::Write),
        2 => at.clone().prop_map(Step::Propose),
        1 => at.clone().prop_map(Step::Read),
        1 => (at.clone(), 1..4u64).prop_map(|(at, peer)| Step::Lost(at, peer)),
        12 => any::<usize>().prop_map(Step::Deliver),
        6 => any::<(usize, u8, u64)>().prop_map(|(number, field, draw)| Step::Mutated(number, field, draw)),
        6 => (at, 0..5u64, 0..20usize, any::<[u64; 9]>(), vec(any::<(u64, u64, bool)>(), 0..3)).prop_map(
            |(at, from, kind, fields, entries)| Step::Forged { at, from, kind, fields, entries }
        ),
    ]
}

/// A number near one that matters to `victim`, or any.
fn near(victim: &Victim, draw: u64) -> u64 {
    let replica = &victim.replica;
    let known = [0, 1, replica.term(), replica.committed(), replica.last_index(), u64::MAX, 1 << 62, draw];
    known[(draw % 8) as usize].wrapping_add((draw >> 8) % 5).wrapping_sub(2)
}

fn change(victim: &Victim, message: &mut Message, field: u8, draw: u64) {
    let number = near(victim, draw);
    match field % 12 {
        0 => message.set_msg_type(kind(draw as usize)),
        1 => message.from = draw % 5,
        2 => message.to = draw % 5,
        3 => message.term = number,
        4 => message.log_term = number,
        5 => message.index = number,
        6 => message.commit = number,
        7 => message.commit_term = number,
        8 => message.reject_hint = number,
        9 => message.reject = !message.reject,
        10 => message.request_snapshot = number,
        _ => match message.mut_entries().last_mut() {
            Some(entry) if draw.is_multiple_of(2) => entry.index = number,
            Some(entry) => entry.term = number,
            None => message.context = Bytes::copy_from_slice(&draw.to_le_bytes()),
        },
    }
}

fn forged(victim: &Victim, draw: usize, fields: [u64; 9], entries: Vec<(u64, u64, bool)>) -> Message {
    let mut message = Message::default();
    message.set_msg_type(kind(draw));
    (message.to, message.from) = (victim.replica.id(), 1 + fields[0] % 4);
    for (field, draw) in (3..).zip(fields) {
        // Half of them stay 0, as in real messages.
        if draw.is_multiple_of(2) {
            change(victim, &mut message, field, draw >> 1);
        }
    }
    for (index, term, configures) in entries {
        let mut entry = entry(near(victim, index), near(victim, term));
        if configures {
            entry.set_entry_type(EntryType::EntryConfChangeV2);
        }
        message.mut_entries().push(entry);
    }
    message
}

/// The message as it comes out of its frame, if it does.
fn framed(message: PeerMessage) -> Option<PeerMessage> {
    let mut buffer = FrameBuffer::default();
    buffer.push(GROUP, &message);
    let body = Bytes::from(buffer.take().concat().split_off(FRAME_HEADER));
    let crc = crc32c::crc32c(&body);
    decode_body(body, crc).ok().map(|(_, message)| message)
}

fn deliver(replicas: &mut [Victim], from: u64, to: usize, message: PeerMessage) {
    if let Some(message) = framed(message) {
        replicas[to].receive(from, message);
        replicas[to].work();
    }
}

fn take_step(replicas: &mut [Victim], step: Step) {
    match step {
        Step::Tick(at, count) => (0..count).for_each(|_| replicas[at].tick()),
        Step::Write(at) => replicas[at].write(),
        Step::Propose(at) => replicas[at].propose(),
        Step::Read(at) => replicas[at].read(),
        Step::Lost(at, peer) => replicas[at].replica.peer_lost(peer),
        Step::Deliver(number) => {
            let at = number % replicas.len();
            if let Some((to, message)) = replicas[at].sent.pop_front() {
                deliver(replicas, at as u64 + 1, to as usize - 1, message);
            }
        }
        Step::Mutated(number, field, draw) => {
            let at = number % replicas.len();
            let Some((to, message)) = replicas[at].sent.front().cloned() else { return };
            let (from, to) = (at as u64 + 1, to as usize - 1);
            let PeerMessage::Raft(RaftMessage(mut message)) = message else { return };
            change(&replicas[to], &mut message, field, draw);
            deliver(replicas, from, to, PeerMessage::Raft(RaftMessage(message)));
        }
        Step::Forged { at, from, kind, fields, entries } => {
            let message = forged(&replicas[at], kind, fields, entries);
            let from = if from == 0 { message.from } else { from };
            deliver(replicas, from, at, PeerMessage::Raft(RaftMessage(Box::new(message))));
        }
    }
    replicas.iter_mut().for_each(Victim::work);
}

proptest! {
    /// Every [`Victim`] checks that what it has committed stays.
    #[test]
    fn no_messages_make_replicas_panic_or_lose_what_is_committed(steps in vec(steps(), 1..300)) {
        let mut replicas: Vec<Victim> = (1..=3).map(|id| Victim::start(id, &[1, 2, 3])).collect();
        for step in steps {
            take_step(&mut replicas, step);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(input in vec(prop_oneof![any::<u8>(), 0..8u8], 0..400)) {
        frames(&input);
    }
}
