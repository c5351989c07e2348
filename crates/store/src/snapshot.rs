//! The bytes of a snapshot: framed chunks, encoded and decoded. The layout is docs/snapshot-format.md.
//!
//! **Invariant: Whole or nothing.** Chunks are numbered and checksummed, and the last one tells the number of
//! records. A stream that lacks anything is refused before it replaces a store ([`crate::import`]).
//!
//! **Invariant: Bounded.** A chunk holds [`CHUNK_BYTES`] and one record at most, and the reader refuses one
//! longer than [`CHUNK_BYTES_MAX`] before it takes memory for it.

use bytes::{BufMut, Bytes, BytesMut};
use quoin_core::codec::{self, Malformed, Reader};
use quoin_core::machines::{decode_progress, encode_progress};
use quoin_core::store::{Version, Versions};
use quoin_core::{Progress, Sequence, StoreError};
use std::io::{self, Read};

/// A chunk is closed once its body has reached this size, in bytes.
pub const CHUNK_BYTES: usize = 256 << 10;

/// Maximum size of a chunk's body, in bytes.
pub const CHUNK_BYTES_MAX: usize = 256 << 20;

const MAGIC: &[u8] = b"QUOINSNP";
const FORMAT: u8 = 1;
/// Length and CRC32C of the body, each 4 bytes, little-endian.
pub(crate) const FRAME_BYTES: usize = 8;

const KIND_HEADER: u8 = 0;
const KIND_RECORDS: u8 = 1;
const KIND_END: u8 = 2;

