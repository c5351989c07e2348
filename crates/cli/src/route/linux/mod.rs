//! Rules in Linux's tables. Each rule with a MAC address becomes a permanent neighbour entry on its network's
//! VXLAN device, as `ip neigh` shows it. If it names a host, its MAC address gets a forwarding entry to that
//! host, as `bridge fdb` shows it.
//!
//! `desired.rs` is what the tables should hold, `difference.rs` what makes them so, `reconcile.rs` does it through
//! `netlink.rs` (its messages are in `message.rs`): when rules change, when a device changes (`names.rs` says
//! whose it is), and now and then. It deliberately makes no devices.

#[cfg(target_os = "linux")]
mod desired;
#[cfg(target_os = "linux")]
mod difference;
#[cfg(target_os = "linux")]
mod message;
#[cfg(target_os = "linux")]
mod names;
#[cfg(target_os = "linux")]
mod netlink;
#[cfg(target_os = "linux")]
mod reconcile;

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::Linux;
#[cfg(target_os = "linux")]
pub(super) use here::Linux;

#[cfg(target_os = "linux")]
mod here {
    use super::super::copy::{Change, Copy};
    use super::super::status::Board;
    use super::names::Names;
    use super::netlink::LinkChanges;
    use super::reconcile::{Reconciler, Why};
    use anyhow::{Context, Result, ensure};
    use parking_lot::Mutex;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::sync::Arc;
    use std::thread::{self, JoinHandle};
    use std::time::Duration;

    /// The pause after a failure to hear of changes of links.
    const PAUSE: Duration = Duration::from_secs(1);

    /// The tables of this network namespace.
    pub(in super::super) struct Linux {
        reconciler: Arc<Mutex<Reconciler>>,
        threads: [JoinHandle<()>; 2],
        /// Kept for as long as this agent runs.
        _alone: UnixDatagram,
    }

    impl Linux {
        /// Writes the rules of `copy` into the tables, and keeps them there. `device` is the name of the
        /// devices, where `{vni}` stands for the network.
        ///
        /// # Errors
        /// The name lacks `{vni}`, another agent has these devices, or the kernel refuses.
        pub(in super::super) fn open(
            device: &str,
            resync: Duration,
            copy: &Copy,
            board: Board,
        ) -> Result<Self> {
            let names = Names::new(device)?;
            let alone = alone(device)?;
            // Heard of before the devices are listed: none is missed.
            let changes = LinkChanges::listen()?;
            let mut reconciler = Reconciler::open(names, copy, board)?;
            reconciler.start()?;
            let reconciler = Arc::new(Mutex::new(reconciler));
            let (links, now_and_then) = (Arc::clone(&reconciler), Arc::clone(&reconciler));
            let threads = [
                thread::Builder::new().name("links".into()).spawn(move || follow_links(changes, &links))?,
                thread::Builder::new()
                    .name("resync".into())
                    .spawn(move || compare_now_and_then(resync, &now_and_then))?,
            ];
            Ok(Self { reconciler, threads, _alone: alone })
        }

        /// Puts changes of the rules into effect, upon which `copy` will be of `revision`. Afterwards all rules
        /// are known.
        ///
        /// # Errors
        /// The connection to the kernel fails, or it refuses everything. Taking the same changes again makes
        /// up for it.
        pub(in super::super) fn take(&self, changes: &[Change], revision: i64, copy: &Copy) -> Result<()> {
            ensure!(!self.threads.iter().any(JoinHandle::is_finished), "a thread of this agent has died");
            // The kernel's answers take their time, and other tasks go on meanwhile.
            tokio::task::block_in_place(|| self.reconciler.lock().take(changes, revision, copy))
        }
    }

    /// Holds a name that one process of a network namespace can hold: two agents would remove each other's
    /// entries.
    fn alone(device: &str) -> Result<UnixDatagram> {
        let name = format!("quoin-route-agent/{device}");
        let address = SocketAddr::from_abstract_name(&name)?;
        UnixDatagram::bind_addr(&address).with_context(|| {
            format!(
                "another agent writes the tables of the devices {device:?}; give one agent all the groups, or \
                 the other agent other devices (--device)"
            )
        })
    }

    fn follow_links(mut changes: LinkChanges, reconciler: &Mutex<Reconciler>) {
        loop {
            let changed = changes.wait().unwrap_or_else(|error| {
                tracing::warn!(error = %format!("{error:#}"), "hearing of changes of links failed");
                thread::sleep(PAUSE);
                None
            });
            let mut reconciler = reconciler.lock();
            let done = reconciler.links(changed.as_deref());
            reconciler.note(done);
        }
    }

    fn compare_now_and_then(resync: Duration, reconciler: &Mutex<Reconciler>) {
        loop {
            thread::sleep(resync);
            let mut reconciler = reconciler.lock();
            let done = reconciler.compare(Why::Periodic);
            reconciler.note(done);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::super::copy::{Change, Copy};
    use super::super::status::Board;
    use anyhow::Result;
    use std::time::Duration;

    /// Cannot be made on this system.
    pub(in super::super) struct Linux(std::convert::Infallible);

    impl Linux {
        pub(in super::super) fn open(_: &str, _: Duration, _: &Copy, _: Board) -> Result<Self> {
            anyhow::bail!("--apply-linux needs Linux; use --hook on this system")
        }

        pub(in super::super) fn take(&self, _: &[Change], _: i64, _: &Copy) -> Result<()> {
            match self.0 {}
        }
    }
}
