//! The numbers that order everything, each with a type of its own, so that they cannot be swapped.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The next number.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Position of an entry in a group's log. The first entry has index 1.
    Index
}
number! {
    /// The period of one leader.
    Term
}
number! {
    /// Position of a command in the order of all commands ever applied. Every write into the store carries
    /// its command's sequence, so a sequence names one exact state, see [`crate::View`].
    Sequence
}
number! {
    /// Position of a visible change in the order of all visible changes, over all faces. A command that
    /// changes nothing visible (a keep-alive, a refused transaction) takes none.
    Revision
}
number! {
    /// The cluster's time when the leader made a batch: milliseconds since the Unix epoch, never decreasing
    /// along the log. All timeouts are judged by it.
    Stamp
}

/// How far a replica has applied its log, stored in the same atomic step as the effects of the last entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last applied entry.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// Sequence of the last applied command.
    pub sequence: Sequence,
    /// The newest revision. Revision 1 is the empty state, as in etcd: the first change is revision 2.
    pub revision: Revision,
    /// Stamp of the last applied batch.
    pub stamp: Stamp,
    /// Reads of revisions below this one are refused; 0 if nothing was compacted yet.
    pub compacted: Revision,
    /// Stamp of the first batch of [`Self::stamped_term`]: from then on leases could be kept alive.
    pub term_began: Stamp,
    /// Term of the last batch.
    pub stamped_term: Term,
}
