//! The one place where errors become gRPC statuses.
//!
//! **Invariant.** Where etcd has a status for what happened, its code and its text are used to the letter: clients decide
//! by both whether to try again. UNAVAILABLE with a text about time or leaders means that a write may have been
//! done; every other status means that it was not.

use crate::engine::{MemberError, ProposeError, ReadError};
use crate::watch::WatchEnd;
use quoin_core::history::Unavailable;
use quoin_core::kv::Refusal;
use quoin_core::{Reply, StoreError, kv, system};
use std::fmt::Display;
use tonic::{Code, Status};

/// One of etcd's statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known(Code, &'static str);

impl Known {
    /// Its text, as it stands in a watch's reason for ending.
    pub(crate) fn text(self) -> &'static str {
        self.1
    }
}

impl From<Known> for Status {
    fn from(Known(code, text): Known) -> Self {
        Self::new(code, text)
    }
}

pub(crate) const EMPTY_KEY: Known = Known(Code::InvalidArgument, "etcdserver: key is not provided");
pub(crate) const KEY_NOT_FOUND: Known = Known(Code::InvalidArgument, "etcdserver: key not found");
pub(crate) const VALUE_PROVIDED: Known = Known(Code::InvalidArgument, "etcdserver: value is provided");
pub(crate) const LEASE_PROVIDED: Known = Known(Code::InvalidArgument, "etcdserver: lease is provided");
pub(crate) const TOO_MANY_OPERATIONS: Known =
    Known(Code::InvalidArgument, "etcdserver: too many operations in txn request");
pub(crate) const DUPLICATE_KEY: Known =
    Known(Code::InvalidArgument, "etcdserver: duplicate key given in txn request");
pub(crate) const INVALID_SORT: Known = Known(Code::InvalidArgument, "etcdserver: invalid sort option");
pub(crate) const REQUEST_TOO_LARGE: Known = Known(Code::InvalidArgument, "etcdserver: request is too large");
pub(crate) const COMPACTED: Known =
    Known(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
pub(crate) const FUTURE_REVISION: Known =
    Known(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision");
pub(crate) const NO_SPACE: Known =
    Known(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
pub(crate) const TOO_MANY_REQUESTS: Known = Known(Code::ResourceExhausted, "etcdserver: too many requests");
pub(crate) const LEASE_NOT_FOUND: Known = Known(Code::NotFound, "etcdserver: requested lease not found");
pub(crate) const LEASE_EXISTS: Known = Known(Code::FailedPrecondition, "etcdserver: lease already exists");
pub(crate) const LEASE_TTL_TOO_LARGE: Known = Known(Code::OutOfRange, "etcdserver: too large lease TTL");
pub(crate) const MEMBER_EXISTS: Known =
    Known(Code::FailedPrecondition, "etcdserver: member ID already exist");
pub(crate) const PEER_URL_EXISTS: Known =
    Known(Code::FailedPrecondition, "etcdserver: Peer URLs already exists");
pub(crate) const MEMBERS_NOT_STARTED: Known =
    Known(Code::FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members");
pub(crate) const BAD_MEMBER_URLS: Known =
    Known(Code::InvalidArgument, "etcdserver: given member URLs are invalid");
pub(crate) const MEMBER_NOT_FOUND: Known = Known(Code::NotFound, "etcdserver: member not found");
pub(crate) const MEMBER_NOT_LEARNER: Known =
    Known(Code::FailedPrecondition, "etcdserver: can only promote a learner member");
pub(crate) const LEARNER_NOT_READY: Known = Known(
    Code::FailedPrecondition,
    "etcdserver: can only promote a learner member which is in sync with leader",
);
pub(crate) const NO_LEADER: Known = Known(Code::Unavailable, "etcdserver: no leader");
pub(crate) const NOT_LEADER: Known = Known(Code::FailedPrecondition, "etcdserver: not leader");
pub(crate) const LEADER_CHANGED: Known = Known(Code::Unavailable, "etcdserver: leader changed");
pub(crate) const STOPPED: Known = Known(Code::Unavailable, "etcdserver: server stopped");
pub(crate) const LEADER_LOST: Known =
    Known(Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure");
pub(crate) const TIMED_OUT: Known = Known(Code::Unavailable, "etcdserver: request timed out");
pub(crate) const BAD_TRANSFEREE: Known = Known(Code::FailedPrecondition, "etcdserver: bad leader transferee");
pub(crate) const WRONG_DOWNGRADE_FORMAT: Known =
    Known(Code::InvalidArgument, "etcdserver: wrong downgrade target version format");
pub(crate) const INVALID_DOWNGRADE_TARGET: Known =
    Known(Code::InvalidArgument, "etcdserver: invalid downgrade target version");
pub(crate) const NO_DOWNGRADE: Known =
    Known(Code::FailedPrecondition, "etcdserver: no inflight downgrade job");
pub(crate) const SESSION_EXPIRED: Known = Known(Code::Unknown, "mutex: session is expired");
pub(crate) const NO_ELECTION_LEADER: Known = Known(Code::Unknown, "election: no leader");
pub(crate) const NOT_ELECTION_LEADER: Known = Known(Code::Unknown, "election: not leader");
pub(crate) const MISSING_LEADER_KEY: Known = Known(Code::Unknown, "\"leader\" field must be provided");

impl From<ProposeError> for Status {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Busy => TOO_MANY_REQUESTS.into(),
            ProposeError::NoLeader => NO_LEADER.into(),
            ProposeError::NoSpace => NO_SPACE.into(),
            ProposeError::TooLarge { .. } => REQUEST_TOO_LARGE.into(),
            ProposeError::LeaderChanged => LEADER_CHANGED.into(),
            ProposeError::Unknown => LEADER_LOST.into(),
            ProposeError::Refused => Self::aborted(error.to_string()),
            ProposeError::Stopped => STOPPED.into(),
        }
    }
}

impl From<ReadError> for Status {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NoLeader => NO_LEADER.into(),
            ReadError::Stopped => STOPPED.into(),
            ReadError::Lagging { .. } => Self::unavailable(format!("quoin: {error}; ask another replica")),
        }
    }
}

impl From<MemberError> for Status {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::NotFound => MEMBER_NOT_FOUND.into(),
            MemberError::IdExists => MEMBER_EXISTS.into(),
            MemberError::PeerExists => PEER_URL_EXISTS.into(),
            MemberError::NotLearner => MEMBER_NOT_LEARNER.into(),
            MemberError::LearnerNotReady => LEARNER_NOT_READY.into(),
            MemberError::Unhealthy => MEMBERS_NOT_STARTED.into(),
            MemberError::Propose(error) => error.into(),
            MemberError::Store(_) => fault(&error),
        }
    }
}

