//! Threads that work on one thing and end together.

/// Runs `work` in `threads` threads (at least one). Returns the first error, after `stop` has told the other
/// threads.
pub(super) fn in_threads<E: Send>(
    threads: usize,
    work: impl Fn() -> Result<(), E> + Sync,
    stop: &(dyn Fn() + Sync),
) -> Result<(), E> {
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1))
            .map(|_| {
                scope.spawn(|| {
                    let result = work();
                    if result.is_err() {
                        stop();
                    }
                    result
                })
            })
            .collect();
        let mut outcome = Ok(());
        for handle in handles {
            // Every thread is joined; the first error is kept.
            outcome = outcome.and(handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        outcome
    })
}
