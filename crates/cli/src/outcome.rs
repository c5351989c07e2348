//! How a command ends: the one place where errors become exit codes.
//!
//! A *refusal* is an answer: the cluster works, and says no. Everything else that goes wrong is a failure.

use crate::output;
use anyhow::Result;
use clap::ArgMatches;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use tonic::{Code, Status};

/// The exit code of a refusal. A failure has 1.
pub(crate) const REFUSED: u8 = 2;

/// The exit codes, for `quoin --help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  failed: wrong usage, no answer, or a fault
  2  refused: a condition does not hold, something does not exist or exists
     already, or a check found damage; --json prints the reason as JSON
`quoin kv lock` exits with the code of the command it ran.";

/// A refusal that a command itself found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(String);

/// Ends a command with a refusal.
pub(crate) fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(Refused(reason.into()).into())
}

/// Whether the command has been given `--json`.
pub(crate) fn wants_json(mut matches: &ArgMatches) -> bool {
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
    }
    matches!(matches.try_get_one("json"), Ok(Some(true)))
}

/// Says how a command on a cluster ended: a refusal on standard output, as its answer; a failure on standard
/// error.
pub(crate) fn end(error: &anyhow::Error, json: bool) -> ExitCode {
    if !is_refusal(error) {
        return fail(error);
    }
    let reason = explain(error, false);
    let told = if json {
        output::json(&json!({ "outcome": "refused", "reason": reason }))
    } else {
        writeln!(std::io::stdout(), "refused: {reason}").map_err(Into::into)
    };
    // An error means that nobody reads standard output. The exit code remains.
    let _ = told;
    ExitCode::from(REFUSED)
}

/// Says on standard error that a command failed.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    // An error means that nobody reads standard error.
    let _ = writeln!(std::io::stderr(), "quoin: {}", explain(error, true));
    ExitCode::FAILURE
}

/// Whether an error is a refusal: the command says so, or the server's status does.
fn is_refusal(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref::<Status>() {
        Some(status) => {
            matches!(
                status.code(),
                Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted
            ) || (status.code() == Code::OutOfRange && is_servers_own(status))
        }
        None => cause.is::<Refused>(),
    })
}

/// The gRPC library says OUT_OF_RANGE too, of messages beyond its limits: that is a failure.
fn is_servers_own(status: &Status) -> bool {
    ["etcdserver: ", "quoin: "].iter().any(|prefix| status.message().starts_with(prefix))
}

/// An error and its causes, outermost first, each told once: some errors end with the text of their cause.
/// Of a server's status: its text, and the name of its code if `with_code`.
fn explain(error: &anyhow::Error, with_code: bool) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let Some(status) = cause.downcast_ref::<Status>() else {
            let text = cause.to_string().trim_end().to_owned();
            // A status, and some errors, repeat their causes; a connection's own do not, and name the reason last.
            if !texts.iter().any(|known| known.contains(&text)) {
                texts.push(text);
            }
            continue;
        };
        let text = status.message().strip_prefix("quoin: ").unwrap_or(status.message());
        texts.push(if with_code { format!("{text} ({:?})", status.code()) } else { text.to_owned() });
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn refusals_exit_with_2_and_failures_with_1() {
        let status = |code| anyhow::Error::from(Status::new(code, "quoin: why"));
        let io = std::io::Error::other("the disk");
        let lost = std::io::Error::other("the network");
        for (error, refused, said) in [
            (refuse::<()>("the key exists").unwrap_err(), true, "the key exists"),
            (refuse::<()>("no").context("asking").unwrap_err(), true, "asking: no"),
            (status(Code::NotFound), true, "why (NotFound)"),
            (status(Code::AlreadyExists), true, "why (AlreadyExists)"),
            (status(Code::FailedPrecondition), true, "why (FailedPrecondition)"),
            (status(Code::Aborted), true, "why (Aborted)"),
            (status(Code::OutOfRange), true, "why (OutOfRange)"),
            (status(Code::NotFound).context("reading \"a\""), true, "reading \"a\": why (NotFound)"),
            (status(Code::InvalidArgument), false, "why (InvalidArgument)"),
            (status(Code::Unavailable), false, "why (Unavailable)"),
            (status(Code::DeadlineExceeded), false, "why (DeadlineExceeded)"),
            (status(Code::ResourceExhausted), false, "why (ResourceExhausted)"),
            (status(Code::Internal), false, "why (Internal)"),
            (status(Code::Unknown), false, "why (Unknown)"),
            (status(Code::Cancelled), false, "why (Cancelled)"),
            (status(Code::Unimplemented), false, "why (Unimplemented)"),
            (anyhow!("no endpoint answers"), false, "no endpoint answers"),
            (anyhow::Error::from(io).context("writing"), false, "writing: the disk"),
            (Status::from_error(Box::new(lost)).into(), false, "the network (Unknown)"),
        ] {
            assert_eq!(is_refusal(&error), refused, "{error:#}");
            assert_eq!(explain(&error, true), said);
        }
        assert_eq!(explain(&status(Code::NotFound), false), "why");
    }
}
