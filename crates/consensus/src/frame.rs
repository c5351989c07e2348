//! The bytes of what replicas tell each other.
//!
//! **Invariant: Once (encoding).** An entry's payload, or a forwarded command, is written from the buffer
//! that the client's adapter encoded it into, and read as a slice of the receive buffer.
//!
//! A frame on the wire (all integers little-endian):
//!
//! ```text
//! u32 length of the body     u32 CRC32C of the body     body
//! body: u8 kind, u32 group, then by kind:
//!   1 raft           u8 type, u8 reject, then varints to, from, term, log_term, index, commit, commit_term,
//!                    reject_hint, request_snapshot, 0, 0; context;
//!                    entry count, per entry: u8 kind, varint term, varint index, context, data
//!   2 forward        u64 request, u32 count, per command: u8 face, u32 length, bytes
//!   3 forward reply  u64 request, u8 outcome, u64 index, u64 term, u32 position
//!   4 paced forward  as a forward
//! context and data are varint length + bytes.
//!
//! A heartbeat's index is the leader's time, its answer's index and the log_term of an append's acceptance are the
//! sender's wall clock, in milliseconds since the Unix epoch; 0 is unknown (replica/time.rs).
//! ```
//!
//! A snapshot is streamed on a connection of its own, so the mark of one is never in a frame.
//!
//! **Invariant: Bounded.** A frame has at most [`FRAME_BODY_MAX`] bytes, a message at most [`ENTRIES_MAX`] entries or
//! [`FORWARD_COMMANDS_MAX`] commands: what it takes in memory, decoded, is bounded before it is taken.
//!
//! In heartbeats and their answers three of the numbers say how fresh a follower is (`replica/freshness.rs`); 0 is
//! unknown, which is what versions before this wrote. These clocks are monotonic, in milliseconds from any beginning.
//!
//! ```text
//!                       reject_hint               log_term                 commit_term
//!   heartbeat           what is committed         the leader's clock       the moment of the follower's clock at
//!                                                                          which a majority had confirmed the leader
//!   heartbeat answer    the leader's clock, as    the follower's clock     0
//!                       in the last heartbeat
//! ```
//!
//! The protobuf parser of the `raft` crate is not used: it must not see bytes from outside.

use crate::entries::kind_to_library;
use crate::group::GroupId;
use crate::log::EntryKind;
use crate::message::{ForwardOutcome, PeerMessage, RaftMessage};
use bytes::{Buf, Bytes};
use quoin_core::codec::{Malformed, Reader, put_bytes, put_varint};
use quoin_core::{Command, Face};
use raft::eraftpb;

/// Bytes before a frame's body.
pub(crate) const FRAME_HEADER: usize = 8;
/// Maximum bytes of a frame's body. No peer sends more: the largest entry is a batch of 16 MiB that a command of
/// 16 MiB fills, then a forward of as much; and an outbox takes no more. A longer frame is refused before it is
/// read.
pub(crate) const FRAME_BODY_MAX: usize = 64 << 20;
/// Maximum entries of a message. No peer sends more: each counts 24 bytes in a message of at most 1 MiB.
const ENTRIES_MAX: u64 = 1 << 16;
/// Maximum commands of a forward. More go in several.
pub(crate) const FORWARD_COMMANDS_MAX: usize = 1 << 18;

/// The types of messages that peers send each other. The library's local messages, proposals, and the mark of a
/// snapshot are refused.
pub(crate) const PEER_TYPES: [eraftpb::MessageType; 12] = {
    use eraftpb::MessageType::*;
    [
        MsgAppend,
        MsgAppendResponse,
        MsgRequestVote,
        MsgRequestVoteResponse,
        MsgHeartbeat,
        MsgHeartbeatResponse,
        MsgTransferLeader,
        MsgTimeoutNow,
        MsgReadIndex,
        MsgReadIndexResp,
        MsgRequestPreVote,
        MsgRequestPreVoteResponse,
    ]
};

const RAFT: u8 = 1;
const FORWARD: u8 = 2;
const FORWARD_REPLY: u8 = 3;
const PACED_FORWARD: u8 = 4;
/// Payloads below this are copied into the frame's own buffer: a copy costs less than one more slice in a
/// system call.
const INLINE_MAX: usize = 512;

/// A message as it is on the wire.
pub fn encode(group: GroupId, message: &PeerMessage) -> Bytes {
    let mut buffer = FrameBuffer::default();
    buffer.push(group, message);
    buffer.take().concat().into()
}