/// The status of a command or read that was refused.
pub(crate) fn refused(refusal: Refusal) -> Status {
    match refusal {
        Refusal::EmptyKey => EMPTY_KEY.into(),
        Refusal::KeyNotFound => KEY_NOT_FOUND.into(),
        Refusal::DuplicateKey => DUPLICATE_KEY.into(),
        Refusal::LeaseNotFound => LEASE_NOT_FOUND.into(),
        Refusal::LeaseExists => LEASE_EXISTS.into(),
        Refusal::LeaseTtlTooLarge => LEASE_TTL_TOO_LARGE.into(),
        Refusal::Unavailable(unavailable) => revision_unavailable(unavailable),
        Refusal::NoInteger | Refusal::Overflow => Status::failed_precondition(format!("quoin: {refusal}")),
        Refusal::ResponseTooLarge => response_too_large(kv::REPLY_BYTES_MAX),
        other => Status::internal(format!("quoin: {other}")),
    }
}

/// The status of a read at a revision that is not to be had.
pub(crate) fn revision_unavailable(unavailable: Unavailable) -> Status {
    match unavailable {
        Unavailable::Compacted { .. } => COMPACTED.into(),
        Unavailable::Future { .. } => FUTURE_REVISION.into(),
    }
}

/// The status of a system command's answer.
pub(crate) fn system_reply(reply: system::Reply) -> Result<(), Status> {
    match reply {
        system::Reply::Done => Ok(()),
        system::Reply::Unavailable(unavailable) => Err(revision_unavailable(unavailable)),
        system::Reply::Malformed => Err(Status::internal("quoin: malformed command")),
    }
}

/// The status of a watch's end.
pub(crate) fn watch_end(end: WatchEnd) -> Status {
    match end {
        WatchEnd::Compacted { .. } => COMPACTED.into(),
        WatchEnd::Stopped => STOPPED.into(),
        WatchEnd::Store(error) => store(error),
    }
}

