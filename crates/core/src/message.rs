//! What commands say to whoever listens at the moment: kept nowhere, and without a revision.

use bytes::Bytes;

/// A message on a channel. Each replica hands it on when it applies the command, once what the command wrote can be read
/// there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Any bytes.
    pub channel: Bytes,
    /// Any bytes.
    pub payload: Bytes,
}
