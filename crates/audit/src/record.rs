//! A record: one line of JSON, and its place in the chain.
//!
//! ```text
//! {"n":7,"time":"...","node":"n1",...,"prev":"HASH OF RECORD 6","hash":"HASH OF THIS ONE"}
//! ```
//!
//! The hash is SHA-256, in hexadecimal digits, over the bytes of the line before `,"hash":`. So it can be checked
//! without knowing the fields, and those of later versions do not break it.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

/// Maximum bytes of a text in a record; the rest is cut off.
const TEXT_BYTES_MAX: usize = 512;
/// Maximum pairs that say what was done to what.
const ABOUT_MAX: usize = 16;
/// More than the bytes of any line.
pub(crate) const LINE_BYTES_MAX: usize = 128 << 10;
/// What the first record of a trail follows.
pub(crate) const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Stands between what is hashed and the hash.
const MARK: &str = ",\"hash\":\"";

/// Who did something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// The user, if one was proved.
    pub user: String,
    /// The common name of the client's certificate.
    pub certificate: String,
    /// Where from, `host:port`, or a socket's path.
    pub address: String,
    /// The protocol.
    pub wire: &'static str,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was not done: not allowed, or a condition does not hold.
    Refused,
    /// It failed; whether it was done, the code says, if that is known at all.
    Failed,
    /// It was let in, by a stream whose answers go on; what came of it is not recorded.
    Admitted,
    /// Nobody knows: the client left before the answer.
    Unknown,
}

/// What somebody did.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Who did it.
    pub who: Who,
    /// The call, page or command.
    pub act: String,
    /// To what.
    pub about: About,
    /// What came of it.
    pub outcome: Outcome,
    /// The wire's word for that.
    pub code: String,
    /// The newest revision of the node after it, if it has one.
    pub revision: Option<u64>,
}

/// To what somebody did something: pairs, of which a record has few, and short ones. What is beyond that is counted.
#[derive(Clone, Debug, Default)]
pub struct About {
    pairs: Vec<(&'static str, String)>,
    more: usize,
}

impl About {
    /// Adds a pair, if it is a new one.
    pub fn push(&mut self, name: &'static str, value: &str) {
        let value = cut(value);
        if self.pairs.iter().any(|(known, text)| *known == name && *text == value) {
            return;
        }
        if self.pairs.len() < ABOUT_MAX {
            self.pairs.push((name, value));
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// Adds the pairs of another one.
    pub fn extend(&mut self, other: &Self) {
        other.pairs.iter().for_each(|(name, value)| self.push(name, value));
        self.more = self.more.saturating_add(other.more);
    }
}

/// A record as it stands in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number: 1 more than that of the one before.
    pub n: u64,
    /// When it was handed in, by the node's clock, RFC 3339 in UTC.
    pub time: String,
    /// The node's name.
    pub node: String,
    /// See [`Who::user`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// See [`Who::certificate`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// See [`Who::address`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// See [`Who::wire`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wire: String,
    /// The call, page or command; `audit.start`, `audit.stop` and `audit.lost` are the trail's own.
    pub act: String,
    /// To what.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub about: BTreeMap<String, String>,
    /// What came of it.
    pub outcome: Outcome,
    /// The wire's word for that.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// The newest revision of the node after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The hash of the record before.
    pub prev: String,
    /// Its own.
    #[serde(default, skip_serializing)]
    pub hash: String,
}

impl Record {
    /// What of its line is hashed.
    fn hashed(&self) -> String {
        let mut text = serde_json::to_string(self).expect("a record is texts and numbers");
        text.truncate(text.len() - "}".len());
        text
    }

