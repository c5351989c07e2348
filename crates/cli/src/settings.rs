//! A node's settings from four places, of which later ones win: defaults, the file, `QUOIN_*` variables,
//! flags.
//!
//! Flags and variables are generated from the list of settings, so none can be missing: `raft.tick_ms` is
//! `--raft-tick-ms` and `QUOIN_RAFT_TICK_MS`. Lists are written `a,b`, maps `name=value,name=value`.

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use quoin_node::Config;
use quoin_node::config::{ConfigError, SETTINGS, check_number};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The settings that the command line and the environment give.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    file: Option<PathBuf>,
    given: Vec<(&'static str, String)>,
}

fn flag(path: &str) -> String {
    path.replace(['.', '_'], "-")
}

fn variable(path: &str) -> String {
    format!("QUOIN_{}", path.replace('.', "_").to_uppercase())
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config").long("config").value_name("FILE").value_hint(ValueHint::FilePath);
        let command = command.arg(
            file.env("QUOIN_CONFIG").help("Settings file (TOML)").value_parser(clap::value_parser!(PathBuf)),
        );
        SETTINGS.iter().fold(command, |command, (path, help)| {
            let arg = Arg::new(*path).long(flag(path)).env(variable(path)).value_name("VALUE").help(*help);
            let arg = arg.hide_env_values(true).allow_negative_numbers(true);
            // Said in one word.
            let arg = match *path {
                "insecure" | "force_new_cluster" => {
                    arg.num_args(0..=1).require_equals(true).default_missing_value("true")
                }
                _ => arg,
            };
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given =
            |(path, _): &(&'static str, &str)| Some((*path, matches.get_one::<String>(path)?.clone()));
        Ok(Self {
            file: matches.get_one("config").cloned(),
            given: SETTINGS.iter().filter_map(given).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Settings {
    /// The settings of a file alone.
    pub(crate) fn of_file(file: PathBuf) -> Self {
        Self { file: Some(file), given: Vec::new() }
    }

    /// Merges the four places and checks the result.
    pub(crate) fn resolve(&self) -> Result<Config> {
        let mut table = Table::try_from(Config::default()).context("reading the defaults")?;
        if let Some(file) = &self.file {
            merge(&mut table, read(file)?);
        }
        for (path, text) in &self.given {
            set(&mut table, path, text).with_context(|| format!("--{} {text:?}", flag(path)))?;
        }
        let config: Config = table.try_into()?;
        config.check()?;
        Ok(config)
    }
}

/// Reads a settings file; an unknown key is an error.
fn read(file: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let told = |error: toml::de::Error| without_excerpt(file, &text, &error);
    let table = toml::from_str(&text).map_err(told)?;
    check_numbers("", &table).with_context(|| file.display().to_string())?;
    // Parsed twice: this one reports unknown keys with their place in the file.
    toml::from_str::<Config>(&text).map_err(told)?;
    Ok(table)
}

/// The error with its line's number in place of the line, which may have a secret, as that of a mistyped name.
fn without_excerpt(file: &Path, text: &str, error: &toml::de::Error) -> anyhow::Error {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(String::new(), |before| format!(", line {}", before.matches('\n').count() + 1));
    anyhow::anyhow!("{}{line}: is not a settings file: {}", file.display(), error.message())
}

/// Checks numbers before they are converted, which would refuse them without their setting and range.
fn check_numbers(section: &str, table: &Table) -> Result<(), ConfigError> {
    for (name, value) in table {
        let path = format!("{section}{name}");
        match value {
            Value::Integer(number) => check_number(&path, (*number).into())?,
            Value::Table(inner) => check_numbers(&format!("{path}."), inner)?,
            _ => {}
        }
    }
    Ok(())
}

fn merge(base: &mut Table, over: Table) {
    for (name, value) in over {
        match (base.get_mut(&name), value) {
            (Some(Value::Table(inner)), Value::Table(more)) if name != "cluster" => merge(inner, more),
            (_, value) => drop(base.insert(name, value)),
        }
    }
}

fn set(table: &mut Table, path: &str, text: &str) -> Result<()> {
    let (name, section) = match path.split_once('.') {
        Some((section, name)) => match table.get_mut(section) {
            Some(Value::Table(inner)) => (name, inner),
            _ => bail!("there is no section {section}"),
        },
        None => (path, &mut *table),
    };
    let value = section.get(name).context("there is no such setting")?;
    let value = parse(path, value, text)?;
    section.insert(name.into(), value);
    // Everything else is as it was: what is wrong now is this value.
    let wrong = table.clone().try_into::<Config>().err();
    wrong.map_or(Ok(()), |error| bail!("{}", error.message()))
}

/// Parses `text` as a value of the setting at `path`, of the same type as `like`.
fn parse(path: &str, like: &Value, text: &str) -> Result<Value> {
    let items = || text.split(',').filter(|item| !item.is_empty());
    Ok(match like {
        Value::Integer(_) => {
            let number: i128 = text.parse().context("must be a whole number")?;
            check_number(path, number)?;
            Value::Integer(i64::try_from(number).context("is too large")?)
        }
        Value::Boolean(_) => Value::Boolean(text.parse().context("must be true or false")?),
        Value::Array(_) => Value::Array(items().map(|item| Value::String(item.into())).collect()),
        Value::Table(_) => {
            let pair = |item: &str| {
                let (name, value) = item.split_once('=').context("must be NAME=VALUE,NAME=VALUE")?;
                Ok((name.to_string(), Value::String(value.into())))
            };
            Value::Table(items().map(pair).collect::<Result<Table>>()?)
        }
        _ => Value::String(text.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(given: &[(&'static str, &str)]) -> Settings {
        Settings {
            file: None,
            given: given.iter().map(|(path, text)| (*path, (*text).to_string())).collect(),
        }
    }

    #[test]
    fn flags_are_parsed_by_the_type_of_their_setting() {
        let given = [
            ("name", "a"),
            ("raft.tick_ms", "7"),
            ("cluster", "a=127.0.0.1:2380,b=h:2"),
            ("advertise_client", "http://x"),
        ];
        let config = settings(&given).resolve().unwrap();
        assert_eq!((config.name.as_str(), config.raft.tick_ms), ("a", 7));
        assert_eq!(config.cluster["b"], "h:2");
        assert_eq!(config.advertise_client, ["http://x"]);
    }

    #[test]
    fn a_wrong_value_is_named_with_its_flag() {
        let error = settings(&[("raft.tick_ms", "soon")]).resolve().unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "--raft-tick-ms \"soon\": must be a whole number: invalid digit found in string"
        );
    }

    #[test]
    fn an_impossible_value_is_refused_with_its_setting_value_and_range_wherever_it_is_given() {
        let range = "it must be at least 1 and at most 1000";
        for value in ["0", "-1", "1001", "9223372036854775807", "9223372036854775808"] {
            let error = format!("{:#}", settings(&[("raft.tick_ms", value)]).resolve().unwrap_err());
            assert_eq!(error, format!("--raft-tick-ms \"{value}\": raft.tick_ms: is {value}; {range}"));
        }
        let error = format!("{:#}", settings(&[("listen_client", "here")]).resolve().unwrap_err());
        assert_eq!(error, "--listen-client \"here\": invalid socket address syntax");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("quoin.toml");
        for value in ["0", "-1", "1001"] {
            std::fs::write(&file, format!("[raft]\ntick_ms = {value}\n")).unwrap();
            let error = format!("{:#}", Settings::of_file(file.clone()).resolve().unwrap_err());
            assert_eq!(error, format!("{}: raft.tick_ms: is {value}; {range}", file.display()));
        }
    }

    #[test]
    fn flags_override_a_file_and_its_unknown_keys_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("quoin.toml");
        std::fs::write(&file, "name = 'f'\n[raft]\ntick_ms = 5\nelection_ticks = 9\n").unwrap();
        let settings = Settings { file: Some(file.clone()), given: vec![("raft.tick_ms", "6".into())] };
        let config = settings.resolve().unwrap();
        assert_eq!((config.name.as_str(), config.raft.tick_ms, config.raft.election_ticks), ("f", 6, 9));
        std::fs::write(&file, "nome = 'f'\n").unwrap();
        assert!(format!("{:#}", settings.resolve().unwrap_err()).contains("unknown field `nome`"));
    }
}
