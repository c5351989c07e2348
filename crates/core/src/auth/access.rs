//! What one user may do, prepared for asking: the ranges of all roles merged, so that a question costs one search.

use super::command::{Grant, KeyRange, KeyRights, Part, Scope, TableGrant, rights, table_rights};
use bytes::Bytes;
use std::ops::Bound;

/// Ranges of keys, disjoint and in order: whatever lies in their union lies in one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(Bytes, Bound<Bytes>)>);

impl Ranges {
    /// The union of `ranges`.
    fn of<'a>(ranges: impl Iterator<Item = &'a KeyRange>) -> Self {
        let mut all: Vec<(Bytes, Bound<Bytes>)> = ranges.map(bounds).collect();
        all.sort_by(|left, right| left.0.cmp(&right.0));
        let mut merged: Vec<(Bytes, Bound<Bytes>)> = Vec::with_capacity(all.len());
        for (from, to) in all {
            match merged.last_mut() {
                Some((_, end)) if reaches(end, &from) => {
                    if beyond(&to, end) {
                        *end = to;
                    }
                }
                _ => merged.push((from, to)),
            }
        }
        Self(merged)
    }

    /// Whether all keys of a range are in it; `range_end` as in [`KeyRange`].
    pub fn cover(&self, key: &[u8], range_end: &[u8]) -> bool {
        let after = self.0.partition_point(|(from, _)| from <= key);
        let Some((_, end)) = after.checked_sub(1).and_then(|place| self.0.get(place)) else { return false };
        let end = match end {
            Bound::Excluded(end) => end,
            Bound::Included(_) | Bound::Unbounded => return true,
        };
        match range_end {
            b"\0" => false,
            // Of a range that ends before it begins, only where it begins is judged.
            to if to <= key => key < end,
            to => to <= end,
        }
    }
}

/// Where a range begins, and where it ends: excluded, or unbounded.
fn bounds(range: &KeyRange) -> (Bytes, Bound<Bytes>) {
    let end = match &range.range_end[..] {
        b"" => Bound::Excluded([&range.key[..], b"\0"].concat().into()),
        b"\0" => Bound::Unbounded,
        _ => Bound::Excluded(range.range_end.clone()),
    };
    (range.key.clone(), end)
}

/// Whether what begins at `from` goes on where `end` ends, or before.
fn reaches(end: &Bound<Bytes>, from: &Bytes) -> bool {
    match end {
        Bound::Excluded(end) => from <= end,
        Bound::Included(_) | Bound::Unbounded => true,
    }
}

fn beyond(to: &Bound<Bytes>, end: &Bound<Bytes>) -> bool {
    match (to, end) {
        (_, Bound::Unbounded) => false,
        (Bound::Excluded(to), Bound::Excluded(end)) => to > end,
        _ => true,
    }
}

/// What one user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    root: bool,
    read: Ranges,
    write: Ranges,
    /// The rights in each [`Part`].
    parts: [u32; PARTS],
    tables: Vec<TableGrant>,
}

const PARTS: usize = Part::Metrics as usize + 1;

