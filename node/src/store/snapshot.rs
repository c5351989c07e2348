//! A store as a stream of chunks: what a new or lagging replica receives, and what a backup is.
//!
//! The stream holds every version that a reader of the exporter may see, in the engine's own order, each at its
//! own sequence. So the importer answers every query as the exporter does: old revisions, watches and hashes
//! included. Layout: docs/snapshot-format.md.
//!
//! **Invariant (whole or nothing).** Chunks are numbered, checksummed and counted; an import that lacks one is
//! refused before anything is replaced (see [`super::folder`]).
//!
//! Memory stays bounded on both sides: a chunk is [`CHUNK_BYTES`] long, or as long as its only record.

use super::LsmStore;
use super::folder::FolderError;
use bytes::{BufMut, Bytes, BytesMut};
use quoin_core::codec::{self, Malformed, Reader};
use quoin_core::machines::{decode_progress, encode_progress, read_progress};
use quoin_core::store::{Version, Versions};
use quoin_core::{Progress, Sequence, Store, StoreError};
use std::io::{self, Read};

/// A chunk is closed when it has reached this size, in bytes.
pub const CHUNK_BYTES: usize = 256 << 10;

/// No chunk is longer: a longer one is refused before memory is given to it.
pub const CHUNK_BYTES_MAX: usize = 256 << 20;

const MAGIC: &[u8] = b"QUOINSNP";
const FORMAT: u8 = 1;
/// Length and CRC32C of the body, each 4 bytes, little-endian.
const FRAME: usize = 8;

const KIND_HEADER: u8 = 0;
const KIND_RECORDS: u8 = 1;
const KIND_END: u8 = 2;

/// Why a snapshot cannot be read or installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The store to read from or write to failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The chunk's bytes are not what was written.
    #[error("snapshot chunk {chunk}: checksum does not match; transfer it again")]
    Checksum {
        /// Its number.
        chunk: u64,
    },
    /// Whole bytes, but nothing that this version writes.
    #[error("snapshot chunk {chunk}: {what}")]
    Malformed {
        /// Its number.
        chunk: u64,
        /// What is wrong.
        what: String,
    },
    /// The stream ended too early.
    #[error("snapshot ends after {chunks} chunks without its end mark; transfer it again")]
    Truncated {
        /// Chunks received.
        chunks: u64,
    },
    /// The folder that receives it failed.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The stream could not be read.
    #[error("snapshot: {0}")]
    Io(#[from] io::Error),
}

/// A snapshot being read from a store: an iterator of framed chunks.
pub struct Export<'a> {
    progress: Progress,
    versions: Versions<'a>,
    /// Its number.
    chunk: u64,
    records: u64,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Header,
    Records,
    Done,
}

impl<'a> Export<'a> {
    /// A snapshot of `store` as of `progress`, which must be a progress that the store has reached, and whose
    /// compacted revision is the newest one that the store was told to forget. See [`LsmStore::export`].
    pub fn new(store: &'a dyn Store, progress: Progress) -> Self {
        Self {
            progress,
            versions: store.versions(progress.sequence),
            chunk: 0,
            records: 0,
            state: State::Header,
        }
    }

    /// The state that the snapshot holds.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    fn next_chunk(&mut self) -> Result<Bytes, StoreError> {
        let mut body = Vec::new();
        match self.state {
            State::Header => {
                body.put_u8(KIND_HEADER);
                codec::put_varint(&mut body, self.chunk);
                body.put_slice(MAGIC);
                body.put_u8(FORMAT);
                body.put_slice(&encode_progress(&self.progress));
                self.state = State::Records;
            }
            State::Records | State::Done => self.fill(&mut body)?,
        }
        self.chunk += 1;
        Ok(frame(&body))
    }

    fn fill(&mut self, body: &mut Vec<u8>) -> Result<(), StoreError> {
        body.reserve(CHUNK_BYTES);
        body.put_u8(KIND_RECORDS);
        codec::put_varint(body, self.chunk);
        let empty = body.len();
        while body.len() < CHUNK_BYTES {
            let Some(version) = self.versions.next() else { break };
            put_record(body, &version?);
            self.records += 1;
        }
        if body.len() == empty {
            body.clear();
            body.put_u8(KIND_END);
            codec::put_varint(body, self.chunk);
            codec::put_varint(body, self.records);
            self.state = State::Done;
        }
        Ok(())
    }
}

impl Iterator for Export<'_> {
    type Item = Result<Bytes, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Done {
            return None;
        }
        let chunk = self.next_chunk();
        if chunk.is_err() {
            self.state = State::Done;
        }
        Some(chunk)
    }
}

