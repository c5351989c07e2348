//! Why a request has no answer: one type for all adapters. Each wire renders it in one place: `grpc.rs`,
//! `resp.rs`, and `http/problem.rs` for HTTP. `etcd.rs` holds etcd's own errors.
//!
//! **Invariant: Outcomes.** A client can tell from each error whether a write was done. It may have been done
//! if the error is [`ProposeError::Unknown`], [`ProposeError::Stopped`] or a [`Error::Fault`], and was not
//! done otherwise. A request that takes several commands says so in its description; those before the failed
//! one were done.
//!
//! What a face refuses becomes an error beside the face's way into the log, not here.

mod etcd;
mod grpc;
mod kind;
mod resp;

pub(crate) use etcd::Known;
pub(crate) use kind::Kind;

use prost::Name;
use quoin_core::StoreError;
use quoin_core::history::Unavailable;
use quoin_engine::watch::WatchEnd;
use quoin_engine::{MemberError, ProposeError, ReadError};
use quoin_library::LookupError;
use std::fmt::{self, Display};

/// Why a request was not done, or not answered.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Error {
    /// In etcd's words.
    #[error(transparent)]
    Etcd(#[from] Known),
    /// A command has no reply.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// A read was not served.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The request is wrong, or the state does not allow it. Nothing was done.
    #[error("{1}")]
    Refused(Kind, String),
    /// As [`Self::Refused`], with what a program needs to know of it.
    #[error("{}", .0.text)]
    Detailed(Box<Detailed>),
    /// This node has a fault. It was logged.
    #[error("{0}")]
    Fault(String),
    /// The client's own stream of requests broke. Nobody is left to read this.
    #[error("{}", .0.message())]
    ClientStream(Box<tonic::Status>),
}

/// A refusal with a message of details, which gRPC's status carries.
#[derive(Clone, Debug)]
pub(crate) struct Detailed {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// The full name of the message's type.
    pub(crate) name: String,
    /// The encoded message.
    pub(crate) message: Vec<u8>,
}

impl Error {
    /// A refusal with details.
    pub(crate) fn detailed(kind: Kind, problem: impl Display, details: &impl Name) -> Self {
        let (text, message) = (problem.to_string(), details.encode_to_vec());
        Self::Detailed(Box::new(Detailed { kind, text, name: full_name(details), message }))
    }

    /// The request breaks a rule that etcd does not have.
    pub(crate) fn invalid(problem: impl Display) -> Self {
        Self::Refused(Kind::InvalidArgument, problem.to_string())
    }

    /// The subject does not exist.
    pub(crate) fn not_found(problem: impl Display) -> Self {
        Self::Refused(Kind::NotFound, problem.to_string())
    }

    /// The state does not allow it.
    pub(crate) fn precondition(problem: impl Display) -> Self {
        Self::Refused(Kind::FailedPrecondition, problem.to_string())
    }

    /// Not here or not now.
    pub(crate) fn unavailable(problem: impl Display) -> Self {
        Self::Refused(Kind::Unavailable, problem.to_string())
    }

    /// The client has disconnected. Nobody reads this.
    pub(crate) fn disconnected() -> Self {
        Self::Refused(Kind::Cancelled, "the client has disconnected".into())
    }

    /// A failure of this node, which is logged here.
    pub(crate) fn fault(error: impl Display) -> Self {
        tracing::error!(%error, "a request failed by a fault of this node");
        Self::Fault(error.to_string())
    }

    /// A command of `face` got a reply that the machine never gives to it: another face's, or another
    /// command's.
    pub(crate) fn unexpected_reply(face: &str, reply: &dyn fmt::Debug) -> Self {
        Self::fault(format_args!("a {face} command was answered by {reply:?}"))
    }

    /// An answer above `limits.response_bytes_max`.
    pub(crate) fn response_too_large(bytes_max: usize) -> Self {
        let text = format!(
            "the answer is larger than {bytes_max} bytes; ask for less at a time: set limit and go on from the last key, or \
             leave the values out with keys_only"
        );
        Self::Refused(Kind::ResourceExhausted, text)
    }

    /// An answer for which the others leave no room in `limits.response_bytes_in_flight_max`.
    pub(crate) fn answers_crowded(bytes_max: usize) -> Self {
        let text = format!(
            "large answers that clients have not taken yet leave no room for this one within \
             limits.response_bytes_in_flight_max, {bytes_max} bytes; try again, or ask for less at a time: set limit and \
             go on from the last key"
        );
        Self::Refused(Kind::ResourceExhausted, text)
    }
}

fn full_name<M: Name>(_: &M) -> String {
    M::full_name()
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::ClientStream(Box::new(status))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::fault(error)
    }
}

impl From<MemberError> for Error {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::NotFound => Known::MemberNotFound.into(),
            MemberError::IdExists => Known::MemberExists.into(),
            MemberError::PeerExists => Known::PeerUrlExists.into(),
            MemberError::NotLearner => Known::MemberNotLearner.into(),
            MemberError::LearnerNotReady => Known::LearnerNotReady.into(),
            MemberError::NotStarted => Known::MembersNotStarted.into(),
            MemberError::Unhealthy => Known::Unhealthy.into(),
            MemberError::Propose(error) => error.into(),
            MemberError::Store(_) => Self::fault(error),
        }
    }
}

impl From<Unavailable> for Error {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Compacted { .. } => Known::Compacted.into(),
            Unavailable::Future { .. } => Known::FutureRevision.into(),
        }
    }
}

impl From<WatchEnd> for Error {
    fn from(end: WatchEnd) -> Self {
        match end {
            WatchEnd::Compacted { .. } => Known::Compacted.into(),
            WatchEnd::Stopped => Known::Stopped.into(),
            WatchEnd::Store(error) => error.into(),
        }
    }
}

impl From<LookupError> for Error {
    fn from(error: LookupError) -> Self {
        let kind = match error {
            LookupError::NoTable(_) => Kind::NotFound,
            LookupError::NotActive(_) => Kind::FailedPrecondition,
            LookupError::NotLoaded { .. } | LookupError::Unreadable { .. } => Kind::Unavailable,
            LookupError::TooLarge(_) => Kind::ResourceExhausted,
        };
        Self::Refused(kind, error.to_string())
    }
}
