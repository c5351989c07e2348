//! Files that replicas fetch from each other: what one lends, and how another borrows it.
//!
//! A file is named by its layer's id, which is a digest of the content, and its name in the manifest. A replica lends
//! what has its final name in its data folder. Whoever borrows trusts nobody: it checks what it got.
//!
//! **Invariant: Bounded.** A borrower takes `table.peer_bytes_per_second` at most for each layer, of which it fetches two
//! at once, so that those that serve lookups are not kept busy by one that catches up.

use quoin_engine::Engine;
use quoin_table::FileEntry;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Other replicas that have said that they have a layer.
#[derive(Clone)]
pub(super) struct Lenders {
    pub(super) engine: Engine,
    /// Their member ids.
    pub(super) members: Vec<u64>,
    /// How fast to borrow; 0: not at all.
    pub(super) bytes_per_second: u64,
}

impl Lenders {
    /// Appends what `part` lacks of a layer's file, from `member`. Blocks its thread; may be stopped between pieces.
    ///
    /// # Errors
    /// The member does not lend it, or the connection or the disk failed. What has come stays in `part`.
    pub(super) async fn borrow_from(
        &self,
        member: u64,
        layer: &str,
        entry: &FileEntry,
        part: &Path,
    ) -> io::Result<File> {
        let mut file = File::options().create(true).append(true).open(part)?;
        let mut there = file.metadata()?.len();
        if there > entry.bytes {
            there = 0;
            file.set_len(0)?;
        }
        let lent = self.engine.borrow_file(member, &format!("{layer}/{}", entry.name), there)?;
        if lent.length != entry.bytes {
            return Err(io::Error::other(format!("its file has {} bytes, not {}", lent.length, entry.bytes)));
        }
        if there > 0 {
            tracing::info!(file = entry.name, from = there, "resuming the fetch of a table's file");
        }
        let mut bytes = lent.bytes.take(entry.bytes - there);
        let (begun, mut piece, mut taken) = (Instant::now(), vec![0; PIECE], 0);
        loop {
            let read = bytes.read(&mut piece)?;
            if read == 0 {
                break;
            }
            file.write_all(&piece[..read])?;
            taken += read as u64;
            self.pause(begun, taken).await;
        }
        match there + taken {
            all if all == entry.bytes => Ok(file),
            found => Err(io::Error::other(format!("it ended after {found} of {} bytes", entry.bytes))),
        }
    }

    /// Waits until as much time has passed since `begun` as `taken` bytes may take.
    async fn pause(&self, begun: Instant, taken: u64) {
        let due = Duration::from_secs_f64(taken as f64 / self.bytes_per_second.max(1) as f64);
        match due.checked_sub(begun.elapsed()) {
            Some(early) => tokio::time::sleep(early).await,
            // Where a fetch that nobody wants any more is stopped.
            None => tokio::task::yield_now().await,
        }
    }
}

/// Opens the file `name`, as another replica names it, in the folder with all layers.
///
/// # Errors
/// It is not the name of a layer's file, or there is none.
pub(super) fn open(tables: &Path, name: &str) -> io::Result<File> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match name.split_once('/') {
        Some((layer, file))
            if !layer.is_empty()
                && layer.bytes().all(|byte| byte.is_ascii_hexdigit())
                && !file.starts_with('.')
                && !file.is_empty()
                && file.bytes().all(plain) =>
        {
            File::open(tables.join(layer).join(file))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no file of a layer"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_files_of_layers_are_lent() {
        let folder = tempfile::tempdir().unwrap();
        let tables = folder.path().join("tables");
        std::fs::create_dir_all(tables.join("ab12")).unwrap();
        std::fs::create_dir_all(tables.join("ab12.partial")).unwrap();
        for file in ["identity.json", "tables/ab12/values.qtb", "tables/ab12.partial/values.qtb"] {
            std::fs::write(folder.path().join(file), "x").unwrap();
        }
        assert!(open(&tables, "ab12/values.qtb").is_ok());
        for name in
            ["../identity.json", "ab12/../../identity.json", "ab12.partial/values.qtb", "ab12/", "/ab12", ""]
        {
            assert!(open(&tables, name).is_err(), "{name}");
        }
    }
}
