//! What the store can hold, and how large a command may be: faces, adapters and settings derive their bounds
//! from these.
//!
//! **Invariant: Decoded is applied.** Whatever can be decoded can be applied. A machine refuses what the store
//! cannot hold before it writes anything; an adapter's check only refuses it earlier. So no command in a log
//! can stop a replica, whoever put it there.
//!
//! Deliberately absent: bounds on values. A command writes values that are at most a few times its own size,
//! lists that grow from command to command have their own bounds, and event records are split by bytes. So
//! every value stays far below [`STORE_VALUE_BYTES_MAX`], which [`crate::Tx`] asserts.

/// Maximum bytes of a store key. The LSM engine takes 65,535; the group is four of them.
pub const STORE_KEY_BYTES_MAX: usize = u16::MAX as usize - 4;

/// Maximum bytes of a value in the store. A snapshot's chunk holds 256 MiB, and one value at least.
pub const STORE_VALUE_BYTES_MAX: usize = 192 << 20;

/// The largest request that a node may be set to accept, in bytes.
pub const REQUEST_BYTES_MAX: usize = 16 << 20;

/// Bytes that the encoding of a command may add to what the client sent.
pub const ENCODING_BYTES_MAX: usize = 64 << 10;

/// Maximum bytes of a command. A longer one is refused without being decoded.
pub const COMMAND_BYTES_MAX: usize = REQUEST_BYTES_MAX + ENCODING_BYTES_MAX;
/// Maximum leases, keys and nodes that a log entry lets expire, whatever its commands say.
pub const EXPIRIES_MAX: usize = 5000;
