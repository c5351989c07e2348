//! What happens when a mapped file is cut, or its disk fails, while it is read: the kernel sends SIGBUS, and
//! the process ends, as it would anyway. Here it first says which file it was.
//!
//! Going on is no choice: the bytes that a lookup wanted do not exist, and anything in their place would be a
//! wrong answer. A lookup pays nothing for this. After a restart every byte is checked before it is served.
//!
//! What it deliberately does not promise: that every cut is noticed. In the page in which the file then ends,
//! the kernel shows zeros; only reads behind that page are SIGBUS.
//!
//! The handler runs in the thread that has read, at any instruction: it takes no lock, allocates nothing, and
//! reads only atomics. Other causes of SIGBUS, and other handlers, are left as they were.
#![allow(unsafe_code, reason = "signal handlers have no safe form")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};
use std::sync::{Mutex, OnceLock, PoisonError};

const BEFORE: &[u8] = b"quoin: the mapped file ";
const AFTER: &[u8] = b" was cut, or its disk failed, while it was read: this process ends, because any answer would be wrong. \
Started again, it checks its files and fetches damaged ones anew.\n";

/// A place in the list of mappings. Places are never freed, because the handler may be walking over them; they
/// are used again.
struct Place {
    /// 0 while the place is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// From [`CString::into_raw`]; null at first.
    name: AtomicPtr<std::ffi::c_char>,
    next: Option<&'static Place>,
}

/// The newest place, which leads to all others.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());
/// Held by those who change the list, never by the handler.
static CHANGING: Mutex<()> = Mutex::new(());

/// A mapping whose file is named if it is cut. To be dropped before the mapping.
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
        place.end.store(start + bytes.len(), Release);
        place.start.store(start, Release);
        Self(place)
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
    if let Some(place) = hit {
        // SAFETY: a watched place has a name, which lives as long as somebody can read the mapping.
        let name = unsafe { CStr::from_ptr(place.name.load(Acquire)) };
        for part in [BEFORE, name.to_bytes(), AFTER] {
            // SAFETY: the bytes are valid for reading. Nothing can be done if standard error is closed.
            let _ = unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
        }
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
