//! The note in a manifest's metadata of the streamed changes that the files contain.
//!
//! A version with such a note hides those changes, so the note must be of the very table, cluster and course of
//! events where it is published: anywhere else it would hide changes that the files do not have. A cluster that was
//! restored twice from one snapshot has one id and two courses of events, but its members' disks are others each
//! time.

use std::fmt;
use std::str::FromStr;

/// The changes that files contain: those of `table` up to `revision`, in a cluster while it had these disks.
///
/// As text: `REVISION TABLE CLUSTER DISK,DISK`, the last two in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folds {
    /// The newest change that may be in the files.
    pub revision: u64,
    /// The table that was changed.
    pub table: String,
    /// The cluster's id.
    pub cluster: u64,
    /// The numbers of its members' disks.
    pub disks: Vec<u64>,
}

impl Folds {
    /// Whether the changes are those of `table` in a cluster that has these disks now: at least one member is the same.
    pub fn are_of(&self, table: &str, cluster: u64, disks: &[u64]) -> bool {
        self.table == table && self.cluster == cluster && self.disks.iter().any(|disk| disks.contains(disk))
    }
}

impl fmt::Display for Folds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disks: Vec<String> = self.disks.iter().map(|disk| format!("{disk:x}")).collect();
        write!(f, "{} {} {:x} {}", self.revision, self.table, self.cluster, disks.join(","))
    }
}

/// The text is not such a note. Those of earlier versions, `REVISION@CLUSTER`, did not say enough to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no note of folded changes: REVISION TABLE CLUSTER DISK,DISK")]
pub struct NotFolds(String);

impl FromStr for Folds {
    type Err = NotFolds;

    fn from_str(text: &str) -> Result<Self, NotFolds> {
        let parse = || {
            let mut words = text.split(' ');
            let (revision, table) = (words.next()?.parse().ok()?, words.next()?.to_string());
            let hex = |word: &str| u64::from_str_radix(word, 16).ok();
            let cluster = hex(words.next()?)?;
            let disks = words.next()?.split(',').map(hex).collect::<Option<_>>()?;
            words.next().is_none().then_some(Self { revision, table, cluster, disks })
        };
        parse().ok_or_else(|| NotFolds(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A note named neither the table nor the course of events: files with one table's changes hid another's, and
    /// those that were acknowledged after a restore.
    #[test]
    fn a_note_counts_for_its_table_and_course_of_events_alone() {
        let folds = Folds { revision: 12, table: "a/b".into(), cluster: 0xc1, disks: vec![1, 0xab] };
        assert_eq!(folds.to_string(), "12 a/b c1 1,ab");
        assert_eq!("12 a/b c1 1,ab".parse(), Ok(folds.clone()));
        assert!(folds.are_of("a/b", 0xc1, &[7, 0xab]), "one member was replaced");
        assert!(!folds.are_of("a", 0xc1, &[1, 0xab]), "another table");
        assert!(!folds.are_of("a/b", 0xc2, &[1, 0xab]), "another cluster");
        assert!(!folds.are_of("a/b", 0xc1, &[8, 9]), "restored from the same snapshot again");
        for other in ["12@c1", "", "12 t c1", "x t c1 1", "12 t c1 1,", "12 t c1 1 more"] {
            assert!(other.parse::<Folds>().is_err(), "{other}");
        }
    }
}
