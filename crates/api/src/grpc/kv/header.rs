//! The header of an answer: where and when it was made.

use quoin_core::{Progress, Revision};
use quoin_engine::Engine;
use quoin_proto::quoin::kv::v1::Header;

/// The header of an answer that shows the state at `progress`.
pub(in crate::grpc) fn header_at(engine: &Engine, progress: &Progress) -> Header {
    header(engine, progress.revision, progress.term.0)
}

/// The header of an answer when `revision` was the newest.
pub(in crate::grpc) fn header(engine: &Engine, revision: Revision, term: u64) -> Header {
    let revision = i64::try_from(revision.0).expect("revisions stay below 2^63");
    Header { cluster_id: engine.cluster(), member_id: engine.id(), revision, term }
}
