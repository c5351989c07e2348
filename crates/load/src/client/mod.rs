//! What every client of a cluster needs: `connection.rs` reaches replicas and finds the leader, `ledger.rs`
//! moves money, `tables.rs` publishes lookup tables, `http.rs` speaks HTTP to the ledger, `tls.rs` has
//! the certificates, `credentials.rs` the user. The benches, the
//! demo and the other commands of `quoin` share it.

mod connection;
pub mod credentials;
mod http;
pub mod ledger;
mod tables;
pub(crate) mod tls;

pub use connection::{ANSWER_BYTES_MAX, connect, dial, find_leader, leads, watch};
pub use credentials::{Channel, Credentials};
pub use http::{Answer, Http};
pub use tables::{activate_when_ready, publish_and_activate};
pub use tls::Tls;
