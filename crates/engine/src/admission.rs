//! Under which users and roles a client's request was admitted, on its way from the adapter to the log and to a view.
//!
//! The adapter judges a request by the policy of this replica and runs it within [`admitted`]. What it proposes then
//! carries the auth revision of that policy, and what it reads must be of a state with the same, see
//! [`quoin_core::auth`]. The revision belongs to the task, so that no function on the way has to hand it on; a task that
//! is begun on behalf of a request takes it along by [`carried`]. One that forgets writes nothing, for it
//! proposes as if nobody had judged, and apply refuses it; and it reads nothing. A node that reads for itself asks for
//! no freshness: [`Engine::latest`].
//!
//! While authentication is off nothing carries a revision, and the price is a look at a flag.

use super::engine::Engine;
use super::shared::Shared;
use quoin_core::auth::Policy;
use quoin_core::{Command, Reply, auth};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;

tokio::task_local! {
    static ADMITTED: u64;
}

/// Runs `work` as admitted at an auth revision.
pub fn admitted<W: Future>(revision: u64, work: W) -> impl Future<Output = W::Output> {
    ADMITTED.scope(revision, work)
}

/// The auth revision at which the present task was admitted, if it was.
pub fn present() -> Option<u64> {
    ADMITTED.try_with(|revision| *revision).ok()
}

/// `work` as the present task was admitted, for a task of its own.
pub async fn carried<W: Future>(present: Option<u64>, work: W) -> W::Output {
    match present {
        Some(revision) => admitted(revision, work).await,
        None => work.await,
    }
}

impl Engine {
    /// Whether requests need rights.
    pub fn auth_on(&self) -> bool {
        self.shared.auth_on.load(Ordering::Relaxed)
    }

    /// The users and roles of this replica's newest state.
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.shared.published.load().memory.auth)
    }

    /// Tells of each change of users and roles: whether they count, and the auth revision.
    pub fn watch_policy(&self) -> watch::Receiver<(bool, u64)> {
        self.shared.auth_changes.subscribe()
    }
}

impl Shared {
    /// `policy` is about to be published: whoever sees it is asked for rights.
    pub(crate) fn note_policy(&self, policy: &Policy) {
        self.auth_on.store(policy.enabled(), Ordering::Relaxed);
    }

    /// `policy` is published: whoever is told of it finds it.
    pub(crate) fn tell_policy(&self, policy: &Policy) {
        let now = (policy.enabled(), policy.revision());
        if *self.auth_changes.borrow() != now {
            self.auth_changes.send_replace(now);
        }
    }

    /// The command as it goes into the log.
    pub(crate) fn marked(&self, command: Command) -> Command {
        if !self.auth_on.load(Ordering::Relaxed) {
            return command;
        }
        match present() {
            Some(revision) => command.admitted(revision),
            None => command,
        }
    }
}

/// Whether a reply says that nothing was done because users and roles have changed since the command was admitted.
pub(crate) fn is_outdated(reply: &Reply) -> bool {
    matches!(reply, Reply::Auth(auth::Reply { result: Err(auth::Refusal::OldRevision), .. }))
}
