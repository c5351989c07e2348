//! Reading a file again from the disk, beside whoever has it in memory: a disk forgets without telling.
//!
//! What of a mapped file is in memory is checked as it is there: the kernel does not forget pages that are in use.

use crate::digest::{Digest, Hasher};
use crate::error::{FileError, TableError};
use crate::format::{BLOCK, HEADER, Header, Seal, u32_at};
use crate::manifest::FileEntry;
use crate::shard::{Options, Shard};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Blocks that are read at once.
const STEP: usize = 4 * BLOCK;

/// Reads `file` and compares it with what the manifest says of it. `pace` is told the bytes of each step, and says
/// whether to go on; what it stops counts as whole.
///
/// # Errors
/// The file cannot be read, is damaged, or is another one.
pub fn recheck(file: &Path, entry: &FileEntry, pace: &mut dyn FnMut(u64) -> bool) -> Result<(), FileError> {
    let io = |source| FileError::Io { file: file.into(), source };
    let other = |what| FileError::Structure { file: file.into(), what };
    let handle = File::open(file).map_err(io)?;
    let length = handle.metadata().map_err(io)?.len();
    if length != entry.bytes {
        return Err(other(format!("{length} bytes, but the manifest says {}", entry.bytes)));
    }
    let first = read(&handle, 0, HEADER).map_err(io)?;
    let header = Header::decode(&first, length, file)?;
    let seal = Seal::new(&header, u32_at(&first, HEADER - 4));
    if seal != entry.seal() {
        return Err(other(format!("it has {seal}, but the manifest says {}", entry.seal())));
    }
    let refuse = |block, expected, found| FileError::Checksum { file: file.into(), block, expected, found };
    let checksums =
        read(&handle, header.checksums_at, (length - header.checksums_at) as usize).map_err(io)?;
    let found = crc32c::crc32c(&checksums);
    if found != header.checksums_crc {
        return Err(refuse(header.checksums_at / BLOCK as u64, header.checksums_crc, found));
    }
    let mut at = 0;
    while at < header.checksums_at {
        let step = (header.checksums_at - at).min(STEP as u64);
        if !pace(step) {
            return Ok(());
        }
        let bytes = read(&handle, at, step as usize).map_err(io)?;
        for (number, block) in (at / BLOCK as u64..).zip(bytes.chunks(BLOCK)) {
            let block = if number == 0 { &block[HEADER..] } else { block };
            let (expected, found) = (u32_at(&checksums, 4 * number as usize), crc32c::crc32c(block));
            if expected != found {
                return Err(refuse(number, expected, found));
            }
        }
        at += step;
    }
    Ok(())
}

/// Checks that `file`, which comes from somebody else, is the one of the manifest's `entry`: by its digest, or in format 1
/// by its checksums.
///
/// # Errors
/// It cannot be read, or is another one.
pub fn check_foreign(file: &Path, entry: &FileEntry) -> Result<(), TableError> {
    let Some(expected) = entry.digest else {
        return Ok(recheck(file, entry, &mut |_| true)?);
    };
    let found = digest(file).map_err(|source| FileError::Io { file: file.into(), source })?;
    if found == expected {
        return Ok(());
    }
    // Checksums say where it is damaged.
    Shard::open(file, Options::default())?;
    let what = format!("its digest is {found}, but the manifest says {expected}");
    Err(TableError::Other { file: file.into(), what })
}

/// The digest of a file, read from front to back.
fn digest(file: &Path) -> io::Result<Digest> {
    let handle = File::open(file)?;
    let length = handle.metadata()?.len();
    let mut header = vec![0; HEADER.min(length as usize)];
    handle.read_exact_at(&mut header, 0)?;
    let (mut hasher, mut piece, mut at) = (Hasher::default(), vec![0; STEP], header.len() as u64);
    while at < length {
        let step = (length - at).min(STEP as u64) as usize;
        handle.read_exact_at(&mut piece[..step], at)?;
        hasher.update(&piece[..step]);
        at += step as u64;
    }
    Ok(hasher.finish(&header))
}

fn read(file: &File, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
    // An error: then what is in memory is read.
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, at, std::num::NonZero::new(bytes as u64), rustix::fs::Advice::DontNeed);
    let mut buffer = vec![0; bytes];
    file.read_exact_at(&mut buffer, at)?;
    Ok(buffer)
}
