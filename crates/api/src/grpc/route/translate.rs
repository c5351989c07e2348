//! Rules, and the names and states of objects, from the wire's messages to core's and back. An error names the field and its value.

use super::text::{parse_mac, write_ip, write_mac};
use crate::error::{Error, Kind as ErrorKind};
use crate::page::PageSizes;
use bytes::Bytes;
use prost::Message;
use quoin_core::history::Unavailable;
use quoin_core::route::{
    GROUP_BYTES_MAX, Mac, Node, Object, ObjectKind, Rule, RuleKey, RuleRef, Scope, VNI_MAX,
};
use quoin_core::{Revision, Stamp};
use quoin_proto::quoin::route::v1 as pb;
use std::net::IpAddr;

/// Page sizes of rules and objects.
pub(crate) const PAGE: PageSizes = PageSizes { default: 1_000, max: 10_000 };
/// Maximum bytes of a rule's user data.
const USER_DATA_BYTES_MAX: usize = 64 << 10;
/// The shortest period of progress, in milliseconds.
const PROGRESS_MS_MIN: u32 = 100;
/// Maximum characters of a value that errors show.
const QUOTED_MAX: usize = 64;
/// The bit of a hardware address's first byte that says it is of many.
const MULTICAST: u8 = 1;

/// A rule as a client sends it.
pub(crate) fn rule(rule: pb::Rule) -> Result<Rule, String> {
    let key = rule_key(rule.vni, &rule.ip)?;
    check_group("group", &rule.group)?;
    if rule.user_data.len() > USER_DATA_BYTES_MAX {
        let bytes = rule.user_data.len();
        return Err(format!("user_data: {bytes} bytes are too many, at most {USER_DATA_BYTES_MAX}"));
    }
    Ok(Rule {
        key,
        mac: mac("mac", &rule.mac)?,
        host_ip: if rule.host_ip.is_empty() { None } else { Some(ip("host_ip", &rule.host_ip)?) },
        host_mac: mac("host_mac", &rule.host_mac)?,
        group: rule.group.into(),
        revision: 0,
        user_data: rule.user_data,
    })
}

/// The key of a rule.
pub(crate) fn rule_key(vni: u32, address: &str) -> Result<RuleKey, String> {
    check_vni("vni", vni)?;
    Ok(RuleKey { vni, ip: ip("ip", address)? })
}

pub(super) fn check_vni(field: &str, vni: u32) -> Result<(), String> {
    if vni > VNI_MAX {
        return Err(format!("{field}: {vni} does not fit in 24 bits, at most {VNI_MAX}"));
    }
    Ok(())
}

/// An address. One of IPv4 that is written as one of IPv6 (`::ffff:10.0.0.1`) is the one of IPv4.
pub(super) fn ip(field: &str, text: &str) -> Result<IpAddr, String> {
    let parsed = text.parse::<IpAddr>();
    let address = parsed.map_err(|_| format!("{field}: {} is not an IPv4 or IPv6 address", quoted(text)))?;
    Ok(address.to_canonical())
}

pub(super) fn mac(field: &str, text: &str) -> Result<Option<Mac>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let problem = match parse_mac(text) {
        None => "is not a hardware address like \"02:00:5e:10:00:01\"",
        Some([0, 0, 0, 0, 0, 0]) => "is no interface's hardware address; leave it empty if there is none",
        Some([first, ..]) if first & MULTICAST != 0 => "is a multicast address, not that of one interface",
        Some(mac) => return Ok(Some(mac)),
    };
    Err(format!("{field}: {} {problem}", quoted(text)))
}

/// A value as errors show it: in quotes, and cut where it is long.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}... ({} bytes)", &text[..end], text.len()),
    }
}

