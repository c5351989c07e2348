//! `quoin`: the one binary. This file says what can be asked; the modules do it.

mod bench;
mod cluster;
mod connection;
mod demo;
mod http;
mod kv;
mod ledger;
mod output;
mod playground;
mod route;
mod serve;
mod settings;
mod snapshot;
mod table;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use settings::Settings;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One replicated log, several faces: consistent keys for coordination, sessions and metadata.
#[derive(Parser)]
#[command(name = "quoin", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    /// How log lines look
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, env = "QUOIN_LOG_FORMAT")]
    log_format: LogFormat,
    /// What is logged, as in RUST_LOG
    #[arg(long, global = true, value_name = "FILTER", default_value = "info", env = "QUOIN_LOG")]
    log: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node
    Serve(Settings),
    /// Run one node for trying things out, with data under ./quoin-data
    Dev(Settings),
    /// Run a cluster of processes on loopback until Ctrl-C
    Playground(playground::Playground),
    /// Three replicas, a real job, and what it took
    Demo {
        /// End after the job instead of serving until Ctrl-C
        #[arg(long)]
        once: bool,
    },
    /// Members: status, add, remove, promote, transfer the leadership
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Keys: get, put, delete, compare-and-set, transaction, watch, lock
    #[command(subcommand)]
    Kv(kv::Kv),
    /// Rules by network and address: put, get, list, delete, watch, load, nodes, agent
    #[command(subcommand)]
    Route(route::Route),
    /// Lookup tables: build, publish, activate, roll back, look up
    #[command(subcommand)]
    Table(table::Table),
    /// Accounts and transfers: account, transfer, statement, export, verify
    #[command(subcommand)]
    Ledger(ledger::Ledger),
    /// Snapshots: save, restore
    #[command(subcommand)]
    Snapshot(snapshot::Snapshot),
    /// Measure
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Look at settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print shell completions
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a settings file: unknown keys, wrong values, settings that cannot be together
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print all settings with their defaults, as a settings file
    Defaults,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_logging(&arguments);
    match run(arguments.command) {
        Ok(code) => code,
        Err(error) => {
            // Standard error is gone: there is nobody left to tell.
            let _ = writeln!(std::io::stderr(), "quoin: {}", explained(&error));
            ExitCode::FAILURE
        }
    }
}

/// What went wrong, outermost first; of a server's answer its text and its code by name.
fn explained(error: &anyhow::Error) -> String {
    let causes = error.chain().map(|cause| match cause.downcast_ref::<tonic::Status>() {
        Some(status) => {
            let text = status.message().strip_prefix("quoin: ").unwrap_or(status.message());
            format!("{text} ({:?})", status.code())
        }
        None => cause.to_string(),
    });
    let mut causes: Vec<String> = causes.collect();
    // What a status was caused by it says itself.
    if let Some(place) = error.chain().position(|cause| cause.is::<tonic::Status>()) {
        causes.truncate(place + 1);
    }
    causes.join(": ")
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Kv(kv) => return block_on(kv::run(kv)),
        Command::Route(route) => return block_on(route::run(route)),
        Command::Ledger(ledger) => return block_on(ledger::run(ledger)),
        Command::Cluster(cluster) => block_on(cluster::run(cluster))?,
        Command::Serve(settings) => block_on(serve::serve(settings.resolve()?))?,
        Command::Dev(settings) => block_on(serve::dev(settings.resolve()?))?,
        Command::Playground(playground) => block_on(playground::run(playground))?,
        Command::Demo { once } => block_on(demo::run(once))?,
        Command::Table(table) => block_on(table::run(table))?,
        Command::Snapshot(snapshot) => block_on(snapshot::run(snapshot))?,
        Command::Bench(bench) => block_on(bench::run(bench))?,
        Command::Config(ConfigCommand::Check { file }) => {
            Settings::of_file(file.clone()).resolve()?;
            writeln!(std::io::stdout(), "{} is good", file.display())?;
        }
        Command::Config(ConfigCommand::Defaults) => {
            write!(std::io::stdout(), "{}", toml::to_string(&quoin_node::Config::default())?)?;
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "quoin", &mut std::io::stdout());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

fn start_logging(arguments: &Arguments) {
    let filter = tracing_subscriber::EnvFilter::new(&arguments.log);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).init(),
    }
}
