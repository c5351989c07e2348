//! Every path of the repository that a page names exists.
//!
//! Checked are links, words that begin with a top-level folder (`crates/core/src/kv`), words that name a
//! source file (`core/src/machines.rs`, which lacks its top-level folder and fails), and bare names of Rust
//! files (`replica.rs`), which must be somewhere in `crates`. A `*` or a `<name>` in a path stands for any
//! name, and `{a,b}` for each of the two. Not checked are URLs and anchors.

use crate::{assert_none, files, root, shown};
use std::collections::BTreeSet;
use std::path::Path;

/// The folders at the root in which paths begin.
const TOP_FOLDERS: &[&str] = &["crates", "bench", "docs", "tests", "clients", ".ci"];
/// Endings of files that the repository tracks.
const ENDINGS: &[&str] = &[".rs", ".md", ".proto", ".sh", ".py", ".toml", ".sql", ".go"];

/// A path that a page names, and the line on which it does.
#[derive(Debug, PartialEq, Eq)]
struct Mention {
    line: usize,
    path: String,
}

/// The paths in a page's text and drawings.
fn mentions(page: &str) -> Vec<Mention> {
    let mut found = Vec::new();
    for (number, line) in page.lines().enumerate() {
        let words = without_link_targets(line);
        let of_path = |char: char| char.is_alphanumeric() || "_-./*<>{},:".contains(char);
        for word in words.split(|char| !of_path(char)) {
            // What follows a path in a sentence, and a line number.
            let word = word.trim_end_matches(['.', ',', ':', '/']).trim_start_matches(',');
            let word = word.split(':').next().unwrap_or_default();
            found.extend(
                expanded(word)
                    .into_iter()
                    .filter(|path| is_path(path))
                    .map(|path| Mention { line: number + 1, path }),
            );
        }
    }
    found
}

/// Link targets are looked at on their own, and URLs not at all.
fn without_link_targets(line: &str) -> String {
    let mut rest = line;
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once("](") {
        kept += before;
        kept.push(' ');
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    kept += rest;
    kept.split(' ').filter(|word| !word.contains("://")).collect::<Vec<_>>().join(" ")
}

/// `a/{b,c}` as `a/b` and `a/c`.
fn expanded(word: &str) -> Vec<String> {
    let Some((before, rest)) = word.split_once('{') else { return vec![word.into()] };
    let Some((choices, after)) = rest.split_once('}') else { return vec![word.into()] };
    choices.split(',').flat_map(|choice| expanded(&format!("{before}{choice}{after}"))).collect()
}

fn is_path(word: &str) -> bool {
    let source = ENDINGS.iter().any(|ending| word.len() > ending.len() && word.ends_with(ending));
    match word.split_once('/') {
        Some(("" | "." | "..", _)) => false,
        // A placeholder at its beginning: not a path of the repository.
        Some((first, _)) if first.contains(['<', '*']) => false,
        Some((first, rest)) => {
            let in_sources = rest.starts_with("src/") || rest.contains("/src/") || rest == "src";
            !rest.is_empty() && (TOP_FOLDERS.contains(&first) || in_sources || source)
        }
        None => word.ends_with(".rs") && word.len() > 3 && !word.contains(['<', '*']),
    }
}

/// The relative targets of a page's links, without anchors.
fn links(page: &str) -> Vec<Mention> {
    let mut found = Vec::new();
    for (number, line) in page.lines().enumerate() {
        for after in line.split("](").skip(1) {
            let target = after.split([')', '#', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                found.push(Mention { line: number + 1, path: target.into() });
            }
        }
    }
    found
}

/// Whether `pattern` matches a file or folder below `folder`.
fn exists(folder: &Path, pattern: &str) -> bool {
    let (first, rest) = match pattern.split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (pattern, None),
    };
    let matched = |path: &Path| rest.map_or_else(|| path.exists(), |rest| exists(path, rest));
    let Some((before, after)) = wildcard(first) else { return matched(&folder.join(first)) };
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.len() >= before.len() + after.len()
            && name.starts_with(before)
            && name.ends_with(after)
            && matched(&entry.path())
    })
}

/// What stands before and after the `*` or `<name>` in a name.
fn wildcard(name: &str) -> Option<(&str, &str)> {
    name.split_once('*').or_else(|| {
        let (before, rest) = name.split_once('<')?;
        Some((before, rest.split_once('>')?.1))
    })
}

/// What is wrong with a page's paths. `rust_files` are the bare names of all Rust files.
fn complaints(root: &Path, page: &Path, text: &str, rust_files: &BTreeSet<String>) -> Vec<String> {
    let folder = page.parent().expect("a page is in a folder");
    let found = |mention: &Mention| match mention.path.contains('/') {
        true => exists(root, &mention.path),
        false => rust_files.contains(&mention.path),
    };
    let missing = mentions(text).into_iter().filter(|mention| !found(mention));
    let broken = links(text).into_iter().filter(|link| !folder.join(&link.path).exists());
    let complain = |Mention { line, path }| format!("{}:{line}: there is no {path}", shown(page));
    missing.chain(broken).map(complain).collect()
}

