//! etcd's v3 API: one file per service. `validate.rs` holds etcd's rules for requests, `translate.rs` what becomes
//! of a valid one, and of the answer.
//!
//! What is deliberately absent: users and roles (`auth.rs` says so to whom asks), and etcd's own ways to keep data on
//! disk, so `Defragment` has nothing to do.

mod auth;
mod cluster;
mod election;
mod feed;
mod kv;
mod lease;
mod lock;
mod maintenance;
mod queue;
mod translate;
mod validate;
mod watch;

pub(crate) use auth::Auth;
pub(crate) use cluster::Cluster;
pub(crate) use election::Election;
pub(crate) use kv::Kv;
pub(crate) use lease::Lease;
pub(crate) use lock::Lock;
pub(crate) use maintenance::Maintenance;
pub(crate) use validate::key_length;
pub(crate) use watch::Watch;

use crate::engine::Engine;
use quoin_core::{Progress, Revision};
use quoin_proto::etcdserverpb::ResponseHeader;

/// The version of etcd's API that is spoken, for clients that ask before they use a feature.
pub(crate) const API_VERSION: &str = "3.6.0";

/// The header of an answer to a command, after which the newest revision was `revision`.
pub(crate) fn header(engine: &Engine, revision: Revision) -> ResponseHeader {
    ResponseHeader {
        cluster_id: engine.cluster(),
        member_id: engine.id(),
        revision: signed(revision.0),
        raft_term: engine.raft().term,
    }
}

/// The header of an answer that shows the state at `progress`.
pub(crate) fn header_at(engine: &Engine, progress: &Progress) -> ResponseHeader {
    ResponseHeader {
        cluster_id: engine.cluster(),
        member_id: engine.id(),
        revision: signed(progress.revision.0),
        raft_term: progress.term.0,
    }
}

/// etcd's API has signed numbers where ours cannot be negative.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("revisions and sizes stay below 2^63")
}