/// Why the bytes of a snapshot are refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The stream could not be read, or ends within a chunk.
    #[error("cannot read the snapshot: {0}")]
    Io(#[from] io::Error),
    /// A frame announces more than a chunk may have.
    #[error("not a snapshot, or a damaged one: chunk of {bytes} bytes, maximum {max}", max = CHUNK_BYTES_MAX)]
    TooLong {
        /// The announced length of the body.
        bytes: usize,
    },
    /// A chunk is shorter or longer than its frame says.
    #[error("snapshot chunk {chunk}: {bytes} bytes long, but its frame says {expected}; transfer it again")]
    Length {
        /// The chunk's number.
        chunk: u64,
        /// Length of the body.
        bytes: usize,
        /// Length of the body as announced.
        expected: usize,
    },
    /// A chunk's checksum does not match its bytes.
    #[error("snapshot chunk {chunk}: its checksum does not match; transfer it again")]
    Checksum {
        /// The chunk's number.
        chunk: u64,
    },
    /// A chunk is missing, repeated or in the wrong place.
    #[error("snapshot chunk {chunk}: {what}; transfer it again")]
    OutOfOrder {
        /// The number of the expected chunk.
        chunk: u64,
        /// What came instead.
        what: String,
    },
    /// The first chunk is not the header of a snapshot.
    #[error("not a snapshot: its first chunk does not begin with \"{}\"", MAGIC.escape_ascii())]
    NotASnapshot,
    /// A newer version wrote this snapshot.
    #[error("snapshot format {format}: this version reads only {known}; use a newer version of quoin", known = FORMAT)]
    Format {
        /// The format's number.
        format: u8,
    },
    /// The bytes arrived as they were sent, but do not follow the format.
    #[error("snapshot chunk {chunk}: {source}")]
    Malformed {
        /// The chunk's number.
        chunk: u64,
        /// What cannot be decoded.
        #[source]
        source: Malformed,
    },
    /// The header's progress record cannot be decoded.
    #[error("snapshot header: {0}")]
    Progress(#[source] StoreError),
    /// The records received are not as many as were sent.
    #[error("snapshot of {expected} records: received {received}; transfer it again")]
    Records {
        /// The number of records sent.
        expected: u64,
        /// The number of records received.
        received: u64,
    },
    /// The stream ended before its last chunk.
    #[error("snapshot ends after {chunks} chunks, without its last one; transfer it again")]
    Truncated {
        /// Chunks received.
        chunks: u64,
    },
}

/// Writes a snapshot's chunks, in order.
#[derive(Default)]
pub(crate) struct Encoder {
    chunks: u64,
    records: u64,
}

impl Encoder {
    /// The first chunk.
    pub(crate) fn header(&mut self, progress: &Progress) -> Bytes {
        let mut body = self.begin(KIND_HEADER);
        body.put_slice(MAGIC);
        body.put_u8(FORMAT);
        body.put_slice(&encode_progress(progress));
        frame(&body)
    }

    /// A chunk of the next `versions`; `None` when there are no more.
    pub(crate) fn records(&mut self, versions: &mut Versions<'_>) -> Result<Option<Bytes>, StoreError> {
        let Some(first) = versions.next() else { return Ok(None) };
        let mut body = self.begin(KIND_RECORDS);
        body.reserve(CHUNK_BYTES);
        let mut next = Some(first);
        while let Some(version) = next {
            let version = version?;
            check_fits(&body, &version)?;
            put_record(&mut body, &version);
            self.records += 1;
            next = if body.len() < CHUNK_BYTES { versions.next() } else { None };
        }
        Ok(Some(frame(&body)))
    }

    /// The last chunk.
    pub(crate) fn end(&mut self) -> Bytes {
        let records = self.records;
        let mut body = self.begin(KIND_END);
        codec::put_varint(&mut body, records);
        frame(&body)
    }

    fn begin(&mut self, kind: u8) -> Vec<u8> {
        let mut body = vec![kind];
        codec::put_varint(&mut body, self.chunks);
        self.chunks += 1;
        body
    }
}

/// Checks a snapshot's chunks and decodes them, in order.
#[derive(Default)]
pub(crate) struct Decoder {
    chunks: u64,
    records: u64,
    ended: bool,
}

/// The content of a chunk.
#[derive(Debug, PartialEq)]
pub(crate) enum Chunk {
    Header(Progress),
    Records(Vec<Version>),
    End,
}

impl Decoder {
    /// Decodes the next chunk.
    pub(crate) fn decode(&mut self, framed: Bytes) -> Result<Chunk, SnapshotError> {
        let chunk = self.chunks;
        let Some((head, _)) = framed.split_first_chunk::<FRAME_BYTES>() else {
            return Err(SnapshotError::Length { chunk, bytes: framed.len(), expected: FRAME_BYTES });
        };
        let (expected, checksum) = decode_frame(*head);
        let body = framed.slice(FRAME_BYTES..);
        if body.len() != expected {
            return Err(SnapshotError::Length { chunk, bytes: body.len(), expected });
        }
        if crc32c::crc32c(&body) != checksum {
            return Err(SnapshotError::Checksum { chunk });
        }
        let decoded = self.decode_body(Reader::new(body, "snapshot chunk"))?;
        self.chunks += 1;
        Ok(decoded)
    }

    fn decode_body(&mut self, mut reader: Reader) -> Result<Chunk, SnapshotError> {
        let chunk = self.chunks;
        let malformed = |source| SnapshotError::Malformed { chunk, source };
        let kind = reader.byte().map_err(malformed)?;
        let number = reader.varint().map_err(malformed)?;
        if number != chunk {
            return Err(SnapshotError::OutOfOrder { chunk, what: format!("chunk {number} came instead") });
        }
        if self.ended || (kind == KIND_HEADER) != (chunk == 0) {
            let what = format!("no chunk of kind {kind} may be here");
            return Err(SnapshotError::OutOfOrder { chunk, what });
        }
        match kind {
            KIND_HEADER => decode_header(reader),
            KIND_RECORDS => self.decode_records(reader).map_err(malformed),
            KIND_END => self.decode_end(reader.varint().map_err(malformed)?),
            _ => Err(malformed(Malformed { what: "kind of chunk" })),
        }
    }

    fn decode_records(&mut self, mut reader: Reader) -> Result<Chunk, Malformed> {
        let mut records = Vec::new();
        while !reader.is_empty() {
            records.push(take_record(&mut reader)?);
        }
        self.records += records.len() as u64;
        Ok(Chunk::Records(records))
    }

    fn decode_end(&mut self, expected: u64) -> Result<Chunk, SnapshotError> {
        if expected != self.records {
            return Err(SnapshotError::Records { expected, received: self.records });
        }
        self.ended = true;
        Ok(Chunk::End)
    }

    /// Checks that the last chunk was decoded.
    pub(crate) fn finish(&self) -> Result<(), SnapshotError> {
        if self.ended { Ok(()) } else { Err(SnapshotError::Truncated { chunks: self.chunks }) }
    }
}

fn decode_header(mut reader: Reader) -> Result<Chunk, SnapshotError> {
    if reader.take(MAGIC.len()).ok().as_deref() != Some(MAGIC) {
        return Err(SnapshotError::NotASnapshot);
    }
    match reader.byte().map_err(|source| SnapshotError::Malformed { chunk: 0, source })? {
        FORMAT => decode_progress(reader.rest()).map(Chunk::Header).map_err(SnapshotError::Progress),
        format => Err(SnapshotError::Format { format }),
    }
}

/// Reads the next framed chunk of a snapshot from a file or connection; `None` at its end.
///
/// # Errors
/// The stream cannot be read, ends within a chunk, or is not a snapshot.
pub fn read_chunk(stream: &mut impl Read) -> Result<Option<Bytes>, SnapshotError> {
    let mut head = [0; FRAME_BYTES];
    let read = read_up_to(stream, &mut head)?;
    if read == 0 {
        return Ok(None);
    }
    if read < FRAME_BYTES {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let (bytes, _) = decode_frame(head);
    if bytes > CHUNK_BYTES_MAX {
        return Err(SnapshotError::TooLong { bytes });
    }
    let mut framed = BytesMut::zeroed(FRAME_BYTES + bytes);
    framed[..FRAME_BYTES].copy_from_slice(&head);
    stream.read_exact(&mut framed[FRAME_BYTES..])?;
    Ok(Some(framed.freeze()))
}

/// Reads a snapshot from a file to its end, and checks it as an import does, without a store. Returns the
/// progress of the state in it.
///
/// # Errors
/// The stream cannot be read, or is not a whole snapshot.
pub fn check_snapshot(stream: &mut impl Read) -> Result<Progress, SnapshotError> {
    let (mut decoder, mut progress) = (Decoder::default(), None);
    while decoder.finish().is_err() {
        let Some(chunk) = read_chunk(stream)? else { break };
        if let Chunk::Header(announced) = decoder.decode(chunk)? {
            progress = Some(announced);
        }
    }
    decoder.finish()?;
    Ok(progress.expect("a decoder that has come to the end began with a header"))
}

/// Fills `buffer` as far as the stream goes, and returns how many bytes that was.
fn read_up_to(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn frame(body: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(FRAME_BYTES + body.len());
    framed.put_u32_le(u32::try_from(body.len()).expect("a record is far shorter than 4 GiB"));
    framed.put_u32_le(crc32c::crc32c(body));
    framed.put_slice(body);
    framed.freeze()
}

/// Length and CRC32C of the body.
fn decode_frame(head: [u8; FRAME_BYTES]) -> (usize, u32) {
    let [a, b, c, d, rest @ ..] = head;
    (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(rest))
}

/// Nobody could read a chunk that is too long. No record of this version is; earlier ones wrote a record of all
/// that a command changed.
fn check_fits(body: &[u8], (key, _, value): &Version) -> Result<(), StoreError> {
    const NUMBERS_BYTES_MAX: usize = 3 * 10;
    let bytes = key.len() + value.as_ref().map_or(0, Bytes::len);
    if body.len() + NUMBERS_BYTES_MAX + bytes <= CHUNK_BYTES_MAX {
        return Ok(());
    }
    let (key, max) = (key[..key.len().min(16)].escape_ascii(), CHUNK_BYTES_MAX);
    let text = format!(
        "the record {key} has {bytes} bytes, and a chunk at most {max}: compact the history up to the newest \
         revision, then take the snapshot again"
    );
    Err(StoreError::new("export a snapshot", text))
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
