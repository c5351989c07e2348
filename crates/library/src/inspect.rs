//! The table files of a stopped node, looked at and not changed.

use quoin_table::{Layer, Manifest, Options, TableError, manifest};
use std::fs;
use std::io;
use std::path::Path;

/// A layer's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerReport {
    /// The folder's name: the layer's id, and `.partial` while it is being fetched.
    pub folder: String,
    /// The table's name; empty if the manifest is not there or damaged.
    pub table: String,
    /// Bytes of the files that the manifest names.
    pub bytes: u64,
    /// What is wrong with it. A start fetches it again.
    pub problem: Option<String>,
}

/// The layers in `tables`, by name. `full` reads every byte; otherwise names and lengths are looked at.
///
/// # Errors
/// The folder cannot be read.
pub fn inspect(tables: &Path, full: bool) -> io::Result<Vec<LayerReport>> {
    let entries = match fs::read_dir(tables) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut reports = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let folder = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut report = LayerReport { folder, table: String::new(), bytes: 0, problem: None };
        if !report.folder.ends_with(".partial") {
            report.problem = look(&path, full, &mut report).err().map(|error| error.to_string());
        }
        reports.push(report);
    }
    reports.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(reports)
}

fn look(path: &Path, full: bool, report: &mut LayerReport) -> Result<(), TableError> {
    let manifest = Manifest::read(path)?;
    (report.table, report.bytes) = (manifest.name.clone(), manifest.bytes());
    if full {
        return Layer::open(path, Options::default()).map(|_| ());
    }
    for entry in manifest.all_files() {
        let file = path.join(&entry.name);
        let what = match fs::metadata(&file) {
            Ok(found) if found.len() == entry.bytes => continue,
            Ok(found) => format!("{} bytes, but {} says {}", found.len(), manifest::MANIFEST, entry.bytes),
            Err(error) => error.to_string(),
        };
        return Err(TableError::Other { file, what });
    }
    Ok(())
}
