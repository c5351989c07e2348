//! Wakes a poll on time: the poll's own timeouts are whole milliseconds.

use anyhow::Result;
use mio::{Poll, Token};
use std::time::Duration;

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::Alarm;
#[cfg(target_os = "linux")]
pub(super) use linux::Alarm;

#[cfg(target_os = "linux")]
mod linux {
    use super::{Duration, Poll, Result, Token};
    use mio::Interest;
    use mio::unix::SourceFd;
    use rustix::fd::OwnedFd;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use std::os::fd::AsRawFd;

    /// A timer of the kernel, registered with the poll.
    pub(in super::super) struct Alarm {
        timer: OwnedFd,
    }

    impl Alarm {
        pub(in super::super) fn new(poll: &Poll, token: Token) -> Result<Self> {
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
            poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Self { timer })
        }

        /// Wakes the poll after `pause`. Returns the timeout to poll with, `longest` at most.
        pub(in super::super) fn set(&self, pause: Duration, longest: Duration) -> Result<Duration> {
            // Zero would disarm the timer.
            let it_value = Timespec::try_from(pause.max(Duration::from_nanos(1)))?;
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
            Ok(longest)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::{Duration, Poll, Result, Token};

    /// There is no finer timer here: the poll's own has to do.
    pub(in super::super) struct Alarm;

    impl Alarm {
        pub(in super::super) fn new(_poll: &Poll, _token: Token) -> Result<Self> {
            Ok(Self)
        }

        pub(in super::super) fn set(&self, pause: Duration, longest: Duration) -> Result<Duration> {
            Ok(pause.min(longest))
        }
    }
}
