//! What happens when a mapped file is cut, or its disk fails, while it is read: the kernel sends SIGBUS. The handler
//! here puts zeros in place of the whole mapping, marks it as broken and says which file it was; the read goes on.
//!
//! **Invariant: No answer of zeros.** Whoever has read from a mapping and passes on what it found asks afterwards whether
//! the mapping is broken ([`crate::Table::check_read`]), and passes on nothing then. The mark is set before there are zeros,
//! so an answer from a mapping that is not marked by then has none of them. Until the first fault of the process
//! this is one load ([`any_fault`]).
//!
//! What it deliberately does not promise: that every cut is noticed. In the page in which the file then ends,
//! the kernel shows zeros; only reads behind that page are SIGBUS. Reading files again in the background finds it.
//!
//! The handler runs in the thread that has read, at any instruction: it takes no lock, allocates nothing, and
//! reads and writes only atomics, besides calls to the system that hold in a handler. Other causes of SIGBUS, and other
//! handlers, are left as they were; so is the process if the system refuses the zeros: it ends, as it would anyway.
#![allow(unsafe_code, reason = "signal handlers have no safe form")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

const BEFORE: &[u8] = b"quoin: the mapped file ";
const AFTER: &[u8] =
    b" was cut, or its disk failed, while it was read: nothing of it is answered any more.\n";

/// Whether any mapping of this process has ever been broken.
static FAULT: AtomicBool = AtomicBool::new(false);

/// See [`FAULT`]. To be asked after what was read.
#[inline]
pub(crate) fn any_fault() -> bool {
    fence(Acquire);
    FAULT.load(Relaxed)
}

/// A place in the list of mappings. Places are never freed, because the handler may be walking over them; they
/// are used again.
struct Place {
    /// 0 while the place is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// From [`CString::into_raw`]; null at first.
    name: AtomicPtr<std::ffi::c_char>,
    broken: AtomicBool,
    next: Option<&'static Place>,
}

/// The newest place, which leads to all others.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());
/// Held by those who change the list, never by the handler.
static CHANGING: Mutex<()> = Mutex::new(());

/// A mapping that outlives its file. To be dropped before the mapping.
pub(crate) struct Watched(&'static Place);

impl Watched {
    /// Watches the mapping of `file` at `bytes`.
    pub(crate) fn new(bytes: &[u8], file: &Path) -> Self {
        BEFORE_ACTION.get_or_init(handle);
        // A name with a zero byte cannot be a file's.
        let name = CString::new(file.as_os_str().as_bytes()).unwrap_or_default();
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places().find(|place| place.start.load(Acquire) == 0).unwrap_or_else(add);
        let before = place.name.swap(name.into_raw(), Release);
        if !before.is_null() {
            // SAFETY: it came from `into_raw`. The place is free: no thread reads the bytes that it stood for,
            // so none is in the handler for its sake.
            drop(unsafe { CString::from_raw(before) });
        }
        let start = bytes.as_ptr() as usize;
        place.broken.store(false, Release);
        place.set(start..start + bytes.len());
        Self(place)
    }

    /// Whether some of the mapping could not be read.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.broken.load(Acquire)
    }
}

impl Place {
    fn set(&self, range: Range<usize>) {
        self.end.store(range.end, Release);
        self.start.store(range.start, Release);
    }

    /// The mapping that it stands for; none while it is free, or about to stand for another one. Whoever reads from a
    /// mapping holds it, so its place stays as it is: a place that changes meanwhile stands for somebody else's.
    fn range(&self) -> Option<Range<usize>> {
        self.range_if(|| {})
    }

    /// As [`Self::range`]; `meanwhile` is what others do before all is read.
    #[inline]
    fn range_if(&self, meanwhile: impl FnOnce()) -> Option<Range<usize>> {
        let start = self.start.load(Acquire);
        meanwhile();
        let end = self.end.load(Acquire);
        // An end is stored while there is no start: between two equal starts it is theirs.
        (start != 0 && self.start.load(Acquire) == start && start < end).then_some(start..end)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.start.store(0, Release);
    }
}

fn places() -> impl Iterator<Item = &'static Place> {
    // SAFETY: null, or a place, which is never freed.
    let newest = unsafe { PLACES.load(Acquire).as_ref() };
    std::iter::successors(newest, |place| place.next)
}

/// A new place at the head of the list.
fn add() -> &'static Place {
    let place = Box::leak(Box::new(Place {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        name: AtomicPtr::new(ptr::null_mut()),
        broken: AtomicBool::new(false),
        next: places().next(),
    }));
    PLACES.store(place, Release);
    place
}

