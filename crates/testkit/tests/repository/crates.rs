//! Which crate may know what: the rules of docs/architecture.md about dependencies.

use crate::{assert_none, files, root, shown};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Dependencies that one crate has to itself, for any purpose.
const OWNED: &[(&str, &str)] = &[("raft", "quoin-consensus"), ("lsm-tree", "quoin-store")];

/// Crates of the workspace that a crate must not depend on, whatever else it needs. `quoin-*` stands for all.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("quoin-proto", &["quoin-*"]),
    (
        "quoin-core",
        &[
            "quoin-*",
            "tokio",
            "tonic",
            "axum",
            "mio",
            "rand",
            "rustix",
            "libc",
            "memmap2",
            "getrandom",
            "tempfile",
        ],
    ),
    ("quoin-table", &["quoin-*", "tokio", "tonic", "reqwest"]),
    ("quoin-tls", &["quoin-*"]),
    ("quoin-audit", &["quoin-*", "tokio"]),
    (
        "quoin-etcd-file",
        &["quoin-consensus", "quoin-engine", "quoin-store", "quoin-api", "quoin-node", "tokio"],
    ),
    ("quoin-store", &["quoin-consensus", "quoin-engine", "quoin-api", "quoin-node", "tokio"]),
    ("quoin-consensus", &["quoin-store", "quoin-engine", "quoin-api", "quoin-node"]),
    ("quoin-engine", &["quoin-api", "quoin-node", "tonic", "axum"]),
    ("quoin-api", &["quoin-consensus", "quoin-node"]),
    (
        "quoin-load",
        &["quoin-node", "quoin-engine", "quoin-api", "quoin-consensus", "quoin-store", "quoin-library"],
    ),
    ("quoin-sim", &["quoin-api", "quoin-node"]),
    ("quoin-testkit", &["quoin-*"]),
];

/// What the code of `core` must not name outside of tests: clocks, files, sockets, threads, the environment.
/// Addresses are values, so `std::net` as such is allowed.
const NOT_IN_CORE: &[&str] = &[
    "Instant",
    "SystemTime",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "ToSocketAddrs",
    "std::fs",
    "std::env",
    "std::thread",
    "std::process",
    // One path per `use`, so that this list can find them.
    "std::{",
];

/// A dependency of a crate. Those for tests alone are not the crate's own.
struct Dependency {
    of: String,
    on: String,
    for_tests: bool,
}

/// All dependencies in the output of `cargo metadata`.
fn dependencies(metadata: &serde_json::Value) -> Vec<Dependency> {
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let text = |value: &serde_json::Value| value.as_str().expect("a name").to_string();
            let for_tests = dependency["kind"] == "dev";
            found.push(Dependency { of: text(&package["name"]), on: text(&dependency["name"]), for_tests });
        }
    }
    found
}

fn complaints(dependencies: &[Dependency]) -> Vec<String> {
    let forbidden = |of: &str, on: &str| {
        let rules = FORBIDDEN.iter().filter(|(name, _)| *name == of).flat_map(|(_, forbidden)| *forbidden);
        let mut rules =
            rules.map(|rule| rule.strip_suffix('*').map_or(*rule == on, |prefix| on.starts_with(prefix)));
        rules.any(|broken| broken)
    };
    let owned = |of: &str, on: &str| OWNED.iter().any(|(name, owner)| *name == on && *owner != of);
    let broken = dependencies
        .iter()
        .filter(|Dependency { of, on, for_tests }| owned(of, on) || (!for_tests && forbidden(of, on)));
    broken
        .map(|Dependency { of, on, .. }| format!("{of} depends on {on}, which docs/architecture.md forbids"))
        .collect()
}

/// A source without comments and without what only tests see, and the names of the modules that only tests
/// see. Relies on rustfmt: an item ends with the first line that closes at its indentation.
fn without_tests(source: &str) -> (String, Vec<&str>) {
    let (mut kept, mut modules) = (String::new(), Vec::new());
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if code.starts_with("//") {
            continue;
        }
        if !(code.starts_with("#[cfg(") && code.contains("test")) {
            kept += line;
            kept.push('\n');
            continue;
        }
        let indent = &line[..line.len() - code.len()];
        let ends = |line: &str| {
            let code = line.strip_prefix(indent).unwrap_or_default();
            !code.starts_with(['#', ' ', '/']) && (code.ends_with(';') || code.ends_with('}'))
        };
        let last = lines.by_ref().find(|line| ends(line)).unwrap_or_default();
        let module = last.trim().strip_suffix(';').and_then(|item| item.split_once("mod "));
        modules.extend(module.map(|(_, name)| name));
    }
    (kept, modules)
}