impl Access {
    pub(super) fn of<'a>(root: bool, grants: impl Iterator<Item = &'a Grant> + Clone) -> Self {
        let keys = |other: KeyRights| {
            Ranges::of(grants.clone().filter_map(move |grant| match &grant.scope {
                Some(Scope::Keys(range)) if range.rights() != other => Some(range),
                _ => None,
            }))
        };
        let mut parts = [0; PARTS];
        for grant in grants.clone() {
            if let Some(Scope::Part(of)) = &grant.scope
                && let Some(rights) = usize::try_from(of.part).ok().and_then(|part| parts.get_mut(part))
            {
                *rights |= of.rights;
            }
        }
        let tables = grants.clone().filter_map(|grant| match &grant.scope {
            Some(Scope::Tables(tables)) => Some(tables.clone()),
            _ => None,
        });
        let tables = tables.collect();
        Self { root, read: keys(KeyRights::Write), write: keys(KeyRights::Read), parts, tables }
    }

    /// Everything is allowed.
    pub fn is_root(&self) -> bool {
        self.root
    }

    /// Whether all keys of a range may be read; an empty `range_end` means the one key, a zero byte no end.
    pub fn reads(&self, key: &[u8], range_end: &[u8]) -> bool {
        self.root || self.read.cover(key, range_end)
    }

    /// As [`Self::reads`], for writing and deleting.
    pub fn writes(&self, key: &[u8], range_end: &[u8]) -> bool {
        self.root || self.write.cover(key, range_end)
    }

    /// Whether one of [`table_rights`] is granted in the table of this name, or in all.
    pub fn has_table(&self, name: &str, right: u32) -> bool {
        let in_all = match right {
            table_rights::LOOKUP => rights::READ,
            table_rights::CHANGE => rights::WRITE,
            _ => rights::ADMIN,
        };
        let granted = |grant: &TableGrant| grant.rights & right == right && grant.is_about(name);
        self.has(Part::Table, in_all) || right != 0 && self.tables.iter().any(granted)
    }

    /// Whether `rights` of a part are granted in all of it, or in some of its tables: as far as can be said before it
    /// is known which table.
    pub fn has_some(&self, part: Part, rights: u32) -> bool {
        let of_tables = match rights {
            rights::READ => table_rights::LOOKUP,
            rights::WRITE => table_rights::CHANGE,
            _ => table_rights::PUBLISH | table_rights::ACTIVATE,
        };
        let some = |grant: &TableGrant| grant.rights & of_tables != 0;
        self.has(part, rights) || part == Part::Table && self.tables.iter().any(some)
    }

    /// Whether all of `rights` are granted in a part.
    pub fn has(&self, part: Part, rights: u32) -> bool {
        self.root || rights != 0 && self.parts[part as usize] & rights == rights
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::FaceGrant;
    use super::super::command::rights::{READ, WRITE};
    use super::*;
    use proptest::prelude::*;

    fn grant(rights: KeyRights, key: &[u8], range_end: &[u8]) -> Grant {
        let (key, range_end) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(range_end));
        Grant { scope: Some(Scope::Keys(KeyRange { rights: rights as i32, key, range_end })) }
    }

    #[test]
    fn what_several_roles_cover_together_is_covered() {
        let grants = [
            grant(KeyRights::Read, b"a", b"c"),
            grant(KeyRights::ReadWrite, b"c", b"e"),
            grant(KeyRights::Write, b"x", b""),
            grant(KeyRights::Read, b"y", b"\0"),
        ];
        let access = Access::of(false, grants.iter());
        for (key, end, reads, writes) in [
            ("a", "", true, false),
            ("a", "e", true, false),
            ("b", "d", true, false),
            ("a", "e0", false, false),
            ("c", "e", true, true),
            ("c", "\0", false, false),
            ("e", "", false, false),
            ("x", "", false, true),
            ("x", "x\0", false, true),
            ("x\0", "", false, false),
            ("y", "\0", true, false),
            ("zz", "zzz", true, false),
            ("d", "b", true, true),
            ("", "", false, false),
        ] {
            let (key, end) = (key.as_bytes(), end.as_bytes());
            assert_eq!((access.reads(key, end), access.writes(key, end)), (reads, writes), "{key:?} {end:?}");
        }
        let root = Access::of(true, [].iter());
        assert!(root.reads(b"\0", b"\0") && root.writes(b"k", b"") && root.has(Part::Cluster, WRITE));
    }

    #[test]
    fn rights_in_parts_add_up() {
        let part =
            |rights| Grant { scope: Some(Scope::Part(FaceGrant { part: Part::Ledger as i32, rights })) };
        let access = Access::of(false, [part(READ), part(WRITE)].iter());
        assert!(access.has(Part::Ledger, READ | WRITE) && !access.has(Part::Table, READ));
        assert!(!access.has(Part::Ledger, 0) && !access.reads(b"k", b""));
    }

    #[test]
    fn tables_are_granted_by_their_names() {
        use super::super::command::TableGrant;
        use super::super::command::rights::ADMIN;
        use super::super::command::table_rights::{ACTIVATE, CHANGE, LOOKUP, PUBLISH};
        let tables = |pattern: &str, rights| Grant {
            scope: Some(Scope::Tables(TableGrant { pattern: pattern.into(), rights })),
        };
        let access = Access::of(false, [tables("ads_*", LOOKUP | ACTIVATE), tables("one", CHANGE)].iter());
        for (name, right, has) in [
            ("ads_1", LOOKUP, true),
            ("ads_", ACTIVATE, true),
            ("ads_1", PUBLISH, false),
            ("ads", LOOKUP, false),
            ("one", CHANGE, true),
            ("one", LOOKUP, false),
            ("one1", CHANGE, false),
            ("one", 0, false),
        ] {
            assert_eq!(access.has_table(name, right), has, "{name} {right}");
        }
        assert!(!access.has(Part::Table, READ) && access.has_some(Part::Table, READ));
        assert!(access.has_some(Part::Table, ADMIN) && !access.has_some(Part::Ledger, READ));
        let all = Grant { scope: Some(Scope::Part(FaceGrant { part: Part::Table as i32, rights: ADMIN })) };
        let access = Access::of(false, [all].iter());
        assert!(access.has_table("x", PUBLISH) && access.has_table("x", ACTIVATE));
        assert!(!access.has_table("x", LOOKUP));
    }

    proptest! {
        /// Compared with asking for each key of a small world.
        #[test]
        fn a_range_is_covered_if_each_of_its_keys_is(
            granted in proptest::collection::vec((0u8..12, 0u8..14), 0..6),
            asked in (0u8..12, 0u8..14),
        ) {
            // 12: the one key, 13: no end.
            let end_of = |end: u8| match end { 12 => Vec::new(), 13 => vec![0], end => vec![end + 1] };
            let holds = |(from, end): (u8, u8), key: u8| match end {
                12 => key == from,
                13 => key >= from,
                end => key >= from && key < end,
            };
            let granted: Vec<_> = granted.into_iter().filter(|(from, end)| *end >= 12 || end > from).collect();
            let grants: Vec<_> =
                granted.iter().map(|(from, end)| grant(KeyRights::Read, &[from + 1], &end_of(*end))).collect();
            let access = Access::of(false, grants.iter());
            let (from, end) = asked;
            prop_assume!(end >= 12 || end > from);
            let covered = |key: u8| granted.iter().any(|granted| holds(*granted, key));
            // Between two neighbouring bytes there are longer keys: a range needs more than its bytes.
            let reads = access.reads(&[from + 1], &end_of(end));
            let bytes = (0..=13).filter(|key| holds(asked, *key)).all(covered);
            prop_assert!(!reads || bytes);
            if end == 12 {
                prop_assert_eq!(reads, bytes);
            }
        }
    }
}
