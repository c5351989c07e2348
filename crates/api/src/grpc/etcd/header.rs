//! The headers of answers, and numbers as etcd's API has them.

use quoin_core::{Progress, Revision};
use quoin_engine::Engine;
use quoin_proto::etcdserverpb::ResponseHeader;

/// The version of etcd's API, for clients that ask before they use a feature.
pub(crate) const API_VERSION: &str = "3.6.0";

/// The header of an answer to a command, after which `revision` was the newest.
pub(super) fn header(engine: &Engine, revision: Revision) -> ResponseHeader {
    ResponseHeader {
        cluster_id: engine.cluster(),
        member_id: engine.id(),
        revision: signed(revision.0),
        raft_term: engine.raft().term,
    }
}

/// The header of an answer that shows the state at `progress`.
pub(super) fn header_at(engine: &Engine, progress: &Progress) -> ResponseHeader {
    ResponseHeader {
        cluster_id: engine.cluster(),
        member_id: engine.id(),
        revision: signed(progress.revision.0),
        raft_term: progress.term.0,
    }
}

/// etcd's API has signed numbers where ours are never negative.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("revisions and sizes stay below 2^63")
}
