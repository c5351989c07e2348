//! Whom a data folder belongs to: `identity.json`, written before anything else.
//!
//! The folder's *disk* is a number drawn when the folder is made. It is in the log's segments and in the
//! member's record too, so that a folder that was lost, in whole or in part, is not taken for the one
//! that the cluster knows.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// The version of a data folder's layout that this program writes. It reads version 1 too, which has no disk.
pub const LAYOUT_VERSION: u32 = 2;
const FILE: &str = "identity.json";

/// The identity of a data folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The version of the folder's layout.
    pub layout: u32,
    /// The cluster, in hexadecimal.
    #[serde(with = "hexadecimal")]
    pub cluster: u64,
    /// The member, in hexadecimal. 0 until a node that joins has been told.
    #[serde(with = "hexadecimal")]
    pub id: u64,
    /// The node's name.
    pub name: String,
    /// Whether the node founded the cluster. If not, it joined.
    pub founder: bool,
    /// The number drawn when the folder was made, in hexadecimal; 0 in layout 1.
    #[serde(with = "hexadecimal", default)]
    pub disk: u64,
    /// Whether the node has a log here and may take part in its cluster: a founder once all others have
    /// answered it, others once their disk was recorded.
    #[serde(default)]
    pub settled: bool,
    /// The disks of the other founders by member, as they were told at the founding.
    #[serde(default)]
    pub founders: BTreeMap<u64, u64>,
    /// Peer addresses by member, as a node that joined was told. They count until its store has the members, which
    /// its first snapshot brings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<u64, String>,
    /// The SHA-256 of the snapshot file that the cluster begins with, in hexadecimal; empty where it begins empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub restored: String,
}

/// What every layout has.
#[derive(Deserialize)]
struct Layout {
    layout: u32,
}

mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

impl Identity {
    /// Reads the identity of `folder`; `None` if it has none yet.
    ///
    /// # Errors
    /// The file cannot be read or decoded, or the layout is of another version.
    pub fn read(folder: &Path) -> io::Result<Option<Self>> {
        let path = folder.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        };
        let invalid = |problem: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {problem}", path.display()))
        };
        // The process that wrote it may have died before its name was on the disk.
        File::open(folder)?.sync_all()?;
        let damaged = |error: serde_json::Error| {
            invalid(format!(
                "the file is damaged ({error}): put it back as it was, or delete the data folder, remove this \
                member and add it anew"
            ))
        };
        // First of all: a newer layout may have other fields.
        let Layout { layout } = serde_json::from_str(&text).map_err(damaged)?;
        if ![1, LAYOUT_VERSION].contains(&layout) {
            return Err(invalid(format!(
                "the folder has layout {layout}, and this program reads 1 and {LAYOUT_VERSION}: start it with the \
                version of quoin that wrote it, or a newer one"
            )));
        }
        Ok(Some(serde_json::from_str(&text).map_err(damaged)?))
    }

    /// Writes the identity of `folder`, wholly or not at all.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let temporary = folder.join("identity.json.new");
        let mut file = File::create(&temporary)?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, folder.join(FILE))?;
        File::open(folder)?.sync_all()
    }
}

/// Draws the number of a new disk.
pub(crate) fn draw_disk() -> u64 {
    rand::random_range(1..=u64::MAX)
}

/// Hashes texts to a number other than 0, the same on every machine and in every version: 64-bit FNV-1a with
/// a zero byte after each text.
pub fn number_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for text in texts {
        for byte in text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_comes_back_as_written_and_numbers_are_pinned() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Identity::read(folder.path()).unwrap(), None);
        let identity = Identity {
            layout: 2,
            cluster: number_of(["a", "b"]),
            id: 7,
            name: "n".into(),
            ..Identity::default()
        };
        let identity = Identity { disk: 0xd, founders: [(3, u64::MAX)].into(), settled: true, ..identity };
        identity.write(folder.path()).unwrap();
        assert_eq!(Identity::read(folder.path()).unwrap(), Some(identity));
        assert_eq!(number_of(["a", "b"]), 0xab40_d782_0d40_8076);
        assert_ne!(number_of(["ab"]), number_of(["a", "b"]));
    }

    #[test]
    fn an_identity_of_layout_1_has_no_disk() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"layout": 1, "cluster": "1", "id": "2", "name": "n", "founder": true}"#;
        fs::write(folder.path().join(FILE), text).unwrap();
        let expected =
            Identity { layout: 1, cluster: 1, id: 2, name: "n".into(), founder: true, ..Identity::default() };
        assert_eq!(Identity::read(folder.path()).unwrap(), Some(expected));
    }

    #[test]
    fn a_newer_layout_is_refused_by_name_whatever_fields_it_has() {
        let folder = tempfile::tempdir().unwrap();
        for text in [
            r#"{"layout": 9, "cluster": "1", "id": "1", "name": "n", "founder": true}"#,
            r#"{"layout": 9, "something": "else"}"#,
        ] {
            fs::write(folder.path().join(FILE), text).unwrap();
            let said = Identity::read(folder.path()).unwrap_err().to_string();
            assert!(
                said.contains("the folder has layout 9, and this program reads 1 and 2: start it"),
                "{said}"
            );
        }
    }
}
