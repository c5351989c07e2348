//! Errors as gRPC statuses.
//!
//! Where etcd has a status for what happened, its code and its text are used to the letter: clients decide by
//! both whether to try again. Every other status has a text that begins with `quoin:`.
//!
//! A write that got another code than UNAVAILABLE and INTERNAL was not done. With INTERNAL, a fault of this
//! node, it may have been done. With UNAVAILABLE, the text tells:
//!
//! - `etcdserver: no leader`, `etcdserver: leader changed`: it was not done.
//! - `etcdserver: server stopped`, `etcdserver: request timed out, possibly due to previous leader failure`:
//!   it may have been done.
//! - `etcdserver: request timed out`: only from MoveLeader; the leader may have moved.
//! - `quoin: ...`: a read, or a request that reached nobody; nothing was done.

use super::{Detailed, Error, Kind, Known};
use prost::Message;
use prost_types::Any;
use quoin_engine::{ProposeError, ReadError};
use tonic::{Code, Status};

/// Maximum bytes of a text: it is a header, where a byte may take three, and clients give up on a status with 8 KiB of
/// headers.
const TEXT_BYTES_MAX: usize = 1024;

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        match error {
            Error::Etcd(known) => known.into(),
            Error::Propose(error) => propose(error),
            Error::Read(error) => read(error),
            Error::Refused(kind, text) => ours(kind.into(), &text),
            Error::Detailed(refusal) => detailed(&refusal),
            Error::Fault(text) => ours(Code::Internal, &text),
            Error::ClientStream(status) => *status,
        }
    }
}

