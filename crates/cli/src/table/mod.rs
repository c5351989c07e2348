//! `quoin table`: lookup tables.
//!
//! `files.rs` builds and checks folders (`progress.rs` shows how far it is), `versions.rs` publishes and
//! activates them on a cluster, `keys.rs` looks keys up and changes them, `export.rs` writes changes back to
//! a folder.

mod client;
mod export;
mod files;
mod keys;
mod progress;
mod versions;

use anyhow::Result;
use clap::Subcommand;

/// Commands on tables.
#[derive(Subcommand)]
pub(crate) enum Table {
    /// Build a table, or a patch, from Parquet, CSV or JSON lines
    Build(Box<files::Build>),
    /// Merge patches into their base: makes a new base
    Merge(files::Merge),
    /// Show the contents of a table's folder
    Inspect(files::Inspect),
    /// Check every byte of tables' folders
    Verify(files::Verify),
    /// Publish a table's folder as a new version: replicas fetch and check it
    Publish(versions::Publish),
    /// Activate a version, on every replica at once
    Activate(versions::Activate),
    /// Activate the version that was active before
    Rollback(versions::Rollback),
    /// List tables, their versions, and which replicas have them
    Versions(versions::Versions),
    /// Drop a version, or a whole table
    Drop(versions::Drop),
    /// Look up keys
    Lookup(keys::Lookup),
    /// Set keys over the active version
    Set(keys::Set),
    /// Delete keys over the active version
    Del(keys::Del),
    /// Write the changes over the active version to a patch, to publish or to merge
    ExportChanges(export::ExportChanges),
}

/// Runs a command on tables.
pub(crate) async fn run(table: Table) -> Result<()> {
    match table {
        Table::Build(build) => files::build(*build),
        Table::Merge(merge) => files::merge(merge),
        Table::Inspect(inspect) => files::inspect(&inspect),
        Table::Verify(verify) => files::verify(&verify),
        Table::Publish(publish) => versions::publish(publish).await,
        Table::Activate(activate) => versions::activate(activate).await,
        Table::Rollback(rollback) => versions::rollback(rollback).await,
        Table::Versions(versions) => versions::versions(versions).await,
        Table::Drop(drop) => versions::drop(drop).await,
        Table::Lookup(lookup) => keys::lookup(lookup).await,
        Table::Set(set) => keys::set(set).await,
        Table::Del(del) => keys::del(del).await,
        Table::ExportChanges(export) => export::run(export).await,
    }
}
