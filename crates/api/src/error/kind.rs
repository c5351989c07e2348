//! Kinds of refusals, which every wire renders in its own way.

/// What is wrong with a refused request, in gRPC's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request is wrong in any state.
    InvalidArgument,
    /// The subject does not exist.
    NotFound,
    /// What the request would create exists.
    AlreadyExists,
    /// The state does not allow it.
    FailedPrecondition,
    /// The key holds another kind of value.
    WrongType,
    /// A concurrent change came first.
    Aborted,
    /// The revision asked for is in the future or compacted.
    OutOfRange,
    /// The answer would be too large, or space is used up.
    ResourceExhausted,
    /// Whoever asks has asked too much, and may ask again later.
    TooMany,
    /// Not here or not now: try another replica, or later.
    Unavailable,
    /// The client has disconnected.
    Cancelled,
    /// Nobody, or nobody who is known, asks.
    Unauthenticated,
    /// Whoever asks may not.
    PermissionDenied,
    /// etcd gives no reason.
    Unknown,
}
