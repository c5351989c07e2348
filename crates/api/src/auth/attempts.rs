//! Wrong passwords, counted for each user and address, so that nobody guesses for long.
//!
//! A guess is counted before it is compared, and given back if it was none: however many are under way at once, no more
//! than the bound are compared in a minute.
//!
//! **Invariant: Bounded.** At most [`KNOWN_MAX`] users and addresses are known. Where there are more, those whose minute
//! began first are forgotten: whoever guesses has to come from that many addresses, or for that many users.
//!
//! Deliberately absent: a bound for a user over all addresses, by which anybody could lock a user out.

use crate::accept::Peer;
use crate::error::{Error, Kind};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a wrong password counts, from the first one on.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum users and addresses that are known.
const KNOWN_MAX: usize = 16_384;
/// Bytes of a name that tell users apart; longer names than users can have share their guesses.
const NAME_BYTES_MAX: usize = quoin_core::auth::NAME_BYTES_MAX;

type Key = (String, Option<IpAddr>);

/// See the module.
pub(super) struct Attempts {
    /// 0: any number.
    max: u32,
    known: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    /// When its minute began, and how many there were since.
    counts: HashMap<Key, (Instant, u32)>,
    /// In the order in which their minutes began.
    order: VecDeque<(Instant, Key)>,
}

/// A guess that was counted.
pub(super) struct Guess<'a> {
    attempts: &'a Attempts,
    key: Key,
}

impl Attempts {
    pub(super) fn new(max: u32) -> Self {
        Self { max, known: Mutex::default() }
    }

    /// Counts a guess.
    ///
    /// # Errors
    /// There were too many.
    pub(super) fn begin(&self, name: &str, peer: Option<&Peer>) -> Result<Guess<'_>, Error> {
        self.begin_at(name, peer, Instant::now())
    }

    fn begin_at(&self, name: &str, peer: Option<&Peer>, now: Instant) -> Result<Guess<'_>, Error> {
        let key = key(name, peer);
        if self.max == 0 {
            return Ok(Guess { attempts: self, key });
        }
        let mut known = self.known.lock();
        known.forget(now);
        let (began, count) = known.counts.get(&key).copied().unwrap_or((now, 0));
        if count >= self.max {
            let left = WINDOW.saturating_sub(now.saturating_duration_since(began)).as_secs() + 1;
            let place = key.1.map_or_else(|| "this machine".into(), |address| address.to_string());
            let text = format!(
                "{count} passwords for user {:?} from {place} were wrong within a minute \
                 (auth.failed_passwords_max); try again in {left} s",
                key.0
            );
            return Err(Error::Refused(Kind::TooMany, text));
        }
        if known.counts.insert(key.clone(), (began, count + 1)).is_none() {
            known.order.push_back((now, key.clone()));
        }
        Ok(Guess { attempts: self, key })
    }
}

impl Guess<'_> {
    /// The password was right, or was not compared.
    pub(super) fn was_none(self) {
        if let Some((_, count)) = self.attempts.known.lock().counts.get_mut(&self.key) {
            *count = count.saturating_sub(1);
        }
    }
}

impl Window {
    /// Forgets those whose minute is over, and the first ones where there are too many.
    fn forget(&mut self, now: Instant) {
        while let Some((began, _)) = self.order.front()
            && (now.saturating_duration_since(*began) >= WINDOW || self.order.len() > KNOWN_MAX)
        {
            if let Some((_, key)) = self.order.pop_front() {
                self.counts.remove(&key);
            }
        }
    }
}

fn key(name: &str, peer: Option<&Peer>) -> Key {
    let name = name.char_indices().take_while(|(place, _)| *place < NAME_BYTES_MAX).map(|(_, char)| char);
    let address = match peer {
        Some(Peer::Tcp(address)) => Some(address.ip()),
        Some(Peer::Unix(_)) | None => None,
    };
    (name.collect(), address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::Tcp(format!("{address}:1").parse().unwrap())
    }

    #[test]
    fn wrong_passwords_are_bounded_for_each_user_and_address() {
        let attempts = Attempts::new(2);
        let now = Instant::now();
        let guess =
            |name: &str, address: &str, at| attempts.begin_at(name, Some(&peer(address)), at).map(drop);
        assert!(guess("ann", "10.0.0.1", now).is_ok() && guess("ann", "10.0.0.1", now).is_ok());
        let refused = guess("ann", "10.0.0.1", now + Duration::from_secs(26)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "2 passwords for user \"ann\" from 10.0.0.1 were wrong within a minute (auth.failed_passwords_max); \
             try again in 35 s"
        );
        assert!(guess("ann", "10.0.0.2", now).is_ok() && guess("bob", "10.0.0.1", now).is_ok());
        assert!(guess("ann", "10.0.0.1", now + WINDOW).is_ok());
        assert!((0..100).all(|_| Attempts::new(0).begin("ann", None).is_ok()));
    }

    #[test]
    fn a_right_password_is_no_guess() {
        let attempts = Attempts::new(1);
        for _ in 0..10 {
            attempts.begin("ann", None).unwrap().was_none();
        }
        assert!(attempts.begin("ann", None).is_ok() && attempts.begin("ann", None).is_err());
    }

    #[test]
    fn what_is_known_has_a_bound() {
        let attempts = Attempts::new(1);
        for user in 0..KNOWN_MAX + 100 {
            assert!(attempts.begin(&format!("user {user}"), None).is_ok());
        }
        let known = attempts.known.lock();
        assert!(known.order.len() <= KNOWN_MAX + 1 && known.counts.len() == known.order.len());
    }
}
