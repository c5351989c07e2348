//! The settings of users and of the audit trail, and what is made of them.

use crate::config::{Config, ConfigError};
use quoin_api::{Audit, AuthSettings, ChosenKeys};
use quoin_audit::{About, Counters, OpenError, Settings, Trail, WhenFull, Writer};
use quoin_core::auth::{Part, rights};
use quoin_engine::Metrics;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

quoin_engine::settings! {
    /// How users log in.
    pub struct AuthConfig in "auth." {
        /// Seconds for which a token counts that a user was given for a password. Default 300, at least 1, at most
        /// 31536000.
        pub token_ttl_s: u64 = 300,
        /// Wrong passwords for one user from one address within a minute, after which further ones are refused without
        /// being compared; 0: any number. Default 10, at least 0, at most 1000000.
        pub failed_passwords_max: u32 = 10,
    }
}

/// What to do with what cannot be recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Full {
    /// It is done, and the lost record is counted.
    #[default]
    Lose,
    /// It is refused.
    Refuse,
}

quoin_engine::settings! {
    /// The audit trail.
    pub struct AuditConfig in "audit." {
        /// Keep an audit trail in this folder: who changed users, members, tables and the like, from where, and what
        /// came of it. Default empty: none.
        pub folder: PathBuf = PathBuf::new(),
        /// Record uses of keys too, by how they begin: read:PREFIX, write:PREFIX or all:PREFIX, separated by commas. Default
        /// empty: none.
        pub keys: Vec<String> = Vec::new(),
        /// Record calls of these parts too, as PART:RIGHT, such as ledger:write, table:write or metrics:read, separated
        /// by commas. Default empty: none but administrative ones.
        pub parts: Vec<String> = Vec::new(),
        /// Record each log-in, not only those that failed. Default false.
        pub log_ins: bool = false,
        /// Bytes after which a file is followed by another. Default 64 MiB, at least 64 KiB, at most 1 TiB.
        pub file_bytes_max: u64 = 64 << 20,
        /// Maximum files; the oldest are deleted. Default 16, at least 1, at most 1000000.
        pub files_max: usize = 16,
        /// Maximum records that are not on disk yet, of 16 KiB at most. Default 4096, at least 16, at most 1000000.
        pub queue_max: usize = 4096,
        /// What becomes of what cannot be recorded, because the disk is full or too slow: lose (it is done, and the
        /// records that are lost are counted in the trail and in quoin_audit_lost_total) or refuse. Default lose.
        pub when_full: Full = Full::Lose,
    }
}

impl AuthConfig {
    /// What the adapters are told.
    pub(crate) fn settings(&self) -> AuthSettings {
        AuthSettings {
            token_ttl_ms: self.token_ttl_s * 1000,
            failed_passwords_max: self.failed_passwords_max,
        }
    }
}

/// Checks the settings that are lists.
///
/// # Errors
/// An item that means nothing.
pub(crate) fn check(config: &AuditConfig) -> Result<(), ConfigError> {
    for item in &config.keys {
        keys(item).ok_or_else(|| ConfigError {
            setting: "audit.keys",
            problem: format!("has {item:?}; it must be read:PREFIX, write:PREFIX or all:PREFIX"),
        })?;
    }
    for item in &config.parts {
        part(item).ok_or_else(|| {
            let all = PARTS.iter().flat_map(|(name, part)| {
                rights::of(*part).iter().map(move |(right, _)| format!("{name}:{right}"))
            });
            let all = all.collect::<Vec<_>>().join(", ");
            ConfigError { setting: "audit.parts", problem: format!("has {item:?}; it must be one of {all}") }
        })?;
    }
    Ok(())
}

const PARTS: &[(&str, Part)] = &[
    ("table", Part::Table),
    ("ledger", Part::Ledger),
    ("route", Part::Route),
    ("cluster", Part::Cluster),
    ("metrics", Part::Metrics),
];

fn keys(item: &str) -> Option<ChosenKeys> {
    let (how, prefix) = item.split_once(':')?;
    let (reads, writes) = match how {
        "read" => (true, false),
        "write" => (false, true),
        "all" => (true, true),
        _ => return None,
    };
    Some(ChosenKeys { prefix: prefix.to_owned().into(), reads, writes })
}

fn part(item: &str) -> Option<(Part, u32)> {
    let (name, right) = item.split_once(':')?;
    let (_, part) = PARTS.iter().find(|(known, _)| *known == name)?;
    let (_, right) = rights::of(*part).iter().find(|(known, _)| *known == right)?;
    Some((*part, *right))
}

/// Opens the trail, if there is to be one.
///
/// # Errors
/// Its folder cannot be used.
pub(crate) fn open(config: &Config, metrics: &Metrics) -> Result<Option<(Audit, Writer)>, OpenError> {
    let AuditConfig { folder, file_bytes_max, files_max, queue_max, when_full, log_ins, .. } = &config.audit;
    if folder.as_os_str().is_empty() {
        return Ok(None);
    }
    let settings = Settings {
        node: config.name.clone(),
        folder: folder.clone(),
        file_bytes_max: *file_bytes_max,
        files_max: *files_max,
        queue_max: *queue_max,
        when_full: match when_full {
            Full::Lose => WhenFull::Lose,
            Full::Refuse => WhenFull::Refuse,
        },
    };
    let counters = Counters {
        written: metrics.audit_written.clone(),
        lost: metrics.audit_lost.clone(),
        failing: metrics.audit_failing.clone(),
    };
    let mut about = About::default();
    about.push("version", env!("CARGO_PKG_VERSION"));
    about.push("settings", &fingerprint(config));
    let (trail, writer) = Trail::open(settings, counters, about)?;
    let audit = Audit {
        trail,
        keys: config.audit.keys.iter().filter_map(|item| keys(item)).collect(),
        parts: config.audit.parts.iter().filter_map(|item| part(item)).collect(),
        log_ins: *log_ins,
    };
    Ok(Some((audit, writer)))
}

/// Tells whether a node was started with other settings, without saying which: some are secrets.
fn fingerprint(config: &Config) -> String {
    // What is printed has no secrets, so that nobody finds them by trying.
    quoin_audit::fingerprint(&format!("{config:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_by_setting_is_checked() {
        let of = |keys: &[&str], parts: &[&str]| AuditConfig {
            keys: keys.iter().map(ToString::to_string).collect(),
            parts: parts.iter().map(ToString::to_string).collect(),
            ..AuditConfig::default()
        };
        assert_eq!(check(&of(&["read:", "all:a:b", "write:x"], &["ledger:write", "metrics:read"])), Ok(()));
        assert_eq!(keys("all:a:b").map(|keys| keys.prefix), Some("a:b".into()));
        let refused = |config: AuditConfig| check(&config).unwrap_err().to_string();
        assert!(refused(of(&["app/"], &[])).starts_with("audit.keys: has \"app/\""));
        assert!(refused(of(&[], &["ledger"])).contains("table:read, table:write, table:admin, ledger:read"));
    }
}
