//! The most frequent answers of `quoin.route.v1`, encoded straight from records without a message in between;
//! the events of many watchers are encoded once. Field numbers are those of `route.proto`; the tests decode
//! with the generated code.

use super::text::{write_ip, write_mac};
use super::translate;
use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use quoin_core::route::{Changed, Rule, RuleKey, RuleRef};
use quoin_core::{Event, StoreError};
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::watch_response::Kind;

/// Fields of `WatchResponse`.
const KIND: u32 = 1;
const REVISION: u32 = 2;
const EVENTS: u32 = 3;
pub(super) const RULES: u32 = 4;
pub(super) const OBJECTS: u32 = 5;
pub(super) const NODES: u32 = 6;
const CLUSTER_ID: u32 = 7;
const REQUEST_ID: u32 = 8;
/// Fields of `GetResponse`.
const HEADER: u32 = 1;
const ANSWERS: u32 = 2;

/// Writes nested messages. An inner one is written to a buffer of its own first, so that its length is known.
#[derive(Default)]
pub(super) struct Encoder {
    /// The bytes so far.
    pub(super) out: Vec<u8>,
    scratch: Vec<u8>,
    rule: Vec<u8>,
}

impl Encoder {
    /// The bytes so far; the encoder is empty afterwards.
    pub(super) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.out).into()
    }

    /// Begins a `WatchResponse`.
    pub(super) fn watch_response(&mut self, kind: Kind, revision: u64) {
        self.out.clear();
        number(&mut self.out, KIND, kind as u64);
        number(&mut self.out, REVISION, revision);
    }

    /// Adds the cluster that the response's revision is of.
    pub(super) fn cluster(&mut self, cluster: u64) {
        number(&mut self.out, CLUSTER_ID, cluster);
    }

    /// Adds the change of the watch that the response answers.
    pub(super) fn request_id(&mut self, request_id: u64) {
        number(&mut self.out, REQUEST_ID, request_id);
    }

    /// Adds a rule as field `field`.
    pub(super) fn rule(&mut self, field: u32, rule: &RuleRef<'_>) {
        self.rule.clear();
        write_rule(&mut self.rule, rule);
        bytes(&mut self.out, field, &self.rule);
    }

    /// Adds any message as field `field`.
    pub(super) fn message(&mut self, field: u32, message: &impl Message) {
        encode_key(field, WireType::LengthDelimited, &mut self.out);
        message.encode_length_delimited(&mut self.out).expect("a Vec takes everything");
    }

    /// Adds the changes of an event, each as an `Event`, at most one per rule.
    pub(super) fn event(&mut self, event: &Event) -> Result<(), StoreError> {
        let revision = event.revision.0;
        let mut rules: Vec<RuleChange> = Vec::new();
        for change in &event.changes {
            match quoin_core::route::changed(change)? {
                Some(Changed::Put(rule)) => RuleChange::Put(Box::new(rule)).among(&mut rules),
                Some(Changed::Deleted { key, .. }) => RuleChange::Deleted(key).among(&mut rules),
                Some(Changed::PutObject(object)) => {
                    let object = translate::shown_object(object)
                        .map_err(|error| StoreError::new("decode an object", error.to_string()))?;
                    self.small_event(revision, pb::event::Change::PutObject(object));
                }
                Some(Changed::DeletedObject(kind, name)) => {
                    let name = translate::shown_name(kind, &name);
                    self.small_event(revision, pb::event::Change::DeletedObject(name));
                }
                Some(Changed::Status(name, Some((alive, since)))) => {
                    let turn = translate::shown_turn(&name, alive, since);
                    self.small_event(revision, pb::event::Change::Node(turn));
                }
                Some(Changed::Status(name, None)) => {
                    self.small_event(revision, pb::event::Change::DeletedNode(translate::lossy(&name)));
                }
                None => {}
            }
        }
        for change in rules {
            match change {
                RuleChange::Put(rule) => self.put_event(revision, &Rule::as_ref(&rule)),
                RuleChange::Deleted(key) => {
                    let key = translate::shown_key(&key);
                    self.small_event(revision, pb::event::Change::Deleted(key));
                }
            }
        }
        Ok(())
    }

    fn small_event(&mut self, revision: u64, change: pb::event::Change) {
        let event = pb::Event { revision: translate::signed(revision), change: Some(change) };
        self.message(EVENTS, &event);
    }

    fn put_event(&mut self, revision: u64, rule: &RuleRef<'_>) {
        self.rule.clear();
        write_rule(&mut self.rule, rule);
        self.scratch.clear();
        number(&mut self.scratch, 1, revision);
        bytes(&mut self.scratch, 2, &self.rule);
        bytes(&mut self.out, EVENTS, &self.scratch);
    }

    /// Begins a `GetResponse`.
    pub(super) fn get_response(&mut self, header: &quoin_proto::quoin::kv::v1::Header) {
        self.out.clear();
        self.message(HEADER, header);
    }

    /// Adds an `Answer`.
    pub(super) fn answer(&mut self, request_id: u64, answer: Result<Option<&RuleRef<'_>>, &str>) {
        self.scratch.clear();
        number(&mut self.scratch, 1, request_id);
        match answer {
            Ok(Some(rule)) => {
                number(&mut self.scratch, 2, 1);
                self.rule.clear();
                write_rule(&mut self.rule, rule);
                bytes(&mut self.scratch, 3, &self.rule);
            }
            Ok(None) => {}
            Err(problem) => bytes(&mut self.scratch, 4, problem.as_bytes()),
        }
        bytes(&mut self.out, ANSWERS, &self.scratch);
    }
}

