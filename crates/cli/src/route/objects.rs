//! `quoin route vpc`, `gateways` and `node`: the objects around rules.

use super::client::client;
use crate::connection::{Connection, Read};
use crate::outcome::Write as _;
use crate::output;
use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::object::Object as Kind;
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;

/// Objects per page of a listing.
const PAGE: u32 = 1_000;

/// Commands on VPCs.
#[derive(Subcommand)]
pub(crate) enum Vpcs {
    /// Write a VPC: create it, or replace it as a whole
    Put(PutVpc),
    /// Show a VPC, by its name or its network
    Get(GetVpc),
    #[command(flatten)]
    Any(Any),
}

/// Commands on gateway clusters.
#[derive(Subcommand)]
pub(crate) enum Gateways {
    /// Write a gateway cluster: create it, or replace it as a whole
    Put(PutGateways),
    /// Show a gateway cluster
    Get(Named),
    #[command(flatten)]
    Any(Any),
}

/// Commands on nodes.
#[derive(Subcommand)]
pub(crate) enum Nodes {
    /// Write a node: create it, or replace it as a whole
    Put(PutNode),
    /// Show a node
    Get(Named),
    #[command(flatten)]
    Any(Any),
}

/// What all kinds have.
#[derive(Subcommand)]
pub(crate) enum Any {
    /// List all, by name
    List {
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        connection: Connection,
    },
    /// Delete one; that it does not exist is not an error
    Delete {
        /// Its name
        name: String,
        #[command(flatten)]
        connection: Connection,
    },
}

