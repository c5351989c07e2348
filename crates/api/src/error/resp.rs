//! Errors as clients of Redis are told them: a code in front, by which they tell what may be tried again.
//!
//! UNKNOWN and FAULT mean that a write may have been done; every other code means that it was not. BUSY,
//! CLUSTERDOWN and TRYAGAIN may be tried again, the last also on another replica.

use super::{Error, Kind, Known};
use quoin_engine::{ProposeError, ReadError};

const NO_ROOM: &str =
    "NOSPACE the disk or the quota is full: writes are refused until there is room and the alarm is disarmed";

impl Error {
    /// The line after the `-`.
    pub(crate) fn resp(&self) -> String {
        match self {
            Self::Propose(error) => propose(*error),
            Self::Read(ReadError::NoLeader) | Self::Etcd(Known::NoLeader) => no_leader("no leader"),
            Self::Read(ReadError::Busy) => propose(ProposeError::Busy),
            Self::Read(error) => format!("TRYAGAIN {error}"),
            Self::Etcd(Known::NoSpace) => NO_ROOM.into(),
            Self::Etcd(Known::LeaderLost) => propose(ProposeError::Unknown),
            Self::Etcd(Known::LeaderChanged) => propose(ProposeError::LeaderChanged),
            Self::Etcd(Known::TooManyRequests) => propose(ProposeError::Busy),
            Self::Etcd(Known::UserEmpty) => "NOAUTH Authentication required.".into(),
            Self::Etcd(Known::AuthFailed | Known::NoPasswordUser) => {
                "WRONGPASS invalid username-password pair or user is disabled.".into()
            }
            Self::Etcd(Known::InvalidAuthToken) => "NOAUTH the user is gone, or has another password.".into(),
            Self::Etcd(Known::PermissionDenied) => {
                "NOPERM this user has no permissions to run this command, or to access one of its keys".into()
            }
            Self::Etcd(known) => format!("ERR {}", plain(known.text())),
            Self::Refused(Kind::Aborted | Kind::TooMany, text) => format!("BUSY {text}"),
            Self::Refused(Kind::WrongType, text) => format!("WRONGTYPE {text}"),
            Self::Refused(Kind::Unavailable, text) => format!("TRYAGAIN {text}"),
            Self::Refused(_, text) => format!("ERR {text}"),
            Self::Detailed(refusal) => Self::Refused(refusal.kind, refusal.text.clone()).resp(),
            Self::Fault(text) => format!("FAULT this node has a fault: {text}"),
            Self::ClientStream(status) => format!("ERR {}", plain(status.message())),
        }
    }
}

fn propose(error: ProposeError) -> String {
    match error {
        ProposeError::Busy => format!("BUSY {error}; nothing was done, try again"),
        ProposeError::NoLeader | ProposeError::LeaderChanged => no_leader(&error.to_string()),
        ProposeError::NoSpace => NO_ROOM.into(),
        ProposeError::TooLarge { .. } | ProposeError::Refused => format!("ERR {error}"),
        ProposeError::OldRevision => format!("TRYAGAIN {error}"),
        ProposeError::Unknown | ProposeError::Stopped => {
            format!("UNKNOWN {error}; a write may or may not have been done")
        }
    }
}

fn no_leader(text: &str) -> String {
    format!("CLUSTERDOWN {text}; nothing was done, try again")
}

/// etcd's text without its prefix.
fn plain(text: &str) -> &str {
    text.strip_prefix("etcdserver: ").unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unknown_outcome_says_that_a_write_may_have_been_done() {
        for error in [ProposeError::Unknown, ProposeError::Stopped] {
            assert!(Error::from(error).resp().starts_with("UNKNOWN "), "{error:?}");
        }
        for (error, code) in [
            (ProposeError::Busy, "BUSY"),
            (ProposeError::NoLeader, "CLUSTERDOWN"),
            (ProposeError::LeaderChanged, "CLUSTERDOWN"),
            (ProposeError::NoSpace, "NOSPACE"),
            (ProposeError::TooLarge { bytes: 2, max: 1 }, "ERR"),
            (ProposeError::Refused, "ERR"),
        ] {
            let told = Error::from(error).resp();
            assert!(told.starts_with(&format!("{code} ")), "{told}");
        }
    }

    #[test]
    fn a_read_that_was_not_served_says_nothing_of_writes() {
        for error in [ReadError::Stopped, ReadError::Lagging { lag_entries: None, lag_ms: Some(2) }] {
            let told = Error::from(error).resp();
            assert!(told.starts_with("TRYAGAIN ") && !told.contains("write"), "{told}");
        }
        assert!(Error::fault("a bad block").resp().starts_with("FAULT "));
        assert!(Error::unavailable("version 2 is not loaded").resp().starts_with("TRYAGAIN "));
        assert_eq!(Error::from(Known::Compacted).resp(), "ERR mvcc: required revision has been compacted");
    }
}
