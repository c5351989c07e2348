//! How tables are fetched and held.

use serde::{Deserialize, Serialize};

quoin_engine::settings! {
    /// Lookup tables.
    pub struct TableConfig in "table." {
        /// Read table files into huge pages instead of mapping them: faster lookups in large tables, slower
        /// starts. Default false.
        pub huge_pages: bool = false,
        /// Keep table files in memory whatever else needs room (mlock). Default false.
        pub lock: bool = false,
        /// Maximum keys of one lookup. Default 100000, at least 1, at most 10000000.
        pub keys_max: usize = 100_000,
        /// Memory for changes over tables' files, bytes over all tables; then writes are refused until changes are
        /// folded into files. What is under way may exceed it. Default 1 GiB, at least 1 MiB, at most
        /// 16 TiB.
        pub changes_bytes_max: usize = 1 << 30,
        /// How fast files are fetched from other replicas, which happens where the published place does not have
        /// them, bytes per second for each of the two that are fetched at once; 0 fetches none from replicas.
        /// Default 256 MiB, at least 0, at most 16 GiB.
        pub peer_bytes_per_second: u64 = 256 << 20,
        /// From where tables may be read: folders and URLs, each with all that is below it, or * for anywhere but
        /// link-local addresses. Default empty: * on a node that clients reach on loopback alone, else nothing.
        pub sources: Vec<String> = Vec::new(),
        /// The server of s3:// locations, a URL. Default empty: AWS_ENDPOINT_URL, else Amazon.
        pub s3_endpoint: String = String::new(),
        /// The region of buckets. Default empty: AWS_REGION, else us-east-1.
        pub s3_region: String = String::new(),
        /// The key id with which buckets are read. Default empty: AWS_ACCESS_KEY_ID and what goes with it,
        /// else the machine's role. Goes with table.s3_secret_access_key: set both or none.
        pub s3_access_key_id: String = String::new(),
        /// The secret key that goes with table.s3_access_key_id; safer as an environment variable than as a
        /// flag. Default empty.
        pub s3_secret_access_key: Secret = Secret::default(),
    }
}

/// A value that logs do not show.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The value itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}
