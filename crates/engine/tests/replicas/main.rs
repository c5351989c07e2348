//! Replicas in one process: real threads, sockets on loopback, and files. What each test waits for is a
//! condition, looked at whenever a replica publishes its status, which it does at least once a tick.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod admission;
mod clocks;
mod cluster;
mod compare;
mod disks;
mod faults;
mod leadership;
mod membership;
mod one;
mod paced;
mod scrub;
mod snapshots;
mod three;
mod upkeep;