    /// Its line, without the line's end.
    pub fn line(&self) -> String {
        format!("{}{MARK}{}\"}}", self.hashed(), self.hash)
    }
}

/// How far a trail has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The number of the newest record.
    pub(crate) n: u64,
    /// Its hash.
    pub(crate) hash: String,
}

impl Default for Head {
    fn default() -> Self {
        Self { n: 0, hash: NOTHING.into() }
    }
}

impl Head {
    /// Writes the next record, with the end of its line.
    pub(crate) fn append(&mut self, out: &mut String, node: &str, time: SystemTime, entry: &Entry) {
        let Entry { who, act, about, outcome, code, revision } = entry;
        let record = Record {
            n: self.n + 1,
            time: rfc3339(time),
            node: cut(node),
            user: cut(&who.user),
            certificate: cut(&who.certificate),
            address: cut(&who.address),
            wire: who.wire.into(),
            act: cut(act),
            about: together(about),
            outcome: *outcome,
            code: cut(code),
            revision: *revision,
            prev: std::mem::take(&mut self.hash),
            hash: String::new(),
        };
        let text = record.hashed();
        (self.n, self.hash) = (record.n, hash(&text));
        let _ = writeln!(out, "{text}{MARK}{}\"}}", self.hash);
    }
}

/// The record of a line, without the line's end.
///
/// # Errors
/// It is none, or its hash is not that of its text: says which.
pub(crate) fn parse(line: &str) -> Result<Record, String> {
    let record: Record = serde_json::from_str(line).map_err(|error| format!("is no record: {error}"))?;
    let place = line.rfind(MARK).ok_or("is no record: its hash does not stand at its end")?;
    let (hashed, rest) = line.split_at(place);
    if rest != format!("{MARK}{}\"}}", record.hash) {
        return Err("is no record: its hash does not stand at its end".into());
    }
    let expected = hash(hashed);
    if record.hash != expected {
        return Err(format!("was changed: its hash is {}, that of its text {expected}", record.hash));
    }
    Ok(record)
}

/// The hash of a text, in hexadecimal digits.
pub fn hash(text: &str) -> String {
    let mut digits = String::with_capacity(NOTHING.len());
    for byte in Sha256::digest(text) {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// Several of one name stand one after the other.
fn together(about: &About) -> BTreeMap<String, String> {
    let mut all = BTreeMap::<String, String>::new();
    for (name, value) in &about.pairs {
        let text = all.entry((*name).into()).or_default();
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(value);
    }
    if about.more > 0 {
        all.insert("more".into(), about.more.to_string());
    }
    all
}

fn cut(text: &str) -> String {
    match text.char_indices().find(|(place, _)| *place >= TEXT_BYTES_MAX) {
        Some((place, _)) => format!("{}...", &text[..place]),
        None => text.into(),
    }
}

/// `2026-11-21T09:45:00.123Z`.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let Ok(moment) = OffsetDateTime::from_unix_timestamp(i64::try_from(since.as_secs()).unwrap_or(0)) else {
        return "never".into();
    };
    let (year, month, day) = moment.to_calendar_date();
    let (hour, minute, second) = moment.to_hms();
    let (month, ms) = (u8::from(month), since.subsec_millis());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn entry(act: &str) -> Entry {
        let who = Who { user: "ann".into(), address: "127.0.0.1:1".into(), wire: "grpc", ..Who::default() };
        let mut about = About::default();
        for (name, value) in [("user", "bob"), ("key", "a"), ("key", "b"), ("key", "a")] {
            about.push(name, value);
        }
        Entry { who, act: act.into(), about, outcome: Outcome::Done, code: "ok".into(), revision: Some(7) }
    }

    #[test]
    fn lines_are_pinned() {
        let (mut head, mut out) = (Head::default(), String::new());
        let time = UNIX_EPOCH + Duration::from_millis(1_763_718_300_120);
        head.append(&mut out, "n1", time, &entry("/a"));
        let expected = format!(
            "{{\"n\":1,\"time\":\"2025-11-21T09:45:00.120Z\",\"node\":\"n1\",\"user\":\"ann\",\
             \"address\":\"127.0.0.1:1\",\"wire\":\"grpc\",\"act\":\"/a\",\"about\":{{\"key\":\"a b\",\"user\":\"bob\"}},\
             \"outcome\":\"done\",\"code\":\"ok\",\"revision\":7,\"prev\":\"{NOTHING}\",\
             \"hash\":\"{}\"}}\n",
            "HASH"
        );
        assert_eq!(out.replace(&head.hash, "HASH"), expected);
        let record = parse(out.trim_end()).unwrap();
        assert_eq!((&record.hash, &*record.line()), (&head.hash, out.trim_end()));
        let before = head.hash.clone();
        out.clear();
        head.append(&mut out, "n1", time, &entry("/b"));
        let record = parse(out.trim_end()).unwrap();
        assert_eq!((record.n, record.prev, record.revision), (2, before, Some(7)));
    }

    #[test]
    fn what_is_changed_is_no_record() {
        let (mut head, mut out) = (Head::default(), String::new());
        head.append(&mut out, "n1", SystemTime::now(), &entry("/a"));
        let line = out.trim_end();
        for place in 0..line.len() {
            let mut bytes = line.as_bytes().to_vec();
            bytes[place] ^= 1;
            let changed = String::from_utf8(bytes).unwrap();
            assert!(parse(&changed).is_err(), "{changed}");
        }
        assert!(parse(&format!("{line} ")).is_err());
        assert!(parse("").is_err() && parse("{}").is_err());
    }

    #[test]
    fn a_record_has_a_bound() {
        let mut long = entry(&"é".repeat(10_000));
        long.about = About::default();
        let text = "\u{1}".repeat(10_000);
        (0..10_000).for_each(|number| long.about.push("key", &format!("{number}{text}")));
        let kept: usize = long.about.pairs.iter().map(|(_, value)| value.len()).sum();
        assert!(kept < 16 << 10, "what waits for the disk has a bound, too: {kept}");
        long.who.user = "\u{1}".repeat(10_000);
        let (mut head, mut out) = (Head::default(), String::new());
        head.append(&mut out, &"\u{1}".repeat(10_000), SystemTime::now(), &long);
        assert!(out.len() < LINE_BYTES_MAX, "{}", out.len());
        assert_eq!(parse(out.trim_end()).unwrap().about["more"], "9984");
    }
}
