//! Quoin seen through the crate etcd-client: `faces` asks each service for what it promises, `cluster` does so while
//! replicas are killed, restarted, left behind, added and removed.

mod cluster;
mod faces;
