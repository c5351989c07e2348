//! The examples in the guides print what the pages show.

use anyhow::{Context, Result, ensure};
use quoin_testkit::Cluster;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_quoin");
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
/// Where the pages have a node's HTTP.
const HTTP: &str = "localhost:2381";
/// The guides, each run against a node of its own, and the minimum number of its examples.
const GUIDES: &[(&str, usize)] = &[("kv.md", 11), ("route.md", 30), ("ledger.md", 18), ("table.md", 9)];

/// A command in a guide, and what the page shows below it.
struct Example {
    command: String,
    prints: String,
}

fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let blocks = page.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    for line in blocks.flat_map(str::lines) {
        match (line.strip_prefix("$ "), examples.last_mut()) {
            (Some(command), _) => examples.push(Example { command: command.into(), prints: String::new() }),
            (None, Some(example)) => example.prints += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    examples
}

#[test]
fn the_examples_print_what_the_pages_show() -> Result<()> {
    for (page, examples) in GUIDES {
        run_page(page, *examples).with_context(|| format!("docs/{page}"))?;
    }
    Ok(())
}

fn run_page(page: &str, examples_min: usize) -> Result<()> {
    let examples = examples(&std::fs::read_to_string(Path::new(DOCS).join(page))?);
    ensure!(examples.len() >= examples_min, "the page has only {} examples", examples.len());
    let files = tempfile::tempdir()?;
    let node = Cluster::dev(PROGRAM, &[])?;
    let path = Path::new(PROGRAM).parent().context("the program's folder")?;
    let path = format!("{}:{}", path.display(), std::env::var("PATH")?);
    let http = node.http_address(0);
    for Example { command, prints } in examples {
        let output = Command::new("sh")
            .args(["-c", &command.replace(HTTP, &http)])
            .current_dir(&files)
            .env("PATH", &path)
            .env("QUOIN_ENDPOINTS", node.endpoints())
            .output()?;
        let mut printed = String::from_utf8(output.stdout)?;
        if !printed.is_empty() && !printed.ends_with('\n') {
            // The body of an HTTP answer does not end its line.
            printed.push('\n');
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(printed == prints, "$ {command}\nprints\n{printed}\n{errors}\ninstead of\n{prints}");
    }
    Ok(())
}
