//! Golden scripts: a face's `testscripts/*.txt` hold commands, each after `> `, and below each what it answers.
//! `UPDATE_GOLDEN=1 cargo test -p quoin-core` writes the answers anew; read the difference before you keep it.
//!
//! Machines are checked on every store that runs: with the feature `testing` other crates replay the same scripts.

#![allow(clippy::unwrap_used, reason = "tests, though other crates run them too")]

use std::path::Path;

/// Replays every script in `src/<face>/testscripts`; there must be at least `count`.
///
/// # Panics
/// A script is answered differently, or they are gone.
pub fn check(face: &str, count: usize, replay: impl Fn(&str) -> String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(face).join("testscripts");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= count, "the scripts are gone");
    for path in paths {
        let recorded = std::fs::read_to_string(&path).unwrap();
        let answered = replay(&recorded);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, answered).unwrap();
        } else {
            assert!(recorded == answered, "{} answers differently now:\n{answered}", path.display());
        }
    }
}

/// What stays of a script when its answers are taken out: comments, blank lines, and commands.
pub(crate) fn kept_lines(script: &str) -> impl Iterator<Item = &str> {
    script.lines().filter(|line| line.starts_with(['>', '#']) || line.is_empty())
}
