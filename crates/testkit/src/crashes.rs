//! What a disk may hold if a process is killed, or its machine loses power, before any of its system calls.
//!
//! A test runs a part of itself in another process, which begins with [`other_process`], and looks at what is there
//! what a crash before each call that changes something in its folder leaves ([`each_crash`]). A [`Disk`] knows what was
//! synced by then. A killed process leaves the folder as it is. A loss of power leaves, of each file and of each
//! name, what was last synced or something newer, each for itself: a file's sync does not sync its name, and what
//! was not synced may be there in part. That is what POSIX promises; file systems promise more.

use crate::wait_blocking;
use anyhow::{Context, Result, bail, ensure};
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Unsynced bytes reach the disk, or do not, in pieces of this size.
const PAGE: usize = 4096;

/// Draws a number below its argument.
pub type Draw<'a> = dyn FnMut(usize) -> usize + 'a;

/// A folder in which somebody writes, and what of it is on the disk.
struct Disk {
    root: PathBuf,
    root_number: u64,
    /// By inode: every file that was seen, held open so that its number is not given to another one.
    held: HashMap<u64, File>,
    /// By inode: what the file held when it was last synced.
    files: HashMap<u64, Vec<u8>>,
    /// By inode: the names in the folder when it was last synced.
    folders: HashMap<u64, Names>,
}

type Names = BTreeMap<OsString, Node>;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Node {
    number: u64,
    is_folder: bool,
}

impl Disk {
    /// The disk of `root`, all of which counts as synced.
    fn new(root: &Path) -> Result<Self> {
        let root = root.canonicalize()?;
        let root_number = fs::metadata(&root)?.ino();
        let mut disk =
            Self { root, root_number, held: HashMap::new(), files: HashMap::new(), folders: HashMap::new() };
        for (path, number) in disk.look()? {
            disk.sync(&path, number)?;
        }
        Ok(disk)
    }

    /// Holds what is new. Returns all paths with their inodes, folders before what they hold.
    fn look(&mut self) -> Result<Vec<(PathBuf, u64)>> {
        let mut found = vec![(self.root.clone(), self.root_number)];
        let mut next = 0;
        while let Some((path, number)) = found.get(next).cloned() {
            if path.is_dir() {
                found.extend(names(&path)?.into_iter().map(|(name, node)| (path.join(name), node.number)));
            }
            if let std::collections::hash_map::Entry::Vacant(held) = self.held.entry(number) {
                held.insert(File::open(&path)?);
            }
            next += 1;
        }
        Ok(found)
    }

    /// What is at `path` now, which may be a name for an open file, is on the disk.
    fn sync(&mut self, path: &Path, number: u64) -> Result<()> {
        if path.is_dir() {
            self.folders.insert(number, names(path)?);
        } else {
            self.files.insert(number, fs::read(path)?);
        }
        Ok(())
    }

    /// Writes to `to`, which must not exist, what is left if the process is killed now.
    ///
    /// # Errors
    /// The file system failed.
    fn killed(&self, to: &Path) -> Result<()> {
        copy(&self.root, to)
    }

    /// Writes to `to`, which must not exist, what may be left if the power is lost now: with `newer` of 0 only what
    /// was synced, otherwise each thing that was not with a chance of `newer` in 100.
    ///
    /// # Errors
    /// The file system failed.
    fn without_power(&self, to: &Path, newer: usize, draw: &mut Draw<'_>) -> Result<()> {
        let now = folders(&self.root, self.root_number)?;
        self.rebuild(self.root_number, to, &now, newer, draw)
    }

    fn rebuild(
        &self,
        number: u64,
        to: &Path,
        now: &HashMap<u64, Names>,
        newer: usize,
        draw: &mut Draw<'_>,
    ) -> Result<()> {
        fs::create_dir(to)?;
        let empty = Names::new();
        let synced = self.folders.get(&number).unwrap_or(&empty);
        let present = now.get(&number).unwrap_or(synced);
        for name in synced.keys().chain(present.keys()).collect::<BTreeSet<_>>() {
            let (old, new) = (synced.get(name), present.get(name));
            let chosen = if old != new && draw(100) < newer { new } else { old };
            match chosen {
                Some(node) if node.is_folder => {
                    self.rebuild(node.number, &to.join(name), now, newer, draw)?
                }
                Some(node) => fs::write(to.join(name), self.content(node.number, newer, draw)?)?,
                None => {}
            }
        }
        Ok(())
    }

    fn content(&self, number: u64, newer: usize, draw: &mut Draw<'_>) -> Result<Vec<u8>> {
        let synced = self.files.get(&number).cloned().unwrap_or_default();
        let now = read_all(&self.held[&number])?;
        if now == synced || !draw(100) < newer {
            return Ok(synced);
        }
        if draw(2) == 0 {
            return Ok(now);
        }
        // Torn: each page for itself, and the length for itself.
        let (shorter, longer) = (now.len().min(synced.len()), now.len().max(synced.len()));
        let mut torn = vec![0; shorter + draw(longer - shorter + 1)];
        for (at, page) in torn.chunks_mut(PAGE).enumerate() {
            let from = if draw(2) == 0 { &now } else { &synced };
            let from = from.get(at * PAGE..).unwrap_or_default();
            let bytes = from.len().min(page.len());
            page[..bytes].copy_from_slice(&from[..bytes]);
        }
        Ok(torn)
    }
}