/// A status that etcd does not have. Its text says whose it is.
fn ours(code: Code, text: &str) -> Status {
    if text.len() <= TEXT_BYTES_MAX {
        return Status::new(code, format!("quoin: {text}"));
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    Status::new(code, format!("quoin: {}...", &text[..end]))
}

/// A status with details, as `grpc-status-details-bin` has them: a `google.rpc.Status`.
fn detailed(refusal: &Detailed) -> Status {
    let status = ours(refusal.kind.into(), &refusal.text);
    let type_url = format!("type.googleapis.com/{}", refusal.name);
    let details = RichStatus {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: vec![Any { type_url, value: refusal.message.clone() }],
    };
    Status::with_details(status.code(), status.message(), details.encode_to_vec().into())
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RichStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

fn propose(error: ProposeError) -> Status {
    match error {
        ProposeError::Busy => Known::TooManyRequests.into(),
        ProposeError::NoLeader => Known::NoLeader.into(),
        ProposeError::NoSpace => Known::NoSpace.into(),
        ProposeError::TooLarge { .. } => Known::RequestTooLarge.into(),
        ProposeError::LeaderChanged => Known::LeaderChanged.into(),
        ProposeError::Unknown => Known::LeaderLost.into(),
        ProposeError::Refused => ours(Code::Aborted, &error.to_string()),
        ProposeError::OldRevision => Known::AuthOldRevision.into(),
        ProposeError::Stopped => Known::Stopped.into(),
    }
}

fn read(error: ReadError) -> Status {
    match error {
        ReadError::Busy => Known::TooManyRequests.into(),
        ReadError::NoLeader => Known::NoLeader.into(),
        ReadError::OldRevision => Known::AuthOldRevision.into(),
        ReadError::Stopped => Known::Stopped.into(),
        ReadError::Lagging { .. } => ours(Code::Unavailable, &format!("{error}; ask another replica")),
    }
}

impl From<Known> for Status {
    fn from(known: Known) -> Self {
        Self::new(known.kind().into(), known.text())
    }
}

impl From<Kind> for Code {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::InvalidArgument => Self::InvalidArgument,
            Kind::NotFound => Self::NotFound,
            Kind::AlreadyExists => Self::AlreadyExists,
            Kind::FailedPrecondition | Kind::WrongType => Self::FailedPrecondition,
            Kind::Aborted => Self::Aborted,
            Kind::OutOfRange => Self::OutOfRange,
            Kind::ResourceExhausted | Kind::TooMany => Self::ResourceExhausted,
            Kind::Unavailable => Self::Unavailable,
            Kind::Cancelled => Self::Cancelled,
            Kind::Unauthenticated => Self::Unauthenticated,
            Kind::PermissionDenied => Self::PermissionDenied,
            Kind::Unknown => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(error: impl Into<Error>) -> (Code, String) {
        let status = Status::from(error.into());
        (status.code(), status.message().to_owned())
    }

    #[test]
    fn a_command_without_a_reply_gets_etcds_status() {
        for (error, code, text) in [
            (ProposeError::Busy, Code::ResourceExhausted, "etcdserver: too many requests"),
            (ProposeError::NoLeader, Code::Unavailable, "etcdserver: no leader"),
            (ProposeError::NoSpace, Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            (
                ProposeError::TooLarge { bytes: 2, max: 1 },
                Code::InvalidArgument,
                "etcdserver: request is too large",
            ),
            (ProposeError::LeaderChanged, Code::Unavailable, "etcdserver: leader changed"),
            (
                ProposeError::Unknown,
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
            ),
            (ProposeError::Stopped, Code::Unavailable, "etcdserver: server stopped"),
            (
                ProposeError::Refused,
                Code::Aborted,
                "quoin: configuration change refused: another one is under way",
            ),
        ] {
            assert_eq!(rendered(error), (code, text.to_owned()), "{error:?}");
        }
    }

    #[test]
    fn a_read_that_was_not_served_is_unavailable_and_says_what_to_do() {
        let busy = (Code::ResourceExhausted, "etcdserver: too many requests".into());
        assert_eq!(rendered(ReadError::Busy), busy);
        assert_eq!(rendered(ReadError::NoLeader), (Code::Unavailable, "etcdserver: no leader".into()));
        assert_eq!(rendered(ReadError::Stopped), (Code::Unavailable, "etcdserver: server stopped".into()));
        let (code, text) = rendered(ReadError::Lagging { lag_entries: Some(7), lag_ms: Some(1500) });
        assert_eq!(code, Code::Unavailable);
        assert!(text.contains("7 entries and 1500 ms") && text.contains("another replica"), "{text}");
    }

    #[test]
    fn statuses_that_etcd_does_not_have_say_whose_they_are() {
        for (kind, code) in [
            (Kind::InvalidArgument, Code::InvalidArgument),
            (Kind::NotFound, Code::NotFound),
            (Kind::AlreadyExists, Code::AlreadyExists),
            (Kind::FailedPrecondition, Code::FailedPrecondition),
            (Kind::Aborted, Code::Aborted),
            (Kind::OutOfRange, Code::OutOfRange),
            (Kind::ResourceExhausted, Code::ResourceExhausted),
            (Kind::TooMany, Code::ResourceExhausted),
            (Kind::Unavailable, Code::Unavailable),
            (Kind::Cancelled, Code::Cancelled),
            (Kind::Unauthenticated, Code::Unauthenticated),
            (Kind::PermissionDenied, Code::PermissionDenied),
        ] {
            assert_eq!(rendered(Error::Refused(kind, "why".into())), (code, "quoin: why".into()));
        }
        assert_eq!(rendered(Error::Fault("why".into())), (Code::Internal, "quoin: why".into()));
    }

    /// Clients saw that a header was too large, and not what was wrong.
    #[test]
    fn a_long_text_is_cut() {
        let text = "é".repeat(1 << 20);
        let expected = format!("quoin: {}...", &text[..TEXT_BYTES_MAX]);
        assert_eq!(rendered(Error::Fault(text)).1, expected);
        let text = "é".repeat(TEXT_BYTES_MAX / 2);
        assert_eq!(rendered(Error::Fault(text.clone())).1, format!("quoin: {text}"));
    }

    #[test]
    fn etcds_own_errors_are_rendered_to_the_letter() {
        let text = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(rendered(Known::Compacted), (Code::OutOfRange, text.into()));
        assert_eq!(rendered(Known::NoElectionLeader), (Code::Unknown, "election: no leader".into()));
    }
}