/// A rule as clients see it.
pub(crate) fn shown(rule: &RuleRef<'_>) -> pb::Rule {
    let mac = |mac: &Option<Mac>| text(|out| mac.iter().for_each(|mac| write_mac(out, mac)));
    pb::Rule {
        vni: rule.key.vni,
        ip: address(&rule.key.ip),
        mac: mac(&rule.mac),
        host_ip: rule.host_ip.as_ref().map(address).unwrap_or_default(),
        host_mac: mac(&rule.host_mac),
        group: lossy(rule.group),
        revision: signed(rule.revision),
        user_data: Bytes::copy_from_slice(rule.user_data),
    }
}

/// A rule's key as clients see it.
pub(crate) fn shown_key(key: &RuleKey) -> pb::RuleKey {
    pb::RuleKey { vni: key.vni, ip: address(&key.ip) }
}

fn address(ip: &IpAddr) -> String {
    text(|out| write_ip(out, ip))
}

fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::with_capacity(17);
    write(&mut out);
    String::from_utf8(out).expect("addresses are written in ASCII")
}

/// A revision on the wire.
pub(crate) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).expect("revisions stay below 2^63")
}

/// A revision from a client; 0 if it gave none.
pub(super) fn revision(field: &str, revision: i64) -> Result<u64, Error> {
    u64::try_from(revision)
        .map_err(|_| Error::invalid(format_args!("{field}: {revision} is not a revision, they begin at 1")))
}

/// Why a list or a read of a revision, which a client gave in `field`, has no answer.
pub(crate) fn unavailable(field: &str, asked: Revision, unavailable: &Unavailable) -> Error {
    let text = match unavailable {
        Unavailable::Compacted { compacted } => {
            format!("{field}: {asked} is compacted, history begins at {compacted}")
        }
        Unavailable::Future { newest } => {
            format!("{field}: {asked} is in the future, the newest revision is {newest}")
        }
    };
    Error::Refused(ErrorKind::OutOfRange, text)
}

/// How often a watch shall report progress, in milliseconds; 0 for never.
pub(super) fn progress_ms(progress_ms: u32) -> Result<u32, Error> {
    match progress_ms {
        0 | PROGRESS_MS_MIN.. => Ok(progress_ms),
        _ => Err(Error::invalid(format_args!(
            "progress_ms: {progress_ms} is too short, at least {PROGRESS_MS_MIN}; 0 for never"
        ))),
    }
}

/// The kind of objects that a number means.
pub(super) fn kind(field: &str, kind: i32) -> Result<ObjectKind, Error> {
    let known = u32::try_from(kind).ok().and_then(|kind| ObjectKind::try_from(kind).ok());
    known.ok_or_else(|| {
        Error::invalid(format_args!("{field}: {kind} is unknown; 1 is VPC, 2 gateway cluster, 3 node"))
    })
}

/// An object as clients see it.
pub(super) fn shown_object(object: Object) -> Result<pb::Object, Error> {
    let shown = pb::Object::decode(object.body).map_err(Error::fault)?;
    Ok(pb::Object { revision: signed(object.revision), ..shown })
}

pub(super) fn shown_name(kind: ObjectKind, name: &Bytes) -> pb::ObjectName {
    pb::ObjectName { kind: kind as i32, name: lossy(name) }
}

/// A node's status as clients see it.
pub(super) fn shown_status(node: &Node) -> pb::NodeStatus {
    pb::NodeStatus {
        name: lossy(&node.name),
        alive: node.alive,
        since_ms: node.since.0,
        last_heartbeat_ms: node.last_heartbeat.map_or(0, |stamp| stamp.0),
        applied_revision: signed(node.applied_revision),
    }
}

/// A change of a node's status as clients see it.
pub(super) fn shown_turn(name: &Bytes, alive: bool, since: Stamp) -> pb::NodeStatus {
    pb::NodeStatus { name: lossy(name), alive, since_ms: since.0, ..pb::NodeStatus::default() }
}

pub(super) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks the lengths of groups' names.
pub(super) fn check_groups(field: &str, groups: &[String]) -> Result<(), Error> {
    match groups.iter().position(|group| group.len() > GROUP_BYTES_MAX) {
        None => Ok(()),
        Some(place) => check_group(&format!("{field}[{place}]"), &groups[place]).map_err(Error::invalid),
    }
}

