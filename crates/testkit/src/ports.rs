//! Free ports for processes that a test starts.
//!
//! A port that was free when a test chose it can be taken before the process binds it, or while the process
//! is down between a kill and a restart. Two measures keep that from happening:
//!
//! - Tests take ports in blocks and hold a lock file per block, so no two tests share one, in one process or
//!   several.
//! - All blocks are below Linux's ephemeral range (from 32768 by default), so the system never gives one of
//!   their ports to an outgoing connection.
//!
//! One risk remains: an unrelated program may begin to listen on a port of a reserved block. A node that then
//! cannot bind says so in its log.

use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

const FIRST: u16 = 10_000;
/// Exclusive. From here on `quoin demo` and `quoin bench` look for ports.
const END: u16 = 20_000;

/// A block of [`Ports::COUNT`] consecutive ports on 127.0.0.1, reserved among all tests of this user while it
/// lives.
#[derive(Debug)]
pub struct Ports {
    base: u16,
    /// Holds the lock. The system releases it when the file is closed, even if the process is killed.
    _lock: File,
}

impl Ports {
    /// Ports in a block.
    pub const COUNT: u16 = 50;

    /// Reserves a block whose ports are all free now.
    ///
    /// # Errors
    /// The folder for the lock files cannot be made, or no block is free.
    pub fn reserve() -> Result<Self> {
        let folder = lock_folder()?;
        let blocks = (END - FIRST) / Self::COUNT;
        // Each process starts its search elsewhere, so that blocks are seldom reused at once.
        let first = (std::process::id() % u32::from(blocks)) as u16;
        for number in 0..blocks {
            let base = FIRST + (first + number) % blocks * Self::COUNT;
            if let Some(ports) = Self::try_reserve(&folder, base)? {
                return Ok(ports);
            }
        }
        bail!("no {} consecutive ports from {FIRST} to {END} are free", Self::COUNT)
    }

    fn try_reserve(folder: &Path, base: u16) -> Result<Option<Self>> {
        let path = folder.join(base.to_string());
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.with_context(|| format!("opening {}", path.display()))?;
        // Another test has it.
        if lock.try_lock().is_err() {
            return Ok(None);
        }
        let free =
            (0..Self::COUNT).all(|offset| TcpListener::bind((Ipv4Addr::LOCALHOST, base + offset)).is_ok());
        Ok(free.then_some(Self { base, _lock: lock }))
    }

    /// The address of one port of the block.
    ///
    /// # Panics
    /// `offset` is not below [`Ports::COUNT`].
    pub fn address(&self, offset: u16) -> SocketAddr {
        assert!(offset < Self::COUNT, "port {offset} of a block of {}", Self::COUNT);
        (Ipv4Addr::LOCALHOST, self.base + offset).into()
    }
}

/// The folder for this user's lock files; users cannot open each other's. Ports that other users' tests
/// listen on are found by binding.
fn lock_folder() -> Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("quoin-test-ports-{user}"));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn blocks_that_live_at_one_time_share_no_port() {
        let blocks: Vec<Ports> = (0..5).map(|_| Ports::reserve().unwrap()).collect();
        let all = blocks.iter().flat_map(|block| (0..Ports::COUNT).map(|offset| block.address(offset)));
        assert_eq!(all.collect::<BTreeSet<_>>().len(), 5 * usize::from(Ports::COUNT));
    }

    #[test]
    fn a_block_in_use_is_passed_over() {
        // Other tests leave the block alone, and another folder has other locks.
        let reserved = Ports::reserve().unwrap();
        let (folder, base) = (tempfile::tempdir().unwrap(), reserved.base);
        let held = Ports::try_reserve(folder.path(), base).unwrap().unwrap();
        assert!(Ports::try_reserve(folder.path(), base).unwrap().is_none(), "the lock is held");
        drop(held);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, base + 7)).unwrap();
        assert!(Ports::try_reserve(folder.path(), base).unwrap().is_none(), "a port is in use");
        drop(listener);
        assert!(Ports::try_reserve(folder.path(), base).unwrap().is_some());
    }
}
