//! The bodies and parameters of requests and answers, from which the OpenAPI document is generated.
//!
//! A rule has the fields of a line of `quoin route load`, the empty ones left out.

use crate::grpc::route::lookup::LOOKUPS_MAX;
use crate::grpc::route::translate::quoted;
use crate::grpc::route::write::RULES_MAX;
use crate::http::lists;
use crate::http::problem::Problem;
use quoin_proto::quoin::route::v1 as pb;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Where to send the packets for an address in a virtual network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct RoutingRule {
    /// The virtual network.
    #[schema(maximum = 16_777_215)]
    pub(super) vni: u32,
    /// The address in it, IPv4 or IPv6.
    #[schema(example = "10.0.0.1")]
    pub(super) ip: String,
    #[serde(flatten)]
    pub(super) target: RoutingTarget,
    /// The revision of its last write.
    pub(super) revision: u64,
}

/// What a rule says about its address. An absent field is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RoutingTarget {
    /// The hardware address of `ip`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(example = "02:00:00:00:00:01")]
    pub(super) mac: String,
    /// The host that `ip` is behind, IPv4 or IPv6.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(example = "192.168.0.1")]
    pub(super) host_ip: String,
    /// The host's hardware address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) host_mac: String,
    /// The group that the rule belongs to, at most 255 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(example = "rack-7")]
    pub(super) group: String,
    /// Free text, at most 64 KiB.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) user_data: String,
    /// Instead of `user_data`, where it is not text: its bytes in hexadecimal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) user_data_hex: String,
}

impl RoutingTarget {
    /// The rule with this key, as the wire has it.
    pub(super) fn into_rule(self, vni: u32, ip: String) -> Result<pb::Rule, Problem> {
        let user_data = match (self.user_data.is_empty(), self.user_data_hex.as_str()) {
            (_, "") => self.user_data.into_bytes(),
            (false, _) => {
                return Err(Problem::field("user_data_hex", "give user_data or user_data_hex, not both"));
            }
            (true, text) => unhex(text).ok_or_else(|| {
                let shown = quoted(text);
                Problem::field("user_data_hex", format!("{shown} is not hexadecimal, two digits a byte"))
            })?,
        };
        Ok(pb::Rule {
            vni,
            ip,
            mac: self.mac,
            host_ip: self.host_ip,
            host_mac: self.host_mac,
            group: self.group,
            revision: 0,
            user_data: user_data.into(),
        })
    }
}

impl RoutingRule {
    pub(super) fn of(rule: pb::Rule) -> Self {
        let (user_data, user_data_hex) = match String::from_utf8(rule.user_data.into()) {
            Ok(text) => (text, String::new()),
            Err(other) => (String::new(), hex(other.as_bytes())),
        };
        let target = RoutingTarget {
            mac: rule.mac,
            host_ip: rule.host_ip,
            host_mac: rule.host_mac,
            group: rule.group,
            user_data,
            user_data_hex,
        };
        Self { vni: rule.vni, ip: rule.ip, target, revision: unsigned(rule.revision) }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// A revision that the server gave.
pub(super) fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).expect("revisions are not negative")
}

/// A revision from a client.
pub(super) fn signed(revision: u64, field: &str) -> Result<i64, Problem> {
    i64::try_from(revision)
        .map_err(|_| Problem::field(field, format!("{revision} is too large for a revision")))
}

/// A page of rules, by network and address.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RulePage {
    /// The state that the page shows. Ask for the next one with `at_revision`, so that all pages show the same.
    pub(super) revision: u64,
    pub(super) rules: Vec<RoutingRule>,
    /// The `after` of the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "100/10.0.0.2")]
    pub(super) next: Option<String>,
}

/// A rule's key.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RoutingKey {
    #[schema(maximum = 16_777_215)]
    pub(super) vni: u32,
    #[schema(example = "10.0.0.1")]
    pub(super) ip: String,
}

/// A rule to write. An absent field is empty.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRoutingRule {
    #[schema(maximum = 16_777_215)]
    vni: u32,
    #[schema(example = "10.0.0.1")]
    ip: String,
    #[serde(default)]
    mac: String,
    #[serde(default)]
    host_ip: String,
    #[serde(default)]
    host_mac: String,
    #[serde(default)]
    group: String,
    #[serde(default)]
    user_data: String,
    #[serde(default)]
    user_data_hex: String,
    /// Ignored, so that a rule can be sent as it was read.
    #[serde(default, rename = "revision")]
    _revision: u64,
}

