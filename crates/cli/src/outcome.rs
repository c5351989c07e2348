//! How a command ends: the one place where errors become exit codes.
//!
//! A *refusal* is an answer: the cluster works, and says no. Everything else that goes wrong is a failure. A write
//! that failed says whether it may have been done, and what to do then ([`Write`]).

use crate::output;
use anyhow::Result;
use clap::ArgMatches;
use serde_json::{Map, Value, json};
use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;
use tonic::{Code, Status};

/// The exit code of a refusal. A failure has 1.
pub(crate) const REFUSED: u8 = 2;

/// The exit codes, for `quoin --help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  failed: wrong usage, no answer, or a fault; a write that may have been
     done all the same says so, and how to go on
  2  refused: a condition does not hold, something does not exist or exists
     already, or a check found damage
With --json the reason of 1 and 2 is printed as JSON too.
`quoin kv lock` exits with the code of the command it ran.";

/// A refusal that a command itself found.
#[derive(Debug, thiserror::Error)]
#[error("{reason}{text}")]
pub(crate) struct Refused {
    reason: String,
    /// What people read after the reason.
    text: String,
    /// What programs read besides the reason.
    details: Map<String, Value>,
}

/// Ends a command with a refusal.
pub(crate) fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    refuse_with(reason, String::new(), Map::new())
}

/// Ends a command with a refusal for a reason that has a name; `text` and `details` say more.
pub(crate) fn refuse_with<T>(
    reason: impl Into<String>,
    text: String,
    details: Map<String, Value>,
) -> Result<T> {
    Err(Refused { reason: reason.into(), text, details }.into())
}

/// A write without an answer: it may have been done, or may still be.
#[derive(Debug, thiserror::Error)]
#[error("it may have been done, or may still be: {next}")]
struct Unknown {
    /// What to do now.
    next: String,
    /// The ids that the command made, or was given.
    ids: Vec<String>,
    /// The command that does it once, whether it was done before or not.
    again: Option<String>,
    #[source]
    status: Status,
}

/// The answer to a write. Every write of a command says by one of these what to do when nobody knows its outcome.
pub(crate) trait Write<T> {
    /// A write that can be sent again as it is.
    fn or_send_again(self) -> Result<T>;
    /// A write whose outcome is seen by reading: `look` says how.
    fn or_look(self, look: impl FnOnce() -> String) -> Result<T>;
    /// A write that is done once under its id.
    fn or_repeat_with_id(self, id: &str) -> Result<T>;
}

impl<T> Write<T> for Result<T, Status> {
    fn or_send_again(self) -> Result<T> {
        self.map_err(|status| {
            unknown(status, || {
                let next = "send it again; if others write the same, read it first".into();
                (next, Vec::new(), Some(repeat(command_line(), None)))
            })
        })
    }

    fn or_look(self, look: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|status| unknown(status, || (look(), Vec::new(), None)))
    }

    fn or_repeat_with_id(self, id: &str) -> Result<T> {
        self.map_err(|status| {
            unknown(status, || {
                let next =
                    "repeat it with its id, which does it once, whether it was done before or not".into();
                (next, vec![id.to_owned()], Some(repeat(command_line(), Some(id))))
            })
        })
    }
}

/// The error of a write with this status; `next` is what to do if it may have been done.
fn unknown(status: Status, next: impl FnOnce() -> (String, Vec<String>, Option<String>)) -> anyhow::Error {
    if !may_be_done(&status) {
        return status.into();
    }
    let (next, ids, again) = next();
    Unknown { next, ids, again, status }.into()
}

/// Whether a write that ended with this status may have been done (`crates/api/src/error/grpc.rs`); a status of the
/// gRPC library, that nobody answered, says nothing about it.
fn may_be_done(status: &Status) -> bool {
    let not_done = |text: &str| {
        matches!(text, "etcdserver: no leader" | "etcdserver: leader changed") || text.starts_with("quoin: ")
    };
    match status.code() {
        Code::Unavailable => !not_done(status.message()),
        Code::Cancelled | Code::DeadlineExceeded | Code::Unknown | Code::Internal => true,
        _ => false,
    }
}

fn command_line() -> impl Iterator<Item = String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned())
}

