//! Waiting for conditions. Tests do this instead of sleeping for a while.

use anyhow::{Result, bail};
use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long a condition may take to become true. Only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(20);

/// The result of checking a condition once: the awaited value, or what was seen instead.
pub trait Outcome {
    /// The awaited value.
    type Value;

    /// The awaited value.
    ///
    /// # Errors
    /// The condition is not true; the text describes what was seen.
    fn outcome(self) -> Result<Self::Value, String>;
}

impl Outcome for bool {
    type Value = ();

    fn outcome(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "false".into())
    }
}

impl<T> Outcome for Option<T> {
    type Value = T;

    fn outcome(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".into())
    }
}

impl<T, E: Display> Outcome for Result<T, E> {
    type Value = T;

    fn outcome(self) -> Result<T, String> {
        self.map_err(|error| format!("{error:#}"))
    }
}

/// Waits until `condition` is true, blocking the thread. Async tests use `wait`, or a runtime of several
/// threads.
///
/// # Errors
/// The condition is not true after [`PATIENCE`]. The text names `what` and what was seen last.
pub fn wait_blocking<O: Outcome>(what: &str, condition: impl FnMut() -> O) -> Result<O::Value> {
    wait_blocking_for(PATIENCE, what, condition)
}

fn wait_blocking_for<O: Outcome>(
    patience: Duration,
    what: &str,
    mut condition: impl FnMut() -> O,
) -> Result<O::Value> {
    let begun = Instant::now();
    loop {
        match condition().outcome() {
            Ok(value) => return Ok(value),
            Err(seen) if begun.elapsed() >= patience => {
                bail!("waited {patience:?} for {what}; last seen: {seen}")
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Waits until `condition` is true. A check that hangs until the deadline counts as failed.
///
/// # Errors
/// The condition is not true after [`PATIENCE`]. The text names `what` and what was seen last.
#[cfg(feature = "tokio")]
pub async fn wait<O: Outcome, F: Future<Output = O>>(
    what: &str,
    condition: impl FnMut() -> F,
) -> Result<O::Value> {
    wait_for(PATIENCE, what, condition).await
}

#[cfg(feature = "tokio")]
async fn wait_for<O: Outcome, F: Future<Output = O>>(
    patience: Duration,
    what: &str,
    mut condition: impl FnMut() -> F,
) -> Result<O::Value> {
    let deadline = tokio::time::Instant::now() + patience;
    let mut last = None;
    loop {
        let seen = match tokio::time::timeout_at(deadline, condition()).await {
            Ok(found) => match found.outcome() {
                Ok(value) => return Ok(value),
                Err(seen) => last.insert(seen),
            },
            Err(_) => last.get_or_insert_with(|| "no answer".into()),
        };
        if tokio::time::Instant::now() >= deadline {
            bail!("waited {patience:?} for {what}; last seen: {seen}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_checked_until_it_is_true() {
        let mut looks = 0;
        let value = wait_blocking("the third look", || {
            looks += 1;
            (looks == 3).then_some("seen")
        });
        assert_eq!((value.unwrap(), looks), ("seen", 3));
    }

    #[test]
    fn a_failed_wait_says_what_was_seen_last() {
        let mut looks = 0;
        let failed = wait_blocking_for(Duration::ZERO, "replica 1 to lead", || {
            looks += 1;
            Err::<(), _>(format!("look {looks}: it follows"))
        });
        let text = failed.unwrap_err().to_string();
        assert_eq!(text, "waited 0ns for replica 1 to lead; last seen: look 1: it follows");
    }

    #[cfg(feature = "tokio")]
    #[tokio::test]
    async fn a_check_that_hangs_ends_at_the_deadline() {
        let failed = wait_for(Duration::ZERO, "an answer", std::future::pending::<bool>).await;
        assert_eq!(failed.unwrap_err().to_string(), "waited 0ns for an answer; last seen: no answer");
        let failed = wait_for(Duration::ZERO, "an answer", || std::future::ready(false)).await;
        assert_eq!(failed.unwrap_err().to_string(), "waited 0ns for an answer; last seen: false");
    }
}
