//! `quoin table`: lookup tables, from files to folders and from folders to the cluster.

mod export;
mod files;
mod progress;
mod serving;

pub(crate) use serving::publish_and_activate;

use anyhow::Result;
use clap::Subcommand;

/// What can be done with tables.
#[derive(Subcommand)]
pub(crate) enum Table {
    /// Build a table, or a patch, from Parquet, CSV and JSON lines
    Build(Box<files::Build>),
    /// Fold patches into their base: a new base
    Merge(files::Merge),
    /// Show what a table's folder holds
    Inspect(files::Inspect),
    /// Check every byte of a table's folder
    Verify(files::Verify),
    /// Make a folder's table known to the cluster: replicas fetch and check it
    Publish(serving::Publish),
    /// Have a version answer, on every replica at once
    Activate(serving::Activate),
    /// Have the version answer that was active before
    Rollback(serving::Rollback),
    /// Show tables, their versions, and who has them
    Versions(serving::Versions),
    /// Forget a version, or a table with everything
    Drop(serving::Drop),
    /// Look keys up
    Lookup(serving::Lookup),
    /// Change keys of the active version
    Set(serving::Set),
    /// Delete keys of the active version
    Del(serving::Del),
    /// Write the changes over the active version into a patch, to be published or merged
    ExportChanges(export::ExportChanges),
}

pub(crate) async fn run(table: Table) -> Result<()> {
    match table {
        Table::Build(build) => files::build(*build),
        Table::Merge(merge) => files::merge(merge),
        Table::Inspect(inspect) => files::inspect(&inspect),
        Table::Verify(verify) => files::verify(&verify),
        Table::Publish(publish) => serving::publish(publish).await,
        Table::Activate(activate) => serving::activate(activate).await,
        Table::Rollback(rollback) => serving::rollback(rollback).await,
        Table::Versions(versions) => serving::versions(versions).await,
        Table::Drop(drop) => serving::drop(drop).await,
        Table::Lookup(lookup) => serving::lookup(lookup).await,
        Table::Set(set) => serving::set(set).await,
        Table::Del(del) => serving::del(del).await,
        Table::ExportChanges(export) => export::run(export).await,
    }
}