impl LsmStore {
    /// A snapshot of the newest whole entry. Applying goes on meanwhile; files and memtables that it needs are
    /// kept until it is dropped.
    ///
    /// # Errors
    /// The progress record cannot be read.
    pub fn export(&self) -> Result<Export<'_>, StoreError> {
        // First the pin, then the progress: whatever is forgotten later, this progress' history is still there.
        let _pin = self.pin_now();
        let progress = read_progress(self)?;
        Ok(Export::new(self, progress))
    }
}

/// A snapshot being checked: takes framed chunks apart, in order.
#[derive(Default)]
pub(super) struct Decoder {
    chunks: u64,
    records: u64,
    ended: bool,
}

/// What a chunk holds.
#[derive(Debug, PartialEq)]
pub(super) enum Chunk {
    Header(Progress),
    Records(Vec<Version>),
    End,
}

impl Decoder {
    /// Takes the next chunk apart.
    pub(super) fn decode(&mut self, framed: Bytes) -> Result<Chunk, SnapshotError> {
        let chunk = self.chunks;
        let malformed = |what: &str| SnapshotError::Malformed { chunk, what: what.to_owned() };
        let Some((head, _)) = framed.split_first_chunk::<FRAME>() else {
            return Err(malformed("too short for a frame"));
        };
        let (length, checksum) = frame_head(*head);
        let body = framed.slice(FRAME..);
        if body.len() != length {
            return Err(malformed(&format!("{} bytes long, its frame says {length}", body.len())));
        }
        if crc32c::crc32c(&body) != checksum {
            return Err(SnapshotError::Checksum { chunk });
        }
        let decoded =
            self.decode_body(body).map_err(|Malformed { what }| malformed(&format!("malformed {what}")))?;
        self.chunks += 1;
        Ok(decoded)
    }

    fn decode_body(&mut self, body: Bytes) -> Result<Chunk, Malformed> {
        let mut reader = Reader::new(body, "snapshot chunk");
        let kind = reader.byte()?;
        if reader.varint()? != self.chunks {
            return Err(Malformed { what: "order: it is not the chunk that was due" });
        }
        if self.ended || (kind == KIND_HEADER) != (self.chunks == 0) {
            return Err(Malformed { what: "order: no chunk of this kind was due" });
        }
        match kind {
            KIND_HEADER => {
                if &reader.take(MAGIC.len())?[..] != MAGIC {
                    return Err(Malformed { what: "header: it is no snapshot" });
                }
                if reader.byte()? != FORMAT {
                    return Err(Malformed { what: "header: a format that this version does not know" });
                }
                decode_progress(reader.rest()).map(Chunk::Header).map_err(|_| Malformed { what: "progress" })
            }
            KIND_RECORDS => {
                let mut records = Vec::new();
                while !reader.is_empty() {
                    records.push(take_record(&mut reader)?);
                }
                self.records += records.len() as u64;
                Ok(Chunk::Records(records))
            }
            KIND_END if reader.varint()? == self.records => {
                self.ended = true;
                Ok(Chunk::End)
            }
            KIND_END => Err(Malformed { what: "end: the number of records is not the one received" }),
            _ => Err(Malformed { what: "kind of chunk" }),
        }
    }

    /// Checks that the stream came to its end.
    pub(super) fn finish(&self) -> Result<(), SnapshotError> {
        if self.ended { Ok(()) } else { Err(SnapshotError::Truncated { chunks: self.chunks }) }
    }
}

/// Reads the next framed chunk of a snapshot in a file; `None` at the end of the file.
///
/// # Errors
/// The file cannot be read, or ends within a chunk, or is no snapshot.
pub fn read_chunk(file: &mut impl Read) -> io::Result<Option<Bytes>> {
    let mut head = [0; FRAME];
    let got = read_up_to(file, &mut head)?;
    if got == 0 {
        return Ok(None);
    }
    let (length, _) = frame_head(head);
    if got < FRAME || length > CHUNK_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a snapshot, or a damaged one"));
    }
    let mut framed = BytesMut::zeroed(FRAME + length);
    framed[..FRAME].copy_from_slice(&head);
    file.read_exact(&mut framed[FRAME..])?;
    Ok(Some(framed.freeze()))
}

fn read_up_to(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read(&mut buffer[got..])? {
            0 => break,
            count => got += count,
        }
    }
    Ok(got)
}

fn frame(body: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(FRAME + body.len());
    framed.put_u32_le(u32::try_from(body.len()).expect("a record is bounded far below 4 GiB"));
    framed.put_u32_le(crc32c::crc32c(body));
    framed.put_slice(body);
    framed.freeze()
}

