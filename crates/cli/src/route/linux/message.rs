//! The messages of rtnetlink that agents send and read, as bytes (`linux/rtnetlink.h`, `linux/neighbour.h`).

use super::desired::{Key, Mac, Value};
use anyhow::{Result, bail, ensure};
use rtnetlink::packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REPLACE, NLM_F_REQUEST, NLMSG_DONE,
    NLMSG_ERROR, NetlinkBuffer, NlaBuffer, NlasIterator,
};
use std::io;
use std::net::IpAddr;

/// The protocol number (`proto` in `ip neigh`) of neighbours that an agent has made; no other program is known
/// to use it.
pub(super) const PROTOCOL: u8 = 81;

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
pub(super) const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;

const AF_INET: u8 = 2;
const AF_BRIDGE: u8 = 7;
const AF_INET6: u8 = 10;

const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_INFO_KIND: u16 = 1;
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_PORT: u16 = 6;
const NDA_VNI: u16 = 7;
const NDA_IFINDEX: u16 = 8;
const NDA_PROTOCOL: u16 = 12;

const NUD_PERMANENT: u16 = 0x80;
const NTF_SELF: u8 = 0x02;
const NTF_PROXY: u8 = 0x08;
/// "Made by a control plane": the mark of an agent's forwarding entries, which keep no protocol number.
const NTF_EXT_LEARNED: u8 = 0x10;

const NLMSGERR_ATTR_MSG: u16 = 1;

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    /// Such as `vxlan`; empty for hardware.
    pub(super) kind: String,
}

/// An entry of the kernel's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Actual {
    pub(super) device: u32,
    pub(super) key: Key,
    /// `None` if it is nothing that an agent would write: no value, an own port, not permanent.
    pub(super) value: Option<Value>,
    /// An agent has made it.
    pub(super) ours: bool,
}

/// A change of a device's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Put(Key, Value),
    Remove(Key),
}

impl Request {
    pub(super) fn key(&self) -> Key {
        match self {
            Self::Put(key, _) | Self::Remove(key) => *key,
        }
    }
}

/// The kernel's answer to a refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Positive, as in `errno.h`.
    pub(super) errno: i32,
    /// The kernel's explanation; often empty.
    pub(super) text: String,
}

pub(super) const EPERM: i32 = 1;
pub(super) const ENOENT: i32 = 2;
pub(super) const ENXIO: i32 = 6;
pub(super) const ENODEV: i32 = 19;
pub(super) const ENOBUFS: i32 = 105;

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let error = io::Error::from_raw_os_error(self.errno);
        if self.text.is_empty() { write!(f, "{error}") } else { write!(f, "{}: {error}", self.text) }
    }
}

/// The messages of a datagram.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<NetlinkBuffer<&[u8]>>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = match NetlinkBuffer::new_checked(rest) {
            Ok(message) => message,
            Err(error) => {
                rest = &[];
                return Some(Err(anyhow::anyhow!("a malformed netlink message: {error}")));
            }
        };
        let length = (message.length() as usize).next_multiple_of(4).min(rest.len());
        rest = &rest[length..];
        Some(Ok(message))
    })
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = Result<NlaBuffer<&[u8]>>> {
    NlasIterator::new(bytes)
        .map(|attribute| attribute.map_err(|error| anyhow::anyhow!("a malformed netlink attribute: {error}")))
}

/// The refusal in an answer; `None` if it is an acknowledgement.
pub(super) fn refusal(message: &NetlinkBuffer<&[u8]>) -> Result<Option<Refusal>> {
    let payload = message.payload();
    ensure!(payload.len() >= 20, "a netlink answer of {} bytes", payload.len());
    let errno = -i32::from_ne_bytes([payload[0], payload[1], payload[2], payload[3]]);
    if errno == 0 {
        return Ok(None);
    }
    let mut text = String::new();
    if message.flags() & NLM_F_ACK_TLVS != 0 {
        for attribute in attributes(&payload[20..]) {
            let attribute = attribute?;
            if attribute.kind() == NLMSGERR_ATTR_MSG {
                text = string(attribute.value());
            }
        }
    }
    Ok(Some(Refusal { errno, text }))
}

/// How a dump goes on after a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) done: bool,
    /// The tables have changed meanwhile: what has been read may never have been there together.
    pub(super) interrupted: bool,
}

