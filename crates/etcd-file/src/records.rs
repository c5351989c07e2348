//! What etcd keeps in its database, as far as it is carried over. Numbers in keys are big-endian.
//!
//! ```text
//! key:    i64 revision '_' i64 place in it, and 't' of a deletion -> KeyValue; of a deletion only its key
//! lease:  i64 id -> Lease
//! meta:   consistent_index, term -> u64; confState -> JSON; finishedCompactRev, scheduledCompactRev -> as a key of `key`
//! auth:   authEnabled -> 1 if it is
//! ```
//!
//! A key of no bytes, in `key`, stands for nothing: etcdutl writes one to raise the revision.

pub(crate) const ALARM: &[u8] = b"alarm";
pub(crate) const AUTH: &[u8] = b"auth";
pub(crate) const AUTH_ROLES: &[u8] = b"authRoles";
pub(crate) const AUTH_USERS: &[u8] = b"authUsers";
pub(crate) const CLUSTER: &[u8] = b"cluster";
pub(crate) const KEY: &[u8] = b"key";
pub(crate) const LEASE: &[u8] = b"lease";
pub(crate) const MEMBERS: &[u8] = b"members";
pub(crate) const MEMBERS_REMOVED: &[u8] = b"members_removed";
pub(crate) const META: &[u8] = b"meta";

pub(crate) const CONSISTENT_INDEX: &[u8] = b"consistent_index";
pub(crate) const TERM: &[u8] = b"term";
pub(crate) const CONFIGURATION: &[u8] = b"confState";
pub(crate) const FINISHED_COMPACTION: &[u8] = b"finishedCompactRev";
pub(crate) const SCHEDULED_COMPACTION: &[u8] = b"scheduledCompactRev";
pub(crate) const AUTH_ENABLED: &[u8] = b"authEnabled";

const REVISION_BYTES: usize = 17;

/// Where a change is in etcd's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) revision: u64,
    pub(crate) sub: u64,
    pub(crate) deleted: bool,
}

impl Place {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(REVISION_BYTES + 1);
        out.extend_from_slice(&self.revision.to_be_bytes());
        out.push(b'_');
        out.extend_from_slice(&self.sub.to_be_bytes());
        if self.deleted {
            out.push(b't');
        }
        out
    }

    /// `None` if it is none, or out of bounds.
    pub(crate) fn decode(key: &[u8]) -> Option<Self> {
        let (revision, rest) = key.split_first_chunk()?;
        let (sub, end) = rest.strip_prefix(b"_")?.split_first_chunk()?;
        let deleted = match end {
            b"" => false,
            b"t" => true,
            _ => return None,
        };
        let place = Self { revision: u64::from_be_bytes(*revision), sub: u64::from_be_bytes(*sub), deleted };
        i64::try_from(place.revision.max(place.sub)).is_ok().then_some(place)
    }
}

/// etcd's `leasepb.Lease`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Lease {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
    /// Seconds.
    #[prost(int64, tag = "2")]
    pub(crate) ttl: i64,
    /// Seconds; 0 if it was never noted.
    #[prost(int64, tag = "3")]
    pub(crate) remaining_ttl: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_back_and_others_refused() {
        let place = Place { revision: 258, sub: 1, deleted: false };
        assert_eq!(place.encode(), b"\0\0\0\0\0\0\x01\x02_\0\0\0\0\0\0\0\x01");
        for place in [place, Place { deleted: true, ..place }] {
            assert_eq!(Place::decode(&place.encode()), Some(place));
        }
        for wrong in [
            &b""[..],
            b"\0\0\0\0\0\0\x01\x02-\0\0\0\0\0\0\0\x01",
            &[&place.encode()[..], b"x"].concat(),
            &[0xff; 17],
        ] {
            assert_eq!(Place::decode(wrong), None);
        }
    }
}
