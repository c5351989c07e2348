//! The payload of a log entry: commands of any faces under one stamp.
//!
//! Layout (version 1), all integers little-endian:
//!
//! ```text
//! u8  version = 1
//! u64 stamp, milliseconds since the Unix epoch
//! u32 number of commands
//! then each command: u8 face, u32 length, bytes
//! ```
//!
//! **Invariant: Once (encoding).** A command's bytes are encoded once, by the adapter that took the request.
//! The batch frames them, and the same bytes go to followers, into logs and into [`crate::Machines::apply`].

use crate::codec::Malformed;
use crate::faces::{Command, Face};
use crate::types::Stamp;
use bytes::{Buf, BufMut, Bytes, BytesMut};

const VERSION: u8 = 1;
const HEADER: usize = 1 + 8 + 4;
const COMMAND_HEADER: usize = 1 + 4;

impl Command {
    /// The bytes that this command takes in a batch.
    pub fn size_in_batch(&self) -> usize {
        COMMAND_HEADER + self.bytes.len()
    }
}

/// The decoded form of a log entry's payload. The commands are slices of the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The cluster's time when the leader made the batch.
    pub stamp: Stamp,
    /// In the order of their sequences.
    pub commands: Vec<Command>,
}

impl Batch {
    /// Frames `commands` as the payload of one log entry, copying each command's bytes once.
    pub fn encode(stamp: Stamp, commands: &[Command]) -> Bytes {
        let size = HEADER + commands.iter().map(Command::size_in_batch).sum::<usize>();
        let mut out = BytesMut::with_capacity(size);
        out.put_u8(VERSION);
        out.put_u64_le(stamp.0);
        out.put_u32_le(u32::try_from(commands.len()).expect("a batch has far fewer than 2^32 commands"));
        for command in commands {
            out.put_u8(command.face as u8);
            out.put_u32_le(u32::try_from(command.bytes.len()).expect("a command is far smaller than 4 GiB"));
            out.put_slice(&command.bytes);
        }
        out.freeze()
    }

    /// Whether [`Self::decode`] can decode a payload, without taking it apart. It looks at the frames alone, and
    /// costs a few nanoseconds per command.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn check(mut payload: &[u8]) -> Result<(), Malformed> {
        let malformed = Malformed { what: "batch" };
        if payload.len() < HEADER || payload[0] != VERSION {
            return Err(malformed);
        }
        payload.advance(HEADER - 4);
        for _ in 0..payload.get_u32_le() {
            if payload.len() < COMMAND_HEADER {
                return Err(malformed);
            }
            Face::try_from(payload.get_u8())?;
            let length = payload.get_u32_le() as usize;
            payload = payload.get(length..).ok_or(Malformed { what: "batch" })?;
        }
        if payload.is_empty() { Ok(()) } else { Err(malformed) }
    }

    /// The stamp of a payload; `None` if it is no batch: a leader opens its term with an empty entry.
    pub fn stamp_of(mut payload: &[u8]) -> Option<Stamp> {
        let batch = payload.len() >= HEADER && payload.get_u8() == VERSION;
        batch.then(|| Stamp(payload.get_u64_le()))
    }

    /// Decodes a payload.
    ///
    /// # Errors
    /// It is not a batch of this version, or has an unknown face.
    pub fn decode(mut payload: Bytes) -> Result<Self, Malformed> {
        let malformed = Malformed { what: "batch" };
        if payload.len() < HEADER || payload.get_u8() != VERSION {
            return Err(malformed);
        }
        let stamp = Stamp(payload.get_u64_le());
        let count = payload.get_u32_le() as usize;
        if count > payload.len() / COMMAND_HEADER {
            return Err(malformed);
        }
        let mut commands = Vec::with_capacity(count);
        for _ in 0..count {
            if payload.len() < COMMAND_HEADER {
                return Err(malformed);
            }
            let face = Face::try_from(payload.get_u8())?;
            let length = payload.get_u32_le() as usize;
            if payload.len() < length {
                return Err(malformed);
            }
            commands.push(Command { face, bytes: payload.split_to(length) });
        }
        if payload.is_empty() { Ok(Self { stamp, commands }) } else { Err(malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_pinned() {
        let commands = [
            Command { face: Face::Kv, bytes: Bytes::from_static(b"put") },
            Command { face: Face::System, bytes: Bytes::new() },
        ];
        let bytes = Batch::encode(Stamp(0x0102), &commands);
        let golden = b"\x01\x02\x01\0\0\0\0\0\0\x02\0\0\0\x01\x03\0\0\0put\0\0\0\0\0";
        assert_eq!(&bytes[..], golden);
        assert_eq!((Batch::stamp_of(&bytes), Batch::stamp_of(b"")), (Some(Stamp(0x0102)), None));
        assert_eq!(Batch::decode(bytes), Ok(Batch { stamp: Stamp(0x0102), commands: commands.to_vec() }));
    }

    #[test]
    fn a_cut_or_lengthened_batch_is_refused() {
        let whole = Batch::encode(Stamp(7), &[Command { face: Face::Kv, bytes: Bytes::from_static(b"x") }]);
        for length in 0..whole.len() {
            assert!(Batch::decode(whole.slice(..length)).is_err(), "cut at {length}");
            assert!(Batch::check(&whole[..length]).is_err(), "cut at {length}");
        }
        let mut longer = whole.to_vec();
        longer.push(0);
        assert!(Batch::check(&longer).is_err());
        assert!(Batch::decode(longer.into()).is_err());
    }

    #[test]
    fn what_the_check_finds_well_is_what_can_be_decoded() {
        let command = |bytes| Command { face: Face::Kv, bytes: Bytes::from_static(bytes) };
        let whole = Batch::encode(Stamp(7), &[command(b"one"), command(b""), command(b"three")]);
        for place in 0..whole.len() {
            for byte in 0..=255 {
                let mut changed = whole.to_vec();
                changed[place] = byte;
                let well = Batch::check(&changed).is_ok();
                assert_eq!(well, Batch::decode(changed.into()).is_ok(), "{byte} at {place}");
            }
        }
    }
}
