//! Threads that a node cannot do without.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

/// Runs `run` on a thread of its own, called `name`. If it panics, `ended` is told which thread it was and why.
/// By then everything that `run` owned is dropped.
///
/// **Invariant: Three kinds of no.** `ended` ends the node: what is left of it must not go on answering.
///
/// # Errors
/// The thread cannot be started.
pub fn spawn(
    name: &str,
    ended: impl FnOnce(&str) + Send + 'static,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let own = name.to_string();
    Builder::new().name(name.into()).spawn(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            ended(&format!("the thread \"{own}\" panicked, a broken invariant: {}", text(&*panic)));
        }
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason was given")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn whoever_waits_is_told_which_thread_panicked_and_why() {
        let (sender, reasons) = channel();
        let formatted = sender.clone();
        spawn("first", move |reason| sender.send(reason.to_string()).unwrap(), || panic!("no space"))
            .unwrap();
        assert_eq!(reasons.recv().unwrap(), "the thread \"first\" panicked, a broken invariant: no space");
        let ended = move |reason: &str| formatted.send(reason.to_string()).unwrap();
        spawn("second", ended, || panic!("entry {}", 7)).unwrap();
        assert_eq!(reasons.recv().unwrap(), "the thread \"second\" panicked, a broken invariant: entry 7");
    }

    #[test]
    fn a_thread_that_ends_tells_nobody() {
        let (sender, reasons) = channel();
        spawn("short", move |reason| sender.send(reason.to_string()).unwrap(), || {})
            .unwrap()
            .join()
            .unwrap();
        assert!(reasons.recv().is_err());
    }
}