/// A command line again, for a shell, with an id if it has none.
fn repeat(words: impl Iterator<Item = String>, id: Option<&str>) -> String {
    let mut words: Vec<String> = words.collect();
    if let Some(id) = id {
        // What follows `--` is no option.
        let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
        if !words[..end].iter().any(|word| word == "--id" || word.starts_with("--id=")) {
            words.splice(end..end, ["--id".to_owned(), id.to_owned()]);
        }
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%_+=:,./-".contains(c);
    let quoted = |word: &String| match word.is_empty() || !word.chars().all(plain) {
        true => format!("'{}'", word.replace('\'', "'\\''")),
        false => word.clone(),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Whether the command has been given `--json`.
pub(crate) fn wants_json(mut matches: &ArgMatches) -> bool {
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
    }
    matches!(matches.try_get_one("json"), Ok(Some(true)))
}

/// Says how a command on a cluster ended: a refusal on standard output, as its answer; a failure on standard
/// error, and as JSON on standard output too if that is wanted.
pub(crate) fn end(error: &anyhow::Error, json: bool) -> ExitCode {
    if !is_refusal(error) {
        if json && !nobody_reads(error) {
            // An error means that nobody reads standard output.
            let _ = output::json(&failure(error));
        }
        return fail(error);
    }
    let reason = explain(error, false);
    let told = if json {
        let refused = error.chain().find_map(|cause| cause.downcast_ref::<Refused>());
        let mut object = json!({ "outcome": "refused", "reason": reason });
        if let (Some(Refused { reason, details, .. }), Some(object)) = (refused, object.as_object_mut())
            && !details.is_empty()
        {
            object.insert("reason".into(), reason.clone().into());
            object.extend(details.clone());
        }
        output::json(&object)
    } else {
        writeln!(std::io::stdout(), "refused: {reason}").map_err(Into::into)
    };
    // An error means that nobody reads standard output. The exit code remains.
    let _ = told;
    ExitCode::from(REFUSED)
}

/// A failure as programs read it.
fn failure(error: &anyhow::Error) -> Value {
    match error.downcast_ref::<Unknown>() {
        Some(Unknown { ids, again, status, .. }) => json!({
            "outcome": "unknown", "reason": explain(error, true), "code": format!("{:?}", status.code()),
            "ids": ids, "again": again,
        }),
        None => json!({ "outcome": "failed", "reason": explain(error, true) }),
    }
}

/// Says on standard error that a command failed. It did not if only nobody reads on what it prints, as in
/// `quoin ledger export | head -1`.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    if nobody_reads(error) {
        return ExitCode::SUCCESS;
    }
    let mut text = format!("quoin: {}", explain(error, true));
    if let Some(Unknown { again: Some(again), .. }) = error.downcast_ref() {
        text = format!("{text}\n  {again}");
    }
    // An error means that nobody reads standard error.
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::FAILURE
}

/// Whether standard output was closed. What breaks towards a server comes as a status or an error of its connection.
fn nobody_reads(error: &anyhow::Error) -> bool {
    let local = |cause: &(dyn std::error::Error + 'static)| {
        !cause.is::<Status>() && !cause.is::<tonic::transport::Error>()
    };
    let broken = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(ErrorKind::BrokenPipe)
    };
    error.chain().all(local) && error.chain().any(broken)
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

    #[test]
    fn a_write_may_have_been_done_unless_the_server_says_that_it_was_not() {
        for (code, text, may_be) in [
            (Code::Cancelled, "Timeout expired", true),
            (Code::DeadlineExceeded, "late", true),
            (Code::Unknown, "h2 protocol error", true),
            (Code::Internal, "quoin: a fault", true),
            (Code::Unavailable, "error trying to connect", true),
            (Code::Unavailable, "etcdserver: server stopped", true),
            (Code::Unavailable, "etcdserver: no leader", false),
            (Code::Unavailable, "etcdserver: leader changed", false),
            (Code::Unavailable, "quoin: no replica could be asked", false),
            (Code::ResourceExhausted, "etcdserver: too many requests", false),
            (Code::InvalidArgument, "quoin: no", false),
        ] {
            let status = Status::new(code, text);
            assert_eq!(may_be_done(&status), may_be, "{status:?}");
            let error = Err::<(), _>(status).or_look(|| "look".into()).unwrap_err();
            assert_eq!(explain(&error, true).contains("it may have been done"), may_be, "{error:#}");
        }
    }

    #[test]
    fn a_command_is_repeated_with_its_id_and_can_be_pasted() {
        let again = |words: &[&str]| repeat(words.iter().map(|word| (*word).to_owned()), Some("7"));
        assert_eq!(again(&["quoin", "ledger", "void", "x"]), "quoin ledger void x --id 7");
        assert_eq!(again(&["quoin", "--id=8", "it's", ""]), r"quoin --id=8 'it'\''s' ''");
        assert_eq!(again(&["quoin", "--", "--id"]), "quoin --id 7 -- --id");
    }

    #[test]
    fn only_standard_output_is_quiet_when_it_breaks() {
        let broken = || std::io::Error::from(ErrorKind::BrokenPipe);
        assert!(nobody_reads(&anyhow::Error::from(broken()).context("writing")));
        assert!(nobody_reads(&serde_json::Error::io(broken()).into()));
        assert!(!nobody_reads(&Status::from_error(Box::new(broken())).into()));
        assert!(!nobody_reads(&std::io::Error::other("disk").into()));
    }
}