/// Where the other process works, and what it is told.
const PLACE: &str = "QUOIN_CRASHES_PLACE";
const ARGUMENT: &str = "QUOIN_CRASHES_ARGUMENT";

/// Where a process that is looked at works.
pub struct Place(PathBuf);

impl Place {
    /// The folder whose disk is looked at.
    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// Says that the disk now holds `said`.
    ///
    /// # Errors
    /// The file system failed.
    pub fn say(&self, said: u64) -> io::Result<()> {
        fs::write(self.0.join("said.new"), said.to_string())?;
        fs::rename(self.0.join("said.new"), self.0.join("said"))
    }

    fn said(&self) -> u64 {
        fs::read_to_string(self.0.join("said")).ok().and_then(|said| said.parse().ok()).unwrap_or(0)
    }
}

/// What an ignored test begins with that is the other process of [`each_crash`]: its place and argument, or `None` if
/// somebody runs all tests that are ignored. From here on it works in this thread.
///
/// # Errors
/// The file system failed.
pub fn other_process() -> Result<Option<(Place, u64)>> {
    let (Ok(place), Ok(argument)) = (std::env::var(PLACE), std::env::var(ARGUMENT)) else { return Ok(None) };
    let place = PathBuf::from(place);
    fs::write(place.join("thread.new"), nix::unistd::gettid().to_string())?;
    fs::rename(place.join("thread.new"), place.join("thread"))?;
    io::stdin().read_exact(&mut [0])?;
    Ok(Some((Place(place), argument.parse()?)))
}

/// The seeds to try: the first one, or as many as the environment's `QUOIN_CRASH_SEEDS` says.
pub fn seeds() -> std::ops::RangeInclusive<u64> {
    let count = std::env::var("QUOIN_CRASH_SEEDS").ok().and_then(|count| count.parse().ok());
    1..=count.unwrap_or(1)
}

/// Runs `test`, an ignored test of this program, in a process of its own with `argument`. Before each of its system calls
/// that changes something in its folder, which begins empty but for the `folders`, `check` is given what a kill leaves
/// there, and what a loss of power may leave: with each number of `newer` as the chance in 100 that something is newer
/// than what was synced. It is given a folder, whose name tells the call, and the number that was last
/// [said](Place::say), 0 if none was. Returns the number of calls.
///
/// # Errors
/// The process failed, or the system does not let it be traced.
pub fn each_crash(
    test: &str,
    argument: u64,
    folders: &[&str],
    newer: &[usize],
    draw: &mut Draw<'_>,
    check: &mut dyn FnMut(&Path, u64),
) -> Result<usize> {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { TempDir::new_in(memory)? } else { TempDir::new()? };
    let place = Place(folder.path().to_path_buf());
    folders.iter().try_for_each(|name| fs::create_dir_all(place.data().join(name)))?;
    let mut process = Process(
        None,
        Command::new(std::env::current_exe()?)
            .args(["--exact", test, "--ignored", "--nocapture"])
            .envs([(PLACE, place.0.as_os_str()), (ARGUMENT, argument.to_string().as_ref())])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?,
    );
    let thread =
        wait_blocking("the other process to begin", || fs::read_to_string(place.0.join("thread")).ok())?;
    let mut stdin = process.1.stdin.take().context("no pipe to the other process")?;
    let mut calls = 0;
    let mut before = |call: &str, disk: &Disk| {
        let left = place.0.join(format!("{calls}-{call}"));
        calls += 1;
        disk.killed(&left)?;
        check(&left, place.said());
        fs::remove_dir_all(&left)?;
        for newer in newer {
            disk.without_power(&left, *newer, draw)?;
            check(&left, place.said());
            fs::remove_dir_all(&left)?;
        }
        Ok(())
    };
    let thread = Pid::from_raw(thread.parse()?);
    process.0 = Some(thread);
    trace(thread, &place.data(), || Ok(stdin.write_all(b"\n")?), &mut before)?;
    let status = process.1.wait()?;
    ensure!(status.success(), "the other process ended with {status}");
    Ok(calls)
}

/// Ends with the test, as does its thread that is traced.
struct Process(Option<Pid>, Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended, if all went well.
        let _ = self.1.kill();
        // A process is not gone before whoever traces its thread has heard of that thread's end.
        while let Some(thread) = self.0 {
            match wait(thread) {
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_) => self.0 = None,
                Ok(_) => {}
            }
        }
        let _ = self.1.wait();
    }
}

