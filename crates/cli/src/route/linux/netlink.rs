//! A socket to the kernel's tables (rtnetlink, `man 7 rtnetlink`), blocking: reading tables, and changing them
//! with many messages in one system call.
//!
//! The kernel answers only messages that it refuses, and the last of a batch. A batch is so small that its
//! answers fit into the socket's buffer even if all are refused.

use super::desired::{Key, Mac};
use super::message::{
    Actual, ENOBUFS, EPERM, Link, Messages, RTM_DELLINK, RTM_NEWLINK, RTM_NEWNEIGH, Refusal, Request, actual,
    dumped, link, messages, refusal,
};
use anyhow::{Context, Result, bail, ensure};
use rtnetlink::packet_core::{NLM_F_ACK, NLMSG_ERROR};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io;
use std::time::Duration;

/// Messages in one system call. An answer takes at most 1,280 bytes of the socket's buffer, of which every
/// process may have 212,992 by default.
const BATCH: usize = 128;
/// The kernel sends parts of a dump of up to 32 KiB.
const RECEIVE_BYTES: usize = 64 * 1024;
/// A dump is repeated this often while what it lists changes.
const DUMPS_MAX: usize = 10;
/// The kernel answers at once, unless an answer has been lost.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Link changes are dropped when they do not fit, and the reader is told so.
const LINKS_BUFFER_BYTES: u32 = 1024 * 1024;

/// The multicast group of changes of links.
const RTNLGRP_LINK: u32 = 1;

/// A change that the kernel has to refuse: no device has this index.
const NOTHING: (u32, Request) = (0, Request::Remove(Key::Forwarding(Mac([0; 6]))));

/// A connection to the kernel, for dumps and changes.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
    received: Vec<u8>,
}

impl Netlink {
    /// # Errors
    /// The system gives no socket, or does not let this process change tables.
    pub(super) fn open() -> Result<Self> {
        let mut netlink = Self::connect()?;
        let mut allowed = true;
        netlink.change(&[NOTHING], |_, refusal| allowed = refusal.errno != EPERM)?;
        ensure!(
            allowed,
            "the kernel does not let this process change neighbours; run it as root, or with CAP_NET_ADMIN"
        );
        Ok(netlink)
    }

