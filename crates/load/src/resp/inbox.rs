//! Bytes received from a server, taken out reply by reply.

use super::reply;
use anyhow::Result;
use std::io::Read;

/// Bytes read at once, unless a reply is larger.
const READ_BYTES: usize = 64 << 10;

/// Received bytes. Those between `from` and `to` are still to be taken.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Inbox {
    /// Makes room for the next read; returns how many bytes it can take.
    pub(super) fn room(&mut self) -> usize {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        if self.bytes.len() - self.to < READ_BYTES / 2 {
            self.bytes.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            let length = self.bytes.len().max(self.to + READ_BYTES);
            self.bytes.resize(length, 0);
        }
        self.bytes.len() - self.to
    }

    pub(super) fn read(&mut self, stream: &mut impl Read) -> std::io::Result<usize> {
        self.room();
        let read = stream.read(&mut self.bytes[self.to..])?;
        self.to += read;
        Ok(read)
    }

    /// Takes the next reply, if all of it has arrived.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>> {
        let waiting = &self.bytes[self.from..self.to];
        let Some(end) = reply::end(waiting)? else { return Ok(None) };
        self.from += end;
        Ok(Some(&waiting[..end]))
    }
}
