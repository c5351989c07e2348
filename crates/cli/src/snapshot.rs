//! `quoin snapshot`: the whole state in one file, and a new cluster made from such a file.

use crate::connection::Connection;
use crate::settings::Settings;
use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use quoin_node::Restore;
use quoin_proto::etcdserverpb::SnapshotRequest;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tonic::Request;
use tonic::metadata::MetadataValue;

/// Snapshot files. `etcdctl snapshot save` writes etcd's instead, which have keys and leases only
#[derive(Subcommand)]
pub(crate) enum Snapshot {
    /// Write a replica's state to a file
    Save {
        /// File to write; it must not exist
        file: PathBuf,
        #[command(flatten)]
        connection: Connection,
    },
    /// Make the data folder of a new cluster's founder from a snapshot file, Quoin's or etcd's
    ///
    /// Restore the same file on each founder before any of them is started, with the settings that it
    /// will be served with: --name, --data-dir and --cluster. A new --cluster-token keeps members of the
    /// old cluster out of the new one.
    Restore {
        /// Snapshot file
        file: PathBuf,
        /// Raise the newest revision by so much, so that clients do not take revisions that the old cluster gave
        /// after the snapshot for the new one's; at least as many as it may have given, the same on each founder
        #[arg(long, value_name = "REVISIONS", requires = "mark_compacted",
            value_parser = clap::value_parser!(u64).range(1..=quoin_node::RAISE_MAX))]
        bump_revision: Option<u64>,
        /// Forget everything below the raised revision: watches of the old cluster's revisions end, and begin anew
        #[arg(long, requires = "bump_revision")]
        mark_compacted: bool,
        /// Take a file of etcd's without a checksum, as one copied from a data folder (member/snap/db of a member
        /// that is stopped)
        #[arg(long)]
        skip_hash_check: bool,
        /// Take a file of etcd's in which authentication is enabled, without its users and roles: the new cluster lets
        /// everybody in
        #[arg(long)]
        skip_auth: bool,
        #[command(flatten)]
        settings: Box<Settings>,
    },
}

/// Saves or restores.
pub(crate) async fn run(snapshot: Snapshot) -> Result<ExitCode> {
    match snapshot {
        Snapshot::Save { file, connection } => save(&file, &connection).await,
        Snapshot::Restore {
            file,
            bump_revision,
            skip_hash_check,
            skip_auth,
            settings,
            mark_compacted: _,
        } => {
            let raise = bump_revision.and_then(NonZeroU64::new);
            restore(file, Restore { raise, skip_hash_check, skip_auth }, &settings).await
        }
    }
}

/// Writes the file, and reads it back before it gets its name.
async fn save(file: &Path, connection: &Connection) -> Result<ExitCode> {
    let name = || file.display().to_string();
    let unfinished = file.with_extension("part");
    ensure!(!file.exists(), "{} exists; give another name or delete it", name());
    let mut out = File::create(&unfinished).with_context(|| format!("writing {}", unfinished.display()))?;
    let mut client = MaintenanceClient::new(connection.any().await?);
    let mut request = Request::new(SnapshotRequest {});
    let (name_of_format, format) = quoin_proto::SNAPSHOT_FORMAT;
    request.metadata_mut().insert(name_of_format, MetadataValue::from_static(format));
    let mut pieces = client.snapshot(request).await?.into_inner();
    let (mut bytes, mut revision) = (0, 0);
    while let Some(piece) = pieces.message().await? {
        out.write_all(&piece.blob).with_context(name)?;
        bytes += piece.blob.len();
        revision = piece.header.map_or(revision, |header| header.revision);
    }
    out.sync_all().with_context(name)?;
    let written = unfinished.clone();
    let checked = tokio::task::spawn_blocking(move || quoin_node::check_snapshot(&written)).await?;
    checked.context("what was saved cannot be restored: save it again")?;
    std::fs::rename(&unfinished, file).with_context(name)?;
    connection.say(
        &json!({ "file": name(), "bytes": bytes, "revision": revision }),
        &format!("{}: {bytes} bytes, everything up to revision {revision}", name()),
    )
}

async fn restore(file: PathBuf, how: Restore, settings: &Settings) -> Result<ExitCode> {
    let config = settings.resolve()?;
    let folder = config.data_dir.display().to_string();
    let progress = tokio::task::spawn_blocking(move || quoin_node::restore(&config, &file, how)).await??;
    let revision = progress.revision;
    writeln!(
        std::io::stdout(),
        "{folder} holds everything up to revision {revision}; serve it with the same settings"
    )?;
    Ok(ExitCode::SUCCESS)
}
