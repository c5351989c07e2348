//! A socket to the kernel's tables (rtnetlink, `man 7 rtnetlink`), blocking: reading tables, and changing them
//! with many messages in one system call.
//!
//! The kernel answers only messages that it refuses, and the last of a batch. A batch is so small that its
//! answers fit into the socket's buffer even if all are refused.

use super::desired::{Key, Mac};
use super::message::{
    Actual, ENOBUFS, EPERM, Link, Messages, RTM_DELLINK, RTM_NEWLINK, RTM_NEWNEIGH, Refusal, Request, actual,
    link, messages, refusal,
};
use anyhow::{Context, Result, bail, ensure};
use rtnetlink::packet_core::{NLM_F_ACK, NLMSG_DONE, NLMSG_ERROR};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};
use std::io;

/// Messages in one system call. An answer takes at most 1,280 bytes of the socket's buffer, of which every
/// process may have 212,992 by default.
const BATCH: usize = 128;
/// The kernel sends parts of a dump of up to 32 KiB.
const RECEIVE_BYTES: usize = 64 * 1024;
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
        let socket = open(&[]).context("connecting to netlink")?;
        let mut netlink = Self { socket, sequence: 0, received: Vec::with_capacity(RECEIVE_BYTES) };
        let mut allowed = true;
        netlink.change(&[NOTHING], |_, refusal| allowed = refusal.errno != EPERM)?;
        ensure!(
            allowed,
            "the kernel does not let this process change neighbours; run it as root, or with CAP_NET_ADMIN"
        );
        Ok(netlink)
    }

    /// All devices.
    ///
    /// # Errors
    /// The kernel refuses, or a message is malformed.
    pub(super) fn links(&mut self) -> Result<Vec<Link>> {
        let mut links = Vec::new();
        let sequence = self.next();
        self.dump(&Messages::links(sequence), sequence, |kind, payload| {
            links.extend(link(payload)?.filter(|_| kind == RTM_NEWLINK));
            Ok(())
        })
        .context("listing devices")?;
        Ok(links)
    }

    /// The entries of `device`, or of all devices. What changes meanwhile may be missing or there twice.
    ///
    /// # Errors
    /// The kernel refuses, or a message is malformed.
    pub(super) fn entries(&mut self, device: Option<u32>) -> Result<Vec<Actual>> {
        let mut entries = Vec::new();
        for of in [Messages::neighbours, Messages::forwarding] {
            let sequence = self.next();
            self.dump(&of(device, sequence), sequence, |kind, payload| {
                let found = if kind == RTM_NEWNEIGH { actual(payload)? } else { None };
                entries.extend(found.filter(|found| device.is_none_or(|device| device == found.device)));
                Ok(())
            })
            .context("reading neighbours and forwarding entries")?;
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

    fn dump(
        &mut self,
        request: &Messages,
        sequence: u32,
        mut take: impl FnMut(u16, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.send(request)?;
        loop {
            self.receive()?;
            for message in messages(&self.received) {
                let message = message?;
                if message.sequence_number() != sequence {
                    continue;
                }
                match message.message_type() {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => match refusal(&message)? {
                        Some(refusal) => bail!("{refusal}"),
                        None => return Ok(()),
                    },
                    kind => take(kind, message.payload())?,
                }
            }
        }
    }

    fn send(&self, messages: &Messages) -> io::Result<()> {
        self.socket.send(messages.bytes(), 0).map(|_| ())
    }

    fn receive(&mut self) -> io::Result<()> {
        receive(&self.socket, &mut self.received)
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