/// An object by its name.
#[derive(Args)]
pub(crate) struct Named {
    /// Its name
    name: String,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// A VPC by its name or its network.
#[derive(Args)]
pub(crate) struct GetVpc {
    /// Its name
    #[arg(required_unless_present = "vni", conflicts_with = "vni")]
    name: Option<String>,
    /// Its network
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    vni: Option<u32>,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    connection: Connection,
}

/// What all kinds have to be written with.
#[derive(Args)]
pub(crate) struct Common {
    /// Its name
    name: String,
    /// Texts to keep with it
    #[arg(long = "meta", value_name = "NAME=VALUE", value_parser = parse_text)]
    metadata: Vec<(String, String)>,
    #[command(flatten)]
    connection: Connection,
}

/// A VPC to write.
#[derive(Args)]
pub(crate) struct PutVpc {
    #[command(flatten)]
    common: Common,
    /// Its network; 0 for none
    #[arg(long, default_value_t = 0)]
    vni: u32,
    /// Its address ranges, e.g. 10.0.0.0/8
    #[arg(long = "cidr", value_name = "CIDR,...", value_delimiter = ',')]
    cidrs: Vec<String>,
    /// Free text
    #[arg(long, default_value = "", hide_default_value = true)]
    segment: String,
    /// The addresses of its gateways
    #[arg(long = "gateway", value_name = "IP,...", value_delimiter = ',')]
    gateways: Vec<String>,
}

/// A gateway cluster to write.
#[derive(Args)]
pub(crate) struct PutGateways {
    #[command(flatten)]
    common: Common,
    /// Its gateways, each with its MAC address if it is known
    #[arg(long = "gateway", value_name = "IP[=MAC],...", value_delimiter = ',')]
    gateways: Vec<String>,
    /// The networks that it serves
    #[arg(long = "serves", value_name = "VNI,...", value_delimiter = ',')]
    vnis: Vec<u32>,
    /// The address ranges behind it, e.g. 10.0.0.0/8
    #[arg(long = "ip-range", value_name = "CIDR,...", value_delimiter = ',')]
    ip_ranges: Vec<String>,
    /// The port of its gateways; 0 for the overlay's own
    #[arg(long, default_value_t = 0)]
    port: u32,
    /// How packets to it are wrapped
    #[arg(long, value_enum)]
    overlay: Option<Overlay>,
    /// The network in which its gateways are reached
    #[arg(long, default_value_t = 0)]
    vni: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Overlay {
    Vxlan,
    Geneve,
    Gre,
}

/// A node to write.
#[derive(Args)]
pub(crate) struct PutNode {
    #[command(flatten)]
    common: Common,
    /// Free text
    #[arg(long, default_value = "", hide_default_value = true)]
    address: String,
    /// The groups that its agent watches
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    /// Where its agent is controlled, e.g. 10.0.0.1:50051
    #[arg(long, default_value = "", hide_default_value = true)]
    control_address: String,
    /// The name of its interface
    #[arg(long, default_value = "", hide_default_value = true)]
    interface: String,
    /// The MAC address of that interface
    #[arg(long, default_value = "", hide_default_value = true)]
    mac: String,
}

fn parse_text(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(super) async fn vpcs(vpcs: Vpcs) -> Result<ExitCode> {
    match vpcs {
        Vpcs::Put(PutVpc { common, vni, cidrs, segment, gateways }) => {
            put(common, |name, metadata| Kind::Vpc(pb::Vpc { name, vni, cidrs, segment, gateways, metadata }))
                .await
        }
        Vpcs::Get(GetVpc { name, vni, read, connection }) => {
            let object = name.map(|name| pb::ObjectName { kind: pb::ObjectKind::Vpc.into(), name });
            get(object, vni.unwrap_or(0), read, &connection).await
        }
        Vpcs::Any(any) => of_any(pb::ObjectKind::Vpc, any).await,
    }
}

pub(super) async fn gateways(gateways: Gateways) -> Result<ExitCode> {
    let kind = pb::ObjectKind::GatewayCluster;
    match gateways {
        Gateways::Put(request) => {
            let PutGateways { common, gateways, vnis, ip_ranges, port, overlay, vni } = request;
            let gateway = |text: &String| {
                let (ip, mac) = text.split_once('=').unwrap_or((text, ""));
                pb::Gateway { ip: ip.to_owned(), mac: mac.to_owned(), ..pb::Gateway::default() }
            };
            let gateways = gateways.iter().map(gateway).collect();
            let overlay = match overlay {
                None => pb::Overlay::Unspecified,
                Some(Overlay::Vxlan) => pb::Overlay::Vxlan,
                Some(Overlay::Geneve) => pb::Overlay::Geneve,
                Some(Overlay::Gre) => pb::Overlay::Gre,
            };
            let overlay = overlay.into();
            put(common, |name, metadata| {
                let cluster =
                    pb::GatewayCluster { name, gateways, vnis, ip_ranges, port, overlay, vni, metadata };
                Kind::GatewayCluster(cluster)
            })
            .await
        }
        Gateways::Get(Named { name, read, connection }) => {
            get(Some(pb::ObjectName { kind: kind.into(), name }), 0, read, &connection).await
        }
        Gateways::Any(any) => of_any(kind, any).await,
    }
}

pub(super) async fn nodes(nodes: Nodes) -> Result<ExitCode> {
    let kind = pb::ObjectKind::Node;
    match nodes {
        Nodes::Put(PutNode { common, address, groups, control_address, interface, mac }) => {
            put(common, |name, metadata| {
                let node = pb::Node { name, address, groups, control_address, interface, mac, metadata };
                Kind::Node(node)
            })
            .await
        }
        Nodes::Get(Named { name, read, connection }) => {
            get(Some(pb::ObjectName { kind: kind.into(), name }), 0, read, &connection).await
        }
        Nodes::Any(any) => of_any(kind, any).await,
    }
}

type Texts = std::collections::BTreeMap<String, String>;

async fn put(common: Common, object: impl FnOnce(String, Texts) -> Kind) -> Result<ExitCode> {
    let Common { name, metadata, connection } = common;
    let object = Some(pb::Object { object: Some(object(name, metadata.into_iter().collect())), revision: 0 });
    let mut routes = client(connection.any().await?);
    let reply = routes.put_object(pb::PutObjectRequest { object }).await.or_send_again()?.into_inner();
    let revision = reply.header.map_or(0, |header| header.revision);
    connection.say(&json!({ "revision": revision }), &format!("written at revision {revision}"))
}

async fn get(
    object: Option<pb::ObjectName>,
    vpc_vni: u32,
    read: Read,
    connection: &Connection,
) -> Result<ExitCode> {
    let mut routes = client(connection.any().await?);
    let request = pb::GetObjectRequest { object, vpc_vni, consistency: read.consistency() };
    let found = routes.get_object(request).await?.into_inner().object.context("the answer has no object")?;
    let shown = shown(&found);
    if connection.json {
        output::json(&as_json(shown))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<_> = shown.iter().map(|(name, value)| vec![(*name).to_owned(), text(value)]).collect();
    output::table(&["field", "value"], &rows)?;
    Ok(ExitCode::SUCCESS)
}

async fn of_any(kind: pb::ObjectKind, any: Any) -> Result<ExitCode> {
    match any {
        Any::List { read, connection } => list(kind, read, &connection).await,
        Any::Delete { name, connection } => {
            let object = Some(pb::ObjectName { kind: kind.into(), name });
            let mut routes = client(connection.any().await?);
            let deleted = routes
                .delete_object(pb::DeleteObjectRequest { object })
                .await
                .or_send_again()?
                .into_inner()
                .deleted;
            let text = if deleted { "deleted" } else { "there was none" };
            connection.say(&json!({ "deleted": deleted }), text)
        }
    }
}

async fn list(kind: pb::ObjectKind, read: Read, connection: &Connection) -> Result<ExitCode> {
    let mut routes = client(connection.any().await?);
    let (mut objects, mut after): (Vec<Fields>, _) = (Vec::new(), String::new());
    loop {
        let consistency = read.consistency();
        let request = pb::ListObjectsRequest { kind: kind.into(), limit: PAGE, after, consistency };
        let page = routes.list_objects(request).await?.into_inner();
        objects.extend(page.objects.iter().map(shown));
        // The name is the first field.
        let last = objects.last().and_then(|fields| fields.first()?.1.as_str());
        after = last.unwrap_or_default().to_owned();
        if !page.more {
            break;
        }
    }
    if connection.json {
        output::json(&objects.into_iter().map(as_json).collect::<Value>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(first) = objects.first() else {
        writeln!(std::io::stderr(), "none")?;
        return Ok(ExitCode::SUCCESS);
    };
    let head: Vec<String> = first.iter().map(|(name, _)| name.replace('_', " ")).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let row = |fields: &Fields| fields.iter().map(|(_, value)| text(value)).collect();
    let rows: Vec<Vec<String>> = objects.iter().map(row).collect();
    output::table(&head, &rows)?;
    Ok(ExitCode::SUCCESS)
}

type Fields = Vec<(&'static str, Value)>;

/// An object's fields, in the order of the wire.
fn shown(object: &pb::Object) -> Fields {
    let mut fields: Fields = match object.object.clone() {
        Some(Kind::Vpc(vpc)) => vec![
            ("name", json!(vpc.name)),
            ("vni", json!(vpc.vni)),
            ("cidrs", json!(vpc.cidrs)),
            ("segment", json!(vpc.segment)),
            ("gateways", json!(vpc.gateways)),
            ("metadata", json!(vpc.metadata)),
        ],
        Some(Kind::GatewayCluster(cluster)) => {
            let overlay = cluster.overlay().as_str_name().trim_start_matches("OVERLAY_").to_lowercase();
            let gateways: Vec<_> = cluster.gateways.iter().map(gateway).collect();
            vec![
                ("name", json!(cluster.name)),
                ("gateways", json!(gateways)),
                ("vnis", json!(cluster.vnis)),
                ("ip_ranges", json!(cluster.ip_ranges)),
                ("port", json!(cluster.port)),
                ("overlay", json!(overlay)),
                ("vni", json!(cluster.vni)),
                ("metadata", json!(cluster.metadata)),
            ]
        }
        Some(Kind::Node(node)) => vec![
            ("name", json!(node.name)),
            ("address", json!(node.address)),
            ("groups", json!(node.groups)),
            ("control_address", json!(node.control_address)),
            ("interface", json!(node.interface)),
            ("mac", json!(node.mac)),
            ("metadata", json!(node.metadata)),
        ],
        None => Fields::new(),
    };
    fields.push(("revision", json!(object.revision)));
    fields
}

fn as_json(fields: Fields) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// A gateway as `put` takes it, with its own network and port if it has them.
fn gateway(gateway: &pb::Gateway) -> String {
    let mut text = gateway.ip.clone();
    if !gateway.mac.is_empty() {
        text += &format!("={}", gateway.mac);
    }
    for (name, own) in [("vni", gateway.vni), ("port", gateway.port)] {
        if own != 0 {
            text += &format!(" {name} {own}");
        }
    }
    text
}

fn text(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(text_of).collect::<Vec<_>>().join(","),
        Value::Object(texts) => {
            let texts = texts.iter().map(|(name, value)| format!("{name}={}", text_of(value)));
            texts.collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    };
    if text.is_empty() { "-".to_owned() } else { text }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
