//! `quoin snapshot`: all keys, leases and history in one file, and a new cluster made of such a file.

use crate::connection::Connection;
use crate::settings::Settings;
use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use quoin_proto::etcdserverpb::SnapshotRequest;
use quoin_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Snapshot files, as `etcdctl snapshot save` writes them too.
#[derive(Subcommand)]
pub(crate) enum Snapshot {
    /// Write a replica's state to a file
    Save {
        /// The file; there must be none yet
        file: PathBuf,
        #[command(flatten)]
        connection: Connection,
    },
    /// Make the data folder of a new cluster's founder from a file
    ///
    /// Each founder restores the same file with the settings with which it will be served: --name, --data-dir, --cluster. A
    /// new --cluster-token keeps members of the old cluster apart from the new one.
    Restore {
        /// The file
        file: PathBuf,
        #[command(flatten)]
        settings: Box<Settings>,
    },
}

/// Does it.
pub(crate) async fn run(snapshot: Snapshot) -> Result<()> {
    match snapshot {
        Snapshot::Save { file, connection } => save(&file, &connection).await,
        Snapshot::Restore { file, settings } => {
            let config = settings.resolve()?;
            let folder = config.data_dir.display().to_string();
            let progress = tokio::task::spawn_blocking(move || quoin_node::restore(&config, &file)).await??;
            let mut out = std::io::stdout();
            writeln!(
                out,
                "{folder} holds everything up to revision {}; serve it with the same settings",
                progress.revision
            )?;
            Ok(())
        }
    }
}

async fn save(file: &Path, connection: &Connection) -> Result<()> {
    let name = || file.display().to_string();
    let unfinished = file.with_extension("part");
    ensure!(!file.exists(), "{} exists already", name());
    let mut out = File::create(&unfinished).with_context(|| unfinished.display().to_string())?;
    let mut client = MaintenanceClient::new(connection.any().await?);
    let mut pieces = client.snapshot(SnapshotRequest {}).await?.into_inner();
    let (mut bytes, mut revision) = (0, 0);
    while let Some(piece) = pieces.message().await? {
        out.write_all(&piece.blob).with_context(name)?;
        bytes += piece.blob.len();
        revision = piece.header.map_or(revision, |header| header.revision);
    }
    out.sync_all().and_then(|()| std::fs::rename(&unfinished, file)).with_context(name)?;
    let mut out = std::io::stdout();
    if connection.json {
        let told = serde_json::json!({ "file": name(), "bytes": bytes, "revision": revision });
        return Ok(writeln!(out, "{told}")?);
    }
    Ok(writeln!(out, "{}: {bytes} bytes, everything up to revision {revision}", name())?)
}