impl NewRoutingRule {
    pub(super) fn into_rule(self) -> Result<pb::Rule, Problem> {
        let Self { mac, host_ip, host_mac, group, user_data, user_data_hex, .. } = self;
        RoutingTarget { mac, host_ip, host_mac, group, user_data, user_data_hex }.into_rule(self.vni, self.ip)
    }
}

/// The revision at which a rule must be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleCondition {
    #[schema(maximum = 16_777_215)]
    pub(super) vni: u32,
    pub(super) ip: String,
    /// The revision of its last write; 0: it must not exist.
    pub(super) revision: u64,
}

/// What to do at one revision, if all conditions hold. Puts and deletes name each rule once, 20,000 together.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleBatch {
    #[serde(default, deserialize_with = "lists::at_most::<_, _, RULES_MAX>")]
    #[schema(max_items = 20_000)]
    pub(super) puts: Vec<NewRoutingRule>,
    #[serde(default, deserialize_with = "lists::at_most::<_, _, RULES_MAX>")]
    #[schema(max_items = 20_000)]
    pub(super) deletes: Vec<RoutingKey>,
    #[serde(default, deserialize_with = "lists::at_most::<_, _, RULES_MAX>")]
    #[schema(max_items = 20_000)]
    pub(super) conditions: Vec<RuleCondition>,
}

/// The result of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchDone {
    /// The revision of what was written and deleted; 0 if nothing was.
    pub(super) revision: u64,
    pub(super) written: u64,
    pub(super) deleted: u64,
}

/// Addresses to look up.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lookups {
    #[serde(deserialize_with = "lists::at_most::<_, _, LOOKUPS_MAX>")]
    #[schema(max_items = 10_000)]
    pub(super) lookups: Vec<RoutingKey>,
}

/// What was found, in the order of the lookups.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LookupAnswers {
    /// The newest revision when the request came; each answer shows the state then, or a newer one.
    pub(super) revision: u64,
    /// A rule, or null where there is none.
    pub(super) rules: Vec<Option<RoutingRule>>,
}

/// The result of a deletion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deleted {
    /// How many there were. Deleting what is not there is no error.
    pub(super) deleted: u64,
    /// The newest revision after it.
    pub(super) revision: u64,
}

/// Which state of a rule to read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct RuleAt {
    /// As of this revision, which must not be compacted or in the future; 0 for the newest.
    pub(super) at_revision: Option<u64>,
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
    /// Only with `local`: answer 503 if the replica is more log entries behind.
    pub(super) lag_entries_max: Option<u64>,
    /// Only with `local`: answer 503 if the replica was last up to date more milliseconds ago.
    pub(super) lag_ms_max: Option<u64>,
}

/// Which rules to delete; one of the two.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct AllOf {
    /// All rules of this group.
    pub(super) group: Option<String>,
    /// All rules of this network.
    pub(super) vni: Option<u32>,
}

/// Which rules to list: one of `group`, `vni`, `host_ip` and `mac` is required.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct RuleList {
    /// The rules of this group.
    pub(super) group: Option<String>,
    /// The rules of this network.
    #[param(maximum = 16_777_215)]
    pub(super) vni: Option<u32>,
    /// The rules with this `host_ip`. All rules are read to find them, 100,000 for a page: a page may have few rules, or
    /// none, though there are more.
    pub(super) host_ip: Option<String>,
    /// The rules with this `mac`, found in the same way.
    pub(super) mac: Option<String>,
    /// The `next` of the previous page.
    pub(super) after: Option<String>,
    /// The page size, by default 1,000; as CSV the number of rules, by default all. A JSON page also ends at about
    /// 4 MiB.
    #[param(minimum = 1)]
    pub(super) limit: Option<u32>,
    /// As of this revision, which must not be compacted or in the future; 0 for the newest.
    pub(super) at_revision: Option<u64>,
    /// Read this replica's state, which may be older than what was answered before.
    pub(super) local: bool,
    /// Only with `local`: answer 503 if the replica is more log entries behind.
    pub(super) lag_entries_max: Option<u64>,
    /// Only with `local`: answer 503 if the replica was last up to date more milliseconds ago.
    pub(super) lag_ms_max: Option<u64>,
}
