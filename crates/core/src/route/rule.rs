//! A rule, which says where packets for an address in a virtual network go, and its bytes.
//!
//! ```text
//! key:  u24 VNI big-endian, one byte 4 or 6, the 4 or 16 bytes of the address
//! body: one byte of flags (1 mac, 2 host address v4, 4 host address v6, 8 host mac),
//!       one byte length of the group and the group, then 6 bytes mac, 4 or 16 bytes host address, 6 bytes
//!       host mac, each if its flag is set, then user data to the end
//! record: u64 revision big-endian, body
//! ```
//!
//! Byte order of keys is the order of (VNI, family, address).

use crate::codec::{Malformed, Reader};
use bytes::Bytes;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The largest VNI: 24 bits.
pub const VNI_MAX: u32 = (1 << 24) - 1;
/// The longest name of a group, bytes.
pub const GROUP_BYTES_MAX: usize = 255;

const WITH_MAC: u8 = 1;
const WITH_HOST_V4: u8 = 2;
const WITH_HOST_V6: u8 = 4;
const WITH_HOST_MAC: u8 = 8;
const KNOWN_FLAGS: u8 = 15;
/// The revision before the body in a record.
pub(super) const REVISION_BYTES: usize = 8;

/// A hardware address.
pub type Mac = [u8; 6];

/// The key by which a rule is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleKey {
    /// The virtual network, at most [`VNI_MAX`].
    pub vni: u32,
    /// An address in it.
    pub ip: IpAddr,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its key.
    pub key: RuleKey,
    /// The hardware address of `key.ip`.
    pub mac: Option<Mac>,
    /// The host that it is behind.
    pub host_ip: Option<IpAddr>,
    /// The hardware address of that host.
    pub host_mac: Option<Mac>,
    /// The group in which it is watched; at most [`GROUP_BYTES_MAX`] bytes.
    pub group: Bytes,
    /// Revision of its last write; 0 before it is written.
    pub revision: u64,
    /// Any bytes.
    pub user_data: Bytes,
}

/// A rule that borrows from its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleRef<'a> {
    /// See [`Rule`].
    pub key: RuleKey,
    /// See [`Rule`].
    pub mac: Option<Mac>,
    /// See [`Rule`].
    pub host_ip: Option<IpAddr>,
    /// See [`Rule`].
    pub host_mac: Option<Mac>,
    /// See [`Rule`].
    pub group: &'a [u8],
    /// See [`Rule`].
    pub revision: u64,
    /// See [`Rule`].
    pub user_data: &'a [u8],
}

impl std::fmt::Display for RuleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.vni, self.ip)
    }
}

impl RuleKey {
    /// Appends the encoded key.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.vni.to_be_bytes()[1..]);
        match self.ip {
            IpAddr::V4(ip) => {
                out.push(4);
                out.extend_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                out.push(6);
                out.extend_from_slice(&ip.octets());
            }
        }
    }

    /// Decodes a key that fills `bytes`.
    ///
    /// # Errors
    /// The bytes are not a key.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed { what: "rule key" };
        let (&[high, middle, low, family], address) =
            bytes.split_first_chunk::<4>().ok_or(malformed.clone())?;
        let vni = u32::from_be_bytes([0, high, middle, low]);
        let ip = match family {
            4 => <[u8; 4]>::try_from(address).map(|octets| IpAddr::V4(Ipv4Addr::from(octets))),
            6 => <[u8; 16]>::try_from(address).map(|octets| IpAddr::V6(Ipv6Addr::from(octets))),
            _ => return Err(malformed),
        };
        Ok(Self { vni, ip: ip.map_err(|_| malformed)? })
    }
}

impl Rule {
    /// Appends the encoded body.
    pub(super) fn encode_body_into(&self, out: &mut Vec<u8>) {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.push(
            flag(self.mac.is_some(), WITH_MAC)
                | flag(matches!(self.host_ip, Some(IpAddr::V4(_))), WITH_HOST_V4)
                | flag(matches!(self.host_ip, Some(IpAddr::V6(_))), WITH_HOST_V6)
                | flag(self.host_mac.is_some(), WITH_HOST_MAC),
        );
        out.push(u8::try_from(self.group.len()).expect("groups' lengths are checked where they enter"));
        out.extend_from_slice(&self.group);
        out.extend_from_slice(self.mac.as_ref().map_or(&[], |mac| mac.as_slice()));
        match self.host_ip {
            Some(IpAddr::V4(ip)) => out.extend_from_slice(&ip.octets()),
            Some(IpAddr::V6(ip)) => out.extend_from_slice(&ip.octets()),
            None => {}
        }
        out.extend_from_slice(self.host_mac.as_ref().map_or(&[], |mac| mac.as_slice()));
        out.extend_from_slice(&self.user_data);
    }

    /// The rule at `key` whose record is `record`.
    ///
    /// # Errors
    /// The record was not written by this version.
    pub fn decode(key: RuleKey, record: &Bytes) -> Result<Self, Malformed> {
        let rule = RuleRef::decode(key, record)?;
        Ok(Self {
            key,
            mac: rule.mac,
            host_ip: rule.host_ip,
            host_mac: rule.host_mac,
            group: record.slice_ref(rule.group),
            revision: rule.revision,
            user_data: record.slice_ref(rule.user_data),
        })
    }

