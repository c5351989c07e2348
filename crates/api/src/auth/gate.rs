//! Finds out who asks.
//!
//! | what a request has | who asks |
//! |---|---|
//! | `token`, or `authorization` with one word or `Bearer` | whom the token names |
//! | `authorization: Basic` | the user, if the password is theirs |
//! | none of them, over TLS with a client's certificate | the user of its common name |
//!
//! Passwords that were right are remembered for as long as they are (not themselves, but a digest with a key of this
//! process), so that a client without tokens costs a hash once.

use super::attempts::Attempts;
use super::caller::{Caller, Identity};
use super::password::Hasher;
use super::token;
use crate::accept::Peer;
use crate::audit::Audit;
use crate::error::{Error, Known};
use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use quoin_core::Stamp;
use quoin_core::auth::Policy;
use quoin_engine::{Consistency, Engine};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::sync::Arc;
use tonic::Request;

/// How long a token counts by which a replica speaks for a caller to another replica.
const PASSED_ON_TTL_MS: u64 = 60_000;
/// Maximum passwords that are remembered to be right.
const REMEMBERED_MAX: usize = 4096;

/// Finds out who asks, for all ports of a node.
pub(crate) struct Gate {
    engine: Engine,
    settings: Settings,
    audit: Option<Arc<Audit>>,
    attempts: Attempts,
    hasher: Hasher,
    /// Digests of passwords that were right, with the user's name and hash.
    remembered: Mutex<HashSet<[u8; 32]>>,
    /// Without it the digests say nothing.
    key: [u8; 32],
}

/// How users log in.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Milliseconds for which a token counts.
    pub token_ttl_ms: u64,
    /// Wrong passwords for one user from one address in a minute, after which further ones are not compared; 0: any
    /// number.
    pub failed_passwords_max: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { token_ttl_ms: 300_000, failed_passwords_max: 10 }
    }
}

/// The common name of a client's certificate, which the handshake has found good.
#[derive(Clone, Debug)]
pub(crate) struct CommonName(pub(crate) Arc<str>);

impl Gate {
    pub(crate) fn new(engine: Engine, settings: Settings, audit: Option<Arc<Audit>>) -> Arc<Self> {
        let (hasher, remembered) = (Hasher::default(), Mutex::default());
        let attempts = Attempts::new(settings.failed_passwords_max);
        Arc::new(Self { engine, settings, audit, attempts, hasher, remembered, key: rand::random() })
    }