fn rust_files(root: &Path) -> BTreeSet<String> {
    let name = |path: &std::path::PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    files(&root.join("crates"), ".rs").iter().filter_map(name).collect()
}

#[test]
fn paths_are_found_in_text_and_drawings() {
    let page = "See `crates/core/src/kv/machine.rs`, and (docs/log-format.md).\n\
                    core/src/<face>/query.rs  ──►  replica.rs: one step\n\
                a rate of 5/s, `<data_dir>/log/`, and/or, https://host/docs/none.md, `crates/{api,node}/src`\n\
                crates/store/src/open.rs:12, tests/compat/*/run.sh.";
    let found: Vec<_> = mentions(page).into_iter().map(|mention| (mention.line, mention.path)).collect();
    let wanted = [
        (1, "crates/core/src/kv/machine.rs"),
        (1, "docs/log-format.md"),
        (2, "core/src/<face>/query.rs"),
        (2, "replica.rs"),
        (3, "crates/api/src"),
        (3, "crates/node/src"),
        (4, "crates/store/src/open.rs"),
        (4, "tests/compat/*/run.sh"),
    ];
    assert_eq!(found, wanted.map(|(line, path)| (line, path.to_string())));
}

#[test]
fn links_are_found_without_anchors_and_urls() {
    let page = "[a](kv.md) and [b](../README.md#start), [c](#here)\n[d](https://host/x.md) [e](decisions)";
    let found: Vec<_> = links(page).into_iter().map(|link| (link.line, link.path)).collect();
    assert_eq!(
        found,
        [(1, "kv.md"), (1, "../README.md"), (2, "decisions")].map(|(line, path)| (line, path.to_string()))
    );
    assert!(mentions("[text](crates/none.rs)").is_empty(), "links are looked at on their own");
}

#[test]
fn what_is_missing_is_named_with_its_line() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("crates/core/src/kv")).unwrap();
    std::fs::create_dir_all(root.path().join("docs")).unwrap();
    std::fs::write(root.path().join("crates/core/src/kv/query.rs"), "").unwrap();
    let page = root.path().join("docs/page.md");
    let text = "crates/core/src/<face>/query.rs crates/*/src/kv query.rs [page](page.md)\n\
                crates/core/src/<face>/machine.rs core/src/kv/query.rs machine.rs [gone](gone.md)";
    std::fs::write(&page, text).unwrap();
    let missing: Vec<String> = complaints(root.path(), &page, text, &rust_files(root.path()));
    let wanted = ["crates/core/src/<face>/machine.rs", "core/src/kv/query.rs", "machine.rs", "gone.md"];
    let wanted = wanted.map(|path| format!("{}:2: there is no {path}", page.display()));
    assert_eq!(missing, wanted);
}

#[test]
fn every_path_in_the_pages_exists() {
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    pages.extend(files(&root().join("tests"), ".md"));
    // Decisions are dated: they name what was there on their day. Their links must hold.
    let (decisions, docs): (Vec<_>, Vec<_>) = files(&root().join("docs"), ".md")
        .into_iter()
        .partition(|page| page.to_string_lossy().contains("/decisions/"));
    pages.extend(docs);
    let rust_files = rust_files(root());
    let mut found = Vec::new();
    for page in pages {
        found.extend(complaints(root(), &page, &std::fs::read_to_string(&page).unwrap(), &rust_files));
    }
    for page in decisions {
        let text = std::fs::read_to_string(&page).unwrap();
        let broken =
            links(&text).into_iter().filter(|link| !page.parent().unwrap().join(&link.path).exists());
        found.extend(
            broken.map(|Mention { line, path }| format!("{}:{line}: there is no {path}", shown(&page))),
        );
    }
    assert_none(&found);
}

/// Comments and scripts refer to pages and scripts.
#[test]
fn every_page_that_the_code_names_exists() {
    let mut found = Vec::new();
    let sources =
        [("crates", ".rs"), ("crates", ".proto"), ("bench", ".sh"), ("tests", ".sh"), ("tests", ".rs")];
    for source in sources.into_iter().flat_map(|(folder, ending)| files(&root().join(folder), ending)) {
        if source.ends_with(file!()) {
            continue;
        }
        for Mention { line, path } in mentions(&std::fs::read_to_string(&source).unwrap()) {
            let named = ["docs/", "bench/", "tests/"].iter().any(|folder| path.starts_with(folder));
            let file = ENDINGS.iter().any(|ending| path.ends_with(ending));
            // A crate names its own tests without its folder.
            let own = source.strip_prefix(root().join("crates")).ok().and_then(|path| path.iter().next());
            let own = own.is_some_and(|name| exists(&root().join("crates").join(name), &path));
            if named && file && !own && !exists(root(), &path) {
                found.push(format!("{}:{line}: there is no {path}", shown(&source)));
            }
        }
    }
    assert_none(&found);
}
