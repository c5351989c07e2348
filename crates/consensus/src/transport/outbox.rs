//! Messages to one peer that wait for its connection.
//!
//! **Invariant: Bounded.** An outbox holds at most [`OUTBOX_BYTES_MAX`]. A message that does not fit, or
//! comes while there is no connection, is dropped; Raft sends again what matters.

use super::handler::Counters;
use crate::frame::FrameBuffer;
use crate::group::GroupId;
use crate::message::{PeerMessage, RaftMessage};
use crate::stream::PeerStream;
use parking_lot::{Condvar, Mutex};
use quoin_core::Command;
use rustix::net::SendFlags;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum bytes that wait for one peer.
pub const OUTBOX_BYTES_MAX: usize = 64 << 20;
/// Messages up to this size are written by the thread that sends them, if nothing waits.
const WRITTEN_AT_ONCE_BYTES_MAX: usize = 8 << 10;

#[derive(Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    messages: VecDeque<PeerMessage>,
    bytes: usize,
    /// The connection, for small messages that are written at once while the writing thread is idle.
    stream: Option<PeerStream>,
    /// The writing thread has taken messages that it may not have written yet.
    writing: bool,
    /// Messages taken since the start.
    pushed: u64,
    /// The rest of a frame that the connection could not take at once, as it goes to the socket: before all messages.
    rest: Vec<u8>,
    closed: bool,
}

impl Outbox {
    /// Writes the message at once or queues it. False if it was dropped.
    pub(super) fn push(&self, group: GroupId, message: PeerMessage, counters: &Counters) -> bool {
        let size = approximate_size(&message);
        let mut state = self.state.lock();
        if state.stream.is_none() || state.bytes + size > OUTBOX_BYTES_MAX {
            return false;
        }
        state.pushed += 1;
        let idle = !state.writing && state.messages.is_empty() && state.rest.is_empty();
        if idle && size <= WRITTEN_AT_ONCE_BYTES_MAX {
            if !state.write_now(group, &message, counters) {
                self.filled.notify_one();
            }
            return true;
        }
        state.bytes += size;
        state.messages.push_back(message);
        if state.messages.len() == 1 {
            self.filled.notify_one();
        }
        true
    }

    /// Takes everything that waits: the rest of a frame, and the messages after it. Blocks while there is
    /// nothing, up to `deadline`. `None` once closed.
    pub(super) fn take(&self, deadline: Instant) -> Option<(Vec<u8>, VecDeque<PeerMessage>)> {
        let mut state = self.state.lock();
        state.writing = false;
        let is_empty =
            |state: &mut State| state.messages.is_empty() && state.rest.is_empty() && !state.closed;
        self.filled.wait_while_until(&mut state, is_empty, deadline);
        state.writing = true;
        state.bytes = 0;
        let waiting = (std::mem::take(&mut state.rest), std::mem::take(&mut state.messages));
        (!state.closed).then_some(waiting)
    }

    /// How many messages were written or queued, ever.
    pub(super) fn pushed(&self) -> u64 {
        self.state.lock().pushed
    }

    /// There is a connection: messages are taken from now on. Returns what [`Self::pushed`] is before them.
    pub(super) fn connected(&self, stream: PeerStream) -> u64 {
        let mut state = self.state.lock();
        state.stream = Some(stream);
        state.pushed
    }

    /// The connection broke: drops what waits.
    pub(super) fn disconnected(&self) {
        let mut state = self.state.lock();
        let (closed, pushed) = (state.closed, state.pushed);
        *state = State { closed, pushed, ..State::default() };
    }

    /// Ends the writing thread.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Waits for `pause`, or until closed.
    pub(super) fn wait_closed(&self, pause: Duration) {
        let mut state = self.state.lock();
        if !state.closed {
            let _ = self.filled.wait_for(&mut state, pause);
        }
    }
}

impl State {
    /// Writes as much of the frame as the connection takes without blocking, which saves waking a thread.
    /// False if something is left for that thread: a rest, or an error to find.
    fn write_now(&mut self, group: GroupId, message: &PeerMessage, counters: &Counters) -> bool {
        let Some(stream) = &self.stream else { return false };
        let mut frame = FrameBuffer::default();
        frame.push(group, message);
        let bytes = frame.take().concat();
        counters.sent_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // An error: the connection has ended, which the writing thread finds.
        let Ok(bytes) = stream.seal(bytes) else { return false };
        let written = rustix::net::send(stream.socket(), &bytes, flags).unwrap_or(0);
        self.rest = bytes[written..].to_vec();
        self.rest.is_empty()
    }
}

fn approximate_size(message: &PeerMessage) -> usize {
    match message {
        PeerMessage::Raft(RaftMessage(message)) => {
            let entries = message.entries.iter();
            64 + entries.map(|entry| entry.data.len() + entry.context.len() + 32).sum::<usize>()
        }
        PeerMessage::Forward { commands, .. } => {
            32 + commands.iter().map(Command::size_in_batch).sum::<usize>()
        }
        PeerMessage::ForwardReply { .. } => 64,
    }
}