    /// Without asking whether this process may change tables.
    pub(super) fn connect() -> Result<Self> {
        let socket = open(&[]).context("connecting to netlink")?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX))?;
        Ok(Self { socket, sequence: 0, received: Vec::with_capacity(RECEIVE_BYTES) })
    }

    /// A connection on which nothing can be sent: nobody is at its other end.
    #[cfg(test)]
    pub(super) fn broken() -> Self {
        let socket = Socket::new(rtnetlink::sys::protocols::NETLINK_USERSOCK).unwrap();
        Self { socket, sequence: 0, received: Vec::new() }
    }

    /// All devices.
    ///
    /// # Errors
    /// The kernel refuses or is silent, or a message is malformed.
    pub(super) fn links(&mut self) -> Result<Vec<Link>> {
        let parse = |kind, payload: &[u8]| Ok(link(payload)?.filter(|_| kind == RTM_NEWLINK));
        self.dump(Messages::links, parse).context("listing devices")
    }

    /// The entries of `device`, or of all devices. What changes meanwhile may be missing or there twice.
    ///
    /// # Errors
    /// The kernel refuses, or a message is malformed.
    pub(super) fn entries(&mut self, device: Option<u32>) -> Result<Vec<Actual>> {
        let mut entries = Vec::new();
        for of in [Messages::neighbours, Messages::forwarding] {
            let found = self.dump(
                |sequence| of(device, sequence),
                |kind, payload| {
                    let found = if kind == RTM_NEWNEIGH { actual(payload)? } else { None };
                    Ok(found.filter(|found| device.is_none_or(|device| device == found.device)))
                },
            );
            entries.extend(found.context("reading neighbours and forwarding entries")?);
        }
        Ok(entries)
    }

    /// Makes `requests` in their order, on the devices with these indexes. Calls `refused` for those that the
    /// kernel refuses; the others are done.
    ///
    /// # Errors
    /// The connection fails; then some may be done.
    pub(super) fn change(
        &mut self,
        requests: &[(u32, Request)],
        mut refused: impl FnMut(usize, Refusal),
    ) -> Result<()> {
        for (batch, part) in requests.chunks(BATCH).enumerate() {
            let first = self.sequence.wrapping_add(1);
            let mut messages = Messages::default();
            for (at, (device, request)) in part.iter().enumerate() {
                let acknowledged = if at + 1 == part.len() { NLM_F_ACK } else { 0 };
                messages.request(*device, request, acknowledged, self.next());
            }
            self.send(&messages)?;
            self.answers(first, part.len(), |at, refusal| refused(batch * BATCH + at, refusal))
                .context("changing neighbours and forwarding entries")?;
        }
        Ok(())
    }

    /// Returns once the kernel has made the changes of links that it has begun: it makes them under the lock
    /// that a change of forwarding entries takes too, even one of a device that does not exist.
    ///
    /// # Errors
    /// The connection fails.
    pub(super) fn wait_for_links(&mut self) -> Result<()> {
        self.change(&[NOTHING], |_, _| {})
    }

    /// Reads the answers to `count` messages from sequence number `first` on, until that to the last.
    fn answers(&mut self, first: u32, count: usize, mut refused: impl FnMut(usize, Refusal)) -> Result<()> {
        loop {
            self.receive()?;
            for message in messages(&self.received) {
                let message = message?;
                let at = message.sequence_number().wrapping_sub(first) as usize;
                // Answers to an earlier batch, which had failed, are nobody's.
                if message.message_type() != NLMSG_ERROR || at >= count {
                    continue;
                }
                if let Some(refusal) = refusal(&message)? {
                    refused(at, refusal);
                }
                if at + 1 == count {
                    return Ok(());
                }
            }
        }
    }

    /// Asks until nothing has changed meanwhile, and returns what `parse` makes of the answer's messages.
    fn dump<T>(
        &mut self,
        request: impl Fn(u32) -> Messages,
        parse: impl Fn(u16, &[u8]) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        for _ in 0..DUMPS_MAX {
            let sequence = self.next();
            self.send(&request(sequence))?;
            let (mut found, mut interrupted) = (Vec::new(), false);
            loop {
                self.receive()?;
                let progress = dumped(&self.received, sequence, |kind, payload| {
                    found.extend(parse(kind, payload)?);
                    Ok(())
                })?;
                interrupted |= progress.interrupted;
                if progress.done {
                    break;
                }
            }
            if !interrupted {
                return Ok(found);
            }
        }
        bail!("they changed each of {DUMPS_MAX} times while the kernel listed them")
    }

    fn send(&self, messages: &Messages) -> io::Result<()> {
        self.socket.send(messages.bytes(), 0).map(|_| ())
    }

    fn receive(&mut self) -> io::Result<()> {
        receive(&self.socket, &mut self.received).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                let silence = format!("the kernel was silent for {} s", ANSWER_MAX.as_secs());
                io::Error::new(io::ErrorKind::TimedOut, silence)
            }
            _ => error,
        })
    }

    fn next(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

/// Changes of links, as they happen.
pub(super) struct LinkChanges {
    socket: Socket,
    received: Vec<u8>,
}

impl LinkChanges {
    /// From now on all changes are noticed.
    ///
    /// # Errors
    /// The system gives no socket.
    pub(super) fn listen() -> Result<Self> {
        let socket = open(&[RTNLGRP_LINK]).context("listening for changes of links")?;
        socket.set_rx_buf_sz(LINKS_BUFFER_BYTES)?;
        Ok(Self { socket, received: Vec::with_capacity(RECEIVE_BYTES) })
    }

    /// Waits for changes; returns the devices that have changed since. `None`: there were more than the
    /// socket's buffer holds, and any may have changed.
    ///
    /// # Errors
    /// The socket fails, or a message is malformed.
    pub(super) fn wait(&mut self) -> Result<Option<Vec<Link>>> {
        let mut changed = Some(Vec::new());
        self.socket.set_non_blocking(false)?;
        loop {
            match receive(&self.socket, &mut self.received) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(changed),
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => changed = None,
                Err(error) => return Err(error.into()),
            }
            self.socket.set_non_blocking(true)?;
            let Some(links) = &mut changed else { continue };
            for message in messages(&self.received) {
                let message = message?;
                if matches!(message.message_type(), RTM_NEWLINK | RTM_DELLINK) {
                    links.extend(link(message.payload())?);
                }
            }
        }
    }
}

fn open(groups: &[u32]) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // Answers hold the refused message's header instead of all of it, and the kernel's explanation.
    socket.set_cap_ack(true)?;
    socket.set_ext_ack(true)?;
    // Dumps of one device are filtered by the kernel. Older ones send everything.
    let _ = socket.set_netlink_get_strict_chk(true);
    for group in groups {
        socket.add_membership(*group)?;
    }
    Ok(socket)
}

/// Leaves one datagram in `into`.
fn receive(socket: &Socket, into: &mut Vec<u8>) -> io::Result<()> {
    loop {
        into.clear();
        into.reserve(RECEIVE_BYTES);
        match socket.recv(into, 0) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer that was lost held a thread of the agent for ever.
    #[test]
    fn a_silent_kernel_is_an_error() {
        let mut netlink = Netlink::connect().unwrap();
        let set = rustix::net::sockopt::socket_timeout(&netlink.socket, Timeout::Recv).unwrap();
        assert_eq!(set, Some(ANSWER_MAX));
        set_socket_timeout(&netlink.socket, Timeout::Recv, Some(Duration::from_millis(10))).unwrap();
        // Nothing has been asked.
        let error = netlink.receive().unwrap_err();
        assert!(error.kind() == io::ErrorKind::TimedOut && error.to_string().contains("silent"), "{error}");
        assert!(netlink.links().unwrap().iter().any(|link| link.name == "lo"));
    }
}