fn frame_head(head: [u8; FRAME]) -> (usize, u32) {
    let [a, b, c, d, rest @ ..] = head;
    (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(rest))
}

fn put_record(body: &mut Vec<u8>, (key, sequence, value): &Version) {
    codec::put_varint(body, sequence.0 << 1 | u64::from(value.is_some()));
    codec::put_bytes(body, key);
    if let Some(value) = value {
        codec::put_bytes(body, value);
    }
}

fn take_record(reader: &mut Reader) -> Result<Version, Malformed> {
    let header = reader.varint()?;
    let key = reader.bytes()?;
    let value = if header & 1 == 1 { Some(reader.bytes()?) } else { None };
    Ok((key, Sequence(header >> 1), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quoin_core::store::MemoryStore;
    use quoin_core::{Index, Revision, Stamp, Term};

    fn store() -> (MemoryStore, Progress) {
        let store = MemoryStore::new();
        store.put(b"a", Bytes::from_static(b"one"), Sequence(1));
        store.put(b"a", Bytes::from_static(b"two"), Sequence(200));
        store.delete(b"b", Sequence(201));
        store.put(b"c", Bytes::from_static(b"later"), Sequence(300));
        let progress = Progress {
            index: Index(7),
            term: Term(2),
            sequence: Sequence(250),
            revision: Revision(4),
            stamp: Stamp(1000),
            compacted: Revision(1),
            term_began: Stamp(900),
            stamped_term: Term(2),
        };
        (store, progress)
    }

    fn chunks(store: &MemoryStore, progress: Progress) -> Vec<Bytes> {
        Export::new(store, progress).map(|chunk| chunk.unwrap()).collect()
    }

    #[test]
    fn layout_is_pinned() {
        let (store, progress) = store();
        let chunks = chunks(&store, progress);
        let bodies: Vec<_> = chunks.iter().map(|chunk| chunk.slice(FRAME..)).collect();
        assert_eq!(&bodies[0][..], b"\x00\x00QUOINSNP\x01\x07\x02\xfa\x01\x04\xe8\x07\x01\x84\x07\x02");
        assert_eq!(&bodies[1][..], b"\x01\x01\x91\x03\x01a\x03two\x03\x01a\x03one\x92\x03\x01b");
        assert_eq!(&bodies[2][..], b"\x02\x02\x03");
        assert_eq!(bodies.len(), 3);
        assert_eq!(&chunks[2][..FRAME], b"\x03\0\0\0\x6d\x32\x1e\x1b");
    }

    #[test]
    fn a_stream_that_is_cut_reordered_or_flipped_is_refused() {
        let (store, progress) = store();
        let chunks = chunks(&store, progress);
        let decode = |chunks: &[Bytes]| {
            let mut decoder = Decoder::default();
            chunks.iter().try_for_each(|chunk| decoder.decode(chunk.clone()).map(drop))?;
            decoder.finish()
        };
        assert!(decode(&chunks).is_ok());
        assert!(matches!(decode(&chunks[..2]), Err(SnapshotError::Truncated { chunks: 2 })));
        assert!(decode(&[chunks[0].clone(), chunks[2].clone()]).is_err());
        assert!(decode(&[chunks[1].clone()]).is_err());
        assert!(decode(&[chunks.clone(), vec![chunks[2].clone()]].concat()).is_err());
        for (number, chunk) in chunks.iter().enumerate() {
            for place in 0..chunk.len() {
                let mut damaged = chunk.to_vec();
                damaged[place] ^= 0x20;
                let mut stream = chunks.clone();
                stream[number] = damaged.into();
                assert!(decode(&stream).is_err(), "byte {place} of chunk {number}");
            }
        }
    }

    #[test]
    fn chunks_are_bounded_and_read_back_from_a_file() {
        let store = MemoryStore::new();
        for number in 0..2000_u64 {
            store.put(&number.to_be_bytes(), vec![7; 1000].into(), Sequence(number + 1));
        }
        store.put(b"large", vec![9; 3 * CHUNK_BYTES].into(), Sequence(2001));
        let chunks = chunks(&store, Progress { sequence: Sequence(3000), ..Progress::default() });
        assert!(chunks.len() > 8);
        let file = chunks.concat();
        let mut rest = &file[..];
        for chunk in &chunks {
            assert!(chunk.len() < 4 * CHUNK_BYTES + 1100);
            assert_eq!(read_chunk(&mut rest).unwrap().as_ref(), Some(chunk));
        }
        assert_eq!(read_chunk(&mut rest).unwrap(), None);
        assert!(read_chunk(&mut &file[..5]).is_err());
        assert!(read_chunk(&mut &file[..12]).is_err());
    }
}
