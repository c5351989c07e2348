//! node
pub mod store;
