//! Reads a trail again: whether its records are those that were written.

use crate::files::numbered;
use crate::record::{LINE_BYTES_MAX, NOTHING, Record, parse};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// What a whole trail has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files that were read.
    pub files: usize,
    /// Records.
    pub records: u64,
    /// The number of the first record; above 1 where older files were deleted.
    pub first: u64,
    /// The number of the last record.
    pub last: u64,
    /// The hash of the last record: who notes it can tell later whether these records were still the same.
    pub hash: String,
    /// When the first and the last record were written.
    pub times: (String, String),
    /// Records of which the trail itself says that they were lost.
    pub lost: u64,
    /// Bytes at the end that are no whole line: the node is writing it, or crashed while it did.
    pub unfinished_bytes: u64,
}

/// The first place where a trail is not what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}, line {line}: {problem}", file.display())]
pub struct Break {
    /// The file.
    pub file: PathBuf,
    /// The line in it, from 1 on.
    pub line: u64,
    /// What is wrong.
    pub problem: String,
}

/// A record's number and hash, as somebody noted them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The number.
    pub n: u64,
    /// The hash.
    pub hash: String,
}

/// The files of a folder, in order.
///
/// # Errors
/// The folder cannot be read.
pub fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(numbered(folder)?.into_iter().map(|(_, path)| path).collect())
}

/// Hands out the records of a file, up to the first line that is none.
///
/// # Errors
/// That line, or the file cannot be read.
pub fn records(file: &Path, mut each: impl FnMut(Record)) -> Result<(), Break> {
    let unfinished = lines(file, |_, record| {
        each(record);
        Ok(())
    });
    unfinished.map(drop)
}

/// Checks the records of `files`, which follow each other, and that `known` ones have the hashes that were noted.
///
/// # Errors
/// The first record that is not what was written.
pub fn verify(files: &[PathBuf], known: &[Known]) -> Result<Report, Break> {
    let mut report = Report { files: files.len(), ..Report::default() };
    for (place, file) in files.iter().enumerate() {
        let unfinished = lines(file, |_, record| {
            if report.records == 0 {
                (report.first, report.times.0) = (record.n, record.time.clone());
                if record.n == 1 && record.prev != NOTHING {
                    return Err("is record 1, and follows another".into());
                }
            } else if record.n != report.last + 1 {
                return Err(format!("is record {}, where {} is expected", record.n, report.last + 1));
            } else if record.prev != report.hash {
                return Err(format!("does not follow record {}, whose hash is {}", report.last, report.hash));
            }
            if let Some(noted) = known.iter().find(|noted| noted.n == record.n)
                && noted.hash != record.hash
            {
                return Err(format!("is another record {} than the one whose hash was noted", record.n));
            }
            if record.act == "audit.lost" {
                report.lost += record.about.get("records").and_then(|lost| lost.parse().ok()).unwrap_or(0);
            }
            report.records += 1;
            (report.last, report.hash, report.times.1) = (record.n, record.hash, record.time);
            Ok(())
        })?;
        if unfinished.1 > 0 && place + 1 < files.len() {
            return Err(broken(file, unfinished.0, "is not whole"));
        }
        report.unfinished_bytes = unfinished.1;
    }
    // Cut off at the end, a trail is still one.
    match known.iter().find(|noted| noted.n > report.last) {
        Some(noted) => {
            let problem =
                format!("the trail ends at record {}, and record {} was noted", report.last, noted.n);
            let (file, line) = (files.last().cloned().unwrap_or_default(), report.records);
            Err(Break { file, line, problem })
        }
        None => Ok(report),
    }
}

fn broken(file: &Path, line: u64, problem: impl Into<String>) -> Break {
    Break { file: file.into(), line, problem: problem.into() }
}