/// Takes the messages with this `sequence` of a datagram of a dump.
///
/// # Errors
/// The kernel refuses the dump, or breaks it off; a message is malformed.
pub(super) fn dumped(
    datagram: &[u8],
    sequence: u32,
    mut take: impl FnMut(u16, &[u8]) -> Result<()>,
) -> Result<Progress> {
    let mut progress = Progress::default();
    for message in messages(datagram) {
        let message = message?;
        if message.sequence_number() != sequence {
            continue;
        }
        progress.interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
        match message.message_type() {
            NLMSG_DONE => {
                let errno = message.payload().first_chunk().map_or(0, |errno| i32::from_ne_bytes(*errno));
                ensure!(errno >= 0, "broken off: {}", io::Error::from_raw_os_error(errno.saturating_neg()));
                progress.done = true;
            }
            NLMSG_ERROR => match refusal(&message)? {
                Some(refusal) => bail!("{refusal}"),
                None => progress.done = true,
            },
            kind => take(kind, message.payload())?,
        }
        if progress.done {
            break;
        }
    }
    Ok(progress)
}

fn string(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

pub(super) fn link(payload: &[u8]) -> Result<Option<Link>> {
    ensure!(payload.len() >= 16, "a netlink message about a link of {} bytes", payload.len());
    let index = u32::from_ne_bytes([payload[4], payload[5], payload[6], payload[7]]);
    let mut link = Link { index, name: String::new(), kind: String::new() };
    for attribute in attributes(&payload[16..]) {
        let attribute = attribute?;
        match attribute.kind() {
            IFLA_IFNAME => link.name = string(attribute.value()),
            IFLA_LINKINFO => {
                for inner in attributes(attribute.value()) {
                    let inner = inner?;
                    if inner.kind() == IFLA_INFO_KIND {
                        link.kind = string(inner.value());
                    }
                }
            }
            _ => {}
        }
    }
    Ok((!link.name.is_empty()).then_some(link))
}

/// The header of a message about a neighbour (`struct ndmsg`).
fn header(family: u8, device: u32, state: u16, flags: u8) -> [u8; 12] {
    let ([a, b, c, d], [e, f]) = (device.to_ne_bytes(), state.to_ne_bytes());
    [family, 0, 0, 0, a, b, c, d, e, f, flags, 0]
}

/// An entry; `None` if it is of a kind that agents have nothing to do with.
pub(super) fn actual(payload: &[u8]) -> Result<Option<Actual>> {
    ensure!(payload.len() >= 12, "a netlink message about a neighbour of {} bytes", payload.len());
    let (family, flags) = (payload[0], payload[10]);
    let device = u32::from_ne_bytes([payload[4], payload[5], payload[6], payload[7]]);
    let permanent = u16::from_ne_bytes([payload[8], payload[9]]) == NUD_PERMANENT;
    let (mut ip, mut mac, mut protocol, mut plain) = (None, None, 0, true);
    for attribute in attributes(&payload[12..]) {
        let attribute = attribute?;
        let value = attribute.value();
        match attribute.kind() {
            NDA_DST => ip = address(value),
            NDA_LLADDR => mac = <[u8; 6]>::try_from(value).ok().map(Mac),
            NDA_PROTOCOL => protocol = value.first().copied().unwrap_or(0),
            // A forwarding entry with a port, network or device of its own.
            NDA_PORT | NDA_VNI | NDA_IFINDEX => plain = false,
            _ => {}
        }
    }
    let standard = permanent && plain;
    let (key, value, ours) = match family {
        AF_INET | AF_INET6 if flags & NTF_PROXY == 0 => {
            (ip.map(Key::Neighbour), mac.map(Value::Mac), protocol == PROTOCOL)
        }
        AF_BRIDGE if flags & NTF_SELF != 0 => {
            (mac.map(Key::Forwarding), ip.map(Value::Host), flags & NTF_EXT_LEARNED != 0)
        }
        _ => return Ok(None),
    };
    Ok(key.map(|key| Actual { device, key, value: value.filter(|_| standard), ours }))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

/// Messages one after the other, as one system call sends them.
#[derive(Default)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    /// Where the last one begins.
    begin: usize,
}

impl Messages {
    /// Asks for all links.
    pub(super) fn links(sequence: u32) -> Self {
        let mut request = Self::default();
        request.begin(RTM_GETLINK, NLM_F_DUMP, sequence, &[0; 16]);
        request.attribute(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        request
    }

    /// Asks for the neighbours of a device, or of all.
    pub(super) fn neighbours(device: Option<u32>, sequence: u32) -> Self {
        let mut request = Self::default();
        request.begin(RTM_GETNEIGH, NLM_F_DUMP, sequence, &header(0, 0, 0, 0));
        if let Some(device) = device {
            request.attribute(NDA_IFINDEX, &device.to_ne_bytes());
        }
        request
    }

    /// Asks for the forwarding entries of a device, or of all.
    pub(super) fn forwarding(device: Option<u32>, sequence: u32) -> Self {
        let mut request = Self::default();
        request.begin(RTM_GETNEIGH, NLM_F_DUMP, sequence, &header(AF_BRIDGE, device.unwrap_or(0), 0, 0));
        request
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn begin(&mut self, kind: u16, flags: u16, sequence: u32, header: &[u8]) {
        self.begin = self.bytes.len();
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        self.bytes.extend(sequence.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(header);
        self.end();
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).expect("attributes of entries are short");
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.end();
    }

    /// Writes the last message's length.
    fn end(&mut self) {
        let length = u32::try_from(self.bytes.len() - self.begin).expect("messages are short");
        self.bytes[self.begin..self.begin + 4].copy_from_slice(&length.to_ne_bytes());
    }

    fn address(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.attribute(NDA_DST, &ip.octets()),
            IpAddr::V6(ip) => self.attribute(NDA_DST, &ip.octets()),
        }
    }

    pub(super) fn request(&mut self, device: u32, request: &Request, flags: u16, sequence: u32) {
        let (kind, flags, key, value) = match request {
            Request::Put(key, value) => {
                (RTM_NEWNEIGH, flags | NLM_F_CREATE | NLM_F_REPLACE, key, Some(value))
            }
            Request::Remove(key) => (RTM_DELNEIGH, flags, key, None),
        };
        let header = match key {
            Key::Neighbour(IpAddr::V4(_)) => header(AF_INET, device, NUD_PERMANENT, 0),
            Key::Neighbour(IpAddr::V6(_)) => header(AF_INET6, device, NUD_PERMANENT, 0),
            Key::Forwarding(_) => header(AF_BRIDGE, device, NUD_PERMANENT, NTF_SELF | NTF_EXT_LEARNED),
        };
        self.begin(kind, flags, sequence, &header);
        match key {
            Key::Neighbour(ip) => self.address(*ip),
            Key::Forwarding(mac) => self.attribute(NDA_LLADDR, &mac.0),
        }
        match value {
            Some(Value::Mac(mac)) => {
                self.attribute(NDA_LLADDR, &mac.0);
                self.attribute(NDA_PROTOCOL, &[PROTOCOL]);
            }
            Some(Value::Host(ip)) => self.address(*ip),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MULTI: u16 = 2;

    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes
    }

    fn done(flags: u16, sequence: u32, errno: i32) -> Vec<u8> {
        message(NLMSG_DONE, flags, sequence, &errno.to_ne_bytes())
    }

    /// The progress, and how many messages were taken.
    fn of(datagram: &[u8]) -> Result<(Progress, usize)> {
        let mut taken = 0;
        let progress = dumped(datagram, 7, |kind, payload| {
            assert_eq!((kind, payload), (RTM_NEWNEIGH, &[1, 2, 3, 4][..]));
            taken += 1;
            Ok(())
        })?;
        Ok((progress, taken))
    }

    /// A dump that the kernel broke off, or during which the tables changed, counted as whole.
    #[test]
    fn the_end_of_a_dump_says_whether_it_is_whole() {
        let entry = |flags, sequence| message(RTM_NEWNEIGH, MULTI | flags, sequence, &[1, 2, 3, 4]);
        let progress = |done, interrupted| Progress { done, interrupted };
        // Messages with other numbers belong to an earlier dump.
        let part = [entry(0, 7), entry(NLM_F_DUMP_INTR, 6), done(MULTI, 6, -12), entry(0, 7)].concat();
        assert_eq!(of(&part).unwrap(), (progress(false, false), 2));
        assert_eq!(of(&[&part[..], &done(MULTI, 7, 0)].concat()).unwrap(), (progress(true, false), 2));
        let interrupted = [entry(NLM_F_DUMP_INTR, 7), entry(0, 7), done(MULTI, 7, 0)].concat();
        assert_eq!(of(&interrupted).unwrap(), (progress(true, true), 2));
        assert_eq!(of(&done(MULTI | NLM_F_DUMP_INTR, 7, 0)).unwrap(), (progress(true, true), 0));
        let error = of(&[part, done(MULTI, 7, -12)].concat()).unwrap_err().to_string();
        assert!(error.contains("broken off") && error.contains("os error 12"), "{error}");
        let refused = [&(-1_i32).to_ne_bytes()[..], &[0; 16]].concat();
        let error = of(&message(NLMSG_ERROR, 0, 7, &refused)).unwrap_err().to_string();
        assert!(error.contains("os error 1"), "{error}");
    }
}
