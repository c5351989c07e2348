//! On whose behalf the present task works, and what they may do.
//!
//! A caller belongs to the task of its request, as the auth revision by which it is judged does. A task that is begun
//! on behalf of a request takes it along by [`carried`]; one that forgets may do nothing.

use crate::accept::Peer;
use crate::audit;
use crate::error::{Error, Known};
use quoin_core::auth::{Access, Policy};
use quoin_engine::{Engine, ReadView, admission};
use std::sync::Arc;

tokio::task_local! {
    static CALLER: Caller;
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Nobody has said.
    Nobody,
    /// A user.
    User {
        name: Arc<str>,
        /// The user's `since` when it was proved, if that was by a password or a token: a user whose password was
        /// replaced proves it again.
        since: Option<u64>,
    },
}

/// Who asks, and the users and roles by which they are judged.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    identity: Identity,
    policy: Arc<Policy>,
    /// Where from.
    peer: Option<Peer>,
}

impl Caller {
    /// Judged by `policy` from now on.
    ///
    /// # Errors
    /// The user is gone, or has another password.
    pub(crate) fn new(identity: Identity, policy: Arc<Policy>) -> Result<Self, Error> {
        if let Identity::User { name, since: Some(since) } = &identity
            && policy.user(name).is_none_or(|user| user.since != *since)
        {
            return Err(Known::InvalidAuthToken.into());
        }
        Ok(Self { identity, policy, peer: None })
    }

    /// Whoever asked while nobody had to say who asks.
    pub(crate) fn nobody(policy: Arc<Policy>) -> Self {
        Self { identity: Identity::Nobody, policy, peer: None }
    }

    /// The same, who asks from there.
    pub(crate) fn from(self, peer: Option<Peer>) -> Self {
        Self { peer, ..self }
    }

    /// Where they ask from, if that is known.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// The user's name; empty if nobody has said who asks.
    pub(crate) fn name(&self) -> &str {
        match &self.identity {
            Identity::Nobody => "",
            Identity::User { name, .. } => name,
        }
    }

    /// The user, as its tokens name it.
    pub(crate) fn user(&self) -> Option<(&str, u64)> {
        let name = self.name();
        Some((name, self.policy.user(name)?.since))
    }

    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Whether what they may do is enough.
    ///
    /// # Errors
    /// It is not, or nobody has said who asks.
    pub(crate) fn check(&self, enough: impl FnOnce(&Access) -> bool) -> Result<(), Error> {
        if self.identity == Identity::Nobody {
            return Err(Known::UserEmpty.into());
        }
        match self.policy.access(self.name()) {
            Some(access) if enough(access) => Ok(()),
            _ => Err(Known::PermissionDenied.into()),
        }
    }

    /// The same, judged by the users and roles of now.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn renewed(&self, engine: &Engine) -> Result<Self, Error> {
        Ok(Self::new(self.identity.clone(), engine.policy())?.from(self.peer.clone()))
    }

    /// Runs `work` on their behalf.
    pub(crate) async fn run<W: Future>(self, work: W) -> W::Output {
        let revision = self.policy.revision();
        CALLER.scope(self, admission::admitted(revision, work)).await
    }
}

/// On whose behalf the present task works, if anybody's.
pub(crate) fn present() -> Option<Caller> {
    CALLER.try_with(Caller::clone).ok()
}

/// `work` on behalf of whom the present task works for, for a task of its own.
pub(crate) fn carried<W: Future>(work: W) -> impl Future<Output = W::Output> {
    let caller = present();
    let work = audit::carried(work);
    async move {
        match caller {
            Some(caller) => caller.run(work).await,
            None => work.await,
        }
    }
}

/// Runs `work` on behalf of whom the present task works for, judged by the users and roles of now: for streams, which
/// outlive changes of these.
///
/// # Errors
/// The user is gone, or has another password.
pub(crate) async fn renewed<W: Future>(engine: &Engine, work: W) -> Result<W::Output, Error> {
    match present() {
        Some(caller) if engine.auth_on() => Ok(caller.renewed(engine)?.run(work).await),
        _ => Ok(work.await),
    }
}

/// Whether the caller may do enough; everybody may while authentication is off.
///
/// # Errors
/// They may not.
pub(crate) fn check(engine: &Engine, enough: impl FnOnce(&Access) -> bool) -> Result<(), Error> {
    if !engine.auth_on() {
        return Ok(());
    }
    let judged = CALLER.try_with(|caller| caller.check(enough));
    judged.unwrap_or_else(|_| Err(Known::UserEmpty.into()))
}

/// Whether the caller may do something with the table of this name; `right` is one of
/// [`quoin_core::auth::table_rights`].
///
/// # Errors
/// They may not.
pub(crate) fn check_table(engine: &Engine, name: &str, right: u32) -> Result<(), Error> {
    check(engine, |access| access.has_table(name, right))
}

/// As [`check`], by whether the users and roles of a state count.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_view(view: &ReadView, enough: impl FnOnce(&Access) -> bool) -> Result<(), Error> {
    if !view.memory().auth.enabled() {
        return Ok(());
    }
    let judged = CALLER.try_with(|caller| caller.check(enough));
    judged.unwrap_or_else(|_| Err(Known::UserEmpty.into()))
}

/// Whether the caller is the user of this name, or may do enough.
///
/// # Errors
/// Neither.
pub(crate) fn check_user(
    engine: &Engine,
    is: impl FnOnce(&Policy, &str) -> bool,
    enough: impl FnOnce(&Access) -> bool,
) -> Result<(), Error> {
    if present().is_some_and(|caller| !caller.name().is_empty() && is(&caller.policy, caller.name())) {
        return Ok(());
    }
    check(engine, enough)
}
