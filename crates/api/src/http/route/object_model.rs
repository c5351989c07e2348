//! The bodies and parameters of VPCs, gateway clusters and nodes, from which the OpenAPI document is generated.

use super::model::unsigned;
use crate::http::lists;
use crate::http::problem::Problem;
use crate::time;
use quoin_core::route as core;
use quoin_proto::quoin::route::v1 as pb;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// Maximum elements of each list of an object.
const ELEMENTS_MAX: usize = 10_000;

/// What a VPC has. An absent field is empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct VpcFields {
    /// Its network; 0 for none. Each network has one VPC.
    #[schema(maximum = 16_777_215)]
    vni: u32,
    /// Its address ranges.
    #[serde(deserialize_with = "lists::values::<_, _, ELEMENTS_MAX>")]
    #[schema(example = json!(["10.0.0.0/8"]))]
    cidrs: Vec<String>,
    /// Free text.
    segment: String,
    /// The addresses of its gateways.
    #[serde(deserialize_with = "lists::values::<_, _, ELEMENTS_MAX>")]
    gateways: Vec<String>,
    /// Free texts by name, at most 4,096 bytes together.
    #[serde(deserialize_with = "lists::texts")]
    metadata: BTreeMap<String, String>,
}

/// A virtual private cloud.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Vpc {
    name: String,
    #[serde(flatten)]
    fields: VpcFields,
    /// The revision of its last write.
    revision: u64,
}

/// How packets are wrapped on their way between hosts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Overlay {
    Vxlan,
    Geneve,
    Gre,
}

/// A gateway.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Gateway {
    /// IPv4 or IPv6.
    ip: String,
    /// Its hardware address.
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    /// Instead of the cluster's, if not 0.
    vni: u32,
    /// Instead of the cluster's, if not 0.
    port: u32,
}

/// What a gateway cluster has. An absent field is empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GatewayClusterFields {
    #[serde(deserialize_with = "lists::at_most::<_, _, ELEMENTS_MAX>")]
    gateways: Vec<Gateway>,
    /// The networks that it serves.
    #[serde(deserialize_with = "lists::values::<_, _, ELEMENTS_MAX>")]
    vnis: Vec<u32>,
    /// The address ranges behind it.
    #[serde(deserialize_with = "lists::values::<_, _, ELEMENTS_MAX>")]
    ip_ranges: Vec<String>,
    /// The port of its gateways; 0 for the overlay's own.
    #[schema(maximum = 65_535)]
    port: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlay: Option<Overlay>,
    /// The network in which its gateways are reached.
    #[schema(maximum = 16_777_215)]
    vni: u32,
    /// Free texts by name, at most 4,096 bytes together.
    #[serde(deserialize_with = "lists::texts")]
    metadata: BTreeMap<String, String>,
}

/// Gateways that share load.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct GatewayCluster {
    name: String,
    #[serde(flatten)]
    fields: GatewayClusterFields,
    /// The revision of its last write.
    revision: u64,
}

/// What a node has. An absent field is empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NodeFields {
    /// Free text.
    address: String,
    /// The groups that its agent watches.
    #[serde(deserialize_with = "lists::values::<_, _, ELEMENTS_MAX>")]
    groups: Vec<String>,
    /// Where its agent is controlled: an address, with or without a port, or HOST:PORT.
    #[schema(example = "10.0.0.1:50051")]
    control_address: String,
    /// The name of its interface.
    interface: String,
    /// The hardware address of that interface.
    mac: String,
    /// Free texts by name, at most 4,096 bytes together.
    #[serde(deserialize_with = "lists::texts")]
    metadata: BTreeMap<String, String>,
}

/// A host with an agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Node {
    name: String,
    #[serde(flatten)]
    fields: NodeFields,
    /// The revision of its last write.
    revision: u64,
    /// Absent if it never sent a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<NodeStatus>,
}

/// Whether a node is alive.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct NodeStatus {
    alive: bool,
    /// Since when (RFC 3339), by the cluster's time.
    #[schema(format = DateTime)]
    since: String,
    /// The newest revision that it reported to have put into effect.
    applied_revision: u64,
}

impl NodeStatus {
    pub(super) fn of(node: &core::Node) -> Self {
        Self { alive: node.alive, since: time::format(node.since.0), applied_revision: node.applied_revision }
    }
}

/// A report that a node is alive.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Heartbeat {
    /// How long it counts as alive, in milliseconds, by default 30,000.
    #[schema(minimum = 100, maximum = 86_400_000)]
    pub(super) ttl_ms: Option<u64>,
    /// The newest revision that it has put into effect.
    pub(super) applied_revision: u64,
}

/// The newest revision after a write.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Newest {
    pub(super) revision: u64,
}

/// A page of VPCs, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VpcPage {
    pub(super) vpcs: Vec<Vpc>,
    /// The `after` of the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// A page of gateway clusters, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GatewayClusterPage {
    pub(super) gateway_clusters: Vec<GatewayCluster>,
    /// The `after` of the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// A page of nodes, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NodePage {
    pub(super) nodes: Vec<Node>,
    /// The `after` of the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// A page of objects.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct ObjectList {
    /// The `next` of the previous page.
    pub(super) after: Option<String>,
    /// The page size, by default 1,000. A page also ends at about 2 MiB.
    #[param(minimum = 1, maximum = 10_000)]
    pub(super) limit: Option<u32>,
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
}