/// The message that a whole frame holds.
///
/// # Errors
/// No peer has written these bytes.
pub fn decode(frame: &Bytes) -> Result<(GroupId, PeerMessage), Malformed> {
    let header = frame.first_chunk::<FRAME_HEADER>().ok_or(Malformed { what: "frame" })?;
    let (length, crc) = decode_header(*header)?;
    let body = frame.slice(FRAME_HEADER..);
    if body.len() != length {
        return Err(Malformed { what: "frame" });
    }
    decode_body(body, crc)
}

/// Frames that wait to be written: own bytes and, between them, payloads by reference.
#[derive(Default)]
pub(crate) struct FrameBuffer {
    parts: Vec<Bytes>,
    own: Vec<u8>,
    bytes: usize,
}

impl FrameBuffer {
    /// Adds one message as a frame.
    pub(crate) fn push(&mut self, group: GroupId, message: &PeerMessage) {
        let mut body = Body::default();
        body.own.extend_from_slice(&[0; FRAME_HEADER]);
        body.own.push(match message {
            PeerMessage::Raft(_) => RAFT,
            PeerMessage::Forward { paced: false, .. } => FORWARD,
            PeerMessage::Forward { paced: true, .. } => PACED_FORWARD,
            PeerMessage::ForwardReply { .. } => FORWARD_REPLY,
        });
        body.own.extend_from_slice(&group.0.to_le_bytes());
        match message {
            PeerMessage::Raft(RaftMessage(message)) => encode_raft(&mut body, message),
            PeerMessage::Forward { request, commands, .. } => encode_forward(&mut body, *request, commands),
            PeerMessage::ForwardReply { request, outcome } => encode_reply(&mut body, *request, *outcome),
        }
        self.append(body);
    }

    fn append(&mut self, mut body: Body) {
        body.cut();
        let mut parts = body.parts.into_iter();
        let mut head = Vec::from(parts.next().expect("a body begins with its own bytes"));
        let rest: Vec<Bytes> = parts.collect();
        let crc = rest
            .iter()
            .fold(crc32c::crc32c(&head[FRAME_HEADER..]), |crc, part| crc32c::crc32c_append(crc, part));
        let length = head.len() - FRAME_HEADER + rest.iter().map(Bytes::len).sum::<usize>();
        let length = u32::try_from(length).expect("a message is bounded far below 4 GiB");
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..FRAME_HEADER].copy_from_slice(&crc.to_le_bytes());
        self.bytes += length as usize + FRAME_HEADER;
        self.own.extend_from_slice(&head);
        if !rest.is_empty() {
            self.parts.push(Bytes::from(std::mem::take(&mut self.own)));
            self.parts.extend(rest);
        }
    }

    /// Takes all frames, as buffers to be written in order.
    pub(crate) fn take(&mut self) -> Vec<Bytes> {
        if !self.own.is_empty() {
            self.parts.push(Bytes::from(std::mem::take(&mut self.own)));
        }
        self.bytes = 0;
        std::mem::take(&mut self.parts)
    }

    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

#[derive(Default)]
struct Body {
    parts: Vec<Bytes>,
    own: Vec<u8>,
}

impl Body {
    fn cut(&mut self) {
        if !self.own.is_empty() {
            self.parts.push(Bytes::from(std::mem::take(&mut self.own)));
        }
    }

    fn payload(&mut self, payload: &Bytes) {
        if payload.len() < INLINE_MAX {
            self.own.extend_from_slice(payload);
        } else {
            self.cut();
            self.parts.push(payload.clone());
        }
    }

    fn sized_payload(&mut self, payload: &Bytes) {
        put_varint(&mut self.own, payload.len() as u64);
        self.payload(payload);
    }
}

fn encode_raft(body: &mut Body, message: &eraftpb::Message) {
    body.own.push(message.msg_type as u8);
    body.own.push(u8::from(message.reject));
    let numbers = [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
        message.request_snapshot,
        0,
        0,
    ];
    for number in numbers {
        put_varint(&mut body.own, number);
    }
    put_bytes(&mut body.own, &message.context);
    put_varint(&mut body.own, message.entries.len() as u64);
    for entry in message.entries.iter() {
        body.own.push(entry.entry_type as u8);
        put_varint(&mut body.own, entry.term);
        put_varint(&mut body.own, entry.index);
        put_bytes(&mut body.own, &entry.context);
        body.sized_payload(&entry.data);
    }
}