pub(super) fn check_group(field: &str, group: &str) -> Result<(), String> {
    let bytes = group.len();
    if bytes > GROUP_BYTES_MAX {
        return Err(format!("{field}: {bytes} bytes are too long, at most {GROUP_BYTES_MAX}"));
    }
    Ok(())
}

/// Checks networks' numbers.
pub(super) fn check_vnis(field: &str, vnis: &[u32]) -> Result<(), Error> {
    match vnis.iter().position(|vni| *vni > VNI_MAX) {
        None => Ok(()),
        Some(place) => check_vni(&format!("{field}[{place}]"), vnis[place]).map_err(Error::invalid),
    }
}

/// What a watch follows, without duplicates: something.
pub(super) fn scopes(request: &pb::WatchRequest) -> Result<Vec<Scope>, Error> {
    let scopes = any_scopes(request)?;
    if scopes.is_empty() {
        return Err(Error::invalid("nothing to watch: give groups, vnis, kinds or node_status"));
    }
    Ok(scopes)
}

/// As [`scopes`], or nothing.
pub(super) fn any_scopes(request: &pb::WatchRequest) -> Result<Vec<Scope>, Error> {
    check_groups("groups", &request.groups)?;
    let group = |group: &String| Scope::Group(Bytes::copy_from_slice(group.as_bytes()));
    let mut scopes: Vec<Scope> = request.groups.iter().map(group).collect();
    check_vnis("vnis", &request.vnis)?;
    scopes.extend(request.vnis.iter().map(|vni| Scope::Vni(*vni)));
    for (place, number) in request.kinds.iter().enumerate() {
        scopes.push(Scope::Objects(kind(&format!("kinds[{place}]"), *number)?));
    }
    if request.node_status {
        scopes.push(Scope::NodeStatus);
    }
    scopes.sort_unstable();
    scopes.dedup();
    Ok(scopes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pb_rule() -> pb::Rule {
        pb::Rule {
            vni: 7,
            ip: "10.0.0.1".into(),
            mac: "02:00:00:00:00:01".into(),
            host_ip: "fd00::1".into(),
            host_mac: "02:00:00:00:00:02".into(),
            group: "g".into(),
            revision: 0,
            user_data: "u".into(),
        }
    }

    #[test]
    fn a_rule_comes_back_as_it_was_written() {
        assert_eq!(shown(&rule(pb_rule()).unwrap().as_ref()), pb_rule());
        let bare = pb::Rule { vni: 1, ip: "::1".into(), ..pb::Rule::default() };
        assert_eq!(shown(&rule(bare.clone()).unwrap().as_ref()), bare);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field_and_value() {
        for (wrong, field, value) in [
            (pb::Rule { vni: 1 << 24, ..pb_rule() }, "vni", "16777216"),
            (pb::Rule { ip: "10.0.0".into(), ..pb_rule() }, "ip", "10.0.0"),
            (pb::Rule { mac: "2:0".into(), ..pb_rule() }, "mac", "2:0"),
            (pb::Rule { host_ip: "x".into(), ..pb_rule() }, "host_ip", "x"),
            (pb::Rule { host_mac: "y".into(), ..pb_rule() }, "host_mac", "y"),
            (pb::Rule { group: "g".repeat(256), ..pb_rule() }, "group", "256"),
            // Its client saw that a header was too large, and not this.
            (pb::Rule { ip: "é".repeat(1 << 20), ..pb_rule() }, "ip", "éé\"... (2097152 bytes)"),
            (pb::Rule { mac: "x".repeat(1 << 20), ..pb_rule() }, "mac", "xx\"... (1048576 bytes)"),
        ] {
            let problem = rule(wrong).unwrap_err();
            assert!(problem.starts_with(&format!("{field}: ")) && problem.contains(value), "{problem}");
            assert!(problem.len() < 300, "{} bytes", problem.len());
        }
    }
}