/// Hands out the records of a file with the numbers of their lines; returns the number and the bytes of a last line without
/// end.
fn lines(file: &Path, mut each: impl FnMut(u64, Record) -> Result<(), String>) -> Result<(u64, u64), Break> {
    let failed = |line: u64| move |error: io::Error| broken(file, line, format!("cannot be read: {error}"));
    let mut reader = BufReader::new(File::open(file).map_err(failed(1))?);
    let mut number = 0;
    loop {
        number += 1;
        let mut bytes = Vec::new();
        (&mut reader).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut bytes).map_err(failed(number))?;
        match bytes.pop() {
            None => return Ok((number, 0)),
            Some(b'\n') => {}
            Some(_) if bytes.len() + 1 == LINE_BYTES_MAX => {
                return Err(broken(file, number, "is longer than a record can be"));
            }
            Some(_) => return Ok((number, bytes.len() as u64 + 1)),
        }
        let line = String::from_utf8(bytes).map_err(|_| broken(file, number, "is no record: no UTF-8"))?;
        let record = parse(&line).map_err(|problem| broken(file, number, problem))?;
        each(number, record).map_err(|problem| broken(file, number, problem))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Entry, Head, Outcome, Who};
    use std::time::SystemTime;

    /// Two files with two and three records.
    fn trail(folder: &Path) -> (Vec<PathBuf>, Vec<String>) {
        let mut head = Head::default();
        let line = |head: &mut Head, n: u64| {
            let mut out = String::new();
            let entry = Entry {
                who: Who::default(),
                act: format!("act {n}"),
                about: crate::record::About::default(),
                outcome: Outcome::Done,
                code: String::new(),
                revision: None,
            };
            head.append(&mut out, "n1", SystemTime::now(), &entry);
            out
        };
        let lines: Vec<String> = (0..5).map(|n| line(&mut head, n)).collect();
        let files = vec![folder.join("audit-1.jsonl"), folder.join("audit-3.jsonl")];
        std::fs::write(&files[0], lines[..2].concat()).unwrap();
        std::fs::write(&files[1], lines[2..].concat()).unwrap();
        (files, lines)
    }

    #[test]
    fn the_first_break_is_named_with_its_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let (files, lines) = trail(folder.path());
        let whole = verify(&files, &[]).unwrap();
        assert_eq!((whole.records, whole.first, whole.last, whole.files), (5, 1, 5, 2));
        assert_eq!(verify(&files[1..], &[]).unwrap().first, 3, "older files were deleted");
        let found = |second: &[String]| {
            std::fs::write(&files[1], second.concat()).unwrap();
            let found = verify(&files, &[]).unwrap_err();
            (found.file == files[1], found.line, found.problem)
        };
        let changed = lines[3].replace("act 3", "act 4");
        let (second, line, problem) = found(&[lines[2].clone(), changed, lines[4].clone()]);
        assert!(second && line == 2 && problem.starts_with("was changed"), "{problem}");
        let (second, line, problem) = found(&[lines[2].clone(), lines[4].clone()]);
        assert!(second && line == 2 && problem == "is record 5, where 4 is expected", "{problem}");
        let (second, line, problem) = found(&[lines[3].clone(), lines[2].clone()]);
        assert!(second && line == 1 && problem == "is record 4, where 3 is expected", "{problem}");
        let (second, line, problem) = found(&[lines[2].clone(), "\n".into()]);
        assert!(second && line == 2 && problem.starts_with("is no record"), "{problem}");
        // Written anew with the right hash, it is not the one that the next follows.
        let mut head = Head { n: 3, hash: whole.hash.clone() };
        let mut forged = String::new();
        let entry = Entry {
            who: Who::default(),
            act: "forged".into(),
            about: crate::record::About::default(),
            outcome: Outcome::Done,
            code: String::new(),
            revision: None,
        };
        head.append(&mut forged, "n1", SystemTime::now(), &entry);
        let (second, line, problem) = found(&[lines[2].clone(), forged, lines[4].clone()]);
        assert!(second && line == 2 && problem.starts_with("does not follow record 3"), "{problem}");
    }

    #[test]
    fn what_was_noted_finds_another_trail_and_a_shorter_one() {
        let folder = tempfile::tempdir().unwrap();
        let (files, lines) = trail(folder.path());
        let hash = verify(&files, &[]).unwrap().hash;
        let known = |n, hash: &str| [Known { n, hash: hash.into() }];
        assert!(verify(&files, &known(5, &hash)).is_ok());
        assert!(verify(&files, &known(4, &hash)).unwrap_err().problem.contains("another record 4"));
        std::fs::write(&files[1], lines[2..4].concat()).unwrap();
        assert!(verify(&files, &[]).is_ok(), "nobody can know");
        let shorter = verify(&files, &known(5, &hash)).unwrap_err();
        assert_eq!(shorter.problem, "the trail ends at record 4, and record 5 was noted");
        // The node is writing the last line.
        std::fs::write(&files[1], format!("{}{}", lines[2], &lines[3][..9])).unwrap();
        assert_eq!(verify(&files, &[]).unwrap().unfinished_bytes, 9);
        std::fs::write(&files[0], &lines[0][..9]).unwrap();
        assert_eq!(verify(&files, &[]).unwrap_err().line, 1);
    }
}
