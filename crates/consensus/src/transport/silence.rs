//! When a connection that still looks whole is given up, and made anew.
//!
//! A network that drops packets without a word leaves connections that TCP believes in for minutes, and tries
//! ever more rarely. So the kernel is told how long sent bytes may stay unacknowledged ([`give_up_after`]), and a
//! peer that is sent messages and says nothing for longer is dialled again ([`Silence`]).

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The kernel's patience is at least this, however short elections are: a lost packet is sent again twice within
/// it.
const PATIENCE_MIN: Duration = Duration::from_millis(500);
/// A peer answers messages, at the latest with its disk's next sync; this many patiences without a word are too
/// many.
const SILENT_PATIENCES: u32 = 3;
/// How long an idle connection is left alone before the kernel asks whether the other side is there, and the
/// pause between questions. The shortest that it takes.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// How long the other side of a connection may be silent. Made of two election timeouts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience(Duration);

impl Patience {
    pub(super) fn of(two_election_timeouts: Duration) -> Self {
        Self(two_election_timeouts.max(PATIENCE_MIN))
    }

    /// How often a connection is looked at.
    pub(super) fn interval(self) -> Duration {
        self.0 / 2
    }

    /// How long one attempt to connect may last. A network that drops packets gets a new attempt soon: the kernel's own second
    /// one comes after a second, and its next ones ever more rarely.
    pub(super) fn to_connect(self) -> Duration {
        self.0 / 2
    }

    /// Makes the kernel break the connection when the other side acknowledges nothing for as long as this
    /// patience lasts, also when nothing is sent.
    ///
    /// # Errors
    /// The socket does not take an option.
    pub(super) fn give_up_after(self, stream: &TcpStream) -> io::Result<()> {
        use rustix::net::sockopt;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
        #[cfg(target_os = "linux")]
        sockopt::set_tcp_user_timeout(stream, self.0.as_millis().try_into().unwrap_or(u32::MAX))?;
        Ok(())
    }
}

/// When each peer was last heard, in milliseconds since a common start.
#[derive(Debug)]
pub(super) struct Heard {
    start: Instant,
    at_ms: Mutex<BTreeMap<u64, Arc<AtomicU64>>>,
}

impl Default for Heard {
    fn default() -> Self {
        Self { start: Instant::now(), at_ms: Mutex::default() }
    }
}

impl Heard {
    pub(super) fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// When `peer` was last heard. Whoever reads from it stores [`Self::now_ms`] there.
    pub(super) fn of(&self, peer: u64) -> Arc<AtomicU64> {
        Arc::clone(self.at_ms.lock().entry(peer).or_default())
    }

    /// Forgets all but these.
    pub(super) fn retain(&self, is_peer: impl Fn(u64) -> bool) {
        self.at_ms.lock().retain(|id, _| is_peer(*id));
    }
}

/// Watches one connection for a peer that is sent messages and says nothing.
pub(super) struct Silence {
    max_ms: u64,
    heard_at_ms: Arc<AtomicU64>,
    /// Messages sent when it was last looked at.
    sent: u64,
    /// Since when a message waits for a word of the peer.
    since_ms: Option<u64>,
}

impl Silence {
    /// A connection made after `sent` messages. `heard_at_ms` is [`Heard::of`] its peer.
    pub(super) fn new(patience: Patience, heard_at_ms: Arc<AtomicU64>, sent: u64) -> Self {
        let max_ms = (patience.0 * SILENT_PATIENCES).as_millis() as u64;
        Self { max_ms, heard_at_ms, sent, since_ms: None }
    }

    /// Looks at the connection, on which `sent` messages have been sent by now. True if it must be made anew.
    pub(super) fn is_too_long(&mut self, now_ms: u64, sent: u64) -> bool {
        if self.since_ms.is_some_and(|since_ms| self.heard_at_ms.load(Ordering::Relaxed) >= since_ms) {
            self.since_ms = None;
        }
        if self.since_ms.is_none() && sent > self.sent {
            self.since_ms = Some(now_ms);
        }
        self.sent = sent;
        self.since_ms.is_some_and(|since_ms| now_ms - since_ms > self.max_ms)
    }
}

/// Whether the other side has closed the connection, or the kernel has given it up. The other side of a
/// connection for frames says nothing on it.
pub(super) fn is_broken(stream: &TcpStream) -> bool {
    use rustix::io::Errno;
    use rustix::net::{RecvFlags, recv};
    let mut byte = [0];
    !matches!(recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT), Err(Errno::AGAIN | Errno::INTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that was cut off without a word was used until TCP gave it up, minutes later.
    #[test]
    fn a_peer_that_is_sent_messages_and_says_nothing_is_dialled_again() {
        let heard = Arc::new(AtomicU64::new(0));
        let mut silence = Silence::new(Patience::of(Duration::from_secs(1)), Arc::clone(&heard), 0);
        // Nothing is sent: nothing is expected.
        assert!(!silence.is_too_long(60_000, 0));
        assert!(!silence.is_too_long(61_000, 1));
        assert!(!silence.is_too_long(64_000, 9));
        assert!(silence.is_too_long(64_001, 9));
        // A word, however late, and it waits for the next message.
        heard.store(64_001, Ordering::Relaxed);
        assert!(!silence.is_too_long(70_000, 9));
        assert!(!silence.is_too_long(80_000, 10));
        assert!(silence.is_too_long(83_001, 10));
        // What was said before the message is no answer to it.
        heard.store(79_999, Ordering::Relaxed);
        assert!(silence.is_too_long(83_001, 10));
    }

    #[test]
    fn the_kernel_breaks_the_connection_after_two_election_timeouts() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Patience::of(Duration::from_millis(800)).give_up_after(&stream).unwrap();
        #[cfg(target_os = "linux")]
        assert_eq!(rustix::net::sockopt::tcp_user_timeout(&stream).unwrap(), 800);
        assert!(rustix::net::sockopt::socket_keepalive(&stream).unwrap());
        assert!(!is_broken(&stream));
        drop(listener.accept().unwrap());
        while !is_broken(&stream) {
            std::thread::yield_now();
        }
    }
}
