//! Rules in files and in JSON: the fields of `quoin.route.v1`, without the empty ones.

use anyhow::{Context, Result};
use quoin_proto::quoin::route::v1 as pb;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A rule in a file. User data that is not UTF-8 is in `user_data_hex`; so are, in CSV, texts that it would cut: those with
/// blanks at their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleText {
    pub(super) vni: u32,
    pub(super) ip: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    host_ip: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    host_mac: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    group: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    revision: i64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    user_data: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    user_data_hex: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    group_hex: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl RuleText {
    pub(super) fn of(rule: &pb::Rule) -> Self {
        let text = std::str::from_utf8(&rule.user_data);
        Self {
            vni: rule.vni,
            ip: rule.ip.clone(),
            mac: rule.mac.clone(),
            host_ip: rule.host_ip.clone(),
            host_mac: rule.host_mac.clone(),
            group: rule.group.clone(),
            revision: rule.revision,
            user_data: text.map(str::to_owned).unwrap_or_default(),
            user_data_hex: if text.is_err() { hex(&rule.user_data) } else { String::new() },
            group_hex: String::new(),
        }
    }

    pub(super) fn json(&self) -> Value {
        serde_json::to_value(self).expect("strings and numbers are JSON")
    }

    /// The rule as the wire has it.
    ///
    /// # Errors
    /// `user_data_hex` or `group_hex` is not hexadecimal, or the latter not of a text.
    pub(super) fn into_rule(self) -> Result<pb::Rule> {
        let user_data = bytes("user_data_hex", self.user_data, &self.user_data_hex)?.into();
        let group = bytes("group_hex", self.group, &self.group_hex)?;
        let group = String::from_utf8(group)
            .with_context(|| format!("group_hex: {:?} is not of UTF-8", self.group_hex))?;
        Ok(pb::Rule {
            vni: self.vni,
            ip: self.ip,
            mac: self.mac,
            host_ip: self.host_ip,
            host_mac: self.host_mac,
            group,
            revision: self.revision,
            user_data,
        })
    }
}

/// A text's bytes, or those that `field` has in hexadecimal.
fn bytes(field: &str, text: String, hexadecimal: &str) -> Result<Vec<u8>> {
    match hexadecimal {
        "" => Ok(text.into()),
        text => unhex(text).with_context(|| format!("{field}: {text:?} is not hexadecimal")),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

/// A rule's key in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyText {
    vni: u32,
    ip: String,
}

impl From<KeyText> for pb::RuleKey {
    fn from(KeyText { vni, ip }: KeyText) -> Self {
        Self { vni, ip }
    }
}

/// A change, as JSON.
pub(super) fn event_json(event: &pb::Event) -> Value {
    let revision = event.revision;
    match &event.change {
        Some(pb::event::Change::Put(rule)) => {
            json!({ "revision": revision, "put": RuleText::of(rule).json() })
        }
        Some(pb::event::Change::Deleted(key)) => {
            json!({ "revision": revision, "delete": { "vni": key.vni, "ip": key.ip } })
        }
        Some(pb::event::Change::Node(node)) => {
            json!({ "revision": revision, "node": { "name": node.name, "alive": node.alive, "since_ms": node.since_ms } })
        }
        Some(pb::event::Change::DeletedNode(name)) => json!({ "revision": revision, "delete_node": name }),
        Some(other) => json!({ "revision": revision, "change": format!("{other:?}") }),
        None => json!({ "revision": revision }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_survives_the_round_trip_even_with_bytes_that_are_not_text() {
        for user_data in [&b"text"[..], &[0xff, 0x00, 0x12], b""] {
            let rule = pb::Rule {
                vni: 1,
                ip: "::1".into(),
                user_data: user_data.to_vec().into(),
                ..pb::Rule::default()
            };
            let line = RuleText::of(&rule).json().to_string();
            let back: RuleText = serde_json::from_str(&line).unwrap();
            assert_eq!(back.into_rule().unwrap(), rule, "{line}");
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        let error = serde_json::from_str::<RuleText>(r#"{"vni":1,"ip":"::1","mak":"x"}"#).unwrap_err();
        assert!(error.to_string().contains("mak"), "{error}");
        let odd = RuleText { user_data_hex: "abc".into(), ..RuleText::default() };
        assert!(odd.into_rule().unwrap_err().to_string().contains("abc"));
    }
}
