//! `quoin`: the one binary. This file lists the commands; the modules run them.

mod audit;
mod cert;
mod cluster;
mod connection;
mod demo;
mod doctor;
mod ending;
mod kv;
mod ledger;
mod outcome;
mod output;
mod playground;
mod rebuild;
mod route;
mod serve;
mod settings;
mod snapshot;
mod table;
mod users;

use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use settings::Settings;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The place in a command's help of the options that all commands have: after its own.
const LAST: usize = 900;

/// The state layer under online services: keys, lookup tables, accounts and routing rules on one replicated
/// log.
#[derive(Parser)]
#[command(name = "quoin", version, propagate_version = true, max_term_width = 100, after_help = outcome::HELP)]
struct Arguments {
    /// Format of log lines, on standard error
    #[arg(long, global = true, display_order = LAST, value_enum, default_value_t = LogFormat::Text, env = "QUOIN_LOG_FORMAT")]
    log_format: LogFormat,
    /// What to log, in the syntax of RUST_LOG
    #[arg(long, global = true, display_order = LAST, value_name = "FILTER", default_value = "info", env = "QUOIN_LOG")]
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
    /// Run a single node to try things out, with its data in ./quoin-data
    Dev(serve::Dev),
    /// Run a cluster of processes on loopback until Ctrl-C
    Playground(playground::Playground),
    /// Start three replicas, use every face, kill the leader, and print what it took
    Demo {
        /// Exit after the job instead of serving until Ctrl-C
        #[arg(long)]
        once: bool,
    },
    /// Members: status, alarms, add, remove, promote, transfer-leader
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Keys: get, put, del, cas, txn, watch, lock
    #[command(subcommand)]
    Kv(kv::Kv),
    /// Rules by network and address: put, get, list, delete, watch, load, nodes, agent
    #[command(subcommand)]
    Route(route::Route),
    /// Lookup tables: build, publish, activate, rollback, lookup, and more
    #[command(subcommand)]
    Table(table::Table),
    /// Accounts and transfers: account, transfer, statement, export, verify, and more
    #[command(subcommand)]
    Ledger(ledger::Ledger),
    /// Whether requests need rights: status, enable, disable
    #[command(subcommand)]
    Auth(users::Auth),
    /// Users: list, get, add, delete, passwd, grant, revoke
    #[command(subcommand)]
    User(users::User),
    /// Roles: list, get, add, delete, grant, revoke, grant-part, revoke-part, grant-tables, revoke-tables
    #[command(subcommand)]
    Role(users::Role),
    /// Snapshots: save, restore
    #[command(subcommand)]
    Snapshot(snapshot::Snapshot),
    /// Look at a stopped node's data folder: what it holds, what is damaged, what to do
    Doctor(doctor::Doctor),
    /// Measure Quoin, etcd or Redis
    #[command(subcommand)]
    Bench(quoin_load::Bench),
    /// Certificates: init, renew, show
    #[command(subcommand)]
    Cert(cert::Cert),
    /// Audit trails: verify, show
    #[command(subcommand)]
    Audit(audit::Audit),
    /// Settings: check a file, print the defaults
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print shell completions
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a settings file for unknown keys, wrong values and settings that exclude each other
    Check {
        /// Settings file (TOML)
        file: PathBuf,
    },
    /// Print all settings with their defaults, as a settings file
    Defaults,
}

impl Command {
    /// Whether the command asks a cluster, which may refuse, or checks something, and may find damage.
    fn asks_a_cluster(&self) -> bool {
        matches!(
            self,
            Self::Cluster(_)
                | Self::Audit(_)
                | Self::Doctor(_)
                | Self::Kv(_)
                | Self::Route(_)
                | Self::Table(_)
                | Self::Ledger(_)
                | Self::Snapshot(_)
                | Self::Auth(_)
                | Self::User(_)
                | Self::Role(_)
        )
    }
}

fn main() -> ExitCode {
    let (arguments, json) = match parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => {
            // An error means that nobody reads the output.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    start_logging(&arguments);
    let asks_a_cluster = arguments.command.asks_a_cluster();
    match run(arguments.command) {
        Ok(code) => code,
        Err(error) if asks_a_cluster => outcome::end(&error, json),
        Err(error) => outcome::fail(&error),
    }
}

/// The arguments, and whether the command has been given `--json`.
fn parse(
    words: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>,
) -> Result<(Arguments, bool), clap::Error> {
    let mut command = Arguments::command();
    let matches = command.try_get_matches_from_mut(words)?;
    let arguments = Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok((arguments, outcome::wants_json(&matches)))
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Kv(kv) => return block_on(kv::run(kv)),
        Command::Route(route) => return block_on(route::run(route)),
        Command::Ledger(ledger) => return block_on(ledger::run(ledger)),
        Command::Cluster(cluster) => return block_on(cluster::run(cluster)),
        Command::Auth(auth) => return block_on(users::auth(auth)),
        Command::User(user) => return block_on(users::user(user)),
        Command::Role(role) => return block_on(users::role(role)),
        Command::Snapshot(snapshot) => return block_on(snapshot::run(snapshot)),
        Command::Doctor(doctor) => return block_on(doctor::run(doctor)),
        Command::Serve(settings) => block_on(serve::serve(settings.resolve()?))?,
        Command::Dev(dev) => block_on(serve::dev(&dev))?,
        Command::Playground(playground) => block_on(playground::run(playground))?,
        Command::Demo { once } => block_on(demo::run(once))?,
        Command::Table(table) => block_on(table::run(table))?,
        Command::Bench(bench) => {
            let program = std::env::current_exe().context("finding this program")?;
            block_on(quoin_load::run(bench, &program))?;
        }
        Command::Cert(cert) => cert::run(cert)?,
        Command::Audit(audit) => audit::run(audit)?,
        Command::Config(ConfigCommand::Check { file }) => {
            Settings::of_file(file.clone()).resolve()?;
            writeln!(std::io::stdout(), "{} is good", file.display())?;
        }
        Command::Config(ConfigCommand::Defaults) => {
            write!(std::io::stdout(), "{}", toml::to_string(&quoin_node::Config::default())?)?;
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "quoin", &mut script);
            std::io::stdout().write_all(&script)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

fn start_logging(arguments: &Arguments) {
    // What opening a store says by the way is nothing to whoever only looks at it.
    let looks = matches!(arguments.command, Command::Doctor(_)) && arguments.log == "info";
    let filter = tracing_subscriber::EnvFilter::new(if looks { "off" } else { &arguments.log });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn json_is_seen_at_any_depth() {
        for (line, json) in [
            ("quoin kv get a --json", true),
            ("quoin kv get a", false),
            ("quoin kv put a --json --ttl 5s b", true),
            ("quoin kv put a -- --json", false),
            ("quoin ledger account list --json", true),
            ("quoin table verify folder", false),
            ("quoin config defaults", false),
        ] {
            let parsed = parse(line.split(' ')).map(|(_, json)| json);
            assert_eq!(parsed.map_err(|error| error.to_string()), Ok(json), "{line}");
        }
    }

    #[test]
    fn wrong_usage_is_told_on_standard_error_and_help_is_not() {
        let error = |line: &str| parse(line.split(' ')).err().expect(line);
        assert!(error("quoin kv get").use_stderr());
        assert!(error("quoin kv get a --timeout -1").use_stderr());
        assert!(!error("quoin --help").use_stderr());
        // The terminal's width decides where lines end.
        let help = error("quoin --help").to_string();
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&help).contains(&words(outcome::HELP)), "{help}");
    }
}
