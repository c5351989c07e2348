//! `quoin table export-changes`: the changes over the active version, as a patch over it.
//!
//! The patch notes the revision up to which it has the changes. A version published from it, or from what it
//! was merged into, hides these changes: they are folded.

use super::client::client;
use super::files::{Effort, report};
use super::progress::Bar;
use crate::connection::Connection;
use anyhow::{Context, Result};
use clap::Args;
use quoin_proto::quoin::table::v1 as pb;
use quoin_table::Manifest;
use quoin_table::build::{self, Change, Options};
use quoin_table::manifest::{FOLDS, MANIFEST};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};

/// Answers of the server that wait for the builder; reading pauses beyond.
const ANSWERS_WAITING: usize = 4;

/// An export.
#[derive(Args)]
pub(crate) struct ExportChanges {
    /// Name of the table
    table: String,
    /// Folder to make
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(arguments: ExportChanges) -> Result<()> {
    let ExportChanges { table, output, effort, connection } = arguments;
    let request = pb::ChangesRequest { table: table.clone() };
    let mut answers = client(&connection).await?.changes(request).await?.into_inner();
    let first = answers.message().await?.context("the server sent no answer")?;
    let over = first.over.clone().context("an answer without the version that the changes are over")?;
    let manifest = Manifest::parse(&over.manifest, Path::new(MANIFEST))?;
    let mut options = Options::new(&table, Vec::new(), output);
    options.over = Some(manifest);
    options.metadata.insert(FOLDS.into(), over.folds);
    effort.apply(&mut options);
    let (sender, receiver) = sync_channel(ANSWERS_WAITING);
    let bar = Bar::new();
    let building = tokio::task::spawn_blocking(move || {
        let built = build::patch(&options, over.keys, changes(receiver), &|progress| bar.show(progress));
        report(&bar, &options, built)
    });
    let mut answer = Ok(Some(first));
    while let Some(next) = answer.transpose() {
        let ended = next.is_err();
        // Waits while the builder is busy. If the builder has ended, its result says why.
        let sender = sender.clone();
        let taken = tokio::task::spawn_blocking(move || sender.send(next).is_ok()).await?;
        if !taken || ended {
            break;
        }
        answer = answers.message().await.map_err(|status| status.message().to_string());
    }
    drop(sender);
    building.await?
}

/// The changes of all answers.
fn changes(answers: Receiver<Result<pb::ChangesResponse, String>>) -> impl Iterator<Item = Change<Vec<u8>>> {
    answers.into_iter().flat_map(|answer| match answer.and_then(pairs) {
        Ok(changes) => changes,
        Err(why) => vec![Err(why)],
    })
}

fn pairs(answer: pb::ChangesResponse) -> Result<Vec<Change<Vec<u8>>>, String> {
    let pb::ChangesResponse { keys, values, deletes, .. } = answer;
    if keys.len() != values.len() {
        return Err(format!("the server sent {} keys and {} values", keys.len(), values.len()));
    }
    let set = keys.into_iter().zip(values).map(|(key, value)| Ok((key, Some(value.to_vec()))));
    Ok(set.chain(deletes.into_iter().map(|key| Ok((key, None)))).collect())
}
