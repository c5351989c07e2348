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
        place.end.store(start + bytes.len(), Release);
        place.start.store(start, Release);
        Self(place)
    }

    /// Whether some of the mapping could not be read.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.broken.load(Acquire)
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
    let address = unsafe { (*info).si_addr() } as usize;
    let hit = places().find(|place| {
        let start = place.start.load(Acquire);
        start != 0 && (start..place.end.load(Acquire)).contains(&address)
    });
    if let Some(place) = hit
        && blank(place)
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
fn blank(place: &Place) -> bool {
    let start = place.start.load(Acquire);
    let length = place.end.load(Acquire) - start;
    // Before there are zeros.
    FAULT.store(true, SeqCst);
    let first = !place.broken.swap(true, SeqCst);
    // SAFETY: the thread that reads it holds the mapping, so the range is its own and stays. Readers may find any bytes in
    // it, as a hostile file has, and go nowhere else for them.
    let zeros = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(start as *mut c_void, length, libc::PROT_READ, flags, -1, 0)
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