/// A page of VPCs, or the one of a network.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct VpcList {
    /// Only the VPC of this network.
    #[param(minimum = 1, maximum = 16_777_215)]
    pub(super) vni: Option<u32>,
    /// The `next` of the previous page.
    pub(super) after: Option<String>,
    /// The page size, by default 1,000. A page also ends at about 2 MiB.
    #[param(minimum = 1, maximum = 10_000)]
    pub(super) limit: Option<u32>,
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
}

/// How fresh a read of an object is.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct ObjectAt {
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
}

/// A kind of object: its form here and on the wire.
pub(super) trait Shown: Sized {
    type Fields;
    /// The field's prefix in errors of the wire, with the dot.
    const PREFIX: &'static str;
    const KIND: pb::ObjectKind;
    fn of(object: pb::Object) -> Result<Self, Problem>;
    fn wire(name: String, fields: Self::Fields) -> pb::object::Object;
}

fn other_kind() -> Problem {
    Problem::from(crate::error::Error::fault("an object has another kind than its place"))
}

impl Shown for Vpc {
    type Fields = VpcFields;
    const PREFIX: &'static str = "vpc.";
    const KIND: pb::ObjectKind = pb::ObjectKind::Vpc;

    fn of(object: pb::Object) -> Result<Self, Problem> {
        let Some(pb::object::Object::Vpc(vpc)) = object.object else { return Err(other_kind()) };
        let pb::Vpc { name, vni, cidrs, segment, gateways, metadata } = vpc;
        let fields = VpcFields { vni, cidrs, segment, gateways, metadata };
        Ok(Self { name, fields, revision: unsigned(object.revision) })
    }

    fn wire(name: String, fields: VpcFields) -> pb::object::Object {
        let VpcFields { vni, cidrs, segment, gateways, metadata } = fields;
        pb::object::Object::Vpc(pb::Vpc { name, vni, cidrs, segment, gateways, metadata })
    }
}

impl Shown for GatewayCluster {
    type Fields = GatewayClusterFields;
    const PREFIX: &'static str = "gateway_cluster.";
    const KIND: pb::ObjectKind = pb::ObjectKind::GatewayCluster;

    fn of(object: pb::Object) -> Result<Self, Problem> {
        let Some(pb::object::Object::GatewayCluster(cluster)) = object.object else {
            return Err(other_kind());
        };
        let overlay = match cluster.overlay() {
            pb::Overlay::Unspecified => None,
            pb::Overlay::Vxlan => Some(Overlay::Vxlan),
            pb::Overlay::Geneve => Some(Overlay::Geneve),
            pb::Overlay::Gre => Some(Overlay::Gre),
        };
        let gateway = |pb::Gateway { ip, mac, vni, port }| Gateway { ip, mac, vni, port };
        let fields = GatewayClusterFields {
            gateways: cluster.gateways.into_iter().map(gateway).collect(),
            vnis: cluster.vnis,
            ip_ranges: cluster.ip_ranges,
            port: cluster.port,
            overlay,
            vni: cluster.vni,
            metadata: cluster.metadata,
        };
        Ok(Self { name: cluster.name, fields, revision: unsigned(object.revision) })
    }

    fn wire(name: String, fields: GatewayClusterFields) -> pb::object::Object {
        let GatewayClusterFields { gateways, vnis, ip_ranges, port, overlay, vni, metadata } = fields;
        let overlay = match overlay {
            None => pb::Overlay::Unspecified,
            Some(Overlay::Vxlan) => pb::Overlay::Vxlan,
            Some(Overlay::Geneve) => pb::Overlay::Geneve,
            Some(Overlay::Gre) => pb::Overlay::Gre,
        };
        let gateway = |Gateway { ip, mac, vni, port }| pb::Gateway { ip, mac, vni, port };
        let gateways = gateways.into_iter().map(gateway).collect();
        let overlay = overlay.into();
        let cluster = pb::GatewayCluster { name, gateways, vnis, ip_ranges, port, overlay, vni, metadata };
        pb::object::Object::GatewayCluster(cluster)
    }
}

impl Shown for Node {
    type Fields = NodeFields;
    const PREFIX: &'static str = "node.";
    const KIND: pb::ObjectKind = pb::ObjectKind::Node;

    fn of(object: pb::Object) -> Result<Self, Problem> {
        let Some(pb::object::Object::Node(node)) = object.object else { return Err(other_kind()) };
        let pb::Node { name, address, groups, control_address, interface, mac, metadata } = node;
        let fields = NodeFields { address, groups, control_address, interface, mac, metadata };
        Ok(Self { name, fields, revision: unsigned(object.revision), status: None })
    }

    fn wire(name: String, fields: NodeFields) -> pb::object::Object {
        let NodeFields { address, groups, control_address, interface, mac, metadata } = fields;
        pb::object::Object::Node(pb::Node {
            name,
            address,
            groups,
            control_address,
            interface,
            mac,
            metadata,
        })
    }
}

impl Node {
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