/// The action that was in force before the handler.
static BEFORE_ACTION: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler.
fn handle() -> libc::sigaction {
    // SAFETY: zeros are a valid `sigaction`; the handler keeps the rules of the module's head; both structures
    // outlive the calls.
    unsafe {
        let (mut before, mut action) = (std::mem::zeroed(), std::mem::zeroed::<libc::sigaction>());
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        let done = libc::sigaction(libc::SIGBUS, &action, &mut before);
        assert_eq!(done, 0, "SIGBUS can be handled");
        before
    }
}

extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid `info`, whose address is set for SIGBUS.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code <= 0 {
        // Somebody has sent it: there is no address, and nothing that would fail again. It ends the process.
        // SAFETY: both calls hold in a handler. The signal waits until the handler has returned.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::raise(libc::SIGBUS);
        }
        return;
    }
    let of_place = |place: &'static Place| Some((place, place.range()?));
    let mut ranges = places().filter_map(of_place);
    if let Some((place, range)) = ranges.find(|(_, range)| range.contains(&address))
        && blank(place, range)
    {
        return;
    }
    // What was in force before goes on: the read is tried again, and fails again.
    // SAFETY: the arguments are valid. While the handler is being installed, the action before it is not known;
    // the default ends the process as well.
    unsafe {
        match BEFORE_ACTION.get() {
            Some(before) => libc::sigaction(libc::SIGBUS, before, ptr::null_mut()),
            None => libc::signal(libc::SIGBUS, libc::SIG_DFL) as c_int,
        };
    }
}

/// Puts zeros in place of a broken mapping: all of it, because nothing of it is answered any more, and each piece would be a
/// mapping of its own, of which a process has a bounded number. False if the system refuses.
fn blank(place: &Place, range: Range<usize>) -> bool {
    // Before there are zeros.
    FAULT.store(true, SeqCst);
    let first = !place.broken.swap(true, SeqCst);
    // SAFETY: the thread that reads it holds the mapping, so the range is its own and stays. Readers may find any bytes in
    // it, as a hostile file has, and go nowhere else for them.
    let zeros = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(range.start as *mut c_void, range.len(), libc::PROT_READ, flags, -1, 0)
    };
    if first {
        // SAFETY: a watched place has a name, which lives as long as somebody can read the mapping.
        let name = unsafe { CStr::from_ptr(place.name.load(Acquire)) };
        for part in [BEFORE, name.to_bytes(), AFTER] {
            // SAFETY: the bytes are valid for reading. Nothing can be done if standard error is closed.
            let _ = unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
        }
    }
    zeros != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    /// The handler took the start of one mapping and the end of the next one at the same place for a mapping: it would have
    /// put zeros over all that lies between.
    #[test]
    fn a_place_never_stands_for_what_lies_between_two_mappings() {
        let place: &Place = Box::leak(Box::new(Place {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            name: AtomicPtr::new(ptr::null_mut()),
            broken: AtomicBool::new(false),
            next: None,
        }));
        let freed = || drop(Watched(place));
        assert_eq!(place.range(), None);
        place.set(1000..2000);
        let replaced = place.range_if(|| {
            freed();
            place.set(8000..9000);
        });
        assert_eq!(replaced, None);
        assert_eq!(place.range(), Some(8000..9000));
        assert_eq!(place.range_if(freed), None);
    }

    const CASE: &str = "QUOIN_TEST_SIGBUS";

    /// One that was sent was taken for a fault that comes again: it only put the handler away.
    #[test]
    fn other_causes_still_end_the_process() {
        if let Ok(case) = std::env::var(CASE) {
            let watched = Watched::new(&[0; 4096], Path::new("other"));
            match &case[..] {
                "sent" => {
                    // SAFETY: this process is there for it.
                    unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
                    // Any thread may get it, and not at once.
                    std::thread::park_timeout(std::time::Duration::from_secs(60));
                }
                _ => {
                    let file = tempfile::tempfile().unwrap();
                    file.set_len(4096).unwrap();
                    // SAFETY: as above.
                    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
                    file.set_len(0).unwrap();
                    println!("{}", map[100]);
                }
            }
            drop(watched);
            std::process::exit(0);
        }
        for case in ["sent", "fault"] {
            let test = "cut::tests::other_causes_still_end_the_process";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let ended = child.args([test, "--exact"]).env(CASE, case).output().unwrap();
            assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{case}: {ended:?}");
        }
    }
}
