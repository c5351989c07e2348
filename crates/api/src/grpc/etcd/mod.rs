//! etcd's v3 API, one file per service. `validate.rs` has etcd's rules for requests, `translate.rs` turns
//! valid ones into commands and replies into answers, `header.rs` makes their headers. `queue.rs` is what
//! locks and elections share, `snapshot.rs` the state as a file, `feed.rs` one watch, `progress.rs` what all watches of a stream report together.
//!
//! Deliberately absent: etcd's files on disk.

mod auth;
mod cluster;
mod election;
mod feed;
mod header;
mod kv;
mod lease;
mod lock;
mod maintenance;
mod progress;
mod queue;
mod snapshot;
mod translate;
mod validate;
mod watch;

pub(crate) use auth::Auth;
pub(crate) use cluster::Cluster;
pub(crate) use election::Election;
pub(crate) use header::API_VERSION;
pub(crate) use kv::Kv;
pub(crate) use lease::Lease;
pub(crate) use lock::Lock;
pub(crate) use maintenance::Maintenance;
pub(crate) use watch::Watch;
