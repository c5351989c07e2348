//! `quoin table`: lookup tables, from files to folders and from folders to the cluster.

mod files;
mod progress;

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
}

pub(crate) fn run(table: Table) -> Result<()> {
    match table {
        Table::Build(build) => files::build(*build),
        Table::Merge(merge) => files::merge(merge),
        Table::Inspect(inspect) => files::inspect(&inspect),
        Table::Verify(verify) => files::verify(&verify),
    }
}
