//! A table folder's manifest: which files belong together, what they hold, and which layer a patch was built
//! over.
//!
//! **Invariant: Whole when named.** A folder with a `manifest.json` is complete: the manifest is written
//! last, under another name, and renamed.
//!
//! The id is a digest of everything that decides a lookup's answer, so tables with equal ids give equal
//! answers. In format 1 it was made of checksums, which can be forged: it tells such tables apart only where nobody
//! means to mislead.
//!
//! Deliberately absent: the folder's location and its version number. Those belong to the server.

use crate::digest::Digest;
use crate::error::TableError;
use crate::format::Seal;
use crate::hex;
use crate::schema::{SHARDS_MAX, Schema};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::collections::BTreeMap;
use std::path::Path;

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// The largest manifest that is read, in bytes: enough for 65,536 shards with their deletes.
pub const MANIFEST_BYTES_MAX: u64 = 32 << 20;
/// The metadata field with the note of the streamed changes contained in the files: see [`crate::Folds`].
pub const FOLDS: &str = "folds";
const FORMAT: u32 = 2;
/// The format before, whose files have no digests. Still read.
const FORMAT_OF_CHECKSUMS: u32 = 1;

/// The contents of a table folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the manifest's format: 2, or 1, in which files have no digests.
    pub format: u32,
    /// The digest of the content, 64 hexadecimal digits; in format 1, 32.
    pub id: String,
    /// The table's name.
    pub name: String,
    /// A patch: the id of the layer that it was built over. A base: `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// What the values are.
    pub schema: Schema,
    /// The number of shards of the table and of every patch over it.
    pub shards: u32,
    /// The number of keys with a value.
    pub count: u64,
    /// The number of keys that a patch deletes.
    #[serde(default)]
    pub deleted: u64,
    /// The files with values, one per shard in order.
    pub files: Vec<FileEntry>,
    /// The files with a patch's deleted keys, one per shard in order, with values of width 0. Empty if it
    /// deletes nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deletes: Vec<FileEntry>,
    /// Whatever the builder was given.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// What the manifest of every format has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// One file of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// The file's name in the folder.
    pub name: String,
    /// The file's length in bytes.
    pub bytes: u64,
    /// The number of keys.
    pub count: u64,
    /// See [`Seal::checksum`]; 16 hexadecimal digits in the manifest.
    #[serde(serialize_with = "write_checksum", deserialize_with = "read_checksum")]
    pub checksum: u64,
    /// The digest of the file. None in format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

impl FileEntry {
    /// The entry of a file with this seal and digest, as [`crate::ShardWriter::finish`] returns them.
    pub fn new(name: String, (seal, digest): (Seal, Digest)) -> Self {
        let Seal { bytes, count, checksum } = seal;
        Self { name, bytes, count, checksum, digest: Some(digest) }
    }

    /// The seal that the file must have.
    pub fn seal(&self) -> Seal {
        Seal { bytes: self.bytes, count: self.count, checksum: self.checksum }
    }
}

impl Manifest {
    /// A manifest of these files, with its id and totals computed.
    pub fn new(
        name: &str,
        over: Option<String>,
        schema: Schema,
        files: Vec<FileEntry>,
        deletes: Vec<FileEntry>,
        metadata: BTreeMap<String, String>,
    ) -> Self {
        let sum = |files: &[FileEntry]| files.iter().map(|file| file.count).sum();
        let mut manifest = Self {
            format: FORMAT,
            id: String::new(),
            name: name.into(),
            over,
            schema,
            shards: files.len() as u32,
            count: sum(&files),
            deleted: sum(&deletes),
            files,
            deletes,
            metadata,
        };
        manifest.id = manifest.digest();
        manifest
    }

    /// The total length of all files in bytes, without the manifest.
    pub fn bytes(&self) -> u64 {
        self.all_files().map(|file| file.bytes).sum()
    }

    /// Every file of the folder except the manifest.
    pub fn all_files(&self) -> impl Iterator<Item = &FileEntry> {
        self.files.iter().chain(&self.deletes)
    }

    /// Parses a manifest's text. `file` is used in error messages only.
    ///
    /// # Errors
    /// The text is not a manifest of this version, or is inconsistent.
    pub fn parse(text: &[u8], file: &Path) -> Result<Self, TableError> {
        let refuse = |what: String| TableError::Manifest { file: file.into(), what };
        // What the text holds is not told: it may be of a place that whoever named it may not read.
        let malformed = |error: serde_json::Error| {
            refuse(format!("line {} column {}: not a manifest", error.line(), error.column()))
        };
        // First of all: a newer format may have other fields.
        let Format { format } = serde_json::from_slice(text).map_err(malformed)?;
        if format > FORMAT {
            return Err(refuse(format!(
                "format {format}, but this program reads formats up to {FORMAT}: use the version of quoin that built it, or a \
                 newer one"
            )));
        }
        let manifest: Self = serde_json::from_slice(text).map_err(malformed)?;
        manifest.check().map_err(refuse)?;
        Ok(manifest)
    }

    /// Reads the manifest of `folder`.
    ///
    /// # Errors
    /// It cannot be read, exceeds [`MANIFEST_BYTES_MAX`], or is refused by [`Self::parse`].
    pub fn read(folder: &Path) -> Result<Self, TableError> {
        let file = folder.join(MANIFEST);
        let refuse =
            |error: std::io::Error| TableError::Manifest { file: file.clone(), what: error.to_string() };
        let length = std::fs::metadata(&file).map_err(refuse)?.len();
        if length > MANIFEST_BYTES_MAX {
            let what = format!("{length} bytes, more than {MANIFEST_BYTES_MAX}: not a manifest");
            return Err(TableError::Manifest { file, what });
        }
        Self::parse(&std::fs::read(&file).map_err(refuse)?, &file)
    }

