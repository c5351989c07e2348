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

use super::caller::{Caller, Identity};
use super::password::Hasher;
use super::token;
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

/// How long a token counts.
const TOKEN_TTL_MS: u64 = 300_000;
/// How long a token counts by which a replica speaks for a caller to another replica.
const PASSED_ON_TTL_MS: u64 = 60_000;
/// Maximum passwords that are remembered to be right.
const REMEMBERED_MAX: usize = 4096;

/// Finds out who asks, for all ports of a node.
pub(crate) struct Gate {
    engine: Engine,
    hasher: Hasher,
    /// Digests of passwords that were right, with the user's name and hash.
    remembered: Mutex<HashSet<[u8; 32]>>,
    /// Without it the digests say nothing.
    key: [u8; 32],
}

/// The common name of a client's certificate, which the handshake has found good.
#[derive(Clone, Debug)]
pub(crate) struct CommonName(pub(crate) Arc<str>);

impl Gate {
    pub(crate) fn new(engine: Engine) -> Arc<Self> {
        let (hasher, remembered) = (Hasher::default(), Mutex::default());
        Arc::new(Self { engine, hasher, remembered, key: rand::random() })
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
                self.authenticate(name, password).await
            }
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("bearer") => self.of_token(rest.trim()),
            _ => self.of_token(word),
        }
    }

    /// The user of a name, if the password is theirs.
    ///
    /// # Errors
    /// It is not.
    pub(crate) async fn authenticate(&self, name: &str, password: &str) -> Result<Identity, Error> {
        let policy = self.engine.policy();
        let user = policy.user(name).filter(|user| !user.hash.is_empty());
        let digest = user.map(|user| self.digest(name, password, &user.hash));
        let known = digest.is_some_and(|digest| self.remembered.lock().contains(&digest));
        let hash = user.map(|user| user.hash.clone());
        if !known && !self.hasher.is(hash, password.to_owned()).await? {
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
        self.authenticate(name, password).await?;
        let user = policy.user(name).ok_or(Known::AuthFailed)?;
        Ok(token::sign(policy.secret(), (name, user.since), self.until(TOKEN_TTL_MS)))
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
