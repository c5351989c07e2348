//! The files of a trail: `audit-N.jsonl`, each named by the number of its first record, so that their names' order is that of their
//! records. Records are appended to the last one.
//!
//! A crash can tear the last line; it is cut off at the next start, which says so.
//!
//! Whoever writes holds the lock of the file `LOCK`: two would write over each other's records.

use crate::record::{Head, LINE_BYTES_MAX, parse};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Digits of a number in a file's name.
const DIGITS: usize = 16;

/// Where records are written.
pub(crate) struct Files {
    folder: PathBuf,
    file_bytes_max: u64,
    files_max: usize,
    /// The last file, and the bytes of its records.
    last: Option<(File, u64)>,
    _lock: File,
}

/// What was found in the folder.
pub(crate) struct Found {
    pub(crate) head: Head,
    /// Bytes of a torn line that were cut off.
    pub(crate) torn_bytes: u64,
    /// The file whose last record is none: the chain begins anew behind it.
    pub(crate) damaged: Option<String>,
}

impl Files {
    /// The files in a folder, which is made if there is none.
    pub(crate) fn open(folder: &Path, file_bytes_max: u64, files_max: usize) -> io::Result<(Self, Found)> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let _lock = locked(folder)?;
        let mut files = Self { folder: folder.into(), file_bytes_max, files_max, last: None, _lock };
        let mut found = Found { head: Head::default(), torn_bytes: 0, damaged: None };
        while let Some((first, path)) = numbered(folder)?.pop() {
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            let length = file.metadata()?.len();
            let (kept, line) = end(&file, length)?;
            if kept < length {
                file.set_len(kept)?;
                file.sync_all()?;
                found.torn_bytes += length - kept;
            }
            match line.as_deref().map(parse) {
                // Nothing was written to it yet.
                None if kept == 0 => {
                    std::fs::remove_file(&path)?;
                    continue;
                }
                Some(Ok(record)) => {
                    found.head = Head { n: record.n, hash: record.hash };
                    files.last = Some((file, kept));
                }
                // Numbers go on above all that may stand there.
                None | Some(Err(_)) => {
                    found.damaged = path.file_name().map(|name| name.to_string_lossy().into_owned());
                    found.head.n = first.saturating_add(kept);
                }
            }
            break;
        }
        Ok((files, found))
    }

    /// Appends the lines of records from number `first` on, and has them on disk when it returns. After an error
    /// nothing of them stands there.
    pub(crate) fn append(&mut self, first: u64, lines: &str) -> io::Result<()> {
        let bytes = lines.len() as u64;
        if self.last.as_ref().is_some_and(|(_, length)| length + bytes > self.file_bytes_max) {
            self.last = None;
        }
        let (file, length) = match &mut self.last {
            Some(last) => last,
            None => {
                let file = self.begin(first)?;
                self.last.insert((file, 0))
            }
        };
        let written = file.write_all_at(lines.as_bytes(), *length).and_then(|()| file.sync_data());
        match written {
            Ok(()) => *length += bytes,
            // What is left of it is overwritten by the next try, or cut off by the next start.
            Err(_) => file.set_len(*length)?,
        }
        written
    }

    fn begin(&self, first: u64) -> io::Result<File> {
        let path = self.folder.join(format!("audit-{first:0DIGITS$}.jsonl"));
        let file =
            OpenOptions::new().create(true).truncate(true).write(true).read(true).mode(0o600).open(path)?;
        File::open(&self.folder)?.sync_all()?;
        let mut all = numbered(&self.folder)?;
        all.truncate(all.len().saturating_sub(self.files_max));
        for (_, path) in all {
            std::fs::remove_file(path)?;
        }
        Ok(file)
    }
}

fn locked(folder: &Path) -> io::Result<File> {
    let lock =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(folder.join("LOCK"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another process writes to it; each node needs a folder of its own",
        )),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The files of a folder by the numbers in their names, in order.
pub(crate) fn numbered(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let number = name.strip_prefix("audit-").and_then(|rest| rest.strip_suffix(".jsonl"));
        if let Some(number) = number.and_then(|digits| digits.parse().ok()) {
            files.push((number, path));
        }
    }
    files.sort();
    Ok(files)
}

/// Up to where a file has whole lines, and the last of them.
fn end(file: &File, length: u64) -> io::Result<(u64, Option<String>)> {
    let from = length.saturating_sub(2 * LINE_BYTES_MAX as u64);
    let mut bytes = vec![0; usize::try_from(length - from).unwrap_or(0)];
    file.read_exact_at(&mut bytes, from)?;
    let Some(stop) = bytes.iter().rposition(|byte| *byte == b'\n') else {
        // Longer than any line, and without an end: nothing is cut off that may be evidence.
        return Ok(if from == 0 { (0, None) } else { (length, None) });
    };
    let start = bytes[..stop].iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
    let line = String::from_utf8_lossy(&bytes[start..stop]).into_owned();
    Ok((from + stop as u64 + 1, Some(line)))
}
