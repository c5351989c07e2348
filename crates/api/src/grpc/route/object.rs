//! What clients may say of an object. An error names the field and its value.

use super::translate::{check_group, check_vni, ip, mac, quoted};
use bytes::Bytes;
use prost::Message;
use quoin_core::route::{GROUP_BYTES_MAX, ObjectKind, PutObject};
use quoin_proto::quoin::route::v1 as pb;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Maximum bytes of an object's name.
const NAME_BYTES_MAX: usize = 255;
/// Maximum bytes of an object's metadata, names and values together.
const METADATA_BYTES_MAX: usize = 4096;
/// Maximum bytes of an interface's name, as in Linux.
const INTERFACE_BYTES_MAX: usize = 15;
/// Maximum bytes of a host's name.
const HOST_BYTES_MAX: usize = 253;

/// The command that writes an object as a client sends it.
pub(crate) fn put(object: pb::Object) -> Result<PutObject, String> {
    use pb::object::Object as Kind;
    let (kind, object_name) = match object.object.as_ref() {
        None => return Err("object: give a vpc, a gateway_cluster or a node".to_owned()),
        Some(Kind::Vpc(vpc)) => {
            check_vpc(vpc).map_err(|problem| format!("vpc.{problem}"))?;
            (ObjectKind::Vpc, &vpc.name)
        }
        Some(Kind::GatewayCluster(cluster)) => {
            check_gateway_cluster(cluster).map_err(|problem| format!("gateway_cluster.{problem}"))?;
            (ObjectKind::GatewayCluster, &cluster.name)
        }
        Some(Kind::Node(node)) => {
            check_node(node).map_err(|problem| format!("node.{problem}"))?;
            (ObjectKind::Node, &node.name)
        }
    };
    let name = Bytes::from(object_name.clone());
    // The server sets the revision, so it is not part of the stored message.
    let stored = pb::Object { revision: 0, ..object };
    Ok(PutObject { kind: kind as u32, name, body: stored.encode_to_vec().into(), alone: true })
}

fn check_vpc(vpc: &pb::Vpc) -> Result<(), String> {
    name("name", &vpc.name)?;
    check_vni("vni", vpc.vni)?;
    check_ranges("cidrs", &vpc.cidrs)?;
    for (place, gateway) in vpc.gateways.iter().enumerate() {
        ip(&format!("gateways[{place}]"), gateway)?;
    }
    check_metadata(&vpc.metadata)
}

fn check_gateway_cluster(cluster: &pb::GatewayCluster) -> Result<(), String> {
    name("name", &cluster.name)?;
    for (place, gateway) in cluster.gateways.iter().enumerate() {
        check_gateway(gateway).map_err(|problem| format!("gateways[{place}].{problem}"))?;
    }
    for (place, vni) in cluster.vnis.iter().enumerate() {
        check_vni(&format!("vnis[{place}]"), *vni)?;
    }
    check_ranges("ip_ranges", &cluster.ip_ranges)?;
    check_port(cluster.port)?;
    if pb::Overlay::try_from(cluster.overlay).is_err() {
        return Err(format!("overlay: {} is unknown; 1 is VXLAN, 2 GENEVE, 3 GRE", cluster.overlay));
    }
    check_vni("vni", cluster.vni)?;
    check_metadata(&cluster.metadata)
}

fn check_gateway(gateway: &pb::Gateway) -> Result<(), String> {
    ip("ip", &gateway.ip)?;
    mac("mac", &gateway.mac)?;
    check_vni("vni", gateway.vni)?;
    check_port(gateway.port)
}

fn check_node(node: &pb::Node) -> Result<(), String> {
    name("name", &node.name)?;
    if let Some(place) = node.groups.iter().position(|group| group.len() > GROUP_BYTES_MAX) {
        check_group(&format!("groups[{place}]"), &node.groups[place])?;
    }
    check_control_address(&node.control_address)?;
    check_interface(&node.interface)?;
    mac("mac", &node.mac)?;
    check_metadata(&node.metadata)
}

/// Checks the name of an object.
pub(super) fn name<'a>(field: &str, name: &'a str) -> Result<&'a str, String> {
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(name),
        0 => Err(format!("{field}: must not be empty")),
        length => Err(format!("{field}: {length} bytes are too long, at most {NAME_BYTES_MAX}")),
    }
}

