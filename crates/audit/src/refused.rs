//! How many records of a minute tell of what was not done: whoever may do nothing would otherwise fill the trail, and have its oldest
//! files deleted. What is beyond that is counted as lost, which the trail tells.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(60);
/// Maximum records of one address.
const OF_ADDRESS_MAX: u32 = 200;
/// Maximum records of all. So many addresses are known at most.
const OF_ALL_MAX: u32 = 1_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Refused(Mutex<Minute>);

#[derive(Debug, Default)]
struct Minute {
    began: Option<Instant>,
    all: u32,
    by_address: HashMap<String, u32>,
}

impl Refused {
    /// Whether there is a record for another act from `address`, `host:port` or a socket's path.
    pub(crate) fn take(&self, address: &str, now: Instant) -> bool {
        let mut minute = self.0.lock();
        if minute.began.is_none_or(|began| now.saturating_duration_since(began) >= WINDOW) {
            *minute = Minute { began: Some(now), ..Minute::default() };
        }
        if minute.all >= OF_ALL_MAX {
            return false;
        }
        let count = minute.by_address.entry(place(address)).or_default();
        let takes = *count < OF_ADDRESS_MAX;
        *count += u32::from(takes);
        minute.all += u32::from(takes);
        takes
    }
}

/// What tells those apart who are refused: an address, of IPv6 its network.
fn place(address: &str) -> String {
    match address.parse::<SocketAddr>().map(|address| network(address.ip())) {
        Ok(network) => network.to_string(),
        Err(_) => address.to_owned(),
    }
}

/// The address; of IPv6 the first of its network of 64 bits, all of which one client may have.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_and_all_together_have_a_bound() {
        let (refused, now) = (Refused::default(), Instant::now());
        let taken =
            |address: &str, times: u32, now| (0..times).filter(|_| refused.take(address, now)).count();
        assert_eq!(taken("10.0.0.1:1", 1000, now), 200);
        assert_eq!(taken("10.0.0.1:2", 1, now), 0);
        assert_eq!(taken("[2001:db8::1]:1", 150, now) + taken("[2001:db8::2]:1", 150, now), 200);
        assert_eq!(taken("[::ffff:10.0.0.1]:1", 1, now), 0);
        assert_eq!(taken("/run/redis.sock:0", 300, now), 200);
        let many: usize =
            (0..1000).map(|port| taken(&format!("10.1.{}.{}:1", port / 250, port % 250), 1, now)).sum();
        assert_eq!(many, 400);
        assert_eq!(taken("10.0.0.1:1", 1, now + WINDOW), 1);
    }
}
