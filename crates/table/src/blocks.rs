//! A shard file as a sequence of blocks, each with a checksum: written from front to back, and checked as a
//! whole.

use crate::digest::{Digest, Hasher};
use crate::error::FileError;
use crate::format::{BLOCK, BODY, HEADER, Header, Seal, u32_at};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Writes blocks in order. Block 0 stays in memory until the header is known.
pub(crate) struct BlockWriter {
    file: File,
    path: PathBuf,
    first: Vec<u8>,
    current: Vec<u8>,
    checksums: Vec<u8>,
    hasher: Hasher,
    position: u64,
}

impl BlockWriter {
    /// Creates `path`; the first byte to be written follows the header's room.
    pub(crate) fn create(path: &Path) -> Result<Self, FileError> {
        let file = File::create(path).map_err(|source| FileError::Io { file: path.into(), source })?;
        Ok(Self {
            file,
            path: path.into(),
            first: Vec::new(),
            current: vec![0; BODY as usize],
            checksums: Vec::new(),
            hasher: Hasher::default(),
            position: BODY,
        })
    }

    /// The offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), FileError> {
        self.position += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = BLOCK - self.current.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.current.extend_from_slice(now);
            bytes = later;
            if self.current.len() == BLOCK {
                self.end_block()?;
            }
        }
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), FileError> {
        self.checksums.extend(crc32c::crc32c(&self.current).to_le_bytes());
        let result = self.file.write_all(&self.current);
        let is_first = self.checksums.len() == 4;
        self.hasher.update(&self.current[if is_first { HEADER } else { 0 }..]);
        if is_first {
            self.first = std::mem::take(&mut self.current);
        }
        self.current.clear();
        result.map_err(|source| FileError::Io { file: self.path.clone(), source })
    }

    /// Writes the last block, the checksums and the header, whose `checksums_crc` it fills in, and syncs the
    /// file.
    pub(crate) fn finish(mut self, header: &mut Header) -> Result<(Seal, Digest), FileError> {
        if !self.current.is_empty() {
            self.end_block()?;
        }
        // Block 0's checksum leaves the header out, because the header holds the checksum of all block
        // checksums.
        let block = crc32c::crc32c(&self.first[HEADER..]);
        self.checksums[..4].copy_from_slice(&block.to_le_bytes());
        header.checksums_crc = crc32c::crc32c(&self.checksums);
        let encoded = header.encode();
        let written = (|| {
            self.file.write_all(&self.checksums)?;
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&encoded)?;
            self.file.sync_all()
        })();
        written.map_err(|source| FileError::Io { file: self.path.clone(), source })?;
        self.hasher.update(&self.checksums);
        Ok((Seal::new(header, u32_at(&encoded, HEADER - 4)), self.hasher.finish(&encoded)))
    }
}

/// Checks every block of `bytes`, which is the whole of `file`, against its checksum.
pub(crate) fn check(bytes: &[u8], header: &Header, file: &Path) -> Result<(), FileError> {
    let (body, checksums) = bytes.split_at(header.checksums_at as usize);
    let refuse =
        |block: u64, expected, found| FileError::Checksum { file: file.into(), block, expected, found };
    let found = crc32c::crc32c(checksums);
    if found != header.checksums_crc {
        return Err(refuse(header.checksums_at / BLOCK as u64, header.checksums_crc, found));
    }
    for (number, block) in body.chunks(BLOCK).enumerate() {
        let block = if number == 0 { &block[HEADER..] } else { block };
        let (expected, found) = (u32_at(checksums, 4 * number), crc32c::crc32c(block));
        if expected != found {
            return Err(refuse(number as u64, expected, found));
        }
    }
    Ok(())
}