    /// Writes and syncs the manifest in `folder`, whose other files are already synced.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), TableError> {
        let (file, partial) = (folder.join(MANIFEST), folder.join(format!("{MANIFEST}.partial")));
        let written = (|| {
            std::fs::write(&partial, self.to_json())?;
            std::fs::File::open(&partial)?.sync_all()?;
            std::fs::rename(&partial, &file)?;
            std::fs::File::open(folder)?.sync_all()
        })();
        written.map_err(|error| TableError::Manifest { file, what: error.to_string() })
    }

    /// The manifest as JSON text.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("strings and numbers are always JSON");
        text.push(b'\n');
        text
    }

    fn check(&self) -> Result<(), String> {
        self.schema.check()?;
        check_name(&self.name)?;
        if ![FORMAT_OF_CHECKSUMS, FORMAT].contains(&self.format) {
            return Err(format!("format {}, but this program reads formats 1 to {FORMAT}", self.format));
        }
        let misfit = |file: &&FileEntry| file.digest.is_some() != (self.format == FORMAT);
        if let Some(file) = self.all_files().find(misfit) {
            return Err(format!(
                "format {}, in which the file {:?} should have {} digest",
                self.format,
                file.name,
                if self.format == FORMAT { "a" } else { "no" }
            ));
        }
        if self.shards == 0 || self.shards > SHARDS_MAX || self.files.len() != self.shards as usize {
            return Err(format!("{} shards, but {} files", self.shards, self.files.len()));
        }
        if !self.deletes.is_empty() && (self.over.is_none() || self.deletes.len() != self.shards as usize) {
            return Err(format!(
                "{} files of deletes, but {} shards or no base",
                self.deletes.len(),
                self.shards
            ));
        }
        for file in self.all_files() {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if file.name.is_empty() || file.name.starts_with('.') || !file.name.bytes().all(plain) {
                return Err(format!(
                    "the file name {:?} must consist of letters, digits, - _ and .",
                    file.name
                ));
            }
        }
        let sum = |all: Option<u64>, more: u64| all?.checked_add(more);
        let (bytes, count) = self.all_files().fold((Some(0), Some(0)), |(bytes, count), file| {
            (sum(bytes, file.bytes), sum(count, file.count))
        });
        if bytes.is_none() || count.is_none() {
            return Err("its files have more bytes, or keys, than can be counted".into());
        }
        let expected = self.digest();
        if self.id != expected {
            return Err(format!(
                "its id is {}, but its content has {expected}: it was changed or damaged",
                self.id
            ));
        }
        Ok(())
    }

    fn digest(&self) -> String {
        if self.format == FORMAT_OF_CHECKSUMS {
            return self.digest_of_checksums();
        }
        let files = |files: &[FileEntry]| -> Vec<_> {
            files.iter().map(|file| (file.bytes, file.count, file.digest)).collect()
        };
        let content =
            (self.format, &self.over, &self.schema, files(&self.files), files(&self.deletes), self.shards);
        let text = serde_json::to_vec(&content).expect("strings and numbers are always JSON");
        Digest::of(&text).to_string()
    }

    /// The id in format 1.
    fn digest_of_checksums(&self) -> String {
        let files = |files: &[FileEntry]| -> Vec<_> {
            files.iter().map(|file| (file.bytes, file.count, file.checksum)).collect()
        };
        let content =
            (self.format, &self.over, &self.schema, files(&self.files), files(&self.deletes), self.shards);
        let text = serde_json::to_vec(&content).expect("strings and numbers are always JSON");
        hex::encode(&<Sha256 as sha2::Digest>::digest(text)[..16])
    }
}

/// Checks a table's name: 1 to 128 ASCII letters, digits, `-`, `_`, `.`, `:` and `/`.
///
/// # Errors
/// The message, with the name.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    if name.is_empty() || name.len() > 128 || !name.bytes().all(plain) {
        return Err(format!(
            "the table name {name:?} must consist of 1 to 128 letters, digits, - _ . : and /"
        ));
    }
    Ok(())
}

fn write_checksum<S: serde::Serializer>(checksum: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{checksum:016x}"))
}

fn read_checksum<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    u64::from_str_radix(&text, 16)
        .map_err(|_| serde::de::Error::custom(format!("{text:?} is not a checksum")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::schema::Layout;

    /// The sums wrapped around: the files passed for small enough for the disk.
    #[test]
    fn files_of_more_bytes_than_can_be_counted_are_refused() {
        let schema = Schema { layout: Layout::Fixed { width: 4 }, codec: Codec::Raw, default_row: None };
        let parsed = |bytes: u64, count: u64| {
            let file = |name: &str| FileEntry {
                digest: Some(Digest::of(b"7")),
                name: name.into(),
                bytes,
                count,
                checksum: 7,
            };
            let files = vec![file("a"), file("b")];
            let mut manifest =
                Manifest::new("t", None, schema.clone(), Vec::new(), Vec::new(), BTreeMap::new());
            (manifest.shards, manifest.files) = (2, files);
            manifest.id = manifest.digest();
            Manifest::parse(&manifest.to_json(), Path::new(MANIFEST))
        };
        assert_eq!(parsed(1 << 62, 9).unwrap().bytes(), 1 << 63);
        for (bytes, count) in [(1 << 63, 9), (9, 1 << 63), (u64::MAX, 1)] {
            let error = parsed(bytes, count).unwrap_err();
            assert!(error.to_string().contains("more bytes, or keys, than can be counted"), "{error}");
        }
    }
}