/// The file of the module `name` that `parent` declares.
fn file_of(parent: &Path, name: &str) -> PathBuf {
    let folder = match parent.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "mod" | "main") => parent.with_file_name(""),
        _ => parent.with_extension(""),
    };
    let file = folder.join(format!("{name}.rs"));
    if file.exists() { file } else { folder.join(name).join("mod.rs") }
}

/// The words of [`NOT_IN_CORE`] in a source, with their lines.
fn forbidden_words(code: &str) -> Vec<&'static str> {
    let word = |char: char| char.is_alphanumeric() || char == '_';
    let stands_alone = |name: &str| {
        code.match_indices(name).any(|(at, _)| {
            !code[..at].ends_with(word) && (name.ends_with('{') || !code[at + name.len()..].starts_with(word))
        })
    };
    NOT_IN_CORE.iter().copied().filter(|name| stands_alone(name)).collect()
}

#[test]
fn a_forbidden_dependency_is_found() {
    let text = r#"{"packages": [
        {"name": "quoin-core", "dependencies": [
            {"name": "bytes", "kind": null}, {"name": "tokio", "kind": null}]},
        {"name": "quoin-table", "dependencies": [
            {"name": "quoin-table", "kind": "dev"}, {"name": "quoin-core", "kind": null}]},
        {"name": "quoin-sim", "dependencies": [
            {"name": "raft", "kind": "dev"}, {"name": "quoin-engine", "kind": null}]},
        {"name": "quoin-consensus", "dependencies": [{"name": "raft", "kind": null}]}
    ]}"#;
    let found = complaints(&dependencies(&serde_json::from_str(text).unwrap()));
    let wanted = [("quoin-core", "tokio"), ("quoin-table", "quoin-core"), ("quoin-sim", "raft")];
    let wanted = wanted.map(|(of, on)| format!("{of} depends on {on}, which docs/architecture.md forbids"));
    assert_eq!(found, wanted);
}

#[test]
fn code_that_only_tests_see_is_left_out() {
    let source = "//! Head.\nuse std::fs;\n#[cfg(any(test, feature = \"testing\"))]\npub mod golden;\n\
                  mod other;\nfn f() {\n    let x = 1; \n}\n\n\
                  #[cfg(test)]\n#[allow(x)]\nmod tests {\n    use super::*;\n\n    fn g() {\n    }\n}\nlast";
    let (kept, modules) = without_tests(source);
    assert_eq!(kept, "use std::fs;\nmod other;\nfn f() {\n    let x = 1; \n}\n\nlast\n");
    assert_eq!(modules, ["golden"]);
}

#[test]
fn forbidden_words_are_found_where_they_stand_alone() {
    assert_eq!(forbidden_words("use std::time::Instant;\nuse std::fs::File;"), ["Instant", "std::fs"]);
    assert_eq!(forbidden_words("use std::{fs, time};"), ["std::{"]);
    assert!(forbidden_words("use std::net::IpAddr; struct InstantReplay; fn std::fsync()").is_empty());
}

#[test]
fn crates_depend_only_on_what_they_may() {
    let cargo = std::env::var_os("CARGO").expect("Cargo runs tests");
    let mut command = std::process::Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path"]);
    let output = command.arg(root().join("Cargo.toml")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let dependencies = dependencies(&metadata);
    let packages = metadata["packages"].as_array().unwrap();
    let known: Vec<_> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let ruled = FORBIDDEN.iter().map(|(name, _)| name).chain(OWNED.iter().map(|(_, owner)| owner));
    let gone: Vec<_> = ruled.filter(|name| !known.contains(name)).collect();
    assert!(gone.is_empty(), "rules about crates that are gone: {gone:?}");
    assert_none(&complaints(&dependencies));
}

#[test]
fn core_names_no_clock_file_or_socket() {
    let sources = files(&root().join("crates/core/src"), ".rs");
    let texts: Vec<String> = sources.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let mut only_tests = BTreeSet::new();
    for (file, text) in sources.iter().zip(&texts) {
        only_tests.extend(without_tests(text).1.into_iter().map(|name| file_of(file, name)));
    }
    let mut found = Vec::new();
    // What is shipped has no defect to order, and so no environment to read the order from.
    only_tests.insert(root().join("crates/core/src/mutants.rs"));
    for (file, text) in sources.iter().zip(&texts).filter(|(file, _)| !only_tests.contains(*file)) {
        let words = forbidden_words(&without_tests(text).0);
        found.extend(words.into_iter().map(|word| format!("{} names {word}", shown(file))));
    }
    assert_none(&found);
}
