//! The invariants that docs/architecture.md names are tagged in the code where it keeps them, and every tag
//! has its name from the page.
//!
//! The page names an invariant at the beginning of an item: `- **Whole entries.** The store ...`. A tag is a
//! comment of one line: `// Invariant: Whole entries.`, or in the head of a module `//! **Invariant: Whole
//! entries.** ...`.

use crate::{assert_none, files, root, shown};
use std::collections::BTreeSet;

/// The names in the section on invariants.
fn names(page: &str) -> BTreeSet<&str> {
    let section = page.split("\n## Invariants\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    section.lines().filter_map(|line| Some(line.strip_prefix("- **")?.split_once(".**")?.0)).collect()
}

/// The tags of a source file with their lines; an error for a comment that looks like a tag and names
/// nothing.
fn tags(source: &str) -> Vec<(usize, Result<&str, &str>)> {
    let mut found = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let line = line.trim_start();
        if !line.starts_with("//") {
            continue;
        }
        // An older way to write it.
        if line.contains("Invariant (") {
            found.push((number + 1, Err(line)));
        }
        for tag in line.split("Invariant: ").skip(1) {
            found.push((number + 1, tag.split_once('.').map(|(name, _)| name).ok_or(line)));
        }
    }
    found
}

/// What does not agree between the page and the code, whose files are given as name and text.
fn complaints<'a>(page: &str, sources: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let names = names(page);
    let mut tagged = BTreeSet::new();
    let mut found = Vec::new();
    for (file, source) in sources {
        for (line, tag) in tags(source) {
            match tag {
                Ok(name) if names.contains(name) => drop(tagged.insert(name)),
                Ok(name) => {
                    found.push(format!("{file}:{line}: {name:?} is no invariant of docs/architecture.md"))
                }
                Err(comment) => {
                    found.push(format!("{file}:{line}: write \"Invariant: Name.\" instead of {comment}"))
                }
            }
        }
    }
    let untagged = names.iter().filter(|name| !tagged.contains(**name));
    found.extend(
        untagged.map(|name| format!("docs/architecture.md: no code has the tag \"Invariant: {name}.\"")),
    );
    found
}

const PAGE: &str = "# A\n\n- **No.** not here\n\n## Invariants\n\nText.\n\n\
                    - **Whole entries.** The store persists\n  - **nested.** not an item\n\
                    - **Once (encoding).** A command\n\n## Reads\n\n- **Neither.** here\n";

#[test]
fn names_are_those_of_the_section() {
    assert_eq!(names(PAGE).into_iter().collect::<Vec<_>>(), ["Once (encoding)", "Whole entries"]);
    assert!(names("# A page without the section\n- **Name.** x").is_empty());
}

#[test]
fn tags_are_found_in_every_kind_of_comment() {
    let source = "//! **Invariant: One step.** All of it.\nfn f() {\n    // Invariant: Whole entries.\n}\n\
                  /// Invariant: Once (encoding). And more.\nlet text = \"Invariant: Not a comment.\";\n//!
                  /// **Invariant.** Of its own.";
    assert_eq!(tags(source), [(1, Ok("One step")), (3, Ok("Whole entries")), (5, Ok("Once (encoding)"))]);
    assert_eq!(tags("// Invariant: no end"), [(1, Err("// Invariant: no end"))]);
    assert_eq!(tags("//! **Invariant (old).** x"), [(1, Err("//! **Invariant (old).** x"))]);
}

#[test]
fn names_and_tags_must_agree_both_ways() {
    let both = "// Invariant: Whole entries.\n// Invariant: Once (encoding).";
    assert!(complaints(PAGE, [("a.rs", both)]).is_empty());
    assert_eq!(
        complaints(PAGE, [("a.rs", "// Invariant: Whole entries."), ("b.rs", "\n// Invariant: Twice.")]),
        [
            "b.rs:2: \"Twice\" is no invariant of docs/architecture.md",
            "docs/architecture.md: no code has the tag \"Invariant: Once (encoding).\"",
        ]
    );
}

#[test]
fn the_page_and_the_code_name_the_same_invariants() {
    let page = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    assert!(!names(&page).is_empty(), "the section on invariants is gone");
    let this = files(&root().join("crates/testkit/tests"), ".rs");
    let sources = files(&root().join("crates"), ".rs").into_iter().filter(|file| !this.contains(file));
    let sources: Vec<(String, String)> =
        sources.map(|file| (shown(&file), std::fs::read_to_string(&file).unwrap())).collect();
    assert_none(&complaints(&page, sources.iter().map(|(file, text)| (file.as_str(), text.as_str()))));
}