    /// What is recorded, if anything is.
    pub(crate) fn audit(&self) -> Option<&Arc<Audit>> {
        self.audit.as_ref()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Who sends a request with these headers.
    ///
    /// # Errors
    /// The token or the password is wrong.
    pub(crate) async fn identify(
        &self,
        headers: &HeaderMap,
        certificate: Option<&CommonName>,
        peer: Option<&Peer>,
    ) -> Result<Identity, Error> {
        let word = headers.get("token").or_else(|| headers.get(header::AUTHORIZATION));
        let Some(word) = word else {
            return Ok(of_certificate(certificate));
        };
        let word = word.to_str().map_err(|_| Known::InvalidAuthToken)?;
        match word.split_once(' ') {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("basic") => {
                let decoded = BASE64_STANDARD.decode(rest.trim()).ok();
                let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
                let pair = text.as_deref().and_then(|text| text.split_once(':'));
                let (name, password) = pair.ok_or(Known::AuthFailed)?;
                self.authenticate(name, password, peer).await
            }
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("bearer") => self.of_token(rest.trim()),
            _ => self.of_token(word),
        }
    }

    /// The user of a name, if the password is theirs; `peer`: where from.
    ///
    /// # Errors
    /// It is not, or it was wrong too often.
    pub(crate) async fn authenticate(
        &self,
        name: &str,
        password: &str,
        peer: Option<&Peer>,
    ) -> Result<Identity, Error> {
        // What is known to be right is no guess.
        if let Some(known) = self.remembers(name, password) {
            return Ok(known);
        }
        let (outcome, is_news) = match self.attempts.check(name, peer) {
            Ok(()) => (self.compare(name, password).await, true),
            Err(too_many) => (Err(too_many.error), too_many.is_first),
        };
        if matches!(outcome, Err(Error::Etcd(Known::AuthFailed))) {
            self.attempts.failed(name, peer);
        }
        if let Some(audit) = self.audit.as_ref().filter(|_| is_news) {
            audit.log_in(name, peer, outcome.as_ref().err());
        }
        outcome
    }

    /// The user of a name, if the password was found to be theirs before.
    fn remembers(&self, name: &str, password: &str) -> Option<Identity> {
        let policy = self.engine.policy();
        let user = policy.user(name).filter(|user| !user.hash.is_empty())?;
        let digest = self.digest(name, password, &user.hash);
        let known = self.remembered.lock().contains(&digest);
        known.then(|| Identity::User { name: name.into(), since: Some(user.since) })
    }

    /// As [`Self::authenticate`], however often.
    async fn compare(&self, name: &str, password: &str) -> Result<Identity, Error> {
        let policy = self.engine.policy();
        let user = policy.user(name).filter(|user| !user.hash.is_empty());
        let digest = user.map(|user| self.digest(name, password, &user.hash));
        let hash = user.map(|user| user.hash.clone());
        if !self.hasher.is(hash, password.to_owned()).await? {
            return Err(Known::AuthFailed.into());
        }
        let Some((user, digest)) = user.zip(digest) else { return Err(Known::AuthFailed.into()) };
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(digest);
        Ok(Identity::User { name: name.into(), since: Some(user.since) })
    }

    /// A token for the user of a name, if the password is theirs.
    ///
    /// # Errors
    /// It is not, or authentication is off.
    pub(crate) async fn token(&self, name: &str, password: &str) -> Result<String, Error> {
        let policy = self.newest().await?;
        if !policy.enabled() {
            return Err(Known::AuthNotEnabled.into());
        }
        if policy.user(name).is_some_and(|user| user.hash.is_empty()) {
            return Err(Known::NoPasswordUser.into());
        }
        let caller = super::present();
        self.authenticate(name, password, caller.as_ref().and_then(Caller::peer)).await?;
        let user = policy.user(name).ok_or(Known::AuthFailed)?;
        Ok(token::sign(policy.secret(), (name, user.since), self.until(self.settings.token_ttl_ms)))
    }

    /// The hash of a new password.
    ///
    /// # Errors
    /// It is too long, or too many wait for one.
    pub(crate) async fn hash(&self, password: String) -> Result<String, Error> {
        self.hasher.hash(password).await
    }

    /// The newest users and roles of the cluster.
    async fn newest(&self) -> Result<Arc<Policy>, Error> {
        let view = self.engine.read(Consistency::Linearizable).await?;
        Ok(Arc::clone(&view.memory().auth))
    }

    fn of_token(&self, token: &str) -> Result<Identity, Error> {
        let policy = self.engine.policy();
        let verified = token::is_ours(token)
            .then(|| token::verify(policy.secret(), token, self.engine.latest().now()))
            .flatten();
        let (name, since) = verified.ok_or(Known::InvalidAuthToken)?;
        Ok(Identity::User { name: name.into(), since: Some(since) })
    }

    fn until(&self, ttl_ms: u64) -> Stamp {
        until(&self.engine, ttl_ms)
    }

    fn digest(&self, name: &str, password: &str, hash: &str) -> [u8; 32] {
        let mut digest = Sha256::new_with_prefix(self.key);
        for part in [name, hash] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.update(password);
        digest.finalize().into()
    }
}

fn until(engine: &Engine, ttl_ms: u64) -> Stamp {
    Stamp(engine.latest().now().0.saturating_add(ttl_ms))
}

/// The user that a certificate names.
pub(crate) fn of_certificate(name: Option<&CommonName>) -> Identity {
    match name {
        Some(CommonName(name)) => Identity::User { name: Arc::clone(name), since: None },
        None => Identity::Nobody,
    }
}

/// A short-lived token by which this replica asks another on behalf of the present caller, if there is one.
pub(crate) fn passed_on(engine: &Engine) -> Option<String> {
    let caller: Caller = super::present()?;
    let user = caller.user()?;
    Some(token::sign(caller.policy().secret(), user, until(engine, PASSED_ON_TTL_MS)))
}

/// A request with a token, if there is one.
pub(crate) fn with_token<T>(token: Option<String>, request: T) -> Request<T> {
    let mut request = Request::new(request);
    if let Some(token) = token.and_then(|token| token.parse().ok()) {
        request.metadata_mut().insert("token", token);
    }
    request
}
