//! `quoin route write`: a file of writes, deletions and conditions, which is done at one revision or not at all.

use super::client::client;
use super::text::{KeyText, RuleText};
use crate::connection::Connection;
use crate::outcome::Write as _;
use anyhow::{Context, Result};
use clap::Args;
use quoin_proto::quoin::route::v1 as pb;
use serde::Deserialize;
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes and deletions.
#[derive(Args)]
pub(crate) struct Write {
    /// JSON lines: {"put": RULE}, {"delete": {"vni": N, "ip": IP}} and {"if": {"vni": N, "ip": IP, "revision": R}},
    /// where R is 0 if the rule must not exist; - is standard input
    file: PathBuf,
    #[command(flatten)]
    connection: Connection,
}

/// A line of a file.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Put(RuleText),
    Delete(KeyText),
    If(ConditionText),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionText {
    vni: u32,
    ip: String,
    revision: i64,
}

/// Sends the file.
pub(super) async fn run(write: Write) -> Result<ExitCode> {
    let Write { file, connection } = write;
    let request = if file == Path::new("-") {
        read(stdin().lock(), "standard input")
    } else {
        let open = File::open(&file).with_context(|| format!("opening {}", file.display()))?;
        read(BufReader::new(open), &file.display().to_string())
    }?;
    let mut routes = client(connection.any().await?);
    let pb::WriteResponse { revision, written, deleted, .. } =
        routes.write(request).await.or_look(super::rules::look)?.into_inner();
    let text = match revision {
        0 => "nothing to do: all conditions hold, and no rule to delete exists".to_owned(),
        _ => format!("{written} written and {deleted} deleted at revision {revision}"),
    };
    connection.say(&json!({ "revision": revision, "written": written, "deleted": deleted }), &text)
}

fn read(lines: impl BufRead, name: &str) -> Result<pb::WriteRequest> {
    let mut request = pb::WriteRequest::default();
    for (number, line) in lines.lines().enumerate() {
        let line = line.with_context(|| format!("reading {name}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let place = || format!("{name} line {}", number + 1);
        match serde_json::from_str(&line).with_context(place)? {
            Line::Put(rule) => request.puts.push(rule.into_rule().with_context(place)?),
            Line::Delete(key) => request.deletes.push(key.into()),
            Line::If(ConditionText { vni, ip, revision }) => {
                request.conditions.push(pb::Condition { key: Some(pb::RuleKey { vni, ip }), revision });
            }
        }
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_line_is_read_and_a_wrong_one_named_by_its_place() {
        let text = r#"{"put": {"vni": 1, "ip": "10.0.0.1", "group": "g"}}

{"delete": {"vni": 1, "ip": "10.0.0.2"}}
{"if": {"vni": 1, "ip": "10.0.0.3", "revision": 7}}
"#;
        let request = read(text.as_bytes(), "file").unwrap();
        assert_eq!((request.puts[0].group.as_str(), request.deletes[0].ip.as_str()), ("g", "10.0.0.2"));
        assert_eq!(request.conditions[0].revision, 7);
        for wrong in [r#"{"if": {"vni": 1, "ip": "10.0.0.3"}}"#, r#"{"remove": {}}"#, "x"] {
            let error = read(format!("\n{wrong}").as_bytes(), "file").unwrap_err();
            assert_eq!(error.to_string(), "file line 2");
        }
    }
}
