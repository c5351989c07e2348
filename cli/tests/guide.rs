//! The examples of the guides do what the pages say.

use anyhow::{Context, Result, ensure};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_quoin");
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
/// The guides, each run against a node of its own; and how many examples it has at least.
const GUIDES: &[(&str, usize)] = &[("kv.md", 11), ("route.md", 7), ("ledger.md", 18), ("table.md", 9)];

/// A command of the guide, and what it prints.
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

struct Dev(Child);

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &std::path::Path, base: u16) -> Result<Dev> {
    let address = |offset| format!("127.0.0.1:{}", base + offset);
    let mut command = Command::new(PROGRAM);
    command.args(["dev", "--data-dir"]).arg(folder).args(["--listen-client", &address(0)]);
    command.args(["--listen-peer", &address(1), "--listen-http", &address(2)]);
    command.args(["--listen-resp", &address(3)]);
    let dev = Dev(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let begun = Instant::now();
    while !is_ready(&address(2)) {
        ensure!(begun.elapsed() < Duration::from_secs(60), "the node did not become ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(dev)
}

fn is_ready(address: &str) -> bool {
    use std::io::{Read, Write};
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let mut page = String::new();
    let asked = stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    asked.is_ok() && stream.read_to_string(&mut page).is_ok() && page.contains("200 OK")
}

#[test]
fn the_examples_print_what_the_pages_show() -> Result<()> {
    for (page, examples) in GUIDES {
        run_page(page, *examples).with_context(|| format!("docs/{page}"))?;
    }
    Ok(())
}

fn run_page(page: &str, examples_min: usize) -> Result<()> {
    let examples = examples(&std::fs::read_to_string(std::path::Path::new(DOCS).join(page))?);
    ensure!(examples.len() >= examples_min, "the page has only {} examples", examples.len());
    let (folder, files) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let free = |base: &u16| (0..4).all(|offset| TcpListener::bind(("127.0.0.1", base + offset)).is_ok());
    let base = (31_000..32_700).step_by(10).find(free).context("free ports")?;
    let _dev = start(folder.path(), base)?;
    let path = std::path::Path::new(PROGRAM).parent().context("the program's folder")?;
    let path = format!("{}:{}", path.display(), std::env::var("PATH")?);
    for Example { command, prints } in examples {
        let output = Command::new("sh")
            .args(["-c", &command])
            .current_dir(&files)
            .env("PATH", &path)
            .env("QUOIN_ENDPOINTS", format!("127.0.0.1:{base}"))
            .output()?;
        let printed = String::from_utf8(output.stdout)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(printed == prints, "$ {command}\nprints\n{printed}\n{errors}\ninstead of\n{prints}");
    }
    Ok(())
}