fn encode_forward(body: &mut Body, request: u64, commands: &[Command]) {
    body.own.extend_from_slice(&request.to_le_bytes());
    body.own.extend_from_slice(&(commands.len() as u32).to_le_bytes());
    for command in commands {
        body.own.push(command.face as u8);
        body.own.extend_from_slice(&(command.bytes.len() as u32).to_le_bytes());
        body.payload(&command.bytes);
    }
}

fn encode_reply(body: &mut Body, request: u64, outcome: ForwardOutcome) {
    let (tag, index, term, position) = match outcome {
        ForwardOutcome::Proposed { index, term, position } => (0, index, term, position),
        ForwardOutcome::NotLeader => (1, 0, 0, 0),
        ForwardOutcome::Busy => (2, 0, 0, 0),
    };
    body.own.extend_from_slice(&request.to_le_bytes());
    body.own.push(tag);
    body.own.extend_from_slice(&index.to_le_bytes());
    body.own.extend_from_slice(&term.to_le_bytes());
    body.own.extend_from_slice(&position.to_le_bytes());
}

/// Reads the header of a frame: the body's length and its checksum.
///
/// # Errors
/// The length is above [`FRAME_BODY_MAX`]: this is not a peer's frame.
pub(crate) fn decode_header(header: [u8; FRAME_HEADER]) -> Result<(usize, u32), Malformed> {
    let mut header = &header[..];
    let (length, crc) = (header.get_u32_le() as usize, header.get_u32_le());
    if length > FRAME_BODY_MAX { Err(Malformed { what: "peer frame length" }) } else { Ok((length, crc)) }
}

/// Reads a frame's body.
///
/// # Errors
/// The checksum or the contents are not what a peer of this version writes.
pub(crate) fn decode_body(body: Bytes, crc: u32) -> Result<(GroupId, PeerMessage), Malformed> {
    if crc32c::crc32c(&body) != crc {
        return Err(Malformed { what: "peer frame checksum" });
    }
    let mut reader = Reader::new(body, "peer frame");
    let kind = reader.byte()?;
    let group = GroupId(reader.take(4)?.get_u32_le());
    let message = match kind {
        RAFT => PeerMessage::Raft(RaftMessage(Box::new(decode_raft(&mut reader)?))),
        FORWARD => decode_forward(&mut reader, false)?,
        PACED_FORWARD => decode_forward(&mut reader, true)?,
        FORWARD_REPLY => decode_reply(&mut reader)?,
        _ => return Err(reader.malformed()),
    };
    if reader.is_empty() { Ok((group, message)) } else { Err(reader.malformed()) }
}

fn decode_raft(reader: &mut Reader) -> Result<eraftpb::Message, Malformed> {
    let mut message = eraftpb::Message::default();
    message.msg_type = message_type(reader.byte()?).ok_or_else(|| reader.malformed())?;
    message.reject = reader.byte()? == 1;
    message.to = reader.varint()?;
    message.from = reader.varint()?;
    message.term = reader.varint()?;
    message.log_term = reader.varint()?;
    message.index = reader.varint()?;
    message.commit = reader.varint()?;
    message.commit_term = reader.varint()?;
    message.reject_hint = reader.varint()?;
    message.request_snapshot = reader.varint()?;
    if (reader.varint()?, reader.varint()?) != (0, 0) {
        return Err(Malformed { what: "peer frame: the mark of a snapshot" });
    }
    message.context = reader.bytes()?;
    let count = reader.varint()?;
    if count > ENTRIES_MAX {
        return Err(Malformed { what: "peer frame: too many entries" });
    }
    for _ in 0..count {
        let mut entry = eraftpb::Entry::default();
        let kind = EntryKind::from_number(reader.byte()?).ok_or_else(|| reader.malformed())?;
        entry.entry_type = kind_to_library(kind);
        entry.term = reader.varint()?;
        entry.index = reader.varint()?;
        entry.context = reader.bytes()?;
        entry.data = reader.bytes()?;
        message.entries.push(entry);
    }
    Ok(message)
}

fn decode_forward(reader: &mut Reader, paced: bool) -> Result<PeerMessage, Malformed> {
    let request = reader.take(8)?.get_u64_le();
    let count = reader.take(4)?.get_u32_le();
    if count as usize > FORWARD_COMMANDS_MAX {
        return Err(Malformed { what: "peer frame: too many commands" });
    }
    let mut commands = Vec::new();
    for _ in 0..count {
        let face = Face::try_from(reader.byte()?)?;
        let length = reader.take(4)?.get_u32_le() as usize;
        commands.push(Command { face, bytes: reader.take(length)? });
    }
    Ok(PeerMessage::Forward { request, commands, paced })
}