/// The change of a rule in one event. A rule that moves between two watched groups is deleted in one and put
/// in the other, and one watched by group and by network is there twice. The client gets it once.
enum RuleChange {
    Put(Box<Rule>),
    Deleted(RuleKey),
}

impl RuleChange {
    fn key(&self) -> RuleKey {
        match self {
            Self::Put(rule) => rule.key,
            Self::Deleted(key) => *key,
        }
    }

    /// Adds the change, or merges it with the one before if that is of the same rule. The machine writes a
    /// rule's changes one after the other.
    fn among(self, changes: &mut Vec<Self>) {
        match changes.last_mut() {
            Some(last) if last.key() == self.key() => {
                if matches!(self, Self::Put(_)) {
                    *last = self;
                }
            }
            _ => changes.push(self),
        }
    }
}

/// A number field, omitted if it is 0, as in proto3.
fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    if value != 0 {
        encode_key(field, WireType::Varint, out);
        encode_varint(value, out);
    }
}

/// A field of bytes, a string or a message.
fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

/// A string field that `write` appends. Its length must fit in one byte of varint.
fn short(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    encode_key(field, WireType::LengthDelimited, out);
    let at = out.len();
    out.push(0);
    write(out);
    let length = out.len() - at - 1;
    out[at] = u8::try_from(length).ok().filter(|length| *length < 128).expect("addresses are short");
}

/// Appends the fields of a `Rule`.
fn write_rule(out: &mut Vec<u8>, rule: &RuleRef<'_>) {
    number(out, 1, rule.key.vni.into());
    short(out, 2, |out| write_ip(out, &rule.key.ip));
    if let Some(mac) = &rule.mac {
        short(out, 3, |out| write_mac(out, mac));
    }
    if let Some(ip) = &rule.host_ip {
        short(out, 4, |out| write_ip(out, ip));
    }
    if let Some(mac) = &rule.host_mac {
        short(out, 5, |out| write_mac(out, mac));
    }
    if !rule.group.is_empty() {
        bytes(out, 6, rule.group);
    }
    number(out, 7, rule.revision);
    if !rule.user_data.is_empty() {
        bytes(out, 8, rule.user_data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Vec<Rule> {
        let bare = Rule {
            key: RuleKey { vni: 0, ip: "1.2.3.4".parse().unwrap() },
            mac: None,
            host_ip: None,
            host_mac: None,
            group: Bytes::new(),
            revision: 0,
            user_data: Bytes::new(),
        };
        let full = Rule {
            key: RuleKey { vni: 300, ip: "fd00::77".parse().unwrap() },
            mac: Some([1, 2, 3, 4, 5, 0xff]),
            host_ip: Some("192.168.100.9".parse().unwrap()),
            host_mac: Some([9; 6]),
            group: "g".repeat(200).into(),
            revision: 1 << 40,
            user_data: vec![7; 1000].into(),
        };
        vec![bare, full]
    }

    #[test]
    fn the_generated_code_reads_what_is_written_by_hand() {
        let mut encoder = Encoder::default();
        for rule in rules() {
            encoder.watch_response(Kind::Snapshot, 5);
            encoder.rule(RULES, &rule.as_ref());
            encoder.put_event(6, &rule.as_ref());
            let response = pb::WatchResponse::decode(encoder.take()).unwrap();
            assert_eq!(response.rules, [translate::shown(&rule.as_ref())]);
            let change = Some(pb::event::Change::Put(translate::shown(&rule.as_ref())));
            assert_eq!(response.events, [pb::Event { revision: 6, change }]);
            assert_eq!((response.kind(), response.revision), (Kind::Snapshot, 5));

            let header = quoin_proto::quoin::kv::v1::Header { revision: 9, ..Default::default() };
            encoder.get_response(&header);
            encoder.answer(1, Ok(Some(&rule.as_ref())));
            encoder.answer(2, Ok(None));
            encoder.answer(0, Err("wrong"));
            let response = pb::GetResponse::decode(encoder.take()).unwrap();
            let found = pb::Answer {
                request_id: 1,
                found: true,
                rule: Some(translate::shown(&rule.as_ref())),
                ..Default::default()
            };
            let absent = pb::Answer { request_id: 2, ..Default::default() };
            let wrong = pb::Answer { error: "wrong".into(), ..Default::default() };
            assert_eq!(
                response,
                pb::GetResponse { header: Some(header), answers: vec![found, absent, wrong] }
            );
        }
    }
}