    /// The same rule, borrowed.
    pub fn as_ref(&self) -> RuleRef<'_> {
        RuleRef {
            key: self.key,
            mac: self.mac,
            host_ip: self.host_ip,
            host_mac: self.host_mac,
            group: &self.group,
            revision: self.revision,
            user_data: &self.user_data,
        }
    }
}

impl<'a> RuleRef<'a> {
    /// The rule at `key` whose record is `record`.
    ///
    /// # Errors
    /// The record was not written by this version.
    pub fn decode(key: RuleKey, record: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(record, "rule record");
        let revision = reader.u64()?;
        let [flags, group_length] = reader.array()?;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(reader.malformed());
        }
        let group = reader.take(group_length.into())?;
        let has = |flag| flags & flag != 0;
        let mac = if has(WITH_MAC) { Some(reader.array()?) } else { None };
        let host_ip = if has(WITH_HOST_V4) {
            Some(IpAddr::V4(Ipv4Addr::from(reader.array::<4>()?)))
        } else if has(WITH_HOST_V6) {
            Some(IpAddr::V6(Ipv6Addr::from(reader.array::<16>()?)))
        } else {
            None
        };
        let host_mac = if has(WITH_HOST_MAC) { Some(reader.array()?) } else { None };
        Ok(Self { key, mac, host_ip, host_mac, group, revision, user_data: reader.rest() })
    }
}

/// The record of a body, written at `revision`.
pub(super) fn encode_record(revision: u64, body: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(REVISION_BYTES + body.len());
    out.extend_from_slice(&revision.to_be_bytes());
    out.extend_from_slice(body);
    out.into()
}

/// The revision in a record.
pub(super) fn revision_of(record: &[u8]) -> u64 {
    record.first_chunk().copied().map_or(0, u64::from_be_bytes)
}

/// The group in a record; `None` if it is too short to have one.
pub(super) fn group_of(record: &[u8]) -> Option<&[u8]> {
    group_in_body(record.get(REVISION_BYTES..)?)
}

/// The group in a body.
pub(super) fn group_in_body(body: &[u8]) -> Option<&[u8]> {
    let length = *body.get(1)?;
    body.get(2..2 + usize::from(length))
}

/// Whether a body can be decoded: one that cannot must not enter the store, where it would stop replicas
/// later.
pub(super) fn is_sound_body(body: &[u8]) -> bool {
    let (Some(flags), Some(group)) = (body.first().copied(), group_in_body(body)) else { return false };
    let part = |flag: u8, bytes: usize| if flags & flag != 0 { bytes } else { 0 };
    let both_families = WITH_HOST_V4 | WITH_HOST_V6;
    let fixed = part(WITH_MAC, 6) + part(WITH_HOST_V4, 4) + part(WITH_HOST_V6, 16) + part(WITH_HOST_MAC, 6);
    flags & !KNOWN_FLAGS == 0
        && flags & both_families != both_families
        && body.len() >= 2 + group.len() + fixed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Rule {
        Rule {
            key: RuleKey { vni: 0x01_02_03, ip: "10.0.0.1".parse().unwrap() },
            mac: Some([1, 2, 3, 4, 5, 6]),
            host_ip: Some("fd00::1".parse().unwrap()),
            host_mac: Some([6, 5, 4, 3, 2, 1]),
            group: "g".into(),
            revision: 7,
            user_data: "u".into(),
        }
    }

    #[test]
    fn layouts_are_pinned() {
        let mut key = Vec::new();
        full().key.encode_into(&mut key);
        assert_eq!(key, b"\x01\x02\x03\x04\x0a\0\0\x01");
        let mut body = Vec::new();
        full().encode_body_into(&mut body);
        let golden =
            b"\x0d\x01g\x01\x02\x03\x04\x05\x06\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x06\x05\x04\x03\x02\x01u";
        assert_eq!(body, golden);
        assert_eq!(&encode_record(7, b"\0\0")[..], b"\0\0\0\0\0\0\0\x07\0\0");
        assert_eq!(Rule::decode(full().key, &encode_record(7, &body)), Ok(full()));
    }

    #[test]
    fn keys_are_in_the_order_of_network_family_and_address() {
        let key = |vni, ip: &str| RuleKey { vni, ip: ip.parse().unwrap() };
        let sorted =
            [key(1, "9.0.0.1"), key(1, "10.0.0.1"), key(1, "::1"), key(1, "fd00::1"), key(256, "1.1.1.1")];
        let bytes = sorted.map(|key| {
            let mut out = Vec::new();
            key.encode_into(&mut out);
            assert_eq!(RuleKey::decode(&out), Ok(key));
            out
        });
        assert!(bytes.is_sorted());
    }

    #[test]
    fn a_cut_body_is_refused_up_to_its_user_data() {
        let mut body = Vec::new();
        Rule { user_data: Bytes::new(), ..full() }.encode_body_into(&mut body);
        assert!(is_sound_body(&body));
        for length in 0..body.len() {
            assert!(!is_sound_body(&body[..length]), "cut at {length}");
            assert!(Rule::decode(full().key, &encode_record(7, &body[..length])).is_err(), "cut at {length}");
        }
        body[0] |= 16;
        assert!(!is_sound_body(&body));
    }
}