/// Stops a thread before each system call that changes something in `root`, until it ends. It waits for `release`.
fn trace(
    thread: Pid,
    root: &Path,
    release: impl FnOnce() -> Result<()>,
    before: &mut dyn FnMut(&str, &Disk) -> Result<()>,
) -> Result<()> {
    ptrace::seize(thread, Options::PTRACE_O_TRACESYSGOOD).context("cannot trace a thread")?;
    ptrace::interrupt(thread)?;
    wait(thread)?;
    let mut disk = Disk::new(root)?;
    release()?;
    let mut syncing = None;
    loop {
        ptrace::syscall(thread, None)?;
        match wait(thread)? {
            WaitStatus::PtraceSyscall(_) => {}
            WaitStatus::Exited(_, 0) => return Ok(()),
            WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..) => continue,
            ended => bail!("the traced thread ended: {ended:?}"),
        }
        if ptrace::syscall_info(thread)?.op == libc::PTRACE_SYSCALL_INFO_EXIT {
            if let Some(file) = syncing.take() {
                synced(&mut disk, thread, file)?;
            }
            continue;
        }
        let Some(call) = Call::of(thread)?.filter(|call| call.is_within(thread, &disk.root)) else {
            continue;
        };
        disk.look()?;
        before(call.name, &disk)?;
        syncing = call.file.filter(|_| call.syncs);
    }
}

/// A file was synced. A failed sync is taken for one, too: nobody makes the system fail here.
fn synced(disk: &mut Disk, pid: Pid, file: u64) -> Result<()> {
    let path = PathBuf::from(format!("/proc/{pid}/fd/{file}"));
    let number = fs::metadata(&path)?.ino();
    disk.sync(&path.join("."), number).or_else(|_| disk.sync(&path, number))
}

/// A system call that changes files.
struct Call {
    name: &'static str,
    /// Its file descriptor; `None` for those that take a path.
    file: Option<u64>,
    syncs: bool,
}

impl Call {
    /// The call that `pid` is about to make.
    fn of(pid: Pid) -> Result<Option<Self>> {
        let text = fs::read_to_string(format!("/proc/{pid}/syscall"))?;
        let mut words = text.split_whitespace();
        let number = words.next().and_then(|number| number.parse().ok());
        let number: libc::c_long = number.with_context(|| format!("no system call in {text:?}"))?;
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let arguments: Vec<u64> = words.map_while(hex).collect();
        ensure!(arguments.len() >= 6, "no arguments in {text:?}");
        Ok(Self::named(number, &arguments))
    }

    fn named(number: libc::c_long, arguments: &[u64]) -> Option<Self> {
        let on = |name, file| Some(Self { name, file: Some(file), syncs: false });
        let by_path = |name| Some(Self { name, file: None, syncs: false });
        let sync = |name| Some(Self { name, file: Some(arguments[0]), syncs: true });
        let creates = |flags: u64| flags & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0;
        match number {
            libc::SYS_write => on("write", arguments[0]),
            libc::SYS_pwrite64 => on("pwrite", arguments[0]),
            libc::SYS_writev => on("writev", arguments[0]),
            libc::SYS_pwritev | libc::SYS_pwritev2 => on("pwritev", arguments[0]),
            libc::SYS_sendfile => on("sendfile", arguments[0]),
            libc::SYS_copy_file_range => on("copy_file_range", arguments[2]),
            libc::SYS_ftruncate => on("ftruncate", arguments[0]),
            libc::SYS_fallocate => on("fallocate", arguments[0]),
            libc::SYS_fsync => sync("fsync"),
            libc::SYS_fdatasync => sync("fdatasync"),
            libc::SYS_openat if creates(arguments[2]) => by_path("open"),
            libc::SYS_mkdirat => by_path("mkdir"),
            libc::SYS_unlinkat => by_path("unlink"),
            libc::SYS_renameat2 => by_path("rename"),
            libc::SYS_linkat => by_path("link"),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open if creates(arguments[1]) => by_path("open"),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir => by_path("mkdir"),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink | libc::SYS_rmdir => by_path("unlink"),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename | libc::SYS_renameat => by_path("rename"),
            _ => None,
        }
    }

    /// Whether it may change something in `root`.
    fn is_within(&self, pid: Pid, root: &Path) -> bool {
        let path = |file| fs::read_link(format!("/proc/{pid}/fd/{file}"));
        self.file.is_none_or(|file| path(file).is_ok_and(|path| path.starts_with(root)))
    }
}

fn wait(pid: Pid) -> Result<WaitStatus> {
    Ok(waitpid(pid, Some(WaitPidFlag::__WALL))?)
}

fn names(folder: &Path) -> Result<Names> {
    let mut names = Names::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let node = Node { number: entry.ino(), is_folder: entry.file_type()?.is_dir() };
        names.insert(entry.file_name(), node);
    }
    Ok(names)
}

/// What all folders in and below `path`, which has inode `number`, hold now.
fn folders(path: &Path, number: u64) -> Result<HashMap<u64, Names>> {
    let here = names(path)?;
    let mut all = HashMap::new();
    for (name, node) in here.iter().filter(|(_, node)| node.is_folder) {
        all.extend(folders(&path.join(name), node.number)?);
    }
    all.insert(number, here);
    Ok(all)
}

fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for (name, node) in names(from)? {
        match node.is_folder {
            true => copy(&from.join(&name), &to.join(&name))?,
            false => drop(fs::copy(from.join(&name), to.join(&name))?),
        }
    }
    Ok(())
}