fn check_ranges(field: &str, ranges: &[String]) -> Result<(), String> {
    let wrong = ranges.iter().position(|range| !is_range(range));
    let Some(place) = wrong else { return Ok(()) };
    Err(format!("{field}[{place}]: {} is not an address range like \"10.0.0.0/8\"", quoted(&ranges[place])))
}

fn is_range(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let (Ok(address), Ok(bits)) = (address.parse::<IpAddr>(), bits.parse::<u8>()) else { return false };
    bits <= if address.is_ipv4() { 32 } else { 128 }
}

fn check_port(port: u32) -> Result<(), String> {
    match u16::try_from(port) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("port: {port} is not a port, at most {}", u16::MAX)),
    }
}

fn check_control_address(address: &str) -> Result<(), String> {
    let named = |(host, port): (&str, &str)| {
        let in_names = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        (1..=HOST_BYTES_MAX).contains(&host.len())
            && host.bytes().all(in_names)
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    let is_address = address.is_empty()
        || address.parse::<IpAddr>().is_ok()
        || address.parse::<SocketAddr>().is_ok_and(|address| address.port() > 0)
        || address.rsplit_once(':').is_some_and(named);
    if is_address {
        return Ok(());
    }
    let shown = quoted(address);
    Err(format!("control_address: {shown} is neither an address nor HOST:PORT, like \"10.0.0.1:50051\""))
}

/// What Linux takes for the name of an interface.
fn check_interface(name: &str) -> Result<(), String> {
    let taken = name.len() <= INTERFACE_BYTES_MAX
        && !matches!(name, "." | "..")
        && !name.bytes().any(|byte| byte == b'/' || byte == b':' || byte <= b' ' || byte == 0x7f);
    if taken {
        return Ok(());
    }
    Err(format!(
        "interface: {} is not an interface's name: at most {INTERFACE_BYTES_MAX} bytes without blanks, slash and colon",
        quoted(name)
    ))
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), String> {
    if metadata.contains_key("") {
        return Err("metadata: \"\" is not a name, give one of at least one byte".to_owned());
    }
    let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > METADATA_BYTES_MAX {
        return Err(format!("metadata: {bytes} bytes are too many, at most {METADATA_BYTES_MAX}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pb::object::Object as Kind;

    fn vpc() -> pb::Vpc {
        pb::Vpc {
            name: "v".into(),
            vni: 7,
            cidrs: vec!["10.0.0.0/8".into(), "fd00::/64".into()],
            gateways: vec!["10.0.0.1".into()],
            metadata: [("owner".into(), "a".into()), ("env".into(), "b".into())].into(),
            ..pb::Vpc::default()
        }
    }

    fn cluster() -> pb::GatewayCluster {
        let gateway = pb::Gateway { ip: "10.0.0.1".into(), mac: String::new(), vni: 3, port: 4789 };
        pb::GatewayCluster {
            name: "g".into(),
            gateways: vec![gateway],
            vnis: vec![7],
            ip_ranges: vec!["10.0.0.0/8".into()],
            port: 65_535,
            overlay: pb::Overlay::Geneve.into(),
            vni: 2,
            metadata: BTreeMap::new(),
        }
    }

    fn node() -> pb::Node {
        pb::Node {
            name: "n".into(),
            control_address: "10.0.0.1:50051".into(),
            interface: "eth0.100".into(),
            mac: "02:00:00:00:00:01".into(),
            ..pb::Node::default()
        }
    }

    fn put_of(kind: Kind) -> Result<PutObject, String> {
        put(pb::Object { object: Some(kind), revision: 9 })
    }

    /// They are on disk. Fields are only ever added.
    #[test]
    fn the_bytes_of_objects_are_pinned() {
        let vpc = put_of(Kind::Vpc(vpc())).unwrap();
        assert_eq!((vpc.kind, &vpc.name[..], vpc.alone), (1, &b"v"[..], true));
        let golden = b"\x0a\x3c\x0a\x01v\x10\x07\x1a\x0a10.0.0.0/8\x1a\x09fd00::/64\x2a\x0810.0.0.1\
            \x32\x08\x0a\x03env\x12\x01b\x32\x0a\x0a\x05owner\x12\x01a";
        assert_eq!(&vpc.body[..], golden);
        let cluster = put_of(Kind::GatewayCluster(cluster())).unwrap();
        let golden = b"\x12\x2b\x0a\x01g\x12\x0f\x0a\x0810.0.0.1\x18\x03\x20\xb5\x25\x1a\x01\x07\
            \x22\x0a10.0.0.0/8\x28\xff\xff\x03\x30\x02\x38\x02";
        assert_eq!(&cluster.body[..], golden);
        let node = put_of(Kind::Node(node())).unwrap();
        let golden = b"\x1a\x30\x0a\x01n\x22\x0e10.0.0.1:50051\x2a\x08eth0.100\x32\x1102:00:00:00:00:01";
        assert_eq!(&node.body[..], golden);
    }

    /// What the version before stored is shown, with the new fields empty.
    #[test]
    fn objects_of_the_version_before_are_read() {
        let old = b"\x1a\x0b\x0a\x01n\x12\x01a\x1a\x03r-7";
        let object = pb::Object::decode(&old[..]).unwrap().object;
        let node = pb::Node {
            name: "n".into(),
            address: "a".into(),
            groups: vec!["r-7".into()],
            ..Default::default()
        };
        assert_eq!(object, Some(Kind::Node(node)));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field_and_value() {
        let gateway =
            |gateway| Kind::GatewayCluster(pb::GatewayCluster { gateways: vec![gateway], ..cluster() });
        let metadata = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
        for (wrong, field, value) in [
            (Kind::Vpc(pb::Vpc { name: String::new(), ..vpc() }), "vpc.name", "empty"),
            (Kind::Vpc(pb::Vpc { name: "v".repeat(256), ..vpc() }), "vpc.name", "256"),
            (Kind::Vpc(pb::Vpc { vni: 1 << 24, ..vpc() }), "vpc.vni", "16777216"),
            (
                Kind::Vpc(pb::Vpc { cidrs: vec!["10.0.0.0/33".into()], ..vpc() }),
                "vpc.cidrs[0]",
                "10.0.0.0/33",
            ),
            (Kind::Vpc(pb::Vpc { gateways: vec!["x".into()], ..vpc() }), "vpc.gateways[0]", "x"),
            (Kind::Vpc(pb::Vpc { metadata: metadata("", "x"), ..vpc() }), "vpc.metadata", "name"),
            (
                Kind::Node(pb::Node { metadata: metadata("k", &"v".repeat(4096)), ..node() }),
                "node.metadata",
                "4097",
            ),
            (
                Kind::GatewayCluster(pb::GatewayCluster { ip_ranges: vec!["10.0.0.1".into()], ..cluster() }),
                "gateway_cluster.ip_ranges[0]",
                "10.0.0.1",
            ),
            (
                Kind::GatewayCluster(pb::GatewayCluster { port: 65_536, ..cluster() }),
                "gateway_cluster.port",
                "65536",
            ),
            (
                Kind::GatewayCluster(pb::GatewayCluster { overlay: 9, ..cluster() }),
                "gateway_cluster.overlay",
                "9",
            ),
            (
                gateway(pb::Gateway { ip: "10.0.0.1".into(), port: 70_000, ..Default::default() }),
                "gateway_cluster.gateways[0].port",
                "70000",
            ),
            (
                gateway(pb::Gateway { ip: "10.0.0.1".into(), mac: "1".into(), ..Default::default() }),
                "gateway_cluster.gateways[0].mac",
                "1",
            ),
            (
                Kind::Node(pb::Node { control_address: "a b:1".into(), ..node() }),
                "node.control_address",
                "a b:1",
            ),
            (
                Kind::Node(pb::Node { control_address: "host".into(), ..node() }),
                "node.control_address",
                "host",
            ),
            (
                Kind::Node(pb::Node { control_address: "host:0".into(), ..node() }),
                "node.control_address",
                "host:0",
            ),
            (Kind::Node(pb::Node { interface: "eth/0".into(), ..node() }), "node.interface", "eth/0"),
            (Kind::Node(pb::Node { interface: "x".repeat(16), ..node() }), "node.interface", "xxxx"),
            (Kind::Node(pb::Node { mac: "00:00:00:00:00:00".into(), ..node() }), "node.mac", "00:00"),
            (Kind::Node(pb::Node { groups: vec!["g".repeat(256)], ..node() }), "node.groups[0]", "256"),
        ] {
            let problem = put_of(wrong).unwrap_err();
            assert!(problem.starts_with(&format!("{field}: ")) && problem.contains(value), "{problem}");
        }
        for address in ["", "10.0.0.1", "fd00::1", "[fd00::1]:1", "host-7.example:50051"] {
            put_of(Kind::Node(pb::Node { control_address: address.into(), ..node() })).unwrap();
        }
    }
}
