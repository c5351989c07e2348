//! Passwords: hashed before they are proposed, compared without holding up others.
//!
//! The hashes are argon2id's, version 19, with 19 MiB, two passes and one lane: what OWASP recommends at least. A hash
//! says its own parameters, so that they can be raised later.
//!
//! **Invariant: Bounded.** Half of the processors compare at once, each with the memory above; [`WAITING_MAX`] wait for
//! that, further ones are refused.

use crate::commands::off_the_hot_path;
use crate::error::{Error, Known};
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use tokio::sync::Semaphore;

const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;
const SALT_BYTES: usize = 16;
/// Maximum bytes of a password.
pub(crate) const PASSWORD_BYTES_MAX: usize = 4096;
/// Maximum requests that wait for a hash.
const WAITING_MAX: usize = 256;

/// Where hashes are made.
pub(super) struct Hasher {
    room: Semaphore,
    waiting: AtomicUsize,
    /// Compared where there is no user, so that the time it takes tells nothing. Made with the first one.
    decoy: tokio::sync::OnceCell<String>,
}

impl Default for Hasher {
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        let room = Semaphore::new((processors / 2).max(1));
        Self { room, waiting: AtomicUsize::new(0), decoy: tokio::sync::OnceCell::new() }
    }
}

impl Hasher {
    /// The hash of a password.
    ///
    /// # Errors
    /// It is too long, or too many wait.
    pub(super) async fn hash(&self, password: String) -> Result<String, Error> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(Error::invalid(format_args!(
                "a password of {} bytes is too long, at most {PASSWORD_BYTES_MAX} are allowed",
                password.len()
            )));
        }
        self.work(move || hash(&password)).await?
    }

    /// Whether a password is the one of a hash.
    ///
    /// # Errors
    /// Too many wait.
    pub(super) async fn is(&self, hash: Option<String>, password: String) -> Result<bool, Error> {
        let (hash, known) = match hash {
            Some(hash) => (hash, true),
            None => (self.decoy.get_or_try_init(|| self.hash("decoy".into())).await?.clone(), false),
        };
        if password.len() > PASSWORD_BYTES_MAX {
            return Ok(false);
        }
        Ok(self.work(move || matches(&hash, &password)).await? && known)
    }

    async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        let waiting = Waiting(&self.waiting);
        if waiting.0.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            return Err(Known::TooManyRequests.into());
        }
        let _place = self.room.acquire().await.expect("nobody closes the semaphore");
        off_the_hot_path(work).await
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn hash(password: &str) -> Result<String, Error> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None).map_err(Error::fault)?;
    let salt = SaltString::encode_b64(&rand::random::<[u8; SALT_BYTES]>()).map_err(Error::fault)?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    Ok(argon2.hash_password(password.as_bytes(), &salt).map_err(Error::fault)?.to_string())
}

fn matches(hash: &str, password: &str) -> bool {
    let parsed = PasswordHash::new(hash);
    parsed.is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_is_known_by_its_hash_which_says_its_parameters() {
        let hasher = Hasher::default();
        let hash = hasher.hash("secret".into()).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert_ne!(hash, hasher.hash("secret".into()).await.unwrap(), "each has a salt of its own");
        assert!(hasher.is(Some(hash.clone()), "secret".into()).await.unwrap());
        for (hash, password) in [(Some(hash), "Secret"), (None, "decoy"), (Some("no hash".into()), "")] {
            assert!(!hasher.is(hash, password.into()).await.unwrap());
        }
        assert!(hasher.hash("p".repeat(PASSWORD_BYTES_MAX + 1)).await.is_err());
    }
}
