//! Quoin through the crate etcd-client: `services` checks what each of etcd's services promises, `cluster`
//! that it holds while replicas are killed, restarted, left behind, added and removed.

mod cluster;
mod services;
