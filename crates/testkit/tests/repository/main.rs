//! The repository keeps what its pages say: paths exist, invariants are tagged in the code, crates know only
//! what they may.
//!
//! Each module holds a checker, its own tests over small samples, and the test over the repository.

mod crates;
mod invariants;
mod paths;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// All files below `folder` whose names end in `ending`, in order. Build outputs are left out.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder of the repository can be read").path();
        let name = path.file_name().expect("an entry has a name").to_string_lossy();
        if path.is_dir() && name != "target" {
            found.extend(files(&path, ending));
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The path below the root, for messages.
fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Fails with one complaint per line, if there are any.
fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "{} complaints:\n{}\n", complaints.len(), complaints.join("\n"));
}
