//! What the tests of several crates share: free ports, clusters of `quoin` processes, and waiting for
//! conditions.
//!
//! It knows what a user knows: the binary, its flags, its ports and its HTTP pages. It deliberately speaks
//! none of Quoin's protocols, so it depends on no other crate of the workspace, and any test can use it.
//! Golden scripts are not here: they live with the code that they run.

mod cluster;
#[cfg(all(feature = "crashes", target_os = "linux"))]
pub mod crashes;
pub mod http;
mod ports;
mod wait;

pub use cluster::{Cluster, SMALL, program};
pub use ports::Ports;
#[cfg(feature = "tokio")]
pub use wait::wait;
pub use wait::{Outcome, PATIENCE, wait_blocking};