/// A status as clients of Redis are told it: a code in front, by which they tell what may be tried again.
///
/// UNKNOWN means that a write may have been done; every other code means that it was not.
pub(crate) fn resp(status: &Status) -> String {
    let text = status.message();
    let text = text.strip_prefix("etcdserver: ").or_else(|| text.strip_prefix("quoin: ")).unwrap_or(text);
    let known = |known: Known| status.code() == known.0 && status.message() == known.1;
    if known(TOO_MANY_REQUESTS) {
        return format!("BUSY {text}; nothing was done, try again");
    }
    if known(NO_SPACE) {
        return "NOSPACE the disk or the quota is full: writes are refused until there is room and the alarm is disarmed".into();
    }
    if known(NO_LEADER) || known(LEADER_CHANGED) {
        return format!("CLUSTERDOWN {text}; nothing was done, try again");
    }
    match status.code() {
        Code::Unavailable => format!("UNKNOWN {text}; a write may or may not have been done"),
        Code::ResourceExhausted => format!("BUSY {text}"),
        _ => format!("ERR {text}"),
    }
}

/// The status of a failure of this node itself, which is also logged.
pub(crate) fn fault(error: &dyn Display) -> Status {
    tracing::error!(%error, "a request failed by a fault of this node");
    Status::internal(format!("quoin: {error}"))
}

/// The status of a command that another face has answered, which none does.
pub(crate) fn unexpected_reply(face: &str, reply: &Reply) -> Status {
    fault(&format_args!("a {face} command was answered by {reply:?}"))
}

/// The status of a read that the store could not serve.
pub(crate) fn store(error: StoreError) -> Status {
    fault(&error)
}

/// The status of an answer that has no bound but the client's wish.
pub(crate) fn response_too_large(bytes_max: usize) -> Status {
    Status::resource_exhausted(format!(
        "quoin: the answer is larger than {bytes_max} bytes; ask for less at a time: set limit and go on from the \
         last key, or leave the values out with keys_only"
    ))
}

/// The status of a request that breaks a rule which etcd does not have.
pub(crate) fn invalid(problem: impl Display) -> Status {
    Status::invalid_argument(format!("quoin: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quoin_core::Revision;

    #[test]
    fn outcomes_that_are_unknown_are_unavailable_and_all_others_are_not_retried_blindly() {
        for unknown in [ProposeError::Unknown, ProposeError::Stopped] {
            assert_eq!(Status::from(unknown).code(), Code::Unavailable);
        }
        let status = Status::from(ProposeError::Busy);
        assert_eq!(
            (status.code(), status.message()),
            (Code::ResourceExhausted, "etcdserver: too many requests")
        );
        let status = Status::from(ProposeError::NoSpace);
        assert_eq!(status.message(), "etcdserver: mvcc: database space exceeded");
        let status = Status::from(ProposeError::TooLarge { bytes: 2, max: 1 });
        assert_eq!(
            (status.code(), status.message()),
            (Code::InvalidArgument, "etcdserver: request is too large")
        );
    }

    #[test]
    fn refusals_carry_etcds_codes_and_texts() {
        let compacted = Unavailable::Compacted { compacted: Revision(5) };
        let future = Unavailable::Future { newest: Revision(5) };
        for (refusal, code, text) in [
            (Refusal::EmptyKey, Code::InvalidArgument, "etcdserver: key is not provided"),
            (Refusal::KeyNotFound, Code::InvalidArgument, "etcdserver: key not found"),
            (Refusal::LeaseNotFound, Code::NotFound, "etcdserver: requested lease not found"),
            (Refusal::LeaseExists, Code::FailedPrecondition, "etcdserver: lease already exists"),
            (compacted.into(), Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            (future.into(), Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
        ] {
            let status = refused(refusal);
            assert_eq!((status.code(), status.message()), (code, text));
        }
    }

    #[test]
    fn a_local_read_that_is_too_old_says_by_how_much_and_what_to_do() {
        let status = Status::from(ReadError::Lagging { lag_entries: 7, lag_ms: 1500 });
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("7 entries and 1500 ms"), "{}", status.message());
        assert!(status.message().contains("another replica"), "{}", status.message());
    }
}