fn decode_reply(reader: &mut Reader) -> Result<PeerMessage, Malformed> {
    let request = reader.take(8)?.get_u64_le();
    let tag = reader.byte()?;
    let (index, term) = (reader.take(8)?.get_u64_le(), reader.take(8)?.get_u64_le());
    let position = reader.take(4)?.get_u32_le();
    let outcome = match tag {
        0 => ForwardOutcome::Proposed { index, term, position },
        1 => ForwardOutcome::NotLeader,
        2 => ForwardOutcome::Busy,
        _ => return Err(reader.malformed()),
    };
    Ok(PeerMessage::ForwardReply { request, outcome })
}

fn message_type(tag: u8) -> Option<eraftpb::MessageType> {
    PEER_TYPES.into_iter().find(|kind| *kind as u8 == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(data: &'static [u8]) -> PeerMessage {
        let mut message = eraftpb::Message::default();
        message.set_msg_type(eraftpb::MessageType::MsgAppend);
        message.to = 2;
        message.from = 1;
        message.term = 300;
        message.commit = 9;
        let mut entry = eraftpb::Entry::default();
        entry.term = 300;
        entry.index = 10;
        entry.data = Bytes::from_static(data);
        message.entries.push(entry);
        PeerMessage::Raft(RaftMessage(Box::new(message)))
    }

    fn round_trip(messages: &[PeerMessage]) {
        let mut buffer = FrameBuffer::default();
        for message in messages {
            buffer.push(GroupId(7), message);
        }
        let length = buffer.len();
        let mut wire = Bytes::from(buffer.take().concat());
        assert_eq!(wire.len(), length);
        for message in messages {
            let header = wire.split_to(FRAME_HEADER)[..].try_into().unwrap();
            let (length, crc) = decode_header(header).unwrap();
            assert_eq!(decode_body(wire.split_to(length), crc), Ok((GroupId(7), message.clone())));
        }
        assert!(wire.is_empty());
    }

    #[test]
    fn frames_decode_to_what_was_encoded() {
        let command = Command { face: Face::Kv, bytes: Bytes::from_static(&[7; 2000]) };
        let outcome = ForwardOutcome::Proposed { index: 5, term: 3, position: 2 };
        round_trip(&[
            append(b"small"),
            PeerMessage::Forward { request: 1, commands: vec![command.clone(); 2], paced: false },
            PeerMessage::Forward { request: 2, commands: vec![command], paced: true },
            append(&[9; 5000]),
            PeerMessage::ForwardReply { request: 1, outcome },
        ]);
    }

    #[test]
    fn layout_is_pinned() {
        let mut buffer = FrameBuffer::default();
        buffer.push(GroupId(7), &append(b"xyz"));
        let wire = buffer.take().concat();
        let body = b"\x01\x07\0\0\0\x03\0\x02\x01\xac\x02\0\0\x09\0\0\0\0\0\0\x01\0\xac\x02\x0a\0\x03xyz";
        assert_eq!(&wire[..4], (body.len() as u32).to_le_bytes());
        assert_eq!(&wire[4..8], crc32c::crc32c(body).to_le_bytes());
        assert_eq!(&wire[8..], body);
        let command = Command { face: Face::Kv, bytes: Bytes::from_static(b"xy") };
        buffer.push(GroupId(7), &PeerMessage::Forward { request: 3, commands: vec![command], paced: true });
        let wire = buffer.take().concat();
        assert_eq!(&wire[8..], b"\x04\x07\0\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\x01\x02\0\0\0xy");
    }

    #[test]
    fn truncated_frames_and_local_messages_are_refused() {
        let mut buffer = FrameBuffer::default();
        buffer.push(GroupId(1), &append(b"payload"));
        let body = Bytes::from(buffer.take().concat()).slice(FRAME_HEADER..);
        for length in 0..body.len() {
            let cut = body.slice(..length);
            assert!(decode_body(cut.clone(), crc32c::crc32c(&cut)).is_err(), "cut at {length}");
        }
        let mut proposal = body.to_vec();
        proposal[5] = eraftpb::MessageType::MsgPropose as u8;
        assert!(decode_body(proposal.clone().into(), crc32c::crc32c(&proposal)).is_err());
        assert!(decode_body(body, 0).is_err());
    }
}
