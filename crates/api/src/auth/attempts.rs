//! Wrong passwords, counted for each user and address (of IPv6 its network of 64 bits), so that nobody guesses for long.
//!
//! Only wrong passwords count, once they were compared: many connections that begin at once with the right one are all let
//! in. So what is under way when the bound is reached is compared still, which `password.rs` bounds.
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

/// Wrong passwords of a minute.
struct Count {
    began: Instant,
    wrong: u32,
    /// Somebody was refused for it.
    told: bool,
}

#[derive(Default)]
struct Window {
    counts: HashMap<Key, Count>,
    /// In the order in which their minutes began.
    order: VecDeque<(Instant, Key)>,
}

/// There were too many.
#[derive(Debug)]
pub(super) struct TooMany {
    pub(super) error: Error,
    /// It is the first one of its minute: whoever goes on is not worth a record each time, which would in the end have all
    /// others deleted.
    pub(super) is_first: bool,
}

impl Attempts {
    pub(super) fn new(max: u32) -> Self {
        Self { max, known: Mutex::default() }
    }

    /// Whether another password may be compared.
    ///
    /// # Errors
    /// Too many were wrong.
    pub(super) fn check(&self, name: &str, peer: Option<&Peer>) -> Result<(), TooMany> {
        self.check_at(name, peer, Instant::now())
    }

    fn check_at(&self, name: &str, peer: Option<&Peer>, now: Instant) -> Result<(), TooMany> {
        if self.max == 0 {
            return Ok(());
        }
        let key = key(name, peer);
        let mut known = self.known.lock();
        known.forget(now);
        let Some(count) = known.counts.get_mut(&key).filter(|count| count.wrong >= self.max) else {
            return Ok(());
        };
        let left = WINDOW.saturating_sub(now.saturating_duration_since(count.began)).as_secs() + 1;
        let place = match key.1 {
            None => "this machine".into(),
            Some(IpAddr::V4(address)) => address.to_string(),
            Some(IpAddr::V6(network)) => format!("{network}/64"),
        };
        let text = format!(
            "{max} passwords for user {:?} from {place} were wrong within a minute \
             (auth.failed_passwords_max); try again in {left} s",
            key.0,
            max = self.max,
        );
        let is_first = !std::mem::replace(&mut count.told, true);
        Err(TooMany { error: Error::Refused(Kind::TooMany, text), is_first })
    }

    /// Counts a wrong password.
    pub(super) fn failed(&self, name: &str, peer: Option<&Peer>) {
        self.failed_at(name, peer, Instant::now());
    }

    fn failed_at(&self, name: &str, peer: Option<&Peer>, now: Instant) {
        if self.max == 0 {
            return;
        }
        let key = key(name, peer);
        let mut known = self.known.lock();
        known.forget(now);
        match known.counts.get_mut(&key) {
            Some(count) => count.wrong = count.wrong.saturating_add(1),
            None => {
                known.counts.insert(key.clone(), Count { began: now, wrong: 1, told: false });
                known.order.push_back((now, key));
            }
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
        Some(Peer::Tcp(address)) => Some(quoin_audit::network(address.ip())),
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
        let guess = |name: &str, address: &str, at| {
            attempts.check_at(name, Some(&peer(address)), at)?;
            attempts.failed_at(name, Some(&peer(address)), at);
            Ok::<_, TooMany>(())
        };
        assert!(guess("ann", "10.0.0.1", now).is_ok() && guess("ann", "10.0.0.1", now).is_ok());
        let refused = guess("ann", "10.0.0.1", now + Duration::from_secs(26)).unwrap_err();
        assert!(refused.is_first && !guess("ann", "10.0.0.1", now).unwrap_err().is_first);
        assert_eq!(
            refused.error.to_string(),
            "2 passwords for user \"ann\" from 10.0.0.1 were wrong within a minute (auth.failed_passwords_max); \
             try again in 35 s"
        );
        // One client may have a whole network of IPv6.
        assert!(guess("ann", "[2001:db8::1]", now).is_ok() && guess("ann", "[2001:db8::2]", now).is_ok());
        let refused = guess("ann", "[2001:db8::3]", now).unwrap_err();
        assert!(refused.error.to_string().contains("from 2001:db8::/64"), "{}", refused.error);
        assert!(
            guess("ann", "[::ffff:10.0.0.1]", now).is_err() && guess("ann", "[2001:db8:0:1::]", now).is_ok()
        );
        assert!(guess("ann", "10.0.0.2", now).is_ok() && guess("bob", "10.0.0.1", now).is_ok());
        assert!(guess("ann", "10.0.0.1", now + WINDOW).is_ok());
        let any = Attempts::new(0);
        any.failed("ann", None);
        assert!(any.check("ann", None).is_ok());
    }

    #[test]
    fn what_is_known_has_a_bound() {
        let attempts = Attempts::new(1);
        for user in 0..KNOWN_MAX + 100 {
            attempts.failed(&format!("user {user}"), None);
        }
        let known = attempts.known.lock();
        assert!(known.order.len() <= KNOWN_MAX + 1 && known.counts.len() == known.order.len());
    }
}
