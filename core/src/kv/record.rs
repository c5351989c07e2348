//! The bytes in the store.
